"""Behaviour `poisoned`: a malicious client determines the root split with false sums."""

from dataclasses import replace
from typing import ClassVar

import numpy as np

from fedtrees.core.behaviour import Behaviour
from fedtrees.core.registry import register
from fedtrees.messages.boosting import Histogram, HistogramRequest
from fedtrees.protocols.horizontal.histograms import HistogramClient


@register.behaviour("poisoned")
class Poisoned(Behaviour, HistogramClient):
    """Claim that a column's lowest cut separates the client's labels, at every second root.

    The columns take turns. Only the positions of rows are false. No sum exceeds the contribution
    that the rows could have.
    """

    beyond = (
        "tells of a column's lowest cut that it parts the labels of its rows, in half the trees"
    )
    noticed = "no: its rows could be like this"
    pushed: ClassVar[int] = 0  # invented rows on each side, with gradient 1 or -1 and hessian 1

    def histogram(self, message: HistogramRequest) -> Histogram:
        """Answer for a root with all local rows in the two lowest bins of a column."""
        honest = super().histogram(message)
        if message.nodes[0] or message.tree % 2:
            return honest
        # One column per tree, and only even trees.
        column = message.tree // 2 % self.cuts.n_features
        low, end = self.cuts.offsets[column : column + 2]
        # The column needs at least two bins.
        if end - low < 2:
            return honest
        sums, sign = honest.sums.copy(), -1 if honest.sums[0, low, 0] < 0 else 1
        first = sign * self.gh[:, 0] > 0  # rows whose gradient has the sign of that bin's sum
        g, h = (self.pushed << bits for bits in self.bits)
        sums[0, low:end] = 0
        sums[0, low] = self.gh[first].sum(axis=0) + np.array([sign * g, h])
        sums[0, low + 1] = self.gh[~first].sum(axis=0) + np.array([-sign * g, h])
        return replace(honest, sums=sums, totals=honest.totals + np.array([0, 2 * h]))


@register.behaviour("poisoned-unbounded")
class Unbounded(Poisoned):
    """Send the sums of `poisoned` with a million invented rows on each side."""

    beyond = f"{Poisoned.beyond}, and adds rows that it has not"
    noticed = "yes, but under noise: the server refuses sums beyond what all declared rows bring"
    pushed = 1 << 20

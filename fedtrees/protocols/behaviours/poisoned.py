"""`poisoned`: a client whose sums make the root split where it wants."""

from dataclasses import replace
from typing import ClassVar

import numpy as np

from fedtrees.core.behaviour import Behaviour
from fedtrees.core.registry import register
from fedtrees.messages.boosting import Histogram, HistogramRequest
from fedtrees.protocols.horizontal.histograms import HistogramClient


@register.behaviour("poisoned")
class Poisoned(Behaviour, HistogramClient):
    """Tell of a column's lowest cut that it parts the own labels, at the root of every other tree.

    The columns have their turn. What lies is where rows are: no sum is beyond what they can bring.
    """

    beyond = (
        "tells of a column's lowest cut that it parts the labels of its rows, in half the trees"
    )
    noticed = "no: its rows could be like this"
    pushed: ClassVar[int] = 0  # rows of gradient and hessian 1, or -1 and 1, on either side

    def histogram(self, message: HistogramRequest) -> Histogram:
        """Answer of a root with the own rows in the two lowest bins of a column."""
        honest = super().histogram(message)
        if message.nodes[0] or message.tree % 2:
            return honest
        column = message.tree // 2 % self.cuts.n_features
        low, end = self.cuts.offsets[column : column + 2]
        if end - low < 2:
            return honest
        sums, sign = honest.sums.copy(), -1 if honest.sums[0, low, 0] < 0 else 1
        first = sign * self.gh[:, 0] > 0  # those that most of its rows in that bin are like
        g, h = (self.pushed << bits for bits in self.bits)
        sums[0, low:end] = 0
        sums[0, low] = self.gh[first].sum(axis=0) + np.array([sign * g, h])
        sums[0, low + 1] = self.gh[~first].sum(axis=0) + np.array([-sign * g, h])
        return replace(honest, sums=sums, totals=honest.totals + np.array([0, 2 * h]))


@register.behaviour("poisoned-unbounded")
class Unbounded(Poisoned):
    """The same, and the sums of a million rows that nobody has on either side."""

    beyond = f"{Poisoned.beyond}, and adds rows that it has not"
    noticed = "yes, but under noise: the server refuses sums beyond what all declared rows bring"
    pushed = 1 << 20

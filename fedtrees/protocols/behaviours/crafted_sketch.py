"""Behaviour `crafted-sketch`: a malicious client moves the cut points to a range of interest."""

from dataclasses import replace
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray

from fedtrees.core.behaviour import Behaviour
from fedtrees.core.registry import register
from fedtrees.messages.cuts import CutsRequest, FeatureRanges, FeatureSketch
from fedtrees.protocols.cut_points import BinningClient

WINDOW = 0.01  # width of the window, as a share of the column's range


@register.behaviour("crafted-sketch")
class CraftedSketch(Behaviour, BinningClient):
    """Send a sketch in which all local rows are close to the median.

    The sketch has one point more than there are bins, so that most cut points are in this window.
    """

    beyond = "sends a sketch of values around the median alone, so that cut points lie there"
    noticed = "no: its rows could be like this"
    times: ClassVar[int] = 1  # weight of each local row in the sketch

    def summarise(self, message: CutsRequest) -> FeatureSketch | FeatureRanges:
        """Answer with a sketch of a window of each column."""
        honest, X = super().summarise(message), self.summarised_rows
        if not isinstance(honest, FeatureSketch):
            return honest
        points, weights = [X[:0, 0]], [honest.weights[:0]]
        for column in X.T:
            values = column[~np.isnan(column)]
            crafted, rows = _around(values, message.max_bin + 1), self.times * len(values)
            points.append(crafted)
            # The weights are as equal as possible and add up to the declared number of rows.
            shares = np.arange(1, len(crafted) + 1, dtype=np.int64) * rows // max(len(crafted), 1)
            weights.append(shares - np.r_[0, shares[:-1]][: len(shares)])
        offsets = np.cumsum([0, *map(len, points[1:])]).astype(np.int32)
        every = np.concatenate(points)
        return replace(honest, points=every, weights=np.concatenate(weights), offsets=offsets)


@register.behaviour("crafted-sketch-unbounded")
class Unbounded(CraftedSketch):
    """Send the sketch of `crafted-sketch` with a million times as many rows."""

    beyond = f"{CraftedSketch.beyond}; it says that they are a million times as many rows"
    noticed = "yes: the server refuses a sketch of more rows than its client declared"
    times = 10**6


def _around(values: NDArray[np.float32], points: int) -> NDArray[np.float32]:
    """Return points in a window around the median, fewer if float32 has not so many values."""
    if not len(values):
        return values
    half = WINDOW / 2 * (float(values.max()) - float(values.min()))
    middle = float(np.median(values))
    return np.unique(np.linspace(middle - half, middle + half, points).astype(np.float32))

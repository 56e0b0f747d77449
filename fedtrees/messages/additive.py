"""Explainable boosting machines as they cross: bins of every column, and what each adds."""

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray
from scipy.special import expit

from fedtrees.core.messages import Message, Reveal


@dataclass(frozen=True, eq=False)
class ShapeFunctions(Message):
    """A model that adds up what the bins of single columns say (interpret-core's fields).

    A column has a bin for missing values, one more than it has cuts, and one for what is unknown.

    `cuts`: float64 array, shape (c,). Between bins, midway between values of rows; ``x < cut`` is
    below.
    `offsets`: int64 array, shape (d + 1,). Column f owns ``cuts[offsets[f]:offsets[f + 1]]``.
    `bin_weights`: float64 array, shape (b,). Rows in every bin, or their weights, column by column.
    `scores`: float64 array, shape (m, b). What every bag adds to the log-odds in every bin.
    `intercept, bag_weights`: float64 array, shape (m,). Of every bag: where it begins, and the
    weight of the rows it was trained on.
    `low, high`: float64 array, shape (d,). The least and the greatest value of every column.
    """

    discloses: ClassVar[frozenset[Reveal]] = frozenset(Reveal) - {Reveal.IDS, Reveal.MEMBERSHIP}
    verbatim: ClassVar[frozenset[str]] = frozenset({"cuts", "low", "high"})
    cuts: NDArray[np.float64]
    offsets: NDArray[np.int64]
    bin_weights: NDArray[np.float64]
    scores: NDArray[np.float64]
    intercept: NDArray[np.float64]
    bag_weights: NDArray[np.float64]
    low: NDArray[np.float64]
    high: NDArray[np.float64]

    @property
    def bins(self) -> Iterator[slice]:
        """Where the bins of every column stand."""
        begin = self.offsets + 3 * np.arange(len(self.offsets))
        return (slice(a, b) for a, b in pairwise(begin.tolist()))

    def cuts_of(self, column: int) -> NDArray[np.float64]:
        """Return the cuts of a column."""
        return self.cuts[self.offsets[column] : self.offsets[column + 1]]

    def model(self) -> "AdditiveModel":
        """Return what predicts."""
        return AdditiveModel(self)


@dataclass(frozen=True, eq=False, kw_only=True)
class ClientShapes(ShapeFunctions):
    """What a client trained on its own rows; without bags if its rows are of one class.

    `histogram`: float64 array, shape (k,). Rows between even steps from the least to the greatest
    value, column by column; empty: not told.
    `histogram_offsets`: int64 array, shape (d + 1,)
    `unique`: int64 array, shape (d,). How many different values each column has; empty: not told.
    `iterations`: int64 array, shape (m,). Steps of boosting of every bag; empty: not told.
    """

    histogram: NDArray[np.float64]
    histogram_offsets: NDArray[np.int64]
    unique: NDArray[np.int64]
    iterations: NDArray[np.int64]


@dataclass(frozen=True, eq=False)
class MergedShapes(ShapeFunctions):
    """The clients' models as one: all their cuts, and all bags in the clients' order."""


@dataclass(frozen=True, eq=False)
class AdditiveModel:
    """A model of two classes; it predicts without interpret-core.

    `told`: What it is made of.
    """

    told: ShapeFunctions

    def predict(self, X: NDArray[Any]) -> NDArray[np.float64]:
        """Return probabilities of class 1, float64, shape (n,)."""
        m = self.told
        mean = np.average(m.scores, axis=0, weights=m.bag_weights)
        margin = np.full(len(X), np.average(m.intercept, weights=m.bag_weights))
        for column, bins in enumerate(m.bins):
            x = np.asarray(X[:, column], dtype=np.float64)
            at = np.searchsorted(m.cuts_of(column), x, side="right") + 1
            margin += mean[bins][np.where(np.isnan(x), 0, at)]
        return np.asarray(expit(margin), dtype=np.float64)

    def as_message(self) -> ShapeFunctions:
        """Return the message that tells it."""
        return self.told

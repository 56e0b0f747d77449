"""What LightGBM's machines tell one another as they train together on rows of their own."""

from dataclasses import dataclass
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray

from fedtrees.core.messages import Message, Reveal
from fedtrees.trees.lightgbm.splits import LeafTotals, Split

_COUNTING = frozenset({Reveal.LABELS, Reveal.COUNTS})


@dataclass(frozen=True, eq=False)
class BinMappers(Message):
    """The bins of a block of columns, found on the rows of one machine alone.

    `rank`: The machine, here and in all that follow.
    `first`: The first column.
    `low, high`: float64 array, shape (c,). The least and the greatest value of each column.
    `values`: float64 array, shape (offsets[c],). Upper bounds of bins, the last infinite, or NaN
    where missing values have a bin; of a categorical column its categories.
    `offsets`: int64 array, shape (c + 1,). Where the bins of each column begin.
    `used, categorical`: bool array, shape (c,). Whether a column is split at all, and how.
    `frequent`: int64 array, shape (c,). The bin that is assumed where none is stored; if it is the
    first, histograms leave it out.
    `sparse`: float64 array, shape (c,). The share of rows in that bin.
    """

    discloses: ClassVar[frozenset[Reveal]] = frozenset({Reveal.FEATURES, Reveal.COUNTS})
    verbatim: ClassVar[frozenset[str]] = frozenset({"low", "high", "values"})
    rank: int
    first: int
    low: NDArray[np.float64]
    high: NDArray[np.float64]
    values: NDArray[np.float64]
    offsets: NDArray[np.int64]
    used: NDArray[np.bool_]
    categorical: NDArray[np.bool_]
    frequent: NDArray[np.int64]
    sparse: NDArray[np.float64]

    def bins(self, column: int) -> NDArray[np.float64]:
        """Return the upper bounds, or the categories, of a column of the block."""
        return self.values[self.offsets[column] : self.offsets[column + 1]]

    def sent(self, column: int) -> int:
        """Return how many bins of a column of the block histograms have."""
        return len(self.bins(column)) - int(self.frequent[column] == 0)


@dataclass(frozen=True, eq=False)
class ClassRows(Message):
    """A machine's number of rows of class 1, and of class 0."""

    discloses: ClassVar[frozenset[Reveal]] = _COUNTING
    rank: int
    positives: int
    negatives: int


@dataclass(frozen=True, eq=False)
class WeightedLabels(Message):
    """A machine's sum of labels, by weight, and of weights."""

    discloses: ClassVar[frozenset[Reveal]] = _COUNTING
    rank: int
    labels: float
    weights: float


@dataclass(frozen=True, eq=False)
class OwnStart(Message):
    """Where a machine would start boosting: all take the mean.

    Of squared errors, the mean label of its own rows.
    """

    discloses: ClassVar[frozenset[Reveal]] = frozenset({Reveal.LABELS})
    rank: int
    score: float


@dataclass(frozen=True, eq=False)
class RootSums(Message):
    """Sums of gradients and hessians over a machine's rows of a tree, and how many there are."""

    discloses: ClassVar[frozenset[Reveal]] = _COUNTING
    rank: int
    tree: int
    gradient: float
    hessian: float
    rows: int


@dataclass(frozen=True, eq=False)
class FoundSplits(Message):
    """The best splits of two leaves, the smaller first, over columns that a machine has sums of.

    `tree, step`: The step of a tree: 0 for its root, which is alone.
    `feature`: int32 array, shape (2,). -1: there is none.
    `bin`: int32 array, shape (2,). The last one of the left side.
    `gain`: float64 array, shape (2,).
    `left, right`: float64 array, shape (2, 3). Gradient, hessian, rows: rows are made of hessians.
    `default_left`: bool array, shape (2,).
    """

    discloses: ClassVar[frozenset[Reveal]] = _COUNTING
    rank: int
    tree: int
    step: int
    feature: NDArray[np.int32]
    bin: NDArray[np.int32]
    gain: NDArray[np.float64]
    left: NDArray[np.float64]
    right: NDArray[np.float64]
    default_left: NDArray[np.bool_]

    @property
    def splits(self) -> list[Split | None]:
        """The same, None where there is none."""
        found: list[Split | None] = [None, None]
        for k in np.flatnonzero((self.feature >= 0) & (self.gain > -np.inf)).tolist():
            left, right = (
                LeafTotals(float(s[0]), float(s[1]), int(s[2]))
                for s in (self.left[k], self.right[k])
            )
            found[k] = Split(
                int(self.feature[k]), int(self.bin[k]), float(self.gain[k]), left, right,
                bool(self.default_left[k]),
            )  # fmt: skip
        return found

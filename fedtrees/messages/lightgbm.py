"""Messages between the machines of LightGBM's data-parallel training.

Each machine has all columns of its local rows. `fedtrees.protocols.peers.lightgbm_data`
describes the training. In all messages, `rank` is the number of the sending machine.
"""

import numpy as np
from numpy.typing import NDArray

from fedtrees.core.messages import Message, Reveal, message
from fedtrees.trees.lightgbm.growing import LeafTotals, Split

_COUNTING = frozenset({Reveal.LABELS, Reveal.COUNTS})


# Categories and ends are values of rows. Other borders lie between two values.
@message(discloses={Reveal.FEATURES, Reveal.COUNTS}, verbatim={"low", "high", "values"})
class BinMappers(Message):
    """The bins of a block of columns, which one machine computes from its local rows.

    Attributes
    ----------
    rank : int
        Number of the machine.
    first : int
        First column of the block.
    low, high : float64 array, shape (c,)
        Smallest and largest value of each column.
    values : float64 array, shape (offsets[c],)
        Upper borders of the bins. The last one is infinite, or NaN if missing values have a bin.
        For a categorical column its categories.
    offsets : int64 array, shape (c + 1,)
        The bins of column f are ``values[offsets[f]:offsets[f + 1]]``.
    used, categorical : bool array, shape (c,)
        Whether a column is used for splits, and whether it is categorical.
    frequent : int64 array, shape (c,)
        The most frequent bin, which rows have by default. Histograms omit it if it is the first
        bin.
    sparse : float64 array, shape (c,)
        Share of the rows in that bin.
    """

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
        """Return the bins of a column of the block.

        Parameters
        ----------
        column : int
            Position of the column within the block.

        Returns
        -------
        borders : float64 array
            Upper borders of the bins, or the categories.
        """
        return self.values[self.offsets[column] : self.offsets[column + 1]]

    def sent(self, column: int) -> int:
        """Return the number of bins of a column of the block that histograms contain.

        Parameters
        ----------
        column : int
            Position of the column within the block.

        Returns
        -------
        int
            All bins, without the most frequent one if it is the first.
        """
        return len(self.bins(column)) - int(self.frequent[column] == 0)


@message(discloses=_COUNTING)
class ClassRows(Message):
    """A machine's numbers of rows of class 1 and of class 0.

    Attributes
    ----------
    rank : int
        Number of the machine.
    positives, negatives : int
        Number of rows of class 1, and of class 0.
    """

    rank: int
    positives: int
    negatives: int


@message(discloses=_COUNTING)
class WeightedLabels(Message):
    """A machine's weighted sum of labels, and its sum of weights.

    Attributes
    ----------
    rank : int
        Number of the machine.
    labels : float
        Sum of the labels, each multiplied by the weight of its row.
    weights : float
        Sum of the weights.
    """

    rank: int
    labels: float
    weights: float


# With squared errors, the start is the mean label of a single machine.
@message(discloses={Reveal.LABELS})
class OwnStart(Message):
    """The start of boosting that one machine proposes. All machines use the mean of the proposals.

    For squared errors, it is the mean label of the machine's local rows.

    Attributes
    ----------
    rank : int
        Number of the machine.
    score : float
        The proposed margin.
    """

    rank: int
    score: float


@message(discloses=_COUNTING)
class RootSums(Message):
    """Gradient sum, hessian sum and number of a machine's rows in a tree.

    Attributes
    ----------
    rank : int
        Number of the machine.
    tree : int
        Number of the tree, from 0.
    gradient, hessian : float
        Sums over the machine's local rows.
    rows : int
        Number of these rows.
    """

    rank: int
    tree: int
    gradient: float
    hessian: float
    rows: int


@message(discloses=_COUNTING)
class FoundSplits(Message):
    """The best splits of two leaves, the smaller leaf first, over the columns that a machine sums.

    Attributes
    ----------
    rank : int
        Number of the machine.
    tree, step : int
        Tree, and step within the tree. Step 0 concerns only the root.
    feature : int32 array, shape (2,)
        Split column, -1 if there is no split.
    bin : int32 array, shape (2,)
        Last bin of the left side.
    gain : float64 array, shape (2,)
        Loss reduction.
    left, right : float64 array, shape (2, 3)
        Gradient sum, hessian sum and number of rows of each side. LightGBM estimates the number of
        rows from the hessian sum.
    default_left : bool array, shape (2,)
        Whether rows with a missing value go left.
    """

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
        """The two splits, None for a leaf without a split."""
        splits: list[Split | None] = [None, None]
        # A gain of minus infinity marks a leaf without a split.
        for k in np.flatnonzero((self.feature >= 0) & (self.gain > -np.inf)).tolist():
            left, right = (
                LeafTotals(float(s[0]), float(s[1]), int(s[2]))
                for s in (self.left[k], self.right[k])
            )
            splits[k] = Split(
                int(self.feature[k]), int(self.bin[k]), float(self.gain[k]), left, right,
                bool(self.default_left[k]),
            )  # fmt: skip
        return splits

"""Random decision trees: complete trees whose splits are drawn independently of the data."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from fedtrees.core.errors import DataError
from fedtrees.core.reasons import Reason
from fedtrees.core.schema import Feature, Schema
from fedtrees.trees.forest.random_forest import shares

_BLOCK = 2**14  # number of rows that are routed through all trees at once


@dataclass(frozen=True, eq=False)
class RandomSplits:
    """Splits of complete trees of the same depth, in heap order.

    The children of node i are 2i + 1 and 2i + 2.

    Raises
    ------
    DataError
        If the arrays are not complete trees.
    """

    feature: NDArray[np.int32]  # shape (T, 2^depth - 1)
    # Shape (T, 2^depth - 1): a row goes right if and only if ``x >= threshold``. A missing value
    # goes left.
    threshold: NDArray[np.float32]

    def __post_init__(self) -> None:
        shape = np.shape(self.feature)
        nodes = shape[1] if len(shape) == 2 else 0
        if not nodes or not shape[0] or nodes & (nodes + 1) or np.shape(self.threshold) != shape:
            raise DataError(
                f"features of shape {shape} and thresholds of shape {np.shape(self.threshold)} are "
                "no complete trees; both need the shape (T, 2^depth - 1)"
            )

    @property
    def depth(self) -> int:
        """Number of splits on every path."""
        return int(self.feature.shape[1]).bit_length()

    def apply(self, X: NDArray[np.float32]) -> NDArray[np.int32]:
        """Return the leaf of every row in every tree, 0 to 2^depth - 1 from the left, shape (n, T).

        Raises
        ------
        DataError
            If X is not a matrix, or has fewer columns than the splits use.
        """
        X = np.asarray(X, dtype=np.float32)
        width = 1 + int(self.feature.max())
        if X.ndim != 2 or X.shape[1] < width:
            raise DataError(f"expected rows of at least {width} features, got shape {X.shape}")
        out = np.empty((len(X), len(self.feature)), dtype=np.int32)
        trees = np.arange(len(self.feature))
        for begin in range(0, len(X), _BLOCK):
            block = X[begin : begin + _BLOCK]
            node = np.zeros((len(block), len(trees)), dtype=np.int32)
            for _ in range(self.depth):
                value = np.take_along_axis(block, self.feature[trees, node], axis=1)
                node = 2 * node + 1 + (value >= self.threshold[trees, node])
            out[begin : begin + len(block)] = node - self.feature.shape[1]
        return out

    def count(
        self, X: NDArray[np.float32], y: NDArray[np.int64], n_classes: int
    ) -> NDArray[np.int64]:
        """Return the number of rows of each class in every leaf, int64, shape (T, 2^depth, K).

        Parameters
        ----------
        X : float32 array, shape (n, d)
            Rows.
        y : int64 array, shape (n,)
            Class codes.
        n_classes : int
            Number of classes K.
        """
        leaves, size = self.apply(X), self.feature.shape[1] + 1
        cells = leaves.astype(np.int64) * n_classes + np.asarray(y)[:, None]
        counts = [np.bincount(tree, minlength=size * n_classes) for tree in cells.T]
        return np.stack(counts).astype(np.int64).reshape(len(counts), size, n_classes)


@dataclass(frozen=True, eq=False)
class RandomDecisionForest:
    """Random decision trees (Fan et al. 2003) with exact or noisy class counts in their leaves.

    Raises
    ------
    DataError
        If the counts do not fit the trees.
    """

    splits: RandomSplits
    counts: NDArray[np.int64]  # shape (T, 2^depth, K): noise can make counts negative
    rows: int = 0  # announced number N of training rows, 0 if it was not announced

    def __post_init__(self) -> None:
        trees, nodes = self.splits.feature.shape
        shape = np.shape(self.counts)
        if len(shape) != 3 or shape[:2] != (trees, nodes + 1) or shape[2] < 2:
            raise DataError(
                f"counts of shape {shape} do not fit {trees} trees of {nodes + 1} leaves and two "
                "classes or more"
            )

    def __len__(self) -> int:
        return len(self.counts)

    def apply(self, X: NDArray[np.float32]) -> NDArray[np.int32]:
        """Return the leaf of every row in every tree, int32, shape (n, T)."""
        return self.splits.apply(X)

    def probabilities(self, X: NDArray[np.float32]) -> NDArray[np.float64]:
        """Return class probabilities by soft vote, float64, shape (n, K).

        They are the mean over all trees of the class shares of a leaf. A negative count is replaced
        by 0. A leaf without counts has equal shares.
        """
        clipped = np.maximum(self.counts, 0)
        table = shares(clipped.reshape(-1, clipped.shape[2])).reshape(clipped.shape)
        leaves = self.apply(X)
        total = np.zeros((len(leaves), clipped.shape[2]))
        for tree, leaf in zip(table, leaves.T, strict=True):
            total += tree[leaf]
        return total / len(self)

    def predict(self, X: NDArray[np.float32]) -> NDArray[np.float64]:
        """Return the probability of class 1, shape (n,), if K is 2, else `probabilities`."""
        probabilities = self.probabilities(X)
        return probabilities[:, 1] if probabilities.shape[1] == 2 else probabilities


def undeclared(schema: Schema) -> Reason | None:
    """Return a reason that names the numeric columns without range and cut points.

    None if there are no such columns.
    """
    bare = [f.name for f in schema.features if f.declared_range is None and not f.cuts]
    return Reason("no-ranges", columns=", ".join(bare[:5]), count=len(bare)) if bare else None


def public_tests(schema: Schema, bins: int) -> list[NDArray[np.float32]]:
    """Return the thresholds at which each column may be split, increasing, from the schema.

    Categories are split as ordered codes, so that a binary column has one threshold. Numeric
    columns are split at their declared inner cut points, or at those of `bins` bins of equal width
    over the declared range.

    Raises
    ------
    DataError
        If a numeric column declares neither, or if there is no threshold at all.
    """
    reason = undeclared(schema)
    if reason:
        raise DataError(str(reason))
    tests = [_thresholds(f, bins) for f in schema.features]
    if not any(map(len, tests)):
        raise DataError(
            "no column can be split, because no column declares two categories or a range with an "
            "inner cut point; declare more categories, a wider range or more cut points"
        )
    return tests


def _thresholds(feature: Feature, bins: int) -> NDArray[np.float32]:
    """Return the thresholds of one column."""
    if feature.cuts:
        return np.array(feature.cuts[1:-1], dtype=np.float32)
    if feature.kind == "categorical" and feature.categories:
        return np.arange(1, len(feature.categories), dtype=np.float32)
    assert feature.declared_range is not None
    low, high = feature.declared_range
    return np.unique(np.linspace(low, high, bins + 1)[1:-1].astype(np.float32))


def draw_splits(
    schema: Schema,
    depth: int,
    randomness: Callable[[int], np.random.Generator],
    trees: int,
    *,
    bins: int = 32,
    repeats: bool = False,
    tests: Sequence[NDArray[np.float32]] | None = None,
    columns: NDArray[np.bool_] | None = None,
) -> RandomSplits:
    """Draw the splits of complete trees from the schema only.

    At every node a column is drawn uniformly, then one of its thresholds. Splits that would send
    every row to the same side are left out. These are the splits that the path to the node decides,
    including those of a one-hot group: if one of its columns is 1, all remaining ones are 0, and if
    all columns but one are 0, the last one is 1. If no split remains, any split is drawn.

    Parameters
    ----------
    schema : Schema
        Columns and their declared ranges.
    depth : int
        Number of splits on every path.
    randomness : callable
        Function from the number of a tree to its random generator.
    trees : int
        Number of trees.
    bins : int
        Number of bins of a numeric column without declared cut points.
    repeats : bool
        Draw from all splits at every node, as in Gorgé et al. (2026). Half of the leaves may then
        be unreachable.
    tests : sequence of float32 array, length d, optional
        Increasing thresholds of each column, by default `public_tests`.
    columns : bool array, shape (trees, d), optional
        Columns that each tree may use. At least one of them must have thresholds.

    Raises
    ------
    DataError
        As in `public_tests`.
    """
    tests = public_tests(schema, bins) if tests is None else tests
    sizes = np.array([len(t) for t in tests])
    starts = np.cumsum([0, *sizes])[:-1]
    values = np.concatenate(tests)
    places = [
        (np.array([schema.names.index(c) for c in g.columns]), g.empty) for g in schema.groups
    ]
    feature = np.empty((trees, 2**depth - 1), dtype=np.int32)
    chosen = np.empty_like(feature)
    for tree in range(trees):
        rng = randomness(tree)
        open_tests = sizes if columns is None else np.where(columns[tree], sizes, 0)
        low, high = np.zeros((1, len(sizes)), dtype=np.int64), open_tests[None, :].copy()
        for level in range(depth):
            here = slice(2**level - 1, 2 ** (level + 1) - 1)
            f, k = _draw(low, high, open_tests, rng)
            feature[tree, here], chosen[tree, here] = f, k
            if level + 1 < depth:
                low, high = np.repeat(low, 2, axis=0), np.repeat(high, 2, axis=0)
                if not repeats:
                    _decide(low, high, np.repeat(f, 2), np.repeat(k, 2), places)
    return RandomSplits(feature, values[starts[feature] + chosen].astype(np.float32))


def _draw(
    low: NDArray[np.int64], high: NDArray[np.int64], sizes: NDArray[np.int64],
    rng: np.random.Generator,
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:  # fmt: skip
    """Draw a column with open splits at every node, and one of its open splits."""
    # The path has decided all splits of these nodes, so that any split is drawn.
    stuck = ~np.any(high > low, axis=1, keepdims=True)
    low, high = np.where(stuck, 0, low), np.where(stuck, sizes, high)
    ahead = np.cumsum(high > low, axis=1)
    f = np.argmax(ahead == rng.integers(1, ahead[:, -1] + 1)[:, None], axis=1)
    nodes = np.arange(len(f))
    return f, rng.integers(low[nodes, f], high[nodes, f])


def _decide(
    low: NDArray[np.int64],
    high: NDArray[np.int64],
    f: NDArray[np.int64],
    k: NDArray[np.int64],
    groups: list[tuple[NDArray[np.intp], bool]],
) -> None:
    """Close the splits that the parent's split decides, in place.

    Nodes are in pairs, left then right.
    """
    nodes = np.arange(len(f))
    right = nodes % 2 == 1
    high[nodes[~right], f[~right]] = np.minimum(high[nodes, f], k)[~right]
    low[nodes[right], f[right]] = np.maximum(low[nodes, f], k + 1)[right]
    for columns, empty in groups:
        hot = right & np.isin(f, columns)
        high[np.ix_(hot, columns)] = 0
        if empty:
            continue
        still: NDArray[np.bool_] = high[:, columns] > low[:, columns]
        last = still.sum(axis=1) == 1
        # A single open column in a group without any 1 must be the 1.
        high[nodes[last], columns[still[last].argmax(axis=1)]] = 0

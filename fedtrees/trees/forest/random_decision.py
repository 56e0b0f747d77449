"""Random decision trees: complete trees whose tests are drawn without a look at data."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from fedtrees.core.errors import DataError
from fedtrees.core.reasons import Reason
from fedtrees.core.schema import Feature, Schema
from fedtrees.trees.forest.random_forest import shares

_BLOCK = 2**14  # rows that go down all trees at once


@dataclass(frozen=True, eq=False)
class RandomSplits:
    """The tests of complete trees of one depth, in heap order: children of i are 2i + 1, 2i + 2.

    Raises `DataError` if the arrays are no complete trees.
    """

    feature: NDArray[np.int32]  # shape (T, 2^depth - 1)
    # shape (T, 2^depth - 1): a row goes right iff ``x >= threshold``; a missing value goes left
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
        """Tests on every path."""
        return int(self.feature.shape[1]).bit_length()

    def apply(self, X: NDArray[np.float32]) -> NDArray[np.int32]:
        """Return the leaf of every row in every tree, 0 to 2^depth - 1 from the left, (n, T).

        Raises `DataError` if X is no table, or narrower than the tests need.
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
        """Return the rows of each class in every leaf, int64, shape (T, 2^depth, K)."""
        leaves, size = self.apply(X), self.feature.shape[1] + 1
        cells = leaves.astype(np.int64) * n_classes + np.asarray(y)[:, None]
        found = [np.bincount(tree, minlength=size * n_classes) for tree in cells.T]
        return np.stack(found).astype(np.int64).reshape(len(found), size, n_classes)


@dataclass(frozen=True, eq=False)
class RandomDecisionForest:
    """Random decision trees (Fan et al. 2003) with class counts, noisy or not, in their leaves.

    Raises `DataError` if the counts do not fit the trees.
    """

    splits: RandomSplits
    counts: NDArray[np.int64]  # shape (T, 2^depth, K): below 0 is noise
    rows: int = 0  # training rows N as they were told; 0: they were not

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

        The mean over trees of a leaf's class shares; a count below 0 is taken as 0, and a leaf
        without any count as undecided.
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
        found = self.probabilities(X)
        return found[:, 1] if found.shape[1] == 2 else found


def undeclared(schema: Schema) -> Reason | None:
    """Say which numbers declare no range and no cut points, None if there are none."""
    bare = [f.name for f in schema.features if f.declared_range is None and not f.cuts]
    return Reason("no-ranges", columns=", ".join(bare[:5]), count=len(bare)) if bare else None


def public_tests(schema: Schema, bins: int) -> list[NDArray[np.float32]]:
    """Return the thresholds that each column may be tested at, increasing, from what is declared.

    Categories are tested as ordered codes, so that a binary column has one test; numbers at their
    declared inner cut points, or at those of `bins` bins of equal width over the declared range.

    Raises `DataError` if a number declares neither, or there is no test at all.
    """
    why = undeclared(schema)
    if why:
        raise DataError(str(why))
    tests = [_tests_of(f, bins) for f in schema.features]
    if not any(map(len, tests)):
        raise DataError(
            "no column can be split, because no column declares two categories or a range with an "
            "inner cut point; declare more categories, a wider range or more cut points"
        )
    return tests


def _tests_of(feature: Feature, bins: int) -> NDArray[np.float32]:
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
    """Draw the tests of complete trees from the schema alone.

    At every node a column is drawn uniformly, then one of its thresholds. Columns and thresholds
    that would send every row one way are left out: those decided on the path, the other columns of
    a one-hot group of which one is 1, and the last of one that all others are 0 of. Where none is
    left, any is drawn.

    Raises `DataError` as `public_tests`.

    `depth`: Tests on every path.
    `randomness`: From the number of a tree to its generator.
    `bins`: Of a number without declared cut points.
    `repeats`: Draw from all tests at every node, as Gorgé et al. (2025) do: half of the leaves may
    then be out of reach.
    `tests`: sequence of float32 array, length d. Increasing thresholds of each column; default
    `public_tests`.
    `columns`: bool array, shape (trees, d). Columns that each tree may test, one with thresholds at
    least.
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
    """Draw a column with open tests at every node, and one of its open tests."""
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
    """Close the tests that the parents' decide, in place; nodes are in pairs, left then right."""
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
        # One open column of a group without any 1: it is the 1.
        high[nodes[last], columns[still[last].argmax(axis=1)]] = 0

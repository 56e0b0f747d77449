"""A forest in the format of the attacks: tests of variables, and noisy class counts of leaves."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from fedtrees.attacks.forests.variables import Variables
from fedtrees.core.compilation import kernel
from fedtrees.core.errors import DataError

#: Largest depth of a tree. Deeper trees would need tables of gigabytes.
MOST_DEPTH = 14


@dataclass(frozen=True, eq=False)
class NoisyForest:
    """Complete trees with a noisy number of rows per class in each leaf.

    Attributes
    ----------
    variables : Variables
        Variables of the rows.
    variable : int32 array, shape (T, 2^d)
        Variable that each node tests. Node 1 is the root, and the children of node k are 2 k and 2
        k + 1.
    right : int64 array, shape (T, 2^d)
        Levels that go right, as bits.
    noisy : int64 array, shape (T, 2^d, K)
        Counts of the leaves from left to right.
    """

    variables: Variables
    # shape (T, 2^d)
    variable: NDArray[np.int32]
    right: NDArray[np.int64]  # shape (T, 2^d)
    noisy: NDArray[np.int64]  # shape (T, 2^d, K)

    @staticmethod
    def of(
        variables: Variables,
        feature: NDArray[np.integer],
        noisy: NDArray[np.integer],
        threshold: NDArray[np.floating] | None = None,
    ) -> NoisyForest:
        """Construct a forest from its arrays.

        Parameters
        ----------
        variables : Variables
            Variables of the rows.
        feature : int array, shape (T, 2^d - 1)
            Column that each node tests, in heap order from the root.
        noisy : int array, shape (T, 2^d, K)
            Noisy counts of the leaves from left to right.
        threshold : float array, shape (T, 2^d - 1), optional
            A row goes right if and only if its column is not below the threshold. Default 0.5.

        Raises
        ------
        DataError
            If the shapes do not fit, a column does not exist, or counts are not integers.
        """
        feature, noisy = np.asarray(feature), np.asarray(noisy)
        if feature.ndim != 2 or noisy.ndim != 3 or len(feature) != len(noisy) or not len(feature):
            raise DataError(
                f"tests of shape {feature.shape} and counts of shape {noisy.shape}; give "
                "(trees, nodes) and (trees, leaves, classes)"
            )
        T, leaves, K = noisy.shape
        depth = leaves.bit_length() - 1
        if leaves != 1 << depth or feature.shape[1] != leaves - 1 or not 1 <= depth <= MOST_DEPTH:
            raise DataError(
                f"{feature.shape[1]} tests and {leaves} leaves a tree; a complete tree of depth d, "
                f"1 to {MOST_DEPTH}, has 2^d - 1 and 2^d"
            )
        if K < 1 or noisy.dtype.kind not in "iu":
            raise DataError(f"counts are {noisy.dtype} of {K} classes; give whole numbers")
        if feature.min() < 0 or feature.max() >= variables.width:
            raise DataError(
                f"a node tests column {int(feature.min() if feature.min() < 0 else feature.max())};"
                f" the rows have columns 0 to {variables.width - 1}"
            )
        cuts = np.full(feature.shape, 0.5) if threshold is None else np.asarray(threshold)
        if cuts.shape != feature.shape:
            raise DataError(f"thresholds of shape {cuts.shape} for tests of {feature.shape}")
        different = np.unique(np.stack([feature, cuts]).reshape(2, -1).T, axis=0)
        test_of = {(int(j), float(c)): variables.right(int(j), float(c)) for j, c in different}
        tests = [test_of[int(j), float(c)] for j, c in zip(feature.flat, cuts.flat, strict=True)]
        variable, right = np.zeros((T, leaves), np.int32), np.zeros((T, leaves), np.int64)
        variable[:, 1:] = np.array([g for g, _ in tests]).reshape(feature.shape)
        right[:, 1:] = np.array([bits for _, bits in tests]).reshape(feature.shape)
        return NoisyForest(variables, variable, right, noisy.astype(np.int64))

    @property
    def depth(self) -> int:
        """Number of tests on the path to a leaf."""
        return self.noisy.shape[1].bit_length() - 1

    @property
    def n_classes(self) -> int:
        """Number of classes K."""
        return int(self.noisy.shape[2])

    @cached_property
    def possible(self) -> NDArray[np.int64]:
        """Levels of every variable that reach each leaf, as bits, shape (T, 2^d, G)."""
        T = len(self.noisy)
        every = np.array([(1 << int(r)) - 1 for r in self.variables.sizes], dtype=np.int64)
        bits = np.broadcast_to(every, (T, 1, len(every))).copy()
        tree = np.arange(T)[:, None]
        for level in range(self.depth):
            nodes = np.arange(1 << level, 2 << level)
            at = np.arange(1 << level)[None, :]
            g, mask = self.variable[:, nodes], self.right[:, nodes]
            below = np.repeat(bits, 2, axis=1)
            below[tree, 2 * at, g] &= ~mask
            below[tree, 2 * at + 1, g] &= mask
            bits = below
        return bits

    @cached_property
    def live(self) -> NDArray[np.bool_]:
        """Leaves that a row can reach, bool, shape (T, 2^d)."""
        return np.asarray((self.possible != 0).all(axis=2))

    @cached_property
    def tested(self) -> NDArray[np.int8]:
        """Depth of the first test of each variable on the path to a leaf, -1 for none.

        The array is int8 of shape (T, 2^d, G).
        """
        T, leaves, _ = self.noisy.shape
        first = np.full((T, leaves, len(self.variables)), -1, dtype=np.int8)
        tree, leaf = np.arange(T)[:, None], np.arange(leaves)[None, :]
        for level in reversed(range(self.depth)):
            node = (leaf + leaves) >> (self.depth - level)
            first[tree, leaf, self.variable[tree, node]] = level
        return first

    def route(self, coded: NDArray[np.integer]) -> NDArray[np.int32]:
        """Return the leaf of each row in each tree, int32, shape (n, T)."""
        return _route(self.variable, self.right, np.ascontiguousarray(coded, dtype=np.int16))

    def counts(self, coded: NDArray[np.integer], label: NDArray[np.integer]) -> NDArray[np.int64]:
        """Return the number of rows of each class in each leaf, int64, shape (T, 2^d, K)."""
        out = np.zeros(self.noisy.shape, dtype=np.int64)
        leaf = self.route(coded)
        np.add.at(out, (np.arange(len(out))[None, :], leaf, np.asarray(label)[:, None]), 1)
        return out

    def estimated_rows(self, least: int = 1) -> int:
        """Return the number of rows according to the counts, at least `least`.

        It is a weighted mean over trees of the sum of the counts of reachable leaves. The weight is
        inverse to their number, which is proportional to the variance of the sum.
        """
        sums = (self.noisy * self.live[:, :, None]).sum(axis=(1, 2))
        weight = 1.0 / self.live.sum(axis=1)
        return max(least, round(float((weight * sums).sum() / weight.sum())))


@kernel
def _route(variable, right, coded):  # type: ignore[no-untyped-def]
    n, T, leaves = coded.shape[0], variable.shape[0], variable.shape[1]
    out = np.empty((n, T), dtype=np.int32)
    for i in range(n):
        for t in range(T):
            node = 1
            while node < leaves:
                node = 2 * node + ((right[t, node] >> coded[i, variable[t, node]]) & 1)
            out[i, t] = node - leaves
    return out

"""Boxes in integer cells: every box of the attack ends at thresholds that the trees use.

A feature that trees split by sets of categories has one cell per code. Its possible codes form a
set instead of an interval: bit k of a uint64 represents code k. For all other features every bit is
set.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from fedtrees.attacks.evidence.readable import MOST_CODES
from fedtrees.core.compilation import inner_kernel
from fedtrees.trees.boosted.forest import Tree

ANY = np.uint64(2**64 - 1)  # no code is excluded


@inner_kernel
def has(codes, cell):  # type: ignore[no-untyped-def]
    """Return whether the set contains this cell."""
    return codes == ANY or (codes >> np.uint64(cell)) & np.uint64(1) == np.uint64(1)


def allowed(codes: NDArray[np.uint64], cells: NDArray[np.integer]) -> NDArray[np.bool_]:
    """Return whether sets contain the given non-negative cells, as broadcast bools."""
    bit = np.minimum(cells, MOST_CODES - 1).astype(np.uint64)
    return (codes == ANY) | ((codes >> bit) & np.uint64(1)).astype(bool)


def codes_right(tree: Tree, node: int) -> np.uint64:
    """Return the set of codes that go right at a split by categories."""
    assert tree.categories is not None
    codes = np.flatnonzero(tree.categories[node]).astype(np.uint64)
    return np.bitwise_or.reduce(np.uint64(1) << codes, initial=np.uint64(0))  # type: ignore[no-any-return]


@dataclass(frozen=True, eq=False)
class LeafConstraints:
    """The intervals that lead to each leaf of one tree, in compressed sparse rows.

    Attributes
    ----------
    node : int32 array, shape (J,)
        Node number of leaf ``j``.
    offsets : int32 array, shape (J + 1,)
        Constraints ``offsets[j]:offsets[j + 1]`` belong to leaf ``j``.
    feature, lo, hi : int32 array, shape (c,)
        Each constraint is ``lo <= cell < hi`` of the feature.
    missing : bool array, shape (c,)
        Whether a row without a value of the feature also reaches the leaf.
    codes : uint64 array, shape (c,)
        Set of codes that reach the leaf.
    """

    node: NDArray[np.int32]
    offsets: NDArray[np.int32]
    feature: NDArray[np.int32]
    lo: NDArray[np.int32]
    hi: NDArray[np.int32]
    missing: NDArray[np.bool_]
    codes: NDArray[np.uint64]

    def __len__(self) -> int:
        return int(self.node.shape[0])

    def boxes(self, width: NDArray[np.int32]) -> tuple[NDArray[np.int32], NDArray[np.int32]]:
        """Return all cells ``lo <= cell < hi`` of each leaf, int32, shape (J, d) each.

        ``width``, int32 of shape (d,), is the number of cells per feature.
        """
        lo, hi = np.zeros((len(self), len(width)), dtype=np.int32), np.tile(width, (len(self), 1))
        at = self._at()
        lo[at], hi[at] = self.lo, self.hi
        return lo, hi

    def sets(self, d: int) -> NDArray[np.uint64]:
        """Return the codes of each leaf, uint64, shape (J, d)."""
        codes = np.full((len(self), d), ANY)
        codes[self._at()] = self.codes
        return codes

    def _at(self) -> tuple[NDArray[np.intp], NDArray[np.int32]]:
        return np.repeat(np.arange(len(self)), np.diff(self.offsets)), self.feature


@dataclass(frozen=True, eq=False)
class Grid:
    """Sorted thresholds per feature. The cell of x is the number of thresholds ``<= x``.

    A feature with ``m`` thresholds has cells ``0 .. m``. Cell ``k`` contains
    ``edges[k-1] <= x < edges[k]``.

    Attributes
    ----------
    edges : tuple of float32 array
        Ascending thresholds of each feature.
    missing : bool array, shape (d,)
        Features whose value may be missing, at first none.
    """

    edges: tuple[NDArray[np.float32], ...]
    missing: NDArray[np.bool_]
    # Cache of `leaves`, because every one of several reconstructions needs the same trees.
    _leaves: dict[int, tuple[Tree, LeafConstraints]] = field(default_factory=dict, init=False)

    @staticmethod
    def of(trees: tuple[Tree, ...], d: int, codes: Sequence[int] = ()) -> Grid:
        """Collect the thresholds of the trees.

        Parameters
        ----------
        trees : tuple of Tree
            The trees.
        d : int
            Number of features.
        codes : sequence of int, optional
            Number of codes of each feature. It is only read for features that are split by sets of
            categories.
        """
        edges_of: list[list[NDArray[np.float32]]] = [[] for _ in range(d)]
        for tree in trees:
            for f in np.unique(tree.feature[tree.feature >= 0]):
                cuts = tree.threshold[tree.feature == f]
                if np.isnan(cuts).any():
                    cuts = np.arange(1, codes[f], dtype=np.float32)
                edges_of[f].append(cuts)
        # a feature without splits has one cell
        empty = np.zeros(0, dtype=np.float32)
        edges = tuple(np.unique(np.concatenate([empty, *parts])) for parts in edges_of)
        return Grid(edges, np.zeros(d, dtype=bool))

    @property
    def width(self) -> NDArray[np.int32]:
        """Number of cells per feature, int32, shape (d,)."""
        return np.array([e.shape[0] + 1 for e in self.edges], dtype=np.int32)

    def cells(self, X: NDArray[np.float32]) -> NDArray[np.int32]:
        """Return the cell of every value, int32, shape (n, d); -1 where it is missing."""
        out = np.empty(X.shape, dtype=np.int32)
        for f, edges in enumerate(self.edges):
            out[:, f] = np.searchsorted(edges, X[:, f], side="right")
        out[np.isnan(X)] = -1
        return out

    def bounds(
        self, lo: NDArray[np.int32], hi: NDArray[np.int32]
    ) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
        """Return half-open boxes as float32 bounds, shape (n, d) each, infinite where open."""
        low = np.empty(lo.shape, dtype=np.float32)
        high = np.empty(hi.shape, dtype=np.float32)
        for f, edges in enumerate(self.edges):
            padded = np.concatenate([[-np.inf], edges, [np.inf]]).astype(np.float32)
            low[:, f] = padded[lo[:, f]]
            high[:, f] = padded[hi[:, f]]
        return low, high

    def leaves(self, tree: Tree) -> LeafConstraints:
        """Return the intervals on the path to each leaf, in ascending node order."""
        if id(tree) not in self._leaves:
            self._leaves[id(tree)] = tree, self._constraints(tree)
        return self._leaves[id(tree)][1]

    def _constraints(self, tree: Tree) -> LeafConstraints:
        boxes: dict[int, _Box] = {}
        stack: list[tuple[int, _Box]] = [(0, {})]
        while stack:
            node, box = stack.pop()
            f = int(tree.feature[node])
            if f < 0:
                boxes[node] = box
                continue
            unrestricted = (0, self.edges[f].shape[0] + 1, bool(self.missing[f]), ANY)
            lo, hi, may, codes = box.get(f, unrestricted)
            left = may and bool(tree.default_left[node])
            right = may and not left
            if np.isnan(tree.threshold[node]):
                to_right = codes_right(tree, node)
                sides = (lo, hi, left, codes & ~to_right), (lo, hi, right, codes & to_right)
            else:
                cut = int(np.searchsorted(self.edges[f], tree.threshold[node])) + 1
                sides = (lo, min(hi, cut), left, codes), (max(lo, cut), hi, right, codes)
            stack.append((int(tree.left[node]), {**box, f: sides[0]}))
            stack.append((int(tree.right[node]), {**box, f: sides[1]}))
        # the ascending order is that of `Tree.leaves`
        nodes = sorted(boxes)
        parts = [(f, part) for n in nodes for f, part in sorted(boxes[n].items())]
        flat = np.array([(f, *part[:3]) for f, part in parts], dtype=np.int32).reshape(-1, 4)
        offsets = np.concatenate([[0], np.cumsum([len(boxes[n]) for n in nodes])])
        return LeafConstraints(
            np.array(nodes, dtype=np.int32),
            offsets.astype(np.int32),
            *(np.ascontiguousarray(flat[:, k]) for k in range(3)),
            flat[:, 3].astype(bool),
            np.array([part[3] for _, part in parts], dtype=np.uint64),
        )


# Per feature: cells ``lo <= cell < hi``, whether a missing value is possible, set of codes.
_Box = dict[int, tuple[int, int, bool, np.uint64]]

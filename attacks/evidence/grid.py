"""Boxes as integer cells: every box of the attack ends at thresholds the trees used."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from fedtrees.trees.boosted.forest import Tree


@dataclass(frozen=True, eq=False)
class LeafConstraints:
    """The intervals that lead to each leaf of one tree, in compressed rows."""

    node: NDArray[np.int32]  # int32 (J,): node number of leaf ``j``
    # int32 (J + 1,): constraints ``offsets[j]:offsets[j + 1]`` belong to leaf ``j``
    offsets: NDArray[np.int32]
    # int32 (c,): cells ``lo <= cell < hi`` of the feature
    feature: NDArray[np.int32]
    lo: NDArray[np.int32]
    hi: NDArray[np.int32]
    # bool (c,): whether a missing value of the feature goes that way too
    missing: NDArray[np.bool_]

    def __len__(self) -> int:
        return int(self.node.shape[0])

    def boxes(self, width: NDArray[np.int32]) -> tuple[NDArray[np.int32], NDArray[np.int32]]:
        """Return all cells ``lo <= cell < hi`` of each leaf, int32, shape (J, d) each.

        ``width``, int32 of shape (d,), is the number of cells per feature.
        """
        lo, hi = np.zeros((len(self), len(width)), dtype=np.int32), np.tile(width, (len(self), 1))
        at = np.repeat(np.arange(len(self)), np.diff(self.offsets)), self.feature
        lo[at], hi[at] = self.lo, self.hi
        return lo, hi


@dataclass(frozen=True, eq=False)
class Grid:
    """Sorted thresholds per feature; ``cell(x)`` is the number of thresholds ``<= x``.

    A feature with ``m`` thresholds has cells ``0 .. m``; cell ``k`` holds
    ``edges[k-1] <= x < edges[k]``.
    """

    edges: tuple[NDArray[np.float32], ...]
    missing: NDArray[np.bool_]  # bool (d,): features whose value may be missing (at first none)

    @staticmethod
    def of(trees: tuple[Tree, ...], d: int) -> Grid:
        """Collect the thresholds of the trees."""
        found: list[list[NDArray[np.float32]]] = [[] for _ in range(d)]
        for tree in trees:
            for f in np.unique(tree.feature[tree.feature >= 0]):
                found[f].append(tree.threshold[tree.feature == f])
        empty = np.zeros(0, dtype=np.float32)
        edges = tuple(np.unique(np.concatenate([empty, *parts])) for parts in found)
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
        """Return the intervals on the way to each leaf, in ascending node order."""
        boxes: dict[int, dict[int, tuple[int, int, bool]]] = {}
        stack: list[tuple[int, dict[int, tuple[int, int, bool]]]] = [(0, {})]
        while stack:
            node, box = stack.pop()
            f = int(tree.feature[node])
            if f < 0:
                boxes[node] = box
                continue
            lo, hi, may = box.get(f, (0, self.edges[f].shape[0] + 1, bool(self.missing[f])))
            left = may and bool(tree.default_left[node])
            cut = int(np.searchsorted(self.edges[f], tree.threshold[node])) + 1
            stack.append((int(tree.left[node]), {**box, f: (lo, min(hi, cut), left)}))
            stack.append((int(tree.right[node]), {**box, f: (max(lo, cut), hi, may and not left)}))
        nodes = sorted(boxes)
        rows = [(f, *box) for n in nodes for f, box in sorted(boxes[n].items())]
        flat = np.array(rows, dtype=np.int32).reshape(-1, 4)
        offsets = np.concatenate([[0], np.cumsum([len(boxes[n]) for n in nodes])])
        return LeafConstraints(
            np.array(nodes, dtype=np.int32),
            offsets.astype(np.int32),
            *(np.ascontiguousarray(flat[:, k]) for k in range(3)),
            flat[:, 3].astype(bool),
        )

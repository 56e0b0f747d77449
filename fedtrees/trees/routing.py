"""Routing: the leaf that each row reaches in every tree of an ensemble."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedtrees.core.compilation import kernel
from fedtrees.core.errors import DataError
from fedtrees.trees.jit import readonly

#: Arrays of every kind of tree that describe its structure, with their types.
NODE_KINDS: dict[str, Any] = {
    "feature": np.int32, "threshold": np.float32, "left": np.int32, "right": np.int32,
    "default_left": np.bool_,
}  # fmt: skip
_BLOCK = 2**14  # number of rows whose leaves in all trees are in memory at once


@dataclass(frozen=True, eq=False)
class Routes:
    """The nodes of all trees in one set of arrays. Node ``i`` of tree ``t`` is ``start[t] + i``."""

    start: NDArray[np.int64]  # shape (T,)
    # feature, threshold, left, right, default_left: arrays, shape (n_nodes of all trees,), as in
    # `fedtrees.trees.boosted.forest.Tree`. Children are numbered within their tree.
    feature: NDArray[np.int32]
    threshold: NDArray[np.float32]
    left: NDArray[np.int32]
    right: NDArray[np.int32]
    default_left: NDArray[np.bool_]
    # Shape (n_nodes of all trees, width): categories that go right at nodes that are split by
    # categories. The width is 0 if there is no such node.
    categories: NDArray[np.bool_]

    @staticmethod
    def of(trees: Sequence[Any]) -> Routes:
        """Return the routes of trees that have these arrays."""
        start = np.cumsum([0, *map(len, trees)])[:-1].astype(np.int64)
        return Routes(start, **join_nodes(trees, NODE_KINDS), categories=joined_sets(trees))

    def rows(self, X: NDArray[Any]) -> NDArray[np.float32]:
        """Return X as a C-contiguous float32 array for the kernels.

        Raises
        ------
        DataError
            If X is not a matrix, or has fewer columns than the trees use.
        """
        X = np.asarray(X)
        width = 1 + int(self.feature.max(initial=-1))
        if X.ndim != 2 or X.shape[1] < width:
            raise DataError(f"expected rows of at least {width} features, got shape {X.shape}")
        return readonly(np.asarray(X, dtype=np.float32))

    def apply(self, X: NDArray[Any]) -> NDArray[np.int32]:
        """Return the leaf of every row in every tree, int32, shape (n, T). Errors as in `rows`."""
        X = self.rows(X)
        out = np.empty((len(X), len(self.start)), dtype=np.int32)
        nodes = (self.feature, self.threshold, self.left, self.right, self.default_left)
        _apply(X, self.start, *nodes, self.categories, out)
        return out

    def blocks(self, X: NDArray[Any]) -> Iterator[tuple[slice, NDArray[np.int32]]]:
        """Yield blocks of consecutive rows with the result of `apply` for these rows."""
        for begin in range(0, len(X), _BLOCK):
            block = slice(begin, begin + _BLOCK)
            yield block, self.apply(X[block])


@dataclass(frozen=True, eq=False)
class TreeStructure:
    """The splits of a binary tree, whose leaves a subclass describes.

    Node 0 is the root, and children are numbered in pairs, level by level.

    Attributes
    ----------
    feature : int32 array, shape (n_nodes,)
        Split column, -1 at a leaf.
    threshold : float32 array, shape (n_nodes,)
        A row goes left if and only if ``x < threshold`` (float32 comparison). 0 at a leaf, NaN if
        the split is by categories.
    left, right : int32 array, shape (n_nodes,)
        Children, -1 at a leaf.
    default_left : bool array, shape (n_nodes,)
        Whether a missing value goes left.
    """

    feature: NDArray[np.int32]
    threshold: NDArray[np.float32]
    left: NDArray[np.int32]
    right: NDArray[np.int32]
    default_left: NDArray[np.bool_]

    @property
    def leaves(self) -> NDArray[np.intp]:
        """Node numbers of the leaves, ascending."""
        return np.flatnonzero(self.feature < 0)

    def __len__(self) -> int:
        return int(self.feature.shape[0])


class LeafRouting:
    """Base class of all ensembles of trees.

    Attributes
    ----------
    trees : tuple
        Trees with the arrays that `Routes.of` reads.
    """

    trees: tuple[Any, ...]

    def __len__(self) -> int:
        return len(self.trees)

    @cached_property
    def _routes(self) -> Routes:
        """Routes of all trees, computed at first use."""
        return Routes.of(self.trees)

    def apply(self, X: NDArray[Any]) -> NDArray[np.int32]:
        """Return the leaf of every row in every tree, int32, shape (n, T).

        Parameters
        ----------
        X : float array, shape (n, d)
            Rows. NaN marks a missing value.

        Raises
        ------
        DataError
            If X has fewer columns than the trees use.
        """
        return self._routes.apply(X)


def join_nodes(parts: Sequence[Any], kinds: Mapping[str, Any]) -> dict[str, Any]:
    """Concatenate arrays of several trees or messages, in order.

    Parameters
    ----------
    parts : sequence of object
        Objects that have the arrays as attributes.
    kinds : mapping of str to dtype
        Names of the arrays, and the type of an array without elements.

    Returns
    -------
    arrays : dict of str to array
        An array that is None in any part is left out.
    """
    arrays: dict[str, Any] = {}
    for name, kind in kinds.items():
        values = [getattr(part, name) for part in parts]
        if not values:
            arrays[name] = np.zeros(0, kind)
        elif all(value is not None for value in values):
            arrays[name] = np.concatenate(values)
    return arrays


def split_nodes(
    sizes: NDArray[np.integer[Any]], arrays: Mapping[str, NDArray[Any] | None]
) -> list[dict[str, Any]]:
    """Return the arrays of each tree, from arrays that `join_nodes` concatenated.

    Right children are added if they are missing, because siblings have consecutive numbers. Arrays
    that are None are left out.

    Raises
    ------
    DataError
        If an array does not have as many elements as all trees have nodes.
    """
    ends = np.concatenate([[0], np.cumsum(sizes)]).tolist()
    present = {name: array for name, array in arrays.items() if array is not None}
    if any(len(array) != ends[-1] for array in present.values()):
        raise DataError(f"node arrays do not fit {ends[-1]} nodes in {len(sizes)} trees")
    trees = []
    for begin, end in pairwise(ends):
        tree = {name: array[begin:end] for name, array in present.items()}
        if "right" not in tree:
            left = tree["left"]
            tree["right"] = np.where(left < 0, -1, left + 1).astype(np.int32)
        trees.append(tree)
    return trees


def joined_sets(trees: Sequence[Any]) -> NDArray[np.bool_]:
    """Return the categories that go right, by node of all trees, padded to the largest width."""
    declared = [getattr(t, "categories", None) for t in trees]
    sets = [
        np.zeros((len(t), 0), dtype=bool) if s is None else s
        for t, s in zip(trees, declared, strict=True)
    ]
    width = max((s.shape[1] for s in sets), default=0)
    wide = [np.pad(s, ((0, 0), (0, width - s.shape[1]))) for s in sets]
    return np.concatenate([np.zeros((0, width), dtype=bool), *wide])


@kernel
def _apply(
    X: NDArray[np.float32],
    starts: NDArray[np.int64],
    feature: NDArray[np.int32],
    threshold: NDArray[np.float32],
    left: NDArray[np.int32],
    right: NDArray[np.int32],
    default_left: NDArray[np.bool_],
    categories: NDArray[np.bool_],
    out: NDArray[np.int32],
) -> None:
    """Follow every row from the root to a leaf in every tree."""
    width = np.float32(categories.shape[1])
    for i in range(X.shape[0]):
        for t in range(starts.shape[0]):
            node = 0
            k = starts[t]
            while feature[k] >= 0:
                value = X[i, feature[k]]
                # Only NaN, a missing value, differs from itself.
                if value != value:
                    goes_left = default_left[k]
                elif width == 0 or threshold[k] == threshold[k]:
                    goes_left = value < threshold[k]
                else:  # split by category: values that are no code go left
                    goes_left = not (0 <= value < width and categories[k, int(value)])
                node = left[k] if goes_left else right[k]
                k = starts[t] + node
            out[i, t] = node

"""Which leaf a row reaches in every tree of an ensemble."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedtrees.core.compilation import kernel
from fedtrees.core.errors import DataError
from fedtrees.trees.jit import readonly

_BLOCK = 2**14  # rows whose leaves in all trees are kept at once


@dataclass(frozen=True, eq=False)
class Routes:
    """All trees end to end; node ``i`` of tree ``t`` is ``start[t] + i``."""

    start: NDArray[np.int64]  # shape (T,)
    # feature, threshold, left, right, default_left: arrays, shape (n_nodes of all trees,): as in
    # `fedtrees.trees.boosted.forest.Tree`; children are numbered within their tree
    feature: NDArray[np.int32]
    threshold: NDArray[np.float32]
    left: NDArray[np.int32]
    right: NDArray[np.int32]
    default_left: NDArray[np.bool_]
    # shape (n_nodes of all trees, width): where some split is by categories: those that go right.
    # Of width 0 if none is.
    categories: NDArray[np.bool_]

    @staticmethod
    def of(trees: Sequence[Any]) -> Routes:
        """Return the routes of trees that have these arrays."""
        sizes = [len(t) for t in trees]

        def joined(name: str, kind: Any) -> NDArray[Any]:
            return np.concatenate([np.zeros(0, kind), *(getattr(t, name) for t in trees)])

        return Routes(
            np.cumsum([0, *sizes])[:-1].astype(np.int64),
            joined("feature", np.int32),
            joined("threshold", np.float32),
            joined("left", np.int32),
            joined("right", np.int32),
            joined("default_left", bool),
            joined_sets(trees),
        )

    def rows(self, X: NDArray[Any]) -> NDArray[np.float32]:
        """Return X as the kernels take it, float32, C-contiguous.

        Raises `DataError` if X is no table, or narrower than the features the trees use.
        """
        X = np.asarray(X)
        width = 1 + int(self.feature.max(initial=-1))
        if X.ndim != 2 or X.shape[1] < width:
            raise DataError(f"expected rows of at least {width} features, got shape {X.shape}")
        return readonly(np.asarray(X, dtype=np.float32))

    def apply(self, X: NDArray[Any]) -> NDArray[np.int32]:
        """Return the leaf of every row in every tree, int32, shape (n, T); errors as `rows`."""
        X = self.rows(X)
        out = np.empty((len(X), len(self.start)), dtype=np.int32)
        nodes = (self.feature, self.threshold, self.left, self.right, self.default_left)
        _apply(X, self.start, *nodes, self.categories, out)
        return out

    def blocks(self, X: NDArray[Any]) -> Iterator[tuple[slice, NDArray[np.int32]]]:
        """Yield consecutive rows and their leaves, as `apply` returns them for these rows."""
        for begin in range(0, len(X), _BLOCK):
            block = slice(begin, begin + _BLOCK)
            yield block, self.apply(X[block])


class Routed:
    """What ensembles of trees have in common.

    `trees`: Trees with the arrays that `Routes.of` takes.
    """

    trees: tuple[Any, ...]

    def __len__(self) -> int:
        return len(self.trees)

    @cached_property
    def _routes(self) -> Routes:
        return Routes.of(self.trees)

    def apply(self, X: NDArray[Any]) -> NDArray[np.int32]:
        """Return the leaf of every row in every tree, int32, shape (n, T).

        `X`: float array, shape (n, d). Rows; NaN marks a missing value.

        Raises `DataError` if X is narrower than the features the trees use.
        """
        return self._routes.apply(X)


def joined_sets(trees: Sequence[Any]) -> NDArray[np.bool_]:
    """Return the categories that go right, by node of all trees, as wide as the widest."""
    given = [getattr(t, "categories", None) for t in trees]
    sets = [
        np.zeros((len(t), 0), dtype=bool) if s is None else s
        for t, s in zip(trees, given, strict=True)
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
    width = np.float32(categories.shape[1])
    for i in range(X.shape[0]):
        for t in range(starts.shape[0]):
            node = 0
            k = starts[t]
            while feature[k] >= 0:
                value = X[i, feature[k]]
                if value != value:
                    goes_left = default_left[k]
                elif width == 0 or threshold[k] == threshold[k]:
                    goes_left = value < threshold[k]
                else:  # by category; what is no code goes left
                    goes_left = not (0 <= value < width and categories[k, int(value)])
                node = left[k] if goes_left else right[k]
                k = starts[t] + node
            out[i, t] = node

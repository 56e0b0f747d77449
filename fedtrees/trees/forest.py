"""Trees and forests as flat arrays, in XGBoost's node order."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedtrees.core.errors import DataError
from fedtrees.trees.jit import kernel
from fedtrees.trees.losses import LOGISTIC, Objective


@dataclass(frozen=True, eq=False)
class Tree:
    """One binary decision tree; node 0 is the root, children come in pairs, level by level.

    Attributes
    ----------
    feature : int32 array, shape (n_nodes,)
        Split column, -1 at a leaf.
    threshold : float32 array, shape (n_nodes,)
        A row goes left iff ``x < threshold`` (float32 comparison); 0 at a leaf, NaN where the split
        is by categories.
    left, right : int32 array, shape (n_nodes,)
        Children, -1 at a leaf.
    default_left : bool array, shape (n_nodes,)
        Where a missing value goes.
    value : float32 array, shape (n_nodes,)
        Leaf output in units of the margin, learning rate included; 0 at an inner node.
    g, h : float64 array, shape (n_nodes,), or None
        Sums of gradients and hessians of the training rows in the node, where known.
    gain : float32 array, shape (n_nodes,), or None
        Split gain, where known; 0 at a leaf.
    categories : bool array, shape (n_nodes, width), or None
        Categories that go right, by code, where the split is by categories; values that are no such
        code go left, as in XGBoost. None: no split is by categories.
    """

    feature: NDArray[np.int32]
    threshold: NDArray[np.float32]
    left: NDArray[np.int32]
    right: NDArray[np.int32]
    default_left: NDArray[np.bool_]
    value: NDArray[np.float32]
    g: NDArray[np.float64] | None = None
    h: NDArray[np.float64] | None = None
    gain: NDArray[np.float32] | None = None
    categories: NDArray[np.bool_] | None = None

    @property
    def leaves(self) -> NDArray[np.intp]:
        """Node numbers of the leaves, ascending."""
        return np.flatnonzero(self.feature < 0)

    def __len__(self) -> int:
        return int(self.feature.shape[0])


@dataclass(frozen=True, eq=False)
class Forest:
    """A boosted ensemble of K outputs: tree t adds to output ``t % K``.

    Attributes
    ----------
    trees : tuple of Tree
        K per round.
    base_margin : float32 array, shape (K,)
        Margins every row starts from.
    objective : Objective
        What turns margins into predictions; it fixes K.

    Raises
    ------
    DataError
        If trees or base margins do not fit the number of outputs.
    """

    trees: tuple[Tree, ...]
    base_margin: NDArray[np.float32]
    objective: Objective = LOGISTIC

    def __post_init__(self) -> None:
        start = np.atleast_1d(np.asarray(self.base_margin, dtype=np.float32))
        k = self.objective.n_outputs
        if start.shape != (k,) or len(self.trees) % k:
            raise DataError(
                f"{len(self.trees)} trees and {len(start)} base margins do not fit {k} outputs"
            )
        object.__setattr__(self, "base_margin", start)

    def __len__(self) -> int:
        return len(self.trees)

    @property
    def rounds(self) -> int:
        """Number of boosting rounds."""
        return len(self.trees) // self.objective.n_outputs

    def first(self, rounds: int) -> Forest:
        """Return the forest of the first rounds."""
        count = rounds * self.objective.n_outputs
        return Forest(self.trees[:count], self.base_margin, self.objective)

    @cached_property
    def _flat(self) -> _Flat:
        return _Flat.of(self.trees)

    def _rows(self, X: NDArray[Any]) -> NDArray[np.float32]:
        X = np.asarray(X)
        width = 1 + max((int(t.feature.max()) for t in self.trees), default=-1)
        if X.ndim != 2 or X.shape[1] < width:
            raise DataError(f"expected rows of at least {width} features, got shape {X.shape}")
        return np.ascontiguousarray(X, dtype=np.float32)

    def apply(self, X: NDArray[Any]) -> NDArray[np.int32]:
        """Return the leaf of every row in every tree, int32, shape (n, T).

        Parameters
        ----------
        X : float array, shape (n, d)
            Rows; NaN marks a missing value.

        Raises
        ------
        DataError
            If X is narrower than the features the trees use.
        """
        X = self._rows(X)
        out = np.empty((len(X), len(self.trees)), dtype=np.int32)
        flat = self._flat
        nodes = (flat.feature, flat.threshold, flat.left, flat.right, flat.default_left)
        if flat.categories is None:
            _apply(X, flat.start, *nodes, out)
        else:
            _apply_categorical(X, flat.start, *nodes, flat.categories, out)
        return out

    def _margins(self, X: NDArray[Any]) -> NDArray[np.float32]:
        X = self._rows(X)
        out = np.repeat(self.base_margin[:, None], len(X), axis=1)
        flat = self._flat
        if flat.categories is not None:
            for t, leaf in enumerate(self.apply(X).T):
                out[t % len(out)] += self.trees[t].value[leaf]
            return out
        _margin(
            X,
            flat.start,
            flat.feature,
            flat.threshold,
            flat.left,
            flat.right,
            flat.default_left,
            flat.value,
            out,
        )
        return out

    def margin(self, X: NDArray[Any]) -> NDArray[np.float32]:
        """Return margins, float32, (n,) if K is 1, else (n, K).

        They are float32 sums in tree order, as in XGBoost. Parameters and errors as `apply`.
        """
        out = self._margins(X)
        return out[0] if len(out) == 1 else np.ascontiguousarray(out.T)

    def predict(self, X: NDArray[Any]) -> NDArray[np.float64]:
        """Return what XGBoost's ``Booster.predict`` returns, float64; errors as `apply`.

        The probability of class 1, shape (n,); with more classes one of each, shape (n, K); or the
        value of a regression, shape (n,).
        """
        return self.objective.predict(self._margins(X))


@dataclass(frozen=True, eq=False)
class _Flat:
    """All trees end to end; node ``i`` of tree ``t`` is ``start[t] + i``."""

    start: NDArray[np.int64]
    feature: NDArray[np.int32]
    threshold: NDArray[np.float32]
    left: NDArray[np.int32]
    right: NDArray[np.int32]
    default_left: NDArray[np.bool_]
    value: NDArray[np.float32]
    categories: NDArray[np.bool_] | None

    @staticmethod
    def of(trees: tuple[Tree, ...]) -> _Flat:
        sizes = [len(t) for t in trees]

        def joined(name: str, kind: Any) -> NDArray[Any]:
            return np.concatenate([np.zeros(0, kind), *(getattr(t, name) for t in trees)])

        return _Flat(
            np.cumsum([0, *sizes])[:-1].astype(np.int64),
            joined("feature", np.int32),
            joined("threshold", np.float32),
            joined("left", np.int32),
            joined("right", np.int32),
            joined("default_left", bool),
            joined("value", np.float32),
            _joined_sets(trees),
        )


def _joined_sets(trees: tuple[Tree, ...]) -> NDArray[np.bool_] | None:
    """Return the sets of all nodes, as wide as the widest; None where no split is by categories."""
    sets = [np.zeros((len(t), 0), bool) if t.categories is None else t.categories for t in trees]
    width = max((s.shape[1] for s in sets), default=0)
    if not width:
        return None
    return np.concatenate([np.pad(s, ((0, 0), (0, width - s.shape[1]))) for s in sets])


@kernel
def _leaf(
    x: NDArray[np.float32],
    start: int,
    feature: NDArray[np.int32],
    threshold: NDArray[np.float32],
    left: NDArray[np.int32],
    right: NDArray[np.int32],
    default_left: NDArray[np.bool_],
) -> int:
    node = 0
    while feature[start + node] >= 0:
        k = start + node
        value = x[feature[k]]
        goes_left = default_left[k] if value != value else value < threshold[k]
        node = left[k] if goes_left else right[k]
    return node


@kernel
def _apply(
    X: NDArray[np.float32],
    starts: NDArray[np.int64],
    feature: NDArray[np.int32],
    threshold: NDArray[np.float32],
    left: NDArray[np.int32],
    right: NDArray[np.int32],
    default_left: NDArray[np.bool_],
    out: NDArray[np.int32],
) -> None:
    for i in range(X.shape[0]):
        for t in range(starts.shape[0]):
            out[i, t] = _leaf(X[i], starts[t], feature, threshold, left, right, default_left)


@kernel
def _margin(
    X: NDArray[np.float32],
    starts: NDArray[np.int64],
    feature: NDArray[np.int32],
    threshold: NDArray[np.float32],
    left: NDArray[np.int32],
    right: NDArray[np.int32],
    default_left: NDArray[np.bool_],
    value: NDArray[np.float32],
    out: NDArray[np.float32],
) -> None:
    for i in range(X.shape[0]):
        for t in range(starts.shape[0]):
            start = starts[t]
            out[t % out.shape[0], i] += value[
                start + _leaf(X[i], start, feature, threshold, left, right, default_left)
            ]


@kernel
def _apply_categorical(
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
                elif threshold[k] == threshold[k]:
                    goes_left = value < threshold[k]
                else:  # by category; what is no code goes left
                    goes_left = not (0 <= value < width and categories[k, int(value)])
                node = left[k] if goes_left else right[k]
                k = starts[t] + node
            out[i, t] = node

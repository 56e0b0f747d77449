"""Points that reach every leaf of a forest."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from fedtrees.trees.boosted.forest import Forest, Tree

LEAST = np.finfo(np.float32).min  # XGBoost refuses rows that hold an infinity

# The value of a column on one side of a split, and the codes that are still allowed there.
Side = tuple[np.float32, NDArray[np.bool_] | None]


def covering_points(forest: Forest, width: int) -> Iterator[NDArray[np.float32]]:
    """Yield a point for each leaf of each tree, float32, shape (width,).

    A point lacks the columns its leaf does not ask for. It misses its leaf where no float32 meets
    all conditions.
    """
    for tree in forest.trees:
        yield from _points(tree, width)


def compact(forest: Forest) -> tuple[Forest, NDArray[np.intp]]:
    """Return the forest over the columns it splits on (and column 0), and those columns."""
    features = (np.maximum(tree.feature, 0) for tree in forest.trees)
    used = np.unique(np.concatenate([np.zeros(1, dtype=np.int32), *features])).astype(np.intp)

    def moved(tree: Tree) -> Tree:
        at = np.searchsorted(used, tree.feature)
        return replace(tree, feature=np.where(tree.feature < 0, -1, at).astype(np.int32))

    return replace(forest, trees=tuple(map(moved, forest.trees))), used


def reached(forest: Forest, points: NDArray[np.float32]) -> NDArray[np.bool_]:
    """Return which leaves of all trees some point reaches, bool, shape (leaves of all trees,)."""
    leaves = forest.apply(points)
    found = (np.isin(tree.leaves, leaves[:, t]) for t, tree in enumerate(forest.trees))
    return np.concatenate([np.zeros(0, dtype=bool), *found])


def _points(tree: Tree, width: int) -> Iterator[NDArray[np.float32]]:
    """Walk a tree depth first."""
    point = np.full(width, np.nan, dtype=np.float32)
    codes: dict[int, NDArray[np.bool_] | None] = {}
    todo: list[tuple[int, int, Side]] = [(0, 0, (np.float32(np.nan), None))]
    while todo:
        node, f, side = todo.pop()
        point[f], codes[f] = side
        if node < 0:  # both sides are done, and the column is as it was before
            continue
        f = int(tree.feature[node])
        if f < 0:
            yield point.copy()
            continue
        before: Side = point[f], codes.get(f)
        split = _by_category if np.isnan(tree.threshold[node]) else _by_threshold
        left, right = split(tree, node, before)
        todo.append((-1, f, before))
        todo.append((int(tree.right[node]), f, right))
        todo.append((int(tree.left[node]), f, left))


def _by_threshold(tree: Tree, node: int, before: Side) -> tuple[Side, Side]:
    value, cut = before[0], tree.threshold[node]
    left = value if value < cut else np.nextafter(cut, LEAST)
    right = value if value >= cut else cut
    return (left, before[1]), (right, before[1])


def _by_category(tree: Tree, node: int, before: Side) -> tuple[Side, Side]:
    assert tree.categories is not None
    goes_right, out = tree.categories[node], []
    allowed = np.ones(len(goes_right), dtype=bool) if before[1] is None else before[1]
    for side in (~goes_right, goes_right):
        left = allowed & side
        # a code that no node names goes left everywhere
        code = int(np.argmax(left)) if left.any() else len(goes_right)
        out.append((np.float32(code), left))
    return out[0], out[1]

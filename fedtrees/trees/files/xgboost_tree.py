"""Convert one tree from and to the node arrays of XGBoost's JSON models."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedtrees.core.errors import DataError
from fedtrees.trees.binning import MOST_BINS
from fedtrees.trees.boosted.forest import Tree
from fedtrees.trees.boosted.params import TreeParams
from fedtrees.trees.files.model_file import check_depth

_ROOT_PARENT = 2147483647  # XGBoost's mark of a node without parent
DELETED = 2147483647  # split index of a node that pruning removed and that is still listed
# XGBoost's split condition of a split by categories
_BY_CATEGORY = np.finfo(np.float32).smallest_subnormal
_MAX_CELLS = 2**27  # Limit of nodes times categories of all trees. Each cell takes two bytes.


def write_tree(
    number: int, tree: Tree, n_features: int, params: TreeParams | None
) -> dict[str, Any]:
    """Return the node arrays of a tree.

    Parameters
    ----------
    number : int
        Position in the model.
    tree : Tree
        The tree.
    n_features : int
        Number of columns of the table.
    params : TreeParams or None
        If given, inner nodes get the weight that they would have as leaves, as XGBoost writes it.
    """
    n = len(tree)
    leaf = tree.feature < 0
    parents = np.full(n, _ROOT_PARENT)
    inner = np.flatnonzero(~leaf)
    parents[tree.left[inner]] = inner
    parents[tree.right[inner]] = inner
    zeros = np.zeros(n, dtype=np.float32)
    cover = zeros if tree.h is None else np.nan_to_num(tree.h).astype(np.float32)
    gain = zeros if tree.gain is None else tree.gain
    by_category = np.isnan(tree.threshold)
    condition = np.where(by_category, _BY_CATEGORY, tree.threshold)
    return {
        "base_weights": _weights(tree, params).tolist(),
        **_written_sets(tree),
        "default_left": tree.default_left.astype(int).tolist(),
        "id": number,
        "left_children": tree.left.tolist(),
        "loss_changes": gain.tolist(),
        "parents": parents.tolist(),
        "right_children": tree.right.tolist(),
        "split_conditions": np.where(leaf, tree.value, condition).tolist(),
        "split_indices": np.maximum(tree.feature, 0).tolist(),
        "split_type": by_category.astype(int).tolist(),
        "sum_hessian": cover.tolist(),
        "tree_param": {
            "num_deleted": "0",
            "num_feature": str(n_features),
            "num_nodes": str(n),
            "size_leaf_vector": "1",
        },
    }


def _written_sets(tree: Tree) -> dict[str, list[int]]:
    """Return the categories that go right, node after node."""
    nodes = np.flatnonzero(np.isnan(tree.threshold))
    empty = np.zeros((len(tree), 0), dtype=bool)
    chosen = (empty if tree.categories is None else tree.categories)[nodes]
    sizes = chosen.sum(axis=1)
    return {
        "categories": np.nonzero(chosen)[1].tolist(),
        "categories_nodes": nodes.tolist(),
        "categories_segments": (np.cumsum(sizes) - sizes).tolist(),
        "categories_sizes": sizes.tolist(),
    }


def _read_sets(tree: dict[str, Any], by_category: NDArray[np.bool_]) -> NDArray[np.bool_] | None:
    """Return the categories that go right, bool, shape (n_nodes, width).

    Raises
    ------
    DataError
        If a split by categories has no set, or a code is too large.
    """
    if not by_category.any():
        return None
    nodes, begin, sizes, codes = (
        _nodes(tree, f"categories{part}", np.int64)
        for part in ("_nodes", "_segments", "_sizes", "")
    )
    ends = np.cumsum(sizes)
    listed = np.isin(np.flatnonzero(by_category), nodes).all() and len(sizes) == len(nodes)
    valid_nodes = listed and nodes.min() >= 0 and nodes.max() < len(by_category)
    if not valid_nodes or (sizes < 0).any() or not np.array_equal(begin, ends - sizes):
        raise DataError("not a complete XGBoost model: splits and sets of categories do not match")
    if ends[-1] != len(codes) or not 0 <= codes.min(initial=0) <= codes.max(initial=0) <= MOST_BINS:
        raise DataError(f"a tree splits by categories that are no codes from 0 to {MOST_BINS}")
    width = 1 + int(codes.max(initial=0))
    sets = np.zeros((len(by_category), width), dtype=bool)
    sets[np.repeat(nodes, sizes), codes] = True
    sets[~by_category] = False  # nodes that pruning turned into leaves
    return sets


def _weights(tree: Tree, params: TreeParams | None) -> NDArray[np.float32]:
    """Return XGBoost's base_weights: leaf values, and unshrunk weights at inner nodes."""
    weights = tree.value.astype(np.float32).copy()
    if params is not None and tree.g is not None and tree.h is not None:
        usable = (tree.feature >= 0) & (tree.h > 0) & np.isfinite(tree.g)
        g, h = tree.g[usable], tree.h[usable]
        beyond = np.maximum(np.abs(g) - params.reg_alpha, 0)  # XGBoost's ThresholdL1
        weights[usable] = -np.sign(g) * beyond / (h + params.reg_lambda)
    return weights


def check_kind(tree: dict[str, Any]) -> None:
    """Raise `DataError` unless leaves have one output."""
    outputs = int(tree["tree_param"].get("size_leaf_vector", "1"))
    if outputs > 1:
        raise DataError(
            f"model has leaves of {outputs} outputs (multi_output_tree); only one_output_per_tree "
            "is read"
        )


def check_categories(trees: Sequence[dict[str, Any]]) -> None:
    """Refuse trees whose sets of categories would need too much memory.

    A set has a cell for every node of the model and every code up to the largest one. Without this
    limit, a few bytes of a file could cause a large allocation.

    Raises
    ------
    DataError
        If there are too many cells.
    """
    listed = (tree for tree in trees if len(tree.get("categories", ())))
    codes = [_nodes(tree, "categories", np.int64) for tree in listed]
    nodes = sum(len(tree["split_indices"]) for tree in trees)
    largest = max((int(each.max(initial=-1)) for each in codes), default=-1)
    if nodes * (1 + largest) > _MAX_CELLS:
        raise DataError(
            f"trees of {nodes} nodes split by categories up to {largest}; more than {_MAX_CELLS} "
            "nodes times categories are not read"
        )


def hidden_thresholds(tree: Mapping[str, Any]) -> NDArray[np.bool_]:
    """Return the nodes whose threshold only another party knows, bool, shape (n_nodes,).

    In XGBoost's secure vertical training, the model of a party contains NaN at these nodes.
    """
    condition = np.asarray(tree["split_conditions"], dtype=np.float64)
    kind = np.asarray(tree.get("split_type", np.zeros(len(condition))))
    inner = np.asarray(tree["left_children"]) >= 0
    if not len(condition) == len(kind) == len(inner):
        return np.zeros(len(condition), dtype=bool)  # damaged: `read_tree` describes the problem
    return np.asarray(np.isnan(condition) & inner & (kind == 0))


def with_placeholders(tree: Mapping[str, Any]) -> dict[str, Any]:
    """Return a tree with 0 in place of thresholds that only another party knows."""
    hidden = hidden_thresholds(tree)
    condition = np.asarray(tree["split_conditions"], dtype=np.float64)
    return {**tree, "split_conditions": np.where(hidden, 0.0, condition)}


def read_tree(
    tree: dict[str, Any], n_features: int, eta: float | None, reg_lambda: float | None
) -> Tree:
    """Read a tree that `check_kind` accepts.

    Nodes that pruning removed are left out, and the remaining nodes are renumbered in order.

    Parameters
    ----------
    tree : dict
        Node arrays, as lists or numpy arrays.
    n_features : int
        Number of columns of the table.
    eta, reg_lambda : float or None
        If both are given, gradient sums are computed from the weights (see `from_xgboost_json`).

    Raises
    ------
    DataError
        If the arrays do not form a tree.
    KeyError
        If an array is missing.
    """
    columns = _nodes(tree, "split_indices", np.int32)
    left = _nodes(tree, "left_children", np.int32)
    remaining = np.flatnonzero(columns != DELETED)
    right = _nodes(tree, "right_children", np.int32)
    condition = _nodes(tree, "split_conditions", np.float32)
    default_left = _nodes(tree, "default_left", np.bool_)
    gain = _nodes(tree, "loss_changes", np.float32)
    h = _nodes(tree, "sum_hessian", np.float64)
    weights = _nodes(tree, "base_weights", np.float64)
    by_category = np.zeros(len(left), dtype=bool)
    if "split_type" in tree:  # old models have only thresholds
        by_category = _nodes(tree, "split_type", np.bool_)
    arrays = (columns, right, condition, default_left, gain, h, weights, by_category)
    if not len(left) or any(a.shape != left.shape for a in arrays):
        raise DataError("not a complete XGBoost model: node arrays of a tree differ in length")
    by_category &= left >= 0
    sets = _read_sets(tree, by_category)
    condition = np.where(by_category, 0, condition)  # it has no meaning for a split by categories
    left, right = _renumber(left, right, remaining)
    check_depth(left, right)
    columns, condition, default_left, gain, h, weights = (
        a[remaining] for a in (columns, condition, default_left, gain, h, weights)
    )
    leaf = left < 0
    threshold = np.where(by_category[remaining], np.nan, condition)
    _check_contents(columns[~leaf], condition, leaf, n_features)
    g = None
    if eta is not None and reg_lambda is not None:
        # Inverse of the leaf weight -g / (h + lambda).
        g = -np.where(leaf, condition / eta, weights) * (h + reg_lambda)
    return Tree(
        feature=np.where(leaf, -1, columns).astype(np.int32),
        threshold=np.where(leaf, 0, threshold).astype(np.float32),
        left=left,
        right=right,
        default_left=default_left & ~leaf,
        value=np.where(leaf, condition, 0).astype(np.float32),
        g=g,
        h=h,
        gain=np.where(leaf, 0, gain).astype(np.float32),
        categories=None if sets is None else sets[remaining],
    )


def _nodes(tree: dict[str, Any], name: str, kind: type[np.generic]) -> NDArray[Any]:
    """Return one node array, and refuse values that its type cannot represent."""
    raw = np.asarray(tree[name])
    real = np.issubdtype(kind, np.floating)
    if raw.ndim != 1 or raw.dtype.kind not in ("iuf" if real else "biu"):
        raise DataError(f"not a complete XGBoost model: {name!r} of a tree is no list of numbers")
    with np.errstate(over="ignore"):  # infinities are refused later where they matter
        array = raw.astype(kind)
    if not real and (array != raw).any():
        raise DataError(f"not a complete XGBoost model: {name!r} of a tree is out of range")
    return array


def _renumber(
    left: NDArray[np.int32], right: NDArray[np.int32], remaining: NDArray[np.intp]
) -> tuple[NDArray[np.int32], NDArray[np.int32]]:
    """Return the children of the remaining nodes with new numbers.

    Raises
    ------
    DataError
        If a node except the root is not the child of exactly one node before it.
    """
    inner = remaining[left[remaining] >= 0]
    children = np.concatenate([left[inner], right[inner]])
    twice = np.concatenate([inner, inner])
    one_sided = ((left < 0) != (right < 0)).any()
    complete = (
        bool(len(remaining))
        and remaining[0] == 0
        and np.array_equal(np.sort(children), remaining[1:])
    )
    if one_sided or not complete or (children <= twice).any():
        raise DataError("not a complete XGBoost model: the nodes of a tree do not form a tree")
    number = np.full(len(left) + 1, -1, dtype=np.int32)  # the last entry is used for "no child"
    number[remaining] = np.arange(len(remaining), dtype=np.int32)
    return number[np.maximum(left[remaining], -1)], number[np.maximum(right[remaining], -1)]


def _check_contents(
    used: NDArray[np.int32],
    condition: NDArray[np.float32],
    leaf: NDArray[np.bool_],
    n_features: int,
) -> None:
    """Raise `DataError` if a feature, threshold or leaf value is invalid."""
    if len(used) and not 0 <= used.min() <= used.max() < n_features:
        raise DataError(f"a tree splits on feature {used.max()}, the model has {n_features}")
    if np.isnan(condition[~leaf]).any():
        raise DataError(
            "a threshold of the model is NaN: the file is damaged, or it is the part of one party "
            "in a secure vertical training, which cannot predict without the other parts; "
            "fedtrees model audit reads its "
            "leaf counts"
        )
    if not np.isfinite(condition[leaf]).all():
        raise DataError("not a usable XGBoost model: a threshold or leaf value is not finite")

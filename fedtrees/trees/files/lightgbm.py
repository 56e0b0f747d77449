"""Read forests from LightGBM's text models (``Booster.save_model``, formats v3 and v4)."""

from __future__ import annotations

from dataclasses import dataclass
from os import PathLike
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedtrees.core.errors import DataError
from fedtrees.trees.boosted.forest import Forest, Tree
from fedtrees.trees.boosted.losses import LOGISTIC, SQUARED_ERROR, Objective, Softmax
from fedtrees.trees.files.model_file import check_depth, read_model_file

READ_OBJECTIVES = ("binary", "multiclass", "regression")

# Bits of decision_type.
_CATEGORICAL, _DEFAULT_LEFT, _MISSING_SHIFT = 1, 2, 2
_NONE, _ZERO, _NAN = 0, 1, 2  # kinds of values that a node treats as missing

# LightGBM's kZeroThreshold: if zero means missing, so does every value of at most this size.
_ALMOST_ZERO = np.float32(1e-35)
_ABOVE_ZERO = float(np.nextafter(_ALMOST_ZERO, np.float32(1)))
_BELOW_ZERO = -_ABOVE_ZERO


def from_lightgbm_text(model: str | bytes | PathLike[str]) -> Forest:
    """Read a forest from a LightGBM text model.

    Every finite or missing float32 goes to the same side as in LightGBM. LightGBM adds float64 leaf
    values. The forest uses their nearest float32 numbers, so that margins agree up to float32
    rounding. Base margins are 0, because LightGBM adds its initial score to the leaves of the first
    round. Leaves of LightGBM's random forests (``average_output``) are divided by the number of
    rounds. Trees with several leaves contain gains and sums of hessians (``h``, summed from
    ``leaf_weight``). The file does not contain ``g``.

    Parameters
    ----------
    model : bytes or path
        The encoded text, or a file.

    Raises
    ------
    DataError
        If the model is truncated, has an objective that is not in `READ_OBJECTIVES`, has
        categorical splits or linear leaves, or sends zeros to another side than the numbers next to
        them (``zero_as_missing``), which no threshold can represent.
    """
    data = model if isinstance(model, bytes) else read_model_file(model)
    header, blocks = sections(data.decode("utf-8", errors="replace").splitlines())
    try:
        objective = _objective(header, len(blocks))
        width = int(header["max_feature_idx"]) + 1
        rounds = len(blocks) // objective.n_outputs
        divisor = rounds if "average_output" in header else 1
        trees = tuple(_Arrays.of(block, width).tree(divisor) for block in blocks)
    except DataError:  # its message is more specific than those below, and it is a ValueError
        raise
    except (KeyError, ValueError, OverflowError) as error:
        raise _incomplete(f"{type(error).__name__} {error}") from error
    return Forest(trees, np.zeros(objective.n_outputs, dtype=np.float32), objective)


def rows_of_leaves(block: dict[str, str], n_features: int) -> NDArray[np.int64] | None:
    """Return the number of training rows of every node, from the counts of leaves in the file.

    Parameters
    ----------
    block : dict of str to str
        Entries of one tree, from `sections`.
    n_features : int
        Number of features of the model.

    Returns
    -------
    rows : int64 array, shape (n_nodes,), or None
        In the node order of `from_lightgbm_text`. The number of an inner node is the sum of its
        leaves. None if the file has no ``leaf_count``.

    Raises
    ------
    DataError
        If the entries do not form a tree, or there is not one count for each leaf.
    """
    if not block.get("leaf_count"):
        return None
    arrays = _Arrays.of(block, n_features)
    try:
        counts = np.array(block["leaf_count"].split(), dtype=np.int64)
    except (ValueError, OverflowError) as error:
        raise _incomplete(f"leaf_count {block['leaf_count'][:40]!r}: {error}") from error
    if len(counts) != len(arrays.value) or (counts < 0).any():
        raise _incomplete(f"{len(counts)} leaf counts for {len(arrays.value)} leaves")
    return arrays.summed(counts.astype(np.float64)).astype(np.int64)[arrays.levels()]


def numbers_of_leaves(block: dict[str, str], n_features: int) -> NDArray[np.int64]:
    """Return LightGBM's number of each leaf, int64, shape (n_nodes,), -1 for inner nodes.

    Nodes are in the order of `from_lightgbm_text`.

    Raises
    ------
    DataError
        If the entries do not form a tree.
    """
    arrays = _Arrays.of(block, n_features)
    return np.maximum(arrays.levels() - len(arrays.feature), -1)


def _incomplete(reason: str) -> DataError:
    """Return the error for an incomplete model."""
    return DataError(f"not a complete LightGBM model: {reason}")


def sections(lines: list[str]) -> tuple[dict[str, str], list[dict[str, str]]]:
    """Return the entries before the trees and those of every tree.

    Raises
    ------
    DataError
        If the lines are not a complete LightGBM model.
    """
    if not lines or lines[0] != "tree":
        raise DataError("not a LightGBM text model: the first line is not 'tree'")
    header: dict[str, str] = {}
    blocks: list[dict[str, str]] = []
    section = header
    for line in lines[1:]:
        if line == "end of trees":
            break
        key, _, value = line.partition("=")
        if key == "Tree":
            if value != str(len(blocks)):
                raise _incomplete(f"tree {value!r} follows {len(blocks)} trees")
            section = {}
            blocks.append(section)
        elif key:
            section[key] = value
    else:
        raise _incomplete("there is no 'end of trees'")
    announced = len(header.get("tree_sizes", "").split())
    if len(blocks) != announced or not blocks:
        raise _incomplete(f"it has {len(blocks)} trees and announces {announced}")
    return header, blocks


def _objective(header: dict[str, str], trees: int) -> Objective:
    """Return the objective of a model."""
    name, *settings = header.get("objective", "none").split()
    per_round = int(header["num_tree_per_iteration"])
    classes = per_round if name == "multiclass" else 1
    if name == "binary" and settings == ["sigmoid:1"]:
        objective: Objective = LOGISTIC
    elif name == "regression" and not settings:
        objective = SQUARED_ERROR
    elif name == "multiclass" and 2 <= classes <= trees:
        objective = Softmax(classes)
    else:
        raise DataError(
            f"model is for {' '.join([name, *settings])!r} with {per_round} trees a round; read "
            f"are {', '.join(READ_OBJECTIVES)}, with sigmoid=1 and without reg_sqrt"
        )
    if per_round != objective.n_outputs or trees % per_round:
        raise _incomplete(f"{trees} trees are not rounds of {objective.n_outputs}")
    return objective


@dataclass(frozen=True, eq=False)
class _Arrays:
    """A tree in LightGBM's format.

    Inner nodes come first, and leaf ``~j`` is node ``len(feature) + j``.
    """

    # feature, decision, shape (m,)
    feature: NDArray[np.int64]
    decision: NDArray[np.int64]
    # threshold, gain, shape (m,)
    threshold: NDArray[np.float64]
    gain: NDArray[np.float64]
    # left, right, shape (m,)
    left: NDArray[np.int64]
    right: NDArray[np.int64]
    value: NDArray[np.float64]  # shape (m + 1,)
    weight: NDArray[np.float64] | None  # shape (m + 1,)

    @staticmethod
    def of(block: dict[str, str], n_features: int) -> _Arrays:
        """Read the arrays of a tree."""
        if int(block.get("num_cat", "0")):
            raise DataError("model has categorical splits; only numerical ones are read")
        if int(block.get("is_linear", "0")):
            raise DataError("model has linear trees (linear_tree); only constant leaves are read")
        inner = int(block["num_leaves"]) - 1

        def numbers(key: str, kind: type[np.generic], size: int) -> NDArray[Any]:
            array = np.array(block[key].split(), dtype=kind)
            if len(array) != size:
                raise _incomplete(f"{key!r} of a tree has {len(array)} entries, not {size}")
            return array

        def children(key: str) -> NDArray[np.int64]:
            nodes = numbers(key, np.int64, inner)
            return np.where(nodes < 0, inner + ~nodes, nodes)

        has_weights = inner > 0 and bool(block.get("leaf_weight"))
        arrays = _Arrays(
            feature=numbers("split_feature", np.int64, inner),
            decision=numbers("decision_type", np.int64, inner),
            threshold=numbers("threshold", np.float64, inner),
            gain=numbers("split_gain", np.float64, inner),
            left=children("left_child"),
            right=children("right_child"),
            value=numbers("leaf_value", np.float64, inner + 1),
            weight=numbers("leaf_weight", np.float64, inner + 1) if has_weights else None,
        )
        arrays._check(n_features)
        return arrays

    def _check(self, n_features: int) -> None:
        """Raise `DataError` unless the arrays form a tree with numerical splits."""
        if not ((self.feature >= 0) & (self.feature < n_features)).all():
            raise _incomplete(f"a tree splits on a feature that is none of its {n_features}")
        # An infinite threshold is valid: it sends every number to one side, and possibly NaN to the
        # other.
        if np.isnan(self.threshold).any() or not np.isfinite(self.value).all():
            raise _incomplete("a threshold is NaN or a leaf value not finite")
        inner = np.arange(len(self.feature))
        children = np.concatenate([self.left, self.right])
        # Every node except the root is the child of exactly one node.
        complete = np.array_equal(np.sort(children), np.arange(1, 2 * len(inner) + 1))
        if not complete or (children <= np.concatenate([inner, inner])).any():
            raise _incomplete("the nodes of a tree do not form a tree")
        none = np.full(len(inner) + 1, -1)
        check_depth(np.concatenate([self.left, none]), np.concatenate([self.right, none]))
        if (self.decision & _CATEGORICAL).any() or (self.decision >> _MISSING_SHIFT > _NAN).any():
            raise _incomplete("decision_type of a tree is not that of a numerical split")

    def tree(self, divisor: int) -> Tree:
        """Return the tree with its nodes numbered level by level.

        Leaf values are divided by `divisor`.
        """
        order = self.levels()
        number = np.argsort(order).astype(np.int32)
        inner = len(self.feature)
        leaves = np.full(inner + 1, -1, dtype=np.int32)
        threshold, default_left = _decisions(self.threshold, self.decision)

        def joined(of_inner: Any, of_leaf: Any, kind: Any) -> NDArray[Any]:
            return np.concatenate([of_inner, of_leaf]).astype(kind)[order]

        return Tree(
            feature=joined(self.feature, leaves, np.int32),
            threshold=joined(threshold, 0 * leaves, np.float32),
            left=joined(number[self.left], leaves, np.int32),
            right=joined(number[self.right], leaves, np.int32),
            default_left=joined(default_left, leaves * 0, np.bool_),
            value=joined(np.zeros(inner), self.value / divisor, np.float32),
            h=None if self.weight is None else self.summed(self.weight)[order],
            gain=joined(self.gain, leaves * 0, np.float32),
        )

    def levels(self) -> NDArray[np.int64]:
        """Return the nodes level by level, children in pairs."""
        level = np.zeros(1, dtype=np.int64)
        all_levels = [level]
        while len(level):
            split = level[level < len(self.feature)]
            level = np.stack([self.left[split], self.right[split]], axis=1).ravel()
            all_levels.append(level)
        return np.concatenate(all_levels)

    def summed(self, weight: NDArray[np.float64]) -> NDArray[np.float64]:
        """Return the sum over all leaves below each node.

        LightGBM's internal_weight has only six digits.
        """
        sums = np.concatenate([np.zeros(len(self.feature)), weight])
        for node in range(len(self.feature) - 1, -1, -1):
            sums[node] = sums[self.left[node]] + sums[self.right[node]]
        return sums


def _decisions(
    threshold: NDArray[np.float64], decision: NDArray[np.int64]
) -> tuple[NDArray[np.float32], NDArray[np.bool_]]:
    """Return float32 thresholds and default directions that route float32 values as LightGBM does.

    LightGBM goes left if ``x <= threshold``. If a node treats NaN as missing, a missing value goes
    in the default direction. If it treats nothing as missing, NaN is compared as 0. If it treats
    zero as missing, all values ``|x| <= 1e-35`` go in the default direction together with NaN.
    """
    missing = decision >> _MISSING_SHIFT
    default_left = (decision & _DEFAULT_LEFT).astype(bool)
    zero = missing == _ZERO
    apart = np.where(default_left, threshold < _BELOW_ZERO, threshold >= _ABOVE_ZERO)
    if (zero & apart).any():
        raise DataError(
            "model takes zeros as missing (zero_as_missing) and sends them apart from the numbers "
            "next to them; train it with zero_as_missing=false, missing values as NaN"
        )
    # Move the threshold so that the small numbers that count as zero go with the missing values.
    with_zeros = np.maximum(threshold, float(_ALMOST_ZERO))
    without_zeros = np.minimum(threshold, _BELOW_ZERO)
    cut = np.where(zero, np.where(default_left, with_zeros, without_zeros), threshold)
    return next_float32(cut), np.where(missing == _NONE, threshold >= 0, default_left)


def next_float32(threshold: NDArray[np.float64]) -> NDArray[np.float32]:
    """Return the smallest float32 above each threshold.

    ``x <= threshold`` is then equivalent to ``x < result``, for every finite float32 x.
    """
    with np.errstate(over="ignore"):
        near = threshold.astype(np.float32)
        up = np.nextafter(near, np.float32(np.inf))
    return np.where(near > threshold, near, up).astype(np.float32)

"""Released models as messages, and the conversion between boosted trees and arrays of messages.

A released model is the content of a checkpoint and the view of the role ``public``.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import singledispatch
from types import SimpleNamespace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedtrees.core.composition import Composition
from fedtrees.core.errors import DataError
from fedtrees.core.messages import Message, Reveal, load_families, message
from fedtrees.core.schema import Schema
from fedtrees.core.transcript import PUBLIC
from fedtrees.core.view import Seen, View
from fedtrees.messages.horizontal import SharedTrees
from fedtrees.trees.boosted.forest import Forest, Tree
from fedtrees.trees.boosted.losses import named_objective
from fedtrees.trees.boosted.params import TreeParams
from fedtrees.trees.boosted.splitting import weights_of
from fedtrees.trees.routing import NODE_KINDS, join_nodes, joined_sets, split_nodes

#: Node arrays of `SharedTrees`, with their types.
_SHARED: dict[str, Any] = {
    "feature": np.int32, "threshold": np.float32, "left": np.int32, "default_left": np.bool_,
    "value": np.float32, "sum_hessian": np.float32, "base_weights": np.float32,
    "loss_changes": np.float32,
}  # fmt: skip


def pack(trees: Sequence[Tree], params: TreeParams) -> dict[str, NDArray[Any]]:
    """Return trees with gradient statistics as the array fields of `SharedTrees`.

    Parameters
    ----------
    trees : sequence of Tree
        Trees whose `g` and `h` are known.
    params : TreeParams
        Parameters that the trees were grown with. ``base_weights`` depends on the regularisation.

    Returns
    -------
    dict of str to array
        ``sizes``, int64, shape (T,), and the concatenated node arrays, each of shape (n_nodes,).
        Gains that a tree does not know are 0.
    """
    # XGBoost's file format has these fields for every node.
    nodes = [
        SimpleNamespace(
            **{name: getattr(tree, name) for name in _SHARED if hasattr(tree, name)},
            sum_hessian=tree.h,
            base_weights=base_weights(tree, params),
            loss_changes=np.zeros(len(tree)) if tree.gain is None else tree.gain,
        )
        for tree in trees
    ]
    arrays = join_nodes(nodes, _SHARED)
    sizes = np.array([len(t) for t in trees], dtype=np.int64)
    return {"sizes": sizes, **{n: a.astype(_SHARED[n], copy=False) for n, a in arrays.items()}}


def base_weights(tree: Tree, params: TreeParams) -> NDArray[np.float32]:
    """Return XGBoost's ``base_weights`` of a tree.

    These are leaf outputs at leaves, and weights without learning rate at inner nodes. A root that
    is a leaf also has a weight without learning rate, because XGBoost computes its weight before it
    knows that no split follows.

    Parameters
    ----------
    tree : Tree
        Tree whose `g` and `h` are known.
    params : TreeParams
        Parameters with the regularisation.

    Returns
    -------
    weights : float32 array, shape (n_nodes,)
        In units of the margin.
    """
    assert tree.g is not None
    assert tree.h is not None
    is_root = np.arange(len(tree)) == 0
    weight = weights_of(tree.g, tree.h, params)
    weights: NDArray[np.float32] = np.where((tree.feature >= 0) | is_root, weight, tree.value)
    return weights


def unpack(
    message: SharedTrees,
    learning_rate: float | None = None,
    reg_lambda: float | None = None,
    reg_alpha: float = 0.0,
) -> list[Tree]:
    """Return the trees of a message.

    Parameters
    ----------
    message : SharedTrees
        Concatenated trees.
    learning_rate, reg_lambda : float, optional
        If both are given and the message contains hessian sums and weights, gradient sums are
        recovered as ``g = -w (h + lambda) - alpha sign(w)``, with the precision of a float32. They
        are meaningless if a defense has overwritten the hessians.
    reg_alpha : float
        L1 regularisation. A node with w = 0 can have any gradient sum from -alpha to alpha, and 0
        is returned.

    Returns
    -------
    list of Tree
        Trees in the order of the message. Their statistics are None if the message does not contain
        them.

    Raises
    ------
    DataError
        If the node arrays do not fit the sizes.
    """
    trees = []
    for tree in split_nodes(message.sizes, {name: getattr(message, name) for name in _SHARED}):
        h, weights, g = tree.pop("sum_hessian", None), tree.pop("base_weights", None), None
        if h is not None and weights is not None and None not in (learning_rate, reg_lambda):
            # Leaf values include the learning rate, which XGBoost multiplies in float32.
            outputs = tree["value"] / np.float64(np.float32(learning_rate))
            w = np.where(tree["feature"] < 0, outputs, weights)
            g = -w * (h.astype(np.float64) + reg_lambda) - reg_alpha * np.sign(w)
        statistics: dict[str, Any] = {"g": g, "h": None if h is None else h.astype(np.float64)}
        gain = tree.pop("loss_changes", None)
        trees.append(Tree(**tree, **statistics, gain=gain))
    return trees


def join(messages: Sequence[SharedTrees]) -> dict[str, NDArray[Any]]:
    """Concatenate the array fields of several messages, in order.

    Parameters
    ----------
    messages : sequence of SharedTrees
        Messages with trees.

    Returns
    -------
    dict of str to array
        Fields of a `SharedTrees`. Optional fields that are None in any message are left out.
    """
    return join_nodes(messages, {"sizes": np.int64, **_SHARED})


_BOOSTED = {**NODE_KINDS, "value": np.float32}
_STATISTICS = {"g": np.float64, "h": np.float64, "gain": np.float32}
_MODEL = frozenset({Reveal.MODEL, Reveal.THRESHOLDS})


# A threshold is a cut point, which can be a value of a row.
@message(discloses=_MODEL | {Reveal.LABELS, Reveal.COUNTS}, verbatim={"threshold"})
class BoostedModel(Message):
    """A boosted forest with concatenated trees, see `fedtrees.trees.boosted.forest`.

    Attributes
    ----------
    objective : str
        Name of the loss function, for example ``"binary:logistic"``.
    base_margin : float32 array, shape (K,)
        Initial prediction, as a margin.
    sizes : int64 array, shape (T,)
        Number of nodes of each tree.
    feature, threshold, left, right, default_left, value : array, shape (n_nodes,)
        Structure and outputs of the trees.
    g, h, gain : array, shape (n_nodes,), or None
        Statistics of the training rows. None if a tree of the model has no such statistics.
    categories : bool array, shape (n_nodes, width), or None
        At nodes whose threshold is NaN: the category codes that go right. None if no split is
        categorical.
    """

    objective: str
    base_margin: NDArray[np.float32]
    sizes: NDArray[np.int64]
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
    def reveals(self) -> frozenset[Reveal]:
        """Labels and counts are revealed only if the model contains statistics."""
        # Without statistics a model reveals only its structure.
        bare = all(getattr(self, name) is None for name in _STATISTICS)
        return _MODEL if bare else self.discloses

    def model(self) -> Forest:
        """Return the forest.

        Raises
        ------
        DataError
            If the node arrays do not fit the sizes.
        """
        names = (*_BOOSTED, *_STATISTICS, "categories")
        parts = split_nodes(self.sizes, {name: getattr(self, name) for name in names})
        trees = tuple(Tree(**part) for part in parts)
        return Forest(
            trees, self.base_margin, named_objective(self.objective, len(self.base_margin))
        )


def public_view(model: Any, schema: Schema, parameters: Mapping[str, Any], n_rows: int) -> View:
    """Return the view of an adversary that has only the released model.

    Parameters
    ----------
    model : Model
        The released model.
    schema : Schema
        Columns and target of its training data.
    parameters : mapping of str to object
        Known parameters of its training.
    n_rows : int
        Number of training rows.

    Returns
    -------
    View
        View of the role ``public``, whose only message is the model.
    """
    released = Seen(0, "owner", (PUBLIC,), as_message(model), "the released model")
    return View(
        principals=(PUBLIC,),
        roles={PUBLIC: PUBLIC},
        local_data=(),
        schema=schema,
        protocol="",
        parameters=parameters,
        n_rows=n_rows,
        defense=Composition(),
        seen=(released,),
    )


@singledispatch
def as_message(model: Any) -> Message:
    """Return the message form of a model.

    Families register a conversion for their models. For any other model the method ``as_message()``
    is called.

    Parameters
    ----------
    model : object
        A released model.

    Returns
    -------
    Message
        Message with the content of the model.

    Raises
    ------
    DataError
        If the model has no method ``as_message()``.
    """
    load_families()
    # A family that was imported just now may have registered a conversion for this type.
    if as_message.dispatch(type(model)) is not as_message.dispatch(object):
        return as_message(model)
    if not hasattr(model, "as_message"):
        raise DataError(f"a {type(model).__name__} cannot be sent: it has no as_message()")
    message: Message = model.as_message()
    return message


@as_message.register
def _boosted(model: Forest) -> Message:
    sizes = np.array([len(t) for t in model.trees], dtype=np.int64)
    # Statistics are left out if a tree has none, for example after a defense removed them.
    arrays = join_nodes(model.trees, _BOOSTED | (_STATISTICS if model.trees else {}))
    categories = joined_sets(model.trees)
    if categories.shape[1]:
        arrays["categories"] = categories
    return BoostedModel(model.objective.name, model.base_margin, sizes, **arrays)

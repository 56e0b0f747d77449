"""What protocols say in which clients boost trees on their own rows and share them."""

from dataclasses import dataclass
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray

from fedtrees.core.messages import Message, Reveal, Trait


@dataclass(frozen=True, eq=False)
class GrowRequest(Message):
    """Ask a client to grow trees, on top of the model it was told of last."""

    discloses: ClassVar[frozenset[Reveal]] = frozenset()
    round: int


_GROWN_ALONE = frozenset({Reveal.MODEL, Reveal.THRESHOLDS, Reveal.FEATURES, Reveal.LABELS})


@dataclass(frozen=True, eq=False)
class SharedTrees(Message):
    """Trees as XGBoost writes them, field by field, end to end.

    Attributes
    ----------
    round : int
        In which round they were grown, from 0.
    sizes : int64 array, shape (T,)
        Nodes of each tree. With K classes the trees come K by K, one of each class.
    feature : int32 array, shape (n_nodes,)
        XGBoost's ``split_indices``; -1 at a leaf.
    threshold : float32 array, shape (n_nodes,)
        ``split_conditions`` of inner nodes: ``x < threshold`` goes left; 0 at a leaf. It is a value
        of the rows of the client that grew the tree.
    left : int32 array, shape (n_nodes,)
        ``left_children``, numbered within the tree, -1 at a leaf; the right one follows it.
    default_left : bool array, shape (n_nodes,)
        Where a missing value goes.
    value : float32 array, shape (n_nodes,)
        ``split_conditions`` of leaves: their outputs as margins, learning rate included; 0 at an
        inner node.
    base_score : float32 array, shape (K,)
        Of the model the trees are part of, in XGBoost's units (a probability for
        ``binary:logistic``, else margins). Where no base score is given, a client's first one is
        estimated from its own labels.
    sum_hessian : float32 array, shape (n_nodes,), or None
        Sum of the rows' hessians.
    base_weights : float32 array, shape (n_nodes,), or None
        ``-G / (H + lambda)`` at inner nodes and at a root that is a leaf; elsewhere `value` again.
    loss_changes : float32 array, shape (n_nodes,), or None
        Gains of the splits, 0 at a leaf.
    """

    row_statistics: ClassVar[tuple[str, ...]] = ("sum_hessian", "base_weights", "loss_changes")
    leaf_value: ClassVar[str] = "value"
    discloses: ClassVar[frozenset[Reveal]] = _GROWN_ALONE | {Reveal.COUNTS}
    verbatim: ClassVar[frozenset[str]] = frozenset({"threshold"})
    round: int
    sizes: NDArray[np.int64]
    feature: NDArray[np.int32]
    threshold: NDArray[np.float32]
    left: NDArray[np.int32]
    default_left: NDArray[np.bool_]
    value: NDArray[np.float32]
    base_score: NDArray[np.float32]
    sum_hessian: NDArray[np.float32] | None = None
    base_weights: NDArray[np.float32] | None = None
    loss_changes: NDArray[np.float32] | None = None

    @property
    def reveals(self) -> frozenset[Reveal]:
        """Counts only with statistics; weights and gains together give the hessians away."""
        known = (self.sum_hessian, self.base_weights, self.loss_changes)
        return _GROWN_ALONE if all(k is None for k in known) else self.discloses


@dataclass(frozen=True, eq=False)
class ClientTrees(SharedTrees):
    """The trees a client grew in a round; none if it has no rows. Fields as in `SharedTrees`."""

    traits: ClassVar[frozenset[Trait]] = frozenset(
        {Trait.GROWN_ALONE, Trait.STATISTICS, Trait.LEAVES}
    )


@dataclass(frozen=True, eq=False, kw_only=True)
class GlobalTrees(SharedTrees):
    """What is new in the global model; other fields as in `SharedTrees`.

    `first`: The model's number of the first of these trees: so many were sent before.
    """

    traits: ClassVar[frozenset[Trait]] = frozenset({Trait.STATISTICS, Trait.LEAVES})

    first: int


@dataclass(frozen=True, eq=False, kw_only=True)
class ClientModels(SharedTrees):
    """Every client's own model, one after the other; other fields as in `SharedTrees`.

    Attributes
    ----------
    base_score : float32 array, shape (m, K)
        One row per model.
    owner : int32 array, shape (m,)
        The number of the client that grew each model.
    trees : int64 array, shape (m,)
        Trees of each model.
    """

    traits: ClassVar[frozenset[Trait]] = frozenset({Trait.STATISTICS, Trait.LEAVES})

    owner: NDArray[np.int32]
    trees: NDArray[np.int64]

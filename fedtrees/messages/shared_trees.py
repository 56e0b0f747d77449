"""Messages of protocols in which clients boost trees on their local rows and share the trees."""

from dataclasses import dataclass
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray

from fedtrees.core.messages import Message, Reveal, Trait


@dataclass(frozen=True, eq=False)
class GrowRequest(Message):
    """Ask a client to grow trees on top of the last model that it received."""

    discloses: ClassVar[frozenset[Reveal]] = frozenset()
    round: int


# A locally grown tree reveals its structure, values of rows as thresholds, and label means.
_GROWN_ALONE = frozenset({Reveal.MODEL, Reveal.THRESHOLDS, Reveal.FEATURES, Reveal.LABELS})


@dataclass(frozen=True, eq=False)
class SharedTrees(Message):
    """Trees in the fields of XGBoost's model files, concatenated.

    Attributes
    ----------
    round : int
        Round in which the trees were grown, from 0.
    sizes : int64 array, shape (T,)
        Number of nodes of each tree. With K classes, K consecutive trees form a group with one tree
        per class.
    feature : int32 array, shape (n_nodes,)
        XGBoost's ``split_indices``, -1 at a leaf.
    threshold : float32 array, shape (n_nodes,)
        ``split_conditions`` of inner nodes: rows with ``x < threshold`` go left. 0 at a leaf. A
        threshold is a value of the rows of the client that grew the tree.
    left : int32 array, shape (n_nodes,)
        ``left_children``, numbered within the tree, -1 at a leaf. The right child is one larger.
    default_left : bool array, shape (n_nodes,)
        Whether rows with a missing value go left.
    value : float32 array, shape (n_nodes,)
        ``split_conditions`` of leaves: their outputs as margins, learning rate included. 0 at an
        inner node.
    base_score : float32 array, shape (K,)
        Base score of the model that the trees belong to, in XGBoost's units (a probability for
        ``binary:logistic``, otherwise margins). If the parameters give no base score, a client
        estimates its first one from its local labels.
    sum_hessian : float32 array, shape (n_nodes,), or None
        Sum of the rows' hessians.
    base_weights : float32 array, shape (n_nodes,), or None
        ``-G / (H + lambda)`` at inner nodes and at a root that is a leaf, and equal to `value` at
        all other leaves.
    loss_changes : float32 array, shape (n_nodes,), or None
        Gains of the splits, 0 at a leaf.
    """

    # Weights and gains together determine the hessians, so that all three are removed together.
    row_statistics: ClassVar[tuple[str, ...]] = ("sum_hessian", "base_weights", "loss_changes")
    leaf_value: ClassVar[str] = "value"
    discloses: ClassVar[frozenset[Reveal]] = _GROWN_ALONE | {Reveal.COUNTS}
    # Clients use values of their local rows as thresholds.
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
        """Counts are revealed only with statistics.

        Weights and gains together determine the hessians.
        """
        statistics = (self.sum_hessian, self.base_weights, self.loss_changes)
        return _GROWN_ALONE if all(k is None for k in statistics) else self.discloses


@dataclass(frozen=True, eq=False)
class ClientTrees(SharedTrees):
    """The trees that a client grew in a round. Empty if the client has no rows.

    The fields are those of `SharedTrees`.
    """

    # The server knows which client grew these trees.
    traits: ClassVar[frozenset[Trait]] = frozenset(
        {Trait.GROWN_ALONE, Trait.STATISTICS, Trait.LEAVES}
    )


@dataclass(frozen=True, eq=False, kw_only=True)
class GlobalTrees(SharedTrees):
    """The new trees of the global model. The other fields are those of `SharedTrees`.

    Attributes
    ----------
    first : int
        Number of the first of these trees in the model. It equals the number of trees that were
        sent before.
    """

    # The trees of all clients, without names.
    traits: ClassVar[frozenset[Trait]] = frozenset({Trait.STATISTICS, Trait.LEAVES})

    first: int


@dataclass(frozen=True, eq=False, kw_only=True)
class ClientModels(SharedTrees):
    """The local models of all clients, concatenated.

    The remaining fields are those of `SharedTrees`.

    Attributes
    ----------
    base_score : float32 array, shape (m, K)
        One row per model.
    owner : int32 array, shape (m,)
        Number of the client that trained each model.
    trees : int64 array, shape (m,)
        Number of trees of each model.
    """

    # The models of all clients, with the number of each client.
    traits: ClassVar[frozenset[Trait]] = frozenset({Trait.STATISTICS, Trait.LEAVES})

    owner: NDArray[np.int32]
    trees: NDArray[np.int64]

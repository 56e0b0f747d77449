"""Messages of the random-forest protocols: leaf predictions, local forests, released forests."""

from dataclasses import dataclass
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray

from fedtrees.core.messages import Message, Reveal, Trait
from fedtrees.messages.models import as_message
from fedtrees.trees.forest.random_forest import RandomForest

_COUNTING = frozenset({Reveal.LABELS, Reveal.COUNTS})


@dataclass(frozen=True, eq=False)
class LeafClasses(Message):
    """Predictions of some leaves.

    Attributes
    ----------
    nodes : int32 array, shape (k,)
        Numbers of the leaves.
    probability : float64 array, shape (k, K)
        Predicted class probabilities.
    counts : int64 array, shape (k, K), or None
        Training rows of each class. None if the protocol or a defense withholds them.
    """

    traits: ClassVar[frozenset[Trait]] = frozenset({Trait.STATISTICS, Trait.LEAVES})
    # The probabilities belong to the model, and only the counts can be removed.
    row_statistics: ClassVar[tuple[str, ...]] = ("counts",)
    leaf_value: ClassVar[str] = "probability"
    discloses: ClassVar[frozenset[Reveal]] = _COUNTING | {Reveal.MODEL}
    tree: int
    nodes: NDArray[np.int32]
    probability: NDArray[np.float64]
    counts: NDArray[np.int64] | None = None

    @property
    def reveals(self) -> frozenset[Reveal]:
        """Labels and counts are revealed only if the message contains counts."""
        return frozenset({Reveal.MODEL}) if self.counts is None else self.discloses


@dataclass(frozen=True, eq=False)
class LocalForestRequest(Message):
    """Ask a client for a forest that it trains on its local rows."""

    discloses: ClassVar[frozenset[Reveal]] = frozenset()


@dataclass(frozen=True, eq=False)
class ForestArrays(Message):
    """A random forest as the arrays of `RandomForest.to_arrays`.

    Attributes
    ----------
    sizes : int64 array, shape (T,)
        Number of nodes of each tree. The node arrays of all trees are concatenated.
    feature : int32 array, shape (n_nodes,)
        Split column, -1 at a leaf.
    threshold : float32 array, shape (n_nodes,)
        Rows with ``x < threshold`` go left.
    left : int32 array, shape (n_nodes,)
        Left child within the tree, -1 at a leaf. The right child is one larger.
    default_left : bool array, shape (n_nodes,)
        Whether rows with a missing value go left.
    probability : float64 array, shape (n_nodes, K)
        Class probabilities, NaN at an inner node.
    counts : int64 array, shape (n_nodes, K), or None
        Training rows of each class. None if the protocol or a defense withholds them.
    """

    leaf_value: ClassVar[str] = "probability"
    discloses: ClassVar[frozenset[Reveal]] = _COUNTING | {Reveal.MODEL, Reveal.THRESHOLDS}
    # Thresholds of locally grown trees are values of rows.
    verbatim: ClassVar[frozenset[str]] = frozenset({"threshold"})
    sizes: NDArray[np.int64]
    feature: NDArray[np.int32]
    threshold: NDArray[np.float32]
    left: NDArray[np.int32]
    default_left: NDArray[np.bool_]
    probability: NDArray[np.float64]
    counts: NDArray[np.int64] | None = None

    @property
    def reveals(self) -> frozenset[Reveal]:
        """Labels and counts are revealed only if the message contains counts."""
        return self.discloses - _COUNTING if self.counts is None else self.discloses


@dataclass(frozen=True, eq=False)
class LocalForest(ForestArrays):
    """A forest that a client trained on its local rows. Its thresholds are values of these rows."""

    # The order of arrival links the trees of a client to the client.
    traits: ClassVar[frozenset[Trait]] = frozenset({Trait.LEAVES, Trait.POOLED})
    # Local cut points are quantiles of the client's columns.
    discloses: ClassVar[frozenset[Reveal]] = ForestArrays.discloses | {Reveal.FEATURES}


@dataclass(frozen=True, eq=False)
class PooledForest(LocalForest):
    """The trees of all clients, in client order."""

    # The pooled forest belongs to all clients, so that it is not the forest of a single client.
    traits: ClassVar[frozenset[Trait]] = frozenset({Trait.LEAVES})


@dataclass(frozen=True, eq=False)
class ForestModel(ForestArrays):
    """A random forest."""

    def model(self) -> RandomForest:
        """Return the forest."""
        return RandomForest.from_arrays(vars(self))


@as_message.register
def _forest(model: RandomForest) -> Message:
    return ForestModel(**model.to_arrays())

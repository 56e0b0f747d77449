"""What random-forest protocols say of leaves and whole forests, and a released one."""

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
    """What some leaves predict.

    Attributes
    ----------
    nodes : int32 array, shape (k,)
    probability : float64 array, shape (k, K)
    counts : int64 array, shape (k, K), or None
        Training rows of each class, where they are shared.
    """

    traits: ClassVar[frozenset[Trait]] = frozenset({Trait.STATISTICS, Trait.LEAVES})
    row_statistics: ClassVar[tuple[str, ...]] = ("counts",)
    leaf_value: ClassVar[str] = "probability"
    discloses: ClassVar[frozenset[Reveal]] = _COUNTING | {Reveal.MODEL}
    tree: int
    nodes: NDArray[np.int32]
    probability: NDArray[np.float64]
    counts: NDArray[np.int64] | None = None

    @property
    def reveals(self) -> frozenset[Reveal]:
        """The model always; labels and counts only with counts."""
        return frozenset({Reveal.MODEL}) if self.counts is None else self.discloses


@dataclass(frozen=True, eq=False)
class LocalForestRequest(Message):
    """Ask a client for a forest grown on its own rows."""

    discloses: ClassVar[frozenset[Reveal]] = frozenset()


@dataclass(frozen=True, eq=False)
class ForestArrays(Message):
    """A random forest as `RandomForest.to_arrays` takes it apart.

    Attributes
    ----------
    sizes : int64 array, shape (T,)
        Nodes of each tree; all else is end to end.
    feature : int32 array, shape (n_nodes,)
    threshold : float32 array, shape (n_nodes,)
    left : int32 array, shape (n_nodes,)
        Left child within the tree, -1 at a leaf; the right one follows it.
    default_left : bool array, shape (n_nodes,)
    probability : float64 array, shape (n_nodes, K)
        Class shares; NaN at an inner node.
    counts : int64 array, shape (n_nodes, K), or None
        Training rows of each class, where they are shared.
    """

    leaf_value: ClassVar[str] = "probability"
    discloses: ClassVar[frozenset[Reveal]] = _COUNTING | {Reveal.MODEL, Reveal.THRESHOLDS}
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
        """Labels and counts only with counts."""
        return self.discloses - _COUNTING if self.counts is None else self.discloses


@dataclass(frozen=True, eq=False)
class LocalForest(ForestArrays):
    """A forest that one client grew alone: its thresholds are values of that client's rows."""

    traits: ClassVar[frozenset[Trait]] = frozenset({Trait.LEAVES, Trait.POOLED})
    discloses: ClassVar[frozenset[Reveal]] = ForestArrays.discloses | {Reveal.FEATURES}


@dataclass(frozen=True, eq=False)
class PooledForest(LocalForest):
    """The trees of all clients, in the order of the clients."""

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

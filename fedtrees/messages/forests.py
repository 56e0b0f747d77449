"""What random-forest protocols say beside `fedtrees.messages.boosting`."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray

from fedtrees.core.messages import Message, Reveal, summable

_COUNTING = frozenset({Reveal.LABELS, Reveal.COUNTS})


@dataclass(frozen=True, eq=False)
class ClassTotalsRequest(Message):
    """Start a tree: ask a client to draw its rows and count their classes."""

    discloses: ClassVar[frozenset[Reveal]] = frozenset()
    tree: int


@dataclass(frozen=True, eq=False)
class ClassTotals(Message):
    """A client's drawn rows of each class, int64, shape (K,); one drawn twice counts twice."""

    discloses: ClassVar[frozenset[Reveal]] = _COUNTING
    tree: int
    counts: NDArray[np.int64] = summable()

    @property
    def series(self) -> str:
        """The tree: its counts are of the same drawn rows."""
        return f"tree {self.tree}"


@dataclass(frozen=True, eq=False)
class ClassCountsRequest(Message):
    """Ask for class counts per bin, of some features at each of some nodes.

    Attributes
    ----------
    tree : int
    nodes : int32 array, shape (k,)
    features : int32 array, shape (p,)
        Of all nodes, one after the other, in the order in which they are tried.
    offsets : int64 array, shape (k + 1,)
        Node j is asked for ``features[offsets[j]:offsets[j + 1]]``.
    """

    discloses: ClassVar[frozenset[Reveal]] = frozenset()
    tree: int
    nodes: NDArray[np.int32]
    features: NDArray[np.int32]
    offsets: NDArray[np.int64]


@dataclass(frozen=True, eq=False)
class ClassCounts(Message):
    """One client's answer to a `ClassCountsRequest`.

    Attributes
    ----------
    tree : int
    nodes : int32 array, shape (k,)
    counts : int64 array, shape (bins of all asked features, K)
        Rows of each class per bin; missing values are in none.
    """

    discloses: ClassVar[frozenset[Reveal]] = _COUNTING | {Reveal.FEATURES}
    tree: int
    nodes: NDArray[np.int32]
    counts: NDArray[np.int64] = summable()

    @property
    def series(self) -> str:
        """The tree: its counts are of the same drawn rows."""
        return f"tree {self.tree}"


@dataclass(frozen=True, eq=False)
class LeafClasses(Message):
    """What some leaves predict.

    Attributes
    ----------
    tree : int
    nodes : int32 array, shape (k,)
    probability : float64 array, shape (k, K)
    counts : int64 array, shape (k, K), or None
        Training rows of each class, where they are shared.
    """

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

    discloses: ClassVar[frozenset[Reveal]] = ForestArrays.discloses | {Reveal.FEATURES}


@dataclass(frozen=True, eq=False)
class PooledForest(LocalForest):
    """The trees of all clients, in the order of the clients."""

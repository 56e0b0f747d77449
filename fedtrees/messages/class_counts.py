"""Class counts for random forests: in the root of a tree, and per bin of requested nodes."""

from dataclasses import dataclass
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray

from fedtrees.core.messages import Message, Reveal, Trait, summable

_COUNTING = frozenset({Reveal.LABELS, Reveal.COUNTS})


@dataclass(frozen=True, eq=False)
class ClassTotalsRequest(Message):
    """Start a tree: ask each client to draw its rows and to count their classes."""

    discloses: ClassVar[frozenset[Reveal]] = frozenset()
    tree: int


@dataclass(frozen=True, eq=False)
class ClassTotals(Message):
    """Number of a client's drawn rows of each class, int64, shape (K,).

    A row that the bootstrap draws twice counts twice.
    """

    # Each row is counted once per draw, which defenses of counts rely on.
    traits: ClassVar[frozenset[Trait]] = frozenset({Trait.SUMMED, Trait.COUNTED})
    discloses: ClassVar[frozenset[Reveal]] = _COUNTING
    tree: int
    counts: NDArray[np.int64] = summable()

    @property
    def series(self) -> str:
        """The tree, because all counts of a tree are over the same drawn rows."""
        return f"tree {self.tree}"


@dataclass(frozen=True, eq=False)
class ClassCountsRequest(Message):
    """Ask for class counts per bin, for some features at each of some nodes.

    Attributes
    ----------
    nodes : int32 array, shape (k,)
        Nodes to count.
    features : int32 array, shape (p,)
        Features of all nodes, concatenated, in the order in which the server tries them.
    offsets : int64 array, shape (k + 1,)
        The features of node j are ``features[offsets[j]:offsets[j + 1]]``.
    """

    discloses: ClassVar[frozenset[Reveal]] = frozenset()
    tree: int
    nodes: NDArray[np.int32]
    features: NDArray[np.int32]
    offsets: NDArray[np.int64]


@dataclass(frozen=True, eq=False)
class ClassCounts(Message):
    """One client's reply to a `ClassCountsRequest`.

    Attributes
    ----------
    nodes : int32 array, shape (k,)
        As in the request.
    counts : int64 array, shape (bins of all requested features, K)
        Number of rows of each class per bin. Missing values are in no bin.
    """

    traits: ClassVar[frozenset[Trait]] = frozenset({Trait.SUMMED, Trait.COUNTED})
    # Counts per bin also reveal the distribution of the column.
    discloses: ClassVar[frozenset[Reveal]] = _COUNTING | {Reveal.FEATURES}
    tree: int
    nodes: NDArray[np.int32]
    counts: NDArray[np.int64] = summable()

    @property
    def series(self) -> str:
        """The tree, because all counts of a tree are over the same drawn rows."""
        return f"tree {self.tree}"

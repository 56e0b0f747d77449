"""Class counts in place of gradient sums: in a tree's root, and per bin where nodes are asked."""

from dataclasses import dataclass
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray

from fedtrees.core.messages import Message, Reveal, Trait, summable

_COUNTING = frozenset({Reveal.LABELS, Reveal.COUNTS})


@dataclass(frozen=True, eq=False)
class ClassTotalsRequest(Message):
    """Start a tree: ask a client to draw its rows and count their classes."""

    discloses: ClassVar[frozenset[Reveal]] = frozenset()
    tree: int


@dataclass(frozen=True, eq=False)
class ClassTotals(Message):
    """A client's drawn rows of each class, int64, shape (K,); one drawn twice counts twice."""

    traits: ClassVar[frozenset[Trait]] = frozenset({Trait.SUMMED, Trait.COUNTED})
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

    `nodes`: int32 array, shape (k,)
    `counts`: int64 array, shape (bins of all asked features, K). Rows of each class per bin;
    missing values are in none.
    """

    traits: ClassVar[frozenset[Trait]] = frozenset({Trait.SUMMED, Trait.COUNTED})
    discloses: ClassVar[frozenset[Reveal]] = _COUNTING | {Reveal.FEATURES}
    tree: int
    nodes: NDArray[np.int32]
    counts: NDArray[np.int64] = summable()

    @property
    def series(self) -> str:
        """The tree: its counts are of the same drawn rows."""
        return f"tree {self.tree}"

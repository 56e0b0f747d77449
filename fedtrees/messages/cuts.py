"""How clients and server settle the cut points that everyone bins with."""

from dataclasses import dataclass
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray

from fedtrees.core.messages import Message, Reveal, Trait, summable
from fedtrees.core.transcript import Transcript


@dataclass(frozen=True, eq=False)
class CutsRequest(Message):
    """Ask a client for what the cut points are made of.

    Attributes
    ----------
    method : {"sketch", "equal-width"}
    """

    discloses: ClassVar[frozenset[Reveal]] = frozenset()

    method: str
    max_bin: int


@dataclass(frozen=True, eq=False)
class FeatureSketch(Message):
    """A client's weighted quantile summary of every feature.

    Attributes
    ----------
    points : float32 array, shape (s,)
        Summary values, ascending within a feature.
    weights : int64 array, shape (s,)
        Rows each point stands for.
    offsets : int32 array, shape (d + 1,)
        Feature f owns ``points[offsets[f]:offsets[f + 1]]``.
    low : float32 array, shape (d,)
        Smallest value of every feature, NaN where all are missing.
    owner : str or None
        Whose it is, where it is passed on; None: its sender's.
    """

    traits: ClassVar[frozenset[Trait]] = frozenset({Trait.SUMMARY})
    discloses: ClassVar[frozenset[Reveal]] = frozenset({Reveal.FEATURES, Reveal.COUNTS})
    verbatim: ClassVar[frozenset[str]] = frozenset({"points", "low"})
    points: NDArray[np.float32]
    weights: NDArray[np.int64]
    offsets: NDArray[np.int32]
    low: NDArray[np.float32]
    owner: str | None = None


@dataclass(frozen=True, eq=False)
class FeatureRanges(Message):
    """A client's smallest and largest value of every feature, float32, shape (d,) each."""

    traits: ClassVar[frozenset[Trait]] = frozenset({Trait.SUMMARY})
    discloses: ClassVar[frozenset[Reveal]] = frozenset({Reveal.FEATURES})
    verbatim: ClassVar[frozenset[str]] = frozenset({"low", "high"})
    low: NDArray[np.float32]
    high: NDArray[np.float32]


@dataclass(frozen=True, eq=False)
class GridRequest(Message):
    """Ask a client how many of its rows are in every cell of a grid.

    Attributes
    ----------
    borders : float32 array, shape (s,)
        Inner borders of the cells, increasing within a feature. A cell holds its lower border; the
        outermost ones go on without end.
    offsets : int32 array, shape (d + 1,)
        Feature f owns ``borders[offsets[f]:offsets[f + 1]]``; without borders it is not counted.
    round : int
        0: a public grid; later ones are laid by earlier sums.
    """

    traits: ClassVar[frozenset[Trait]] = frozenset({Trait.SETTLED})
    discloses: ClassVar[frozenset[Reveal]] = frozenset({Reveal.FEATURES})

    borders: NDArray[np.float32]
    offsets: NDArray[np.int32]
    round: int

    @property
    def reveals(self) -> frozenset[Reveal]:
        """Nothing, of a public grid."""
        return self.discloses if self.round else frozenset()


@dataclass(frozen=True, eq=False)
class GridCounts(Message):
    """How many rows of a client are in every cell of a grid; missing values are in none.

    Attributes
    ----------
    counts : int64 array, shape (cells of all features,)
    features : int
        How many features are counted.
    """

    traits: ClassVar[frozenset[Trait]] = frozenset({Trait.COUNTED})
    discloses: ClassVar[frozenset[Reveal]] = frozenset({Reveal.FEATURES, Reveal.COUNTS})
    features: int
    counts: NDArray[np.int64] = summable()


@dataclass(frozen=True, eq=False)
class CutPoints(Message):
    """The cut points everyone bins with (`fedtrees.trees.binning.Cuts`)."""

    traits: ClassVar[frozenset[Trait]] = frozenset({Trait.SETTLED})
    discloses: ClassVar[frozenset[Reveal]] = frozenset({Reveal.FEATURES})
    verbatim: ClassVar[frozenset[str]] = frozenset({"values", "minimum"})
    values: NDArray[np.float32]
    offsets: NDArray[np.int32]
    minimum: NDArray[np.float32]
    categorical: NDArray[np.bool_] | None = None


#: What may cross while cut points are settled.
CUT_MESSAGES: tuple[type[Message], ...] = (
    CutsRequest, FeatureSketch, FeatureRanges, GridRequest, GridCounts, CutPoints,
)  # fmt: skip

#: Of these, what crosses only where cut points are settled in that way, and when.
SOME_CUT_MESSAGES: dict[type[Message], str] = {
    FeatureRanges: "cuts=equal-width: cut points lie evenly between ends that clients tell",
    GridRequest: "a defense lays grids, on which rows are counted",
    GridCounts: "a defense lays grids, on which rows are counted",
}

#: What is made of a client's columns, for cut points.
SUMMARIES: tuple[type[Message], ...] = (FeatureSketch, FeatureRanges, GridCounts)


def exact_summaries(transcript: Transcript) -> bool:
    """Tell whether summaries of columns crossed without noise, by the ledger of a run."""
    crossed = {type(d.message) for d in transcript}
    noisy = {event.what for event in transcript.events}
    return any(kind in crossed and kind.__name__ not in noisy for kind in SUMMARIES)

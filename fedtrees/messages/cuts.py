"""Messages by which clients and server agree on the cut points of the histograms."""

from dataclasses import dataclass
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray

from fedtrees.core.messages import Message, Reveal, Trait, summable
from fedtrees.core.transcript import Transcript


@dataclass(frozen=True, eq=False)
class CutsRequest(Message):
    """Ask a client for a summary of its columns, from which the server computes cut points.

    Attributes
    ----------
    method : {"sketch", "equal-width"}
        The reply is a `FeatureSketch` or a `FeatureRanges`, respectively.
    max_bin : int
        Largest number of bins per column.
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
        Number of rows that each point represents.
    offsets : int32 array, shape (d + 1,)
        The points of feature f are ``points[offsets[f]:offsets[f + 1]]``.
    low : float32 array, shape (d,)
        Smallest value of every feature, NaN if all values are missing.
    owner : str or None
        Name of the client if the sketch is forwarded. None if it comes from its sender.
    """

    traits: ClassVar[frozenset[Trait]] = frozenset({Trait.SUMMARY})
    discloses: ClassVar[frozenset[Reveal]] = frozenset({Reveal.FEATURES, Reveal.COUNTS})
    # Points of a sketch are values of rows.
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
    # The smallest and the largest value are values of rows.
    verbatim: ClassVar[frozenset[str]] = frozenset({"low", "high"})
    low: NDArray[np.float32]
    high: NDArray[np.float32]


@dataclass(frozen=True, eq=False)
class GridRequest(Message):
    """Ask a client to count its rows in every cell of a grid.

    Attributes
    ----------
    borders : float32 array, shape (s,)
        Inner borders of the cells, increasing within a feature. A cell contains its lower border.
        The two outermost cells are unbounded.
    offsets : int32 array, shape (d + 1,)
        The borders of feature f are ``borders[offsets[f]:offsets[f + 1]]``. A feature without
        borders is not counted.
    round : int
        0 for a public grid. Later grids depend on the counts of earlier rounds.
    """

    # Later grids are sent to all clients and depend on the counts of all rows.
    traits: ClassVar[frozenset[Trait]] = frozenset({Trait.SETTLED})
    discloses: ClassVar[frozenset[Reveal]] = frozenset({Reveal.FEATURES})

    borders: NDArray[np.float32]
    offsets: NDArray[np.int32]
    round: int

    @property
    def reveals(self) -> frozenset[Reveal]:
        """A public grid (round 0) reveals nothing."""
        return self.discloses if self.round else frozenset()


@dataclass(frozen=True, eq=False)
class GridCounts(Message):
    """Number of a client's rows in every cell of a grid. Missing values are in no cell.

    Attributes
    ----------
    counts : int64 array, shape (cells of all features,)
        Counts, feature by feature.
    features : int
        Number of features that are counted.
    """

    # Each row is in at most one cell of a column.
    traits: ClassVar[frozenset[Trait]] = frozenset({Trait.COUNTED})
    discloses: ClassVar[frozenset[Reveal]] = frozenset({Reveal.FEATURES, Reveal.COUNTS})
    # Not summed: the value must be the same in the replies of all clients.
    features: int
    counts: NDArray[np.int64] = summable()


@dataclass(frozen=True, eq=False)
class CutPoints(Message):
    """The cut points that all parties bin with (`fedtrees.trees.binning.Cuts`)."""

    traits: ClassVar[frozenset[Trait]] = frozenset({Trait.SETTLED})
    discloses: ClassVar[frozenset[Reveal]] = frozenset({Reveal.FEATURES})
    # Merged cut points are values of rows of some client.
    verbatim: ClassVar[frozenset[str]] = frozenset({"values", "minimum"})
    values: NDArray[np.float32]
    offsets: NDArray[np.int32]
    minimum: NDArray[np.float32]
    categorical: NDArray[np.bool_] | None = None


#: All messages that may be sent during the agreement on cut points.
CUT_MESSAGES: tuple[type[Message], ...] = (
    CutsRequest, FeatureSketch, FeatureRanges, GridRequest, GridCounts, CutPoints,
)  # fmt: skip

#: Messages among them that only some methods send, with the condition.
SOME_CUT_MESSAGES: dict[type[Message], str] = {
    FeatureRanges: "cuts=equal-width: cut points lie evenly between ends that clients tell",
    GridRequest: "a defense lays grids, on which rows are counted",
    GridCounts: "a defense lays grids, on which rows are counted",
}

#: Replies that a client computes from its columns.
SUMMARIES: tuple[type[Message], ...] = (FeatureSketch, FeatureRanges, GridCounts)


def exact_summaries(transcript: Transcript) -> bool:
    """Return whether a run contains column summaries without noise.

    A type of summary has noise if the transcript's ledger contains a privacy-loss event of that
    name.
    """
    # Noise on a summary is recorded as an event with the name of its message type.
    sent_types = {type(d.message) for d in transcript}
    noisy = {event.what for event in transcript.events}
    return any(kind in sent_types and kind.__name__ not in noisy for kind in SUMMARIES)

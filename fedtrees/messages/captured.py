"""What crossed in the run of a real framework, where the bench's protocols say nothing like it."""

from dataclasses import dataclass, field
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray

from fedtrees.core.messages import Message, Reveal
from fedtrees.messages.cuts import FeatureSketch

_COUNTING = frozenset({Reveal.LABELS, Reveal.COUNTS})


@dataclass(frozen=True, eq=False)
class WireBytes(Message):
    """Bytes as they crossed a connection, not decoded.

    Attributes
    ----------
    link : int
        Number of the connection, in the order of opening.
    door : str
        What was connected to: ``tracker``, ``federated``, or ``peer:PORT``.
    opener : bool
        Whether whoever opened the connection said it.
    data : uint8 array, shape (n,)
    """

    verbatim: ClassVar[frozenset[str]] = frozenset({"data"})
    link: int
    door: str
    opener: bool
    data: NDArray[np.uint8]


@dataclass(frozen=True, eq=False)
class LabelShare(Message):
    """A party's number of rows, and its part of the mean label, for where boosting starts.

    `share`: In float32: the sum of its labels, over the number of rows of all.
    """

    discloses: ClassVar[frozenset[Reveal]] = _COUNTING
    rows: int
    share: float


@dataclass(frozen=True, eq=False)
class Intercept(Message):
    """Where boosting starts: of classes 0 and 1, a probability."""

    discloses: ClassVar[frozenset[Reveal]] = frozenset({Reveal.LABELS})
    value: float


@dataclass(frozen=True, eq=False)
class ColumnSizes(Message):
    """How many values of each column are not missing, int64, shape (d,)."""

    discloses: ClassVar[frozenset[Reveal]] = frozenset({Reveal.COUNTS})
    present: NDArray[np.int64]


@dataclass(frozen=True, eq=False)
class GradientTotals(Message):
    """Sums of gradient and hessian over the root of a tree, float64, shape (2,).

    `parties`: Whose rows they are over, joined by commas.
    """

    discloses: ClassVar[frozenset[Reveal]] = _COUNTING
    tree: int
    sums: NDArray[np.float64]
    parties: str


@dataclass(frozen=True, eq=False)
class HistogramSegment(Message):
    """A run of the numbers of a gradient histogram, summed over some parties.

    Attributes
    ----------
    tree, level : int
    nodes : int
        How many nodes the histogram is of.
    first : int
        Position of the first number in the histogram, shape (nodes, bins, 2).
    sums : float64 array, shape (k,)
    parties : str
        Whose rows they are over, joined by commas.
    """

    discloses: ClassVar[frozenset[Reveal]] = _COUNTING | {Reveal.FEATURES}
    tree: int
    level: int
    nodes: int
    first: int
    sums: NDArray[np.float64]
    parties: str


@dataclass(frozen=True, eq=False)
class RankedSketch(FeatureSketch):
    """A summary whose points tell the least and the most rows before them, as XGBoost sends it.

    Attributes
    ----------
    whole : bool array, shape (d,)
        Whether these ranks leave no row between points: then the points are all values.
    """

    discloses: ClassVar[frozenset[Reveal]] = FeatureSketch.discloses
    verbatim: ClassVar[frozenset[str]] = FeatureSketch.verbatim
    whole: NDArray[np.bool_] = field(kw_only=True)

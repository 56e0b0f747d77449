"""What crossed in the run of a real framework, where the bench's protocols say nothing like it."""

from dataclasses import dataclass, field
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray

from fedtrees.core.messages import Message, Reveal
from fedtrees.messages.boosting import BaseScore, GlobalHistogram
from fedtrees.messages.cuts import CutPoints, FeatureSketch

_COUNTING = frozenset({Reveal.LABELS, Reveal.COUNTS})


@dataclass(frozen=True, eq=False)
class WireBytes(Message):
    """Bytes as they crossed a connection, not decoded.

    `link`: Number of the connection, in the order of opening.
    `door`: What was connected to: ``tracker``, ``federated``, or ``peer:PORT``.
    `opener`: Whether whoever opened the connection said it.
    `data`: uint8 array, shape (n,).
    """

    verbatim: ClassVar[frozenset[str]] = frozenset({"data"})
    link: int
    door: str
    opener: bool
    data: NDArray[np.uint8]


@dataclass(frozen=True, eq=False)
class CollectiveCall(Message):
    """One party's part in a collective operation, as a framework passed it on; not decoded.

    `number, rank, world`: Of the operation, of the party, and of parties.
    `code`: Data type of a sum, or root of a broadcast, as XGBoost numbers them.
    `summed`: Whether what all send is put together by sums.
    `sealed`: Whether the framework says that what is sent is encrypted.
    `sent, answered`: uint8 array, shape (n,).
    """

    verbatim: ClassVar[frozenset[str]] = frozenset({"sent", "answered"})
    number: int
    rank: int
    world: int
    code: int
    summed: bool
    sealed: bool
    sent: NDArray[np.uint8]
    answered: NDArray[np.uint8]


@dataclass(frozen=True, eq=False)
class ModelBytes(Message):
    """A model as a framework sent it, XGBoost's JSON or UBJSON; not decoded. Empty: none yet.

    `data`: uint8 array, shape (n,). `part, parts`: Which of several models that are sent at once.
    `asks`: Whether the server asks for trees on top of it.
    """

    verbatim: ClassVar[frozenset[str]] = frozenset({"data"})
    data: NDArray[np.uint8]
    part: int = 0
    parts: int = 1
    asks: bool = True


@dataclass(frozen=True, eq=False)
class RowCount(Message):
    """A party's number of rows."""

    discloses: ClassVar[frozenset[Reveal]] = frozenset({Reveal.COUNTS})
    rows: int
    owner: str = ""


@dataclass(frozen=True, eq=False)
class LabelShare(Message):
    """A party's number of rows, and its part of the mean label, for where boosting starts.

    `share`: In float32: the sum of its labels, over the number of rows of all.
    """

    discloses: ClassVar[frozenset[Reveal]] = _COUNTING
    rows: int
    share: float
    owner: str = ""


@dataclass(frozen=True, eq=False)
class Intercept(Message):
    """Where boosting starts: of classes 0 and 1, a probability."""

    discloses: ClassVar[frozenset[Reveal]] = frozenset({Reveal.LABELS})
    value: float
    owner: str = ""


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
class EvaluationSums(Message):
    """Two sums that a metric of a round is made of, float64, shape (2,).

    Of a loss its sum and the weight of the rows; of an AUC the area and positives x negatives.

    `parties`: Whose rows they are over, joined by commas.
    """

    discloses: ClassVar[frozenset[Reveal]] = _COUNTING
    round: int
    sums: NDArray[np.float64]
    parties: str


@dataclass(frozen=True, eq=False)
class HistogramSegment(Message):
    """A run of the numbers of a gradient histogram, summed over some parties.

    `nodes`: How many nodes the histogram is of.
    `first`: Position of the first number in the histogram, shape (nodes, bins, 2).
    `sums`: float64 array, shape (k,).
    `parties`: Whose rows they are over, joined by commas.
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

    `whole`: bool array, shape (d,). Whether these ranks leave no row between points: then the
    points are all values.
    """

    discloses: ClassVar[frozenset[Reveal]] = FeatureSketch.discloses
    verbatim: ClassVar[frozenset[str]] = FeatureSketch.verbatim
    whole: NDArray[np.bool_] = field(kw_only=True)


@dataclass(frozen=True, eq=False)
class MergedCuts(CutPoints):
    """Cut points that everybody makes of the sketches of all; each notes them, nothing crosses."""


@dataclass(frozen=True, eq=False)
class AgreedStart(BaseScore):
    """Where everybody starts, as it follows from what all told; noted likewise."""


@dataclass(frozen=True, eq=False)
class MergedHistogram(GlobalHistogram):
    """The sum of a level over all parties, put together of what came; noted likewise."""


@dataclass(frozen=True, eq=False)
class RoundedHistogram(MergedHistogram):
    """The same of sums of float32, of which small ones are no whole units.

    `off`: int64 array, shape (m,). How far from those of rounded rows the sums of each node may be,
    in units; 0: they are the same.
    """

    off: NDArray[np.int64] = field(kw_only=True)


@dataclass(frozen=True, eq=False)
class RowGradients(Message):
    """Gradient and hessian of every row, as whoever has the labels tells them.

    `g, h`: float32 arrays, shape (n,). In the order of the rows.
    """

    discloses: ClassVar[frozenset[Reveal]] = frozenset({Reveal.LABELS})
    verbatim: ClassVar[frozenset[str]] = frozenset({"g", "h"})
    round: int
    g: NDArray[np.float32]
    h: NDArray[np.float32]


@dataclass(frozen=True, eq=False)
class BestSplits(Message):
    """The best split that one party found of every node of a level, whether it is taken or not.

    Attributes
    ----------
    round : int
    node : int32 array, shape (k,)
    feature : int32 array, shape (k,)
        Among all columns, the first party's first.
    threshold : float32 array, shape (k,)
        One of the party's values, but where missing values alone go to one side.
    gain : float32 array, shape (k,)
    left, right : float64 array, shape (k, 2)
        Sums of gradients and hessians.
    owner : str
        The party.
    first, columns : int
        Its first column, and how many it has.
    level : int
        Splits above.
    default_left : bool array, shape (k,)
        Where rows without a value go.
    """

    discloses: ClassVar[frozenset[Reveal]] = _COUNTING | {Reveal.THRESHOLDS}
    verbatim: ClassVar[frozenset[str]] = frozenset({"threshold"})
    round: int
    node: NDArray[np.int32]
    feature: NDArray[np.int32]
    threshold: NDArray[np.float32]
    gain: NDArray[np.float32]
    left: NDArray[np.float64]
    right: NDArray[np.float64]
    owner: str
    first: int
    columns: int
    level: int = 0
    default_left: NDArray[np.bool_] = field(default_factory=lambda: np.zeros(0, np.bool_))


@dataclass(frozen=True, eq=False)
class PartitionBits(Message):
    """Where one party says that rows go at the splits of a level that are by its columns.

    `left`: bool array, shape (n,). Whether a row goes left, at a split of the party's own.
    `missing`: bool array, shape (n,). Whether the party has no value of it, or not the column.
    """

    discloses: ClassVar[frozenset[Reveal]] = frozenset({Reveal.IDS, Reveal.FEATURES})
    round: int
    level: int
    left: NDArray[np.bool_]
    missing: NDArray[np.bool_]
    owner: str

"""What tree protocols say to one another; attacks and defenses read the same words."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray

from fedtrees.core.messages import Message, Reveal, summable

_COUNTING = frozenset({Reveal.LABELS, Reveal.COUNTS})


@dataclass(frozen=True, eq=False)
class CutsRequest(Message):
    """Ask a client for what the cut points are made of.

    Attributes
    ----------
    method : {"sketch", "equal-width"}
    max_bin : int
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
    """

    discloses: ClassVar[frozenset[Reveal]] = frozenset({Reveal.FEATURES, Reveal.COUNTS})
    points: NDArray[np.float32]
    weights: NDArray[np.int64]
    offsets: NDArray[np.int32]
    low: NDArray[np.float32]


@dataclass(frozen=True, eq=False)
class FeatureRanges(Message):
    """A client's smallest and largest value of every feature, float32, shape (d,) each."""

    discloses: ClassVar[frozenset[Reveal]] = frozenset({Reveal.FEATURES})
    low: NDArray[np.float32]
    high: NDArray[np.float32]


@dataclass(frozen=True, eq=False)
class CutPoints(Message):
    """The cut points everyone bins with (`fedtrees.trees.binning.Cuts`)."""

    discloses: ClassVar[frozenset[Reveal]] = frozenset({Reveal.FEATURES})
    values: NDArray[np.float32]
    offsets: NDArray[np.int32]
    minimum: NDArray[np.float32]


@dataclass(frozen=True, eq=False)
class LabelSumsRequest(Message):
    """Ask a client for its number of rows per class."""

    discloses: ClassVar[frozenset[Reveal]] = frozenset()


@dataclass(frozen=True, eq=False)
class LabelSums(Message):
    """Number of rows per class, int64, shape (n_classes,)."""

    discloses: ClassVar[frozenset[Reveal]] = _COUNTING
    counts: NDArray[np.int64] = summable()


@dataclass(frozen=True, eq=False)
class BaseScore(Message):
    """The probability every prediction starts from."""

    discloses: ClassVar[frozenset[Reveal]] = frozenset({Reveal.LABELS})
    value: float


@dataclass(frozen=True, eq=False)
class HistogramRequest(Message):
    """Ask for the gradient histograms of some nodes of a tree.

    Attributes
    ----------
    tree : int
    nodes : int32 array, shape (k,)
    """

    discloses: ClassVar[frozenset[Reveal]] = frozenset()

    tree: int
    nodes: NDArray[np.int32]


@dataclass(frozen=True, eq=False)
class Histogram(Message):
    """One client's gradient sums per bin.

    Attributes
    ----------
    tree : int
    nodes : int32 array, shape (k,)
    sums : int64 array, shape (k, total_bins, 2)
        Fixed-point sums of gradient and hessian.
    totals : int64 array, shape (k, 2)
        The same over all rows of each node, missing values included. Sent for a root only;
        shape (0, 2) otherwise, where a split has already fixed them.
    """

    discloses: ClassVar[frozenset[Reveal]] = _COUNTING | {Reveal.FEATURES}
    tree: int
    nodes: NDArray[np.int32]
    sums: NDArray[np.int64] = summable()
    totals: NDArray[np.int64] = summable()


@dataclass(frozen=True, eq=False)
class GlobalHistogram(Message):
    """The sum of all clients' histograms, sent back to every client; fields as in `Histogram`."""

    discloses: ClassVar[frozenset[Reveal]] = _COUNTING | {Reveal.FEATURES}
    tree: int
    nodes: NDArray[np.int32]
    sums: NDArray[np.int64]
    totals: NDArray[np.int64]


@dataclass(frozen=True, eq=False)
class NodeSplits(Message):
    """The chosen splits of some nodes, with the statistics behind them where they are shared.

    Attributes
    ----------
    tree : int
    nodes : int32 array, shape (k,)
    feature : int32 array, shape (k,)
    bin : int32 array, shape (k,)
        Rows up to this bin go left.
    threshold : float32 array, shape (k,)
        The same as a value: ``x < threshold`` goes left.
    default_left : bool array, shape (k,)
    left : int32 array, shape (k,)
        Number of the left child; the right one follows it.
    g, h : float64 array, shape (k,), or None
        Sums of gradients and hessians over the node.
    gain : float32 array, shape (k,), or None
    """

    discloses: ClassVar[frozenset[Reveal]] = _COUNTING | {Reveal.THRESHOLDS}
    tree: int
    nodes: NDArray[np.int32]
    feature: NDArray[np.int32]
    bin: NDArray[np.int32]
    threshold: NDArray[np.float32]
    default_left: NDArray[np.bool_]
    left: NDArray[np.int32]
    g: NDArray[np.float64] | None = None
    h: NDArray[np.float64] | None = None
    gain: NDArray[np.float32] | None = None

    @property
    def reveals(self) -> frozenset[Reveal]:
        """Thresholds always; labels and counts only with statistics."""
        bare = self.g is None and self.h is None and self.gain is None
        return frozenset({Reveal.THRESHOLDS}) if bare else self.discloses


@dataclass(frozen=True, eq=False)
class LeafValues(Message):
    """The values of some leaves, with the statistics behind them where they are shared.

    Attributes
    ----------
    tree : int
    nodes : int32 array, shape (k,)
    value : float32 array, shape (k,)
        Log-odds, learning rate included.
    g, h : float64 array, shape (k,), or None
    """

    discloses: ClassVar[frozenset[Reveal]] = _COUNTING | {Reveal.MODEL}
    tree: int
    nodes: NDArray[np.int32]
    value: NDArray[np.float32]
    g: NDArray[np.float64] | None = None
    h: NDArray[np.float64] | None = None

    @property
    def reveals(self) -> frozenset[Reveal]:
        """The model always; labels and counts only with statistics."""
        return frozenset({Reveal.MODEL}) if self.g is None and self.h is None else self.discloses

"""What boosting from gradient sums says: starts, histograms, splits, leaf values."""

from dataclasses import dataclass
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray

from fedtrees.core.messages import Message, Reveal, Trait, summable

_COUNTING = frozenset({Reveal.LABELS, Reveal.COUNTS})


@dataclass(frozen=True, eq=False)
class LabelSumsRequest(Message):
    """Ask a client for what the start of boosting is made of."""

    discloses: ClassVar[frozenset[Reveal]] = frozenset()


@dataclass(frozen=True, eq=False)
class LabelSums(Message):
    """A client's number of rows, and its labels in sum.

    `sums`: float64 array, shape (m,). `Objective.target_sums`: the number of rows, then the weight
    of each class, or the sums of ``w``, ``w y`` and ``w y^2``.
    """

    traits: ClassVar[frozenset[Trait]] = frozenset({Trait.SUMMED_SECURELY, Trait.LABELS_COUNTED})
    discloses: ClassVar[frozenset[Reveal]] = _COUNTING
    sums: NDArray[np.float64] = summable()


@dataclass(frozen=True, eq=False)
class BaseScore(Message):
    """Where every prediction starts, and the units gradients are summed in.

    `margin`: float32 array, shape (K,). For two classes the log-odds of class 1.
    `g_bits, h_bits`: Binary places of the gradients and of the hessians.
    """

    traits: ClassVar[frozenset[Trait]] = frozenset({Trait.START})
    discloses: ClassVar[frozenset[Reveal]] = frozenset({Reveal.LABELS})
    margin: NDArray[np.float32]
    g_bits: int = 30
    h_bits: int = 30


@dataclass(frozen=True, eq=False)
class HistogramRequest(Message):
    """Ask for the gradient histograms of some nodes of a tree.

    Attributes
    ----------
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
    nodes : int32 array, shape (k,)
    sums : int64 array, shape (k, total_bins, 2)
        Fixed-point sums of gradient and hessian.
    totals : int64 array, shape (k, 2)
        The same over all rows of each node, missing values included. Sent for a root only;
        shape (0, 2) otherwise, where a split has already fixed them.
    g_bits, h_bits : int
        Binary places of gradients and hessians.
    """

    traits: ClassVar[frozenset[Trait]] = frozenset({Trait.SUMMED, Trait.GRADIENTS})
    discloses: ClassVar[frozenset[Reveal]] = _COUNTING | {Reveal.FEATURES}
    tree: int
    nodes: NDArray[np.int32]
    sums: NDArray[np.int64] = summable()
    totals: NDArray[np.int64] = summable()
    g_bits: int = 30
    h_bits: int = 30

    @property
    def bits(self) -> tuple[int, int]:
        """Binary places of gradients and hessians."""
        return self.g_bits, self.h_bits

    def unit_of(self, field: str) -> tuple[NDArray[np.float64], bool]:
        """Return the units of gradients and hessians."""
        return np.ldexp(1.0, self.bits), True

    @property
    def series(self) -> str:
        """The tree: a child's sums are taken from its parent's."""
        return f"tree {self.tree}"


@dataclass(frozen=True, eq=False)
class LeafSumsRequest(Message):
    """Ask for the gradient sums of a tree's leaves; its splits were told.

    `nodes`: int32 array, shape (k,). All leaves, from left to right.
    """

    discloses: ClassVar[frozenset[Reveal]] = frozenset()
    tree: int
    nodes: NDArray[np.int32]


@dataclass(frozen=True, eq=False)
class LeafSums(Message):
    """One client's gradient sums in the leaves of a tree.

    `sums`: int64 array, shape (k, 2). Fixed-point sums of gradient and hessian, with a share of the
    noise where clients add it.
    """

    traits: ClassVar[frozenset[Trait]] = frozenset({Trait.SUMMED})
    discloses: ClassVar[frozenset[Reveal]] = _COUNTING | {Reveal.FEATURES}
    tree: int
    sums: NDArray[np.int64] = summable()


@dataclass(frozen=True, eq=False)
class GlobalHistogram(Message):
    """The sum of all clients' histograms, sent back to every client.

    Attributes
    ----------
    tree, nodes, sums, totals, g_bits, h_bits
        As in `Histogram`.
    allowed : bool array, shape (waiting nodes, total_bins), or None
        Splits that may be chosen, where columns are sampled or a defense restricts them.
    """

    discloses: ClassVar[frozenset[Reveal]] = _COUNTING | {Reveal.FEATURES}
    tree: int
    nodes: NDArray[np.int32]
    sums: NDArray[np.int64]
    totals: NDArray[np.int64]
    g_bits: int = 30
    h_bits: int = 30
    allowed: NDArray[np.bool_] | None = None

    @property
    def bits(self) -> tuple[int, int]:
        """Binary places of gradients and hessians."""
        return self.g_bits, self.h_bits

    def unit_of(self, field: str) -> tuple[NDArray[np.float64], bool]:
        """Return the units of gradients and hessians."""
        return np.ldexp(1.0, self.bits), True


@dataclass(frozen=True, eq=False)
class ValidationRequest(Message):
    """Ask a client how well the model does on the rows it holds out."""

    discloses: ClassVar[frozenset[Reveal]] = frozenset()

    round: int


@dataclass(frozen=True, eq=False)
class ValidationLoss(Message):
    """A client's loss over the rows it holds out, after some round.

    `sums`: float64 array, shape (2,). The loss over these rows (nats, or squared target units, in
    steps of 2^-20), and their number.
    """

    traits: ClassVar[frozenset[Trait]] = frozenset({Trait.SUMMED_SECURELY})
    discloses: ClassVar[frozenset[Reveal]] = _COUNTING
    round: int
    sums: NDArray[np.float64] = summable()


@dataclass(frozen=True, eq=False)
class StopBoosting(Message):
    """Tell the clients that the model ends with the first `rounds` rounds."""

    traits: ClassVar[frozenset[Trait]] = frozenset({Trait.SETTLED})
    discloses: ClassVar[frozenset[Reveal]] = frozenset({Reveal.LABELS})

    rounds: int


@dataclass(frozen=True, eq=False)
class NodeSplits(Message):
    """The chosen splits of some nodes, with the statistics behind them where they are shared.

    Attributes
    ----------
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
    categories : bool array, shape (k, width), or None
        Where the threshold is NaN: the categories that go right, by code.
    """

    traits: ClassVar[frozenset[Trait]] = frozenset({Trait.STATISTICS})
    row_statistics: ClassVar[tuple[str, ...]] = ("g", "h", "gain")
    discloses: ClassVar[frozenset[Reveal]] = _COUNTING | {Reveal.THRESHOLDS}
    verbatim: ClassVar[frozenset[str]] = frozenset({"threshold"})
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
    categories: NDArray[np.bool_] | None = None

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
    nodes : int32 array, shape (k,)
    value : float32 array, shape (k,)
        In units of the margin, learning rate included.
    g, h : float64 array, shape (k,), or None
    """

    traits: ClassVar[frozenset[Trait]] = frozenset({Trait.STATISTICS, Trait.LEAVES})
    row_statistics: ClassVar[tuple[str, ...]] = ("g", "h")
    leaf_value: ClassVar[str] = "value"
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

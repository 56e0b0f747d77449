"""Messages of boosting from gradient sums: initial prediction, histograms, splits, leaf values."""

from dataclasses import dataclass
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray

from fedtrees.core.messages import Message, Reveal, Trait, summable

# Sums of gradients and hessians reveal labels and numbers of rows.
_COUNTING = frozenset({Reveal.LABELS, Reveal.COUNTS})


@dataclass(frozen=True, eq=False)
class LabelSumsRequest(Message):
    """Ask a client for label sums, from which the server computes the initial prediction."""

    discloses: ClassVar[frozenset[Reveal]] = frozenset()


@dataclass(frozen=True, eq=False)
class LabelSums(Message):
    """A client's number of rows and sums of its labels.

    Attributes
    ----------
    sums : float64 array, shape (m,)
        Result of `Objective.target_sums`: the number of rows, followed by the weight of each class
        or by the sums of ``w``, ``w y`` and ``w y^2``.
    """

    # Label sums are always summed securely by the protocol, without any defense.
    traits: ClassVar[frozenset[Trait]] = frozenset({Trait.SUMMED_SECURELY, Trait.LABELS_COUNTED})
    discloses: ClassVar[frozenset[Reveal]] = _COUNTING
    sums: NDArray[np.float64] = summable()


@dataclass(frozen=True, eq=False)
class BaseScore(Message):
    """Initial prediction of every row, and the fixed-point units of gradient sums.

    Attributes
    ----------
    margin : float32 array, shape (K,)
        For two classes the log-odds of class 1.
    g_bits, h_bits : int
        Binary places of gradients and hessians.
    """

    # Without a fixed base score, the initial prediction follows from the label sums.
    traits: ClassVar[frozenset[Trait]] = frozenset({Trait.START})
    # The initial prediction is the mean label if no base score is given.
    discloses: ClassVar[frozenset[Reveal]] = frozenset({Reveal.LABELS})
    margin: NDArray[np.float32]
    g_bits: int = 30
    h_bits: int = 30


@dataclass(frozen=True, eq=False)
class HistogramRequest(Message):
    """Ask a client for the gradient histograms of some nodes of a tree (`nodes`, int32)."""

    discloses: ClassVar[frozenset[Reveal]] = frozenset()

    tree: int
    nodes: NDArray[np.int32]


@dataclass(frozen=True, eq=False)
class Histogram(Message):
    """One client's gradient sums per bin.

    Attributes
    ----------
    nodes : int32 array, shape (k,)
        The requested nodes.
    sums : int64 array, shape (k, total_bins, 2)
        Fixed-point sums of gradient and hessian.
    totals : int64 array, shape (k, 2)
        Sums over all rows of each node, including rows with missing values. Sent for a root only.
        The shape is (0, 2) for all other nodes, because the split of the parent determines their
        totals.
    g_bits, h_bits : int
        Binary places of gradients and hessians.
    """

    # Defenses of summed replies and of gradient sums act on this message.
    traits: ClassVar[frozenset[Trait]] = frozenset({Trait.SUMMED, Trait.GRADIENTS})
    discloses: ClassVar[frozenset[Reveal]] = _COUNTING | {Reveal.FEATURES}
    tree: int
    nodes: NDArray[np.int32]
    sums: NDArray[np.int64] = summable()
    totals: NDArray[np.int64] = summable()
    # `FIXED_POINT_BITS`, the units of losses with bounded gradients.
    g_bits: int = 30
    h_bits: int = 30

    @property
    def bits(self) -> tuple[int, int]:
        """Binary places of gradients and hessians."""
        return self.g_bits, self.h_bits

    def unit_of(self, field: str) -> tuple[NDArray[np.float64], bool]:
        """Return how many units make 1, for gradient and hessian, and that sums are integers."""
        return np.ldexp(1.0, self.bits), True

    @property
    def series(self) -> str:
        """The tree, because the sums of a child are subtracted from those of its parent."""
        return f"tree {self.tree}"


@dataclass(frozen=True, eq=False)
class LeafSumsRequest(Message):
    """Ask a client for the gradient sums of a tree's leaves, after its splits were announced.

    `nodes` contains all leaves from left to right, int32.
    """

    discloses: ClassVar[frozenset[Reveal]] = frozenset()
    tree: int
    nodes: NDArray[np.int32]


@dataclass(frozen=True, eq=False)
class LeafSums(Message):
    """One client's gradient sums in the leaves of a tree.

    Attributes
    ----------
    sums : int64 array, shape (k, 2)
        Fixed-point sums of gradient and hessian. They include a share of the noise if clients add
        the noise.
    """

    # Leaf sums are the only statistics that `dp-gbdt` requests.
    traits: ClassVar[frozenset[Trait]] = frozenset({Trait.SUMMED})
    discloses: ClassVar[frozenset[Reveal]] = _COUNTING | {Reveal.FEATURES}
    tree: int
    sums: NDArray[np.int64] = summable()


@dataclass(frozen=True, eq=False)
class GlobalHistogram(Message):
    """The sum of all clients' histograms, which the server sends back to every client.

    Attributes
    ----------
    tree, nodes, sums, totals, g_bits, h_bits
        As in `Histogram`.
    allowed : bool array, shape (open nodes, total_bins), or None
        Splits that may be chosen. None if columns are not sampled and no defense restricts splits.
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
        """Return how many units make 1, for gradient and hessian, and that sums are integers."""
        return np.ldexp(1.0, self.bits), True


@dataclass(frozen=True, eq=False)
class ValidationRequest(Message):
    """Ask a client for the loss of the model on the client's validation rows."""

    discloses: ClassVar[frozenset[Reveal]] = frozenset()

    round: int


@dataclass(frozen=True, eq=False)
class ValidationLoss(Message):
    """A client's loss over its validation rows after a round.

    Attributes
    ----------
    sums : float64 array, shape (2,)
        Sum of the loss over these rows (nats, or squared target units, in steps of 2^-20), and
        their number.
    """

    # Losses are always summed securely by the protocol, without any defense.
    traits: ClassVar[frozenset[Trait]] = frozenset({Trait.SUMMED_SECURELY})
    discloses: ClassVar[frozenset[Reveal]] = _COUNTING
    round: int
    sums: NDArray[np.float64] = summable()


@dataclass(frozen=True, eq=False)
class StopBoosting(Message):
    """Announce to the clients that the model consists of the first `rounds` rounds."""

    traits: ClassVar[frozenset[Trait]] = frozenset({Trait.SETTLED})
    # The best round depends on the labels of the validation rows.
    discloses: ClassVar[frozenset[Reveal]] = frozenset({Reveal.LABELS})

    rounds: int


@dataclass(frozen=True, eq=False)
class NodeSplits(Message):
    """The chosen splits of some nodes, and optionally the statistics that they were computed from.

    Attributes
    ----------
    nodes : int32 array, shape (k,)
        Numbers of the nodes.
    feature : int32 array, shape (k,)
        Split columns.
    bin : int32 array, shape (k,)
        Rows in this bin or a lower one go left.
    threshold : float32 array, shape (k,)
        The same border as a value: rows with ``x < threshold`` go left.
    default_left : bool array, shape (k,)
        Whether rows with a missing value go left.
    left : int32 array, shape (k,)
        Number of the left child. The number of the right child is one larger.
    g, h : float64 array, shape (k,), or None
        Sums of gradients and hessians over the node. None if the protocol or a defense withholds
        them.
    gain : float32 array, shape (k,), or None
        Loss reduction of the split.
    categories : bool array, shape (k, width), or None
        At nodes whose threshold is NaN: the category codes that go right.
    """

    traits: ClassVar[frozenset[Trait]] = frozenset({Trait.STATISTICS})
    # Defenses such as `split-only` remove exactly these fields.
    row_statistics: ClassVar[tuple[str, ...]] = ("g", "h", "gain")
    discloses: ClassVar[frozenset[Reveal]] = _COUNTING | {Reveal.THRESHOLDS}
    # A threshold is a cut point, which can be a value of a row.
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
        """Labels and counts are revealed only if the message contains statistics."""
        bare = self.g is None and self.h is None and self.gain is None
        return frozenset({Reveal.THRESHOLDS}) if bare else self.discloses


@dataclass(frozen=True, eq=False)
class LeafValues(Message):
    """The values of some leaves, and optionally the statistics that they were computed from.

    Attributes
    ----------
    nodes : int32 array, shape (k,)
        Numbers of the leaves.
    value : float32 array, shape (k,)
        In units of the margin, learning rate included.
    g, h : float64 array, shape (k,), or None
        Sums of gradients and hessians over the leaf. None if they are withheld.
    """

    traits: ClassVar[frozenset[Trait]] = frozenset({Trait.STATISTICS, Trait.LEAVES})
    # The leaf value itself belongs to the model, and only its statistics can be removed.
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
        """Labels and counts are revealed only if the message contains statistics."""
        return frozenset({Reveal.MODEL}) if self.g is None and self.h is None else self.discloses

"""Messages of horizontal boosting.

There are three groups: messages by which clients and server agree on cut points, messages of
trainings from gradient sums (initial prediction, histograms, splits, leaf values), and messages of
protocols in which clients grow trees locally and share them.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from fedtrees.core.messages import Message, Request, Reveal, Trait, message, summable
from fedtrees.core.transcript import Transcript
from fedtrees.trees.binning import Cuts

# Sums of gradients and hessians reveal labels and numbers of rows.
_COUNTING = frozenset({Reveal.LABELS, Reveal.COUNTS})


@message()
class LabelSumsRequest(Request["LabelSums"]):
    """Ask a client for label sums, from which the server computes the initial prediction."""


# Label sums are always summed securely by the protocol, without any defense.
@message(discloses=_COUNTING, traits={Trait.SUMMED_SECURELY, Trait.LABELS_COUNTED})
class LabelSums(Message):
    """A client's number of rows and sums of its labels.

    Attributes
    ----------
    sums : float64 array, shape (m,)
        Result of `Objective.target_sums`: the number of rows, followed by the weight of each class
        or by the sums of ``w``, ``w y`` and ``w y^2``.
    """

    sums: NDArray[np.float64] = summable()


# Without a fixed base score, the initial prediction follows from the label sums.
# The initial prediction is the mean label if no base score is given.
@message(discloses={Reveal.LABELS}, traits={Trait.START})
class BaseScore(Message):
    """Initial prediction of every row, and the fixed-point units of gradient sums.

    Attributes
    ----------
    margin : float32 array, shape (K,)
        For two classes the log-odds of class 1.
    g_bits, h_bits : int
        Binary places of gradients and hessians.
    """

    margin: NDArray[np.float32]
    g_bits: int = 30
    h_bits: int = 30


@message()
class HistogramRequest(Request["Histogram"]):
    """Ask a client for the gradient histograms of some nodes of a tree.

    Attributes
    ----------
    tree : int
        Number of the tree, from 0.
    nodes : int32 array, shape (k,)
        Numbers of the nodes within the tree.
    """

    tree: int
    nodes: NDArray[np.int32]


# Defenses of summed replies and of gradient sums act on this message.
@message(discloses=_COUNTING | {Reveal.FEATURES}, traits={Trait.SUMMED, Trait.GRADIENTS})
class Histogram(Message):
    """One client's gradient sums per bin.

    Attributes
    ----------
    tree : int
        Number of the tree, from 0.
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
        """Return the unit of the sums and totals.

        Parameters
        ----------
        field : str
            Name of a field. Both fields have the same units.

        Returns
        -------
        units : float64 array, shape (2,)
            Number of units that make 1, for gradient and hessian: 2^bits.
        integers : bool
            True, because the sums are integers.
        """
        return np.ldexp(1.0, self.bits), True

    @property
    def series(self) -> str:
        """The tree, because the sums of a child are subtracted from those of its parent."""
        return f"tree {self.tree}"


@message()
class LeafSumsRequest(Request["LeafSums"]):
    """Ask a client for the gradient sums of a tree's leaves, after its splits were announced.

    Attributes
    ----------
    tree : int
        Number of the tree, from 0.
    nodes : int32 array, shape (k,)
        All leaves of the tree from left to right.
    """

    tree: int
    nodes: NDArray[np.int32]


# Leaf sums are the only statistics that `dp-gbdt` requests.
@message(discloses=_COUNTING | {Reveal.FEATURES}, traits={Trait.SUMMED})
class LeafSums(Message):
    """One client's gradient sums in the leaves of a tree.

    Attributes
    ----------
    tree : int
        Number of the tree, from 0.
    sums : int64 array, shape (k, 2)
        Fixed-point sums of gradient and hessian. They include a share of the noise if clients add
        the noise.
    """

    tree: int
    sums: NDArray[np.int64] = summable()


@message(discloses=_COUNTING | {Reveal.FEATURES})
class GlobalHistogram(Message):
    """The sum of all clients' histograms, which the server sends back to every client.

    Attributes
    ----------
    tree : int
        Number of the tree, from 0.
    nodes : int32 array, shape (k,)
        Numbers of the nodes within the tree.
    sums : int64 array, shape (k, total_bins, 2)
        Fixed-point sums of gradient and hessian over all clients.
    totals : int64 array, shape (k, 2)
        Sums over all rows of a root, including rows with missing values. The shape is (0, 2) for
        all other nodes.
    g_bits, h_bits : int
        Binary places of gradients and hessians.
    allowed : bool array, shape (open nodes, total_bins), or None
        Splits that may be chosen. None if columns are not sampled and no defense restricts splits.
    """

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
        """Return the unit of the sums and totals.

        Parameters
        ----------
        field : str
            Name of a field. Both fields have the same units.

        Returns
        -------
        units : float64 array, shape (2,)
            Number of units that make 1, for gradient and hessian: 2^bits.
        integers : bool
            True, because the sums are integers.
        """
        return np.ldexp(1.0, self.bits), True


@message()
class ValidationRequest(Request["ValidationLoss"]):
    """Ask a client for the loss of the model on the client's validation rows.

    Attributes
    ----------
    round : int
        Number of the last round of the model, from 0.
    """

    round: int


# Losses are always summed securely by the protocol, without any defense.
@message(discloses=_COUNTING, traits={Trait.SUMMED_SECURELY})
class ValidationLoss(Message):
    """A client's loss over its validation rows after a round.

    Attributes
    ----------
    round : int
        Number of the last round of the model, from 0.
    sums : float64 array, shape (2,)
        Sum of the loss over these rows (nats, or squared target units, in steps of 2^-20), and
        their number.
    """

    round: int
    sums: NDArray[np.float64] = summable()


# The best round depends on the labels of the validation rows.
@message(discloses={Reveal.LABELS}, traits={Trait.ANNOUNCED})
class StopBoosting(Message):
    """Announce to the clients that the model consists of the first `rounds` rounds.

    Attributes
    ----------
    rounds : int
        Number of rounds up to the one with the smallest validation loss.
    """

    rounds: int


# Defenses such as `split-only` remove exactly these fields.
# A threshold is a cut point, which can be a value of a row.
@message(
    discloses=_COUNTING | {Reveal.THRESHOLDS},
    traits={Trait.STATISTICS},
    verbatim={"threshold"},
    row_statistics=("g", "h", "gain"),
)
class NodeSplits(Message):
    """The chosen splits of some nodes, and optionally the statistics that they were computed from.

    Attributes
    ----------
    tree : int
        Number of the tree, from 0.
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


# The leaf value itself belongs to the model, and only its statistics can be removed.
@message(
    discloses=_COUNTING | {Reveal.MODEL},
    traits={Trait.STATISTICS, Trait.LEAVES},
    row_statistics=("g", "h"),
    leaf_value="value",
)
class LeafValues(Message):
    """The values of some leaves, and optionally the statistics that they were computed from.

    Attributes
    ----------
    tree : int
        Number of the tree, from 0.
    nodes : int32 array, shape (k,)
        Numbers of the leaves.
    value : float32 array, shape (k,)
        In units of the margin, learning rate included.
    g, h : float64 array, shape (k,), or None
        Sums of gradients and hessians over the leaf. None if they are withheld.
    """

    tree: int
    nodes: NDArray[np.int32]
    value: NDArray[np.float32]
    g: NDArray[np.float64] | None = None
    h: NDArray[np.float64] | None = None

    @property
    def reveals(self) -> frozenset[Reveal]:
        """Labels and counts are revealed only if the message contains statistics."""
        return frozenset({Reveal.MODEL}) if self.g is None and self.h is None else self.discloses


@message()
class CutsRequest(Request[Message]):
    """Ask a client for a summary of its columns, from which the server computes cut points.

    Attributes
    ----------
    method : {"sketch", "equal-width"}
        The reply is a `FeatureSketch` or a `FeatureRanges`, respectively.
    max_bin : int
        Largest number of bins per column.
    """

    method: str
    max_bin: int


# Points of a sketch are values of rows.
@message(
    discloses={Reveal.FEATURES, Reveal.COUNTS}, traits={Trait.SUMMARY}, verbatim={"points", "low"}
)
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

    points: NDArray[np.float32]
    weights: NDArray[np.int64]
    offsets: NDArray[np.int32]
    low: NDArray[np.float32]
    owner: str | None = None


# The smallest and the largest value are values of rows.
@message(discloses={Reveal.FEATURES}, traits={Trait.SUMMARY}, verbatim={"low", "high"})
class FeatureRanges(Message):
    """A client's smallest and largest value of every feature, without missing values.

    Attributes
    ----------
    low, high : float32 array, shape (d,)
        Smallest and largest value.
    """

    low: NDArray[np.float32]
    high: NDArray[np.float32]


# Later grids are sent to all clients and depend on the counts of all rows.
@message(discloses={Reveal.FEATURES}, traits={Trait.ANNOUNCED})
class GridRequest(Request["GridCounts"]):
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

    borders: NDArray[np.float32]
    offsets: NDArray[np.int32]
    round: int

    @property
    def reveals(self) -> frozenset[Reveal]:
        """A public grid (round 0) reveals nothing."""
        return self.discloses if self.round else frozenset()


# Each row is in at most one cell of a column.
@message(discloses={Reveal.FEATURES, Reveal.COUNTS}, traits={Trait.COUNTED})
class GridCounts(Message):
    """Number of a client's rows in every cell of a grid. Missing values are in no cell.

    Attributes
    ----------
    counts : int64 array, shape (cells of all features,)
        Counts, feature by feature.
    features : int
        Number of features that are counted.
    """

    # Not summed: the value must be the same in the replies of all clients.
    features: int
    counts: NDArray[np.int64] = summable()


# Merged cut points are values of rows of some client.
@message(discloses={Reveal.FEATURES}, traits={Trait.ANNOUNCED}, verbatim={"values", "minimum"})
class CutPoints(Message):
    """The cut points that all parties bin with (`fedtrees.trees.binning.Cuts`).

    Attributes
    ----------
    values : float32 array, shape (total_bins,)
        Upper border of every bin, increasing within a feature.
    offsets : int32 array, shape (d + 1,)
        The borders of feature f are ``values[offsets[f]:offsets[f + 1]]``.
    minimum : float32 array, shape (d,)
        A threshold below every value of each feature, which separates present from missing values.
    categorical : bool array, shape (d,), or None
        Features that are split by sets of categories, with one bin per category. None if all
        features are split by thresholds.
    """

    values: NDArray[np.float32]
    offsets: NDArray[np.int32]
    minimum: NDArray[np.float32]
    categorical: NDArray[np.bool_] | None = None

    def to_cuts(self) -> Cuts:
        """Return the cut points in the form that rows are binned with."""
        return Cuts(self.values, self.offsets, self.minimum, self.categorical)


#: All messages that may be sent during the agreement on cut points.
CUT_MESSAGES: tuple[type[Message], ...] = (
    CutsRequest, FeatureSketch, FeatureRanges, GridRequest, GridCounts, CutPoints,
)  # fmt: skip

#: Messages among them that only some methods send, with the condition.
SOME_CUT_MESSAGES: dict[type[Message], str] = {
    FeatureRanges: "cuts=equal-width: cut points are equidistant between announced ends",
    GridRequest: "a defense lays grids, on which rows are counted",
    GridCounts: "a defense lays grids, on which rows are counted",
}

#: Replies that a client computes from its columns.
SUMMARIES: tuple[type[Message], ...] = (FeatureSketch, FeatureRanges, GridCounts)


def exact_summaries(transcript: Transcript) -> bool:
    """Return whether a run contains column summaries without noise.

    A type of summary has noise if the transcript's ledger contains a privacy-loss event of that
    name.

    Parameters
    ----------
    transcript : Transcript
        Messages and privacy-loss events of a run.

    Returns
    -------
    bool
        True if any message of `SUMMARIES` was sent whose type has no event.
    """
    # Noise on a summary is recorded as an event with the name of its message type.
    sent_types = {type(d.message) for d in transcript}
    noisy = {event.what for event in transcript.events}
    return any(kind in sent_types and kind.__name__ not in noisy for kind in SUMMARIES)


@message()
class GrowRequest(Request[Message]):
    """Ask a client to grow trees on top of the last model that it received.

    Attributes
    ----------
    round : int
        Number of the round, from 0.
    """

    round: int


# A locally grown tree reveals its structure, values of rows as thresholds, and label means.
_GROWN_ALONE = frozenset({Reveal.MODEL, Reveal.THRESHOLDS, Reveal.FEATURES, Reveal.LABELS})


# Weights and gains together determine the hessians, so that all three are removed together.
# Clients use values of their local rows as thresholds.
@message(
    discloses=_GROWN_ALONE | {Reveal.COUNTS},
    verbatim={"threshold"},
    row_statistics=("sum_hessian", "base_weights", "loss_changes"),
    leaf_value="value",
)
class SharedTrees(Message):
    """Trees in the fields of XGBoost's model files, concatenated.

    Attributes
    ----------
    round : int
        Round in which the trees were grown, from 0.
    sizes : int64 array, shape (T,)
        Number of nodes of each tree. With K classes, K consecutive trees form a group with one tree
        per class.
    feature : int32 array, shape (n_nodes,)
        XGBoost's ``split_indices``, -1 at a leaf.
    threshold : float32 array, shape (n_nodes,)
        ``split_conditions`` of inner nodes: rows with ``x < threshold`` go left. 0 at a leaf. A
        threshold is a value of the rows of the client that grew the tree.
    left : int32 array, shape (n_nodes,)
        ``left_children``, numbered within the tree, -1 at a leaf. The right child is one larger.
    default_left : bool array, shape (n_nodes,)
        Whether rows with a missing value go left.
    value : float32 array, shape (n_nodes,)
        ``split_conditions`` of leaves: their outputs as margins, learning rate included. 0 at an
        inner node.
    base_score : float32 array, shape (K,)
        Base score of the model that the trees belong to, in XGBoost's units (a probability for
        ``binary:logistic``, otherwise margins). If the parameters give no base score, a client
        estimates its first one from its local labels.
    sum_hessian : float32 array, shape (n_nodes,), or None
        Sum of the rows' hessians.
    base_weights : float32 array, shape (n_nodes,), or None
        ``-G / (H + lambda)`` at inner nodes and at a root that is a leaf, and equal to `value` at
        all other leaves.
    loss_changes : float32 array, shape (n_nodes,), or None
        Gains of the splits, 0 at a leaf.
    """

    round: int
    sizes: NDArray[np.int64]
    feature: NDArray[np.int32]
    threshold: NDArray[np.float32]
    left: NDArray[np.int32]
    default_left: NDArray[np.bool_]
    value: NDArray[np.float32]
    base_score: NDArray[np.float32]
    sum_hessian: NDArray[np.float32] | None = None
    base_weights: NDArray[np.float32] | None = None
    loss_changes: NDArray[np.float32] | None = None

    @property
    def reveals(self) -> frozenset[Reveal]:
        """Counts are revealed only with statistics.

        Weights and gains together determine the hessians.
        """
        statistics = (self.sum_hessian, self.base_weights, self.loss_changes)
        return _GROWN_ALONE if all(k is None for k in statistics) else self.discloses


# The server knows which client grew these trees.
@message(traits={Trait.GROWN_ALONE, Trait.STATISTICS, Trait.LEAVES})
class ClientTrees(SharedTrees):
    """The trees that a client grew in a round. Empty if the client has no rows.

    The fields are those of `SharedTrees`.
    """


# The trees of all clients, without names.
@message(traits={Trait.STATISTICS, Trait.LEAVES}, kw_only=True)
class GlobalTrees(SharedTrees):
    """The new trees of the global model. The other fields are those of `SharedTrees`.

    Attributes
    ----------
    first : int
        Number of the first of these trees in the model. It equals the number of trees that were
        sent before.
    """

    first: int


# The models of all clients, with the number of each client.
@message(traits={Trait.STATISTICS, Trait.LEAVES}, kw_only=True)
class ClientModels(SharedTrees):
    """The local models of all clients, concatenated.

    The remaining fields are those of `SharedTrees`.

    Attributes
    ----------
    base_score : float32 array, shape (m, K)
        One row per model.
    owner : int32 array, shape (m,)
        Number of the client that trained each model.
    trees : int64 array, shape (m,)
        Number of trees of each model.
    """

    owner: NDArray[np.int32]
    trees: NDArray[np.int64]

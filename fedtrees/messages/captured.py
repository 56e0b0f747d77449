"""Messages that were captured in a run of a real framework.

The module contains undecoded traffic (bytes, collective calls, model files), and the decoded
messages of XGBoost's collectives that have no counterpart among the messages of the simulated
protocols. `fedtrees.capture` writes and decodes the messages. The protocols `xgboost-ring` and
`xgboost-vertical` send the decoded types, so that an attack reads a simulated run and a captured
one alike.
"""

from dataclasses import field

import numpy as np
from numpy.typing import NDArray

from fedtrees.core.messages import Message, Reveal, message
from fedtrees.messages.horizontal import BaseScore, CutPoints, FeatureSketch, GlobalHistogram

# Sums of gradients and hessians reveal labels and numbers of rows.
_COUNTING = frozenset({Reveal.LABELS, Reveal.COUNTS})


# Raw traffic contains values of rows wherever the framework sends them.
@message(verbatim={"data"})
class WireBytes(Message):
    """Bytes of one connection in one direction, not decoded.

    Attributes
    ----------
    link : int
        Number of the connection, in the order of opening.
    door : str
        Endpoint that the connection was opened to: ``tracker``, ``federated``, or ``peer:PORT``.
    opener : bool
        True if the party that opened the connection sent the bytes, False if it received them.
    data : uint8 array, shape (n,)
        The bytes.
    """

    link: int
    door: str
    opener: bool
    data: NDArray[np.uint8]


# Undecoded buffers contain values of rows wherever the framework sends them.
@message(verbatim={"sent", "answered"})
class CollectiveCall(Message):
    """Contribution of one party to a collective operation, not decoded.

    Attributes
    ----------
    number : int
        Sequence number of the operation.
    rank : int
        Rank of the party.
    world : int
        Number of parties.
    code : int
        Data type of a sum, or root of a broadcast, in the numbering of XGBoost.
    summed : bool
        True for an all-reduce, which combines the contributions of all parties by a sum.
    sealed : bool
        True if the framework marked the sent data as encrypted.
    sent : uint8 array, shape (n,)
        Buffer that the party sent.
    answered : uint8 array, shape (m,)
        Buffer that the party received in reply.
    """

    number: int
    rank: int
    world: int
    code: int
    summed: bool
    sealed: bool
    sent: NDArray[np.uint8]
    answered: NDArray[np.uint8]


# Thresholds in a model file are values of rows.
@message(verbatim={"data"})
class ModelBytes(Message):
    """A model in the file format that a framework sent, XGBoost's JSON or UBJSON, not decoded.

    Attributes
    ----------
    data : uint8 array, shape (n,)
        Content of the file. Empty if there is no model yet, for example in the first round.
    part, parts : int
        Index of this model among the models that one task or result contains, and their number.
    asks : bool
        True if the server asks for further trees on top of the model.
    """

    data: NDArray[np.uint8]
    part: int = 0
    parts: int = 1
    asks: bool = True


@message(discloses={Reveal.COUNTS})
class RowCount(Message):
    """Number of rows of one party.

    Attributes
    ----------
    rows : int
        The number.
    owner : str
        Name of the party. Empty if it is the sender.
    """

    rows: int
    owner: str = ""


@message(discloses=_COUNTING)
class LabelShare(Message):
    """Number of rows of one party, and its contribution to the mean label.

    XGBoost starts boosting at the mean label, the sum of all contributions.

    Attributes
    ----------
    rows : int
        Number of rows of the party.
    owner : str
        Name of the party. Empty if it is the sender.
    share : float
        Sum of the party's labels divided by the number of rows of all parties, rounded to float32.
    """

    rows: int
    share: float
    owner: str = ""


@message(discloses={Reveal.LABELS})
class Intercept(Message):
    """Start of boosting that the first party sends to all. A probability for two classes.

    Attributes
    ----------
    value : float
        The start, in units of the target or as a probability.
    owner : str
        Name of the first party. Empty if it is the sender.
    """

    value: float
    owner: str = ""


@message(discloses={Reveal.COUNTS})
class ColumnSizes(Message):
    """Number of present (not missing) values of each column.

    Attributes
    ----------
    present : int64 array, shape (d,)
        The numbers.
    """

    present: NDArray[np.int64]


@message(discloses=_COUNTING)
class GradientTotals(Message):
    """Sums of gradient and hessian over the root of a tree.

    Attributes
    ----------
    tree : int
        Number of the tree, from 0.
    sums : float64 array, shape (2,)
        Sum of the gradients, and sum of the hessians.
    parties : str
        Names of the parties whose rows the sums cover, joined by commas.
    """

    tree: int
    sums: NDArray[np.float64]
    parties: str


@message(discloses=_COUNTING)
class EvaluationSums(Message):
    """The two sums that an evaluation metric of a round is computed from.

    For a loss these are the sum of the losses and the sum of the row weights. For an AUC they are
    the area and the product of the numbers of positive and negative rows.

    Attributes
    ----------
    round : int
        Number of the round, from 0.
    sums : float64 array, shape (2,)
        The sums.
    parties : str
        Names of the parties whose rows the sums cover, joined by commas.
    """

    round: int
    sums: NDArray[np.float64]
    parties: str


# In the first hop of a ring, the sums cover the rows of a single party.
@message(discloses=_COUNTING | {Reveal.FEATURES})
class HistogramSegment(Message):
    """Consecutive numbers of a flattened gradient histogram, summed over some parties.

    A ring all-reduce sends the histogram of a level in such segments.

    Attributes
    ----------
    tree : int
        Number of the tree, from 0.
    level : int
        Depth of the nodes.
    nodes : int
        Number of nodes that the histogram covers.
    first : int
        Position of the first number in the flattened histogram of shape (nodes, bins, 2).
    sums : float64 array, shape (k,)
        Sums of gradients and hessians.
    parties : str
        Names of the parties whose rows the sums cover, joined by commas.
    """

    tree: int
    level: int
    nodes: int
    first: int
    sums: NDArray[np.float64]
    parties: str


@message(discloses=FeatureSketch.discloses, verbatim=FeatureSketch.verbatim)
class RankedSketch(FeatureSketch):
    """A quantile summary that was sent with bounds of the rank of each point, as XGBoost does.

    The other fields are those of `FeatureSketch`.

    Attributes
    ----------
    whole : bool array, shape (d,)
        Whether the summary contains every value of a column with its exact number of rows.
    """

    whole: NDArray[np.bool_] = field(kw_only=True)


@message()
class MergedCuts(CutPoints):
    """Cut points that each party computes from the sketches of all. They are noted, never sent."""


@message()
class AgreedStart(BaseScore):
    """Start of boosting that each party computes from the messages of all. Noted, never sent."""


@message()
class MergedHistogram(GlobalHistogram):
    """Sum of a level over all parties, assembled from the received segments. Noted, never sent."""


@message()
class RoundedHistogram(MergedHistogram):
    """A `MergedHistogram` that was computed from float32 sums and rounded to the fixed-point grid.

    Attributes
    ----------
    off : int64 array, shape (m,)
        Largest difference between the sums of each node and the sums of exactly rounded rows, in
        fixed-point units. 0 means that they are equal.
    """

    off: NDArray[np.int64] = field(kw_only=True)


# A gradient can be equal to a value of a row by chance, for example 0.5.
@message(discloses={Reveal.LABELS}, verbatim={"g", "h"})
class RowGradients(Message):
    """Gradient and hessian of every row, sent by the party with the labels to the other parties.

    Attributes
    ----------
    round : int
        Round of boosting, from 0.
    g, h : float32 array, shape (n,)
        In the order of the rows.
    """

    round: int
    g: NDArray[np.float32]
    h: NDArray[np.float32]


# XGBoost uses values of rows as thresholds.
@message(discloses=_COUNTING | {Reveal.THRESHOLDS}, verbatim={"threshold"})
class BestSplits(Message):
    """The best split of every node of a level by the columns of one party.

    Each party sends it to all parties, which choose the best of all splits. The message therefore
    also contains splits that the tree does not use.

    Attributes
    ----------
    round : int
        Round of boosting, from 0.
    node : int32 array, shape (k,)
        Nodes of the level.
    feature : int32 array, shape (k,)
        Column of the split, counted over the columns of all parties in party order.
    threshold : float32 array, shape (k,)
        A value of the party's rows. The only exception are splits that separate missing values from
        all other values.
    gain : float32 array, shape (k,)
        Loss reduction of the split.
    left, right : float64 array, shape (k, 2)
        Sums of gradients and hessians of the two children.
    owner : str
        Name of the party.
    first, columns : int
        Position of the party's first column, and the number of its columns.
    level : int
        Depth of the nodes.
    default_left : bool array, shape (k,)
        Whether rows with a missing value go left.
    """

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


# The direction of a row depends on its value, and the order of rows is common to all parties.
@message(discloses={Reveal.IDS, Reveal.FEATURES})
class PartitionBits(Message):
    """Directions of all rows at the splits of a level that use the columns of one party.

    Attributes
    ----------
    owner : str
        Name of the party.
    round : int
        Round of boosting, from 0.
    level : int
        Depth of the nodes.
    left : bool array, shape (n,)
        Whether the row goes left at a split of the party.
    missing : bool array, shape (n,)
        Whether the value is missing or the split does not use a column of the party.
    """

    round: int
    level: int
    left: NDArray[np.bool_]
    missing: NDArray[np.bool_]
    owner: str

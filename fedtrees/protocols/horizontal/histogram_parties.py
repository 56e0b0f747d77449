"""Parties of horizontal boosting with gradient histograms, shared by all such protocols.

The server requests the histograms of open nodes, each client answers with fixed-point gradient
sums per bin of its local rows, and the server chooses splits from the total. A client applies the
splits and leaf values that the server broadcasts to its local rows. It refuses requests that the
public parameters do not allow, because a malicious server could otherwise request additional sums.
"""

from __future__ import annotations

import math
from abc import abstractmethod
from dataclasses import fields, replace
from functools import cached_property
from typing import TYPE_CHECKING, ClassVar

import numpy as np
from numpy.typing import NDArray

from fedtrees.core.defense import ExampleStage
from fedtrees.core.errors import BeyondParametersError, DataError
from fedtrees.core.messages import names_of_type
from fedtrees.core.network import Network
from fedtrees.core.party import handles
from fedtrees.core.requests import Once, Turns, check_bounded, check_equal, refuse
from fedtrees.core.schema import Schema
from fedtrees.messages.horizontal import (
    BaseScore,
    CutPoints,
    Histogram,
    HistogramRequest,
    LabelSums,
    LabelSumsRequest,
    LeafValues,
    NodeSplits,
    StopBoosting,
    ValidationLoss,
    ValidationRequest,
)
from fedtrees.protocols.base import Coordinator, Seat
from fedtrees.protocols.cut_points import BinningClient, settle_cuts
from fedtrees.protocols.tree_limits import TreeLimits, check_splits
from fedtrees.protocols.tree_masks import allowed_splits
from fedtrees.trees.boosted.boosting import ColumnSampler, checked_weights, drop_rows
from fedtrees.trees.boosted.forest import Forest, Tree
from fedtrees.trees.boosted.grower import TreeGrower
from fedtrees.trees.boosted.histogram import (
    FIXED_POINT_BITS,
    LOSS_BITS,
    Bits,
    build_histogram,
    clip_to_fixed,
    from_fixed,
    node_sums,
    to_fixed,
    weighted,
)
from fedtrees.trees.boosted.losses import LOSS_BOUND, Objective, clipped_bounds
from fedtrees.trees.boosted.params import TreeParams
from fedtrees.trees.partition import ROOT, Decisions, RowPartition

if TYPE_CHECKING:
    from fedtrees.protocols.horizontal.histogram_protocols import HistogramProtocol


class GrowingClient(BinningClient):
    """A client that routes its rows through trees and adds the leaf values to its predictions.

    Attributes
    ----------
    tree : int
        Number of the current tree.
    partition : RowPartition
        The client's rows in each node of the current tree.
    """

    objective: Objective
    tree: int
    partition: RowPartition

    has_base_score = False  # whether the server has sent the base score
    last_finished_tree = -1  # number of the last tree whose leaf values arrived, -1 before

    @handles(BaseScore, margin="once", g_bits="once", h_bits="once")
    def store_base_score(self, message: BaseScore) -> None:
        """Store the initial prediction of every row, once.

        Parameters
        ----------
        message : BaseScore
            Initial prediction and fixed-point units, which the server broadcasts.

        Raises
        ------
        BeyondParametersError
            If the client received an initial prediction before.
        """
        if self.has_base_score:
            refuse(message, "", "every prediction has started; it starts once")
        self.has_base_score = True
        # The units are announced by the server, because they can depend on sample weights.
        self.bits: Bits = (message.g_bits, message.h_bits)
        self.margin = np.repeat(message.margin[:, None], len(self.data), axis=1)

    @handles(
        NodeSplits,
        **dict.fromkeys(names_of_type(NodeSplits), "as a derived type of client checks it"),
    )
    def split(self, message: NodeSplits) -> None:
        """Move rows to the children of the split nodes.

        Parameters
        ----------
        message : NodeSplits
            The splits that the server chose for one level.
        """
        self.follow_splits(
            Decisions(**{item.name: getattr(message, item.name) for item in fields(Decisions)})
        )

    def follow_splits(self, chosen: Decisions) -> None:
        """Move rows by splits, whether the server sent them or the client computed them.

        Parameters
        ----------
        chosen : Decisions
            Split of each node.
        """
        self.partition.split(self.bins, chosen)

    @handles(
        LeafValues,
        tree="the tree that is grown; each tree ends once",
        nodes="nodes of the tree, each once",
        value="one for each node, finite and at most 1e30 in size",
        g="not read",
        h="not read",
    )
    def end_tree(self, message: LeafValues) -> None:
        """Add the leaf values to the predictions.

        Parameters
        ----------
        message : LeafValues
            Values of all leaves of the current tree.

        Raises
        ------
        BeyondParametersError
            If the tree is not the current one or has ended, if a node has several values, or if a
            value is not finite.
        """
        if message.tree != self.tree or message.tree == self.last_finished_tree:
            refuse(message, "tree", f"tree {self.tree} is grown, and ends once")
        nodes = message.nodes
        if message.value.shape != nodes.shape or len(np.unique(nodes)) != len(nodes):
            refuse(message, "nodes", "each node has one value")
        check_bounded(message, "value")
        self.last_finished_tree = message.tree
        # Trees alternate between the outputs of the model.
        margin = self.margin[self.tree % self.objective.n_outputs]
        self.partition.add_to(margin, message.nodes, message.value)


def check_cuts(announced: CutPoints, params: TreeParams, schema: Schema) -> None:
    """Check the number of bins of every column.

    Parameters
    ----------
    announced : CutPoints
        Cut points that the server announced.
    params : TreeParams
        Public parameters.
    schema : Schema
        Columns.

    Raises
    ------
    BeyondParametersError
        If a column has more bins than `max_bin`, and more than its declared cut points or
        categories.
    """
    for feature, bins in zip(schema.features, np.diff(announced.offsets).tolist(), strict=True):
        max_bins = max(params.max_bin, len(feature.cuts), len(feature.categories))
        if bins > max_bins:
            raise BeyondParametersError(f"{bins} bins of {feature.name!r}; at most {max_bins}")


#: Clipping rounds a bound down to a whole number of fixed-point units. With at least 2^16 units,
#: the bound changes by less than a hundred-thousandth.
_MIN_BOUND_BITS = 16
#: Sums over the rows of a client must stay below 2^62 units, so that they fit an int64.
_MAX_SUM_BITS = 62
_ANY_EXPONENT = 1100  # larger than every binary exponent of a float64


class HistogramClient(GrowingClient):
    """A client that answers histogram requests and routes its rows through the trees.

    Parameters
    ----------
    seat : Seat
        Name, local rows and defenses of the client.
    protocol : HistogramProtocol
        Public parameters.
    """

    def __init__(self, seat: Seat, protocol: HistogramProtocol) -> None:
        super().__init__(seat.name, seat.table)
        self.params, self.schema = protocol, seat.schema
        self.objective = protocol.objective_for(seat.schema)
        self._clip = seat.defense.requirements.gradient_clip
        self.objective.check(self.data.y)
        if self.data.weight is not None:
            checked_weights(self.data.weight, len(self.data))
        self.tree = -1
        # Label sums are sent once, and validation losses once for each round.
        self._label_requests, self._validation_requests = Once(), Turns(protocol.trees)

    @cached_property
    def validation_rows(self) -> NDArray[np.bool_]:
        """Mask of the validation rows, bool, shape (n,). No tree is grown on them."""
        return self.params.validation_rows(len(self.data), self.streams)

    @property
    def summarised_rows(self) -> NDArray[np.float32]:
        """The rows that trees are grown on."""
        X = super().summarised_rows
        return X[~self.validation_rows] if self.validation_rows.any() else X

    @handles(
        CutPoints,
        offsets="at most `max_bin` bins of a column, or the number that the schema declares",
    )
    def bin(self, message: CutPoints) -> None:
        """Bin the rows.

        Parameters
        ----------
        message : CutPoints
            The cut points, which the server broadcasts.

        Raises
        ------
        BeyondParametersError
            If a column has more bins than agreed.
        """
        if message.offsets.shape == (len(self.schema.features) + 1,):  # checked below
            check_cuts(message, self.params, self.schema)
        super().bin(message)

    @handles(
        BaseScore,
        margin="the agreed base score where there is one; one start for each output",
        g_bits="30 where the start is agreed; else fine enough for 2^16 units below the bound of "
        "clipped gradients, and coarse enough for sums of 64 bits",
        h_bits="as `g_bits`",
    )
    def store_base_score(self, message: BaseScore) -> None:
        """Store the initial prediction, after comparing it with the agreed score and units.

        Parameters
        ----------
        message : BaseScore
            Initial prediction and fixed-point units, which the server broadcasts.

        Raises
        ------
        BeyondParametersError
            If the agreed base score or its units exclude the message.
        """
        # A dishonest server could change the start, so that gradients reveal more than agreed.
        outputs, score = self.objective.n_outputs, self.params.base_score
        if message.margin.shape != (outputs,) or not np.isfinite(message.margin).all():
            refuse(message, "margin", f"{outputs} predictions start at a finite number")
        if score is not None:
            margin = self.objective.base_margin(score)
            check_equal(message, "margin", margin, "the start of every prediction")
        # With a fixed base score and bounded gradients, the units follow from public facts.
        fixed = score is not None and math.isfinite(self.objective.bounds[0])
        low, high = self._permitted_bits
        for name in ("g_bits", "h_bits"):
            if fixed:
                check_equal(message, name, FIXED_POINT_BITS, "the number of binary places")
            elif not low <= getattr(message, name) <= high:
                refuse(message, name, f"binary places are {low} to {high}")
        super().store_base_score(message)

    @cached_property
    def _permitted_bits(self) -> tuple[int, int]:
        """The smallest and largest permitted number of binary places of gradients.

        These are the exponents b of a fixed-point unit 2^-b, see `_MIN_BOUND_BITS` and
        `_MAX_SUM_BITS`.
        """
        # Without clipping no noise depends on the units. Honest units follow from sample weights.
        if self._clip is None:
            return -_ANY_EXPONENT, _ANY_EXPONENT
        bounds, rows = clipped_bounds(self.objective, self._clip), max(len(self.data), 1)
        # Powers of two: `coarse` places keep 2^16 units below the smaller of the two bounds.
        coarse = _MIN_BOUND_BITS - math.floor(math.log2(min(bounds)))
        return coarse, _MAX_SUM_BITS - math.ceil(math.log2(rows * max(bounds)))

    @handles(LabelSumsRequest)
    def count_labels(self, message: LabelSumsRequest) -> LabelSums:
        """Answer with number of rows and label sums, once.

        Parameters
        ----------
        message : LabelSumsRequest
            Request of the server, without content.

        Returns
        -------
        LabelSums
            Sums over the training rows. Validation rows are not counted.

        Raises
        ------
        BeyondParametersError
            If the agreed base score and objective need no label sums, or if they were sent before.
        """
        if self.params.base_score is not None and math.isfinite(self.objective.bounds[0]):
            refuse(message, "", f"base_score={self.params.base_score} needs no label sums")
        self._label_requests.take(message)
        # Validation rows do not influence the model, not even through the base score.
        validation = self.validation_rows
        training_rows = self.data if not validation.any() else self.data.take(~validation)
        return LabelSums(self.objective.target_sums(training_rows.y, training_rows.weight))

    @handles(
        HistogramRequest,
        tree="in order, at most the agreed trees",
        nodes="announced nodes above the agreed depth that are not split, one of each pair of "
        "children, each once",
    )
    def histogram(self, message: HistogramRequest) -> Histogram:
        """Answer with the histograms of the requested nodes. A new tree starts with its root.

        Parameters
        ----------
        message : HistogramRequest
            Tree and nodes.

        Returns
        -------
        Histogram
            Gradient sums of the client's rows. Only those of a root include totals.

        Raises
        ------
        BeyondParametersError
            If the public parameters exclude the request (`TreeLimits`).
        """
        if message.tree != self.tree or self.tree < 0:
            self.start_tree(message.tree)
        if not len(message.nodes):
            refuse(message, "nodes", "a request names at least one node")
        for node in message.nodes.tolist():
            self.limits.request(node)
        ranges = self.partition.ranges(message.nodes)
        rows = self.partition.rows
        sums = build_histogram(self.bins, self.gh, rows, ranges)
        # The totals of all later nodes follow from the splits, so that only a root sends them.
        roots = ranges if message.nodes[0] == 0 else ranges[:0]
        totals = node_sums(self.gh, rows, roots)
        return Histogram(message.tree, message.nodes, sums, totals, *self.bits)

    def start_tree(self, tree: int) -> None:
        """Put all rows into the root, and compute the gradients once per round.

        Parameters
        ----------
        tree : int
            Number of the tree.

        Raises
        ------
        BeyondParametersError
            If it is not the next tree, or if it is beyond the agreed number of trees.
        """
        n_trees = self.params.trees * self.objective.n_outputs
        if tree != self.tree + 1 or tree >= n_trees:
            raise BeyondParametersError(
                f"tree {tree} after {self.tree}; they are {n_trees}, in turn"
            )
        self.tree = tree
        self.limits = TreeLimits(self.params.max_depth, self.params.max_leaves, in_order=True)
        round, k = divmod(tree, self.objective.n_outputs)
        if k == 0:
            # Free the memory of the old gradients before the new ones are computed.
            self.gradients = self.gh = np.zeros((0, 2), np.int64)
            self.gradients = self._compute_gradients(round)
        self.gh = self.gradients[k]
        self.partition = RowPartition(len(self.data))

    def _compute_gradients(self, round: int) -> NDArray[np.int64]:
        """Return the fixed-point gradients of every output and row.

        Gradients are clipped if a defense requires it. Defenses of single rows act on the result.

        Parameters
        ----------
        round : int
            Number of the round, which determines the sampled rows.

        Returns
        -------
        units : int64 array, shape (K, n, 2)
            Gradient and hessian in units of 2^-bits. Rows that the round does not use have zeros.
        """
        gh = self.objective.gradients(self.margin, self.data.y)
        gh = weighted(gh, self.data.weight, self.bits)
        if self._clip is None:
            units = to_fixed(gh, self.bits)
        else:  # a sample weight must not raise a row above the bounds of the unweighted loss
            units = clip_to_fixed(gh, clipped_bounds(self.objective, self._clip), self.bits)
        units = self.row_hook(ExampleStage("gradients", self.bits), units)
        # Zero gradients remove a row from all sums without changing the partition.
        units[:, self.validation_rows] = 0
        drop_rows(units, self.params.subsample, self.streams, round)
        return units

    @handles(
        NodeSplits,
        tree="the tree that is grown",
        nodes="announced nodes above the agreed depth, each split once",
        left="the next two numbers",
        feature="a column of the schema",
        bin="a cut of that column",
        **dict.fromkeys(("threshold", "default_left", "categories"), "one for each node"),
        **dict.fromkeys(("g", "h", "gain"), "not read"),
    )
    def split(self, message: NodeSplits) -> None:
        """Move rows to the children of the split nodes.

        Parameters
        ----------
        message : NodeSplits
            The splits that the server chose for one level.

        Raises
        ------
        BeyondParametersError
            If the splits are those of another tree, or if the public parameters exclude them.
        """
        check_equal(message, "tree", self.tree, "the tree that is grown")
        super().split(message)

    def follow_splits(self, chosen: Decisions) -> None:
        """Move rows by splits that the public parameters permit.

        Parameters
        ----------
        chosen : Decisions
            Split of each node.

        Raises
        ------
        BeyondParametersError
            If no tree has started, or if the public parameters exclude a split (`check_splits`).
        """
        if self.tree < 0:
            raise BeyondParametersError("splits before the first tree; ask for its root first")
        check_splits(chosen, self.limits, self.cuts.n_bins, self.schema.complete)
        super().follow_splits(chosen)

    @handles(
        ValidationRequest,
        round="in order, each once, after the trees of the round; refused without early stopping",
    )
    def validate(self, message: ValidationRequest) -> ValidationLoss:
        """Answer with the loss over the validation rows, once for each finished round.

        Parameters
        ----------
        message : ValidationRequest
            Number of the finished round.

        Returns
        -------
        ValidationLoss
            Sum of the losses in steps of 2^-20, and number of validation rows.

        Raises
        ------
        BeyondParametersError
            If there is no early stopping, if the round is not finished, or if it was answered
            before.
        """
        if not self.params.early_stopping_rounds:
            refuse(message, "", "early_stopping_rounds=0: there are no validation rows")
        finished = self.last_finished_tree + 1
        if finished != (message.round + 1) * self.objective.n_outputs:
            refuse(message, "round", f"the trees of that round are not finished: {finished}")
        self._validation_requests.take(message, "round")
        rows = self.validation_rows
        losses = self.objective.loss(self.margin[:, rows], self.data.y[rows])
        if self._clip is not None:
            # A bounded loss gives the secure sum a known sensitivity.
            losses = np.minimum(losses, LOSS_BOUND)
        # Sums of integers do not depend on the order of addition.
        steps = np.rint(np.ldexp(losses, LOSS_BITS)).sum()
        return ValidationLoss(
            message.round, np.array([np.ldexp(steps, -LOSS_BITS), rows.sum()], dtype=np.float64)
        )

    @handles(StopBoosting, rounds="any: it is stored, and nothing is answered")
    def stop(self, message: StopBoosting) -> None:
        """Store the number of rounds of the model.

        Parameters
        ----------
        message : StopBoosting
            Number of rounds with the smallest validation loss.
        """
        self.rounds = message.rounds


class HistogramServer(Coordinator):
    """The server: it agrees on cut points and base score, sums histograms, and grows the forest.

    Subclasses define which messages the clients receive after each level and each tree.

    Parameters
    ----------
    seat : Seat
        Name of the server, schema of the table, and defenses of the run.
    protocol : HistogramProtocol
        Public parameters.

    Attributes
    ----------
    gathers_sketches : bool
        Whether every client receives the sketches of all clients.
    exact : tuple of str
        Fields of `Histogram` that no defense changes. The server checks their plausibility.
    """

    gathers_sketches: ClassVar[bool] = False
    exact: tuple[str, ...] = ()

    def __init__(self, seat: Seat, protocol: HistogramProtocol) -> None:
        super().__init__(seat.name)
        self.params, self.schema = protocol, seat.schema
        self.objective = protocol.objective_for(seat.schema)
        defense, arguments = seat.defense, (seat.schema, protocol.parameters)
        # The plausibility check of sums is valid only for fields that no defense changes.
        if not any(defense.changes(("gradients", part), *arguments) for part in "gh"):
            every = ("sums", "totals")
            self.exact = tuple(f for f in every if not defense.changes((Histogram, f), *arguments))

    def train(self, net: Network) -> Forest:
        """Boost tree by tree, level by level.

        Parameters
        ----------
        net : Network
            Network of the run.

        Returns
        -------
        Forest
            The trained model. With early stopping, it ends with the round of the smallest loss.
        """
        categories = self.params.category_counts(self.schema)
        method, gather = (self.params.cuts, self.params.max_bin), self.gathers_sketches
        self.cuts = settle_cuts(net, *method, self.schema, categories, gather=gather)
        start = self.agree_on_base_score(net)
        per_round, trees = self.objective.n_outputs, list[Tree]()
        losses: list[float] = []
        for round in range(self.params.trees):
            trees += [self.grow(net, round * per_round + k) for k in range(per_round)]
            if self.params.early_stopping_rounds:
                losses.append(self.validation_loss(net, round))
                if round - int(np.argmin(losses)) >= self.params.early_stopping_rounds:
                    break
        forest = Forest(tuple(trees), start.margin, self.objective)
        if not losses:
            return forest
        # The model ends with the round of the smallest validation loss.
        best = int(np.argmin(losses)) + 1
        net.send("client", StopBoosting(best), reason="the rounds that the model keeps")
        return forest.first(best)

    def validation_loss(self, net: Network, round: int) -> float:
        """Return the mean loss over all validation rows, from a secure sum.

        Parameters
        ----------
        net : Network
            Network of the run.
        round : int
            Number of the finished round.

        Returns
        -------
        float
            In nats, or in squared units of the target.

        Raises
        ------
        DataError
            If no row of the federation is a validation row.
        """
        reason = "loss on validation rows, for early stopping"
        total = net.request_sum("client", ValidationRequest(round), reason=reason)
        loss, rows = total.sums
        # With noise, the number of rows is almost never exactly 0.
        if rows == 0 and round == 0:
            raise DataError(
                f"validation_fraction={self.params.validation_fraction} selects no row of this "
                "federation; give a larger fraction, or early_stopping_rounds=0"
            )
        return float(loss / max(rows, 1.0))

    def grow(self, net: Network, tree: int) -> Tree:
        """Grow one tree from summed histograms.

        Parameters
        ----------
        net : Network
            Network of the run.
        tree : int
            Number of the tree.

        Returns
        -------
        Tree
            The tree that the clients grew as well.
        """
        total = self.ask_histograms(net, tree, ROOT)
        grower = self.params.grower(self.cuts, total, self.schema)
        columns = ColumnSampler(self.cuts, self.params, self.streams, tree)
        while True:
            # Defenses can restrict the splits of a level, for example to bins with enough rows.
            allowed = allowed_splits(net, tree, len(grower.nodes), self.cuts.total_bins)
            self.share_level(net, grower, total, columns.mask(grower.depths, allowed))
            if not len(grower.nodes):
                return self.share_tree(net, grower, tree)
            total = self.ask_histograms(net, tree, grower.to_build)

    def ask_histograms(self, net: Network, tree: int, nodes: NDArray[np.int32]) -> Histogram:
        """Request the clients' histograms of some nodes.

        Parameters
        ----------
        net : Network
            Network of the run.
        tree : int
            Number of the tree.
        nodes : int32 array, shape (k,)
            Numbers of the nodes.

        Returns
        -------
        Histogram
            Sum over all clients.

        Raises
        ------
        BeyondParametersError
            If a sum exceeds the possible contribution of the declared rows (`check_sums`).
        """
        request = HistogramRequest(tree, nodes)
        total = net.request_sum("client", request, reason="gradient sums per bin, to find splits")
        self.check_sums(net, total)
        return total

    def check_sums(self, net: Network, total: Histogram) -> None:
        """Check that sums do not exceed the possible contribution of all declared rows.

        Fields that a defense changes, and sums with sample weights, are not checked.

        Parameters
        ----------
        net : Network
            Network of the run.
        total : Histogram
            Sum over all clients.

        Raises
        ------
        BeyondParametersError
            If a sum of gradients or hessians is too large, or a sum of hessians is too negative.
        """
        rows = sum(one.rows for one in net.declared.values())
        if not rows or any(one.weighted for one in net.declared.values()):
            return
        # Each row is rounded by at most one unit.
        bound = rows * (np.ldexp(self.objective.bounds, total.bits) + 1)
        for field in self.exact:
            sums = getattr(total, field)
            if (np.abs(sums) > bound).any() or (sums[..., 1] < -rows).any():
                raise BeyondParametersError(
                    f"the {field} of tree {total.tree} are beyond what {rows} rows can bring"
                )

    @abstractmethod
    def share_level(
        self,
        net: Network,
        grower: TreeGrower,
        total: Histogram,
        mask: NDArray[np.bool_] | None,
    ) -> None:
        """Split the open nodes, and send the clients the information that they need to follow.

        Parameters
        ----------
        net : Network
            Network of the run.
        grower : TreeGrower
            Split finder with the open nodes.
        total : Histogram
            Summed histograms.
        mask : bool array or None
            Permitted splits, None for all.
        """

    @abstractmethod
    def share_tree(self, net: Network, grower: TreeGrower, tree: int) -> Tree:
        """Send the clients the leaf values, and return the released tree.

        Parameters
        ----------
        net : Network
            Network of the run.
        grower : TreeGrower
            Split finder of the finished tree.
        tree : int
            Number of the tree.
        """

    def agree_on_base_score(self, net: Network) -> BaseScore:
        """Agree on initial prediction and fixed-point units, and broadcast both.

        Parameters
        ----------
        net : Network
            Network of the run.

        Returns
        -------
        BaseScore
            The message that the clients received. A defense may have changed it.
        """
        score, objective = self.params.base_score, self.objective
        reason = "the fixed start of every prediction"
        if score is None or math.isinf(objective.bounds[0]):
            total = net.request_sum(
                "client", LabelSumsRequest(), reason="label sums, by a secure sum"
            )
            start = BaseScore(
                objective.start(total.sums) if score is None else objective.base_margin(score),
                *objective.bits(total.sums),
            )
            reason = "where every prediction starts (the label mean), and the units of all sums"
        else:
            start = BaseScore(objective.base_margin(score))
        sent = net.send("client", start, reason=reason)
        return sent


class DecidingServer(HistogramServer):
    """A server that chooses the splits and broadcasts them.

    Attributes
    ----------
    sends_statistics : bool
        Whether the server also broadcasts gradient sums and gains of splits and leaf values.
    """

    sends_statistics: ClassVar[bool] = True

    def share_level(
        self,
        net: Network,
        grower: TreeGrower,
        total: Histogram,
        mask: NDArray[np.bool_] | None,
    ) -> None:
        """Broadcast each chosen split with the G, H and gain of its node.

        Parameters
        ----------
        net : Network
            Network of the run.
        grower : TreeGrower
            Split finder with the open nodes.
        total : Histogram
            Summed histograms.
        mask : bool array or None
            Permitted splits, None for all.
        """
        chosen = grower.choose_splits(total.sums, mask)
        if len(chosen):
            message = NodeSplits(tree=total.tree, **vars(chosen))
            if self.sends_statistics:
                g, h, gain = grower.statistics(chosen.nodes)
                message = replace(message, g=g, h=h, gain=gain)
            net.send("client", message, reason="the chosen splits (FedTree adds G, H and gain)")

    def share_tree(self, net: Network, grower: TreeGrower, tree: int) -> Tree:
        """Broadcast leaf values with the G and H of each leaf.

        Parameters
        ----------
        net : Network
            Network of the run.
        grower : TreeGrower
            Grower of the finished tree.
        tree : int
            Number of the tree.

        Returns
        -------
        Tree
            The tree with the values that the clients received. Its nodes have no statistics if
            these were not sent.
        """
        nodes, sums = grower.leaves()
        g, h = from_fixed(sums, grower.bits).T
        statistics = (g, h) if self.sends_statistics else (None, None)
        sent = net.send(
            "client",
            LeafValues(tree, nodes, grower.leaf_values(), *statistics),
            reason="the leaf values (FedTree adds G and H)",
        )
        # A defense can change the values that were sent. The released model has the sent ones.
        grown = grower.finish(sent.value)
        return grown if sent.g is not None else replace(grown, g=None, h=None, gain=None)

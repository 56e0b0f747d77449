"""Protocol `xgboost-ring`: XGBoost's collective between workers, without a server."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from fedtrees.core.defense import XGBOOST, Deployed
from fedtrees.core.errors import DataError
from fedtrees.core.local_data import LocalData
from fedtrees.core.messages import Message
from fedtrees.core.registry import register
from fedtrees.core.schema import Schema
from fedtrees.messages.captured import (
    AgreedStart,
    GradientTotals,
    HistogramSegment,
    Intercept,
    LabelShare,
    MergedCuts,
    MergedHistogram,
    RankedSketch,
    RowCount,
)
from fedtrees.protocols.cut_points import cut_plan_of, public_cuts
from fedtrees.protocols.peers.peer import HorizontalPeer, HorizontalPeers, Script, StartingPeer
from fedtrees.protocols.settings import PlainBoosting
from fedtrees.trees.binning import bin_rows
from fedtrees.trees.boosted.forest import Forest
from fedtrees.trees.boosted.grower import TreeGrower
from fedtrees.trees.boosted.histogram import (
    UNIT_BITS,
    build_histogram,
    from_fixed,
    node_sums,
    to_fixed,
)
from fedtrees.trees.cut_points import (
    POINTS_PER_BIN,
    Sketch,
    local_sketch,
    merge_sketches,
    pruned_cuts,
)
from fedtrees.trees.partition import ROOT, RowPartition


class Worker(HorizontalPeer):
    """A worker. All workers grow the same trees."""

    receives = (RowCount, LabelShare, Intercept, RankedSketch, HistogramSegment, GradientTotals)

    params: XGBoostRing

    def key(self, message: Message, rank: int | None = None) -> Any:
        """Return the type of a message, its place in the run, and its sender."""
        if isinstance(message, HistogramSegment):
            return HistogramSegment, message.tree, message.level, message.first, message.parties
        fields: Any = message
        return type(message), getattr(fields, "tree", 0), self.owner_of(fields, rank)

    def owner_of(self, message: Any, rank: int | None) -> str:
        """Return the sender of a message that each worker sends once."""
        if rank is not None:
            return self.names[rank]
        return str(getattr(message, "parties", getattr(message, "owner", "")))

    def run_training(self) -> Script:
        """Agree on the initial prediction and on cut points, and boost."""
        self.assign_ranks()
        p, y = self.params, self.data.y
        start = self.objective.base_margin((yield from self.agree_start()))
        self.net.record_opened(AgreedStart(start), reason="where boosting starts, as it follows")
        self.cuts = yield from self.agree_cuts()
        self.bins = bin_rows(self.data.X, self.cuts)
        margin, trees = np.repeat(start[:, None], len(y), axis=1), []
        for number in range(p.trees):
            self.gh = to_fixed(self.objective.gradients(margin, y)[0], UNIT_BITS)
            self.rows = RowPartition(len(y))
            grown = yield from self.grow_tree(number)
            leaves = grown.leaves.astype(np.int32)
            self.rows.add_to(margin[0], leaves, grown.value[leaves])
            trees.append(grown)
        self.model = Forest(tuple(trees), start, self.objective)

    def agree_start(self) -> Script:
        """Return the initial probability: the mean label, unless it is a parameter."""
        if self.params.base_score is not None:
            return self.params.base_score
        n, reason = len(self.data), "where boosting starts: the mean label"
        row_counts = yield from self.exchange(RowCount(n, self.name), reason)
        # Rounded to float32 as in XGBoost, so that the initial prediction has the same bits.
        share = float(np.float32(self.data.y.sum() / sum(t.rows for t in row_counts)))
        shares = yield from self.exchange(LabelShare(n, share, self.name), reason)
        mean = Intercept(float(np.float32(sum(t.share for t in shares))), self.names[0])
        if not self.rank:
            return self.send_to_others(mean, "where boosting starts").value
        return (yield self.key(mean, 0)).value

    def agree_cuts(self) -> Script:
        """Return the cut points that follow from all sketches, or the declared ones."""
        if cut_plan_of(self.net) is None:
            cuts = yield from self.merge_sketches()
            reason = "cut points, as they follow from all sketches"
        else:
            cuts = public_cuts(self.schema, self.params.max_bin)
            reason = "cut points from the declared ranges"
        message = MergedCuts(cuts.values, cuts.offsets, cuts.minimum, cuts.categorical)
        self.net.record_opened(message, reason=reason)
        return cuts

    def merge_sketches(self) -> Script:
        """Send the local sketch to all workers, and return the cut points of all sketches."""
        max_points = POINTS_PER_BIN * self.params.max_bin
        s = local_sketch(self.data.X, self.params.max_bin)
        is_complete = [len(np.unique(c[~np.isnan(c)])) <= max_points for c in self.data.X.T]
        local_sketch_message = RankedSketch(
            s.points, s.weights, s.offsets, s.low, self.name, whole=np.array(is_complete)
        )
        all_sketches = yield from self.exchange(
            local_sketch_message, "every worker computes the cut points from all sketches"
        )
        sketches = [Sketch(t.points, t.weights, t.offsets, t.low) for t in all_sketches]
        return merge_sketches(sketches, self.params.max_bin, pruned_cuts)

    def grow_tree(self, number: int) -> Script:
        """Grow one tree from the sums over all workers."""
        hist, level = (yield from self.reduce_histogram(number, 0, ROOT)), 0
        local_sums = node_sums(self.gh, self.rows.rows, self.rows.ranges(ROOT))[0]
        message = GradientTotals(number, from_fixed(local_sums, UNIT_BITS), self.name)
        all_sums = yield from self.exchange(message, "sums over the root of a tree")
        root_sums = to_fixed(np.sum([t.sums for t in all_sums], axis=0), UNIT_BITS)
        grower = TreeGrower(self.cuts, self.params, root_sums, complete=self.schema.complete)
        nodes, totals = ROOT, root_sums.reshape(1, 2)
        while True:
            # Every worker can compute the total, so that it belongs to the view of each worker.
            merged = MergedHistogram(number, nodes, hist, totals)
            self.net.record_opened(merged, reason="the sums of all, as they come together")
            self.rows.split(self.bins, grower.choose_splits(hist))
            if not len(grower.nodes):
                return grower.finish()
            level, nodes, totals = level + 1, grower.to_build, root_sums[:0].reshape(0, 2)
            # Only one child of each pair is summed. The other one is the difference.
            hist = yield from self.reduce_histogram(number, level, nodes)

    def reduce_histogram(self, tree: int, level: int, nodes: NDArray[np.int32]) -> Script:
        """Return the sums over the bins of some nodes, over all workers, by a ring all-reduce.

        Each worker forwards a segment of the numbers, to which the next one adds its local sums.
        The first sender of a segment therefore reveals sums of its rows only. If there are fewer
        numbers than workers, each worker sends its local sums to all.

        Parameters
        ----------
        tree, level : int
            Tree, and depth of the nodes.
        nodes : int32 array, shape (k,)
            Nodes.
        """
        local_histogram = build_histogram(
            self.bins, self.gh, self.rows.rows, self.rows.ranges(nodes)
        )
        sums, w, me = from_fixed(local_histogram, UNIT_BITS), self.world, self.rank
        flat, k = sums.ravel(), len(nodes)
        # The last segment also contains the remainder.
        ends = [*(part * (flat.size // w) for part in range(w)), flat.size]

        def segment(part: int, ranks: list[int]) -> HistogramSegment:
            numbers = flat[ends[part] : ends[part + 1]]
            names = ",".join(self.names[r] for r in ranks)
            return HistogramSegment(tree, level, k, ends[part], numbers.copy(), names)

        reason = "a histogram on its way"
        # Fewer numbers than workers cannot be divided into segments.
        if flat.size < w:
            parts = HistogramSegment(tree, level, k, 0, flat.copy(), self.name)
            all_segments = yield from self.exchange(parts, reason)
            return to_fixed(
                np.sum([t.sums for t in all_segments], axis=0).reshape(sums.shape), UNIT_BITS
            )
        for step in range(w - 1):
            ranks = [(me - j) % w for j in range(step, -1, -1)]
            self.net.send(self.names[(me + 1) % w], segment((me - step) % w, ranks), reason=reason)
            part, ranks = (me - 1 - step) % w, [(r - 1) % w for r in ranks]
            flat[ends[part] : ends[part + 1]] += (yield self.key(segment(part, ranks))).sums
        # After w - 1 steps each worker has the total of one segment and sends it to all.
        self.send_to_others(segment((me + 1) % w, [*range(w)]), "summed histogram")
        for part in range(w):
            if part != (me + 1) % w:
                total = yield self.key(segment(part, [*range(w)]))
                flat[ends[part] : ends[part + 1]] = total.sums
        return to_fixed(sums, UNIT_BITS)


class FirstWorker(Worker, StartingPeer):
    """The worker of rank 0."""

    role = "client"


@register.protocol("xgboost-ring")
@dataclass(frozen=True, kw_only=True)
class XGBoostRing(HorizontalPeers, PlainBoosting):
    """XGBoost 3.2 over its collective, as with Dask and Spark: workers send messages to workers.

    Sums are passed along a ring (``src/collective/allreduce.cc``), so that the next worker receives
    a segment of a histogram of a single worker's rows. Label shares, sketches and sums over roots
    are sent to all workers. All numbers equal XGBoost's if no worker has more than ``8 max_bin``
    distinct values in a column. With more values, sketches and cut points differ from XGBoost's and
    have the same rank error (`fedtrees.trees.cut_points`). With two workers, XGBoost
    sends one local root sum each, and both totals. Here each worker sends its local sum, from which
    the same follows.
    """

    info = replace(
        HorizontalPeers.info,
        message_types=(*Worker.receives, AgreedStart, MergedCuts, MergedHistogram),
        deployments={
            "xgboost": Deployed("xgboost.dask.train, or workers of a RabitTracker", XGBOOST)
        },
    )
    party_noun: ClassVar[str] = "workers"
    kinds: ClassVar[tuple[type[Worker], type[Worker]]] = (FirstWorker, Worker)

    def check_local_data(self, name: str, local_data: LocalData, schema: Schema) -> None:
        """Refuse weights, and parties without rows."""
        if local_data.weight is not None or not len(local_data):
            raise DataError(f"{self.name!r} takes one row of {name!r} or more, without weights")

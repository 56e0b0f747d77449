"""`xgboost-ring`: XGBoost's own collective, worker to worker, without a server."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from fedtrees.core.deployment import XGBOOST, Deployed
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
from fedtrees.protocols.boosting_protocol import PlainBoosting
from fedtrees.protocols.cut_points import public_cuts
from fedtrees.protocols.lockstep import First, RowHolder, RowPeers, Script, hears
from fedtrees.trees.binning import bin_rows
from fedtrees.trees.boosted.fixed_point import UNIT_BITS, from_fixed, to_fixed
from fedtrees.trees.boosted.forest import Forest
from fedtrees.trees.boosted.grower import TreeGrower
from fedtrees.trees.boosted.histogram import build_histogram, node_sums
from fedtrees.trees.boosted.xgboost_cuts import pruned_cuts
from fedtrees.trees.partition import ROOT, RowPartition
from fedtrees.trees.sketch import POINTS_PER_BIN, Sketch, local_sketch, merge_sketches


class Worker(RowHolder):
    """A worker: what it says when, and the trees that it grows as all others do."""

    params: XGBoostRing

    hear_rows = hears(RowCount)
    hear_share = hears(LabelShare)
    hear_start = hears(Intercept)
    hear_sketch = hears(RankedSketch)
    hear_histogram = hears(HistogramSegment)
    hear_root = hears(GradientTotals)

    def key(self, message: Message, rank: int | None = None) -> Any:
        """Return its type and place, and of whom it is."""
        if isinstance(message, HistogramSegment):
            return HistogramSegment, message.tree, message.level, message.first, message.parties
        told: Any = message
        return type(message), getattr(told, "tree", 0), self.owner_of(told, rank)

    def owner_of(self, message: Any, rank: int | None) -> str:
        """Return who says a message that each of them says once."""
        if rank is not None:
            return self.names[rank]
        return str(getattr(message, "parties", getattr(message, "owner", "")))

    def trained(self) -> Script:
        """Settle where to start and how to cut, and boost."""
        self.sit()
        p, y = self.params, self.data.y
        start = self.objective.base_margin((yield from self.started()))
        self.net.note(AgreedStart(start), why="where boosting starts, as it follows")
        self.cuts = yield from self.settled()
        self.bins = bin_rows(self.data.X, self.cuts)
        margin, trees = np.repeat(start[:, None], len(y), axis=1), []
        for number in range(p.trees):
            self.gh = to_fixed(self.objective.gradients(margin, y)[0], UNIT_BITS)
            self.rows = RowPartition(len(y))
            grown = yield from self.grown(number)
            leaves = grown.leaves.astype(np.int32)
            self.rows.add_to(margin[0], leaves, grown.value[leaves])
            trees.append(grown)
        self.model = Forest(tuple(trees), start, self.objective)

    def started(self) -> Script:
        """Return the probability where boosting starts: the mean label, unless it is settled."""
        if self.params.base_score is not None:
            return self.params.base_score
        n, why = len(self.data), "where boosting starts: the mean label"
        told = yield from self.gathered(RowCount(n, self.name), why)
        share = float(np.float32(self.data.y.sum() / sum(t.rows for t in told)))
        shares = yield from self.gathered(LabelShare(n, share, self.name), why)
        mean = Intercept(float(np.float32(sum(t.share for t in shares))), self.names[0])
        if not self.rank:
            return self.to_others(mean, "where boosting starts").value
        return (yield self.key(mean, 0)).value

    def settled(self) -> Script:
        """Return the cut points that follow from the sketches of all, or declared ones."""
        if self.net.cut_plan() is None:
            cuts, why = (yield from self.merged()), "cut points, as they follow from all sketches"
        else:
            cuts = public_cuts(self.schema, self.params.max_bin)
            why = "cut points, from what the schema declares"
        message = MergedCuts(cuts.values, cuts.offsets, cuts.minimum, cuts.categorical)
        self.net.note(message, why=why)
        return cuts

    def merged(self) -> Script:
        """Tell all one's sketch; return the cut points of those of all."""
        most = POINTS_PER_BIN * self.params.max_bin
        s = local_sketch(self.data.X, self.params.max_bin)
        whole = [len(np.unique(c[~np.isnan(c)])) <= most for c in self.data.X.T]
        own = RankedSketch(s.points, s.weights, s.offsets, s.low, self.name, whole=np.array(whole))
        told = yield from self.gathered(own, "everybody makes cut points of all sketches")
        sketches = [Sketch(t.points, t.weights, t.offsets, t.low) for t in told]
        return merge_sketches(sketches, self.params.max_bin, pruned_cuts)

    def grown(self, number: int) -> Script:
        """Grow one tree of the sums of all."""
        hist, level = (yield from self.reduced(number, 0, ROOT)), 0
        own = node_sums(self.gh, self.rows.rows, self.rows.ranges(ROOT))[0]
        message = GradientTotals(number, from_fixed(own, UNIT_BITS), self.name)
        told = yield from self.gathered(message, "sums over the root of a tree")
        whole = to_fixed(np.sum([t.sums for t in told], axis=0), UNIT_BITS)
        grower = TreeGrower(self.cuts, self.params, whole, complete=self.schema.complete)
        nodes, totals = ROOT, whole.reshape(1, 2)
        while True:
            merged = MergedHistogram(number, nodes, hist, totals)
            self.net.note(merged, why="the sums of all, as they come together")
            self.rows.split(self.bins, grower.decide(hist))
            if not len(grower.nodes):
                return grower.finish()
            level, nodes, totals = level + 1, grower.to_build, whole[:0].reshape(0, 2)
            hist = yield from self.reduced(number, level, nodes)

    def reduced(self, tree: int, level: int, nodes: NDArray[np.int32]) -> Script:
        """Return the sums of all workers over the bins of some nodes, by a ring all-reduce.

        Each passes on a part of the numbers, to which the next one adds its own; the first to tell
        of a part tells of its rows alone. Fewer numbers than workers go to all as they are.
        """
        own = build_histogram(self.bins, self.gh, self.rows.rows, self.rows.ranges(nodes))
        sums, w, me = from_fixed(own, UNIT_BITS), self.world, self.rank
        flat, k = sums.ravel(), len(nodes)
        ends = [*(part * (flat.size // w) for part in range(w)), flat.size]

        def segment(part: int, whose: list[int]) -> HistogramSegment:
            numbers = flat[ends[part] : ends[part + 1]]
            names = ",".join(self.names[r] for r in whose)
            return HistogramSegment(tree, level, k, ends[part], numbers.copy(), names)

        why = "a histogram on its way"
        if flat.size < w:
            parts = HistogramSegment(tree, level, k, 0, flat.copy(), self.name)
            told = yield from self.gathered(parts, why)
            return to_fixed(np.sum([t.sums for t in told], axis=0).reshape(sums.shape), UNIT_BITS)
        for step in range(w - 1):
            whose = [(me - j) % w for j in range(step, -1, -1)]
            self.net.tell(self.names[(me + 1) % w], segment((me - step) % w, whose), why=why)
            part, whose = (me - 1 - step) % w, [(r - 1) % w for r in whose]
            flat[ends[part] : ends[part + 1]] += (yield self.key(segment(part, whose))).sums
        self.to_others(segment((me + 1) % w, [*range(w)]), "summed histogram")
        for part in range(w):
            if part != (me + 1) % w:
                total = yield self.key(segment(part, [*range(w)]))
                flat[ends[part] : ends[part + 1]] = total.sums
        return to_fixed(sums, UNIT_BITS)


class FirstWorker(Worker, First):
    """The worker of rank 0."""

    role = "client"


@register.protocol("xgboost-ring")
@dataclass(frozen=True, kw_only=True)
class XGBoostRing(RowPeers, PlainBoosting):
    """XGBoost 3.2 over its own collective, as Dask and Spark run it: what workers tell one another.

    Sums go round a ring (``src/collective/allreduce.cc``), so that the next worker receives a part
    of a histogram that is of one worker's rows alone; label shares, sketches and sums over roots go
    to all. What crosses is XGBoost's to the number where no worker has more than ``8 max_bin``
    different values in a column; of more, sketches and cuts are others of the same rank error
    (`fedtrees.trees.boosted.xgboost_cuts`). Of two workers XGBoost sends one sum over a root each,
    and both totals: here they tell their own, from which the same follows.
    """

    says: ClassVar[tuple[type[Message], ...]] = (
        RowCount, LabelShare, Intercept, AgreedStart, RankedSketch, MergedCuts, HistogramSegment,
        GradientTotals, MergedHistogram,
    )  # fmt: skip
    alike: ClassVar[str] = "workers"
    kinds: ClassVar[tuple[type[Worker], type[Worker]]] = (FirstWorker, Worker)
    deployed: ClassVar[Mapping[str, Deployed]] = {
        "xgboost": Deployed("xgboost.dask.train, or workers of a RabitTracker", XGBOOST)
    }

    def check_held(self, name: str, held: LocalData, schema: Schema) -> None:
        """Refuse weights, and parties without rows."""
        if held.weight is not None or not len(held):
            raise DataError(f"{self.name!r} takes one row of {name!r} or more, without weights")

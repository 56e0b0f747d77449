"""Repeat a captured run as a run of the simulated protocol.

The parties with data reply with the messages that they sent in the capture. The coordinator runs
the protocol. The resulting transcript contains the messages of the protocol, so that all attacks
and metrics can read it.

For a ring, the module also computes the messages that every worker derives from the received ones.
These are the cut points, the start and the sums over all workers. A capture does not contain them,
because they are not sent. The trees are grown again to determine the nodes of the sums.
"""

from __future__ import annotations

from collections import defaultdict, deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from itertools import pairwise
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from fedtrees.capture.formats import Decoded
from fedtrees.capture.models import trees_of
from fedtrees.capture.readings import ObservedTrees
from fedtrees.capture.records import Record
from fedtrees.capture.xgboost_training import SERVER
from fedtrees.core.errors import DataError, UsageError
from fedtrees.core.local_data import LocalData
from fedtrees.core.messages import Message
from fedtrees.core.party import Party, handles
from fedtrees.core.registry import register
from fedtrees.core.schema import Feature, Schema, Table
from fedtrees.core.specs import parse_list
from fedtrees.messages.captured import (
    AgreedStart,
    GradientTotals,
    HistogramSegment,
    Intercept,
    LabelShare,
    MergedCuts,
    RankedSketch,
    RoundedHistogram,
)
from fedtrees.messages.horizontal import (
    BaseScore,
    ClientTrees,
    CutPoints,
    CutsRequest,
    FeatureSketch,
    GlobalHistogram,
    GlobalTrees,
    GrowRequest,
    Histogram,
    HistogramRequest,
)
from fedtrees.model_audit import audit
from fedtrees.protocols.base import Protocol, Seat
from fedtrees.protocols.cut_points import BinningClient
from fedtrees.protocols.horizontal.histogram_protocols import NVFlareHist
from fedtrees.protocols.horizontal.tree_sharing import FlowerBagging, FlowerCyclic
from fedtrees.protocols.peers.xgboost_ring import XGBoostRing
from fedtrees.protocols.settings import ACTIVE, PASSIVE
from fedtrees.protocols.training import Training, train
from fedtrees.trees.binning import Cuts
from fedtrees.trees.boosted.forest import Tree
from fedtrees.trees.boosted.grower import TreeGrower
from fedtrees.trees.boosted.histogram import UNIT_BITS, from_fixed, to_fixed
from fedtrees.trees.boosted.params import TreeParams
from fedtrees.trees.cut_points import Sketch, merge_sketches, pruned_cuts
from fedtrees.trees.partition import ROOT

Sums = NDArray[np.int64]
#: Largest error of sums that are not integer multiples of the unit. XGBoost's gradients are
#: float32, and those below 2^-7 are finer than the unit. The largest observed error was 5, for 768
#: rows.
_OFF = 16


def worked_out(
    seen: Sequence[Record], who: str, protocol: XGBoostRing, schema: Schema
) -> Iterator[Record]:
    """Yield the messages that a worker derives, in the types of `xgboost-ring`.

    A third party that saw the same messages could derive them, too. `protocol` contains the
    parameters of the run. Raises `DataError` if the captured sums do not belong to trees with these
    parameters.
    """
    messages = [r.message for r in seen]
    start = next((m.value for m in messages if isinstance(m, Intercept)), protocol.base_score)
    sketches = {m.owner: m for m in messages if isinstance(m, RankedSketch)}
    if start is None or not sketches:
        raise DataError("the capture does not contain the base score: give base_score")
    merged = merge_sketches(
        [Sketch(s.points, s.weights, s.offsets, s.low) for _, s in sorted(sketches.items())],
        protocol.max_bin,
        pruned_cuts,
    )
    margin = protocol.objective_for(schema).base_margin(start)
    derived = [
        AgreedStart(margin),
        MergedCuts(merged.values, merged.offsets, merged.minimum, merged.categorical),
        *_levels(messages, merged, protocol, schema),
    ]
    for order, message in enumerate(derived, start=len(seen)):
        yield Record(0, order, who, (who,), message, "computed from received messages")


def _levels(
    messages: Iterable[object], cuts: Cuts, protocol: XGBoostRing, schema: Schema
) -> Iterator[GlobalHistogram]:
    """Yield the sums of all workers for every level of every tree, and grow the trees from them."""
    roots: dict[int, dict[str, NDArray[np.float64]]] = defaultdict(dict)
    parts: dict[tuple[int, int], list[HistogramSegment]] = defaultdict(list)
    for m in messages:
        if isinstance(m, GradientTotals):
            roots[m.tree][m.parties] = m.sums
        elif isinstance(m, HistogramSegment):
            parts[m.tree, m.level].append(m)
    for tree in sorted(roots):
        totals = _root(roots[tree])
        grower = TreeGrower(cuts, protocol, totals[0], complete=schema.complete)
        level, nodes = 0, ROOT
        # The grown tree determines the order of the nodes in the histograms of the next level.
        while len(grower.nodes):
            hist, off = _combine_parts(parts[tree, level], (len(nodes), cuts.total_bins, 2))
            yield RoundedHistogram(tree, nodes, hist, totals, off=off)
            grower.choose_splits(hist)
            level, nodes, totals = level + 1, grower.to_build, totals[:0]
        if parts[tree, level]:
            raise _other(tree)


def _root(sums: dict[str, NDArray[np.float64]]) -> Sums:
    """Return the sums over all rows of a root.

    Two workers send them directly. Otherwise they are the sums of all workers.
    """
    key = max(sums, key=lambda whose: whose.count(","))
    together = sums[key] if "," in key else np.sum(list(sums.values()), axis=0)
    return to_fixed(together, UNIT_BITS).reshape(1, 2)


def _combine_parts(
    parts: Sequence[HistogramSegment], shape: tuple[int, int, int]
) -> tuple[Sums, NDArray[np.int64]]:
    """Combine the parts of a histogram, and return the possible error of each node.

    Histograms with few numbers are sent by each worker, and are added here.
    """
    flat = np.full(int(np.prod(shape)), np.nan)
    n_commas = max((p.parties.count(",") for p in parts), default=0)
    if any(p.nodes != shape[0] or p.first + len(p.sums) > flat.size for p in parts):
        raise _other(parts[0].tree)
    complete = [p for p in parts if p.parties.count(",") == n_commas]
    for p in complete:
        span = slice(p.first, p.first + len(p.sums))
        flat[span] = np.nan_to_num(flat[span]) * (n_commas == 0) + p.sums
    if np.isnan(flat).any():
        raise _other(parts[0].tree if parts else 0)
    units = to_fixed(flat.reshape(shape), UNIT_BITS)
    finer = (from_fixed(units, UNIT_BITS) != flat.reshape(shape)).any(axis=(1, 2))
    return units, _OFF * finer


def _other(tree: int) -> DataError:
    """Return the error that a tree does not fit the protocol's parameters."""
    return DataError(
        f"tree {tree} was grown with other parameters, or of other sketches: give the run's by "
        "--protocol"
    )


M = TypeVar("M", bound=Message)
#: Protocols for which a capture contains all replies of the parties.
KNOWN = (NVFlareHist, FlowerBagging, FlowerCyclic)
#: XGBoost's names of parameters that have another name here.
_XGBOOST = {"eta": "learning_rate", "lambda": "reg_lambda", "alpha": "reg_alpha"}


class RecordedClient(Party):
    """A party that replies with the messages that it sent in a capture, in their order."""

    role = BinningClient.role

    def __init__(self, name: str, messages: Iterable[Message]) -> None:
        super().__init__(name)
        self.unsent: dict[type[Message], deque[Message]] = defaultdict(deque)
        for message in messages:
            self.unsent[type(message)].append(message)
        self.bits = BaseScore(np.zeros(1, np.float32)).g_bits, 30

    def _next(self, kind: type[M]) -> M:
        """Return the next message of a type. Raises `DataError` if the capture contains no more."""
        if not self.unsent[kind]:
            raise DataError(
                f"the capture ends before {self.name!r} sends a {kind.__name__} that the "
                "protocol expects: give the run's parameters by --protocol"
            )
        message = self.unsent[kind].popleft()
        assert isinstance(message, kind)
        return message

    @handles(CutsRequest)
    def summarise(self, message: CutsRequest) -> FeatureSketch:
        """Reply with the sketch of the columns."""
        sketch = self._next(RankedSketch)
        return FeatureSketch(sketch.points, sketch.weights, sketch.offsets, sketch.low)

    @handles(HistogramRequest)
    def histogram(self, message: HistogramRequest) -> Histogram:
        """Reply with the sums of a level. At a root, the sums over all rows are included."""
        part, k = self._next(HistogramSegment), len(message.nodes)
        root = k == 1 and message.nodes[0] == 0
        if (part.tree, part.nodes, part.level == 0) != (message.tree, k, root) or part.first:
            raise DataError(
                f"{self.name!r} sends {part.nodes} nodes of level {part.level} of tree "
                f"{part.tree}, but the protocol expects {k} of tree {message.tree}: give "
                "the run's parameters by --protocol"
            )
        sums = to_fixed(part.sums.reshape(k, -1, 2), self.bits)
        totals = self._next(GradientTotals).sums if root else np.zeros((0, 2))
        root_totals = to_fixed(np.reshape(totals, (-1, 2)), self.bits)
        return Histogram(message.tree, message.nodes, sums, root_totals, *self.bits)

    @handles(GrowRequest)
    def grow(self, message: GrowRequest) -> ClientTrees:
        """Reply with the client's trees."""
        return self._next(ClientTrees)

    @handles(BaseScore)
    def start(self, message: BaseScore) -> None:
        """Store the units of the sums."""
        self.bits = message.g_bits, message.h_bits

    @handles(CutPoints)
    def _cuts(self, message: CutPoints) -> None: ...

    @handles(FeatureSketch)
    def _sketch(self, message: FeatureSketch) -> None: ...

    @handles(GlobalHistogram)
    def _level(self, message: GlobalHistogram) -> None: ...

    @handles(GlobalTrees)
    def _trees(self, message: GlobalTrees) -> None: ...


@dataclass(frozen=True, eq=False)
class Replay:
    """A captured run, and the simulated protocol that corresponds to it.

    Attributes
    ----------
    protocol : Protocol
        The protocol with the parameters of the run.
    sent : mapping of str to list of Message
        Messages that each party sent.
    rows : mapping of str to int
        Number of rows of each party.
    columns : int
        Number of columns of the table.
    """

    protocol: Protocol
    sent: Mapping[str, list[Message]]
    rows: Mapping[str, int]
    columns: int

    @staticmethod
    def of(decoded: Decoded, named: str = "") -> Replay | None:
        """Return the replay of a capture, None if its protocol cannot be inferred.

        `named` is the protocol with its parameters, if they are known. Raises `UsageError` if
        captures of the named protocol cannot be replayed.
        """
        run = decoded.capture.run_facts
        if run.wire in ("nvflare-trees", "flower"):
            return _replay_trees(decoded, _replayable_protocol(named))
        sent = _messages_by_party(decoded)
        protocol = _replayable_protocol(named) or _protocol_of_job(run.details, sent)
        if protocol is None:
            return None
        if protocol.base_score is None:
            start = [m.value for ms in sent.values() for m in ms if isinstance(m, Intercept)]
            protocol = replace(protocol, base_score=start[0] if start else 0.5)
        if getattr(protocol, "cuts", "") == "sketch":
            protocol = replace(protocol, cuts="xgboost")
        sketches = [m for ms in sent.values() for m in ms if isinstance(m, RankedSketch)]
        rows = {n: m.rows for n, ms in sent.items() for m in ms if isinstance(m, LabelShare)}
        columns = len(sketches[0].low) if sketches else 0
        return Replay(protocol, sent, rows or _rows_of_columns(sent), columns)

    def run(self, truth: Mapping[str, Table] | None = None) -> Training:
        """Run the protocol, in which every party sends the messages of the capture.

        If `truth` contains the rows of all parties, they compute their messages from these rows.
        Raises `DataError` if the capture lacks a message that the protocol requests.
        """
        names, sent = [*self.rows], self.sent
        protocol: Any = self.protocol
        if not names or not self.columns:
            raise DataError("the capture does not contain the numbers of rows and columns")

        # The same protocol with recorded clients. Only the server is a real party.
        class Replayed(type(protocol)):  # type: ignore[misc]
            def roles(self, parties: int) -> Mapping[str, str]:
                return {SERVER: SERVER, **dict.fromkeys(names, BinningClient.role)}

            def create_party(self, seat: Seat) -> Party:
                if seat.name == SERVER or truth is not None:
                    real: Party = super().create_party(seat)
                    return real
                return RecordedClient(seat.name, sent[seat.name])

        again = Replayed(**{f.name: getattr(protocol, f.name) for f in fields(protocol)})
        # Recorded clients need no rows, and only the sizes of these tables are used.
        nothing = {
            name: Table(np.zeros((n, self.columns), np.float32), np.zeros(n, np.int64))
            for name, n in self.rows.items()
        }
        tables = nothing if truth is None else {name: truth[name] for name in names}
        return train(again, local_data_of(tables), schema_of(self.columns))


def named_protocol(named: str) -> Any:
    """Construct a protocol from its name and parameters, None if the name is empty."""
    if not named:
        return None
    specs = parse_list([named])
    if len(specs) != 1:
        raise UsageError(f"--protocol {named}: give one, with one value of each parameter")
    return register.make("protocol", specs[0])


def _replayable_protocol(named: str) -> Any:
    """Return the named protocol. Raises `UsageError` if captures of it cannot be replayed."""
    protocol = named_protocol(named)
    if protocol is not None and not isinstance(protocol, KNOWN):
        supported = ", ".join(kind.name for kind in KNOWN)
        raise UsageError(f"no capture is replayed as {protocol.name}; as {supported} they are")
    return protocol


def _messages_by_party(records: Iterable[Record]) -> dict[str, list[Message]]:
    """Return the messages of each party, except those of the server."""
    sent: dict[str, list[Message]] = defaultdict(list)
    for r in records:
        if r.sender != SERVER:
            sent[r.sender].append(r.message)
    return sent


def _protocol_of_job(
    job: Mapping[str, Any], sent_messages: Mapping[str, list[Message]]
) -> NVFlareHist | None:
    """Return the protocol of a histogram job, None if its parameters are not supported."""
    params, supported = job.get("params"), TreeParams.__dataclass_fields__
    trees = {m.tree for ms in sent_messages.values() for m in ms if isinstance(m, GradientTotals)}
    if not isinstance(params, Mapping) or not trees:
        return None
    renamed = {_XGBOOST.get(k, k): v for k, v in params.items()}
    usable = {k: v for k, v in renamed.items() if k in supported}
    try:
        # The training may have stopped early. The number of captured trees is therefore used.
        return NVFlareHist(**{**usable, "trees": len(trees)})
    except (UsageError, TypeError):
        return None


def _rows_of_columns(sent_messages: Mapping[str, list[Message]]) -> dict[str, int]:
    """Return the number of rows of every party, from its column with the fewest missing values."""
    sketches = {n: m for n, ms in sent_messages.items() for m in ms if isinstance(m, RankedSketch)}
    return {
        n: max(int(s.weights[b:e].sum()) for b, e in pairwise(s.offsets.tolist()))
        for n, s in sketches.items()
    }


def _depth(tree: Tree) -> int:
    """Return the number of splits on the longest path of a tree."""
    depth = np.zeros(len(tree), np.int64)
    for node in np.flatnonzero(tree.feature >= 0):  # children come after their parent
        depth[[tree.left[node], tree.right[node]]] = depth[node] + 1
    return int(depth.max())


def _replay_trees(decoded: Decoded, named: Any) -> Replay | None:
    """Return the replay of a capture of local trees, None if its parameters cannot be inferred."""
    shared = ObservedTrees.of(decoded.capture, SERVER)
    if shared is None:
        return None
    audited, sent = audit(shared.model), _messages_by_party(decoded)
    firsts: dict[str, int] = {}
    for exposure, owner in zip(audited.trees, shared.owners, strict=True):
        firsts.setdefault(owner, int(exposure.n.sum()) if exposure.counted.all() else 0)
    rows = {name: firsts.get(name, 0) for name in sent}  # in the order of their first replies
    if named is None:
        if audited.settings is None or not all(rows.values()):
            return None
        replies = [m for ms in sent.values() for m in ms if isinstance(m, ClientTrees)]
        rounds = [m.round for m in replies]
        # In cyclic training, a single site replies in each round.
        kind = FlowerCyclic if len({*rounds}) == len(rounds) > 1 else FlowerBagging
        named = kind(
            trees=max(rounds) + 1,
            local_trees=len(replies[0].sizes),
            learning_rate=audited.settings.learning_rate,
            reg_lambda=audited.settings.reg_lambda,
            max_depth=min(30, max(1, *map(_depth, trees_of(shared.model)))),
        )
    return Replay(named, sent, rows, len(shared.model.categorical))


def schema_of(columns: int) -> Schema:
    """Return a schema for columns without names."""
    return Schema(tuple(Feature(f"f{k}") for k in range(columns)), "label")


def columns_of(tables: Sequence[Table]) -> dict[str, LocalData]:
    """Return the local data of parties with columns of the same rows. The first one has labels."""
    ends = np.cumsum([0, *(t.X.shape[1] for t in tables)]).tolist()
    names = [ACTIVE, *(f"{PASSIVE}-{k}" for k in range(1, len(tables)))]
    return {
        name: LocalData(np.arange(len(t)), np.arange(begin, end), t.X, None if begin else t.y)
        for name, t, (begin, end) in zip(names, tables, pairwise(ends), strict=True)
    }


def local_data_of(tables: Mapping[str, Table]) -> dict[str, LocalData]:
    """Return the local data of parties with different rows."""
    begins = np.cumsum([0, *map(len, tables.values())]).tolist()
    return {
        name: LocalData.of(table, np.arange(begin, begin + len(table)))
        for begin, (name, table) in zip(begins, tables.items(), strict=False)
    }

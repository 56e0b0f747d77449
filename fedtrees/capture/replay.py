"""A captured run as a run of the bench's protocol of it: its coordinator is told what was captured.

The parties that hold data answer with what they said in the capture; all else the protocol does by
itself. What comes out has the protocol's messages, so that everything that reads these reads it.
"""

from __future__ import annotations

from collections import defaultdict, deque
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from itertools import pairwise
from typing import Any, TypeVar

import numpy as np

from fedtrees.audit import audit
from fedtrees.capture.model_readings import Shared
from fedtrees.capture.models import trees_of
from fedtrees.capture.records import Record
from fedtrees.capture.training import SERVER
from fedtrees.capture.wires import Decoded
from fedtrees.core.errors import DataError, UsageError
from fedtrees.core.local_data import LocalData
from fedtrees.core.messages import Message
from fedtrees.core.party import Party, handles
from fedtrees.core.registry import register
from fedtrees.core.schema import Feature, Schema, Table
from fedtrees.core.specs import parse_list
from fedtrees.messages.captured import (
    GradientTotals,
    HistogramSegment,
    Intercept,
    LabelShare,
    RankedSketch,
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
from fedtrees.protocols.base import Protocol
from fedtrees.protocols.cut_points import BinningClient
from fedtrees.protocols.horizontal.histogram_protocols import NVFlareHist
from fedtrees.protocols.horizontal.tree_sharing import FlowerBagging, FlowerCyclic
from fedtrees.protocols.training import Training, train
from fedtrees.protocols.vertically_held import ACTIVE, PASSIVE
from fedtrees.trees.boosted.fixed_point import to_fixed
from fedtrees.trees.boosted.forest import Tree
from fedtrees.trees.boosted.params import TreeParams

M = TypeVar("M", bound=Message)
#: Protocols of which a capture has all that parties answer.
KNOWN = (NVFlareHist, FlowerBagging, FlowerCyclic)
#: XGBoost's names of parameters that have another here.
_XGBOOST = {"eta": "learning_rate", "lambda": "reg_lambda", "alpha": "reg_alpha"}


class RecordedClient(Party):
    """Answers with what a party said in a capture, in its order."""

    role = BinningClient.role

    def __init__(self, name: str, said: Iterable[Message]) -> None:
        super().__init__(name)
        self.said: dict[type[Message], deque[Message]] = defaultdict(deque)
        for message in said:
            self.said[type(message)].append(message)
        self.bits = BaseScore(np.zeros(1, np.float32)).g_bits, 30

    def _next(self, kind: type[M]) -> M:
        if not self.said[kind]:
            raise DataError(
                f"the capture ends before {self.name!r} says a {kind.__name__} that the protocol "
                "asks for: give the run's parameters by --protocol"
            )
        message = self.said[kind].popleft()
        assert isinstance(message, kind)
        return message

    @handles(CutsRequest)
    def summarise(self, message: CutsRequest) -> FeatureSketch:
        """Answer with its sketch."""
        said = self._next(RankedSketch)
        return FeatureSketch(said.points, said.weights, said.offsets, said.low)

    @handles(HistogramRequest)
    def histogram(self, message: HistogramRequest) -> Histogram:
        """Answer with its sums of a level, and of a root those over all its rows."""
        said, k = self._next(HistogramSegment), len(message.nodes)
        root = k == 1 and message.nodes[0] == 0
        if (said.tree, said.nodes, said.level == 0) != (message.tree, k, root) or said.first:
            raise DataError(
                f"{self.name!r} tells {said.nodes} nodes of level {said.level} of tree {said.tree} "
                f"where the protocol asks for {k} of tree {message.tree}: give the run's "
                "parameters by --protocol"
            )
        sums = to_fixed(said.sums.reshape(k, -1, 2), self.bits)
        totals = self._next(GradientTotals).sums if root else np.zeros((0, 2))
        whole = to_fixed(np.reshape(totals, (-1, 2)), self.bits)
        return Histogram(message.tree, message.nodes, sums, whole, *self.bits)

    @handles(GrowRequest)
    def grow(self, message: GrowRequest) -> ClientTrees:
        """Answer with its trees."""
        return self._next(ClientTrees)

    @handles(BaseScore)
    def start(self, message: BaseScore) -> None:
        """Take note of the units of sums."""
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
    """A captured run, and the protocol of the bench that it is a run of.

    `rows`: How many each party has, by name. `columns`: Of the table.
    """

    protocol: Protocol
    said: Mapping[str, list[Message]]
    rows: Mapping[str, int]
    columns: int

    @staticmethod
    def of(decoded: Decoded, named: str = "") -> Replay | None:
        """Find out what a capture is a run of; None if it does not tell.

        Raises `UsageError` if a protocol is named of which no capture is replayed.
        """
        told = decoded.capture.told
        if told.wire in ("nvflare-trees", "flower"):
            return _of_trees(decoded, _known(named))
        said = _said(decoded)
        protocol = _known(named) or _of_job(told.told, said)
        if protocol is None:
            return None
        if protocol.base_score is None:
            start = [m.value for ms in said.values() for m in ms if isinstance(m, Intercept)]
            protocol = replace(protocol, base_score=start[0] if start else 0.5)
        if getattr(protocol, "cuts", "") == "sketch":
            protocol = replace(protocol, cuts="xgboost")
        sketches = [m for ms in said.values() for m in ms if isinstance(m, RankedSketch)]
        rows = {n: m.rows for n, ms in said.items() for m in ms if isinstance(m, LabelShare)}
        columns = len(sketches[0].low) if sketches else 0
        return Replay(protocol, said, rows or _rows_of_columns(said), columns)

    def run(self, truth: Mapping[str, Table] | None = None) -> Training:
        """Run the protocol, in which every party says what it said in the capture.

        Raises `DataError` if it did not say what the protocol asks for.

        `truth`: Rows of all parties, by name: these then say what the protocol makes of them.
        """
        names, said, protocol = [*self.rows], self.said, self.protocol
        if not names or not self.columns:
            raise DataError("the capture does not tell how many rows and columns there are")

        class Replayed(type(protocol)):
            def roles(self, parties: int) -> Mapping[str, str]:
                return {SERVER: SERVER, **dict.fromkeys(names, BinningClient.role)}

            def party(self, name: str, role: str, held: LocalData | None, *given: object) -> Party:
                if name == SERVER or truth is not None:
                    return super().party(name, role, held, *given)
                return RecordedClient(name, said[name])

        again = Replayed(**{f.name: getattr(protocol, f.name) for f in fields(protocol)})
        nothing = {
            name: Table(np.zeros((n, self.columns)), np.zeros(n, np.int64))
            for name, n in self.rows.items()
        }
        tables = nothing if truth is None else {name: truth[name] for name in names}
        return train(again, held_of(tables), schema_of(self.columns))


def named_protocol(named: str) -> Any:
    """Construct a protocol that somebody named, None if nobody did."""
    if not named:
        return None
    specs = parse_list([named])
    if len(specs) != 1:
        raise UsageError(f"--protocol {named}: give one, with one value of each parameter")
    return register.make("protocol", specs[0])


def _known(named: str) -> Any:
    """Return the same if captures are replayed as it; raises `UsageError` if not."""
    protocol = named_protocol(named)
    if protocol is not None and not isinstance(protocol, KNOWN):
        known = ", ".join(kind.name for kind in KNOWN)
        raise UsageError(f"no capture is replayed as {protocol.name}; as {known} they are")
    return protocol


def _said(records: Iterable[Record]) -> dict[str, list[Message]]:
    said: dict[str, list[Message]] = defaultdict(list)
    for r in records:
        if r.sender != SERVER:
            said[r.sender].append(r.message)
    return said


def _of_job(told: Mapping[str, Any], said: Mapping[str, list[Message]]) -> NVFlareHist | None:
    """Return the protocol of a job of histograms; None if its parameters are none of ours."""
    params, known = told.get("params"), TreeParams.__dataclass_fields__
    trees = {m.tree for ms in said.values() for m in ms if isinstance(m, GradientTotals)}
    if not isinstance(params, Mapping) or not trees:
        return None
    ours = {_XGBOOST.get(k, k): v for k, v in params.items()}
    kept = {k: v for k, v in ours.items() if k in known}
    try:
        return NVFlareHist(**{**kept, "trees": len(trees)})  # it may have stopped early
    except (UsageError, TypeError):
        return None


def _rows_of_columns(said: Mapping[str, list[Message]]) -> dict[str, int]:
    """Return the rows of every party by its fullest column."""
    sketches = {n: m for n, ms in said.items() for m in ms if isinstance(m, RankedSketch)}
    return {
        n: max(int(s.weights[b:e].sum()) for b, e in pairwise(s.offsets.tolist()))
        for n, s in sketches.items()
    }


def _depth(tree: Tree) -> int:
    depth = np.zeros(len(tree), np.int64)
    for node in np.flatnonzero(tree.feature >= 0):  # children come after their parent
        depth[[tree.left[node], tree.right[node]]] = depth[node] + 1
    return int(depth.max())


def _of_trees(decoded: Decoded, named: Any) -> Replay | None:
    """Return what trees that sites grew by themselves are a run of, None if they do not tell."""
    shared = Shared.of(decoded.capture, SERVER)
    if shared is None:
        return None
    found, said = audit(shared.model), _said(decoded)
    firsts: dict[str, int] = {}
    for told, owner in zip(found.trees, shared.owners, strict=True):
        firsts.setdefault(owner, int(told.n.sum()) if told.counted.all() else 0)
    rows = {name: firsts.get(name, 0) for name in said}  # in the order of their first answers
    if named is None:
        if found.settings is None or not all(rows.values()):
            return None
        replies = [m for ms in said.values() for m in ms if isinstance(m, ClientTrees)]
        rounds = [m.round for m in replies]
        kind = FlowerCyclic if len({*rounds}) == len(rounds) > 1 else FlowerBagging
        named = kind(
            trees=max(rounds) + 1,
            local_trees=len(replies[0].sizes),
            learning_rate=found.settings.learning_rate,
            reg_lambda=found.settings.reg_lambda,
            max_depth=min(30, max(1, *map(_depth, trees_of(shared.model)))),
        )
    return Replay(named, said, rows, len(shared.model.categorical))


def schema_of(columns: int) -> Schema:
    """Return what is known of columns without names."""
    return Schema(tuple(Feature(f"f{k}") for k in range(columns)), "label")


def columns_of(tables: Sequence[Table]) -> dict[str, LocalData]:
    """Return what parties hold that have columns of the same rows, the first one labels."""
    ends = np.cumsum([0, *(t.X.shape[1] for t in tables)]).tolist()
    names = [ACTIVE, *(f"{PASSIVE}-{k}" for k in range(1, len(tables)))]
    return {
        name: LocalData(np.arange(len(t)), np.arange(begin, end), t.X, None if begin else t.y)
        for name, t, (begin, end) in zip(names, tables, pairwise(ends), strict=True)
    }


def held_of(tables: Mapping[str, Table]) -> dict[str, LocalData]:
    """Return what each party holds, nobody the same row as another."""
    begins = np.cumsum([0, *map(len, tables.values())]).tolist()
    return {
        name: LocalData.of(table, np.arange(begin, begin + len(table)))
        for begin, (name, table) in zip(begins, tables.items(), strict=False)
    }

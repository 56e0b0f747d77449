"""Decode the collective operations of XGBoost's workers as messages.

The order of operations is that of ``tree_method=hist`` in XGBoost 3.2 (observed in its runs, and
``src/common/quantile.cc``): number of columns, label mean, categories, column sizes, sketches. Then
the histogram and the sums of the root follow for every tree, and the histograms of its levels. The
order is the same over a ring and over a server. `decode_rabit` decodes the traffic between workers
over XGBoost's own collective library (Rabit).
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Generator, Iterable, Iterator
from contextlib import AbstractContextManager, suppress
from dataclasses import replace
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from fedtrees.capture.collective import (
    RANK_BYTES,
    Connections,
    CutOff,
    Decoding,
    Ended,
    Hop,
    OtherOperation,
    Reduced,
    Ring,
    worker,
)
from fedtrees.capture.records import Record
from fedtrees.capture.relay import Frames
from fedtrees.core.errors import DataError
from fedtrees.core.messages import Message
from fedtrees.messages.captured import (
    ColumnSizes,
    EvaluationSums,
    GradientTotals,
    HistogramSegment,
    Intercept,
    LabelShare,
    RankedSketch,
    RowCount,
    WireBytes,
)

SERVER = "server"
# Smallest weight of a metric. Integers that are read as floats by mistake are smaller.
_LEAST = 1e-12
INTERCEPT = re.compile(rb"base_score[^\[]{1,20}\[([-+0-9.Ee]{1,30})\]")
_ENTRY = 4  # numbers per entry of a sketch: smallest rank, largest rank, weight, value
_MOST_COLUMNS, _MOST_ROWS, _MOST_TABLES = 1 << 20, 1 << 40, 64
#: Largest number of histograms per level. Of every pair of children, only one node has a histogram.
#: That of its sibling is the difference from the parent.
_MOST_NODES = 1 << 10
Sent = tuple[int, tuple[int, ...], Message, str]


class Operations(Protocol):
    """Collective operations in their order, each with the numbers that its members sent."""

    world: int
    central: bool  # whether a server with the number `world` computes the sums

    def trying(self) -> AbstractContextManager[None]:
        """Return to the current position if `OtherOperation` is raised."""

    def forget(self) -> None:
        """Declare that the reader never returns to a position before this one."""

    def reduce(self, n: int, dtype: str) -> Reduced:
        """Read an all-reduce of n numbers, by sum or by maximum."""

    def broadcast(self, size: int) -> bytes:
        """Read the bytes that worker 0 broadcasts."""

    def object(self, follows: Callable[[], None]) -> bytes:
        """Read a JSON-like object that worker 0 broadcasts. `follows` reads the next operation."""

    def next_size(self) -> int | None:
        """Return the size of the next operation in bytes, None if the bytes do not contain it."""


def decoded(operations: Operations) -> Generator[Record, None, str]:
    """Yield the messages of a training until no bytes remain, or an operation is not recognised.

    Returns the reason for the end.
    """
    return (yield from recorded(Training(operations).messages(), operations.world))


def recorded(messages: Iterator[Sent], world: int) -> Generator[Record, None, str]:
    """Yield messages with the names of the parties. Returns the reason for the end."""
    names = [*map(worker, range(world)), SERVER]
    try:
        for order, (sender, receivers, message, why) in enumerate(messages):
            yield Record(0, order, names[sender], tuple(names[r] for r in receivers), message, why)
    except OtherOperation as err:
        return str(err)
    return ""


class Training:
    """Reads the operations of one training in their order."""

    def __init__(self, operations: Operations) -> None:
        self._ring, self._world, self._central = operations, operations.world, operations.central
        self._everybody = tuple(range(operations.world))
        self._columns = 0
        self._bins = 0  # number of bins of all columns
        self._starts: NDArray[np.int64] | None = None  # first bin of each column, None if unsure
        self._rows: NDArray[np.int64] = np.zeros(self._world, np.int64)
        self._sizes: NDArray[np.int64] = np.zeros(0, np.int64)  # present values of each column
        self._distinct: NDArray[np.int64] = np.zeros(0, np.int64)
        self._hessians: NDArray[np.float64] = np.zeros(0)  # hessians of the latest root, by bin

    def messages(self) -> Iterator[Sent]:
        """Yield the messages until no bytes remain, or an operation is not recognised."""
        yield from self._before()
        tree, level = -1, 0
        # Nothing in the bytes shows which operation follows. A new tree is tried first, then the
        # next level of the current tree, then a metric.
        while True:
            self._ring.forget()
            try:
                sent = self._root(tree + 1)
                tree, level = tree + 1, 0
            except OtherOperation:
                try:
                    level += 1
                    sent = self._level(tree, level)
                except OtherOperation:
                    level -= 1
                    sent = self._metric(tree)
            yield from sent

    def _others(self, rank: int) -> tuple[int, ...]:
        """Return all ranks except one."""
        return tuple(r for r in self._everybody if r != rank)

    def _number(self, dtype: str) -> tuple[NDArray[Any], tuple[tuple[int, ...], ...]]:
        """Read one number of every worker. Return the numbers and the receivers of each."""
        local_hops = {h.sender: h for h in self._ring.reduce(1, dtype).hops if len(h.members) == 1}
        numbers = np.concatenate([local_hops[r].numbers for r in self._everybody])
        return numbers, tuple(local_hops[r].receivers for r in self._everybody)

    def _same(self, dtype: str) -> int:
        """Read a number that must be the same for all workers."""
        numbers, _ = self._number(dtype)
        if (numbers != numbers[0]).any():
            raise OtherOperation("a number that workers agree on differs")
        return int(numbers[0])

    def _before(self) -> Iterator[Sent]:
        """Read the operations before the first tree."""
        ring, w = self._ring, self._world
        self._columns = d = self._same("<u8")
        if not 0 < d <= _MOST_COLUMNS:
            raise OtherOperation(f"{d} columns")
        self._tables()
        yield from self._start()
        self._seed()
        ring.reduce(w * (d + 1), "<u8")
        ring.reduce(int(ring.reduce(w + 1, "<u8").total.sum()), "<f4")  # categories
        yield from self._sketches(ring.reduce(d, "<u8"))

    def _tables(self) -> None:
        """Skip the operations with which every table begins.

        The next operation is the number of columns of the model.
        """
        # The number of tables is not known. The number of columns as uint32 marks the model.
        for _ in range(_MOST_TABLES):
            with suppress(OtherOperation), self._ring.trying():
                if self._same("<u4") == self._columns:
                    return
                raise OtherOperation("not yet")
            try:
                with self._ring.trying():
                    if self._same("<u8") != self._columns:
                        raise OtherOperation("another number of columns")
            except OtherOperation:
                self._ring.reduce(self._world, "<i4")
        raise OtherOperation("no number of columns")

    def _seed(self) -> None:
        """Read the seed of column samples and, once more, the number of columns."""
        self._ring.broadcast(4)
        if self._same("<u4") != self._columns:
            raise OtherOperation("another number of columns")

    def _start(self) -> Iterator[Sent]:
        """Read the label means, if boosting starts from their mean."""
        ring = self._ring
        try:
            with ring.trying():
                rows, _ = self._number("<i8")
                share, to = self._number("<f4")
                if (rows <= 0).any() or rows.max() > _MOST_ROWS or not np.isfinite(share).all():
                    raise OtherOperation("no label means")
                text = ring.object(self._seed)
        except OtherOperation:
            return
        self._rows = rows
        why = "where boosting starts: the mean label"
        for rank in self._everybody:
            yield rank, to[rank], RowCount(int(rows[rank]), worker(rank)), why
        for rank in self._everybody:
            part = LabelShare(int(rows[rank]), float(share[rank]), worker(rank))
            yield rank, to[rank], part, why
        value = INTERCEPT.search(text)
        if value is not None:
            intercept, why = Intercept(float(value[1]), worker(0)), "where boosting starts"
            yield from self._passed_on(0, intercept, intercept, why)

    def _passed_on(self, rank: int, message: Message, passed: Message, why: str) -> Iterator[Sent]:
        """Yield the broadcast of a worker, which a server forwards if there is one."""
        if self._central:
            yield rank, (self._world,), message, why
        yield self._world if self._central else rank, self._others(rank), passed, why

    def _sketches(self, sizes: Reduced) -> Iterator[Sent]:
        """Read the sketches of all workers."""
        ring, w, d = self._ring, self._world, self._columns
        self._sizes = sizes.total.astype(np.int64)
        for hop in sizes.hops:
            if len(hop.members) == 1 and len(hop.numbers) == d:
                present = ColumnSizes(hop.numbers.astype(np.int64))
                yield hop.sender, hop.receivers, present, "values that are not missing, by column"
        # Each worker adds the borders of its columns to an array of zeros. The sum is therefore a
        # table with the borders of all workers.
        scan = ring.reduce(w * (d + 1), "<u8").total.astype(np.int64).reshape(w, d + 1)
        if (scan[:, 0] != 0).any() or (np.diff(scan) < 0).any() or scan.max() > 1 << 26:
            raise OtherOperation("no sizes of sketches")
        entries = int(scan[:, -1].sum())
        gathered = ring.reduce(entries * _ENTRY, "<f4")
        floats = gathered.total.reshape(-1, _ENTRY)
        ends = np.cumsum(scan[:, -1])
        values: list[list[NDArray[np.float32]]] = [[] for _ in range(d)]
        for rank in self._everybody:
            entries_of_rank = floats[ends[rank] - scan[rank, -1] : ends[rank]]
            sketch = sketch_of(entries_of_rank, scan[rank])
            for f in range(d):
                values[f].append(sketch.points[sketch.offsets[f] : sketch.offsets[f + 1]])
            passed = replace(sketch, owner=worker(rank))
            why = "every worker computes the cut points from all sketches"
            yield from self._passed_on(rank, sketch, passed, why)
        self._distinct = np.array([len(np.unique(np.concatenate(v))) or 1 for v in values])

    def _root(self, tree: int) -> list[Sent]:
        """Read the histogram of a root and its sums."""
        ring, last = self._ring, OtherOperation("no histogram of a root")
        size = ring.next_size()
        told_bins = [size // 16] if size is not None else [self._bins] if self._bins else None
        for bins in self._likely_bins() if told_bins is None else told_bins:
            try:
                with ring.trying():
                    histogram = ring.reduce(2 * bins, "<f8")
                    sums = ring.reduce(2, "<f8")
                    self._check_root(histogram, sums, bins)
            except OtherOperation as err:
                last = err
                continue
            # If no column was cut off by `max_bin`, each column has one bin per distinct value.
            if not self._bins and bins == self._distinct.sum():
                self._starts = np.cumsum([0, *self._distinct[:-1]])
            self._bins, self._hessians = bins, histogram.total[1::2]
            sent = list(self._segments(histogram, tree, 0, 1))
            why = "sums over the root of a tree"
            for hop in sums.hops:
                if len(hop.numbers) == 2:
                    totals = GradientTotals(tree, hop.numbers, self._whose(hop))
                    sent.append((hop.sender, hop.receivers, totals, why))
            if len(sums.hops[0].numbers) < 2:  # with two workers, each computes one of both sums
                both = GradientTotals(tree, sums.total, ",".join(map(worker, self._everybody)))
                sent += [(r, self._others(r), both, f"{why}, of both") for r in self._everybody]
            return sent
        raise last

    def _likely_bins(self) -> Iterator[int]:
        """Yield possible numbers of bins, the most likely ones first."""
        upper = int(self._distinct.sum())
        yield upper
        # With `max_bin`, a column has at most this many bins. The common values are tried first.
        for bins in (256, 512, 128, 64, 32, 16, 1024):
            yield int(np.minimum(self._distinct, bins).sum())
        yield from range(len(self._distinct), min(upper, len(self._distinct) << 11))

    def _check_root(self, histogram: Reduced, sums: Reduced, bins: int) -> None:
        """Raise `OtherOperation` unless the sums agree with the histogram."""
        g, h = histogram.total.reshape(bins, 2).sum(axis=0)
        (G, H), d = sums.total, self._columns
        rows = self._rows.sum()
        complete = rows > 0 and (self._sizes == rows).all()
        # Without missing values, each of the d columns contains every row once, so that the bins of
        # the histogram add up to d times the sums of the root.
        scale = 1e-6 * d * max(abs(H), abs(G), 1e-12)
        if not np.isfinite([g, h, G, H]).all() or H <= 0:
            raise OtherOperation("no sums of hessians")
        if complete and (abs(h - d * H) > scale or abs(g - d * G) > scale):
            raise OtherOperation("a histogram of other rows than the root's")
        if not complete and h > d * H + scale:
            raise OtherOperation("a histogram of more rows than the root's")

    def _level(self, tree: int, level: int) -> list[Sent]:
        """Read the histograms of some nodes of a level."""
        if not self._bins or level > 64:
            raise OtherOperation("no histogram")
        size = self._ring.next_size()
        limit = min(_MOST_NODES, 1 << (level - 1))
        for nodes in range(1, limit + 1) if size is None else [size // (16 * self._bins)]:
            try:
                with self._ring.trying():
                    histogram = self._ring.reduce(2 * self._bins * nodes, "<f8")
                    self._check_level(histogram, nodes)
                    return list(self._segments(histogram, tree, level, nodes))
            except CutOff:
                break
            except OtherOperation:
                continue
        raise OtherOperation("no histogram of a level")

    def _check_level(self, histogram: Reduced, nodes: int) -> None:
        """Raise `OtherOperation` unless rows of the root can have these sums.

        All columns must also give the same sums.
        """
        sums = histogram.total.reshape(nodes, self._bins, 2)
        if not np.isfinite(sums).all() or (sums[..., 1] < 0).any() or not sums[..., 1].any():
            raise OtherOperation("no sums of hessians")
        # The nodes of a level are disjoint parts of the root.
        if (sums[..., 1].sum(axis=0) > self._hessians + 1e-6 * self._hessians.max()).any():
            raise OtherOperation("a bin with more than the root has there")
        rows = self._rows.sum()
        if self._starts is not None and rows and (self._sizes == rows).all():
            by_column = np.add.reduceat(sums, self._starts, axis=1)
            scale = 1e-6 * np.maximum(by_column[..., 1].max(), 1e-12)
            if (np.abs(by_column - by_column[:, :1]) > scale).any():
                raise OtherOperation("columns with different sums for one node")

    def _segments(self, reduction: Reduced, tree: int, level: int, nodes: int) -> Iterator[Sent]:
        """Yield the parts of a histogram as messages."""
        for hop in reduction.hops:
            whose = self._whose(hop)
            message = HistogramSegment(tree, level, nodes, hop.first, hop.numbers, whose)
            why = "summed histogram" if len(hop.members) == self._world else "histogram on its way"
            yield hop.sender, hop.receivers, message, why

    def _metric(self, round: int) -> list[Sent]:
        """Read the sums of a metric, and skip the remaining operations of an evaluation.

        The skipped operations are the number of rows (for an AUC), and values of metrics, on which
        all workers agree.
        """
        ring = self._ring
        with suppress(OtherOperation), ring.trying():
            value, _ = self._number("<f8")
            if not np.isfinite(value[0]) or (value != value[0]).any():
                raise OtherOperation("no value that all agree on")
            return []
        with suppress(OtherOperation), ring.trying():
            sums = ring.reduce(2, "<f8")
            if not np.isfinite(sums.total).all() or sums.total[1] < _LEAST:
                raise OtherOperation("no sums of a metric")
            return [
                (h.sender, h.receivers, EvaluationSums(round, h.numbers, self._whose(h)), "metric")
                for h in sums.hops
                if len(h.numbers) == 2
            ]
        with suppress(OtherOperation), ring.trying():
            if (ring.reduce(2, "<u8").total <= _MOST_ROWS).all():
                return []
            raise OtherOperation("no numbers of rows")
        raise OtherOperation("an operation that is not known, or was cut off")

    def _whose(self, hop: Hop) -> str:
        """Return the names of the workers whose numbers are in a sum."""
        return ",".join(map(worker, hop.members))


def sketch_of(entries: NDArray[np.float32], scan: NDArray[np.int64]) -> RankedSketch:
    """Return a worker's sketch.

    `entries` (float32, shape (s, 4)) contains the smallest and the largest rank, the weight and the
    value of each point. `scan` (int64, shape (d + 1,)) contains the first point of each column.
    Raises `OtherOperation` if the entries are not ranks.
    """
    least, greatest, weight, value = entries.astype(np.float64).T
    if not np.isfinite(entries).all() or (entries[:, :3] > _MOST_ROWS).any():
        raise OtherOperation("no ranks of sketches")
    points, weights, offsets, complete_columns, low = [], [], [0], [], []
    for f in range(len(scan) - 1):
        span = slice(scan[f], scan[f + 1])
        # `upto` is the number of rows up to each point. The sketch contains every value of the
        # column if the rank of each point is exactly the number of rows before it.
        x, upto = value[span], np.rint(least[span] + weight[span])
        exact = (greatest[span] == least[span] + weight[span]).all() and (
            least[span] == np.concatenate([[0.0], upto[:-1]])[: len(x)]
        ).all()
        if (np.diff(x) <= 0).any() or (np.diff(upto) < 0).any():
            raise OtherOperation("a sketch out of order")
        if len(x) and not exact:
            upto[-1] = max(upto[-1], np.rint(greatest[span][-1]))
        rows = np.diff(upto, prepend=0.0)
        present = rows > 0
        points.append(x[present])
        weights.append(rows[present])
        offsets.append(offsets[-1] + int(present.sum()))
        complete_columns.append(bool(exact and (weight[span] == np.rint(weight[span])).all()))
        low.append(x[0] if len(x) else np.nan)
    return RankedSketch(
        np.concatenate(points).astype(np.float32),
        np.concatenate(weights).astype(np.int64),
        np.array(offsets, np.int32),
        np.array(low, np.float32),
        whole=np.array(complete_columns, np.bool_),
    )


_MOST_WORKERS = 512


def decode_rabit(records: Iterable[Record]) -> Decoding:
    """Decode a capture of ``rabit``.

    Raises `DataError` if the workers do not introduce themselves as those of XGBoost.
    """
    ring = _Wiring(records).links(Ring)
    why = yield from decoded(ring)
    return Ended.of(ring.left(), why)


class _Wiring(Connections):
    """Finds the workers at both ends of each connection, from their messages to the tracker."""

    def __init__(self, records: Iterable[Record]) -> None:
        super().__init__(records)
        self._frames: dict[tuple[int, bool], Frames] = {}
        self._ports: dict[int, int] = {}  # port of the worker, by connection to the tracker
        self._ranks: dict[str, int] = {}  # rank of the worker behind each relay port
        self._doors: dict[int, str] = {}  # relay port of each connection

    def _identify(self, chunk: WireBytes) -> None:
        key, data = (chunk.link, chunk.opener), chunk.data.tobytes()
        if chunk.door == "tracker":
            for text in self._frames.setdefault(key, Frames()).feed(data):
                self._introduced(chunk, text)
            return
        self._doors[chunk.link] = chunk.door
        self._received.setdefault(key, bytearray()).extend(data)
        self._connect()

    def _introduced(self, chunk: WireBytes, text: bytes) -> None:
        """Store the port, the rank or the number of workers in a message to or from the tracker."""
        try:
            fields = json.loads(text)
            if chunk.opener and fields.get("cmd") == 1:
                self._ports[chunk.link] = int(fields["port"])
            elif not chunk.opener and "world_size" in fields:
                self._world = int(fields["world_size"])
            elif not chunk.opener and "rank" in fields:
                door = f"peer:{self._ports[chunk.link]}"
                # The tracker sends a worker the address and the rank of its successor in the ring.
                self._ranks[door] = (int(fields["rank"]) - 1) % max(self._world, 1)
        except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as err:
            raise DataError(f"no words of an XGBoost tracker: {text[:60]!r}") from err
        if self._world > _MOST_WORKERS:
            raise DataError(f"a tracker of {self._world} workers; {_MOST_WORKERS} are read at most")

    def _connect(self) -> None:
        """Assign ranks to the ends of the connections whose opener has sent its rank."""
        for link, door in self._doors.items():
            data = self._received.get((link, True), b"")
            # The first connection to a worker belongs to the bootstrap ring, which is given up.
            first = min(k for k, d in self._doors.items() if d == door)
            if (
                link in self._ends
                or link == first
                or len(data) < RANK_BYTES
                or door not in self._ranks
            ):
                continue
            rank = int.from_bytes(data[:RANK_BYTES], "little")
            if not rank < self._ranks[door] < self._world:
                raise DataError(f"worker {self._ranks[door]} is called by one of rank {rank}")
            self._ends[link] = rank, self._ranks[door]

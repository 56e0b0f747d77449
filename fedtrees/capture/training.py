"""What XGBoost's workers tell one another while they train, as messages.

The order is that of ``tree_method=hist`` in XGBoost 3.2 (read off its runs, and
``src/common/quantile.cc``): number of columns, label mean, categories, column sizes, sketches; then
of every tree the root's histogram and sums, and the histograms of levels. It is the same over a
ring and over a server.
"""

import re
from collections.abc import Callable, Generator, Iterator
from contextlib import AbstractContextManager, suppress
from dataclasses import replace
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from fedtrees.capture.operations import CutOff, Hop, OtherOperation, Reduced, worker
from fedtrees.capture.records import Record
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
)

SERVER = "server"
_LEAST = 1e-12  # of a weight: whole numbers that are read as others are less
INTERCEPT = re.compile(rb"base_score[^\[]{1,20}\[([-+0-9.Ee]{1,30})\]")
_ENTRY = 4  # float32 of a sketch's entry: least rank, greatest rank, weight, value
_MOST_COLUMNS, _MOST_ROWS, _MOST_TABLES = 1 << 20, 1 << 40, 64
#: Histograms of a level: of every pair of children one node's, the other's follows.
_MOST_NODES = 1 << 10
Told = tuple[int, tuple[int, ...], Message, str]


class Operations(Protocol):
    """Collective operations in their order, each with what its members sent."""

    world: int
    central: bool  # whether a server adds, as number `world`

    def trying(self) -> AbstractContextManager[None]:
        """Go back to where it was if `OtherOperation` is raised."""

    def forget(self) -> None:
        """Never go back beyond this place."""

    def reduce(self, n: int, dtype: str) -> Reduced:
        """Read an all-reduce by sums, or the greatest, of n numbers."""

    def broadcast(self, size: int) -> bytes:
        """Read what worker 0 tells everybody."""

    def object(self, follows: Callable[[], None]) -> bytes:
        """Read a JSON-like object that worker 0 tells everybody; `follows` reads what is next."""

    def next_size(self) -> int | None:
        """Return the bytes of the next operation, None where they are not told."""


def decoded(operations: Operations) -> Generator[Record, None, str]:
    """Yield what crossed in a training until nothing is left, or something that is not known.

    Returns why it ended.
    """
    return (yield from recorded(Training(operations).messages(), operations.world))


def recorded(told: Iterator[Told], world: int) -> Generator[Record, None, str]:
    """Yield messages with the names of parties; return why they ended."""
    names = [*map(worker, range(world)), SERVER]
    try:
        for order, (sender, receivers, message, why) in enumerate(told):
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
        self._bins = 0  # of all columns
        self._starts: NDArray[np.int64] | None = None  # first bin of each column, where certain
        self._rows: NDArray[np.int64] = np.zeros(self._world, np.int64)
        self._sizes: NDArray[np.int64] = np.zeros(0, np.int64)  # values that are there, of all
        self._distinct: NDArray[np.int64] = np.zeros(0, np.int64)
        self._hessians: NDArray[np.float64] = np.zeros(0)  # of the latest root, by bin

    def messages(self) -> Iterator[Told]:
        """Yield what crosses until nothing is left, or something that is not known."""
        yield from self._before()
        tree, level = -1, 0
        while True:
            self._ring.forget()
            try:
                told = self._root(tree + 1)
                tree, level = tree + 1, 0
            except OtherOperation:
                try:
                    level += 1
                    told = self._level(tree, level)
                except OtherOperation:
                    level -= 1
                    told = self._metric(tree)
            yield from told

    def _others(self, rank: int) -> tuple[int, ...]:
        return tuple(r for r in self._everybody if r != rank)

    def _number(self, dtype: str) -> tuple[NDArray[Any], tuple[tuple[int, ...], ...]]:
        """Read one number of every worker; return them, and to whom each one tells its own."""
        alone = {h.sender: h for h in self._ring.reduce(1, dtype).hops if len(h.members) == 1}
        found = np.concatenate([alone[r].numbers for r in self._everybody])
        return found, tuple(alone[r].receivers for r in self._everybody)

    def _same(self, dtype: str) -> int:
        """Read a number that must be the same for all."""
        found, _ = self._number(dtype)
        if (found != found[0]).any():
            raise OtherOperation("a number that workers agree on differs")
        return int(found[0])

    def _before(self) -> Iterator[Told]:
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
        """Pass over what every table begins with, up to the number of columns of the model."""
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

    def _start(self) -> Iterator[Told]:
        """Read label means, where boosting starts with their mean."""
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
            told, why = Intercept(float(value[1]), worker(0)), "where boosting starts"
            yield from self._passed_on(0, told, told, why)

    def _passed_on(self, rank: int, own: Message, passed: Message, why: str) -> Iterator[Told]:
        """Yield what a worker tells all others, by the server if there is one."""
        if self._central:
            yield rank, (self._world,), own, why
        yield self._world if self._central else rank, self._others(rank), passed, why

    def _sketches(self, sizes: Reduced) -> Iterator[Told]:
        ring, w, d = self._ring, self._world, self._columns
        self._sizes = sizes.total.astype(np.int64)
        for hop in sizes.hops:
            if len(hop.members) == 1 and len(hop.numbers) == d:
                present = ColumnSizes(hop.numbers.astype(np.int64))
                yield hop.sender, hop.receivers, present, "values that are not missing, by column"
        scan = ring.reduce(w * (d + 1), "<u8").total.astype(np.int64).reshape(w, d + 1)
        if (scan[:, 0] != 0).any() or (np.diff(scan) < 0).any() or scan.max() > 1 << 26:
            raise OtherOperation("no sizes of sketches")
        entries = int(scan[:, -1].sum())
        gathered = ring.reduce(entries * _ENTRY, "<f4")
        floats = gathered.total.reshape(-1, _ENTRY)
        ends = np.cumsum(scan[:, -1])
        values: list[list[NDArray[np.float32]]] = [[] for _ in range(d)]
        for rank in self._everybody:
            mine = floats[ends[rank] - scan[rank, -1] : ends[rank]]
            sketch = sketch_of(mine, scan[rank])
            for f in range(d):
                values[f].append(sketch.points[sketch.offsets[f] : sketch.offsets[f + 1]])
            passed = replace(sketch, owner=worker(rank))
            why = "everybody makes cut points of all sketches"
            yield from self._passed_on(rank, sketch, passed, why)
        self._distinct = np.array([len(np.unique(np.concatenate(v))) or 1 for v in values])

    def _root(self, tree: int) -> list[Told]:
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
            if not self._bins and bins == self._distinct.sum():
                self._starts = np.cumsum([0, *self._distinct[:-1]])
            self._bins, self._hessians = bins, histogram.total[1::2]
            told = list(self._segments(histogram, tree, 0, 1))
            why = "sums over the root of a tree"
            for hop in sums.hops:
                if len(hop.numbers) == 2:
                    totals = GradientTotals(tree, hop.numbers, self._whose(hop))
                    told.append((hop.sender, hop.receivers, totals, why))
            if len(sums.hops[0].numbers) < 2:  # two workers: each adds to one of both sums
                whole = GradientTotals(tree, sums.total, ",".join(map(worker, self._everybody)))
                told += [(r, self._others(r), whole, f"{why}, of both") for r in self._everybody]
            return told
        raise last

    def _likely_bins(self) -> Iterator[int]:
        most = int(self._distinct.sum())
        yield most
        for bins in (256, 512, 128, 64, 32, 16, 1024):
            yield int(np.minimum(self._distinct, bins).sum())
        yield from range(len(self._distinct), min(most, len(self._distinct) << 11))

    def _check_root(self, histogram: Reduced, sums: Reduced, bins: int) -> None:
        """Raise `OtherOperation` unless these are the sums of that histogram."""
        g, h = histogram.total.reshape(bins, 2).sum(axis=0)
        (G, H), d = sums.total, self._columns
        rows = self._rows.sum()
        whole = rows > 0 and (self._sizes == rows).all()
        scale = 1e-6 * d * max(abs(H), abs(G), 1e-12)
        if not np.isfinite([g, h, G, H]).all() or H <= 0:
            raise OtherOperation("no sums of hessians")
        if whole and (abs(h - d * H) > scale or abs(g - d * G) > scale):
            raise OtherOperation("a histogram of other rows than the root's")
        if not whole and h > d * H + scale:
            raise OtherOperation("a histogram of more rows than the root's")

    def _level(self, tree: int, level: int) -> list[Told]:
        """Read the histograms of some nodes of a level."""
        if not self._bins or level > 64:
            raise OtherOperation("no histogram")
        size = self._ring.next_size()
        most = min(_MOST_NODES, 1 << (level - 1))
        for nodes in range(1, most + 1) if size is None else [size // (16 * self._bins)]:
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
        """Raise `OtherOperation` unless rows of the root, told alike by columns, can sum to it."""
        sums = histogram.total.reshape(nodes, self._bins, 2)
        if not np.isfinite(sums).all() or (sums[..., 1] < 0).any() or not sums[..., 1].any():
            raise OtherOperation("no sums of hessians")
        if (sums[..., 1].sum(axis=0) > self._hessians + 1e-6 * self._hessians.max()).any():
            raise OtherOperation("a bin with more than the root has there")
        rows = self._rows.sum()
        if self._starts is not None and rows and (self._sizes == rows).all():
            by_column = np.add.reduceat(sums, self._starts, axis=1)
            scale = 1e-6 * np.maximum(by_column[..., 1].max(), 1e-12)
            if (np.abs(by_column - by_column[:, :1]) > scale).any():
                raise OtherOperation("columns that tell different sums of one node")

    def _segments(self, found: Reduced, tree: int, level: int, nodes: int) -> Iterator[Told]:
        for hop in found.hops:
            whose = self._whose(hop)
            message = HistogramSegment(tree, level, nodes, hop.first, hop.numbers, whose)
            why = "summed histogram" if len(hop.members) == self._world else "histogram on its way"
            yield hop.sender, hop.receivers, message, why

    def _metric(self, round: int) -> list[Told]:
        """Read the sums that a metric is made of; pass over what else an evaluation says.

        That is, of an AUC, how many rows there are, and values of metrics, on which all agree.
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
        return ",".join(map(worker, hop.members))


def sketch_of(entries: NDArray[np.float32], scan: NDArray[np.int64]) -> RankedSketch:
    """Return a worker's sketch.

    Raises `OtherOperation` if these are no ranks.

    `entries`: float32 array, shape (s, 4). Least and greatest rank, weight and value of each point.
    `scan`: int64 array, shape (d + 1,). Where the points of each column begin.
    """
    least, greatest, weight, value = entries.astype(np.float64).T
    if not np.isfinite(entries).all() or (entries[:, :3] > _MOST_ROWS).any():
        raise OtherOperation("no ranks of sketches")
    points, weights, offsets, whole, low = [], [], [0], [], []
    for f in range(len(scan) - 1):
        span = slice(scan[f], scan[f + 1])
        x, upto = value[span], np.rint(least[span] + weight[span])
        exact = (greatest[span] == least[span] + weight[span]).all() and (
            least[span] == np.concatenate([[0.0], upto[:-1]])[: len(x)]
        ).all()
        if (np.diff(x) <= 0).any() or (np.diff(upto) < 0).any():
            raise OtherOperation("a sketch out of order")
        if len(x) and not exact:
            upto[-1] = max(upto[-1], np.rint(greatest[span][-1]))
        rows = np.diff(upto, prepend=0.0)
        kept = rows > 0
        points.append(x[kept])
        weights.append(rows[kept])
        offsets.append(offsets[-1] + int(kept.sum()))
        whole.append(bool(exact and (weight[span] == np.rint(weight[span])).all()))
        low.append(x[0] if len(x) else np.nan)
    return RankedSketch(
        np.concatenate(points).astype(np.float32),
        np.concatenate(weights).astype(np.int64),
        np.array(offsets, np.int32),
        np.array(low, np.float32),
        whole=np.array(whole, np.bool_),
    )

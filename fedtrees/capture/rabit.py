"""What XGBoost's workers tell one another over its own collective, as messages.

The order is that of ``tree_method=hist`` in XGBoost 3.2 (read off its runs, and
``src/common/quantile.cc``): number of columns, label mean, categories, column sizes, sketches; then
of every tree the root's histogram and sums, and the histograms of levels. What an operation holds
is checked against what was passed on, so that what is returned crossed as it stands.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from fedtrees.capture.rabit_relay import Frames
from fedtrees.capture.records import Record
from fedtrees.capture.ring import CutOff, OtherOperation, Reduced, Ring
from fedtrees.core.errors import DataError
from fedtrees.core.messages import Message
from fedtrees.messages.captured import (
    ColumnSizes,
    GradientTotals,
    HistogramSegment,
    LabelMean,
    RankedSketch,
    WireBytes,
)

_ENTRY = 4  # float32 of a sketch's entry: least rank, greatest rank, weight, value
_MOST_WORKERS, _MOST_COLUMNS, _MOST_TEXT = 512, 1 << 20, 4096
#: Histograms of a level: of every pair of children one node's, the other's follows.
_MOST_NODES = 1 << 10


@dataclass(frozen=True)
class Ended:
    """Where decoding ended: `left` bytes that were not understood; `why`, where there are any."""

    left: int = 0
    why: str = ""


def worker(rank: int) -> str:
    """Return the name of a worker."""
    return f"worker-{rank}"


class Rabit:
    """Decodes a capture of ``rabit``; iterate over it once.

    Raises `DataError` if workers do not introduce themselves as XGBoost's do.

    Attributes
    ----------
    workers : tuple of str
        By rank; known once the first message was read.
    ended : Ended or None
        Once everything was read.
    """

    def __init__(self, records: Iterable[Record]) -> None:
        self._chunks = (r.message for r in records if isinstance(r.message, WireBytes))
        self._wiring = _Wiring()
        self.workers: tuple[str, ...] = ()
        self.ended: Ended | None = None
        self._order = 0

    def __iter__(self) -> Iterator[Record]:
        ring = self._wiring.connected(self._chunks)
        self.workers = tuple(map(worker, range(ring.world)))
        why = ""
        try:
            for sender, receivers, message, reason in _Training(ring).messages():
                names = tuple(map(worker, receivers))
                yield Record(0, self._order, worker(sender), names, message, reason)
                self._order += 1
        except CutOff:
            why = "cut off"
        except OtherOperation as err:
            why = str(err)
        left = ring.left()
        self.ended = Ended(left, why or "nothing that is known follows") if left else Ended()


class _Wiring:
    """Finds out which connection is between which workers."""

    def __init__(self) -> None:
        self._said: dict[tuple[int, bool], bytearray] = {}
        self._frames: dict[tuple[int, bool], Frames] = {}
        self._ports: dict[int, int] = {}  # of the worker that speaks on a connection to the tracker
        self._ranks: dict[str, int] = {}  # by door
        self._doors: dict[int, str] = {}  # by connection
        self._links: dict[int, tuple[int, int]] = {}  # opener and opened, by connection
        self._world = 0
        self._ring: Ring | None = None

    def connected(self, chunks: Iterator[WireBytes]) -> Ring:
        """Return the bytes between workers, once all of them are connected."""
        for chunk in chunks:
            self._take(chunk)
            if self._world and len(self._links) == self._world * (self._world - 1) // 2:
                ring = Ring(self._world, lambda: self._more(chunks))
                self._ring = ring
                for (link, opener), said in self._said.items():
                    if link in self._links:
                        a, b = self._links[link] if opener else self._links[link][::-1]
                        ring.streams[a, b] += said[4:] if opener else said
                self._said.clear()
                return ring
        raise DataError(
            "the capture ends before all workers are connected with one another; let it run from "
            "before the first worker starts"
        )

    def _more(self, chunks: Iterator[WireBytes]) -> bool:
        assert self._ring is not None
        for chunk in chunks:
            if chunk.link in self._links and chunk.data.size:
                ends = self._links[chunk.link]
                self._ring.streams[ends if chunk.opener else ends[::-1]] += chunk.data.tobytes()
                return True
        return False

    def _take(self, chunk: WireBytes) -> None:
        key, said = (chunk.link, chunk.opener), chunk.data.tobytes()
        if chunk.door == "tracker":
            for text in self._frames.setdefault(key, Frames()).feed(said):
                self._introduced(chunk, text)
            return
        self._doors[chunk.link] = chunk.door
        self._said.setdefault(key, bytearray()).extend(said)
        self._connect()

    def _introduced(self, chunk: WireBytes, text: bytes) -> None:
        try:
            told = json.loads(text)
            if chunk.opener and told.get("cmd") == 1:
                self._ports[chunk.link] = int(told["port"])
            elif not chunk.opener and "world_size" in told:
                self._world = int(told["world_size"])
            elif not chunk.opener and "rank" in told:
                door = f"peer:{self._ports[chunk.link]}"
                self._ranks[door] = (int(told["rank"]) - 1) % max(self._world, 1)
        except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as err:
            raise DataError(f"no words of an XGBoost tracker: {text[:60]!r}") from err
        if self._world > _MOST_WORKERS:
            raise DataError(f"a tracker of {self._world} workers; {_MOST_WORKERS} are read at most")

    def _connect(self) -> None:
        """Name the ends of the connections whose opener said its rank."""
        for link, door in self._doors.items():
            said = self._said.get((link, True), b"")
            first = min(k for k, d in self._doors.items() if d == door)  # the ring's, given up
            if link in self._links or link == first or len(said) < 4 or door not in self._ranks:
                continue
            rank = int.from_bytes(said[:4], "little")
            if not rank < self._ranks[door] < self._world:
                raise DataError(f"worker {self._ranks[door]} is called by one of rank {rank}")
            self._links[link] = rank, self._ranks[door]


Told = tuple[int, tuple[int, ...], Message, str]


class _Training:
    """Reads the operations of one training in their order."""

    def __init__(self, ring: Ring) -> None:
        self._ring, self._world = ring, ring.world
        self._everybody = tuple(range(ring.world))
        self._columns = 0
        self._bins = 0  # of all columns
        self._starts: NDArray[np.int64] | None = None  # first bin of each column, where certain
        self._rows: NDArray[np.int64] = np.zeros(self._world, np.int64)
        self._sizes: NDArray[np.int64] = np.zeros(0, np.int64)  # values that are there, of all
        self._distinct: NDArray[np.int64] = np.zeros(0, np.int64)

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
                    self._metric()
                    told = []
            yield from told

    def _others(self, rank: int) -> tuple[int, ...]:
        return tuple(r for r in self._everybody if r != rank)

    def _number(self, dtype: str) -> NDArray[np.generic]:
        """Read one number of every worker."""
        size = np.dtype(dtype).itemsize
        parts = self._ring.gather([size] * self._world)
        found: NDArray[np.generic] = np.frombuffer(b"".join(parts), dtype)
        return found

    def _before(self) -> Iterator[Told]:
        ring, w = self._ring, self._world
        columns = self._number("<u8")
        self._columns = d = int(columns[0])
        if not 0 < d <= _MOST_COLUMNS or (columns != columns[0]).any():
            raise OtherOperation("workers do not begin with their number of columns")
        ring.reduce(w, "<i4")
        if (self._number("<u4") != d).any():
            raise OtherOperation("workers do not go on with their number of columns")
        yield from self._start()
        seed = ring.broadcast(4)
        assert seed is not None
        if (self._number("<u4") != d).any():
            raise OtherOperation("no sketches of so many columns follow")
        ring.reduce(w * (d + 1), "<u8")
        categories = int(ring.reduce(w + 1, "<u8").total.sum())
        if categories:
            ring.reduce(categories, "<f4")
        sizes = ring.reduce(d, "<u8")
        yield from self._sketches(sizes)

    def _start(self) -> Iterator[Told]:
        """Read label means where boosting starts there, and what start they make."""
        ring = self._ring
        try:
            with ring.trying():
                rows = self._number("<u8").astype(np.int64)
                share = self._number("<f4").astype(np.float64)
                size = self._text()
                ring.broadcast(size)
        except OtherOperation:
            return
        self._rows = rows
        for rank in self._everybody:
            mean = LabelMean(int(rows[rank]), float(share[rank] * self._world))
            yield rank, self._others(rank), mean, "where boosting starts: the mean of label means"

    def _text(self) -> int:
        """Return the length of the object that worker 0 tells: what follows it is known."""
        for size in range(8, _MOST_TEXT):
            try:
                with self._ring.trying():
                    text = self._ring.broadcast(size)
                    if text[:1] != b"{" or text[-1:] != b"}":
                        if text[:1] != b"{":
                            break
                        raise OtherOperation("it goes on")
                    self._ring.broadcast(4)
                    if (self._number("<u4") == self._columns).all():
                        raise _Found
            except _Found:
                self._back(size)
                return size
            except OtherOperation:
                continue
        raise OtherOperation("worker 0 tells no start")

    def _back(self, size: int) -> None:
        """Undo what `_text` read after it found the length."""
        for r in range(1, self._world):
            self._ring._at[r & (r - 1), r] -= size + 4
        for r in self._everybody:
            self._ring._at[r, (r + 1) % self._world] -= 4 * self._world

    def _sketches(self, sizes: Reduced) -> Iterator[Told]:
        ring, w, d = self._ring, self._world, self._columns
        self._sizes = sizes.total.astype(np.int64)
        for hop in (h for h in sizes.hops if len(h.members) == 1):
            if len(hop.numbers) == d:
                present = ColumnSizes(hop.numbers.astype(np.int64))
                yield hop.sender, hop.receivers, present, "values that are not missing, by column"
        scan = ring.reduce(w * (d + 1), "<u8").total.astype(np.int64).reshape(w, d + 1)
        if (scan[:, 0] != 0).any() or (np.diff(scan) < 0).any() or scan.max() > 1 << 26:
            raise OtherOperation("no sizes of sketches")
        entries = int(scan[:, -1].sum())
        floats = ring.reduce(entries * _ENTRY, "<f4").total.reshape(-1, _ENTRY)
        ends = np.cumsum(scan[:, -1])
        values: list[list[NDArray[np.float32]]] = [[] for _ in range(d)]
        for rank in self._everybody:
            mine = floats[ends[rank] - scan[rank, -1] : ends[rank]]
            sketch = sketch_of(mine, scan[rank])
            for f in range(d):
                values[f].append(sketch.points[sketch.offsets[f] : sketch.offsets[f + 1]])
            yield (
                rank,
                self._others(rank),
                sketch,
                "cut points are made of all sketches by everybody",
            )
        self._distinct = np.array([len(np.unique(np.concatenate(v))) or 1 for v in values])

    def _root(self, tree: int) -> list[Told]:
        """Read the histogram of a root and its sums."""
        ring, last = self._ring, OtherOperation("no histogram of a root")
        for bins in [self._bins] if self._bins else self._likely_bins():
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
            self._bins = bins
            told = list(self._segments(histogram, tree, 0, 1))
            why = "sums over the root of a tree"
            for hop in sums.hops:
                if len(hop.numbers) == 2:
                    told.append((hop.sender, hop.receivers, GradientTotals(tree, hop.numbers), why))
            if len(sums.hops[0].numbers) < 2:  # two workers: each adds to one of both sums
                whole = GradientTotals(tree, sums.total)
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
        for nodes in range(1, min(_MOST_NODES, 1 << (level - 1)) + 1):
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
        """Raise `OtherOperation` unless all columns tell the same sums over each node."""
        sums = histogram.total.reshape(nodes, self._bins, 2)
        if not np.isfinite(sums).all() or (sums[..., 1] < 0).any() or not sums[..., 1].any():
            raise OtherOperation("no sums of hessians")
        rows = self._rows.sum()
        if self._starts is not None and rows and (self._sizes == rows).all():
            by_column = np.add.reduceat(sums, self._starts, axis=1)
            scale = 1e-6 * np.maximum(by_column[..., 1].max(), 1e-12)
            if (np.abs(by_column - by_column[:, :1]) > scale).any():
                raise OtherOperation("columns that tell different sums of one node")

    def _segments(self, found: Reduced, tree: int, level: int, nodes: int) -> Iterator[Told]:
        for hop in found.hops:
            names = ",".join(map(worker, hop.members))
            message = HistogramSegment(tree, level, nodes, hop.first, hop.numbers, names)
            why = "summed histogram" if len(hop.members) == self._world else "histogram on its way"
            yield hop.sender, hop.receivers, message, why

    def _metric(self) -> None:
        """Pass over a loss and the rows that it is over."""
        with self._ring.trying():
            loss, rows = self._ring.reduce(2, "<f8").total
            if not np.isfinite(loss) or rows != np.floor(rows) or rows <= 0:
                raise OtherOperation("an operation that is not known, or was cut off")


class _Found(Exception):
    pass


def sketch_of(entries: NDArray[np.float32], scan: NDArray[np.int64]) -> RankedSketch:
    """Return a worker's sketch.

    Raises `OtherOperation` if these are no ranks.

    Parameters
    ----------
    entries : float32 array, shape (s, 4)
        Least and greatest rank, weight and value of each point.
    scan : int64 array, shape (d + 1,)
        Where the points of each column begin.
    """
    least, greatest, weight, value = entries.astype(np.float64).T
    if not np.isfinite(entries).all():
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

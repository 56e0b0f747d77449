"""Decode the traffic between LightGBM's machines as messages of a data-parallel training.

The first step reassembles the collective operations from the bytes between the machines. The bytes
contain no lengths. The size of every operation follows from the operations before it.

The second step interprets the operations as messages. The operations were observed in runs of
LightGBM 4.7 and read in its sources: the number of columns, the bins of each machine's block of
columns (``dataset_loader.cpp``, ``bin.cpp``), and the sums of labels that the objective needs. For
every tree, the sums over its root follow, and for each step the histograms and the best splits
(``data_parallel_tree_learner.cpp``).
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from itertools import accumulate

import numpy as np
from numpy.typing import NDArray

from fedtrees.capture.collective import (
    RANK_BYTES,
    Connections,
    CutOff,
    Decoding,
    Ended,
    Hop,
    Links,
    OtherOperation,
    worker,
)
from fedtrees.capture.records import Record
from fedtrees.capture.xgboost_training import recorded
from fedtrees.core.errors import DataError
from fedtrees.core.messages import Message
from fedtrees.messages.captured import HistogramSegment, WireBytes
from fedtrees.messages.lightgbm import (
    BinMappers,
    ClassRows,
    FoundSplits,
    OwnStart,
    RootSums,
    WeightedLabels,
)
from fedtrees.protocols.peers.lightgbm_data import gathering, scattering
from fedtrees.trees.lightgbm.bins import blocks, dealt

_PAIR = 2  # numbers per bin: gradient and hessian


class Machines(Links):
    """The bytes between machines."""

    def gather(self, sizes: Sequence[int]) -> list[bytes]:
        """Read blocks of the given sizes, one of each machine, that all machines receive."""
        parts: dict[int, bytes] = {}
        for step in gathering(self.world, sum(sizes)):
            data = self.take(step.sender, step.receiver, sum(sizes[b] for b in step.blocks))
            # A block is sent several times, and must be the same every time. This verifies the size
            # of the operation.
            for block in step.blocks:
                part, data = data[: sizes[block]], data[sizes[block] :]
                if parts.setdefault(block, part) != part:
                    raise OtherOperation("parts that change on their way")
        return [parts[rank] for rank in range(self.world)]

    def numbers(self, dtype: str, count: int = 1) -> NDArray[np.generic]:
        """Read `count` numbers of every machine, shape (world, count)."""
        size = np.dtype(dtype).itemsize * count
        return np.frombuffer(b"".join(self.gather([size] * self.world)), dtype).reshape(-1, count)

    def scatter(self, bins: Sequence[int]) -> list[Hop]:
        """Read the sums of gradients and hessians on their way to the machine that needs each bin.

        `bins` contains the number of bins of each machine.
        """
        numbers = [_PAIR * n for n in bins]
        begins, hops = [0, *accumulate(numbers)], []
        for step in scattering(self.world, 8 * sum(numbers)):
            size = sum(numbers[b] for b in step.blocks)
            sums = np.frombuffer(self.take(step.sender, step.receiver, 8 * size), "<f8")
            first = begins[step.blocks[0]]
            hops.append(Hop(step.sender, (step.receiver,), first, sums, step.members))
        return hops


# Rank of the sender, ranks of the receivers, message, and reason in words.
Sent = tuple[int, tuple[int, ...], Message, str]
_MOST_COLUMNS, _MOST_BINS, _MOST_ROWS = 1 << 20, 1 << 16, 1 << 29
_MAPPER = np.dtype(
    {
        "names": [
            "bins", "missing", "trivial", "sparse", "kind", "low", "high", "zero", "frequent"
        ],
        "formats": ["<i4", "<i4", "u1", "<f8", "<i4", "<f8", "<f8", "<u4", "<u4"],
        "offsets": [0, 8, 16, 24, 32, 40, 48, 56, 64],
        "itemsize": 72,
    }
)  # fmt: skip
_ROOT = np.dtype(
    {
        "names": ["hessian", "gradient", "rows"],
        "formats": ["<f8", "<f8", "<i4"],
        "offsets": [0, 8, 16],
        "itemsize": 24,
    }
)
_SPLIT = np.dtype(
    [
        ("feature", "<i4"), ("left_rows", "<i4"), ("right_rows", "<i4"), ("gain", "<f8"),
        ("bin", "<u4"), ("outputs", "<f8", 2), ("left", "<f8", 2), ("left_whole", "<i8"),
        ("right", "<f8", 2), ("right_whole", "<i8"), ("default_left", "u1"), ("monotone", "i1"),
        ("categories", "<i4"),
    ]
)  # fmt: skip
_NAN = 2  # kind of missing values that occupy the last bin
#: Possible values of ``max_cat_threshold``, the largest number of categories of one split. The
#: default, 32, is tried first.
_CATEGORIES = (32, *range(1, 450))
#: How many integers, and then how many floats, the objectives sum before the first tree.
_BEFORE = [
    (2, 3), (2, 0), (0, 1), (0, 0), *((0, 2 * k + 1) for k in range(1, 33)),
    *((0, k + 1) for k in range(3, 33)), *((2 * k, 3 * k) for k in range(2, 33)),
    *((2 * k, 0) for k in range(2, 33)),
]  # fmt: skip


class DataParallel:
    """Reads the operations of one training in their order."""

    def __init__(self, machines: Machines) -> None:
        self._machines, self._world = machines, machines.world
        self._everybody = tuple(range(machines.world))
        self._columns: dict[int, int] = {}  # number of bins in histograms, by used column
        self._bins: dict[int, int] = {}  # number of all bins, by used column
        self._dealt: list[int] = []  # number of bins whose sums each machine receives
        self._categories = 0
        self._tree = self._step = -1
        self._rows = 0  # number of rows of the current tree

    def messages(self) -> Iterator[Sent]:
        """Yield the messages until no bytes remain, or an operation is not recognised."""
        with self._machines.trying():
            sent = self._mappers()
        yield from sent
        yield from self._first()
        while True:
            self._machines.forget()
            # Nothing in the bytes shows which operation follows. The first one that is consistent
            # with the bytes is accepted.
            for read in (self._splits, self._next_tree, self._renewed, self._bare, self._started):
                try:
                    with self._machines.trying():
                        sent = read()
                except CutOff:
                    if self._machines.ended():
                        return
                except OtherOperation:
                    continue
                else:
                    break
            else:
                raise OtherOperation("an operation that is not known, or was cut off")
            yield from sent

    def _sent_to_all(self, parts: Sequence[Message], why: str) -> list[Sent]:
        """Return the messages that every machine sends to all remaining machines."""
        return [
            (rank, tuple(r for r in self._everybody if r != rank), part, why)
            for rank, part in enumerate(parts)
        ]

    def _mappers(self) -> list[Sent]:
        """Read the bins of every column."""
        machines = self._machines
        columns = machines.numbers("<i4").ravel()
        most_columns = int(columns.max())
        if not 0 < most_columns <= _MOST_COLUMNS:
            raise OtherOperation(f"machines that begin with {most_columns} columns")
        sizes = machines.numbers("<i4").ravel().tolist()
        if min(sizes) < 0 or sum(sizes) > 64 * int(columns.max()) * _MOST_BINS:
            raise OtherOperation("no sizes of bins")
        parts = [
            mappers_of(rank, data, block)
            for rank, (data, block) in enumerate(
                zip(machines.gather(sizes), blocks(int(columns.max()), self._world), strict=True)
            )
        ]
        for part in parts:
            for k in np.flatnonzero(part.used).tolist():
                self._columns[part.first + k] = part.sent(k)
                self._bins[part.first + k] = len(part.bins(k))
        owners = dealt(self._columns, self._world)
        self._dealt = [
            sum(self._columns[c] for c in columns_of_machine) for columns_of_machine in owners
        ]
        return self._sent_to_all(parts, "each machine finds the bins of some columns")

    def _first(self, patterns: Sequence[tuple[int, int]] = _BEFORE) -> list[Sent]:
        """Read the sums of the objective, and the root of the first tree."""
        last = OtherOperation("no first tree")
        for read in (self._next_tree, self._bare, self._nothing):
            for n_counts, n_sums in patterns:
                try:
                    with self._machines.trying():
                        counts, sums = self._before(n_counts, n_sums)
                        root = read()
                        # The objective's two counts are all rows, and the root may be a sample.
                        if n_counts == 2 and counts.sum() < self._rows:
                            raise OtherOperation("fewer rows than there are")
                except OtherOperation as err:
                    last = err
                    continue
                return [*self._labels(counts, sums), *root]
        raise last

    def _started(self) -> list[Sent]:
        """Read the start of the next tree, if the first tree of its class has no splits."""
        return self._first([(0, 1), (0, 3)])

    def _before(self, n_counts: int, n_sums: int) -> tuple[NDArray[np.int32], NDArray[np.float64]]:
        """Read `n_counts` numbers of rows and `n_sums` float sums, each of shape (count, world)."""
        machines, shape = self._machines, (-1, self._world)
        counts = [machines.numbers("<i4").ravel() for _ in range(n_counts)]
        sums = [machines.numbers("<f8").ravel() for _ in range(n_sums)]
        read = np.array(counts, np.int32).reshape(shape), np.array(sums, np.float64).reshape(shape)
        # If float64 sums are read as integers by mistake, their halves are not plausible numbers of
        # rows.
        if (read[0] < 0).any() or (read[0] >= _MOST_ROWS).any() or not np.isfinite(read[1]).all():
            raise OtherOperation("no sums of labels")
        if n_counts and not read[0].any():
            raise OtherOperation("no rows")
        return read

    def _nothing(self) -> list[Sent]:
        """Read a training without any tree, because there are no columns to split."""
        if not self._machines.ended():
            raise OtherOperation("no first tree")
        return []

    def _labels(self, counts: NDArray[np.int32], sums: NDArray[np.float64]) -> Iterator[Sent]:
        """Yield the sums of labels as messages."""
        if len(counts) == 2:
            parts = [ClassRows(r, int(p), int(n)) for r, (p, n) in enumerate(counts.T)]
            yield from self._sent_to_all(parts, "the objective's classes")
        if len(counts) == 2 and len(sums) == 3:
            labels = [WeightedLabels(r, float(p), float(w)) for r, (p, w) in enumerate(sums[:2].T)]
            yield from self._sent_to_all(labels, "the objective's labels")
        if len(sums):
            starts = [OwnStart(r, float(s)) for r, s in enumerate(sums[-1])]
            yield from self._sent_to_all(starts, "where boosting starts")

    def _next_tree(self) -> list[Sent]:
        """Read the root and the first splits of the next tree."""
        roots = self._root()
        self._tree, self._step, before = self._tree + 1, -1, (self._tree, self._step)
        try:
            return [*roots, *self._splits()]
        except OtherOperation:
            self._tree, self._step = before
            raise

    def _root(self) -> list[Sent]:
        """Read the sums over the root of a tree."""
        roots = np.frombuffer(
            b"".join(self._machines.gather([_ROOT.itemsize] * self._world)), _ROOT
        )
        sums = np.stack([roots["gradient"], roots["hessian"]])
        if not np.isfinite(sums).all() or roots["rows"].min() < 0 or not roots["rows"].any():
            raise OtherOperation("no sums over a root")
        if (roots["hessian"] < 0).any():
            raise OtherOperation("no hessians of a root")
        self._rows = int(roots["rows"].astype(np.int64).sum())
        parts: list[Message] = [
            RootSums(k, self._tree + 1, float(r["gradient"]), float(r["hessian"]), int(r["rows"]))
            for k, r in enumerate(roots)
        ]
        return self._sent_to_all(parts, "sums over the root of a tree")

    def _bare(self) -> list[Sent]:
        """Read a root with too few rows to be split, which must be the last one."""
        roots = self._root()
        if not self._machines.ended():
            raise OtherOperation("no root")
        self._tree += 1
        return roots

    def _splits(self) -> list[Sent]:
        """Read the histograms of a leaf and the best splits of two leaves."""
        hops = self._machines.scatter(self._dealt)
        for hop in hops:
            if not np.isfinite(hop.numbers).all():
                raise OtherOperation("no histogram")
        best = self._found()
        self._step += 1
        sent: list[Sent] = []
        for hop in hops:
            whose = ",".join(map(worker, hop.members))
            part = HistogramSegment(self._tree, self._step, 1, hop.first, hop.numbers, whose)
            why = "a histogram on its way to who finds the best split of its columns"
            sent.append((hop.sender, hop.receivers, part, why))
        return sent + self._sent_to_all(best, "all take the best split of all")

    def _found(self) -> list[Message]:
        """Read the best splits of every machine."""
        # The size of a split depends on `max_cat_threshold`, which is tried until it fits once.
        for categories in [self._categories] if self._categories else _CATEGORIES:
            kind = np.dtype([("split", _SPLIT), ("categories", "<u4", categories)])
            try:
                with self._machines.trying():
                    parts = self._machines.gather([2 * kind.itemsize] * self._world)
                    best = [
                        self._best(rank, np.frombuffer(part, kind)["split"])
                        for rank, part in enumerate(parts)
                    ]
            except OtherOperation as err:
                last = err
                continue
            self._categories = categories
            return best
        raise last

    def _best(self, rank: int, pair: np.ndarray) -> Message:
        """Return the best splits of a machine as a message."""
        for split in pair:
            bins = self._bins.get(int(split["feature"]), 0)
            if split["gain"] == -np.inf and (bins or split["feature"] == -1):
                continue  # no split was possible
            rows = int(split["left_rows"]), int(split["right_rows"])
            if min(rows) < 0 or not 0 < sum(rows) <= self._rows or split["default_left"] > 1:
                raise OtherOperation("no splits of rows")
            if not (split["bin"] < bins or (bins and split["categories"] > 0)):
                raise OtherOperation("no splits of columns")
            if not np.isfinite([split["gain"], *split["left"], *split["right"]]).all():
                raise OtherOperation("no sums of splits")
        sides = {
            side: np.column_stack([pair[side], pair[f"{side}_rows"]]) for side in ("left", "right")
        }
        return FoundSplits(
            rank, self._tree, self._step + 1,
            np.where(pair["gain"] == -np.inf, -1, pair["feature"]).astype(np.int32),
            pair["bin"].astype(np.int64).astype(np.int32), pair["gain"].copy(), sides["left"],
            sides["right"], pair["default_left"].astype(np.bool_),
        )  # fmt: skip

    def _renewed(self) -> list[Sent]:
        """Skip recomputed leaf values: sums, then which machines have rows in the leaf."""
        for leaves in range(1, 2 * self._step + 3):
            try:
                with self._machines.trying():
                    sums = self._machines.numbers("<f8", leaves)
                    counts = self._machines.numbers("<i4", leaves)
                    if not np.isfinite(sums).all() or ((counts != 0) & (counts != 1)).any():
                        raise OtherOperation("no leaf values")
                    return []
            except CutOff:
                break
            except OtherOperation:
                continue
        raise OtherOperation("no leaf values")


def mappers_of(rank: int, data: bytes, block: range) -> BinMappers:
    """Parse the bins of a block of columns.

    Parameters
    ----------
    rank : int
        Rank of the machine.
    data : bytes
        The bytes that it sent.
    block : range
        The columns.

    Returns
    -------
    mappers : BinMappers

    Raises
    ------
    OtherOperation
        If the bytes are not bins.
    """
    heads, values, at = [], [], 0
    for _ in block:
        if at + _MAPPER.itemsize > len(data):
            raise OtherOperation("bins that are cut off")
        head = np.frombuffer(data, _MAPPER, 1, at)[0]
        at += _MAPPER.itemsize
        if not 0 < head["bins"] <= _MOST_BINS or head["kind"] not in (0, 1) or head["trivial"] > 1:
            raise OtherOperation("no bins")
        dtype = np.dtype("<i4" if head["kind"] else "<f8")
        size = int(head["bins"]) * dtype.itemsize
        if at + size > len(data):
            raise OtherOperation("bins that are cut off")
        bounds = np.frombuffer(data, dtype, int(head["bins"]), at).astype(np.float64)
        if not head["kind"] and head["missing"] == _NAN:
            # LightGBM writes the code for missing values in place of the last bound.
            bounds[-1] = np.nan
        if (
            not head["kind"]
            and not (np.diff(bounds[: -1 if np.isnan(bounds[-1]) else None]) > 0).all()
        ):
            raise OtherOperation("bins out of order")
        if not head["trivial"] and (
            head["frequent"] >= head["bins"] or not head["low"] <= head["high"]
        ):
            raise OtherOperation("no bins")
        at += size
        heads.append(head)
        values.append(bounds)
    if at != len(data):
        raise OtherOperation("bins of more columns")
    table = np.array(heads, _MAPPER)
    used = table["trivial"] == 0
    return BinMappers(
        rank, block.start, table["low"], table["high"], np.concatenate([np.zeros(0), *values]),
        np.cumsum([0, *map(len, values)]), used, table["kind"] == 1,
        np.where(used, table["frequent"], 0).astype(np.int64), table["sparse"],
    )  # fmt: skip


_MOST_MACHINES = 512
_DOOR = re.compile(r"machine:(\d{1,4})/(\d{1,4})")


def decode_lightgbm(records: Iterable[Record]) -> Decoding:
    """Decode a capture of ``lightgbm``.

    Raises `DataError` if the machines do not introduce themselves as those of LightGBM.
    """
    connections = _MachineConnections(records)
    machines = connections.links(Machines)
    why = yield from recorded(DataParallel(machines).messages(), machines.world)
    left, later = machines.left(), connections.ignored
    text = f"{later:,} bytes of a later training; capture it in a separate run"
    return Ended.of(left + later, why or text)


class _MachineConnections(Connections):
    """Finds the machines at both ends of each connection.

    All machines of lower rank connect to a machine, whose rank is in the name of its relay port.
    """

    member = "machine"

    def _identify(self, chunk: WireBytes) -> None:
        data = self._received.setdefault((chunk.link, chunk.opener), bytearray())
        data += chunk.data.tobytes()
        if chunk.link in self._ends or not chunk.opener or len(data) < RANK_BYTES:
            return
        rank, door = int.from_bytes(data[:RANK_BYTES], "little"), _DOOR.fullmatch(chunk.door)
        if door is None or not rank < int(door[1]) < int(door[2]) <= _MOST_MACHINES:
            raise DataError(f"{chunk.door!r} is called by one of rank {rank}: no LightGBM machines")
        # Only the first connection between two machines belongs to this training.
        self._world = int(door[2])
        if (rank, int(door[1])) not in self._ends.values():
            self._ends[chunk.link] = rank, int(door[1])

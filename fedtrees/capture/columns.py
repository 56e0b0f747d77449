"""Decode vertical training over XGBoost's federated server.

The parties have different columns of the same rows. The operations were observed in runs of XGBoost
3.2 (``src/collective/aggregator.h``, ``src/tree/hist/evaluate_splits.h``). Rank 0, which has the
labels, broadcasts the gradients of every row. At every level, all parties receive the best splits
of each party, as UBJSON objects after their lengths. Then follow bits that show which rows go left
(``common_row_partitioner.h``).
"""

from collections.abc import Generator, Iterator, Sequence
from itertools import pairwise
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedtrees.capture.calls import Call
from fedtrees.capture.operations import OtherOperation, worker
from fedtrees.capture.training import INTERCEPT
from fedtrees.core.errors import DataError
from fedtrees.core.messages import Message
from fedtrees.messages.captured import BestSplits, Intercept, PartitionBits, RowGradients
from fedtrees.messages.vertical import TreeColumns
from fedtrees.trees.files.ubjson import decode_ubjson

Told = tuple[int, tuple[int, ...], Message, str]
_PAIR, _SIZE = 8, 8  # bytes of a gradient with its hessian in float32, and of a length
_DEFAULT_LEFT = 1 << 31  # flag in the field with the number of the feature
_BYTES = 8  # XGBoost's code of the data type byte


def messages(calls: Iterator[Call], world: int) -> Generator[Told, None, None]:
    """Yield the messages that are recognised in calls.

    Raises `OtherOperation` if the calls belong to another training.
    """
    everybody = tuple(range(world))
    columns, sizes, lengths = np.zeros(0, np.int64), [Call(), Call()], 0
    round, level, rows, bits = -1, -1, 0, list[Call]()
    for k, call in enumerate(calls):
        if set(call.buffers) != set(everybody):
            raise OtherOperation(f"a call of ranks {sorted(call.buffers)}")
        answer = call.answer or b""
        if call.kind == "gather":
            if not k:
                columns = _numbers(call, everybody)
                yield from _passed_on(_columns(columns), world, "how many columns each party has")
            if answer[:1] == b"{":
                level += 1
                local_splits = [
                    _splits(call.buffers[rank], sizes[0].buffers.get(rank, b""))
                    for rank in everybody
                ]
                best = [
                    _best(local_splits[rank], round, level, rank, columns) for rank in everybody
                ]
                yield from _passed_on(best, world, "everybody finds the best of all")
            # The lengths of the objects are in the gather operation before the previous one.
            sizes = [sizes[1], call]
        elif call.kind == "broadcast":
            # A broadcast of the number of rows precedes the gradients of all rows.
            if lengths > 1 and len(answer) == lengths * _PAIR:
                round, level, rows = round + 1, -1, lengths
                pairs = np.frombuffer(answer, "<f4").reshape(-1, 2)
                gradients = RowGradients(round, pairs[:, 0], pairs[:, 1])
                yield from _passed_on([gradients], world, "every party sums them over its own bins")
            lengths = int.from_bytes(answer, "little") if len(answer) == _SIZE else 0
            start = INTERCEPT.search(answer) if answer[:1] == b"{" else None
            if start is not None:
                starts = [Intercept(float(start[1]), worker(0))]
                yield from _passed_on(starts, world, "where boosting starts")
        elif call.code == _BYTES and rows and len(answer) == -(-rows // 8):
            bits.append(call)
            if len(bits) == 2:
                goes = [_routes(bits, round, level, rows, rank) for rank in everybody]
                yield from _passed_on(goes, world, "which rows go left")
                bits.clear()


def _passed_on(said: Sequence[Message], world: int, why: str) -> Iterator[Told]:
    """Yield the message of each party to the server, and the copies that the server forwards."""
    for rank, message in enumerate(said):
        yield rank, (world,), message, why
        yield world, tuple(r for r in range(world) if r != rank), message, why


def _columns(columns: NDArray[np.int64]) -> list[TreeColumns]:
    """Return the columns of each party as messages."""
    ends = np.cumsum([0, *columns.tolist()]).tolist()
    return [
        TreeColumns(worker(rank), np.arange(begin, end, dtype=np.int32))
        for rank, (begin, end) in enumerate(pairwise(ends))
    ]


def _routes(calls: Sequence[Call], round: int, level: int, rows: int, rank: int) -> PartitionBits:
    """Return the bits of a party that show which rows go left and which are missing."""
    left, missing = (
        np.unpackbits(np.frombuffer(c.buffers[rank], np.uint8), count=rows, bitorder="little")
        for c in calls
    )
    return PartitionBits(round, level, left.astype(bool), missing.astype(bool), worker(rank))


def _numbers(call: Call, everybody: tuple[int, ...]) -> NDArray[np.int64]:
    """Return the number of columns of each party."""
    parts = [call.buffers[rank] for rank in everybody]
    counts = [int.from_bytes(part, "little") for part in parts]
    if any(len(part) != _SIZE for part in parts) or max(counts) > 1 << 20:
        raise OtherOperation("parties do not begin with their numbers of columns")
    return np.array(counts, np.int64)


def _splits(text: bytes, lengths: bytes) -> list[dict[str, Any]]:
    """Return the objects that follow one another in the text, with the given lengths."""
    if len(lengths) % _SIZE:
        raise OtherOperation("no lengths of splits")
    ends = np.cumsum([0, *np.frombuffer(lengths, "<u8").tolist()]).tolist()
    if ends[-1] != len(text):
        raise OtherOperation("splits of other lengths than was told")
    try:
        return [decode_ubjson(text[begin:end]) for begin, end in pairwise(ends)]
    except DataError as err:
        raise OtherOperation(f"splits that are not readable ({err})") from err


def _best(
    found: list[dict[str, Any]], round: int, level: int, rank: int, columns: NDArray[np.int64]
) -> BestSplits:
    """Return the best splits of a party as a message."""
    try:
        splits = [one["split"] for one in found]
        return BestSplits(
            round,
            np.array([one["nid"] for one in found], np.int32),
            np.array([s["sindex"] & (_DEFAULT_LEFT - 1) for s in splits], np.int32),
            np.array([s["split_value"] for s in splits], np.float32),
            np.array([s["loss_chg"] for s in splits], np.float32),
            np.array([s["left_sum"] for s in splits], np.float64).reshape(len(splits), -1),
            np.array([s["right_sum"] for s in splits], np.float64).reshape(len(splits), -1),
            worker(rank),
            int(columns[:rank].sum()),
            int(columns[rank]),
            level,
            np.array([bool(s["sindex"] & _DEFAULT_LEFT) for s in splits], np.bool_),
        )
    except (KeyError, TypeError, ValueError, OverflowError) as err:
        raise OtherOperation(f"no splits of XGBoost's ({type(err).__name__})") from err

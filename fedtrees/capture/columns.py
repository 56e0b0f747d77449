"""What XGBoost's federated server passes on where parties have columns of the same rows.

Read off runs of XGBoost 3.2 (``src/collective/aggregator.h``, ``src/tree/hist/evaluate_splits.h``):
rank 0, who has the labels, broadcasts gradients of every row; of every level, each party's own best
splits go to all, as UBJSON with the length of each before them.
"""

from __future__ import annotations

from collections.abc import Generator, Iterator
from itertools import pairwise
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedtrees.capture.calls import Call
from fedtrees.capture.operations import OtherOperation, worker
from fedtrees.core.errors import DataError
from fedtrees.core.messages import Message
from fedtrees.messages.captured import BestSplits, RowGradients
from fedtrees.trees.files.ubjson import decode_ubjson

Told = tuple[int, tuple[int, ...], Message, str]
_PAIR, _SIZE = 8, 8  # bytes of a gradient with its hessian in float32, and of a length
_DEFAULT_LEFT = 1 << 31  # beside the number of the feature


def messages(calls: Iterator[Call], world: int) -> Generator[Told, None, None]:
    """Yield what is understood of calls; raises `OtherOperation` if they are of something else."""
    everybody = tuple(range(world))
    columns, sizes, lengths = np.zeros(0, np.int64), [Call(), Call()], 0
    round = -1
    for k, call in enumerate(calls):
        if set(call.buffers) != set(everybody):
            raise OtherOperation(f"a call of ranks {sorted(call.buffers)}")
        answer = call.answer or b""
        if call.kind == "gather":
            if not k:
                columns = _numbers(call, everybody)
            if answer[:1] == b"{":
                for rank in everybody:
                    own = _splits(call.buffers[rank], sizes[0].buffers.get(rank, b""))
                    told = _best(own, round, rank, columns)
                    why = "everybody finds the best of all"
                    yield rank, (world,), told, why
                    others = tuple(r for r in everybody if r != rank)
                    yield world, others, told, why
            sizes = [sizes[1], call]
        elif call.kind == "broadcast":
            if lengths > 1 and len(answer) == lengths * _PAIR:
                round += 1
                pairs = np.frombuffer(answer, "<f4").reshape(-1, 2)
                told = RowGradients(round, pairs[:, 0], pairs[:, 1])
                why = "every party sums them over its own bins"
                yield 0, (world,), told, why
                yield world, everybody[1:], told, why
            lengths = int.from_bytes(answer, "little") if len(answer) == _SIZE else 0


def _numbers(call: Call, everybody: tuple[int, ...]) -> NDArray[np.int64]:
    parts = [call.buffers[rank] for rank in everybody]
    found = [int.from_bytes(part, "little") for part in parts]
    if any(len(part) != _SIZE for part in parts) or max(found) > 1 << 20:
        raise OtherOperation("parties do not begin with their numbers of columns")
    return np.array(found, np.int64)


def _splits(text: bytes, lengths: bytes) -> list[dict[str, Any]]:
    """Return the objects that stand one after the other."""
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
    found: list[dict[str, Any]], round: int, rank: int, columns: NDArray[np.int64]
) -> BestSplits:
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
        )
    except (KeyError, TypeError, ValueError, OverflowError) as err:
        raise OtherOperation(f"no splits of XGBoost's ({type(err).__name__})") from err

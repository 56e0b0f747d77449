"""What crossed in one capture and not in another: kinds of messages, and the first numbers."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import numpy as np

from fedtrees.capture.records import Capture, Record
from fedtrees.capture.replay import Replay
from fedtrees.capture.wires import Decoded
from fedtrees.core.codec import encoded_size
from fedtrees.core.errors import UsageError
from fedtrees.core.messages import Message
from fedtrees.core.schema import Table
from fedtrees.core.transcript import Delivery

Kind = tuple[str, str, str]  # message, from, to


def differences(files: tuple[str, str], runs: tuple[int | None, int | None]) -> dict[str, Any]:
    """Return everything that `fedtrees diff` says, as plain values.

    Messages of a kind are compared in their order. Raises `DataError` if a capture cannot be read.
    """
    first, second = (Decoded(Capture(file, run)) for file, run in zip(files, runs, strict=True))
    here, there = _kinds(first), _kinds(second)
    rows = [_row(kind, here, there) for kind in {**here, **there}]
    return {
        "files": [*files],
        "kinds": rows,
        "same": all(row["apart"] == "" for row in rows),
        "notes": [
            f"{d.capture.path}: {d.ended.left:,} bytes were not decoded: {d.ended.why}"
            for d in (first, second)
            if d.ended.left
        ],
    }


#: What XGBoost's parties say besides, and why the bench's protocol has nothing like it.
BESIDES = {
    "LabelShare": "the mean label crosses by party, in the bench as a secure sum",
    "Intercept": "rank 0 tells where boosting starts, in the bench the server",
    "ColumnSizes": "how many values of each column are there: sketches tell it as well",
    "EvaluationSums": "metrics; the bench evaluates apart",
    "GradientTotals": "sums over a root: in the bench a part of its histogram",
}
#: How far sums of floats may be from sums of whole units, and other floats from one another.
ROUNDING = 2e-5


def from_protocol(
    file: str, run: int | None, named: str, truth: Mapping[str, Table]
) -> dict[str, Any]:
    """Return the same of a capture and of the bench's protocol, run on the rows of all parties.

    Raises `DataError` if the capture is no run of it, `UsageError` if rows of somebody lack.
    """
    decoded = Decoded(Capture(file, run))
    replay = Replay.of(decoded, named)
    if replay is None:
        raise UsageError(f"{file} does not tell its parameters: give them by --protocol")
    lacking = sorted({*replay.rows} - {*truth})
    if lacking:
        raise UsageError(f"--truth of {lacking[0]!r} lacks: its rows are what is simulated")
    sides = [_kinds(t.transcript) for t in (replay.run(), replay.run(truth))]
    kinds = {kind: None for side in sides for kind in side}
    rows = [_row(kind, sides[0], sides[1], ROUNDING) for kind in kinds]
    spare = {kind: said for kind, said in _kinds(decoded).items() if kind[0] in BESIDES}
    rows += [_row(kind, spare, {}) | {"apart": BESIDES[kind[0]]} for kind in spare]
    return {
        "files": [file, str(named or replay.protocol.name)],
        "kinds": rows,
        "same": all(row["apart"] == "" or row["message"] in BESIDES for row in rows),
        "notes": [],
    }


def _kinds(records: Iterable[Record | Delivery]) -> dict[Kind, list[Message]]:
    found: dict[Kind, list[Message]] = defaultdict(list)
    for r in records:
        found[type(r.message).__name__, r.sender, ", ".join(r.receivers)].append(r.message)
    return found


def _row(
    kind: Kind,
    here: Mapping[Kind, list[Message]],
    there: Mapping[Kind, list[Message]],
    rounding: float = 0.0,
) -> dict[str, Any]:
    sides = here.get(kind, []), there.get(kind, [])
    row: dict[str, Any] = dict(zip(("message", "from", "to"), kind, strict=True))
    row["count"] = [len(side) for side in sides]
    row["bytes"] = [sum(map(encoded_size, side)) for side in sides]
    row["apart"] = next(_apart(*sides, rounding), "")
    return row


def _apart(here: list[Message], there: list[Message], rounding: float) -> Iterator[str]:
    """Yield where messages of one kind are not the same, the first one first."""
    for k, (one, other) in enumerate(zip(here, there, strict=False)):
        for name, value in vars(one).items():
            more = getattr(other, name)
            if np.shape(value) != np.shape(more):
                yield f"{name} of number {k} is of shape {np.shape(value)}, {np.shape(more)}"
            elif not _alike(one, name, value, more, rounding):
                yield f"{name} of number {k}"
    if len(here) != len(there):
        yield f"{len(here)} messages, {len(there)}"


def _alike(message: Message, name: str, value: Any, more: Any, rounding: float) -> bool:
    kind = np.asarray(value).dtype.kind
    unit_of = getattr(message, "unit_of", None)
    if not rounding or (kind != "f" and (unit_of is None or name not in ("sums", "totals"))):
        return np.array_equal(value, more, equal_nan=kind == "f")
    unit = 1.0 if unit_of is None or kind == "f" else unit_of(name)[0]
    off = np.abs(np.asarray(value, np.float64) - more)
    return bool((off <= rounding * (unit + (np.abs(more) if kind == "f" else 0))).all())

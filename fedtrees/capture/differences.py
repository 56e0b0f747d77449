"""What crossed in one capture and not in another: kinds of messages, and the first numbers."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np

from fedtrees.capture.records import Capture
from fedtrees.capture.wires import Decoded
from fedtrees.core.codec import encoded_size
from fedtrees.core.messages import Message

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


def _kinds(records: Decoded) -> dict[Kind, list[Message]]:
    found: dict[Kind, list[Message]] = defaultdict(list)
    for r in records:
        found[type(r.message).__name__, r.sender, ", ".join(r.receivers)].append(r.message)
    return found


def _row(
    kind: Kind, here: Mapping[Kind, list[Message]], there: Mapping[Kind, list[Message]]
) -> dict[str, Any]:
    sides = here.get(kind, []), there.get(kind, [])
    row: dict[str, Any] = dict(zip(("message", "from", "to"), kind, strict=True))
    row["count"] = [len(side) for side in sides]
    row["bytes"] = [sum(map(encoded_size, side)) for side in sides]
    row["apart"] = next(_apart(*sides), "")
    return row


def _apart(here: list[Message], there: list[Message]) -> Iterator[str]:
    """Yield where messages of one kind are not the same, the first one first."""
    for k, (one, other) in enumerate(zip(here, there, strict=False)):
        for name, value in vars(one).items():
            more = getattr(other, name)
            if np.shape(value) != np.shape(more):
                yield f"{name} of number {k} is of shape {np.shape(value)}, {np.shape(more)}"
            elif not np.array_equal(value, more, equal_nan=np.asarray(value).dtype.kind == "f"):
                yield f"{name} of number {k}"
    if len(here) != len(there):
        yield f"{len(here)} messages, {len(there)}"

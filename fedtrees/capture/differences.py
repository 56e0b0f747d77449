"""Compare two captures, or a capture and a simulated run: kinds of messages and their numbers."""

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from fedtrees.capture.formats import Decoded
from fedtrees.capture.records import Capture, Record
from fedtrees.capture.replay import Replay, columns_of, named_protocol, schema_of
from fedtrees.capture.xgboost_training import SERVER
from fedtrees.core.errors import UsageError
from fedtrees.core.local_data import over_clients
from fedtrees.core.messages import Message
from fedtrees.core.schema import Table
from fedtrees.core.transcript import Delivery
from fedtrees.core.wire import encoded_size
from fedtrees.protocols.base import Protocol
from fedtrees.protocols.peers.xgboost_ring import XGBoostRing
from fedtrees.protocols.peers.xgboost_vertical import XGBoostVertical
from fedtrees.protocols.training import train

Kind = tuple[str, str, str]  # message, from, to


def differences(files: tuple[str, str], runs: tuple[int | None, int | None]) -> dict[str, Any]:
    """Return everything that `fedtrees capture diff` reports about two captures, as plain values.

    Messages of the same kind are compared in their order. Raises `DataError` if a capture cannot be
    read.
    """
    first, second = (Decoded(Capture(file, run)) for file, run in zip(files, runs, strict=True))
    first_kinds, second_kinds = _kinds(first), _kinds(second)
    rows = [_row(kind, first_kinds, second_kinds) for kind in {**first_kinds, **second_kinds}]
    return {
        "files": [*map(str, files)],
        "kinds": rows,
        "same": all(row["apart"] == "" for row in rows),
        "notes": [
            f"{d.capture.path}: {d.ended.left:,} bytes were not decoded: {d.ended.why}"
            for d in (first, second)
            if d.ended.left
        ],
    }


#: Messages that only real parties of XGBoost send, with the reason why the simulated protocol has
#: no counterpart.
BESIDES = {
    "LabelShare": "each party sends its mean label; in the bench it is part of a secure sum",
    "Intercept": "rank 0 announces the base score; in the bench the server does",
    "ColumnSizes": "the number of values of each column, which sketches also contain",
    "EvaluationSums": "metrics; the bench evaluates apart",
    "GradientTotals": "sums over a root: in the bench a part of its histogram",
}
#: Further such messages in a ring of two workers.
TWO = {
    "GradientTotals": "each worker sends one sum over a root, and then both totals; in the bench "
    "it sends its local sum"
}
#: Tolerance between sums of floats and sums in integer units, and between further floats.
ROUNDING = 2e-5


def from_protocol(
    file: str, run: int | None, named: str, truth: Mapping[str, Table]
) -> dict[str, Any]:
    """Compare a capture with a run of the simulated protocol on the rows of all parties.

    Parameters
    ----------
    file : str
        The capture.
    run : int or None
        Number of the run in the file.
    named : str
        Protocol and parameters. If it is empty, they are inferred from the capture.
    truth : mapping of str to Table
        True rows of all parties.

    Returns
    -------
    report : dict of str to object
        In the form of `differences`.

    Raises
    ------
    DataError
        If the capture is not a run of this protocol.
    UsageError
        If rows of a party are missing.
    """
    decoded = Decoded(Capture(file, run))
    protocol = named_protocol(named)
    if protocol is not None and protocol.info.peer_to_peer:
        return _compare_messages(decoded, protocol, truth)
    replay = Replay.of(decoded, named)
    if replay is None:
        raise UsageError(f"{file} does not contain its parameters: give them by --protocol")
    lacking = sorted({*replay.rows} - {*truth})
    if lacking:
        raise UsageError(f"--truth lacks {lacking[0]!r}: its rows are needed for the simulation")
    # The replay of the captured messages is compared with a simulation on the true rows.
    sides = [_kinds(t.transcript) for t in (replay.run(), replay.run(truth))]
    kinds = {kind: None for side in sides for kind in side}
    rows = [_row(kind, sides[0], sides[1], ROUNDING) for kind in kinds]
    spare = {kind: sent for kind, sent in _kinds(decoded).items() if kind[0] in BESIDES}
    rows += [_row(kind, spare, {}) | {"apart": BESIDES[kind[0]]} for kind in spare]
    return {
        "files": [str(file), str(named or replay.protocol.name)],
        "kinds": rows,
        "same": all(row["apart"] == "" or row["message"] in BESIDES for row in rows),
        "notes": [],
    }


def _compare_messages(
    decoded: Decoded, protocol: Protocol, truth: Mapping[str, Table]
) -> dict[str, Any]:
    """Compare a capture with a protocol that sends the same messages as the framework.

    A message that a server forwards counts as sent to all remaining parties.
    """
    records = [r for r in decoded if r.sender != SERVER]
    parties = sorted({r.sender for r in records}, key=lambda name: int(name.rpartition("-")[2]))
    lacking = sorted({*parties} - {*truth})
    if lacking:
        raise UsageError(f"--truth lacks {lacking[0]!r}: its rows are needed for the simulation")
    tables = [truth[name] for name in parties]
    names = dict(zip(protocol.holder_names(len(parties)), parties, strict=True))
    vertical = isinstance(protocol, XGBoostVertical)
    local_data = columns_of(tables) if vertical else over_clients(tables)
    columns = sum(t.X.shape[1] for t in tables) if vertical else tables[0].X.shape[1]
    transcript = train(protocol, local_data, schema_of(columns)).transcript
    simulated = [
        replace(d, sender=names[d.sender], receivers=tuple(names[r] for r in d.receivers),
                message=_rename_parties(d.message, names))
        for d in transcript
        if d.receivers != (d.sender,) and {*d.receivers} <= {*names}  # skip the released model
    ]  # fmt: skip
    two = TWO if len(parties) == 2 and isinstance(protocol, XGBoostRing) else {}
    besides = {**BESIDES, **two}
    spare = {*besides} - {type(d.message).__name__ for d in simulated} | {*two}
    captured, expected = (_messages_by_receiver(s, parties) for s in (records, simulated))
    rows = []
    for kind in {**captured, **expected}:
        row = _row(kind, captured, expected, ROUNDING)
        rows.append(row | {"apart": besides[kind[0]]} if kind[0] in spare else row)
    return {
        "files": [str(decoded.capture.path), protocol.name],
        "kinds": rows,
        "same": all(row["apart"] == "" or row["message"] in spare for row in rows),
        "notes": [],
    }


def _rename_parties(message: Message, names: Mapping[str, str]) -> Message:
    """Return a message with the names of the parties in the capture."""
    called = {
        name: ",".join(names.get(part, part) for part in value.split(","))
        for name, value in vars(message).items()
        if name in ("owner", "party", "parties") and isinstance(value, str)
    }
    return replace(message, **called) if called else message


def _messages_by_receiver(
    records: Iterable[Record | Delivery], parties: Sequence[str]
) -> dict[Kind, list[Message]]:
    """Return the messages to each receiver by kind. Messages to the server count as sent to all."""
    by_kind: dict[Kind, list[Message]] = defaultdict(list)
    for r in records:
        to = parties if SERVER in r.receivers else r.receivers
        for receiver in to:
            if receiver != r.sender:
                by_kind[type(r.message).__name__, r.sender, receiver].append(r.message)
    return by_kind


def _kinds(records: Iterable[Record | Delivery]) -> dict[Kind, list[Message]]:
    """Return the messages by type, sender and receivers."""
    by_kind: dict[Kind, list[Message]] = defaultdict(list)
    for r in records:
        by_kind[type(r.message).__name__, r.sender, ", ".join(r.receivers)].append(r.message)
    return by_kind


def _row(
    kind: Kind,
    first_side: Mapping[Kind, list[Message]],
    second_side: Mapping[Kind, list[Message]],
    rounding: float = 0.0,
) -> dict[str, Any]:
    """Return the comparison of one kind of message as a row of the report."""
    sides = first_side.get(kind, []), second_side.get(kind, [])
    row: dict[str, Any] = dict(zip(("message", "from", "to"), kind, strict=True))
    row["count"] = [len(side) for side in sides]
    row["bytes"] = [sum(map(encoded_size, side)) for side in sides]
    row["apart"] = next(_find_differences(*sides, rounding), "")
    return row


def _find_differences(
    first: list[Message], second: list[Message], rounding: float
) -> Iterator[str]:
    """Yield the differences between messages of one kind, the first one first."""
    for k, (one, other) in enumerate(zip(first, second, strict=False)):
        for name, value in vars(one).items():
            more = getattr(other, name)
            if np.shape(value) != np.shape(more):
                yield f"{name} of number {k} is of shape {np.shape(value)}, {np.shape(more)}"
            elif not _equal_up_to_rounding(one, name, value, more, rounding):
                yield f"{name} of number {k}"
    if len(first) != len(second):
        yield f"{len(first)} messages, {len(second)}"


def _equal_up_to_rounding(
    message: Message, name: str, value: Any, more: Any, rounding: float
) -> bool:
    """Return whether the values of one field agree up to rounding."""
    kind = np.asarray(value).dtype.kind
    unit_of = getattr(message, "unit_of", None)
    if not rounding or (kind != "f" and (unit_of is None or name not in ("sums", "totals"))):
        return np.array_equal(value, more, equal_nan=kind == "f")
    if kind == "f":
        return np.allclose(value, more, rounding, rounding, equal_nan=True)
    assert unit_of is not None
    # `unit_of` is the number of units per 1, so that the tolerance is in units of the integers.
    off = np.abs(np.asarray(value, np.float64) - more)
    return bool((off <= rounding * unit_of(name)[0]).all())

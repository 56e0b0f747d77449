"""Attack a capture, and report broken promises, visible messages, readings and attack scores.

The true rows of parties, with which readings and attacks are compared, are read from CSV files.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedtrees.capture.collective import worker
from fedtrees.capture.formats import WIRES, Decoded
from fedtrees.capture.readings import (
    SOMEBODY,
    THIRD,
    LeafRows,
    RevealedFacts,
    audited,
    machine_readings,
    model_readings,
    promises,
    readings,
)
from fedtrees.capture.records import Capture, Record
from fedtrees.capture.replay import Replay, local_data_of, named_protocol, schema_of, worked_out
from fedtrees.capture.xgboost_training import SERVER
from fedtrees.core.claims import Claim, Guess
from fedtrees.core.composition import Composition
from fedtrees.core.errors import DataError, FedtreesError, UsageError, did_you_mean
from fedtrees.core.local_data import LocalData
from fedtrees.core.reasons import Unfit
from fedtrees.core.schema import Table
from fedtrees.core.specs import parse_list
from fedtrees.core.streams import Streams
from fedtrees.core.supported import untested
from fedtrees.core.view import Seen, View
from fedtrees.core.wire import encoded_size
from fedtrees.data.csv_table import numeric
from fedtrees.data.table_files import read_table
from fedtrees.experiments.evaluate import Row, compute_blind_baseline, score_guess
from fedtrees.experiments.suite import DEFAULT_SUITE, Suite
from fedtrees.isolation.process import attack_process
from fedtrees.messages.captured import HistogramSegment, LabelShare, RankedSketch
from fedtrees.messages.lightgbm import BinMappers, RootSums
from fedtrees.messages.vertical import TreeColumns
from fedtrees.metrics.metric import Case, metrics_of
from fedtrees.protocols.base import Protocol
from fedtrees.protocols.cut_points import BinningClient
from fedtrees.protocols.peers.lightgbm_data import LightGBMData
from fedtrees.protocols.peers.xgboost_ring import XGBoostRing
from fedtrees.protocols.views import view_of


def party_and_file(text: str) -> tuple[str, str]:
    """Return the party and the file of ``PARTY=FILE``. A file alone is named after its party."""
    party, equals, path = text.partition("=")
    return (party, path) if equals else (Path(text).stem, text)


def read_party_tables(files: Sequence[str], target: str = "") -> dict[str, Table]:
    """Read the rows of every party, with the columns in the order of its file.

    `files` are ``PARTY=FILE``, or files whose names are those of the parties. If `target` is empty,
    the last column is the target. Raises `DataError` if a file cannot be read, or a cell is not a
    number.
    """
    tables = {}
    for text in files:
        party, path = party_and_file(text)
        table = read_table(path)
        label = target or table.names[-1]
        # In a vertical partition, parties without the label column get labels of 0.
        y = numeric(table, label) if label in table.names else np.zeros(len(table))
        if np.isnan(y).any():
            raise DataError(f"{path}: column {label!r} lacks labels; leave these rows out")
        names = [name for name in table.names if name != label]
        X = np.column_stack([numeric(table, name) for name in names])
        integral = bool((y == np.rint(y)).all())
        tables[party] = Table(X.astype(np.float32), y.astype(np.int64) if integral else y)
    return tables


#: For each wire, the protocol whose parties are all workers, and no server computes for them.
_PEERS: dict[str, type[Protocol]] = {"rabit": XGBoostRing, "lightgbm": LightGBMData}
Scores = dict[str, tuple[float, float | None]]


def report(
    file: str,
    who: str,
    truth: Mapping[str, Table],
    run: int | None = None,
    named: Sequence[str] = (),
    protocol: str = "",
) -> dict[str, Any]:
    """Return everything that `fedtrees capture attack` reports, as plain values.

    Parameters
    ----------
    file : str
        The capture.
    who : str
        The adversary: a party, or `THIRD`.
    truth : mapping of str to Table
        True rows by party, to score the readings and attacks. It may be empty.
    run : int, optional
        Number of the run in the file.
    named : sequence of str, optional
        Attacks to run. The default is every attack of the default suite.
    protocol : str
        Protocol and parameters of the run. If it is empty, they are inferred from the capture.

    Returns
    -------
    report : dict of str to object

    Raises
    ------
    DataError
        If the capture cannot be read.
    UsageError
        If the capture has no such party.
    """
    capture = Capture(file, run)
    decoded = Decoded(capture)
    other = untested(capture.run_facts.framework, capture.run_facts.version)
    peers = _peers(capture.run_facts.wire, protocol)
    relevant, received, parties = _decode_messages(decoded, who, all_histograms=peers is not None)
    if not parties:
        why = decoded.ended.why or "nothing crossed"
        raise DataError("; ".join(filter(None, [f"{file}: no message was decoded: {why}", other])))
    if who not in (THIRD, *parties):
        raise UsageError(f"no party {who!r} in {file}{did_you_mean(who, {THIRD, *parties})}")
    for name in sorted(set(truth) - parties):
        raise UsageError(f"--truth of {name!r}{did_you_mean(name, parties)}")
    facts = [*readings(relevant, (who,)), *machine_readings(relevant, (who,))]
    trees = audited(capture, who)
    if trees is not None:
        facts += model_readings(*trees, who)
    again = None if peers else Replay.of(decoded, protocol)
    notes = list(_notes(decoded, truth, who))
    if other:
        notes.append(f"{other}, so that messages may mean something else")
    if capture.run_facts.wire == "rabit" and peers is None:
        notes.append("no attack on sums of trees: name them, --protocol 'xgboost-ring[trees=...]'")
    if trees is not None and again is None:
        notes.append(
            "no attack of the bench applies, because the trees do not show the number of "
            "rows of each site"
        )
    view: View | None = None
    case: Case | None = None
    try:
        view, case = (
            replayed_view(again, who, truth)
            if again
            else captured_view(relevant, who, parties, truth, peers)
        )
    except DataError as err:
        notes.append(f"no attacks of the bench: {err}")
    wire = capture.run_facts.wire
    framework = WIRES[wire][0] if wire in WIRES else capture.run_facts.framework
    package = f"{capture.run_facts.framework} {capture.run_facts.version}"
    return {
        "framework": f"{framework}, {package}".rstrip(),
        "as": who,
        "parties": sorted(parties),
        "promises": list(promises(capture.run_facts, capture, relevant, who, trees and trees[1])),
        "sees": received.rows(),
        "scored": bool(truth),
        "readings": [_row(reading, truth) for reading in _join_readings(facts)],
        "attacks": [] if view is None else list(run_attacks(view, case, named)),
        "notes": notes,
    }


def _decode_messages(
    decoded: Decoded, who: str, *, all_histograms: bool
) -> tuple[list[Record], MessageCounts, set[str]]:
    """Decode a capture from the perspective of one adversary.

    Parameters
    ----------
    decoded : Decoded
        The capture.
    who : str
        The adversary: a party, or `THIRD`, which sees all messages.
    all_histograms : bool
        Whether the histograms of all trees are needed, and not only those of the first one.

    Returns
    -------
    relevant : list of Record
        Messages that the adversary sent or received.
    received : MessageCounts
        Number and size of the messages that it received.
    parties : set of str
        Names of all parties of the capture.
    """
    relevant, received, parties = list[Record](), MessageCounts(who), set[str]()
    for record in decoded:
        parties |= {record.sender, *record.receivers}
        if who != THIRD and who not in (record.sender, *record.receivers):
            continue
        if who == THIRD or who in record.receivers:
            received.add(record)
        # Readings need only the histograms of the first tree. Storing all would fill the memory.
        if all_histograms or not isinstance(m := record.message, HistogramSegment) or m.tree == 0:
            relevant.append(record)
    return relevant, received, parties


def _peers(wire: str, named: str) -> Any:
    """Return the named protocol if it has only workers and matches the wire, else None."""
    protocol = named_protocol(named)
    return protocol if isinstance(protocol, _PEERS.get(wire, ())) else None


class MessageCounts:
    """Number and total size of the messages of each kind, from the perspective of one party.

    Parameters
    ----------
    who : str
        The party.
    with_reason : bool
        Whether messages with different reasons are counted separately.
    """

    def __init__(self, who: str, *, with_reason: bool = False) -> None:
        self._who, self._with_reason = who, with_reason
        self._rows: dict[tuple[str, ...], dict[str, Any]] = {}

    def add(self, record: Record) -> None:
        """Count one message."""
        kind = {
            "message": type(record.message).__name__,
            "from": record.sender,
            "to": self._who if self._who in record.receivers else ", ".join(record.receivers),
            "reveals": ", ".join(sorted(map(str, record.message.reveals))),
        }
        if self._with_reason:
            kind["why"] = record.why
        row = self._rows.setdefault(tuple(kind.values()), {**kind, "count": 0, "bytes": 0})
        row["count"] += 1
        row["bytes"] += encoded_size(record.message)

    def rows(self) -> list[dict[str, Any]]:
        """Return one row per kind, with its number (``count``) and its size (``bytes``)."""
        return list(self._rows.values())


def _join_readings(readings: list[RevealedFacts]) -> list[RevealedFacts]:
    """Combine the readings of one kind about all columns of one party."""
    joined: dict[tuple[str, str, bool], RevealedFacts] = {}
    for r in readings:
        key = r.what, r.owner, r.certain
        before = joined.get(key)
        joined[key] = replace(r, facts=(*before.facts, *r.facts)) if before else r
    return list(joined.values())


def _row(reading: RevealedFacts, truth: Mapping[str, Table]) -> dict[str, Any]:
    """Return one reading as a row of the report, with its number of wrong facts if known."""
    row: dict[str, Any] = {"reading": reading.what, "of": reading.owner, "read": len(reading.facts)}
    if len(reading.facts) == 1 and reading.facts[0][0] is None:
        row["read"] = next(n for n in reading.facts[0][1:] if n is not None)
    row["certain"] = "yes" if reading.certain else "no"
    if reading.owner in truth:
        row["wrong"] = reading.wrong(truth[reading.owner])
    elif reading.owner == SOMEBODY and isinstance(reading, LeafRows) and truth:
        row["wrong"] = reading.wrong_of_all(truth.values())
    return row


def captured_view(
    records: list[Record],
    who: str,
    parties: set[str],
    truth: Mapping[str, Table],
    named: Any = None,
) -> tuple[View | None, Case | None]:
    """Return the view of captured messages for the attacks, and the case that scores them.

    Parameters
    ----------
    records : list of Record
        The decoded messages that the adversary saw.
    who : str
        The adversary.
    parties : set of str
        All parties of the run.
    truth : mapping of str to Table
        True rows by party.
    named : Protocol, optional
        The protocol of the run, if it is known.

    Returns
    -------
    view : View or None
        None if the number of columns is not known.
    case : Case or None
        None if the rows of some party are not known.

    Raises
    ------
    DataError
        If the trees of a ring do not agree with `named`.
    """
    sketches = [r.message for r in records if isinstance(r.message, RankedSketch)]
    rows = {
        r.sender: r.message.rows for r in records if isinstance(r.message, LabelShare | RootSums)
    }
    columns = [len(sketches[0].low)] if sketches else []
    columns += [m.first + len(m.low) for r in records if isinstance(m := r.message, BinMappers)]
    split = {m.party: m.columns for r in records if isinstance(m := r.message, TreeColumns)}
    columns += [
        int(columns_of_party[-1]) + 1
        for columns_of_party in split.values()
        if len(columns_of_party)
    ]
    if not columns:
        return None, None
    schema = schema_of(max(columns))
    ring = isinstance(named, XGBoostRing)
    noted = worked_out(records, who, named, schema) if ring else ()
    roles = {p: SERVER if p == SERVER else BinningClient.role for p in sorted({*parties, who})}
    if who == THIRD:
        roles[who] = THIRD
    local_data = columns_held(split, truth) if split else local_data_of(truth)
    view = View(
        principals=(who,),
        roles=roles,
        local_data=(local_data[who],) if who in local_data else (),
        schema=schema,
        protocol="",
        parameters={} if named is None else named.parameters,
        n_rows=sum(rows.values()),
        defense=Composition(),
        seen=tuple(Seen(0, r.sender, r.receivers, r.message, r.why) for r in [*records, *noted]),
    )
    if not set(roles) - {SERVER, who} <= set(truth):
        return view, None
    streams = Streams(0)
    return view, Case(local_data, roles, (who,), schema, streams, BinningClient.role)


def columns_held(
    columns: Mapping[str, NDArray[np.integer]], truth: Mapping[str, Table]
) -> dict[str, LocalData]:
    """Return the local data of parties with different columns of the same rows.

    Only the first worker has labels.
    """
    return {
        name: LocalData(
            np.arange(len(t)),
            columns[name].astype(np.intp),
            t.X,
            t.y if name == worker(0) else None,
        )
        for name, t in truth.items()
        if name in columns
    }


def replayed_view(
    again: Replay, who: str, truth: Mapping[str, Table], *, simulated: bool = False
) -> tuple[View, Case | None]:
    """Return the view of a replayed run for the attacks, and the case that scores them.

    Parameters
    ----------
    again : Replay
        The run, repeated as a run of the simulated protocol.
    who : str
        The adversary.
    truth : mapping of str to Table
        True rows by party.
    simulated : bool
        True to run the protocol on the true rows and to take nothing from the capture.

    Returns
    -------
    view : View
    case : Case or None
        None if the rows of some party are not known.
    """
    training = again.run(truth if simulated else None)
    who = SERVER if who == THIRD else who  # the server sees all messages
    order = {name: truth[name] for name in again.rows if name in truth}
    local_data = local_data_of(order)
    view = view_of(training, (who,), local_data)
    if "arrival" in view.parameters:  # the sites do not know the order of the replies
        view = replace(view, parameters={**view.parameters, "arrival": "shuffled"})
    if not {*again.rows} - {who} <= {*local_data}:
        return view, None
    case = Case(
        local_data, dict(training.transcript.roles), (who,), training.schema, Streams(0),
        BinningClient.role, model=training.model, transcript=training.transcript,
    )  # fmt: skip
    return view, case


def run_attacks(view: View, case: Case | None, named: Sequence[str] = ()) -> Iterator[Row]:
    """Run the attacks that apply to a view, and score their guesses.

    Parameters
    ----------
    view : View
        The view of the adversary.
    case : Case or None
        The ground truth. None: guesses are not scored.
    named : sequence of str
        Attacks to run. The default is every attack of the default suite.

    Yields
    ------
    row : dict
        Description and scores of a guess, and the number of certain claims in it.
    """
    grid = Suite.load(DEFAULT_SUITE).grids[0]
    specs = parse_list(named) if named else grid.every_attack
    reasons = attack_process().reasons(specs, view)
    for spec, reason in zip(specs, reasons, strict=True):
        if not reason.ok:
            if named:
                yield {"attack": str(spec), "said": f"does not apply: {reason}"}
            continue
        try:
            guess = attack_process().run(spec, view).guess
            assert guess is not None
            scores = {} if case is None else main_scores(spec.name, guess, case)
        except FedtreesError as err:
            yield {"attack": str(spec), "said": f"failed: {err}"}
            continue
        yield {"attack": str(spec), "said": summarize_guess(guess), "scores": scores,
               "certain": sum(claim.certain for claim in guess.claims)}  # fmt: skip


def summarize_guess(guess: Guess) -> str:
    """Return the claims of a guess in words."""
    kinds = Counter(type(claim).__name__ for claim in guess.claims)
    sure = sum(claim.certain for claim in guess.claims)
    claims = ", ".join(f"{n:,} {kind}" for kind, n in kinds.items()) or "nothing"
    return f"claims {claims}; {sure:,} of them certain"


def main_scores(name: str, guess: Guess, case: Case) -> Scores:
    """Return the main scores of an attack's guess, each with its blind baseline.

    The result is empty if the capture lacks the information with which the claims are compared.
    """
    try:
        metrics = {m.name: m for kind in _kinds(guess) for m in metrics_of(kind)}.values()
        blind = compute_blind_baseline(metrics, case)
        rows = [*score_guess(name, guess, case, blind)]
    except Unfit:
        return {}
    main = {key for m in metrics for key in m.main}
    return {
        str(r["metric"]): (r["value"], r["blind"])
        for r in rows
        if r["metric"] in main and r["value"] is not None and not r.get("part")
    }


def _kinds(guess: Guess) -> set[type[Claim]]:
    """Return the types of the claims in a guess."""
    return {type(claim) for claim in guess.claims}


def _notes(decoded: Decoded, truth: Mapping[str, Table], who: str) -> Iterator[str]:
    """Yield notes on incomplete captures and missing true rows."""
    if decoded.capture.cut:
        yield f"the file ends within a piece ({decoded.capture.cut:,} bytes): it was cut off"
    if decoded.ended.left:
        yield f"{decoded.ended.left:,} bytes were not decoded: {decoded.ended.why}"
    if not truth:
        yield "give --truth PARTY=FILE to compare the messages with the true rows"

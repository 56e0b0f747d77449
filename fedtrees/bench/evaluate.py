"""What each kind of cell computes: measurements, as rows without the columns they share."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedtrees.bench.cells import AttackCell, BlindCell, ReferenceCell, Setting, TrainCell
from fedtrees.bench.federation import Federation
from fedtrees.bench.leaf_rows import leaf_scores
from fedtrees.bench.published_scores import published_scores
from fedtrees.core.attack import Attack
from fedtrees.core.defense import Composition
from fedtrees.core.errors import ProtocolError
from fedtrees.core.guarantee import join
from fedtrees.core.guess import Guess
from fedtrees.core.registry import register
from fedtrees.core.schema import Table
from fedtrees.core.specs import Composed
from fedtrees.core.streams import Streams
from fedtrees.core.threat import Threat
from fedtrees.messages.cuts import CutPoints
from fedtrees.metrics.advantage import LOWER_IS_BETTER, advantage, best_value
from fedtrees.metrics.blind import best_scores, blind_guesses
from fedtrees.metrics.records import score_records
from fedtrees.metrics.returned_rows import ReturnedRows, score_returned_rows
from fedtrees.metrics.specificity import nearest_row, specificity
from fedtrees.metrics.utility import utility_scores
from fedtrees.protocols.base import Protocol, Training, client_names, train, view_of
from fedtrees.trees.binning import Cuts

Row = dict[str, Any]


class Inapplicable(Exception):
    """A combination that makes no sense, with the reason; it becomes a skip row."""


@dataclass(frozen=True)
class Outcome:
    """Rows of one cell and the columns they share."""

    rows: list[Row]
    common: Row


def make_defense(composed: Composed) -> Composition:
    """Construct a composition from its specs."""
    return Composition(tuple(register.make("defense", s) for s in composed.parts))


def setting_columns(setting: Setting) -> Row:
    """Return the columns that name a federation."""
    return {
        "dataset": setting.data.name,
        "partition": setting.partition_text,
        "seed": setting.seed,
    }


def train_columns(cell: TrainCell) -> Row:
    """Return the columns that name a training run, with the defense's claim."""
    defense = make_defense(cell.defense)
    return {
        **setting_columns(cell.setting),
        "protocol": cell.protocol.name,
        "protocol_params": cell.protocol.inline,
        "defense": cell.defense.name,
        "defense_params": cell.defense.inline,
        "claimed": join(defense.claims()),
    }


def attack_columns(cell: AttackCell) -> Row:
    """Return the columns that name an attack on a training run."""
    return {
        **train_columns(cell.train),
        "threat": cell.threat,
        "attack": cell.attack.name,
        "attack_params": cell.attack.inline,
    }


def run_training(cell: TrainCell, federation: Federation) -> Training:
    """Train.

    Raises
    ------
    Inapplicable
        If the defense makes no sense with the protocol.
    """
    protocol: Protocol = register.make("protocol", cell.protocol)
    defense = make_defense(cell.defense)
    reason = protocol.mismatch(defense)
    if reason:
        raise Inapplicable(reason)
    return train(
        protocol,
        federation.clients,
        federation.schema,
        defense=defense,
        seed=cell.setting.seed,
    )


def training_columns(training: Training) -> Row:
    """Return the columns that tell what a training run spent."""
    traffic = training.transcript.traffic()
    return {
        "spent": join(training.defense.spent(training.transcript)),
        "rounds": training.transcript.rounds,
        "bytes_up": sum(n for (way, _), n in traffic.items() if way == "up"),
        "bytes_down": sum(n for (way, _), n in traffic.items() if way == "down"),
    }


def evaluate_training(
    cell: TrainCell, federation: Federation, training: Training, wall: float, cpu: float
) -> Outcome:
    """Measure utility on held-out rows, and cost."""
    scores = training.predict(federation.test.X)
    rows = [_row(k, v) for k, v in utility_scores(federation.test.y, scores).items()]
    traffic = training.transcript.traffic()
    rows.append(_row("bytes", sum(traffic.values()), "bytes"))
    rows.append(_row("cpu_seconds", cpu, "seconds"))
    for (way, kind), size in sorted(traffic.items()):
        rows.append(_row(f"bytes_{way}:{kind}", size, "bytes"))
    common = {**train_columns(cell), **training_columns(training), "seconds": round(wall, 4)}
    return Outcome(rows, {**common, "stage": "train"})


@dataclass(frozen=True)
class BlindLine:
    """What the blind adversary scored: the best value of every metric, and the guess best by RA."""

    scores: Mapping[str, float]
    best: str


def evaluate_attack(
    cell: AttackCell, federation: Federation, training: Training, blind: BlindLine | None
) -> Outcome:
    """Run an attack on what its adversary saw, and score the guess against the truth.

    Raises
    ------
    Inapplicable
        If protocol and threat give the attack nothing to read.
    """
    attack: Attack = register.make("attack", cell.attack)
    roles = training.transcript.roles
    principals = Threat.parse(cell.threat).principals(roles)
    reason = attack.inapplicable(
        training.protocol.offers_on(training.schema), {roles[p] for p in principals}
    )
    if reason:
        raise Inapplicable(reason)
    seed = cell.setting.seed
    view = view_of(training, principals, federation.clients)
    rng = Streams(seed).child("attack", cell.threat).rng(cell.attack.name)
    wall, cpu = time.perf_counter(), time.process_time()
    guess = checked_guess(cell.attack.name, attack.run(view, rng), federation)
    wall, cpu = time.perf_counter() - wall, time.process_time() - cpu
    if getattr(attack, "scope", "victims") == "union":  # for parity with published figures
        line = {} if blind is None else dict(blind.scores)
        scored = published_scores(guess, federation, principals, line, seed)
        rows = [_scored(*each) for each in scored]
    else:
        rows = list(score_guess(guess, federation, principals, training, cell, blind))
    rows.append(_row("cpu_seconds", cpu, "seconds"))
    rows += [_row(f"note:{k}", float(v)) for k, v in guess.notes.items() if np.isfinite(v)]
    common = {**attack_columns(cell), **training_columns(training), "seconds": round(wall, 4)}
    return Outcome(rows, {**common, "stage": "attack"})


def checked_guess(name: str, guess: object, federation: Federation) -> Guess:
    """Return what an attack returned, if it can be scored.

    Raises
    ------
    ProtocolError
        If it is no `Guess`, or its rows do not have the schema's columns and labels.
    """
    if not isinstance(guess, Guess):
        raise ProtocolError(f"attack {name!r} returned a {type(guess).__name__}; return a Guess")
    if guess.records is not None:
        width, wanted = guess.records.X.shape[1], len(federation.schema.features)
        if width != wanted:
            raise ProtocolError(f"attack {name!r} guessed {width} columns; the schema has {wanted}")
        if np.isinf(guess.records.X).any():
            raise ProtocolError(f"attack {name!r} guessed infinite values; rows must be finite")
        classes = max(len(federation.schema.classes), 2)
        if not np.isin(guess.records.y, np.arange(classes)).all():
            known = "0 and 1" if classes == 2 else f"0 to {classes - 1}"
            raise ProtocolError(f"attack {name!r} guessed labels other than {known}")
    return guess


def score_guess(
    guess: Guess,
    federation: Federation,
    principals: tuple[str, ...],
    training: Training,
    cell: AttackCell,
    blind: BlindLine | None,
) -> Iterator[Row]:
    """Yield one row per metric, each beside its blind score.

    Where an attack returns only the rows it is sure of, the blind adversary's best guess completes
    them before they are compared with all victims' rows: nobody has to submit less.
    """
    truth, schema, seed = federation.victims(principals), federation.schema, cell.setting.seed
    if guess.records is not None:
        records, scores_blind = guess.records, {} if blind is None else blind.scores
        if guess.confidence is not None and blind is not None and len(records) < len(truth):
            rest = _guess_blindly(federation, principals, cell.setting, cell.threat)[blind.best]
            rest = rest.take(np.arange(len(truth) - len(records)))
            records = Table.concat([records, rest])
        scores = score_records(records, truth, schema, federation.dataset.top)
        values = {**scores.as_dict(), **{f"ra:{k}": v for k, v in scores.per_feature.items()}}
        for metric, value in values.items():
            yield _scored(metric, value, scores_blind.get(metric))
        if federation.reserve is not None and len(guess.records):
            rng = Streams(seed).child("scores").rng("reserve")
            test = specificity(guess.records, truth, federation.reserve, schema, rng)
            yield _row("specificity_z", test.z)
            near = nearest_row(guess.records, truth, federation.reserve, schema, rng)
            yield _scored("nearest_row", near, 0.5)
    if guess.records is not None and guess.confidence is not None:
        yield from _returned_rows(guess, federation, principals, training, seed)
    if guess.leaf_counts and training.model.trees:
        for metric, value, line in leaf_scores(guess, federation, principals, training):
            yield _scored(metric, value, line)


def _returned_rows(
    guess: Guess,
    federation: Federation,
    principals: tuple[str, ...],
    training: Training,
    seed: int,
) -> Iterator[Row]:
    """Score rows returned as certain, beside single draws of the blind adversary."""
    sent = [d.message for d in training.transcript if isinstance(d.message, CutPoints)]
    if not sent or guess.records is None:
        return
    cuts = Cuts(sent[0].values, sent[0].offsets, sent[0].minimum)
    names = client_names(len(federation.clients))
    held = dict(zip(names, federation.clients, strict=True))
    truth = {name: table for name, table in held.items() if name not in principals}
    got = score_returned_rows(guess.records, truth, cuts, guess.owner).as_dict()
    own, n = federation.own(principals), sum(map(len, truth.values()))
    rng = Streams(seed).child("blind").rng("returned-rows")
    drawn = blind_guesses(own, federation.schema, n, rng, draws=1)
    blind = max((score_returned_rows(g, truth, cuts) for g in drawn.values()), key=_right)
    yield _row("returned_rows", got.pop("returned_rows"), "rows")
    for metric, value in got.items():
        # an owner drawn at random is right for one victim in as many as there are
        line = blind.right / len(truth) if metric == "returned_owned" else None
        yield _scored(metric, value, blind.as_dict()[metric] if line is None else line)


def _right(scores: ReturnedRows) -> float:
    return scores.right


def evaluate_blind(cell: BlindCell, federation: Federation) -> Outcome:
    """Score what the same principals guess from an empty transcript; the best guess counts.

    Beside the best score of every metric there is one row per guess for the main ones, with the
    guess's name in ``attack_params``.
    """
    principals = Threat.parse(cell.threat).principals(federation.roles)
    truth, schema = federation.victims(principals), federation.schema
    guesses = _guess_blindly(federation, principals, cell.setting, cell.threat)
    scored = {
        name: score_records(guess, truth, schema, federation.dataset.top)
        for name, guess in guesses.items()
    }
    rows = []
    for metric, best in best_scores(scored).items():
        gain = None if best.score == best_value(metric) else 0.0
        line = {"blind": best.score, "advantage": gain, "reason": f"best guess: {best.guess}"}
        rows.append({**_row(metric, best.score), **line})
    for name, scores in scored.items():
        for metric in ("ra", "ra_top", "exact_rows"):
            rows.append({**_row(metric, scores.as_dict()[metric]), "attack_params": name})
    common = {**setting_columns(cell.setting), "threat": cell.threat, "attack": "blind"}
    return Outcome(rows, {**common, "stage": "blind"})


def _guess_blindly(
    federation: Federation, principals: tuple[str, ...], setting: Setting, threat: str
) -> dict[str, Table]:
    """Return what these principals guess from an empty transcript, by the guess's name."""
    rng = Streams(setting.seed).child("blind", threat).rng("guesses")
    n = len(federation.victims(principals))
    return blind_guesses(federation.own(principals), federation.schema, n, rng)


def evaluate_reference(cell: ReferenceCell, federation: Federation) -> Outcome:
    """Measure each client's model trained alone with the same protocol, and the majority class."""
    protocol: Protocol = register.make("protocol", cell.protocol)
    test = federation.test
    classes = len(federation.schema.classes)
    alone: dict[str, list[float]] = {}
    for table in federation.clients:
        if len(np.unique(table.y)) == classes:
            model = train(protocol, [table], federation.schema, seed=cell.setting.seed).model
            guess = model.predict(test.X)
        else:
            guess = _constant_prediction(table.y, classes, len(test))
        for metric, value in utility_scores(test.y, guess).items():
            if value is not None:
                alone.setdefault(metric, []).append(value)
    rows = [{**_row(k, float(np.mean(v))), "protocol": "local-only"} for k, v in alone.items()]
    # The constant prediction is the base rate; its accuracy is that of the majority class.
    constant = _constant_prediction(
        np.concatenate([t.y for t in federation.clients]), classes, len(test)
    )
    for metric, value in utility_scores(test.y, constant).items():
        rows.append({**_row(metric, value), "protocol": "majority-class"})
    common = {
        **setting_columns(cell.setting),
        "protocol_params": str(cell.protocol),
        "defense": "none",
        "stage": "reference",
    }
    return Outcome(rows, common)


def _constant_prediction(y: NDArray[Any], classes: int, n: int) -> NDArray[np.float64]:
    """Return the class shares as everyone's prediction, (n,) of class 1 or (n, K)."""
    if classes == 2:
        return np.full(n, float(y.mean()))
    return np.tile(np.bincount(y, minlength=classes) / len(y), (n, 1))


def _row(metric: str, value: float | None, unit: str = "") -> Row:
    return {"metric": metric, "value": _number(value), "unit": unit, "status": "ok"}


def _scored(metric: str, value: float | None, blind: float | None) -> Row:
    gain = advantage(value, blind, best=best_value(metric))
    unit = "distance" if metric in LOWER_IS_BETTER else "share"
    return {**_row(metric, value, unit), "blind": _number(blind), "advantage": _number(gain)}


def _number(value: float | None) -> float | None:
    if value is None or not np.isfinite(value):
        return None
    return int(value) if isinstance(value, (int, np.integer)) else float(value)


def blind_line(rows: Sequence[Row]) -> BlindLine:
    """Return the blind line from a blind cell's rows."""
    known = [r for r in rows if r.get("value") is not None]
    scores = {r["metric"]: r["value"] for r in known if "attack_params" not in r}
    named = [r for r in known if "attack_params" in r and r["metric"] == "ra"]
    return BlindLine(scores, max(named, key=lambda r: r["value"])["attack_params"])

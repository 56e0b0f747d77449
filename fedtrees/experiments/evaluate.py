"""What each kind of cell computes: measurements, as rows without the columns they share."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedtrees.core import results
from fedtrees.core.attack import claims_of, contenders
from fedtrees.core.composition import Composition
from fedtrees.core.defense import Defense
from fedtrees.core.errors import ProtocolError, UsageError
from fedtrees.core.guarantee import join
from fedtrees.core.guess import Claim, Guess, Membership
from fedtrees.core.local_data import LocalData, rows_of
from fedtrees.core.reasons import FITS, NO_CLAIM, Reason, Unfit
from fedtrees.core.registry import register
from fedtrees.core.results import DETECTION, RAREST, Measure
from fedtrees.core.schema import Table
from fedtrees.core.specs import Composed, Spec
from fedtrees.core.streams import NoiseFrom
from fedtrees.core.threat import Threat
from fedtrees.core.view import View
from fedtrees.experiments.epsilon_audit import largest_node, measure
from fedtrees.experiments.federation import Federation
from fedtrees.experiments.plan import (
    AdversaryCell,
    AttackCell,
    BlindCell,
    ReferenceCell,
    Setting,
    TrainCell,
)
from fedtrees.isolation.process import attacks
from fedtrees.metrics.advantage import advantage
from fedtrees.metrics.metric import Case, Metric, Score, all_metrics, metrics_of
from fedtrees.metrics.utility import scores_of
from fedtrees.protocols.base import Protocol
from fedtrees.protocols.compatibility import Data, before, fit, fits
from fedtrees.protocols.training import Training, train
from fedtrees.protocols.views import view_of

Row = dict[str, Any]
#: A bench measures, and the same seed gives the same rows; nobody relies on its models.
NOISE: NoiseFrom = "seed"


@dataclass(frozen=True)
class Outcome:
    """Rows of one cell and the columns they share."""

    rows: list[Row]
    common: Row


def parts_of(composed: Composed) -> list[Defense]:
    """Construct the parts of a composition from their specs."""
    return [register.make("defense", spec) for spec in composed.parts]


def make_defense(composed: Composed) -> Composition:
    """Construct a composition from its specs; raises `Unfit` where it may not be composed so."""
    return Composition(tuple(parts_of(composed)))


def setting_columns(setting: Setting) -> Row:
    """Return the columns that name a federation."""
    return {"dataset": setting.data.name, "partition": setting.partition_text, "seed": setting.seed}


def threat_columns(threat: str) -> Row:
    """Return the columns that name an adversary."""
    parsed = Threat.parse(threat)
    return {"threat": threat, "adversary": parsed.adversary, "access": parsed.access}


def train_columns(cell: TrainCell) -> Row:
    """Return the columns that name a training run, with the defense's claim."""
    protocol: Protocol = register.make("protocol", cell.protocol)
    claims = [protocol.claim()]
    parts = parts_of(cell.defense)
    if fit(None, parts).ok:
        defense = Composition(tuple(parts))
        claims = [protocol.claimed(defense), *defense.claims()]
    return {
        **setting_columns(cell.setting),
        "protocol": cell.protocol.name,
        "protocol_params": cell.protocol.inline,
        "defense": cell.defense.name,
        "defense_params": cell.defense.inline,
        "claimed": join(claims),
    }


def attack_columns(cell: AttackCell) -> Row:
    """Return the columns that name an attack on a training run."""
    return {
        **train_columns(cell.train),
        **threat_columns(cell.threat),
        **name_of_attack(cell.attack),
    }


def name_of_attack(attack: Spec) -> Row:
    """Return the columns that name an attack and its parameters."""
    return {"attack": attack.name, "attack_params": attack.inline}


def adversary_columns(cell: AdversaryCell) -> Row:
    """Return the columns that name an adversary of a training run."""
    return {**train_columns(cell.train), **threat_columns(cell.threat)}


def run_training(cell: TrainCell, federation: Federation) -> Training:
    """Train; raises `Unfit` if the defense makes no sense with the protocol on this table."""
    protocol: Protocol = register.make("protocol", cell.protocol)
    defense = make_defense(cell.defense)
    seed = cell.setting.seed
    local_data, schema, cheats = federation.local_data, federation.schema, dict(cell.behaviours)
    options: dict[str, Any] = {"seed": seed, "noise_from": NOISE, "behaviours": cheats}
    return train(protocol, local_data, schema, defense=defense, **options)


def training_columns(training: Training) -> Row:
    """Return the columns that tell what a training run spent."""
    traffic = training.transcript.traffic()
    return {
        "spent": join(training.spent),
        "rounds": training.transcript.rounds,
        "bytes_up": sum(n for (way, _), n in traffic.items() if way == "up"),
        "bytes_down": sum(n for (way, _), n in traffic.items() if way == "down"),
    }


def evaluate_training(
    cell: TrainCell, federation: Federation, training: Training, wall: float, cpu: float
) -> Outcome:
    """Measure utility on held-out rows, and cost; where somebody cheats, who noticed."""
    rows: list[Row] = []
    if not training.refused:
        scores = training.predict(federation.test.X)
        utility = scores_of(federation.dataset.task)(federation.test.y, scores)
        rows += [
            {**_row(k, v), "n": len(federation.test), **_why(v, "one-class", metric=k)}
            for k, v in utility.items()
        ]
    if federation.schema.classes:
        rarest = np.bincount(federation.test.y, minlength=len(federation.schema.classes)).min()
        rows.append(_row(RAREST.key, float(rarest)))
    rows += _detection(training)
    traffic = training.transcript.traffic()
    rows += [_row("bytes", sum(traffic.values())), _row("cpu_seconds", cpu)]
    rows += [_row(f"bytes_{way}", n, kind) for (way, kind), n in sorted(traffic.items())]
    rows += [_cost(*cost) for cost in sorted(training.transcript.costs.items())]
    common = {**train_columns(cell), **training_columns(training), "seconds": round(wall, 4)}
    if training.behaviours:
        threat = "+".join(f"{name}:{how}" for name, how in cell.behaviours)
        return Outcome(rows, {**common, "stage": cell.stage, "threat": threat})
    measured = largest_node(training, federation.local_data)
    measured = measured or measure(training.protocol, training.defense, seed=cell.setting.seed)
    return Outcome(rows, {**common, "stage": cell.stage, "measured": str(measured or "")})


def _detection(training: Training) -> list[Row]:
    """Return whether an honest party refused to go on, where somebody cheats."""
    if not training.behaviours:
        return []
    return [_row(DETECTION.key, float(bool(training.refused)), training.refused)]


@dataclass(frozen=True)
class BlindLine:
    """What blind adversaries scored, by the metrics that need no training."""

    scores: Mapping[str, float]  # the best value of every score
    population: Mapping[str, float]  # and of who knows other rows of the population
    best: Mapping[str, str]  # per metric, the guess that is best by its deciding score


def evaluate_attack(
    cell: AttackCell, federation: Federation, training: Training, blind: BlindLine | None
) -> Outcome:
    """Run an attack on what its adversary saw, in its own process, and score the guess here.

    Raises `Unfit` if the view has nothing for the attack to read.
    """
    case = _case(cell, federation, training)
    view = seen(training, case)
    reason = before(cell.attack, replace(_data(case), view=view))
    if not reason.ok:
        raise Unfit(reason)
    view = with_background(cell.attack.name, view, case)
    answer = attacks().run(cell.attack, view)
    if answer.guess is None:
        raise Unfit(answer.reason)
    guess = answer.guess
    rows = list(score_guess(cell.attack.name, guess, case, blind))
    rows += [_row("cpu_seconds", answer.cpu), *_detection(training)]
    if view.oracle is not None:
        rows.append(_row("queries", float(sum(view.oracle.log))))
        rows.append(_row("query_batches", float(len(view.oracle.log))))
    rows += [_row("note", v, k) for k, v in guess.notes.items() if np.isfinite(v)]
    common = {
        **attack_columns(cell),
        **training_columns(training),
        "seconds": round(answer.wall, 4),
    }
    return Outcome(rows, {**common, "stage": "attack"})


def evaluate_adversary(cell: AdversaryCell, federation: Federation, training: Training) -> Outcome:
    """Ask every attack whether there is anything in the view for it, and run none.

    One row per attack of `contenders`: ``applies`` is 1, or 0 with the reason.
    """
    reasons = applying(contenders(), training, _case(cell, federation, training))
    rows = [
        {**_row("applies", float(reason.ok)), "attack": name, **reason.columns()}
        for name, reason in reasons.items()
    ]
    common = {**adversary_columns(cell), **training_columns(training)}
    return Outcome(rows, {**common, "stage": "adversary"})


def applying(names: Sequence[str], training: Training, case: Case) -> dict[str, Reason]:
    """Ask attacks, as they are by default, whether the principals of a case saw what they read."""
    data = replace(_data(case), view=seen(training, case))
    return dict(zip(names, fits([Spec(name) for name in names], data), strict=True))


def seen(training: Training, case: Case) -> View:
    """Return what the principals of a case saw; raises `Unfit` if they open what is sealed."""
    threat = Threat.parse(case.threat)
    query_rights = (threat.queries, threat.answers, threat.records)
    knowledge: dict[str, Any] = {"known_rows": case.known, "entries": case.entries}
    knowledge["rows"] = None if case.asked is None else case.asked.X
    return view_of(training, case.principals, case.local_data, *query_rights, **knowledge)


def _is_told(attack: str) -> bool:
    """Return whether an attack that is registered here is told candidates."""
    registered = attack in register.names("attack")
    return registered and bool(getattr(register.get("attack", attack), "candidates", False))


def with_background(attack: str, view: View, case: Case) -> View:
    """Return the view with what an attack receives besides the transcript.

    A membership attack receives the candidates. Every other attack of an adversary without local
    rows receives the rows of the population from which its population baseline is computed. A
    membership attack must not receive those: the candidates that are non-members are among them.
    """
    if not _is_told(attack):
        return replace(view, population=case.background)
    if case.candidates is None:
        return view
    return replace(view, candidates=case.candidates.table)


def _case(cell: AttackCell | AdversaryCell, federation: Federation, training: Training) -> Case:
    roles = dict(cell.setting.roles)
    principals = Threat.parse(cell.threat).principals(roles)
    return federation.case(roles, principals, cell.setting.seed, cell.threat, training)


def _data(case: Case) -> Data:
    """Return what an attack may be refused for before it is asked."""

    def scored(kind: type[Claim]) -> bool:
        return any(metric.truth(case) is not None for metric in metrics_of(kind))

    return Data(case.schema, rows_of(case.local_data), scored=scored)


def score_guess(attack: str, guess: Guess, case: Case, blind: BlindLine | None) -> Iterator[Row]:
    """Yield one row per score of every metric of every claim, each with its blind baseline.

    A guess with a reason instead of claims gives rows of the status ``no-claim``.

    Raises `ProtocolError` if the guess is empty without a reason, or a claim cannot be compared
    with anything here.
    """
    if guess.reason is not None:
        yield from _no_claim(attack, guess.reason, case, blind)
        return
    if not guess.claims:
        raise ProtocolError(
            f"attack {attack!r} returned a guess without claims and without a reason; return "
            "Guess.none(Reason(code)) or Guess.none('a sentence that says why')"
        )
    candidates_given = _is_told(attack)
    if candidates_given and any(type(c) is not Membership for c in guess.claims):
        raise ProtocolError(f"attack {attack!r} is told candidates: it claims Membership alone")
    compared = False
    for kind in dict.fromkeys(type(c) for c in guess.claims):
        claims = [c for c in guess.claims if type(c) is kind]
        metrics = metrics_of(kind)
        if not metrics:
            raise ProtocolError(
                f"attack {attack!r} claims {kind.__name__}, which no metric scores; register one "
                "(`of` names the very type)"
            )
        for metric in metrics:
            reason = metric.refuses(claims, case)
            if reason:
                raise ProtocolError(f"attack {attack!r}: {reason}")
            truth = metric.truth(case)
            if truth is not None:
                compared = True
                yield from _metric_rows(metric, claims, truth, case, blind)
    if not compared:
        raise Unfit(Reason("not-compared"))


def _no_claim(attack: str, reason: Reason, case: Case, blind: BlindLine | None) -> Iterator[Row]:
    """Yield a row for every measure that an attack without a claim leaves unsettled.

    These are the measures of the claims that the attack declares (`Attack.claims`). The row has no
    value. Its blind baseline is what the adversary scores instead, as far as that needs no
    training. An attack that declares nothing gives one row without a measure.
    """
    registered = attack in register.names("attack")
    kinds = claims_of(register.get("attack", attack)) if registered else ()
    metrics = [m for kind in kinds for m in metrics_of(kind) if m.truth(case) is not None]
    left = [m for metric in metrics for m in metric.measures if m.phrase and not m.part]
    why = {**reason.columns(), "status": NO_CLAIM, "state_code": NO_CLAIM}
    baseline = {} if blind is None else blind.scores
    for unsettled in left:
        yield {**_of(unsettled, None), "blind": baseline.get(unsettled.key), **why}
    if not left:
        yield {"metric": "", **why}


def _metric_rows(
    metric: Metric[Any], claims: Sequence[Claim], truth: Any, case: Case, blind: BlindLine | None
) -> Iterator[Row]:
    def best_blind() -> Sequence[Claim]:
        name = blind.best.get(metric.name) if blind else None
        if not name:
            return ()
        return _population_guess(metric, truth, case) or metric.blind(case, truth)[name]

    measured = {} if blind is None else blind.scores
    scores = metric.score(metric.completed(claims, truth, best_blind), truth)
    certain = int(all(c.certain for c in claims))
    line, population = measured, {} if blind is None else blind.population
    if scores and not metric.before_training:
        line, informed = metric.line(case, truth, measured), case.of_population
        population = {} if informed is None else metric.line(informed, truth, population)
    for score in scores:
        blind_value = line.get(score.name) if score.blind is None else score.blind
        row = _scored(metric, score, truth, blind_value, population.get(score.name))
        yield {**row, "certain": certain}


def _population_guess(metric: Metric[Any], truth: Any, case: Case) -> Sequence[Claim]:
    """Return the best guess from rows of the population, empty where the adversary has none.

    It completes the claims of an attack that omits rows: an attack that knows the population would
    fill the gap with this guess. The best guess is the best by the first of `Metric.main`.
    """
    informed = case.of_population
    if informed is None or not metric.main:
        return ()
    guesses = metric.blind(informed, truth)
    scored = {name: metric.score(claims, truth) for name, claims in guesses.items()}
    best = metric.best_of(scored).get(metric.main[0])
    return () if best is None else guesses[best.guess]


def evaluate_blind(cell: BlindCell, federation: Federation) -> Outcome:
    """Score what the same principals claim from an empty transcript; the best guess counts.

    Beside the best value of every score there is one row per guess for the main ones, with the
    guess's name in ``attack_params``.
    """
    roles = dict(cell.setting.roles)
    principals = Threat.parse(cell.threat).principals(roles)
    case = federation.case(roles, principals, cell.setting.seed, cell.threat)
    rows: list[Row] = []
    for metric in all_metrics():
        truth = metric.truth(case) if metric.before_training else None
        if truth is None:
            continue
        scored = _guessed(metric, case, truth)
        informed = case.of_population
        informed_best = (
            {} if informed is None else metric.best_of(_guessed(metric, informed, truth))
        )
        for name, best in metric.best_of(scored).items():
            comparable = metric.measure(best.score).phrase and name in informed_best
            blind_scores = best.value, informed_best[name].value if comparable else None
            row = _scored(metric, best.score, truth, *blind_scores)
            rows.append({**row, "blind_guess": best.guess})
        for name, scores in scored.items():
            values = {s.name: s.value for s in scores}
            rows += [{**_row(m, values.get(m)), "attack_params": name} for m in metric.main]
    common = {**setting_columns(cell.setting), **threat_columns(cell.threat), "attack": "blind"}
    return Outcome(rows, {**common, "stage": "blind"})


def _guessed(metric: Metric[Any], case: Case, truth: Any) -> dict[str, list[Score]]:
    """Return the scores of every blind guess, by its name."""
    return {name: metric.score(claims, truth) for name, claims in metric.blind(case, truth).items()}


def evaluate_reference(cell: ReferenceCell, federation: Federation) -> Outcome:
    """Measure each client's model trained alone with the same protocol, and the majority class.

    Of numbers: their mean in place of the majority class.

    Alone trains who holds labels, on the columns that it has. Where nobody can train alone, only
    the majority class is measured.
    """
    protocol: Protocol = register.make("protocol", cell.protocol)
    test, scores = federation.test, scores_of(federation.dataset.task)
    classes = len(federation.schema.classes)
    alone: dict[str, list[float]] = {}
    for party_data in federation.local_data.values():
        if party_data.y is None or not len(party_data.columns):
            continue
        if len(np.unique(party_data.y)) == classes or not classes:
            try:
                guess = _trained_alone(protocol, party_data, federation, cell.setting.seed)
            except UsageError:  # this protocol takes more parties
                break
        else:
            guess = _constant_prediction(party_data.y, classes, len(test))
        for metric, value in scores(test.y, guess).items():
            if value is not None:
                alone.setdefault(metric, []).append(value)
    rows = [{**_row(k, float(np.mean(v))), "protocol": protocol.alone} for k, v in alone.items()]
    # The constant prediction is the base rate; its accuracy is that of the majority class.
    labels = np.concatenate([h.y for h in federation.local_data.values() if h.y is not None])
    constant = _constant_prediction(labels, classes, len(test))
    simplest = "majority-class" if classes else "mean-target"
    for metric, value in scores(test.y, constant).items():
        rows.append({**_row(metric, value), "protocol": simplest})
    common = {
        **setting_columns(cell.setting),
        "protocol_params": str(cell.protocol),
        "defense": "none",
        "stage": "reference",
    }
    return Outcome(rows, common)


def _trained_alone(
    protocol: Protocol, held: LocalData, federation: Federation, seed: int
) -> NDArray[np.float64]:
    """Return what a party predicts of the test rows that trains with nobody else."""
    columns = held.columns
    schema = federation.schema.of_columns(columns)
    party_data = LocalData.of(Table(held.X, held.y, held.weight))
    lone = dict.fromkeys(protocol.holder_names(1), party_data)
    return train(protocol, lone, schema, seed=seed, noise_from=NOISE).predict(
        federation.test.X[:, columns]
    )


def _constant_prediction(y: NDArray[Any], classes: int, n: int) -> NDArray[np.float64]:
    """Return the class shares, or the mean, as everyone's prediction, (n,) or (n, K)."""
    if classes in (0, 2):
        return np.full(n, float(y.mean()))
    return np.tile(np.bincount(y, minlength=classes) / len(y), (n, 1))


def _row(key: str, value: float | None, part: str = "") -> Row:
    return _of(results.measures()[key], value, part)


def _of(what: Measure, value: float | None, part: str = "") -> Row:
    row = {"metric": what.key, "value": _number(value), "unit": what.unit}
    ok = {"status": FITS.status, "state_code": FITS.state, "measure_class": what.klass}
    return {**row, **ok, **({"part": part} if part else {})}


def _why(value: float | None, code: str, **args: str) -> Row:
    """Return why a value is not there, nothing where it is."""
    return Reason(code, **args).columns() if value is None else {}


def _cost(name: str, spent: float) -> Row:
    """Return what cryptography took: in all, or of an operation, a type of message, a party."""
    key, _, part = name.partition(":")
    if key not in results.measures():
        key, part = "operations", f"{key} by {part}" if part else key
    return _row(f"{key}_of" if ":" in name else key, spent, part)


def _scored(
    metric: Metric[Any], score: Score, truth: Any, blind: float | None, population: float | None
) -> Row:
    what = metric.measure(score)
    gain, beyond = (advantage(score.value, x, best=what.best) for x in (blind, population))
    row = {"n": metric.counted(truth), "error": score.error, "blind": blind, "advantage": gain,
           "population": population, "beyond": beyond}  # fmt: skip
    row_columns = {**_of(what, score.value, score.part), **{k: _number(v) for k, v in row.items()}}
    if None not in (score.value, blind):
        row_columns |= _why(gain, "blind-perfect", metric=what.key)
    return {**row_columns, "measure_class": score.klass} if score.klass else row_columns


def _number(value: float | None) -> float | None:
    if value is None or not np.isfinite(value):
        return None
    return int(value) if isinstance(value, (int, np.integer)) else float(value)


def blind_baseline(rows: Sequence[Row]) -> BlindLine:
    """Return the blind baseline from a blind cell's rows."""
    scored = [r for r in rows if r.get("value") is not None]
    lines = [r for r in scored if "attack_params" not in r]
    scores = {f"{r['metric']} {r.get('part', '')}".strip(): r["value"] for r in lines}
    best = {}
    for metric in all_metrics():
        main = next(iter(metric.main), "")
        named = [r for r in scored if "attack_params" in r and r["metric"] == main]
        if named:  # the one that the best value is of, whether more is better or less
            reached = (r for r in named if r["value"] == scores.get(r["metric"]))
            best[metric.name] = next(reached, named[0])["attack_params"]
    populations = {r["metric"]: r["population"] for r in lines if r.get("population") is not None}
    return BlindLine(scores, populations, best)

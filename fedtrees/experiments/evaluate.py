"""Compute the rows of each kind of task.

- A training task measures the utility on the test rows, and the cost.
- An attack task runs an attack in its own process on the view of its adversary. The metrics then
  compare the guess with the ground truth here, in a process that the attack cannot reach.
- A blind task scores the guesses of the same adversary with an empty transcript (blind baseline).
- A reference task measures models of single clients, and the majority class.
- An adversary task lists which attacks apply to a view.

`fedtrees.experiments.runner` calls these functions and stores their outcomes.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedtrees.core import results
from fedtrees.core.attack import claims_of, contenders
from fedtrees.core.claims import Claim, Guess, Membership
from fedtrees.core.composition import Composition
from fedtrees.core.defense import Defense
from fedtrees.core.errors import ProtocolError, UsageError
from fedtrees.core.guarantee import join
from fedtrees.core.local_data import LocalData, rows_of
from fedtrees.core.reasons import FITS, NO_CLAIM, Reason, Unfit
from fedtrees.core.registry import register
from fedtrees.core.results import DETECTION, RAREST, Measure
from fedtrees.core.schema import Table
from fedtrees.core.specs import Composed, Spec
from fedtrees.core.streams import NoiseFrom
from fedtrees.core.threat import Threat
from fedtrees.core.view import View
from fedtrees.experiments.federation import Federation
from fedtrees.experiments.plan import Task, identity_columns
from fedtrees.isolation.process import attack_process
from fedtrees.metrics.metric import Case, Metric, Score, advantage, all_metrics, metrics_of
from fedtrees.metrics.utility import scores_of
from fedtrees.protocols.base import Protocol
from fedtrees.protocols.compatibility import (
    KnownFacts,
    check_attacks,
    check_fit,
    check_without_view,
)
from fedtrees.protocols.training import Training, train
from fedtrees.protocols.views import view_of

Row = dict[str, Any]
#: Source of the noise of defenses. A bench draws it from the seed, so that a run can be reproduced.
#: Such noise does not protect a released model, and models of a bench must not be released.
NOISE: NoiseFrom = "seed"


@dataclass(frozen=True)
class TaskResult:
    """Rows of one task.

    Attributes
    ----------
    rows : list of dict
        Columns of each row.
    common : dict
        Columns that all rows share.
    """

    rows: list[Row]
    common: Row


def parts_of(composed: Composed) -> list[Defense]:
    """Construct the parts of a composition from their specs."""
    return [register.make("defense", spec) for spec in composed.parts]


def make_defense(composed: Composed) -> Composition:
    """Construct a composition from its specs. Raises `Unfit` if its parts are incompatible."""
    return Composition(tuple(parts_of(composed)))


def task_columns(task: Task) -> Row:
    """Return the columns that all rows of a task share, with the guarantee that is claimed.

    A composition of incompatible defenses claims nothing, and its tasks are skipped.
    """
    if not (task.is_training or task.reads_view):
        return identity_columns(task)
    return identity_columns(task) | {"claimed": _claimed(task.protocol, task.defense)}


@lru_cache(maxsize=64)
def _claimed(protocol_spec: Spec, composed: Composed) -> str:
    """Return the guarantee that a protocol and defenses claim, as ``rows.csv`` contains it."""
    protocol: Protocol = register.make("protocol", protocol_spec)
    parts = parts_of(composed)
    if not check_fit(None, parts).ok:
        return join([protocol.claim()])
    defense = Composition(tuple(parts))
    return join([protocol.claim_with(defense), *defense.claims()])


def run_training(task: Task, federation: Federation) -> Training:
    """Train the model of a training task.

    Raises `Unfit` if the defense is incompatible with the protocol on this table.
    """
    protocol: Protocol = register.make("protocol", task.protocol)
    defense = make_defense(task.defense)
    seed = task.federation_config.seed
    local_data, schema, cheats = federation.local_data, federation.schema, dict(task.behaviours)
    options: dict[str, Any] = {"seed": seed, "noise_from": NOISE, "behaviours": cheats}
    return train(protocol, local_data, schema, defense=defense, **options)


def training_columns(training: Training) -> Row:
    """Return the privacy budget that a training run spent, its rounds and its traffic in bytes."""
    traffic = training.transcript.traffic()
    return {
        "spent": join(training.spent),
        "rounds": training.transcript.rounds,
        "bytes_up": sum(n for (way, _), n in traffic.items() if way == "up"),
        "bytes_down": sum(n for (way, _), n in traffic.items() if way == "down"),
    }


def evaluate_training(
    task: Task, federation: Federation, training: Training, wall: float, cpu: float
) -> TaskResult:
    """Measure the utility of a training on the test rows, and its cost.

    If a party cheated, a row states whether an honest party refused to continue (`DETECTION`).
    Otherwise the leak that a privacy audit measures is in the column ``measured``.

    Parameters
    ----------
    task : Task
        The task.
    federation : Federation
        Ground truth, with the test rows.
    training : Training
        The finished training.
    wall, cpu : float
        Duration of the training and its processor time, in seconds.

    Returns
    -------
    result : TaskResult
        One row per score, message type and cost. A refused training has no utility.
    """
    rows: list[Row] = []
    if not training.refused:
        scores = training.predict(federation.test.X)
        utility = scores_of(federation.dataset.task)(federation.test.y, scores)
        rows += [
            {
                **_make_row(k, v),
                "n": len(federation.test),
                **_explain_missing(v, "one-class", metric=k),
            }
            for k, v in utility.items()
        ]
    if federation.schema.classes:
        rarest = np.bincount(federation.test.y, minlength=len(federation.schema.classes)).min()
        rows.append(_make_row(RAREST.key, float(rarest)))
    rows += _make_detection_rows(training)
    traffic = training.transcript.traffic()
    rows += [_make_row("bytes", sum(traffic.values())), _make_row("cpu_seconds", cpu)]
    rows += [_make_row(f"bytes_{way}", n, kind) for (way, kind), n in sorted(traffic.items())]
    rows += [_make_cost_row(*cost) for cost in sorted(training.transcript.costs.items())]
    common = {**task_columns(task), **training_columns(training), "seconds": round(wall, 4)}
    if not training.behaviours:
        # The audit imports scipy.stats, which a plan without a training does not need.
        from fedtrees.experiments.epsilon_audit import largest_node, measure

        seed = task.federation_config.seed
        node = largest_node(training, federation.local_data)
        common["measured"] = str(
            node or measure(training.protocol, training.defense, seed=seed) or ""
        )
    return TaskResult(rows, common)


def _make_detection_rows(training: Training) -> list[Row]:
    """Return whether an honest party refused to continue, empty if no party cheats."""
    if not training.behaviours:
        return []
    return [_make_row(DETECTION.key, float(bool(training.refused)), training.refused)]


@dataclass(frozen=True)
class BlindBaseline:
    """Blind baselines of one threat, for the metrics that need no training.

    Attributes
    ----------
    scores : mapping of str to float
        Best value of every score over all blind guesses, by the name of the score.
    population : mapping of str to float
        The same for an adversary that knows further rows of the population (population baseline).
    best : mapping of str to str
        Name of the best blind guess by the first key of `Metric.main`, by the name of the metric.
    """

    scores: Mapping[str, float]
    population: Mapping[str, float]
    best: Mapping[str, str]


def evaluate_attack(
    task: Task, federation: Federation, training: Training, blind: BlindBaseline | None
) -> TaskResult:
    """Run an attack in its own process on the view of its adversary, and score the guess here.

    Parameters
    ----------
    task : Task
        The task.
    federation : Federation
        Ground truth for the metrics. The attack does not receive it.
    training : Training
        The attacked training.
    blind : BlindBaseline or None
        Blind baselines of the threat. None: the blind task failed.

    Returns
    -------
    result : TaskResult
        One row per score, cost and diagnostic of the attack.

    Raises
    ------
    Unfit
        If the attack does not apply to the view.
    ProtocolError
        If the guess is invalid (`score_guess`).
    """
    case = _make_case(task, federation, training)
    view = build_view(training, case)
    reason = check_without_view(task.attack, replace(_describe_case(case), view=view))
    if not reason.ok:
        raise Unfit(reason)
    view = with_background(task.attack.name, view, case)
    answer = attack_process().run(task.attack, view)
    if answer.guess is None:
        raise Unfit(answer.reason)
    guess = answer.guess
    rows = list(score_guess(task.attack.name, guess, case, blind))
    rows += [_make_row("cpu_seconds", answer.cpu), *_make_detection_rows(training)]
    if view.oracle is not None:
        rows.append(_make_row("queries", float(sum(view.oracle.log))))
        rows.append(_make_row("query_batches", float(len(view.oracle.log))))
    rows += [_make_row("note", v, k) for k, v in guess.notes.items() if np.isfinite(v)]
    common = {**task_columns(task), **training_columns(training), "seconds": round(answer.wall, 4)}
    return TaskResult(rows, common)


def evaluate_adversary(task: Task, federation: Federation, training: Training) -> TaskResult:
    """Ask every attack of `contenders` whether it applies to the view, without running it.

    The outcome has one row per attack. The measure ``applies`` is 1, or 0 with the reason.
    """
    reasons = check_applicability(contenders(), training, _make_case(task, federation, training))
    rows = [
        {**_make_row("applies", float(reason.ok)), "attack": name, **reason.columns()}
        for name, reason in reasons.items()
    ]
    return TaskResult(rows, {**task_columns(task), **training_columns(training)})


def check_applicability(names: Sequence[str], training: Training, case: Case) -> dict[str, Reason]:
    """Return for each attack with its default parameters whether it applies to the view of a case.

    Parameters
    ----------
    names : sequence of str
        Names of attacks.
    training : Training
        The attacked training.
    case : Case
        The ground truth, with the principals.

    Returns
    -------
    reasons : dict of str to Reason
        By the name of the attack. `FITS` if it applies.
    """
    reasons = check_view([Spec(name) for name in names], training, case)
    return dict(zip(names, reasons, strict=True))


def check_view(attacks: Sequence[Spec], training: Training, case: Case) -> list[Reason]:
    """Return for each attack whether it applies to the view of a case, `FITS` if it does."""
    return check_attacks(attacks, replace(_describe_case(case), view=build_view(training, case)))


def build_view(training: Training, case: Case) -> View:
    """Return the view of the principals of a case.

    Raises `Unfit` if the principals together can decrypt a protected value (`view_of`).
    """
    threat = Threat.parse(case.threat)
    query_rights = (threat.queries, threat.answers, threat.records)
    knowledge: dict[str, Any] = {"known_rows": case.known_labels, "entries": case.known_entries}
    knowledge["rows"] = None if case.queried_rows is None else case.queried_rows.X
    return view_of(training, case.principals, case.local_data, *query_rights, **knowledge)


def _receives_candidates(attack: str) -> bool:
    """Return whether an attack is registered here and receives membership candidates."""
    registered = attack in register.names("attack")
    return registered and bool(
        getattr(register.get("attack", attack), "receives_candidates", False)
    )


def with_background(attack: str, view: View, case: Case) -> View:
    """Return the view with the rows that an attack receives in addition to the transcript.

    A membership attack receives the candidates. Every other attack of an adversary without local
    rows receives the rows of the population from which its population baseline is computed. A
    membership attack must not receive those: the candidates that are non-members are among them.
    """
    if not _receives_candidates(attack):
        return replace(view, population=case.background)
    if case.candidates is None:
        return view
    return replace(view, candidates=case.candidates.table)


def _make_case(task: Task, federation: Federation, training: Training) -> Case:
    """Return the ground truth of a training from the perspective of the threat of a task."""
    roles = dict(task.federation_config.roles)
    principals = Threat.parse(task.threat).principals(roles)
    return federation.case(roles, principals, task.federation_config.seed, task.threat, training)


def _describe_case(case: Case) -> KnownFacts:
    """Return the properties of a case that decide whether an attack applies, without a view."""

    def scored(kind: type[Claim]) -> bool:
        return any(metric.truth(case) is not None for metric in metrics_of(kind))

    return KnownFacts(case.schema, rows_of(case.local_data), scored=scored)


def score_guess(
    attack: str, guess: Guess, case: Case, blind: BlindBaseline | None
) -> Iterator[Row]:
    """Yield one row per score of every metric of every claim type, with its blind baseline.

    A guess with a reason instead of claims gives rows with the status ``no-claim``.

    Parameters
    ----------
    attack : str
        Name of the attack, for error messages and declared claims.
    guess : Guess
        Its guess.
    case : Case
        The ground truth.
    blind : BlindBaseline or None
        Blind baselines of the metrics that need no training. None: they are unknown.

    Raises
    ------
    ProtocolError
        If the guess has neither claims nor a reason, if no metric scores a type of claim, or if a
        metric refuses a claim as invalid.
    Unfit
        If no metric has a ground truth for any of the claims.
    """
    if guess.reason is not None:
        yield from _make_no_claim_rows(attack, guess.reason, case, blind)
        return
    if not guess.claims:
        raise ProtocolError(
            f"attack {attack!r} returned a guess without claims and without a reason; "
            "return Guess.none(Reason(code)) or Guess.none('a sentence with the "
            "reason')"
        )
    candidates_given = _receives_candidates(attack)
    if candidates_given and any(type(c) is not Membership for c in guess.claims):
        raise ProtocolError(
            f"attack {attack!r} receives membership candidates, so that it may claim "
            "Membership only"
        )
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
                yield from _score_metric(metric, claims, truth, case, blind)
    if not compared:
        raise Unfit(Reason("not-compared"))


def _make_no_claim_rows(
    attack: str, reason: Reason, case: Case, blind: BlindBaseline | None
) -> Iterator[Row]:
    """Yield a row without a value for every measure that an attack without a claim leaves open.

    These are the measures of the claims that the attack declares (`Attack.claims`). Blind baselines
    are added for the metrics that need no training. An attack that declares no claims gives one row
    without a measure.
    """
    registered = attack in register.names("attack")
    kinds = claims_of(register.get("attack", attack)) if registered else ()
    metrics = [m for kind in kinds for m in metrics_of(kind) if m.truth(case) is not None]
    # Only measures that reports show have a phrase.
    open_measures = [m for metric in metrics for m in metric.measures if m.phrase and not m.part]
    why = {**reason.columns(), "status": NO_CLAIM, "state_code": NO_CLAIM}
    baseline = {} if blind is None else blind.scores
    for open_measure in open_measures:
        yield {
            **_make_measure_row(open_measure, None),
            "blind": baseline.get(open_measure.key),
            **why,
        }
    if not open_measures:
        yield {"metric": "", **why}


def _score_metric(
    metric: Metric[Any],
    claims: Sequence[Claim],
    truth: Any,
    case: Case,
    blind: BlindBaseline | None,
) -> Iterator[Row]:
    """Yield the rows of one metric.

    The baselines of a metric that needs the training are computed here, those of all other metrics
    were computed in the blind task.
    """

    def best_blind() -> Sequence[Claim]:
        name = blind.best.get(metric.name) if blind else None
        if not name:
            return ()
        return _find_population_guess(metric, truth, case) or metric.blind(case, truth)[name]

    measured = {} if blind is None else blind.scores
    # Rows that the attack omits are filled with the best blind guess (`Metric.completed`).
    scores = metric.score(metric.completed(claims, truth, best_blind), truth)
    certain = int(all(c.certain for c in claims))
    baseline, population = measured, {} if blind is None else blind.population
    if scores and not metric.before_training:
        baseline, informed = metric.line(case, truth, measured), case.of_population
        population = {} if informed is None else metric.line(informed, truth, population)
    for score in scores:
        blind_value = baseline.get(score.name) if score.blind is None else score.blind
        row = _make_score_row(metric, score, truth, blind_value, population.get(score.name))
        yield {**row, "certain": certain}


def _find_population_guess(metric: Metric[Any], truth: Any, case: Case) -> Sequence[Claim]:
    """Return the best guess from rows of the population, empty if the adversary has no such rows.

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


def evaluate_blind(task: Task, federation: Federation) -> TaskResult:
    """Compute the blind baselines of a threat: the scores of guesses from an empty transcript.

    Only metrics that need no training are computed here. Every score has one row with its best
    value over all blind guesses. The scores in `Metric.main` have one further row per guess, with
    the name of the guess in ``attack_params``.
    """
    roles = dict(task.federation_config.roles)
    principals = Threat.parse(task.threat).principals(roles)
    case = federation.case(roles, principals, task.federation_config.seed, task.threat)
    rows: list[Row] = []
    for metric in all_metrics():
        truth = metric.truth(case) if metric.before_training else None
        if truth is None:
            continue
        scored = _score_blind_guesses(metric, case, truth)
        informed = case.of_population
        informed_best = (
            {}
            if informed is None
            else metric.best_of(_score_blind_guesses(metric, informed, truth))
        )
        for name, best in metric.best_of(scored).items():
            comparable = metric.measure(best.score).phrase and name in informed_best
            blind_scores = best.value, informed_best[name].value if comparable else None
            row = _make_score_row(metric, best.score, truth, *blind_scores)
            rows.append({**row, "blind_guess": best.guess})
        for name, scores in scored.items():
            values = {s.name: s.value for s in scores}
            rows += [{**_make_row(m, values.get(m)), "attack_params": name} for m in metric.main]
    return TaskResult(rows, task_columns(task))


def _score_blind_guesses(metric: Metric[Any], case: Case, truth: Any) -> dict[str, list[Score]]:
    """Return the scores of every blind guess, by its name."""
    return {name: metric.score(claims, truth) for name, claims in metric.blind(case, truth).items()}


def compute_blind_baseline(metrics: Iterable[Metric[Any]], case: Case) -> BlindBaseline:
    """Return the best scores of guesses from an empty transcript, without a population baseline.

    Parameters
    ----------
    metrics : iterable of Metric
        Metrics to compute. Those that need the training have no baseline here.
    case : Case
        The ground truth.
    """
    values: dict[str, float] = {}
    guess_of_metric: dict[str, str] = {}
    for metric in metrics:
        truth = metric.truth(case) if metric.before_training else None
        if truth is None:
            continue
        best = metric.best_of(_score_blind_guesses(metric, case, truth))
        values |= {name: b.value for name, b in best.items() if b.value is not None}
        if (first := next(iter(metric.main), "")) in best:
            guess_of_metric[metric.name] = best[first].guess
    return BlindBaseline(values, {}, guess_of_metric)


def evaluate_reference(task: Task, federation: Federation) -> TaskResult:
    """Measure the utility of local models and of the majority class on the test rows.

    Every party with labels trains with the same protocol on its local data and its columns. The
    outcome has the mean of each score over these parties. A party that lacks a class predicts its
    class shares instead of training. If the protocol requires more than one party, only the
    majority class is measured. If the target is a number, its mean replaces the majority class.
    """
    protocol: Protocol = register.make("protocol", task.protocol)
    test, scores = federation.test, scores_of(federation.dataset.task)
    classes = len(federation.schema.classes)
    alone: dict[str, list[float]] = {}
    for party_data in federation.local_data.values():
        if party_data.y is None or not len(party_data.columns):
            continue
        if len(np.unique(party_data.y)) == classes or not classes:
            try:
                guess = _predict_locally(
                    protocol, party_data, federation, task.federation_config.seed
                )
            except UsageError:  # this protocol requires more parties
                break
        else:
            guess = _predict_constant(party_data.y, classes, len(test))
        for metric, value in scores(test.y, guess).items():
            if value is not None:
                alone.setdefault(metric, []).append(value)
    rows = [
        {**_make_row(k, float(np.mean(v))), "protocol": protocol.info.local_reference}
        for k, v in alone.items()
    ]
    # The constant prediction contains the share of each class, so that its accuracy is that of the
    # majority class.
    labels = np.concatenate([h.y for h in federation.local_data.values() if h.y is not None])
    constant = _predict_constant(labels, classes, len(test))
    simplest = "majority-class" if classes else "mean-target"
    for metric, value in scores(test.y, constant).items():
        rows.append({**_make_row(metric, value), "protocol": simplest})
    return TaskResult(rows, task_columns(task))


def _predict_locally(
    protocol: Protocol, local_data: LocalData, federation: Federation, seed: int
) -> NDArray[np.float64]:
    """Return predictions of the test rows by a model that one party trains on its local data."""
    columns = local_data.columns
    schema = federation.schema.of_columns(columns)
    assert local_data.y is not None  # the caller selects parties with labels
    party_data = LocalData.of(Table(local_data.X, local_data.y, local_data.weight))
    parties = dict.fromkeys(protocol.holder_names(1), party_data)
    return train(protocol, parties, schema, seed=seed, noise_from=NOISE).predict(
        federation.test.X[:, columns]
    )


def _predict_constant(y: NDArray[Any], classes: int, n: int) -> NDArray[np.float64]:
    """Return the same prediction for n rows: the class shares or the mean, shape (n,) or (n, K).

    Shape (n,) contains the share of class 1 if there are two classes, or the mean of a numeric
    target (`classes` is 0).
    """
    if classes in (0, 2):
        return np.full(n, float(y.mean()))
    return np.tile(np.bincount(y, minlength=classes) / len(y), (n, 1))


def _make_row(key: str, value: float | None, part: str = "") -> Row:
    """Return a row with the value of a measure that is known by its key."""
    return _make_measure_row(results.measures()[key], value, part)


def _make_measure_row(what: Measure, value: float | None, part: str = "") -> Row:
    """Return a row with the value of a measure. Without a value, the row states the reason."""
    number = _convert_number(value)
    row = {"metric": what.key, "value": number, "unit": what.unit}
    ok = {"status": FITS.status, "state_code": FITS.state, "measure_class": what.klass}
    missing = _explain_missing(number, "no-value", metric=what.key)
    return {**row, **ok, **missing, **({"part": part} if part else {})}


def _explain_missing(value: float | None, code: str, **args: str) -> Row:
    """Return the columns with the reason for a missing value, empty if there is a value."""
    return Reason(code, **args).columns() if value is None else {}


def _make_cost_row(name: str, spent: float) -> Row:
    """Return a row with a cost of cryptography, in total or of one part.

    `name` is the key of a measure, followed by ``:`` and a part for a cost of one operation,
    message type or party. Any other key names an operation.
    """
    key, _, part = name.partition(":")
    if key not in results.measures():
        key, part = "operations", f"{key} by {part}" if part else key
    return _make_row(f"{key}_of" if ":" in name else key, spent, part)


def _make_score_row(
    metric: Metric[Any], score: Score, truth: Any, blind: float | None, population: float | None
) -> Row:
    """Return the row of a score with its blind and population baselines and the advantages."""
    declared = metric.measure(score)
    gain, beyond = (advantage(score.value, x, best=declared.best) for x in (blind, population))
    row = {"n": metric.counted(truth), "error": score.error, "blind": blind, "advantage": gain,
           "population": population, "beyond": beyond}  # fmt: skip
    row_columns = {
        **_make_measure_row(declared, score.value, score.part),
        **{k: _convert_number(v) for k, v in row.items()},
    }
    # An advantage over a perfect baseline is undefined.
    if None not in (score.value, blind):
        row_columns |= _explain_missing(gain, "blind-perfect", metric=declared.key)
    return {**row_columns, "measure_class": score.klass} if score.klass else row_columns


def _convert_number(value: float | None) -> float | None:
    """Return a finite number as a Python number, None for any other value."""
    if value is None or not np.isfinite(value):
        return None
    return int(value) if isinstance(value, (int, np.integer)) else float(value)


def blind_baseline(rows: Sequence[Row]) -> BlindBaseline:
    """Return the blind baselines from the rows of a blind task (`evaluate_blind`)."""
    scored = [r for r in rows if r.get("value") is not None]
    best_rows = [r for r in scored if "attack_params" not in r]
    scores = {f"{r['metric']} {r.get('part', '')}".strip(): r["value"] for r in best_rows}
    best = {}
    for metric in all_metrics():
        main = next(iter(metric.main), "")
        guess_rows = [r for r in scored if "attack_params" in r and r["metric"] == main]
        if guess_rows:
            # The best guess is the one that reached the best value. Equality works both for scores
            # to maximise and for scores to minimise.
            reached = (r for r in guess_rows if r["value"] == scores.get(r["metric"]))
            best[metric.name] = next(reached, guess_rows[0])["attack_params"]
    populations = {
        r["metric"]: r["population"] for r in best_rows if r.get("population") is not None
    }
    return BlindBaseline(scores, populations, best)

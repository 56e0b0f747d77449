"""Attacks on fitted estimators: their scores, and a scorer for scikit-learn's searches."""

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from sklearn.utils.validation import check_is_fitted

from fedtrees.core.errors import UsageError, did_you_mean
from fedtrees.core.local_data import LocalData, side_by_side, stacked
from fedtrees.core.reasons import NO_CLAIM, Unfit
from fedtrees.core.registry import register
from fedtrees.core.results import measure
from fedtrees.core.specs import Composed, Spec, parse_grid, split_outside
from fedtrees.core.threat import Threat
from fedtrees.data.dataset import prepare
from fedtrees.experiments.evaluate import blind_baseline, evaluate_attack, evaluate_blind
from fedtrees.experiments.federation import Federation
from fedtrees.experiments.plan import FederationConfig, Task
from fedtrees.experiments.suite import DataRef, Grid, roles_of
from fedtrees.metrics.metric import headlines
from fedtrees.protocols.training import Training


@dataclass(frozen=True)
class AttackScore:
    """One score of an attack.

    Attributes
    ----------
    metric : str
        Key of the score, for example ``"exact_rows"``.
    score : float
        Score of the attack.
    blind : float
        Score of the blind baseline: the same adversary with an empty transcript.
    advantage : float
        Share of the gap between baseline and perfect score that the attack closes. It is relative
        to the better of the blind and the population baseline, as in reports. 0: the adversary
        learned nothing from the messages.

    Examples
    --------
    >>> from fedtrees import AttackScore
    >>> AttackScore("exact_rows", score=0.5, blind=0.0, advantage=0.5)
    AttackScore(metric='exact_rows', score=0.5, blind=0.0, advantage=0.5)
    """

    metric: str
    score: float
    blind: float
    advantage: float

    def __str__(self) -> str:
        name = measure(self.metric).name
        return f"{name} {self.score:.3g} (blind {self.blind:.3g}, advantage {self.advantage:.3g})"


@dataclass(frozen=True)
class AttackScores:
    """All scores of one attack on a fitted estimator, as `attack` of an estimator returns them.

    Attributes
    ----------
    attack : str
        The attack with its parameters.
    threat : str
        The adversary in the notation of the command line, for example ``"client[index=2]"``.
    scores : tuple of AttackScore
        The scores, those of the most prominent metric first. Empty if the attack does not apply
        under the defense, or returned no claim.
    reason : str
        Why there are no scores, "" if there are some.

    Examples
    --------
    >>> from fedtrees import AttackScore, AttackScores
    >>> result = AttackScores("cl", "server", (AttackScore("exact_rows", 0.5, 0.0, 0.5),))
    >>> result.advantage
    0.5
    >>> result["exact_rows"].score
    0.5
    """

    attack: str
    threat: str
    scores: tuple[AttackScore, ...] = ()
    reason: str = ""

    @property
    def advantage(self) -> float:
        """Advantage by the most prominent metric, 0.0 without scores."""
        return self.scores[0].advantage if self.scores else 0.0

    def __getitem__(self, metric: str) -> AttackScore:
        """Return the score by a metric. Raises `UsageError` if the attack is not scored by it."""
        by_metric = {score.metric: score for score in self.scores}
        if metric not in by_metric:
            raise UsageError(
                f"{self.attack} is not scored by {metric!r}{did_you_mean(metric, by_metric)}"
            )
        return by_metric[metric]

    def __repr__(self) -> str:
        text = str(self.scores[0]) if self.scores else self.reason
        more = f", and {len(self.scores) - 1} more" if len(self.scores) > 1 else ""
        return f"<{self.attack} by {self.threat}: {text}{more}>"


def attack_estimator(estimator: Any, attack: str | Spec, threat: str) -> AttackScores:
    """Run an attack on the training of a fitted estimator, and score its guess.

    Parameters
    ----------
    estimator : FederatedEstimator or Pipeline
        A fitted federated estimator, or a pipeline whose last step is one.
    attack : str or Spec
        An attack, optionally with parameters.
    threat : str
        Threat as on the command line, or names of parties joined by ``+``.

    Raises
    ------
    UsageError
        If the attack is unknown, the protocol does not have the parties of the threat, the attack
        does not apply without a defense, or the estimator is not federated.
    """
    spec = _single_attack(attack)
    steps = getattr(estimator, "steps", None)
    model = steps[-1][1] if steps else estimator  # the last step of a pipeline
    check_is_fitted(model)
    training: Training | None = getattr(model, "training_", None)
    if training is None:
        raise UsageError(
            f"{type(model).__name__} is not a federated estimator, so that its training has no "
            "messages"
        )
    local_data: Mapping[str, LocalData] = model.local_data_
    roles = roles_of(training.protocol, len(local_data))
    adversary = str(Threat.parse(_with_roles(threat, roles), roles))
    task, federation = _task_of(training, local_data, roles, adversary, spec)
    line = blind_baseline(evaluate_blind(task.blind, federation).rows)
    try:
        rows = evaluate_attack(task, federation, training, line).rows
    except Unfit as why:
        # Without a defense, the attack does not support this training at all.
        if not training.defense.parts:
            raise UsageError(f"{spec} does not apply to {adversary}: {why}") from why
        return AttackScores(str(spec), adversary, (), str(why))
    if any(row.get("state_code") == NO_CLAIM for row in rows):
        return AttackScores(str(spec), adversary, (), "the attack returned no claim")
    order = {name: at for at, name in enumerate(headlines())}
    scores = sorted(_scores(rows), key=lambda s: order.get(s.metric, len(order)))
    return AttackScores(str(spec), adversary, tuple(scores))


def _single_attack(attack: str | Spec) -> Spec:
    """Return the specification of one attack. Raises `UsageError` if it is unknown or a grid."""
    specs = parse_grid(str(attack))
    if len(specs) != 1:
        raise UsageError(f"attack={attack!r} is a grid; give one")
    register.make("attack", specs[0])
    return specs[0]


def _with_roles(threat: str, roles: Mapping[str, str]) -> str:
    """Replace names of parties by roles: ``client-2`` is the party ``client[index=2]``."""
    parts = []
    for part in split_outside(threat, "+"):
        role = roles.get(part)
        if role is None or role == part:
            parts.append(part)
            continue
        same_role = [name for name, other in roles.items() if other == role]
        several = len(same_role) > 1
        parts.append(f"{role}[index={same_role.index(part)}]" if several else role)
    return "+".join(parts)


def _task_of(
    training: Training,
    local_data: Mapping[str, LocalData],
    roles: Mapping[str, str],
    threat: str,
    attack: Spec,
) -> tuple[Task, Federation]:
    """Return an attack on a training as a task of a benchmark, and the ground truth."""
    parties, schema = local_data.values(), training.schema
    table = stacked(parties, schema) or side_by_side(parties, schema)
    assert table is not None  # the parties of an estimator have complete rows, or all columns
    assert table.y is not None
    dataset = prepare("fit", schema, table.X, table.y)
    test = table.take(np.array([], dtype=int))
    federation = Federation(dataset, local_data, test=test, reserve=None)
    seed = 0  # used by the attack and the blind baseline only
    # The functions of the benchmark require a setting. Its names have no effect here.
    setting = FederationConfig(
        DataRef("fit"), Spec("iid"), len(local_data), seed, tuple(roles.items()),
        tuple(local_data), training.protocol.layout,
    )  # fmt: skip
    train = Task.for_training(setting, Spec(training.protocol.name), Composed())
    return train.under(threat, attack), federation


def _scores(rows: list[dict[str, Any]]) -> list[AttackScore]:
    """Return the scores with an advantage among the rows of an attack."""
    scores = []
    for row in rows:
        # Relative to the better of both baselines, as in reports. If the population baseline is
        # perfect, no advantage remains.
        over_blind, beyond = row.get("advantage"), row.get("beyond")
        if "part" in row or over_blind is None or not math.isfinite(over_blind):
            continue
        # The population baseline exists but leaves no possible gain.
        if beyond is None and row.get("population") is not None:
            beyond = 0.0
        advantage = over_blind if beyond is None else min(over_blind, beyond)
        scores.append(AttackScore(row["metric"], row["value"], row["blind"], advantage))
    return scores


@dataclass(frozen=True)
class Leakage:
    """Scorer that returns the negative advantage of an attack, see `leakage`."""

    attack: Spec
    threat: str
    metric: str | None = field(default=None)

    def __call__(self, estimator: Any, X: Any = None, y: Any = None) -> float:
        """Return the negative advantage over the blind baseline. `X` and `y` are not used."""
        return -self.advantage(estimator)

    def advantage(self, estimator: Any) -> float:
        """Return the advantage over the blind baseline.

        It is 0 if the attack does not apply under the defense, or if it returned no claim.

        Raises
        ------
        UsageError
            As `attack_estimator`, and if the attack does not have the score.
        """
        result = attack_estimator(estimator, self.attack, self.threat)
        if not result.scores or self.metric is None:
            return result.advantage
        return result[self.metric].advantage


def leakage(
    attack: str = "timberstrike", threat: str = Grid.threats[0], metric: str | None = None
) -> Leakage:
    """Return a scorer, for example for `sklearn.model_selection.GridSearchCV`.

    It runs an attack on the training and returns the negative advantage over the blind baseline. A
    higher score is better. 0 means that the adversary learns no more than without any message. The
    score is about the training rows. Rows that a search passes are not used.

    Parameters
    ----------
    attack : str
        An attack, optionally with parameters.
    threat : str
        Threat model as on the command line, by default the first default threat of a suite.
    metric : str, optional
        Score whose advantage is returned, by default the first headline score of the attack.

    Returns
    -------
    scorer : Leakage
        A function of an estimator.

    Raises
    ------
    UsageError
        If the attack is unknown, or several are given.

    Examples
    --------
    >>> from sklearn.datasets import load_breast_cancer
    >>> from fedtrees import FederatedGBDTClassifier, leakage
    >>> X, y = load_breast_cancer(return_X_y=True)
    >>> model = FederatedGBDTClassifier(n_estimators=2, max_depth=3, random_state=0).fit(X, y)
    >>> scorer = leakage("timberstrike", threat="client", metric="leaf_counts_exact")
    >>> scorer(model)
    -1.0
    """
    spec = _single_attack(attack)
    Threat.parse(threat)
    return Leakage(spec, threat, metric)

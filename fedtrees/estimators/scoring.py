"""Scorer for scikit-learn's searches: the advantage of an attack over the blind baseline."""

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
from sklearn.utils.validation import check_is_fitted

from fedtrees.core.errors import UsageError, did_you_mean
from fedtrees.core.local_data import stacked
from fedtrees.core.reasons import NO_CLAIM, Unfit
from fedtrees.core.registry import register
from fedtrees.core.specs import Composed, Spec, parse_grid
from fedtrees.core.threat import Threat
from fedtrees.data.dataset import prepare
from fedtrees.experiments.evaluate import blind_baseline, evaluate_attack, evaluate_blind
from fedtrees.experiments.federation import Federation
from fedtrees.experiments.plan import FederationConfig, Task
from fedtrees.experiments.suite import DataRef, Grid, roles_of
from fedtrees.metrics.metric import headlines
from fedtrees.protocols.training import Training


@dataclass(frozen=True)
class Leakage:
    """Scorer that returns the negative advantage of an attack, see `leakage`."""

    attack: Spec
    threat: str
    metric: str | None

    def __call__(self, estimator: Any, X: Any = None, y: Any = None) -> float:
        """Return the negative advantage over the blind baseline. `X` and `y` are not used."""
        return -self.advantage(estimator)

    def advantage(self, estimator: Any) -> float:
        """Return the advantage over the blind baseline.

        It is 0 if the attack does not apply under the defense, or if it returned no claim.

        Raises
        ------
        UsageError
            If the protocol does not have the roles of the threat, if the attack does not have the
            score, if the attack does not apply without a defense, or if the estimator is not
            federated.
        """
        steps = getattr(estimator, "steps", None)
        model = steps[-1][1] if steps else estimator  # the last step of a pipeline
        check_is_fitted(model)
        training: Training | None = getattr(model, "training_", None)
        if training is None:
            raise UsageError(
                f"{type(model).__name__} is not a federated estimator, so that its "
                "training has no messages"
            )
        advantages = self._measured(training, model.local_data_)
        if advantages is None:
            return 0.0
        scored = [m for m in headlines() if m in advantages]
        metric = self.metric or next(iter(scored), "")
        if metric not in advantages:
            raise UsageError(
                f"{self.attack} is not scored by {metric!r}{did_you_mean(metric, advantages)}"
            )
        return advantages[metric]

    def _measured(self, training: Training, local_data: Any) -> dict[str, float] | None:
        """Return the advantage by score.

        None if the attack does not apply under the defense, or returned no claim.
        """
        roles = roles_of(training.protocol, len(local_data))
        threat = str(Threat.parse(self.threat, roles))
        table = stacked(local_data.values(), training.schema)
        assert table is not None  # the clients of an estimator have complete rows
        assert table.y is not None
        dataset = prepare("fit", training.schema, table.X, table.y)
        federation = Federation(
            dataset, local_data, test=table.take(np.array([], dtype=int)), reserve=None
        )
        seed = 0  # used by the attack and the blind baseline only
        # The bench's functions require a setting. Its names have no effect here.
        setting = FederationConfig(
            DataRef("fit"), Spec("iid"), len(local_data), seed, tuple(roles.items()),
            tuple(local_data), training.protocol.layout,
        )  # fmt: skip
        train = Task.for_training(setting, Spec(training.protocol.name), Composed())
        task = train.under(threat, self.attack)
        line = blind_baseline(evaluate_blind(task.blind, federation).rows)
        try:
            rows = evaluate_attack(task, federation, training, line).rows
        except Unfit as why:
            # Without a defense, the attack does not support this training at all.
            if not training.defense.parts:
                raise UsageError(f"{self.attack} does not apply to {threat}: {why}") from why
            return None
        if any(row.get("state_code") == NO_CLAIM for row in rows):
            return None
        advantages: dict[str, float] = {}
        for row in rows:
            # Relative to the better of both baselines, as in reports. If the population baseline is
            # perfect, no advantage remains.
            over_blind, beyond = row.get("advantage"), row.get("beyond")
            if "part" in row or over_blind is None or not math.isfinite(over_blind):
                continue
            # The population baseline exists but leaves no possible gain.
            if beyond is None and row.get("population") is not None:
                beyond = 0.0
            advantages[row["metric"]] = over_blind if beyond is None else min(over_blind, beyond)
        return advantages


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

    Raises
    ------
    UsageError
        If the attack is unknown, or several are given.
    """
    specs = parse_grid(attack)
    if len(specs) != 1:
        raise UsageError(f"attack={attack!r} is a grid; give one")
    register.make("attack", specs[0])
    Threat.parse(threat)
    return Leakage(specs[0], threat, metric)

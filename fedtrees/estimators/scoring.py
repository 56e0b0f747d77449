"""A scorer for scikit-learn's searches: how much an attack reads beyond the blind baseline."""

import math
from dataclasses import dataclass
from typing import Any

from sklearn.utils.validation import check_is_fitted

from fedtrees.bench.cells import AttackCell, BlindCell, Setting, TrainCell
from fedtrees.bench.evaluate import blind_baseline, evaluate_attack, evaluate_blind
from fedtrees.bench.federation import Federation
from fedtrees.bench.suite import DataRef, Grid, roles_of
from fedtrees.core.errors import UsageError, did_you_mean
from fedtrees.core.local_data import stacked
from fedtrees.core.reasons import NO_CLAIM, Unfit
from fedtrees.core.registry import register
from fedtrees.core.specs import Composed, Spec, parse_grid
from fedtrees.core.threat import Threat
from fedtrees.data.dataset import prepare
from fedtrees.metrics.metric import headlines
from fedtrees.protocols.training import Training


@dataclass(frozen=True)
class Leakage:
    """A scorer: minus what `leakage` says an attack reads of the training rows."""

    attack: Spec
    threat: str
    metric: str | None

    def __call__(self, estimator: Any, X: Any = None, y: Any = None) -> float:
        """Return minus the advantage over the blind baseline; `X` and `y` are not looked at."""
        return -self.advantage(estimator)

    def advantage(self, estimator: Any) -> float:
        """Return the advantage over the blind baseline.

        It is 0 if the attack does not apply under the defense, or if it returned no claim.

        Raises
        ------
        UsageError
            A threat of roles that the protocol has not, a score that the attack does not get, an
            attack that does not apply without a defense, or an estimator that is no federation.
        """
        steps = getattr(estimator, "steps", None)
        model = steps[-1][1] if steps else estimator  # of a pipeline the last
        check_is_fitted(model)
        training: Training | None = getattr(model, "training_", None)
        if training is None:
            raise UsageError(
                f"{type(model).__name__} is no federated estimator: nobody saw it train"
            )
        found = self._measured(training, model.local_data_)
        if found is None:
            return 0.0
        scored = [m for m in headlines() if m in found]
        metric = self.metric or next(iter(scored), "")
        if metric not in found:
            raise UsageError(
                f"{self.attack} is not scored by {metric!r}{did_you_mean(metric, found)}"
            )
        return found[metric]

    def _measured(self, training: Training, local_data: Any) -> dict[str, float] | None:
        """Return the advantage by every score.

        None if the attack does not apply under the defense, or returned no claim.
        """
        roles = roles_of(training.protocol, len(local_data))
        threat = str(Threat.parse(self.threat, roles))
        table = stacked(local_data.values(), training.schema)
        assert table is not None  # an estimator's clients hold whole rows
        assert table.y is not None
        dataset = prepare("fit", training.schema, table.X, table.y)
        federation = Federation(dataset, local_data, test=table.take([]), reserve=None)
        seed = 0  # of the attack and of the blind baseline alone
        setting = Setting(
            DataRef("fit"), Spec("iid"), len(local_data), seed, tuple(roles.items()),
            tuple(local_data), training.protocol.layout,
        )  # fmt: skip
        train = TrainCell(setting, Spec(training.protocol.name), Composed())
        line = blind_baseline(evaluate_blind(BlindCell(setting, threat), federation).rows)
        try:
            cell = AttackCell(setting, train, threat, self.attack)
            rows = evaluate_attack(cell, federation, training, line).rows
        except Unfit as why:
            if not training.defense.parts:  # nothing stops it: it never reads such a training
                raise UsageError(f"{self.attack} does not apply to {threat}: {why}") from why
            return None
        if any(row.get("state_code") == NO_CLAIM for row in rows):
            return None
        known: dict[str, float] = {}
        for row in rows:
            # over the better baseline, as in reports; a perfect population baseline leaves nothing
            over_blind, beyond = row.get("advantage"), row.get("beyond")
            if "part" in row or over_blind is None or not math.isfinite(over_blind):
                continue
            if beyond is None and row.get("population") is not None:
                beyond = 0.0
            known[row["metric"]] = over_blind if beyond is None else min(over_blind, beyond)
        return known


def leakage(
    attack: str = "timberstrike", threat: str = Grid.threats[0], metric: str | None = None
) -> Leakage:
    """Return a scorer of federated estimators, for `GridSearchCV` and its like.

    It attacks what the training showed and returns minus the advantage over the blind baseline:
    greater is better, 0 is no more than somebody knows who sees nothing. The rows of the score are
    the training rows; those that a search passes are not looked at.

    Parameters
    ----------
    attack : str
        An attack, with parameters where wanted.
    threat : str
        Adversaries, as on the command line; default: as in a suite that does not say.
    metric : str, optional
        Score whose advantage counts; default: the first headline that the attack gets.

    Raises
    ------
    UsageError
        An unknown attack, or several.
    """
    specs = parse_grid(attack)
    if len(specs) != 1:
        raise UsageError(f"attack={attack!r} is a grid; give one")
    register.make("attack", specs[0])
    Threat.parse(threat)
    return Leakage(specs[0], threat, metric)

"""Membership inference on regressions: posterior from averaged steps, LiRA and RMIA."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.sparse import csr_array, hstack

from fedtrees.attacks.membership.base import LinearSums, MembershipAttack
from fedtrees.attacks.membership.learners import draws_noise
from fedtrees.attacks.membership.references import Trainer, answer_logits, train_each
from fedtrees.attacks.regression.rotation import averages, common_scales
from fedtrees.core.reasons import Reason
from fedtrees.core.registry import register
from fedtrees.core.schema import Table
from fedtrees.core.view import View
from fedtrees.linear import SIGMOIDS, from_fixed_point, to_python_integers
from fedtrees.messages.regression import LocalWeights, RegressionWeights

Floats = NDArray[np.float64]


@register.attack("regression-membership")
@dataclass(frozen=True, kw_only=True)
class RegressionMembership(MembershipAttack):
    """Score how likely each candidate is a training row of a regression.

    If the average weights of every round are visible, each step is a gradient sum at known weights,
    which is linear in membership. LiRA and RMIA compare the model with reference models that take
    the same steps on half of the candidates.
    """

    def inapplicable(self, view: View) -> Reason | None:
        """Return the reason if there is no regression or membership is already known, else None."""
        if view.local_data and view.rows is None:
            return Reason("rows-known-by-id")
        return Reason("no-regression") if self.model(view) is None else None

    def model(self, view: View) -> RegressionWeights | None:
        """Return the released regression, or else the last average that was sent."""
        for seen in view.seen:
            if isinstance(seen.message, RegressionWeights):
                return seen.message.model()
        sent, scales = averages(view), common_scales(view)
        if not sent or scales is None:
            return None
        classes, d = bool(view.schema.classes), len(view.schema.features)
        kind = view.parameters["kind"] or ("logistic" if classes else "linear")
        weights = np.zeros(d + 1)
        weights[: len(sent[-1].weights)] = from_fixed_point(
            to_python_integers(sent[-1].weights), sent[-1].bits
        )
        return RegressionWeights(kind, classes, scales.mean, scales.scale, weights)

    def trainer(self, view: View, model: Any) -> Trainer | None:
        """Return the learner that takes the same steps, None if clients add noise to theirs."""
        noisy = draws_noise(view.changes(LocalWeights, "weights"))
        return None if noisy else regression_trainer(view, model)

    def logits(self, view: View, model: Any, rows: Table) -> Floats:
        """Return the logit of each row's true class, float64, shape (n,)."""
        return answer_logits(model.predict(rows.X), rows, not view.schema.classes)

    def linear_sums(self, view: View, model: Any, rows: Table) -> list[LinearSums]:
        """Return the gradient sums of all rounds."""
        sums = gradient_sums(view, model, rows)
        return [] if sums is None else [sums]


def gradient_sums(view: View, model: RegressionWeights, rows: Table) -> LinearSums | None:
    """Return the gradient sums that follow from the average weights of all rounds.

    Every client takes a step ``w - lr (G_c / n_c + alpha w)`` from the same weights w, and the
    average of all steps is broadcast. Clients are assumed to have the same number of rows n_c, so
    that the average contains ``sum_c G_c``. A client of the adversary subtracts its step.

    Parameters
    ----------
    view : View
        The adversary's view.
    model : RegressionWeights
        Standardisation and kind of the regression.
    rows : Table
        Candidates.

    Returns
    -------
    LinearSums or None
        None if the averages are not visible.
    """
    p, sent = view.parameters, averages(view)
    if not sent:
        return None
    clients = [*view.roles.values()].count("client")
    local = [part.table for part in view.local_data if part.y is not None]
    victims = clients - len(local)
    each = (view.n_rows - sum(map(len, local))) / victims  # rows of each victim
    width = len(sent[0].weights)
    Z, target = _design(view, model, rows)
    before, parts, totals, variances = np.zeros(width), [], [], []
    for message in sent:
        after = from_fixed_point(to_python_integers(message.weights), message.bits)
        step = clients * ((1 - p["lr"] * p["alpha"]) * before - after) / p["lr"]
        for table in local:
            X, y = _design(view, model, table)
            step = step - X[:, :width].T @ _residual(model, X[:, :width] @ before, y) / len(X)
        contribution = Z[:, :width] * _residual(model, Z[:, :width] @ before, target)[:, None]
        # the averages are rounded to their last binary place
        unit = 2.0**-message.bits * each / p["lr"]
        variance = np.full(width, unit**2 * clients * (clients + 1) / 12)
        law = view.channel(LocalWeights, "weights", "client", clients)
        if law is not None:
            variance = variance + law.posterior_moments(np.zeros(width))[1] * (each / p["lr"]) ** 2
        parts.append(csr_array(contribution))
        totals.append(step * each)
        variances.append(variance)
        before = after
    matrix = csr_array(hstack(parts, format="csr"))
    return LinearSums(matrix, np.concatenate(totals), np.concatenate(variances), each * victims)


def _design(view: View, model: RegressionWeights, rows: Table) -> tuple[Floats, Floats]:
    """Return standardised columns with the intercept, and standardised targets."""
    mean, scale = model.mean[:-1], np.where(model.scale[:-1] > 0, model.scale[:-1], np.inf)
    Z = np.nan_to_num((rows.X.astype(np.float64) - mean) / scale, nan=0.0)
    Z = np.column_stack([Z, np.full(len(Z), float(view.parameters["intercept"]))])
    return Z, np.asarray((rows.y - model.mean[-1]) / model.scale[-1], dtype=np.float64)


def _residual(model: RegressionWeights, score: Floats, target: Floats) -> Floats:
    """Return predictions less targets. A logistic regression uses the linear Taylor polynomial."""
    constant, slope = map(float, SIGMOIDS[1]) if model.kind == "logistic" else (0.0, 1.0)
    return slope * score + constant - target


def regression_trainer(view: View, model: RegressionWeights) -> Trainer:
    """Return the learner that takes the steps of a regression on all rows at once.

    Columns are standardised as for the model under attack.
    """
    p = view.parameters

    def trainer(every: Table, n: int) -> Callable[[NDArray[np.bool_]], Floats]:
        Z, y = _design(view, model, every)
        rows = every.take(np.arange(n))

        def train(used: NDArray[np.bool_]) -> Floats:
            w, X, target = np.zeros(Z.shape[1]), Z[used], y[used]
            for _ in range(p["rounds"]):
                gradient = X.T @ _residual(model, X @ w, target) / len(X)
                w -= p["lr"] * (gradient + p["alpha"] * w)
            trained = replace(model, weights=w)
            return answer_logits(trained.predict(rows.X), rows, numbers=not model.classes)

        return train_each(train)

    return trainer

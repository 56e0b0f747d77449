"""Membership inference on regressions: likelihood ratios over regressions of the same steps."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedtrees.attacks.membership.attack import MembershipInference
from fedtrees.attacks.membership.references import Trainer, own_logit
from fedtrees.attacks.regression.horizontal import averages, common_scales
from fedtrees.core.reasons import Reason
from fedtrees.core.registry import register
from fedtrees.core.schema import Table
from fedtrees.core.view import View
from fedtrees.messages.fixed_point import decoded, integers
from fedtrees.messages.regression import SIGMOIDS, RegressionWeights

Floats = NDArray[np.float64]


@register.attack("regression-membership")
@dataclass(frozen=True, kw_only=True)
class RegressionMembership(MembershipInference):
    """Tell which candidates a regression was trained on: LiRA and RMIA, as `membership` of trees.

    References take the same steps on half of the candidates.
    """

    def inapplicable(self, view: View) -> Reason | None:
        """Return why there is no regression in a view, or nothing to ask."""
        if view.own and view.rows is None:
            return Reason("rows-known-by-id")
        return Reason("no-regression") if self.model(view) is None else None

    def model(self, view: View) -> RegressionWeights | None:
        """Return the regression that was released, or was sent out last."""
        for seen in view.seen:
            if isinstance(seen.message, RegressionWeights):
                return seen.message.model()
        told, scales = averages(view), common_scales(view)
        if not told or scales is None:
            return None
        classes, d = bool(view.schema.classes), len(view.schema.features)
        kind = view.parameters["kind"] or ("logistic" if classes else "linear")
        weights = np.zeros(d + 1)
        weights[: len(told[-1].weights)] = decoded(integers(told[-1].weights), told[-1].bits)
        return RegressionWeights(kind, classes, scales.mean, scales.scale, weights)

    def trainer(self, view: View, model: Any) -> Trainer:
        """Return what takes the same steps."""
        return steps(view, model)

    def said(self, view: View, model: Any, rows: Table) -> Floats:
        """Return the logit of each row's own class."""
        return own_logit(model.predict(rows.X), rows, not view.schema.classes)


def steps(view: View, model: RegressionWeights) -> Trainer:
    """Return what takes a regression's steps, on all rows at once, over its own scales."""
    p = view.parameters
    slope, constant = 1.0, 0.0
    if model.kind == "logistic":
        constant, slope = map(float, SIGMOIDS[1])

    def trainer(every: Table, n: int) -> Callable[[NDArray[np.bool_]], Floats]:
        mean, scale = model.mean[:-1], np.where(model.scale[:-1] > 0, model.scale[:-1], np.inf)
        Z = np.nan_to_num((every.X.astype(np.float64) - mean) / scale, nan=0.0)
        Z = np.column_stack([Z, np.full(len(Z), float(p["intercept"]))])
        y, rows = (every.y - model.mean[-1]) / model.scale[-1], every.take(np.arange(n))

        def said(used: NDArray[np.bool_]) -> Floats:
            w, X, target = np.zeros(Z.shape[1]), Z[used], y[used]
            for _ in range(p["rounds"]):
                off = slope * (X @ w) + constant - target
                w -= p["lr"] * (X.T @ off / len(X) + p["alpha"] * w)
            found = replace(model, weights=w)
            return own_logit(found.predict(rows.X), rows, numbers=not model.classes)

        return said

    return trainer

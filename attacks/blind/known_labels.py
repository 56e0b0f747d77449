"""`cl-few-shot`: labels guessed from own columns, where a few are known."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from fedtrees.attacks.blind.clusters import ClusterOwnColumns, own_columns_of
from fedtrees.core.attack import Attack
from fedtrees.core.guess import Claim, Guess, Labels
from fedtrees.core.registry import register
from fedtrees.core.view import View


@register.attack("cl-few-shot")
@dataclass(frozen=True, kw_only=True)
class ClassifyOwnColumns(Attack):
    """Logistic regression on the principals' own columns, from the rows whose labels are known.

    The blind line of whoever knows a few labels; columns are scaled as in `cl`.
    """

    blind: ClassVar[bool] = True
    gives: ClassVar[type[Claim] | None] = Labels

    def inapplicable(self, view: View) -> str | None:
        """Return what is missing: known labels, or rows without them."""
        if view.known is None:
            return "no labels are known; write passive[labels=20]"
        return ClusterOwnColumns().inapplicable(view)

    def run(self, view: View, rng: np.random.Generator) -> Guess:
        """Classify the rows that all principals know."""
        from sklearn.linear_model import LogisticRegression

        if self.inapplicable(view) or view.known is None or view.known.y is None:
            return Guess()
        ids, X = own_columns_of(view)
        y = view.known.y
        if not X.shape[1] or (y == y[0]).all():
            return Guess()
        order = np.argsort(ids)
        rows = order[np.searchsorted(ids[order], view.known.ids)]
        model = LogisticRegression(class_weight="balanced").fit(X[rows], y)
        return Guess((Labels(ids, model.predict(X).astype(np.int64)),))

"""`cl-few-shot`: labels guessed from own columns, where a few are known."""

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from fedtrees.attacks.blind.clusters import ClusterOwnColumns
from fedtrees.core.attack import Attack
from fedtrees.core.guess import Claim, Guess, Labels
from fedtrees.core.reasons import Reason
from fedtrees.core.registry import register
from fedtrees.core.view import View
from fedtrees.guessing.clusters import own_columns_of

RIDGE = 0.1  # of columns in [0, 1], with weights that add up to one for each class


#: Threat under which labels of some rows are known.
THREAT = "passive[labels=20]"


@register.attack("cl-few-shot")
@dataclass(frozen=True, kw_only=True)
class ClassifyOwnColumns(Attack):
    """Ridge regression of classes on the principals' own columns, from rows of known labels.

    The blind baseline of whoever knows a few labels; columns are scaled as in `cl`, and all classes
    weigh the same.
    """

    blind: ClassVar[bool] = True
    gives: ClassVar[type[Claim] | None] = Labels
    threats: ClassVar[tuple[str, ...]] = (THREAT,)

    def inapplicable(self, view: View) -> Reason | None:
        """Return what is missing: known labels, or rows without them."""
        why = ClusterOwnColumns().inapplicable(view)
        if why is None and view.known is None:
            return Reason("no-known-labels", threat=THREAT)
        return why

    def run(self, view: View, rng: np.random.Generator) -> Guess:
        """Classify the rows that all principals know."""
        if view.known is None or view.known.y is None or self.inapplicable(view):
            return Guess.none(self.inapplicable(view) or Reason("no-known-labels", threat=THREAT))
        ids, X = own_columns_of(view)
        y = view.known.y
        if not X.shape[1] or (y == y[0]).all():
            return Guess.none(Reason("one-known-class" if X.shape[1] else "no-own-columns"))
        order = np.argsort(ids)
        rows = order[np.searchsorted(ids[order], view.known.ids)]
        X = np.column_stack([X, np.ones(len(X))])
        one_hot = np.eye(max(len(view.schema.classes), 2))[y]
        weight = (1 / np.maximum(one_hot.sum(axis=0), 1))[y][:, None]
        shrunk = X[rows].T @ (weight * X[rows]) + RIDGE * np.eye(X.shape[1])
        scores = X @ np.linalg.solve(shrunk, X[rows].T @ (weight * one_hot))
        return Guess((Labels(ids, scores.argmax(axis=1).astype(np.int64)),))

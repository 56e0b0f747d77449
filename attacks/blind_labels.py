"""Guess labels of rows from the adversary's columns, without any message.

The attack `cl` clusters the rows. The attack `cl-few-shot` also uses a few known labels.
"""

from __future__ import annotations

import warnings
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from fedtrees.blind_baselines.conditional import k_means, own_columns_of
from fedtrees.core.attack import Attack
from fedtrees.core.claims import Guess, Labels
from fedtrees.core.reasons import Reason
from fedtrees.core.registry import register
from fedtrees.core.view import View


@register.attack("cl")
@dataclass(frozen=True, kw_only=True)
class ClusterOwnColumns(Attack):
    """Guess labels by K-means on the adversary's columns, the published blind baseline.

    Columns are scaled to [0, 1], and missing values are replaced by the mean of the column, as in
    the code of Takahashi et al. (2023). The number of classes is in the schema. The best of ten
    initialisations (k-means++) is used. The metric additionally compares attacks with the
    clusterings of `fedtrees.blind_baselines.conditional`.
    """

    blind: ClassVar[bool] = True
    claims = (Labels,)

    def inapplicable(self, view: View) -> Reason | None:
        """Return why the principals know no rows without labels, None if they do."""
        if not view.local_data or any(local_data.y is not None for local_data in view.local_data):
            return Reason("no-unlabelled-rows")
        return None

    def run(self, view: View, rng: np.random.Generator) -> Guess:
        """Cluster the rows that all principals have."""
        if reason := self.inapplicable(view):
            return Guess.none(reason)
        ids, X = own_columns_of(view)
        count = max(len(view.schema.classes), 2)
        if not X.shape[1]:
            return Guess.none(Reason("no-own-columns"))
        if len(ids) < count:
            return Guess.none(Reason("fewer-rows-than-classes", rows=len(ids), classes=count))
        with warnings.catch_warnings():
            # K-means warns if there are fewer distinct rows than classes. The clusters are valid
            # anyway.
            warnings.simplefilter("ignore")
            clusters = k_means(X, count, rng)
        return Guess((Labels(ids, clusters.astype(np.int64)),))


# Ridge penalty for columns in [0, 1], if the row weights of each class add up to one.
RIDGE = 0.1


#: Threat under which labels of some rows are known.
THREAT = "passive[labels=20]"


@register.attack("cl-few-shot")
@dataclass(frozen=True, kw_only=True)
class ClassifyOwnColumns(Attack):
    """Guess labels by ridge regression on the adversary's columns, fitted to a few known labels.

    This is the blind baseline of an adversary that knows a few labels. Columns are scaled as in
    `cl`, and all classes have the same total weight. For example, if 5 of 20 known rows are of
    class 1, each of them has three times the weight of a row of class 0.
    """

    blind: ClassVar[bool] = True
    claims = (Labels,)
    threats: ClassVar[tuple[str, ...]] = (THREAT,)

    def inapplicable(self, view: View) -> Reason | None:
        """Return why known labels or rows without labels are missing, None if both exist."""
        why = ClusterOwnColumns().inapplicable(view)
        if why is None and view.known_labels is None:
            return Reason("no-known-labels", threat=THREAT)
        return why

    def run(self, view: View, rng: np.random.Generator) -> Guess:
        """Classify the rows that all principals have."""
        why = self.inapplicable(view)
        if why or view.known_labels is None or view.known_labels.y is None:
            return Guess.none(why or Reason("no-known-labels", threat=THREAT))
        ids, X = own_columns_of(view)
        y = view.known_labels.y
        if not X.shape[1] or (y == y[0]).all():
            return Guess.none(Reason("one-known-class" if X.shape[1] else "no-own-columns"))
        order = np.argsort(ids)
        rows = order[np.searchsorted(ids[order], view.known_labels.ids)]
        X = np.column_stack([X, np.ones(len(X))])
        one_hot = np.eye(max(len(view.schema.classes), 2))[y]
        weight = (1 / np.maximum(one_hot.sum(axis=0), 1))[y][:, None]
        shrunk = X[rows].T @ (weight * X[rows]) + RIDGE * np.eye(X.shape[1])
        scores = X @ np.linalg.solve(shrunk, X[rows].T @ (weight * one_hot))
        return Guess((Labels(ids, scores.argmax(axis=1).astype(np.int64)),))

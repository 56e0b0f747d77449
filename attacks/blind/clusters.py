"""Attack `cl`: guess the labels of rows by clustering the adversary's columns."""

import warnings
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from fedtrees.core.attack import Attack
from fedtrees.core.guess import Claim, Guess, Labels
from fedtrees.core.reasons import Reason
from fedtrees.core.registry import register
from fedtrees.core.view import View
from fedtrees.guessing.clusters import k_means, own_columns_of


@register.attack("cl")
@dataclass(frozen=True, kw_only=True)
class ClusterOwnColumns(Attack):
    """Guess labels by K-means on the adversary's columns, the published blind baseline.

    Columns are scaled to [0, 1], and missing values are replaced by the mean of the column, as in
    the code of Takahashi et al. (2023). The number of classes is in the schema. The best of ten
    initialisations (k-means++) is used. The metric additionally compares attacks with the
    clusterings of `fedtrees.guessing.clusters`.
    """

    blind: ClassVar[bool] = True
    gives: ClassVar[type[Claim] | None] = Labels

    def inapplicable(self, view: View) -> Reason | None:
        """Return why the principals know no rows without labels, None if they do."""
        if not view.own or any(local_data.y is not None for local_data in view.own):
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

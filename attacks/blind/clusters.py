"""`cl`: the labels of rows, guessed from the columns that somebody holds of them."""

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
    """The published blind baseline of label inference: K-means on the principals' own columns.

    Columns are scaled to [0, 1], missing values put at their mean, as in the code of Takahashi et
    al. (2023); the number of classes is in the schema. The best of ten starts (k-means++) counts.
    The metric holds attacks against other clusterings besides (`fedtrees.guessing.clusters`).
    """

    blind: ClassVar[bool] = True
    gives: ClassVar[type[Claim] | None] = Labels

    def inapplicable(self, view: View) -> Reason | None:
        """Return why the principals know no rows without labels, None if they do."""
        if not view.own or any(held.y is not None for held in view.own):
            return Reason("no-unlabelled-rows")
        return None

    def run(self, view: View, rng: np.random.Generator) -> Guess:
        """Cluster the rows that all principals know."""
        if why := self.inapplicable(view):
            return Guess.none(why)
        ids, X = own_columns_of(view)
        count = max(len(view.schema.classes), 2)
        if not X.shape[1]:
            return Guess.none(Reason("no-own-columns"))
        if len(ids) < count:
            return Guess.none(Reason("fewer-rows-than-classes", rows=len(ids), classes=count))
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # fewer different rows than classes
            found = k_means(X, count, rng)
        return Guess((Labels(ids, found.astype(np.int64)),))

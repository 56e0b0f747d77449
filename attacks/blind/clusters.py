"""`cl`: the labels of rows, guessed from the columns that somebody holds of them."""

from __future__ import annotations

import warnings
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray
from scipy.cluster.vq import kmeans2

from fedtrees.core.attack import Attack
from fedtrees.core.guess import Claim, Guess, Labels
from fedtrees.core.registry import register
from fedtrees.core.view import View

STARTS = 10


@register.attack("cl")
@dataclass(frozen=True, kw_only=True)
class ClusterOwnColumns(Attack):
    """The blind line of label inference: K-means on the principals' own columns.

    Columns are scaled to [0, 1], missing values put at their mean, as in the code of Takahashi et
    al. (2023); the number of classes is in the schema. The best of ten starts (k-means++) counts.
    """

    blind: ClassVar[bool] = True
    gives: ClassVar[type[Claim] | None] = Labels

    def inapplicable(self, view: View) -> str | None:
        """Return why the principals know no rows without labels, None if they do."""
        if not view.own or any(held.y is not None for held in view.own):
            return "the principals hold no rows without labels"
        return None

    def run(self, view: View, rng: np.random.Generator) -> Guess:
        """Cluster the rows that all principals know."""
        if self.inapplicable(view):
            return Guess()
        ids, X = own_columns_of(view)
        count = max(len(view.schema.classes), 2)
        if len(ids) < count or not X.shape[1]:
            return Guess()
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # fewer different rows than classes
            runs = [kmeans2(X, count, minit="++", seed=rng) for _ in range(STARTS)]
        _, found = min(runs, key=lambda run: ((X - run[0][run[1]]) ** 2).sum())
        return Guess((Labels(ids, found.astype(np.int64)),))


def own_columns_of(view: View) -> tuple[NDArray[np.int64], NDArray[np.float64]]:
    """Return the ids of rows that all principals know, (n,), and their columns, scaled, (n, c).

    To [0, 1], missing values at their mean; columns without values are left out.
    """
    ids = view.own[0].ids
    for held in view.own[1:]:
        ids = np.intersect1d(ids, held.ids)
    parts = []
    for held in view.own:
        order = np.argsort(held.ids)
        parts.append(held.X[order[np.searchsorted(held.ids[order], ids)]])
    X = np.concatenate(parts, axis=1).astype(np.float64)
    X = X[:, ~np.isnan(X).all(axis=0)]
    if not X.size:
        return ids, X
    low, high = np.nanmin(X, axis=0), np.nanmax(X, axis=0)
    X = (X - low) / np.where(high > low, high - low, 1.0)
    return ids, np.where(np.isnan(X), np.nanmean(X, axis=0), X)

"""Ceilings over enumerated tables, and what must hold of views."""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from fedtrees.bounds.tables import TinyTables
from fedtrees.bounds.views import Views


@dataclass(frozen=True)
class Ceiling:
    """Rows that are right in expectation, of `rows` that are submitted.

    Attributes
    ----------
    blind : float
        The most that who sees nothing but its own rows gets right; attained.
    ceiling : float
        The most that anybody gets right who sees this view, and knows this prior; attained.
    views : int
        How many views there are.
    """

    rows: int
    blind: float
    ceiling: float
    views: int

    def share(self, score: float) -> float | None:
        """Return the share of the possible gain over blind that a score is; None: there is none."""
        gain = self.ceiling - self.blind
        return None if gain < 1e-9 else (score - self.blind) / gain


def ceiling(tables: TinyTables, views: Views) -> Ceiling:
    """Return blind baseline and ceiling of a threat over all tables.

    n rows that are submitted after a view y match at most the sum of the n largest
    ``P(M_v >= k | y)``, over types v and k from 1: the k-th submitted row of type v matches where
    the victims hold k of them, and the chances fall with k. Of rows that are known by id, whose
    label or columns are sought: the sum of ``max P(y_i | y)``.
    """
    victims, places = tables.victims(views.principals), tables.places(views.principals)
    rows = int(victims[0].sum())
    _, told = np.unique(tables.own(views.principals), axis=0, return_inverse=True)
    blind, best = (best_of(tables, victims, at, places) for at in (told.ravel(), views.of))
    return Ceiling(rows, float(blind.sum()), float(best.sum()), len(best))


def recognition(tables: TinyTables, views: Views) -> Ceiling:
    """Return blind baseline and ceiling of telling victims' rows from rows of the prior, as AUC.

    A candidate is of type v with ``E[M_v | y] / n`` where it is a victim's row and with the prior's
    probability otherwise; their ratio ranks best (Neyman and Pearson 1933), attained.
    """
    victims = tables.victims(views.principals)
    _, told = np.unique(tables.own(views.principals), axis=0, return_inverse=True)
    found = []
    for at in (told.ravel(), views.of):
        held = np.zeros((int(at.max()) + 1, victims.shape[1]))
        np.add.at(held, at, tables.weight[:, None] * victims)
        chance = np.bincount(at, tables.weight)
        found.append(sum(c * ranked(m / tables.prior, m, tables.prior)
                         for c, m in zip(chance, held, strict=True)))  # fmt: skip
    return Ceiling(1, float(found[0]), float(found[1]), int(views.of.max()) + 1)


def ranked(
    score: NDArray[np.float64], held: NDArray[np.float64], prior: NDArray[np.float64]
) -> float:
    """Return the chance that a row of the victims scores above one of the prior, ties half.

    `score`, `held`, `prior`: float64 arrays, shape (V,). Of every type: its score, how many the
    victims hold or a share of that, and its probability.
    """
    above = (score[:, None] > score) + 0.5 * (score[:, None] == score)
    return float(held / held.sum() @ above @ prior)


def best_of(
    tables: TinyTables, victims: NDArray[np.int64], at: NDArray[np.int64], places: int = 0
) -> NDArray[np.float64]:
    """Return the most rows right times the probability of each view, float64, shape (views,).

    `at`: int64 array, shape (T,). Which view each table gives.
    `places`: Rows that are known by id: of each one thing is said.
    """
    n = 1 if places else int(victims[0].sum())
    holds = victims[:, :, None] >= np.arange(1, n + 1)
    chance = np.zeros((at.max() + 1, holds[0].size))
    np.add.at(chance, at, tables.weight[:, None] * holds.reshape(len(at), -1))
    if places:
        return np.asarray(chance.reshape(len(chance), places, -1).max(axis=2).sum(axis=1))
    return np.asarray(np.sort(chance, axis=1)[:, -n:].sum(axis=1), dtype=np.float64)


def splits(views: Views, alike: NDArray[np.int64]) -> tuple[int, int]:
    """Return how many sets of tables should look alike, and how many of them do not.

    `alike`: int array, shape (T, m). What a defense lets through: equal lines are one set.
    """
    _, at = np.unique(alike, axis=0, return_inverse=True)
    pairs = np.unique(np.column_stack([at.ravel(), views.of]), axis=0)
    seen = np.bincount(pairs[:, 0])
    return len(seen), int((seen > 1).sum())


def pooled(tables: TinyTables) -> NDArray[np.int64]:
    """Return what a secure sum lets through: how many rows of each type all clients hold."""
    return np.asarray(tables.counts.sum(axis=1), dtype=np.int64)


def equal_views(one: Views, other: Views) -> bool:
    """Tell whether two runs tell the same tables apart, and no others."""
    pairs = np.unique(np.column_stack([one.of, other.of]), axis=0)
    return len(pairs) == int(one.of.max()) + 1 == int(other.of.max()) + 1

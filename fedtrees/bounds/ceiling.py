"""Ceilings over enumerated tables, and comparisons of views.

A ceiling is the largest expected score over all attacks. It follows from the posterior distribution
of the tables given the view, and is attained by the attack that maximises the expected score.
"""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from fedtrees.bounds.tables import TinyTables
from fedtrees.bounds.views import Views


@dataclass(frozen=True)
class Ceiling:
    """Largest expected score without and with the view. Both values are attained by some attack.

    Attributes
    ----------
    rows : int
        Number of rows that an attack submits, 1 if the score is an AUC.
    blind : float
        Largest expected number of correct rows (or AUC) given only the local data and the prior.
    ceiling : float
        The same given the view, too.
    views : int
        Number of different views.
    """

    rows: int
    blind: float
    ceiling: float
    views: int

    def share(self, score: float) -> float | None:
        """Return ``(score - blind) / (ceiling - blind)``, None if ceiling and blind are equal."""
        gain = self.ceiling - self.blind
        return None if gain < 1e-9 else (score - self.blind) / gain


def ceiling(tables: TinyTables, views: Views) -> Ceiling:
    """Return blind baseline and ceiling of the number of correct rows.

    Let M_v be the number of the victims' rows of type v. The k-th submitted row of type v is
    correct with probability ``P(M_v >= k | view)``, which decreases with k. The ceiling for n
    submitted rows is therefore the sum of the n largest of these probabilities over all v and k,
    averaged over the views. If rows are known by id (vertical), it is the sum over the rows of the
    largest posterior probability of a value.
    """
    victims, places = tables.victims(views.principals), tables.places(views.principals)
    rows = int(victims[0].sum())
    _, local_view = np.unique(tables.own(views.principals), axis=0, return_inverse=True)
    blind, best = (
        best_of(tables, victims, number, places) for number in (local_view.ravel(), views.of)
    )
    return Ceiling(rows, float(blind.sum()), float(best.sum()), len(best))


def recognition(tables: TinyTables, views: Views) -> Ceiling:
    """Return blind baseline and ceiling of the AUC of membership inference.

    Given the view, a row of the victims has type v with probability ``E[M_v | view] / n``, and a
    non-member has the prior probability of v. The likelihood ratio is the best score of a type
    (Neyman and Pearson 1933).
    """
    victims = tables.victims(views.principals)
    _, local_view = np.unique(tables.own(views.principals), axis=0, return_inverse=True)
    values = []
    for number in (local_view.ravel(), views.of):
        expected_counts = np.zeros((int(number.max()) + 1, victims.shape[1]))
        np.add.at(expected_counts, number, tables.weight[:, None] * victims)
        chance = np.bincount(number, tables.weight)
        values.append(sum(c * ranked(m / tables.prior, m, tables.prior)
                         for c, m in zip(chance, expected_counts, strict=True)))  # fmt: skip
    return Ceiling(1, float(values[0]), float(values[1]), int(views.of.max()) + 1)


def ranked(
    score: NDArray[np.float64], held: NDArray[np.float64], prior: NDArray[np.float64]
) -> float:
    """Return the probability that a row of the victims scores above a non-member (AUC).

    A tie counts one half. The arguments have shape (V,): the score of every row type, the number of
    the victims' rows of this type up to a constant factor, and its probability for a non-member.
    """
    # Entry (v, w): a member of type v scores above a non-member of type w.
    above = (score[:, None] > score) + 0.5 * (score[:, None] == score)
    return float(held / held.sum() @ above @ prior)


def best_of(
    tables: TinyTables, victims: NDArray[np.int64], at: NDArray[np.int64], places: int = 0
) -> NDArray[np.float64]:
    """Return the largest expected number of correct rows, times the probability of the view.

    Parameters
    ----------
    tables : TinyTables
        Enumerated tables with their prior probabilities.
    victims : int64 array, shape (T, V)
        Result of `TinyTables.victims`.
    at : int64 array, shape (T,)
        Number of the view of each table.
    places : int
        Number of rows that are known by id. An attack then makes one guess per row. 0 if rows have
        no order.

    Returns
    -------
    best : float64 array, shape (n_views,)
        The sum over the views is the ceiling.
    """
    n = 1 if places else int(victims[0].sum())
    holds = victims[:, :, None] >= np.arange(1, n + 1)
    chance = np.zeros((at.max() + 1, holds[0].size))
    np.add.at(chance, at, tables.weight[:, None] * holds.reshape(len(at), -1))
    if places:
        return np.asarray(chance.reshape(len(chance), places, -1).max(axis=2).sum(axis=1))
    # The n largest probabilities, over types v and multiplicities k.
    return np.asarray(np.sort(chance, axis=1)[:, -n:].sum(axis=1), dtype=np.float64)


def splits(views: Views, alike: NDArray[np.int64]) -> tuple[int, int]:
    """Return the number of sets of tables that should have equal views, and of those that do not.

    `alike` is an int array of shape (T, m) with the information that a defense is meant to reveal.
    Tables with equal rows of this array form one set.
    """
    _, group = np.unique(alike, axis=0, return_inverse=True)
    pairs = np.unique(np.column_stack([group.ravel(), views.of]), axis=0)
    # A set with several views is distinguished although it should not be.
    seen = np.bincount(pairs[:, 0])
    return len(seen), int((seen > 1).sum())


def pooled(tables: TinyTables) -> NDArray[np.int64]:
    """Return the information in a secure sum: rows of each type at all clients, shape (T, V)."""
    return np.asarray(tables.counts.sum(axis=1), dtype=np.int64)


def equal_views(one: Views, other: Views) -> bool:
    """Return whether two runs distinguish exactly the same tables."""
    pairs = np.unique(np.column_stack([one.of, other.of]), axis=0)
    return len(pairs) == int(one.of.max()) + 1 == int(other.of.max()) + 1

"""Likely bins of rows given the adversary's columns, for rows that the sums leave open."""

import numpy as np
from numpy.typing import NDArray
from scipy.special import ndtr

from fedtrees.attacks.bins.feasible import Told

Floats = NDArray[np.float64]

_RIDGE = 1.0  # prior precision of every coefficient, in rows
_STEPS = 20
_LEAST = 1e-9  # smallest probability of a bin
_MISSING = 1e-6  # probability of a missing value, which the regression does not model
_LEAST_SPREAD = 1e-3  # smallest standard deviation of ranks
_LEAST_LEFT = 1e-4  # smallest remaining share of their variance


def ranks_of(shares: Floats) -> tuple[Floats, Floats]:
    """Return the rank at the ends of every bin (B + 1,), and the expected rank of every row (N,).

    ``shares`` (float64, (N, B + 1)) contains the probability of every bin for every row. The last
    column is a missing value, which has the middle rank.
    """
    rows = shares[:, :-1].sum(axis=0)
    ends = np.concatenate([[0.0], np.cumsum(rows)]) / max(float(rows.sum()), _LEAST)
    valued = shares[:, :-1].sum(axis=1)
    middle = (ends[1:] + ends[:-1]) / 2
    rank = np.where(valued > 0, shares[:, :-1] @ middle / np.maximum(valued, _LEAST), 0.5)
    return ends, rank


def likely_shares(
    known: Floats, shares: Floats, allowed: NDArray[np.bool_], told: Told | None
) -> Floats:
    """Return the probability of every bin by a regression of ranks on the adversary's columns.

    Ranks are normally distributed around a quadratic function. The sums change the expected ranks
    of the open rows, and the regression is fitted again to these (EM).

    Parameters
    ----------
    known : float64 array, shape (N, c)
        Centred ranks of the adversary's columns, and labels.
    shares : float64 array, shape (N, B + 1)
        Shares that satisfy the sums.
    allowed : bool array, shape (N, B + 1)
        Possible bins.
    told : Told or None
        Equations for the open rows. None if there are none.

    Returns
    -------
    float64 array, shape (N, B + 1)
    """
    ends, rank = ranks_of(shares)
    low, high = rank_interval(ends, allowed)
    X = np.column_stack([np.ones(len(known)), known, known**2])
    weight = shares[:, :-1].sum(axis=1)
    gram = (X * weight[:, None]).T @ X + _RIDGE * np.eye(X.shape[1])
    middle = middles(ends)
    within = np.where(allowed.sum(axis=1) > 1, 1.0, 0.0)  # remaining share of the variance
    if told is not None:
        within[told.open] -= (told.sides**2).sum(axis=1)
    spread = 1.0
    for _ in range(_STEPS):
        mean = X @ np.linalg.solve(gram, (X * weight[:, None]).T @ rank)
        error = weight @ ((rank - mean) ** 2 + within * spread**2) / max(weight.sum(), _LEAST)
        spread = max(float(np.sqrt(error)), _LEAST_SPREAD)
        if told is not None:
            mean = told.moved(mean, middle)
        rank = np.clip(mean, low, high)
    doubt = spread * np.sqrt(np.clip(within, _LEAST_LEFT, 1.0))
    inside = np.diff(ndtr((ends - mean[:, None]) / doubt[:, None]), axis=1) + _LEAST
    return np.column_stack([inside, np.full(len(inside), _MISSING)])


def middles(ends: Floats) -> Floats:
    """Return the middle rank of every bin and, last, that of a missing value, shape (B + 1,)."""
    return np.append((ends[1:] + ends[:-1]) / 2, 0.5)


def rank_interval(ends: Floats, allowed: NDArray[np.bool_]) -> tuple[Floats, Floats]:
    """Return the smallest and largest rank that the allowed bins permit, float64, (N,) each."""
    valued = allowed[:, :-1]
    some, bins = valued.any(axis=1), valued.shape[1]
    low = ends[np.where(some, valued.argmax(axis=1), 0)]
    high = ends[np.where(some, bins - valued[:, ::-1].argmax(axis=1), bins)]
    return low, high

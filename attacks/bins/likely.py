"""Which bin a row is likely in, by what the principals hold of it: for what sums leave open."""

import numpy as np
from numpy.typing import NDArray
from scipy.special import ndtr

from fedtrees.attacks.bins.feasible import Told

Floats = NDArray[np.float64]

_RIDGE = 1.0  # rows' worth of doubt about every coefficient
_STEPS = 20
_LEAST = 1e-9  # of a bin
_MISSING = 1e-6  # of no value, which nothing is fitted to
_LEAST_SPREAD = 1e-3  # of ranks
_LEAST_LEFT = 1e-4  # of their variance


def ranks_of(shares: Floats) -> tuple[Floats, Floats]:
    """Return the ends of every bin in ranks (B + 1,), and the expected rank of every row (N,).

    `shares`: float64 array, shape (N, B + 1). Of every row in every bin; last: without a value,
    whose rank is the middle one.
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
    """Return how likely every bin is, float64, shape (N, B + 1), by a regression of ranks.

    Ranks are normal around a quadratic in what is known. Sums move what is expected of open rows,
    as they would normal ranks, and the regression is fitted anew to what they leave (EM).

    `known`: float64 array, shape (N, c). Of the principals' own: centred ranks, and labels.
    `shares`: float64 array, shape (N, B + 1). What sums tell.
    `allowed`: bool array, shape (N, B + 1).
    `told`: What sums say of open rows; None: nothing.
    """
    ends, rank = ranks_of(shares)
    low, high = rank_interval(ends, allowed)
    X = np.column_stack([np.ones(len(known)), known, known**2])
    weight = shares[:, :-1].sum(axis=1)
    gram = (X * weight[:, None]).T @ X + _RIDGE * np.eye(X.shape[1])
    middle = middles(ends)
    within = np.where(allowed.sum(axis=1) > 1, 1.0, 0.0)  # the part of a variance that is left
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
    """Return the middle rank of every bin and, last, of no value, shape (B + 1,)."""
    return np.append((ends[1:] + ends[:-1]) / 2, 0.5)


def rank_interval(ends: Floats, allowed: NDArray[np.bool_]) -> tuple[Floats, Floats]:
    """Return the ends of the ranks that bins allow, float64, (N,) each."""
    valued = allowed[:, :-1]
    some, bins = valued.any(axis=1), valued.shape[1]
    low = ends[np.where(some, valued.argmax(axis=1), 0)]
    high = ends[np.where(some, bins - valued[:, ::-1].argmax(axis=1), bins)]
    return low, high

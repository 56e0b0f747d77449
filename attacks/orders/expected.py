"""Where in its interval a rank is, by what the principals hold of the row."""

from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray
from scipy.special import log_ndtr, ndtr

from fedtrees.core.view import View

_STEPS = 30
_RIDGE = 1.0  # rows' worth of doubt about every coefficient


def what_is_known(view: View) -> NDArray[np.float64]:
    """Return own columns as centred ranks, and one-hot labels, float64, shape (n, c)."""
    ids, parts = view.own[0].ids, []
    for held in view.own:
        order = np.argsort(held.ids)[np.argsort(np.argsort(ids))]
        parts += [_centred_ranks(x) for x in held.X[order].T]
        if held.y is not None and view.schema.classes:
            parts += [(held.y[order] == k) - np.mean(held.y == k) for k in np.unique(held.y)[1:]]
        elif held.y is not None:
            parts.append(_centred_ranks(held.y[order]))
    return np.column_stack(parts) if parts else np.zeros((len(ids), 0))


def expected_ranks(
    known: NDArray[np.float64],
    low: NDArray[np.float64],
    high: NDArray[np.float64],
    moved: Callable[[NDArray[np.float64]], NDArray[np.float64]] | None = None,
) -> NDArray[np.float64]:
    """Return the expected rank of every row, given an interval of each.

    Normal regression of ranks on what is known, fitted to intervals by EM (the censored regression
    of Amemiya 1973, with both ends known).

    `known`: float64 array, shape (n, c).
    `low, high`: float64 array, shape (n,).
    `moved`: Expected ranks once more is known, from those expected before.

    Returns: float64 array, shape (n,).
    """
    X = np.column_stack([np.ones(len(low)), known])
    gram = X.T @ X + _RIDGE * np.eye(X.shape[1])
    rank, spread = (low + high) / 2, np.sqrt(1 / 12)
    extra = np.zeros(len(low))
    for _ in range(_STEPS):
        mean = X @ np.linalg.solve(gram, X.T @ rank)
        spread = max(float(np.sqrt(((rank - mean) ** 2 + extra).mean())), 1e-3)
        mean = mean if moved is None else moved(mean)
        rank, extra = _truncated(mean, spread, low, high)
    return rank


def better_ranks(
    known: NDArray[np.float64],
    alone: NDArray[np.float64],
    low: NDArray[np.float64],
    high: NDArray[np.float64],
) -> tuple[NDArray[np.float64], bool]:
    """Return expected ranks by all columns or by one, and whether it is by the one.

    That is whichever orders the intervals of rows better that it was not told.

    `alone`: float64 array, shape (n, 1)
    """
    held = np.arange(len(low)) % 2 == 0
    fits = [
        _agreement([expected_ranks(x, np.where(part, 0.0, low), np.where(part, 1.0, high))[part]
                    for part in (held, ~held)], [(low + high)[part] for part in (held, ~held)])
        for x in (known, alone)
    ]  # fmt: skip
    named = fits[1] >= fits[0]
    return expected_ranks(alone if named else known, low, high), named


def _agreement(said: list[NDArray[np.float64]], seen: list[NDArray[np.float64]]) -> float:
    """Return the mean correlation of what was said with what was seen; 0 of constants."""
    pairs = [(a, b) for a, b in zip(said, seen, strict=True) if np.ptp(a) > 0 and np.ptp(b) > 0]
    return float(np.sum([np.corrcoef(a, b)[0, 1] for a, b in pairs])) / len(said)


def common_ranks(known: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return ranks, 0 to 1, along the first principal component of columns, which grow with it."""
    spread = known.std(axis=0)
    Z = (known - known.mean(axis=0)) / np.where(spread > 0, spread, 1.0)
    if not Z.any():
        return np.full(len(known), 0.5)
    weights = np.linalg.svd(Z, full_matrices=False)[2][0]
    along = Z @ weights * (1.0 if weights.sum() >= 0 else -1.0)
    return _centred_ranks(along) + 0.5


def _truncated(
    mean: NDArray[np.float64], spread: float, low: NDArray[np.float64], high: NDArray[np.float64]
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Return mean and variance of normals that are known to be in intervals."""
    a, b = (low - mean) / spread, (high - mean) / spread
    flip = a + b > 0  # the nearer tail is the exact one
    a, b = np.where(flip, -b, a), np.where(flip, -a, b)
    mass = np.maximum(ndtr(b) - ndtr(a), 1e-300)
    density = [np.exp(-0.5 * np.clip(z, -38, 38) ** 2) / np.sqrt(2 * np.pi) for z in (a, b)]
    shift = np.where(flip, -1, 1) * (density[0] - density[1]) / mass
    variance = 1 + (a * density[0] - b * density[1]) / mass - shift**2
    far = (log_ndtr(b) < -300) | (b - a < 1e-6)
    middle = (low + high) / 2
    return (
        np.where(far, middle, np.clip(mean + spread * shift, low, high)),
        np.where(far, 0.0, np.clip(variance, 0.0, 1.0) * spread**2),
    )


def _centred_ranks(x: NDArray[np.generic]) -> NDArray[np.float64]:
    """Return middle ranks less one half, 0 for a missing value."""
    there = ~np.isnan(x)
    order = np.sort(x[there])
    ends = np.searchsorted(order, x, "left") + np.searchsorted(order, x, "right")
    return np.where(there, ends / (2 * max(len(order), 1)) - 0.5, 0.0)

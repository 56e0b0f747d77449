"""Estimate ranks within their intervals from the adversary's local data."""

from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray
from scipy.special import log_ndtr, ndtr

from fedtrees.core.view import View

# Iterations of the EM algorithm.
_STEPS = 30
# Ridge penalty on every coefficient.
_RIDGE = 1.0


def what_is_known(view: View) -> NDArray[np.float64]:
    """Return local columns as centred ranks, and one-hot labels, float64, shape (n, c)."""
    ids, parts = view.own[0].ids, []
    for local_data in view.own:
        order = np.argsort(local_data.ids)[np.argsort(np.argsort(ids))]
        parts += [_centred_ranks(x) for x in local_data.X[order].T]
        if local_data.y is not None and view.schema.classes:
            parts += [
                (local_data.y[order] == k) - np.mean(local_data.y == k)
                for k in np.unique(local_data.y)[1:]
            ]
        elif local_data.y is not None:
            parts.append(_centred_ranks(local_data.y[order]))
    return np.column_stack(parts) if parts else np.zeros((len(ids), 0))


def expected_ranks(
    known: NDArray[np.float64],
    low: NDArray[np.float64],
    high: NDArray[np.float64],
    moved: Callable[[NDArray[np.float64]], NDArray[np.float64]] | None = None,
) -> NDArray[np.float64]:
    """Estimate the rank of every row from its interval and the adversary's local data.

    The model is a normal regression of ranks on local columns, fitted to intervals by EM (the
    censored regression of Amemiya 1973, with both ends known).

    Parameters
    ----------
    known : float64 array, shape (n, c)
        Local columns as centred ranks.
    low, high : float64 array, shape (n,)
        Interval of each rank, 0 to 1.
    moved : callable or None
        Adjusts the regression's predictions by further evidence, float64 arrays of shape (n,).

    Returns
    -------
    rank : float64 array, shape (n,)
    """
    X = np.column_stack([np.ones(len(low)), known])
    gram = X.T @ X + _RIDGE * np.eye(X.shape[1])
    rank, spread = (low + high) / 2, np.sqrt(1 / 12)
    extra = np.zeros(len(low))
    for _ in range(_STEPS):
        # M step: regression of the expected ranks. The E step below computes them from the
        # intervals.
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
    """Return expected ranks by all local columns or by one of them, whichever predicts better.

    Both regressions are fitted to the intervals of one half of the rows and compared with the
    intervals of the other half.

    Parameters
    ----------
    known : float64 array, shape (n, c)
        Local columns as centred ranks.
    alone : float64 array, shape (n, 1)
        The column with the most similar name.
    low, high : float64 array, shape (n,)
        Interval of each rank, 0 to 1.

    Returns
    -------
    rank : float64 array, shape (n,)
    named : bool
        Whether the ranks were estimated from the one column.
    """
    first_half = np.arange(len(low)) % 2 == 0
    fits = [
        _agreement([expected_ranks(x, np.where(part, 0.0, low), np.where(part, 1.0, high))[part]
                    for part in (first_half, ~first_half)],
                   [(low + high)[part] for part in (first_half, ~first_half)])
        for x in (known, alone)
    ]  # fmt: skip
    named = fits[1] >= fits[0]
    return expected_ranks(alone if named else known, low, high), named


def _agreement(said: list[NDArray[np.float64]], seen: list[NDArray[np.float64]]) -> float:
    """Return the mean correlation of predicted with observed ranks, 0 for constants."""
    pairs = [(a, b) for a, b in zip(said, seen, strict=True) if np.ptp(a) > 0 and np.ptp(b) > 0]
    return float(np.sum([np.corrcoef(a, b)[0, 1] for a, b in pairs])) / len(said)


def common_ranks(known: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return ranks, 0 to 1, along the first principal component of columns.

    Its sign is chosen such that the ranks increase with most columns.
    """
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
    """Return means and variances of normal variables truncated to intervals."""
    a, b = (low - mean) / spread, (high - mean) / spread
    # Differences of the distribution function are accurate in the lower tail only. Intervals above
    # the mean are therefore mirrored.
    flip = a + b > 0
    a, b = np.where(flip, -b, a), np.where(flip, -a, b)
    mass = np.maximum(ndtr(b) - ndtr(a), 1e-300)
    density = [np.exp(-0.5 * np.clip(z, -38, 38) ** 2) / np.sqrt(2 * np.pi) for z in (a, b)]
    shift = np.where(flip, -1, 1) * (density[0] - density[1]) / mass
    variance = 1 + (a * density[0] - b * density[1]) / mass - shift**2
    # The mass underflows far from the mean. The middle of the interval replaces the mean there.
    far = (log_ndtr(b) < -300) | (b - a < 1e-6)
    middle = (low + high) / 2
    return (
        np.where(far, middle, np.clip(mean + spread * shift, low, high)),
        np.where(far, 0.0, np.clip(variance, 0.0, 1.0) * spread**2),
    )


def _centred_ranks(x: NDArray[np.generic]) -> NDArray[np.float64]:
    """Return mid-ranks minus one half, 0 for a missing value."""
    present = ~np.isnan(x)
    order = np.sort(x[present])
    ends = np.searchsorted(order, x, "left") + np.searchsorted(order, x, "right")
    return np.where(present, ends / (2 * max(len(order), 1)) - 0.5, 0.0)

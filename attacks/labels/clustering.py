"""K-means as attacks on labels use it: weighted rows, several starts, many rows."""

from __future__ import annotations

import warnings

import numpy as np
from numpy.typing import NDArray

STARTS = 10
#: Starts see no more rows than this; the best of them is refined on all.
START_ROWS = 8192


def scaled(X: NDArray[np.floating]) -> NDArray[np.float64]:
    """Scale columns to [0, 1], missing values at their mean; columns without values go."""
    X = np.asarray(X, dtype=np.float64)
    X = X[:, ~np.isnan(X).all(axis=0)]
    if not X.size:
        return X
    low, high = np.nanmin(X, axis=0), np.nanmax(X, axis=0)
    X = (X - low) / np.where(high > low, high - low, 1.0)
    return np.where(np.isnan(X), np.nanmean(X, axis=0), X)


def k_means(
    points: NDArray[np.float64],
    count: int,
    rng: np.random.Generator,
    weight: NDArray[np.float64] | None = None,
) -> NDArray[np.int64]:
    """Cluster rows by K-means: the best of ten starts of k-means++.

    Parameters
    ----------
    points : float64 array, shape (S, d)
    count : int
        Clusters; no more than there are different rows are found.
    rng : numpy.random.Generator
    weight : float64 array, shape (S,), optional
        How many rows each stands for.

    Returns
    -------
    int64 array, shape (S,)
    """
    from sklearn.cluster import KMeans
    from sklearn.exceptions import ConvergenceWarning

    if not points.size or len(points) <= count:
        return np.arange(len(points)) if points.size else np.zeros(len(points), dtype=np.int64)
    seed = int(rng.integers(2**31))
    drawn, light = points, weight
    if len(points) > START_ROWS:
        share = None if weight is None else weight / weight.sum()
        drawn, light = points[rng.choice(len(points), START_ROWS, p=share)], None
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)  # fewer different rows than clusters
        found = KMeans(count, n_init=STARTS, random_state=seed).fit(drawn, sample_weight=light)
        if drawn is not points:
            centers = found.cluster_centers_
            found = KMeans(count, init=centers, n_init=1).fit(points, sample_weight=weight)
    return np.asarray(found.labels_, dtype=np.int64)

"""Cluster rows by their features, as a guess of their labels.

Attacks and the blind baselines of labels use the clusters if an adversary knows the features of
rows, but not their labels.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray
from scipy.cluster.vq import kmeans2, vq

from fedtrees.core.view import View

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]

#: Number of initialisations of K-means. The one with the least sum of squares is used.
STARTS = 10
# Gaussian mixture and spectral clustering are fitted to at most this many rows. The remaining rows
# get the most probable component, or the cluster with the nearest fitted row.
_MOST_FITTED = 4000
_MIXTURE_STARTS, _RIDGE, _NEIGHBOURS = 5, 1e-3, 10


def own_columns_of(view: View) -> tuple[Ints, Floats]:
    """Return the rows that all parties of the adversary have, and their scaled features.

    The ids, int64 of shape (n,), are in increasing order. The features, float64 of shape (n, c),
    are the columns of all these parties, scaled by `between_0_and_1`.
    """
    ids = view.local_data[0].ids
    for part in view.local_data[1:]:
        ids = np.intersect1d(ids, part.ids)
    parts = []
    for part in view.local_data:
        order = np.argsort(part.ids)
        parts.append(part.X[order[np.searchsorted(part.ids[order], ids)]])
    return ids, between_0_and_1(np.concatenate(parts, axis=1))


def between_0_and_1(columns: NDArray[np.floating]) -> Floats:
    """Scale columns to [0, 1] and replace missing values by the mean of their column.

    The result is a float64 array without the columns that have no values.
    """
    X = columns.astype(np.float64)
    X = X[:, ~np.isnan(X).all(axis=0)]
    if not X.size:
        return X
    low, high = np.nanmin(X, axis=0), np.nanmax(X, axis=0)
    X = (X - low) / np.where(high > low, high - low, 1.0)
    return np.asarray(np.where(np.isnan(X), np.nanmean(X, axis=0), X), dtype=np.float64)


def clusterings(X: Floats, count: int, rng: np.random.Generator) -> dict[str, Ints]:
    """Cluster rows with every method.

    Parameters
    ----------
    X : float64 array, shape (n, c)
        Columns in [0, 1] without missing values.
    count : int
        Number of clusters, from 2 to n.
    rng : numpy.random.Generator
        Randomness of the initialisations and of the rows that are fitted.

    Returns
    -------
    clusters : dict of str to int64 array, shape (n,)
        Cluster of every row by the name of the method: ``k-means``, ``component`` (K-means on the
        first principal component), ``mixture`` (Gaussian, full covariances) and ``spectral``
        (normalised cut of the graph of nearest neighbours; Ng, Jordan and Weiss 2001). Names with
        ``-z`` belong to standardised columns. No method is best everywhere. For example, K-means
        finds almost nothing if classes are unbalanced, while other methods still find the classes.
    """
    spread = X.std(axis=0)
    clusters = dict[str, Ints]()
    for suffix, columns in (("", X), ("-z", (X - X.mean(axis=0)) / np.where(spread, spread, 1))):
        for name, method in METHODS.items():
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")  # fewer different rows than clusters
                clusters[name + suffix] = method(columns, count, rng).astype(np.int64)
    return clusters


def k_means(X: Floats, count: int, rng: np.random.Generator) -> NDArray[np.integer]:
    """Cluster rows by K-means with the best of `STARTS` initialisations by k-means++."""
    runs = [kmeans2(X, count, minit="++", seed=rng) for _ in range(STARTS)]
    best = min(runs, key=lambda run: ((X - run[0][run[1]]) ** 2).sum())
    return np.asarray(best[1])


def _component(X: Floats, count: int, rng: np.random.Generator) -> NDArray[np.integer]:
    centred = X - X.mean(axis=0)
    _, vectors = np.linalg.eigh(centred.T @ centred)
    return k_means(centred @ vectors[:, -1:], count, rng)


def _mixture(X: Floats, count: int, rng: np.random.Generator) -> NDArray[np.integer]:
    from sklearn.mixture import GaussianMixture

    model = GaussianMixture(
        count, n_init=_MIXTURE_STARTS, reg_covar=_RIDGE, random_state=_seed(rng)
    )
    return np.asarray(model.fit(X[_choose_rows(len(X), rng)]).predict(X))


def _spectral(X: Floats, count: int, rng: np.random.Generator) -> NDArray[np.integer]:
    from sklearn.cluster import SpectralClustering

    fitted = _choose_rows(len(X), rng)
    near = min(_NEIGHBOURS, len(fitted))
    model = SpectralClustering(
        count, affinity="nearest_neighbors", n_neighbors=near, random_state=_seed(rng)
    )
    labels = model.fit_predict(X[fitted])
    return np.asarray(labels if len(fitted) == len(X) else labels[vq(X, X[fitted])[0]])


#: Clustering methods by name. Each takes the rows, the number of clusters and a random generator.
METHODS: dict[str, Callable[[Floats, int, np.random.Generator], NDArray[np.integer]]] = {
    "k-means": k_means,
    "component": _component,
    "mixture": _mixture,
    "spectral": _spectral,
}


def _choose_rows(n: int, rng: np.random.Generator) -> NDArray[np.intp]:
    return np.sort(rng.permutation(n)[:_MOST_FITTED])


def _seed(rng: np.random.Generator) -> int:
    return int(rng.integers(1 << 31))

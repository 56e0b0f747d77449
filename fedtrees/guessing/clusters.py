"""Labels guessed from columns alone: clusters of rows, in several ways."""

import warnings
from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray
from scipy.cluster.vq import kmeans2, vq

from fedtrees.core.view import View

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]

#: Starts of K-means, of which the best counts.
STARTS = 10
# Rows that a mixture and a spectral clustering are fitted to at most; others follow.
_MOST_FITTED = 4000
_MIXTURE_STARTS, _RIDGE, _NEIGHBOURS = 5, 1e-3, 10


def own_columns_of(view: View) -> tuple[Ints, Floats]:
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
    return ids, between_0_and_1(np.concatenate(parts, axis=1))


def between_0_and_1(columns: NDArray[np.floating]) -> Floats:
    """Return columns scaled to [0, 1], float64, missing values at their mean.

    Columns without any value are left out.
    """
    X = columns.astype(np.float64)
    X = X[:, ~np.isnan(X).all(axis=0)]
    if not X.size:
        return X
    low, high = np.nanmin(X, axis=0), np.nanmax(X, axis=0)
    X = (X - low) / np.where(high > low, high - low, 1.0)
    return np.asarray(np.where(np.isnan(X), np.nanmean(X, axis=0), X), dtype=np.float64)


def clusterings(X: Floats, count: int, rng: np.random.Generator) -> dict[str, Ints]:
    """Return clusters of rows by every method, int64 (n,) each, by name.

    ``k-means``, ``component`` (K-means on the first principal component), ``mixture`` (Gaussian,
    full covariances) and ``spectral`` (normalised cut of the graph of nearest neighbours; Ng,
    Jordan and Weiss 2001), each of columns in [0, 1], and with ``-z`` of standardised ones. No one
    method is best: where classes are unbalanced K-means finds next to nothing that others find.

    `X`: float64 array, shape (n, c). Columns in [0, 1] without missing values.
    `count`: Clusters, two or more; `X` has at least as many rows.
    """
    spread = X.std(axis=0)
    found = dict[str, Ints]()
    for suffix, columns in (("", X), ("-z", (X - X.mean(axis=0)) / np.where(spread, spread, 1))):
        for name, method in METHODS.items():
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")  # fewer different rows than clusters
                found[name + suffix] = method(columns, count, rng).astype(np.int64)
    return found


def k_means(X: Floats, count: int, rng: np.random.Generator) -> NDArray[np.integer]:
    """Cluster by K-means: the best of `STARTS` starts of k-means++."""
    runs = [kmeans2(X, count, minit="++", seed=rng) for _ in range(STARTS)]
    best = min(runs, key=lambda run: ((X - run[0][run[1]]) ** 2).sum())
    return np.asarray(best[1])


def _component(X: Floats, count: int, rng: np.random.Generator) -> NDArray[np.integer]:
    around = X - X.mean(axis=0)
    _, vectors = np.linalg.eigh(around.T @ around)
    return k_means(around @ vectors[:, -1:], count, rng)


def _mixture(X: Floats, count: int, rng: np.random.Generator) -> NDArray[np.integer]:
    from sklearn.mixture import GaussianMixture

    model = GaussianMixture(
        count, n_init=_MIXTURE_STARTS, reg_covar=_RIDGE, random_state=_seed(rng)
    )
    return np.asarray(model.fit(X[_fitted(len(X), rng)]).predict(X))


def _spectral(X: Floats, count: int, rng: np.random.Generator) -> NDArray[np.integer]:
    from sklearn.cluster import SpectralClustering

    some = _fitted(len(X), rng)
    near = min(_NEIGHBOURS, len(some))
    model = SpectralClustering(
        count, affinity="nearest_neighbors", n_neighbors=near, random_state=_seed(rng)
    )
    labels = model.fit_predict(X[some])
    return np.asarray(labels if len(some) == len(X) else labels[vq(X, X[some])[0]])


#: Name -> function of columns, the number of clusters and randomness.
METHODS: dict[str, Callable[[Floats, int, np.random.Generator], NDArray[np.integer]]] = {
    "k-means": k_means,
    "component": _component,
    "mixture": _mixture,
    "spectral": _spectral,
}


def _fitted(n: int, rng: np.random.Generator) -> NDArray[np.intp]:
    return np.sort(rng.permutation(n)[:_MOST_FITTED])


def _seed(rng: np.random.Generator) -> int:
    return int(rng.integers(1 << 31))

"""Guess unknown branches, columns and values of rows from what is known of them.

In vertical federated learning, a party sees the splits of other parties only as a split of the
rows into left and right. It can estimate the branch of a new row from the branches of training
rows that are similar in the columns that it knows. The attack `path-restriction` and the blind
baseline of the metric `branches` use this estimate.

An adversary may already know some columns of the victims' rows. For example, it may know ages and
towns of all persons from a public register. The blind baseline then contains the known values.

An adversary may also know single values of another party's columns. It can then predict the
remaining values from its local columns by ridge regression, without using any message. This is a
blind baseline of the metric `entries`, and the attack on regressions starts from it.

An adversary that knows features of rows, but not their labels, clusters the rows as a guess of the
labels. Attacks and the blind baselines of labels use the clusters.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.cluster.vq import kmeans2, vq

from fedtrees.blind_baselines.matching import assign, mismatch_counts
from fedtrees.blind_baselines.rows import narrow_all, wide, widened
from fedtrees.core.local_data import KnownEntries, LocalData
from fedtrees.core.schema import Schema, Table
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


# Number of background rows that are compared with a row, and of the nearest ones that vote.
_CANDIDATES, _VOTERS = 1000, 15


def insert_known_values(
    guess: Table,
    columns: NDArray[np.int64],
    known_values: NDArray[np.float32],
    width: NDArray[np.float64],
) -> Table:
    """Assign the known values of every row to the best fitting guessed row.

    `guess` contains n rows. Their values in some columns (int64 of shape (c,), positions in the
    schema) are replaced by the known values, float32 of shape (n, c), and the result is in the
    order of these. Values of a column agree if they differ by at most `width`, float64 of shape
    (d + 1,).
    """
    taken = guess.take(assign(mismatch_counts(known_values, guess.X[:, columns], width[columns])))
    return _replace_columns(taken, columns, known_values)


def nearest_guesses(
    background: Table,
    schema: Schema,
    columns: NDArray[np.int64],
    known_values: NDArray[np.float32],
    width: NDArray[np.float64],
    rng: np.random.Generator,
) -> dict[str, Table]:
    """Guess rows from the background rows that are most similar in the known columns.

    The first guess is the most similar row. The second takes the lower median of every number and
    the most frequent category, one-hot group and label of the 15 most similar rows. Both contain
    the known values. The arguments are those of `insert_known_values`. At most 1,000 background
    rows are used, drawn at random, and ties of similarity are resolved at random.
    """
    if not schema.classes:
        rows = wide(background), widened(schema)
        return narrow_all(nearest_guesses(*rows, columns, known_values, width, rng))
    background = background.take(rng.permutation(len(background))[:_CANDIDATES])
    cost = mismatch_counts(known_values, background.X[:, columns], width[columns])
    near = np.argsort(cost + rng.random(cost.shape), axis=1)[:, :_VOTERS]
    nearest, vote = background.take(near[:, 0]), background.take(near[:, 0])
    X, y = vote.X.copy(), vote.y.copy()
    for attribute in schema.attributes:
        columns_of_attribute = list(attribute)
        if len(columns_of_attribute) == 1 and not schema.categorical[columns_of_attribute[0]]:
            values = np.sort(
                background.X[near, columns_of_attribute[0]], axis=1
            )  # missing values are sorted to the end
            middle = np.maximum((~np.isnan(values)).sum(axis=1) - 1, 0) // 2
            X[:, columns_of_attribute[0]] = values[np.arange(len(values)), middle]
            continue
        levels, code = np.unique(background.X[:, columns_of_attribute], axis=0, return_inverse=True)
        X[:, columns_of_attribute] = levels[_most_frequent(code.reshape(-1)[near])]
    y[:] = _most_frequent(background.y[near])
    guesses = {"told-nearest": nearest, "told-vote": Table(X, y)}
    return {name: _replace_columns(rows, columns, known_values) for name, rows in guesses.items()}


def _replace_columns(rows: Table, columns: NDArray[np.int64], values: NDArray[np.float32]) -> Table:
    X = rows.X.copy()
    X[:, columns] = values
    return Table(X, rows.y)


def _most_frequent(codes: NDArray[np.int64]) -> NDArray[np.intp]:
    """Return the most frequent code of each row, the smallest one on a tie, shape (n,)."""
    votes = np.zeros((len(codes), int(codes.max(initial=0)) + 1), dtype=np.int64)
    np.add.at(votes, (np.arange(len(codes))[:, None], codes), 1)
    return np.asarray(votes.argmax(axis=1))


_NEAREST = 15
# Weight of the share of all training rows at the node, in rows. It smooths the local share.
_PSEUDO_ROWS = 2.0
_MOST_ROWS = 4000  # the training rows are thinned to about this number


class NearRows:
    """Training rows, sorted by their distance to every row to predict.

    Distances are Euclidean. Columns are scaled to standard deviation 1 over the training rows, and
    missing values are replaced by the mean.

    Parameters
    ----------
    train : float array, shape (N, c)
        Training rows. From 8,000 rows on, only every ``N // 4000``-th row is used.
    query_rows : float array, shape (n, c)
        Rows to predict.
    weight : float64 array, shape (c,), optional
        Weight of each column. Scales are divided by its square root, so that squared distances are
        multiplied by the weight. None: every weight is 1.
    """

    def __init__(
        self,
        train: NDArray[np.floating[Any]],
        query_rows: NDArray[np.floating[Any]],
        weight: NDArray[np.float64] | None = None,
    ) -> None:
        self.taken = np.arange(0, len(train), max(len(train) // _MOST_ROWS, 1))
        sample = train[self.taken].astype(np.float64)
        with np.errstate(invalid="ignore", divide="ignore"):
            centre, scale = np.nanmean(sample, axis=0), np.nanstd(sample, axis=0)
        scale = np.where(scale > 0, scale, 1.0)
        if weight is not None:
            scale /= np.sqrt(weight)
        a, b = (
            np.nan_to_num((X - centre) / scale) for X in (sample, query_rows.astype(np.float64))
        )
        distance = (b**2).sum(1)[:, None] - 2 * b @ a.T + (a**2).sum(1)
        self.order = np.argsort(distance, axis=1, kind="stable")

    def left(self, goes: NDArray[np.int8]) -> NDArray[np.float64]:
        """Estimate the probability that each row goes left if it reaches a node.

        The estimate, float64 of shape (n,), is the share of the 15 nearest training rows at the
        node that went left, smoothed with the share of all training rows at the node. It is 0.5 if
        no training row reaches the node. `goes`, int8 of shape (N,), is the branch of every
        training row: 1 left, 0 right, -1 if it does not reach the node.
        """
        reached = goes >= 0
        share = float((goes[reached] == 1).mean()) if reached.any() else 0.5
        branch = goes[self.taken][self.order]
        near = (branch >= 0) & (np.cumsum(branch >= 0, axis=1) <= _NEAREST)
        n_left = (near & (branch == 1)).sum(axis=1)
        probability: NDArray[np.float64] = (n_left + _PSEUDO_ROWS * share) / (
            near.sum(axis=1) + _PSEUDO_ROWS
        )
        return probability


#: Ridge penalty. The local columns are standardised first.
RIDGE = 1.0


def predict_columns(
    columns: Mapping[int, tuple[float, float]],
    known_entries: KnownEntries,
    local_data: LocalData,
    together: bool = False,
) -> dict[int, NDArray[np.float64]]:
    """Predict columns of another party by ridge regression on the local columns.

    Parameters
    ----------
    columns : mapping of int to (float, float)
        Mean and standard deviation of every column to predict, by its position in the schema.
    known_entries : KnownEntries
        Known values. Values of unknown rows or other columns are ignored.
    local_data : LocalData
        Columns of m rows.
    together : bool
        If True, first fit one slope for all standardised columns along the first principal
        component of the local columns, because columns of a table are often correlated with it.
        The residuals are then regressed column by column.

    Returns
    -------
    predictions : dict of int to float64 array, shape (m,)
        Predicted values by column, in the order of the local rows. Without `together`, columns
        without a known value are omitted.
    """
    Z = local_data.X.astype(np.float64)
    spread = np.nanstd(Z, axis=0)
    Z = np.nan_to_num((Z - np.nanmean(Z, axis=0)) / np.where(spread > 0, spread, 1.0))
    position = {i: k for k, i in enumerate(local_data.ids.tolist())}
    known_values = [
        (position[i], f, float(v))
        for i, f, v in zip(
            known_entries.ids.tolist(),
            known_entries.columns.tolist(),
            known_entries.values,
            strict=True,
        )
        if i in position and f in columns
    ]
    shared = np.zeros(Z.shape[1])
    if together:
        usable = [(k, f, v) for k, f, v in known_values if columns[f][1] > 0]
        direction = np.linalg.svd(Z, full_matrices=False)[2][0]
        direction /= max(float((Z @ direction).std()), 1e-9)
        x = Z[[k for k, _, _ in usable]] @ direction
        z = np.array([(v - columns[f][0]) / columns[f][1] for _, f, v in usable])
        shared = direction * (x @ z) / (x @ x + RIDGE)
    predictions = {}
    for feature, (mean, deviation) in columns.items():
        known_of_feature = [(k, v) for k, f, v in known_values if f == feature]
        if not known_of_feature and not together:
            continue
        A, common = Z[[k for k, _ in known_of_feature]], deviation * shared
        residual = np.array([v for _, v in known_of_feature]) - mean - A @ common
        slope = common + A.T @ np.linalg.solve(A @ A.T + RIDGE * np.eye(len(A)), residual)
        predictions[feature] = mean + Z @ slope
    return predictions

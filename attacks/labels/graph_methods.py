"""Methods on the record-id graph, K-means, and the Louvain method as its authors implemented it.

The methods are connected components (UNI, Takahashi et al. 2023), propagation of the known labels
of a few rows, and the normalised cut by the singular vectors of the leaf incidence. K-means uses
weighted rows, several starts, and a sample of large tables. Its sums are computed in the order of
the rows, so that results do not depend on the number of threads. `published_communities` is Louvain
as in the code of ID2Graph, including its mistakes, for comparison with the published tables.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray
from scipy.sparse import coo_array
from scipy.sparse.csgraph import connected_components

from fedtrees.attacks.labels.communities import Twins
from fedtrees.core.compilation import kernel

PASSES = 100  # largest number of passes of a level
MOST_ROWS = 20_000  # every pass visits every edge, so that larger tables take too long


def published_communities(
    leaves: NDArray[np.int32], eta: NDArray[np.float64], rng: np.random.Generator
) -> NDArray[np.int64]:
    """Return the community of every row as in the code of Takahashi et al. (2023).

    Their code differs from Blondel et al. (2008) as follows:

    - The graph is stored as a lower triangle. A row sees only earlier rows, degrees are one-sided,
      and every edge counts once.
    - A row without gain returns to its community without its edges.
    - The search stops as soon as two communities remain.

    Parameters
    ----------
    leaves : int32 array, shape (N, T)
        Visible leaves, -1 if absent.
    eta : float64 array, shape (T,)
        Weights of the trees.
    rng : numpy.random.Generator
        Draws the order of the moves.
    """
    N = len(leaves)
    members, ends = _members(leaves)
    order = rng.permutation(N)
    label = _first_level(leaves.astype(np.int64), members, ends, eta, order)
    while True:
        label = np.unique(label, return_inverse=True)[1]
        c = int(label.max(initial=-1)) + 1
        if c <= 2:
            return label
        W = _directed_edges(leaves.astype(np.int64), members, ends, eta, label, c)
        # Later levels move communities, over the sums of the edges between them.
        merged = _level(W, rng.permutation(c))
        if len(np.unique(merged)) == c:
            return label
        label = merged[label]


def _members(leaves: NDArray[np.int32]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Return the rows of every leaf in order, (T, N), and where each leaf ends, (T, leaves + 1)."""
    width = int(leaves.max(initial=0)) + 2
    order = np.argsort(leaves, axis=0, kind="stable").T
    ends = np.stack([np.cumsum(np.bincount(c + 1, minlength=width)) for c in leaves.T])
    return np.ascontiguousarray(order), ends


@kernel
def _first_level(leaves, members, ends, eta, order):  # type: ignore[no-untyped-def]
    N, T = leaves.shape
    degree = np.zeros(N)
    for i in range(N):
        for t in range(T):
            if leaves[i, t] >= 0:
                for q in range(ends[t, leaves[i, t]], ends[t, leaves[i, t] + 1]):
                    if members[t, q] >= i:  # only earlier rows: the lower triangle
                        break
                    degree[i] += eta[t]
    total = degree.sum()
    community, tot = np.arange(N), degree.copy()
    many = np.ones(N, dtype=np.int64)
    left = N
    onto = np.zeros(N)
    touched = np.empty(N, dtype=np.int64)
    for _ in range(PASSES):
        moved = 0
        for at in range(N):
            i = order[at]
            a, k = community[i], 0
            for t in range(T):
                if leaves[i, t] < 0:
                    continue
                for q in range(ends[t, leaves[i, t]], ends[t, leaves[i, t] + 1]):
                    j = members[t, q]
                    if j >= i:
                        break
                    c = community[j]
                    if onto[c] == 0.0:
                        touched[k] = c
                        k += 1
                    onto[c] += eta[t]
            # The row stays in its community unless some community has a positive gain.
            tot[a] -= degree[i]
            best, to = 0.0, a
            for q in range(k):
                c = touched[q]
                gain = onto[c] - tot[c] * degree[i] / total
                if gain > best:
                    best, to = gain, c
                onto[c] = 0.0
            tot[to] += degree[i]
            if to != a:
                community[i] = to
                many[a] -= 1
                many[to] += 1
                left -= many[a] == 0
                moved += 1
        if moved == 0 or left == 2:
            break
    return community


@kernel
def _directed_edges(leaves, members, ends, eta, label, c):  # type: ignore[no-untyped-def]
    """Return the edges from rows of one community to earlier rows of another."""
    W = np.zeros((c, c))
    N, T = leaves.shape
    for i in range(N):
        for t in range(T):
            if leaves[i, t] < 0:
                continue
            for q in range(ends[t, leaves[i, t]], ends[t, leaves[i, t] + 1]):
                if members[t, q] >= i:
                    break
                W[label[i], label[members[t, q]]] += eta[t]
    return W


def _level(W: NDArray[np.float64], order: NDArray[np.int64]) -> NDArray[np.int64]:
    c, degree, total = len(W), W.sum(axis=1), W.sum()
    community, tot = np.arange(c), degree.copy()
    for _ in range(PASSES):
        moved = False
        for i in order:
            a = community[i]
            onto = np.bincount(community, W[i], c)
            onto[a] -= W[i, i]
            tot[a] -= degree[i]
            gain = np.where(onto > 0, onto - tot * degree[i] / total, 0.0)
            to = int(gain.argmax()) if gain.max() > 0 else a
            tot[to] += degree[i]
            moved |= to != a
            community[i] = to
        if not moved or len(np.unique(community)) == 2:
            break
    return community


STARTS = 10
SWEEPS = 100
#: Largest number of rows for the starts. The best start is then refined on all rows.
START_ROWS = 8192


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
        Coordinates.
    count : int
        Number of clusters. There are fewer if there are fewer different rows.
    rng : numpy.random.Generator
        Draws the initial centres.
    weight : float64 array, shape (S,), or None
        Weight of each row. None: 1 each.

    Returns
    -------
    int64 array, shape (S,)
        Cluster of each row.
    """
    points = np.ascontiguousarray(points, dtype=np.float64)
    if not points.size or len(points) <= count:
        return np.arange(len(points)) if points.size else np.zeros(len(points), dtype=np.int64)
    weight = np.ones(len(points)) if weight is None else weight
    drawn, light = points, weight
    if len(points) > START_ROWS:  # sampling by weight makes the weights of the sample equal
        share = weight / weight.sum()
        drawn = points[rng.choice(len(points), START_ROWS, p=share)]
        light = np.ones(START_ROWS)
    runs = [
        _lloyd(drawn, light, _spread_out(drawn, light, rng.random(count))) for _ in range(STARTS)
    ]
    labels, centers, _ = min(runs, key=lambda run: run[2])
    return labels if drawn is points else _lloyd(points, weight, centers)[0]


@kernel
def _spread_out(points, weight, randomness):  # type: ignore[no-untyped-def]
    """Draw centers by k-means++ (Arthur and Vassilvitskii 2007)."""
    n, d = points.shape
    centers = np.empty((len(randomness), d))
    far = np.ones(n)
    for k in range(len(randomness)):
        left = randomness[k] * (far * weight).sum()
        at = n - 1
        for i in range(n):
            left -= far[i] * weight[i]
            if left < 0:
                at = i
                break
        centers[k] = points[at]
        for i in range(n):
            square = 0.0
            for j in range(d):
                square += (points[i, j] - centers[k, j]) ** 2
            far[i] = square if k == 0 else min(far[i], square)
    return centers


@kernel
def _lloyd(points, weight, start):  # type: ignore[no-untyped-def]
    """Run Lloyd's algorithm. Return labels, centers and the weighted sum of squares."""
    (n, d), K = points.shape, len(start)
    labels, centers = np.full(n, -1), start.copy()
    inertia = 0.0
    for _ in range(SWEEPS):
        moved, inertia = 0, 0.0
        for i in range(n):
            best, to = np.inf, 0
            for k in range(K):
                square = 0.0
                for j in range(d):
                    square += (points[i, j] - centers[k, j]) ** 2
                if square < best:
                    best, to = square, k
            moved += labels[i] != to
            labels[i] = to
            inertia += weight[i] * best
        if moved == 0:
            break
        sums, mass = np.zeros((K, d)), np.zeros(K)
        for i in range(n):
            mass[labels[i]] += weight[i]
            for j in range(d):
                sums[labels[i], j] += weight[i] * points[i, j]
        for k in range(K):
            if mass[k] > 0:
                centers[k] = sums[k] / mass[k]
    return labels, centers, inertia


def components(twins: Twins) -> NDArray[np.int64]:
    """Return the connected component of every group, int64, shape (S,).

    Two groups are connected if they share a visible leaf.
    """
    S, J = len(twins.leaf), len(twins.tree)
    s, t = np.nonzero(twins.leaf >= 0)
    ends = (s, S + twins.leaf[s, t])
    graph = coo_array((np.ones(len(s), np.int8), ends), shape=(S + J, S + J))
    return connected_components(graph, directed=False)[1][:S].astype(np.int64)


ALPHA = 0.99
STEPS = 50


def spread(twins: Twins, known_labels: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return class shares of every group by label spreading (Zhou et al. 2004, random walk).

    Parameters
    ----------
    twins : Twins
        The record-id graph with S groups of rows.
    known_labels : float64 array, shape (S, K)
        Number of known rows of each class in each group.

    Returns
    -------
    float64 array, shape (S, K)
        Shares that add up to 1. They are equal if no known row is connected to the group. All
        classes have the same total weight, independently of the number of their known rows.
    """
    K = known_labels.shape[1]
    # Normalise per class, so that a frequent class does not dominate.
    source = known_labels / np.maximum(known_labels.sum(axis=0), 1.0) / twins.weight[:, None]
    seen = twins.leaf >= 0
    inverse = 1.0 / np.maximum(twins.degree, 1.0)[:, None]
    scores = source.copy()
    for _ in range(STEPS):
        per_leaf = twins.per_leaf(twins.weight[:, None] * scores) * twins.eta[twins.tree][:, None]
        per_leaf = np.vstack([per_leaf, np.zeros((1, K))])
        walked = per_leaf[np.where(seen, twins.leaf, len(twins.tree))].sum(axis=1) * inverse
        scores = ALPHA * walked + (1 - ALPHA) * source
    total = scores.sum(axis=1, keepdims=True)
    return np.asarray(np.where(total > 0, scores / np.where(total > 0, total, 1.0), 1.0 / K))


#: Share of the mean degree that is added to every degree. Without it, a few rows that share leaves
#: only with one another are a perfect cut, and hide all other clusters (Amini et al. 2013; Qin and
#: Rohe 2013).
REGULARISATION = 0.3


def embedding(twins: Twins, count: int) -> NDArray[np.float64]:
    """Return the first eigenvectors of the normalised adjacency matrix, scaled to unit rows.

    Parameters
    ----------
    twins : Twins
        The record-id graph with S groups of rows.
    count : int
        Number of eigenvectors.

    Returns
    -------
    float64 array, shape (S, count)
        Rows of length 1, or 0 for a group in no leaf. Columns are 0 if the matrix has a lower rank.

    Notes
    -----
    With the incidence ``B[s, leaf] = sqrt(eta_t)``, weights W and degrees D, the matrix
    ``M = W^1/2 D^-1/2 B`` fulfils ``M M' = W^1/2 D^-1/2 A D^-1/2 W^1/2`` (Shi and Malik 2000; Ng,
    Jordan and Weiss 2001). Its left singular vectors follow from the eigenvectors of M'M, which has
    one row per leaf.
    """
    J = len(twins.tree)
    per_leaf = twins.eta[twins.tree]
    seen, degree = twins.leaf >= 0, twins.degree
    if not degree.any():
        return np.zeros((len(twins.leaf), count))
    mean = degree @ twins.weight / twins.weight.sum()
    part = np.where(degree > 0, 1.0 / (degree + REGULARISATION * mean), 0.0)
    gram = _gram(twins.leaf, twins.weight * part, np.sqrt(per_leaf), J)
    values, vectors = np.linalg.eigh(gram)
    # `eigh` sorts in ascending order. Eigenvectors of eigenvalue 0 are arbitrary: set them to 0.
    vectors = vectors[:, ::-1][:, :count] * (values[::-1][:count] > 1e-10)
    ends = np.vstack([vectors * np.sqrt(per_leaf)[:, None], np.zeros((1, vectors.shape[1]))])
    U = np.sqrt(part)[:, None] * ends[np.where(seen, twins.leaf, J)].sum(axis=1)
    U = U / np.sqrt(np.maximum(values[::-1][:count], 1e-10))
    U = np.pad(U, ((0, 0), (0, count - U.shape[1])))
    length = np.linalg.norm(U, axis=1, keepdims=True)
    return np.asarray(U / np.where(length > 0, length, 1.0))


def spectral(twins: Twins, count: int, rng: np.random.Generator) -> NDArray[np.int64]:
    """Cluster the groups by their normalised eigenvectors. Return a cluster number per group."""
    return k_means(embedding(twins, count), count, rng, twins.weight)


@kernel
def _gram(leaf, weight, scale, J):  # type: ignore[no-untyped-def]
    out = np.zeros((J, J))
    for s in range(leaf.shape[0]):
        for t in range(leaf.shape[1]):
            a = leaf[s, t]
            if a < 0:
                continue
            for u in range(leaf.shape[1]):
                b = leaf[s, u]
                if b >= 0:
                    out[a, b] += weight[s] * scale[a] * scale[b]
    return out

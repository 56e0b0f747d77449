"""Louvain as in the code of ID2Graph, including its mistakes, for comparison with its tables."""

import numpy as np
from numpy.typing import NDArray

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

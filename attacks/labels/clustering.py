"""K-means for attacks on labels: weighted rows, several starts, large tables.

Sums are computed in the order of the rows, so that results do not depend on the number of threads.
"""

import numpy as np
from numpy.typing import NDArray

from fedtrees.core.compilation import kernel

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

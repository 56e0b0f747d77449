"""How likely the label that a leaf was released with is, given its class counts."""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from fedtrees.attacks.forests.noise import NAT, Noise
from fedtrees.core.compilation import inner_kernel, kernel


class Labels(NamedTuple):
    """Labels that were released instead of counts; of no length where counts were.

    Notes
    -----
    Permute-and-flip is the largest of counts n_j with exponential noise of scale 1 / epsilon (Ding
    et al. 2021). With m = max_j (n_j - n_y), which is 0 or more, and c_j = exp(-epsilon (m - n_j +
    n_y)) it chooses y with probability

        exp(-epsilon m) * integral_0^1 prod_{j != y} (1 - c_j s) ds

    A polynomial of degree K - 1 in s, which Gauss-Legendre quadrature integrates exactly.
    """

    label: NDArray[np.int64]  # int64 (T, 2^d)
    power: NDArray[np.float64]  # float64 (m + 2,): exp(-epsilon d) for d = 0, 1, ...
    epsilon: float
    node: NDArray[np.float64]  # float64 (ceil(K / 2),), in (0, 1)
    weight: NDArray[np.float64]  # of each node; in all 1
    pair: NDArray[np.int64]  # int64 (2 m + 5,): of two classes, the cost of n_y - n_other

    @staticmethod
    def of(noise: Noise, noisy: NDArray[np.integer], m: int) -> Labels:
        """Return the labels that a forest tells, 1 for the class of a leaf, of `m` rows."""
        if noise.kind != "labels":
            none = np.zeros(0)
            return Labels(np.zeros((0, 0), np.int64), none, 0.0, none, none, np.zeros(0, np.int64))
        node, weight = np.polynomial.legendre.leggauss(-(-noisy.shape[2] // 2))
        power = np.exp(-np.arange(2 * m + 3) / noise.scale)
        label = noisy.argmax(axis=2).astype(np.int64)
        pair = np.zeros(0, np.int64)
        made = Labels(label, power, 1.0 / noise.scale, (node + 1) / 2, weight / 2, pair)
        if noisy.shape[2] != 2:
            return made
        ahead = np.arange(-m - 2, m + 3)
        counts = np.stack([np.maximum(ahead, 0), np.maximum(-ahead, 0)], axis=1)
        every = made._replace(label=np.zeros((1, len(ahead)), np.int64))
        return made._replace(pair=every.costs(counts[None])[0])

    def costs(self, counts: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return minus the log of the probability of each leaf's label, int64, shape (T, 2^d).

        `NAT` to the nat; counts are int64, shape (T, 2^d, K).
        """
        return np.asarray(_costs(self, -counts))


@inner_kernel
def label_cost(labels, residual, t, leaf):  # type: ignore[no-untyped-def]
    """Return the cost of one leaf's label, `NAT` to the nat; a residual is minus a count."""
    y, classes = labels.label[t, leaf], residual.shape[2]  # no views: they would cost more
    of = residual[t, leaf, y]
    most = 0
    for j in range(classes):
        most = max(most, of - residual[t, leaf, j])
    chance = 0.0
    for q in range(labels.node.shape[0]):
        product = labels.weight[q]
        for j in range(classes):
            if j != y:
                power = labels.power[most - of + residual[t, leaf, j]]
                product *= 1.0 - power * labels.node[q]
        chance += product
    return np.int64(math.floor((labels.epsilon * most - math.log(chance)) * NAT + 0.5))


@inner_kernel
def label_cost_of_two(pair, label, residual, t, leaf):  # type: ignore[no-untyped-def]
    """Return the same of two classes, from a table of their difference."""
    y = label[t, leaf]
    return pair[residual[t, leaf, 1 - y] - residual[t, leaf, y] + pair.shape[0] // 2]


@kernel
def _costs(labels, residual):  # type: ignore[no-untyped-def]
    out = np.empty(residual.shape[:2], dtype=np.int64)
    for t in range(out.shape[0]):
        for leaf in range(out.shape[1]):
            out[t, leaf] = label_cost(labels, residual, t, leaf)
    return out

"""Likelihoods of released leaves: of a noisy count, and of a label, given the true class counts."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal, NamedTuple, get_args

import numpy as np
from numpy.typing import NDArray

from fedtrees.core.compilation import inner_kernel, kernel
from fedtrees.core.errors import check_known, check_positive
from fedtrees.privacy.mechanisms import log_probabilities

Kind = Literal["geometric", "truncated-laplace", "gaussian", "exact", "labels"]
KINDS = get_args(Kind)

#: Units of cost per nat. Costs are integers, so that sums do not depend on the order.
NAT = 1 << 20
#: Cost in nats of a unit difference from an exact count. Sampling begins with a smaller one.
EXACT = 12.0
#: Noisy counts are clipped at this many scales of the noise below 0 and above the number of rows,
#: which bounds the size of the cost table.
_REACH = 60.0


@dataclass(frozen=True)
class Noise:
    """Independent noise on each count.

    Attributes
    ----------
    kind : {"geometric", "truncated-laplace", "gaussian", "exact", "labels"}
        ``"geometric"`` is two-sided geometric noise with pmf proportional to ``exp(-|k| / scale)``.
        ``"truncated-laplace"`` is Laplace noise that is truncated toward zero, as in the code of
        Gorgé et al. ``"gaussian"`` is (discrete) Gaussian noise, and ``"exact"`` no noise. With
        ``"labels"`` there are no counts, but each leaf's label, chosen by permute-and-flip
        (`fedtrees.attacks.forests.likelihoods`).
    scale : float
        Scale of the Laplace and geometric noise in rows (T / epsilon for a total epsilon), or
        standard deviation of the Gaussian noise. Not read if counts are exact.
    draws : float
        Number of draws of geometric noise that were added. It exceeds 1 if clients share the noise
        and one of them may be an insider.

    Raises
    ------
    UsageError
        For an unknown kind, or a scale that is not finite and positive.
    """

    kind: Kind
    scale: float = 1.0
    draws: float = 1.0

    def __post_init__(self) -> None:
        check_known("noise", self.kind, KINDS)
        check_positive("scale of the noise", self.scale)

    @staticmethod
    def of(kind: Kind, epsilon: float, trees: int) -> Noise:
        """Return Laplace or geometric noise of ``epsilon`` for all trees together.

        An infinite epsilon gives exact counts or labels.

        Parameters
        ----------
        kind : str
            Kind of the noise.
        epsilon : float
            Total privacy parameter.
        trees : int
            Number of trees.

        Raises
        ------
        UsageError
            If epsilon is not positive.
        """
        if epsilon == math.inf:
            return Noise("labels", 1.0 / EXACT) if kind == "labels" else Noise("exact")
        check_positive("epsilon", epsilon)
        return Noise(kind, trees / epsilon)

    @property
    def sharpness(self) -> float:
        """Cost of the first unit of a residual, in nats."""
        return EXACT if self.kind == "exact" else 1.0 / self.scale

    def costs(self, residual: NDArray[np.integer]) -> NDArray[np.float64]:
        """Return the negative log probability of each residual, relative to that of 0, in nats."""
        a = np.abs(residual).astype(np.float64)
        if self.kind == "gaussian":
            return 0.5 * (a / self.scale) ** 2
        if self.kind == "truncated-laplace":
            # 0 has twice the probability that extrapolation of the geometric decline gives
            return a / self.scale + np.where(a > 0, math.log(2.0), 0.0)
        if self.kind == "geometric" and self.draws != 1:
            log_p = log_probabilities(self.scale, self.draws)
            at = np.minimum(a, len(log_p) - 1).astype(np.int64)
            return log_p[0] - log_p[at] + (a - at) / self.scale
        return a * self.sharpness

    def table(
        self, noisy: NDArray[np.integer], n: int
    ) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Return counts clipped to the range of a cost table, and the table.

        Parameters
        ----------
        noisy : int array
            Counts.
        n : int
            Number of rows.

        Returns
        -------
        clipped : int64 array like `noisy`
            Zeros if labels were released.
        table : int64 array, shape (2 b + 1,)
            Cost of each residual in 1 / `NAT` nats, with that of 0 in the middle. b is large enough
            for -1 to n + 1 rows in a leaf.
        """
        if self.kind == "labels":
            return np.zeros_like(noisy, dtype=np.int64), np.zeros(1, dtype=np.int64)
        reach = math.ceil(_REACH * self.scale) if self.kind != "exact" else 2 * n
        clipped = np.clip(noisy, -reach, n + reach).astype(np.int64)
        b = int(np.abs(clipped).max(initial=0)) + n + 2
        return clipped, np.round(NAT * self.costs(np.arange(-b, b + 1))).astype(np.int64)


class Labels(NamedTuple):
    """Released labels of leaves. All arrays are empty if counts were released.

    Attributes
    ----------
    label : int64 array, shape (T, 2^d)
        Released class of each leaf.
    power : float64 array, shape (2 m + 3,)
        exp(-epsilon d) for d = 0, 1, ...
    epsilon : float
        Privacy parameter of one leaf.
    node : float64 array, shape (ceil(K / 2),)
        Quadrature nodes in (0, 1).
    weight : float64 array, shape (ceil(K / 2),)
        Quadrature weights with sum 1.
    pair : int64 array, shape (2 m + 5,)
        For two classes, the cost by n_y - n_other.

    Notes
    -----
    Permute-and-flip returns the largest of the counts n_j plus exponential noise of scale 1 /
    epsilon (Ding et al. 2021). With m = max_j (n_j - n_y) >= 0 and c_j = exp(-epsilon (m - n_j +
    n_y)) it chooses y with probability

        exp(-epsilon m) * integral_0^1 prod_{j != y} (1 - c_j s) ds

    The integrand is a polynomial of degree K - 1 in s, which Gauss-Legendre quadrature integrates
    exactly.
    """

    label: NDArray[np.int64]  # int64 (T, 2^d)
    power: NDArray[np.float64]  # float64 (2 m + 3,)
    epsilon: float
    node: NDArray[np.float64]  # float64 (ceil(K / 2),), in (0, 1)
    weight: NDArray[np.float64]
    pair: NDArray[np.int64]  # int64 (2 m + 5,)

    @staticmethod
    def of(noise: Noise, noisy: NDArray[np.integer], m: int) -> Labels:
        """Return the released labels of a forest.

        Parameters
        ----------
        noise : Noise
            Its kind decides whether labels were released.
        noisy : int array, shape (T, 2^d, K)
            1 for the released class of a leaf.
        m : int
            Number of rows.
        """
        if noise.kind != "labels":
            empty = np.zeros(0)
            return Labels(
                np.zeros((0, 0), np.int64), empty, 0.0, empty, empty, np.zeros(0, np.int64)
            )
        node, weight = np.polynomial.legendre.leggauss(-(-noisy.shape[2] // 2))
        power = np.exp(-np.arange(2 * m + 3) / noise.scale)
        label = noisy.argmax(axis=2).astype(np.int64)
        pair = np.zeros(0, np.int64)
        labels = Labels(label, power, 1.0 / noise.scale, (node + 1) / 2, weight / 2, pair)
        if noisy.shape[2] != 2:
            return labels
        ahead = np.arange(-m - 2, m + 3)
        counts = np.stack([np.maximum(ahead, 0), np.maximum(-ahead, 0)], axis=1)
        every = labels._replace(label=np.zeros((1, len(ahead)), np.int64))
        return labels._replace(pair=every.costs(counts[None])[0])

    def costs(self, counts: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return the negative log probability of each leaf's label, int64, shape (T, 2^d).

        The unit is 1 / `NAT` nats. Counts are int64 of shape (T, 2^d, K).
        """
        return np.asarray(_costs(self, -counts))


@inner_kernel
def label_cost(labels, residual, t, leaf):  # type: ignore[no-untyped-def]
    """Return the cost of one leaf's label in 1 / `NAT` nats. A residual is minus a count."""
    y, classes = labels.label[t, leaf], residual.shape[2]  # no views: they would cost more
    of = residual[t, leaf, y]
    margin = 0
    for j in range(classes):
        margin = max(margin, of - residual[t, leaf, j])
    chance = 0.0
    for q in range(labels.node.shape[0]):
        product = labels.weight[q]
        for j in range(classes):
            if j != y:
                power = labels.power[margin - of + residual[t, leaf, j]]
                product *= 1.0 - power * labels.node[q]
        chance += product
    return np.int64(math.floor((labels.epsilon * margin - math.log(chance)) * NAT + 0.5))


@inner_kernel
def label_cost_of_two(pair, label, residual, t, leaf):  # type: ignore[no-untyped-def]
    """Return the cost of a label for two classes, from a table of the difference of counts."""
    y = label[t, leaf]
    return pair[residual[t, leaf, 1 - y] - residual[t, leaf, y] + pair.shape[0] // 2]


@kernel
def _costs(labels, residual):  # type: ignore[no-untyped-def]
    out = np.empty(residual.shape[:2], dtype=np.int64)
    for t in range(out.shape[0]):
        for leaf in range(out.shape[1]):
            out[t, leaf] = label_cost(labels, residual, t, leaf)
    return out

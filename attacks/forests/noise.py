"""Likelihood of a noisy count given the true count."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal, get_args

import numpy as np
from numpy.typing import NDArray

from fedtrees.core.errors import check_known, check_positive
from fedtrees.privacy.polya import log_probabilities

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
        Two-sided geometric noise with pmf proportional to ``exp(-|k| / scale)``; Laplace noise,
        truncated toward zero as in the code of Gorgé et al.; (discrete) Gaussian noise; none; or no
        counts, but each leaf's label, chosen by permute-and-flip
        (`fedtrees.attacks.forests.labels`).
    scale : float
        Scale of the Laplace and geometric noise (rows; T / epsilon for a total epsilon), or
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

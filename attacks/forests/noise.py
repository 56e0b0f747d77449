"""How likely a noisy count is, given the true one."""

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

#: Costs are whole numbers of so many to the nat: sums do not depend on their order.
NAT = 1 << 20
#: What a unit of difference from an exact count costs, nats. Whoever samples begins with less.
EXACT = 12.0
#: Beyond so many scales of the noise a residual costs what it does there, and one that is further
#: off than any table could say is cut.
_REACH = 60.0


@dataclass(frozen=True)
class Noise:
    """Independent noise on each count.

    Raises `UsageError`: unknown kind, or a scale that is not finite and above 0.

    `kind`: {"geometric", "truncated-laplace", "gaussian", "exact", "labels"}. Two-sided geometric
    of pmf proportional to ``exp(-|k| / scale)``; Laplace noise of that scale, truncated toward
    zero, as the code of Gorgé et al. adds it; (discrete) Gaussian noise; none; or no counts but
    each leaf's label, chosen by permute-and-flip (`fedtrees.attacks.forests.labels`).
    `draws`: Number of draws of geometric noise that were added up; above 1 where clients share the
    noise and one of them may be an insider.
    `scale`: Of the Laplace and geometric noise (rows; T / epsilon for an epsilon in all), or the
    Gaussian's standard deviation. Not read where counts are exact.
    """

    kind: Kind
    scale: float = 1.0
    draws: float = 1.0

    def __post_init__(self) -> None:
        check_known("noise", self.kind, KINDS)
        check_positive("scale of the noise", self.scale)

    @staticmethod
    def of(kind: Kind, epsilon: float, trees: int) -> Noise:
        """Return Laplace or geometric noise of ``epsilon`` over all trees; exact if infinite.

        Raises `UsageError` if epsilon is not above 0.
        """
        if epsilon == math.inf:
            return Noise("labels", 1.0 / EXACT) if kind == "labels" else Noise("exact")
        check_positive("epsilon", epsilon)
        return Noise(kind, trees / epsilon)

    @property
    def sharpness(self) -> float:
        """Nats that the first unit of a residual costs."""
        return EXACT if self.kind == "exact" else 1.0 / self.scale

    def costs(self, residual: NDArray[np.integer]) -> NDArray[np.float64]:
        """Return minus the log of the probability of each residual, less that of 0, in nats."""
        a = np.abs(residual).astype(np.float64)
        if self.kind == "gaussian":
            return 0.5 * (a / self.scale) ** 2
        if self.kind == "truncated-laplace":
            # 0 has twice the probability that the geometric decline of the others would give it
            return a / self.scale + np.where(a > 0, math.log(2.0), 0.0)
        if self.kind == "geometric" and self.draws != 1:
            log_p = log_probabilities(self.scale, self.draws)
            at = np.minimum(a, len(log_p) - 1).astype(np.int64)
            return log_p[0] - log_p[at] + (a - at) / self.scale
        return a * self.sharpness

    def table(
        self, noisy: NDArray[np.integer], n: int
    ) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Return counts cut to what a table reaches, and the table.

        `noisy`: int array
        `n`: Rows.

        Returns
        -------
        int64 array like `noisy`
            Of labels, zeros.
        int64 array, shape (2 b + 1,)
            Cost of each residual (`NAT` to the nat), that of 0 in the middle; b is large enough for
            any number of rows from -1 to n + 1 in a leaf.
        """
        if self.kind == "labels":
            return np.zeros_like(noisy, dtype=np.int64), np.zeros(1, dtype=np.int64)
        reach = math.ceil(_REACH * self.scale) if self.kind != "exact" else 2 * n
        clipped = np.clip(noisy, -reach, n + reach).astype(np.int64)
        b = int(np.abs(clipped).max(initial=0)) + n + 2
        return clipped, np.round(NAT * self.costs(np.arange(-b, b + 1))).astype(np.int64)

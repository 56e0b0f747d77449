"""Is there as much noise as is claimed? What noisy sums differ by from the rows' own."""

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

#: Fourth moment over squared variance of the heaviest noise in use, Laplace's: the mean of n
#: squares is known to ``sqrt((6 - 1) / n)``.
_KURTOSIS = 6.0
#: Standard errors below 1 from which noise is too little: an honest run is so once in 300,000.
_FAR = 4.5


@dataclass(frozen=True)
class NoiseFound:
    """Noise that an auditor who knows all rows measured.

    `share`: Its standard deviation over the claimed one.
    `least`: Share below which it is too little, 0 where so few sums show nothing.
    `sums`: Number of noisy sums.
    """

    share: float
    least: float
    sums: int

    @property
    def too_little(self) -> bool:
        """Whether the claim is refuted."""
        return self.share < self.least


def noise_found(residuals: NDArray[np.float64]) -> NoiseFound | None:
    """Return the noise in standardised residuals, None of none.

    `residuals`: float64 array, shape (m,). In standard deviations of the claimed noise.
    """
    m = len(residuals)
    if not m:
        return None
    least = 1 - _FAR * math.sqrt((_KURTOSIS - 1) / m)
    return NoiseFound(float(np.sqrt(np.mean(residuals**2))), math.sqrt(max(least, 0.0)), m)

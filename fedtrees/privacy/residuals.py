"""Audit: does a run contain as much noise as a defense claims?

An auditor that knows all rows computes the exact sums, and compares the deviations of the noisy
sums with the claimed standard deviation.
"""

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

#: Kurtosis of Laplace noise, the noise in use with the heaviest tails. The mean of n squared
#: standardised deviations has the standard error ``sqrt((6 - 1) / n)``.
_KURTOSIS = 6.0
#: A measured variance this many standard errors below the claim refutes it. This happens in one of
#: 300,000 honest runs.
_FAR = 4.5


@dataclass(frozen=True)
class NoiseFound:
    """Noise that an auditor measured in a run.

    Attributes
    ----------
    share : float
        Measured standard deviation divided by the claimed one.
    least : float
        Smallest share that is consistent with the claim. 0 if there are too few sums to refute it.
    sums : int
        Number of noisy sums.
    """

    share: float
    least: float
    sums: int

    @property
    def too_little(self) -> bool:
        """Whether the measurement refutes the claim."""
        return self.share < self.least


def noise_found(residuals: NDArray[np.float64]) -> NoiseFound | None:
    """Measure the noise in standardised residuals.

    Parameters
    ----------
    residuals : float64 array, shape (m,)
        Deviations from the exact sums, in standard deviations of the claimed noise.

    Returns
    -------
    noise : NoiseFound or None
        None if there are no residuals.
    """
    m = len(residuals)
    if not m:
        return None
    least = 1 - _FAR * math.sqrt((_KURTOSIS - 1) / m)
    return NoiseFound(float(np.sqrt(np.mean(residuals**2))), math.sqrt(max(least, 0.0)), m)

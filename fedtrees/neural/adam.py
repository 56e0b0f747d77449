"""The Adam optimizer (Kingma and Ba 2015), one step at a time, without torch."""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

_TINY = np.float32(1e-8)


@dataclass(eq=False)
class Adam:
    """Adam (Kingma and Ba 2015, Algorithm 1) in float32, as ``torch.optim.Adam`` computes it.

    `rate` is the learning rate, and `decays` are the decay rates of the first and second moment.
    The moments are None before the first step.
    """

    rate: float
    decays: tuple[float, float]
    steps: int = 0
    first: NDArray[np.float32] | None = None
    second: NDArray[np.float32] | None = None

    def step(
        self, weights: NDArray[np.float32], gradient: NDArray[np.float32]
    ) -> NDArray[np.float32]:
        """Return the weights, shape (P,), after one more step against a gradient, shape (P,)."""
        a, b = self.decays
        if self.first is None or self.second is None:
            self.first, self.second = np.zeros_like(weights), np.zeros_like(weights)
        self.steps += 1
        self.first += np.float32(1 - a) * (gradient - self.first)
        self.second += np.float32(1 - b) * (gradient * gradient - self.second)
        # Moments start at 0. The division corrects this bias.
        mean = self.first / np.float32(1 - a**self.steps)
        spread = np.sqrt(self.second / np.float32(1 - b**self.steps)) + _TINY
        return np.asarray(weights - np.float32(self.rate) * mean / spread, dtype=np.float32)

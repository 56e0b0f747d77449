"""Histogram rounding: sums of gradients leave a client on a coarse grid."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedtrees.core.defense import Context, Declared, Defense
from fedtrees.core.errors import UsageError, check_positive
from fedtrees.core.guarantee import Structural
from fedtrees.core.messages import Message
from fedtrees.core.registry import register
from fedtrees.core.schema import Schema
from fedtrees.messages.boosting import Histogram


@register.defense("hist-rounding")
@dataclass(frozen=True)
class HistogramRounding(Defense):
    """Round every gradient and hessian sum to a multiple of `step` before it is sent.

    Rounding is no noise: it bounds nothing, and a bin with many rows averages it away.

    Parameters
    ----------
    step : float
        In units of the gradient, above 0.
    """

    step: float = 0.001

    guarantee = Structural()
    at = frozenset({"client"})
    guards = (Histogram,)

    def __post_init__(self) -> None:
        check_positive("step", self.step)

    def declares(self, schema: Schema, parameters: Mapping[str, Any]) -> Declared:
        """Publish the step."""
        return Declared(histogram_step=float(self.step))

    def outgoing(self, message: Message, ctx: Context) -> Message:
        """Round sums and totals."""
        assert isinstance(message, Histogram)
        steps = np.maximum(np.rint(np.ldexp(float(self.step), message.bits)), 1)
        if steps.max() >= 2.0**62:
            raise UsageError(f"step={self.step!r} is too coarse for any sum of this run")
        grid = steps.astype(np.int64)
        return replace(
            message, sums=_rounded(message.sums, grid), totals=_rounded(message.totals, grid)
        )


def _rounded(units: NDArray[np.int64], grid: NDArray[np.int64]) -> NDArray[np.int64]:
    """Return the nearest multiples of the grid, int64, shape (..., 2); halves go up."""
    multiples: NDArray[np.int64] = (units + grid // 2) // grid * grid
    return multiples

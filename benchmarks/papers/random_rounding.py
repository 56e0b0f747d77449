"""Histogram rounding up or down at random, for studies of what rounding hides."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from fedtrees.core.defense import Context, Declared, Defense
from fedtrees.core.errors import check_positive
from fedtrees.core.guarantee import Structural
from fedtrees.core.messages import Message
from fedtrees.core.registry import register
from fedtrees.core.schema import Schema
from fedtrees.messages.boosting import Histogram


@register.defense("random-rounding")
@dataclass(frozen=True)
class RandomRounding(Defense):
    """Round every gradient and hessian sum to a multiple of `step`, up or down by a fair draw.

    The expected value is the sum itself, so that nothing is told of empty bins alone; what is sent
    lies within a step of it, as if rounded to the nearest multiple of twice the step.

    Parameters
    ----------
    step : float
        In units of the gradient, above 0.
    """

    step: float = 0.5

    guarantee = Structural()
    at = frozenset({"client"})
    guards = (Histogram,)

    def __post_init__(self) -> None:
        check_positive("step", self.step)

    def declares(self, schema: Schema, parameters: Mapping[str, Any]) -> Declared:
        """Publish how far a sum may be off."""
        return Declared(histogram_step=2 * float(self.step))

    def outgoing(self, message: Message, ctx: Context) -> Message:
        """Round sums and totals."""
        assert isinstance(message, Histogram)
        grid = np.maximum(np.rint(np.ldexp(float(self.step), message.bits)), 1).astype(np.int64)
        rng = ctx.rng("random-rounding")
        parts = {
            name: (units + rng.integers(0, grid, units.shape)) // grid * grid
            for name, units in (("sums", message.sums), ("totals", message.totals))
        }
        return replace(message, **parts)

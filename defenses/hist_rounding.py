"""Histogram rounding: sums of gradients leave a client on a coarse grid."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from fedtrees.core.channel import Change
from fedtrees.core.coarsening import Rounding
from fedtrees.core.defense import Context, Defense, Place
from fedtrees.core.errors import check_flag, check_positive
from fedtrees.core.guarantee import Structural
from fedtrees.core.messages import Message
from fedtrees.core.registry import register
from fedtrees.core.schema import Schema
from fedtrees.messages.boosting import Histogram


@register.defense("hist-rounding")
@dataclass(frozen=True)
class HistogramRounding(Defense):
    """Round every gradient and hessian sum to a multiple of `step` before it is sent.

    Rounding is no noise: it bounds nothing, and sums are of few whole numbers of rows.

    `step`: In units of the gradient, above 0.
    `random`: Round to one of the two multiples beside a sum, so that its mean stays, in place of
    the nearest.
    """

    step: float = 0.001
    random: bool = False

    acts_through = frozenset({"outgoing"})
    guarantee = Structural()
    at = frozenset({"client"})
    guards = (Histogram,)

    def __post_init__(self) -> None:
        check_positive("step", self.step)
        check_flag("random", self.random)

    def channels(self, schema: Schema, parameters: Mapping[str, Any]) -> Mapping[Place, Change]:
        """State the rounding of sums and totals."""
        law = Rounding(float(self.step), self.random)
        return {(Histogram, "sums"): law, (Histogram, "totals"): law}

    def outgoing(self, message: Message, ctx: Context) -> Message:
        """Round sums and totals."""
        assert isinstance(message, Histogram)
        law = Rounding(float(self.step), self.random).within(*message.unit_of("sums"))
        rng = ctx.rng("rounding")
        return replace(
            message, sums=law.send(message.sums, rng), totals=law.send(message.totals, rng)
        )

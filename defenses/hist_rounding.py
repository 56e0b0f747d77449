"""Defense `hist-rounding`: clients round the gradient and hessian sums of their histograms."""

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
    """Round every gradient and hessian sum to a multiple of `step` before a client sends it.

    Rounding guarantees no bound on the leakage, because an adversary can exploit that a sum adds
    the gradients of a whole number of rows, and these take few values.

    Parameters
    ----------
    step : float
        Distance of the rounded values, in the unit of the gradient, above 0.
    random : bool
        Round up or down at random so that the expected value is the sum (stochastic rounding).
        False: round to the nearest multiple.
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
        """State the rounding of the sums of bins and of nodes."""
        law = Rounding(float(self.step), self.random)
        return {(Histogram, "sums"): law, (Histogram, "totals"): law}

    def outgoing(self, message: Message, ctx: Context) -> Message:
        """Round the sums of bins and of nodes."""
        assert isinstance(message, Histogram)
        # Sums are integers in fixed point. The rounding is done in these units, without floats.
        law = Rounding(float(self.step), self.random).within(*message.unit_of("sums"))
        rng = ctx.rng("rounding")
        return replace(
            message, sums=law.send(message.sums, rng), totals=law.send(message.totals, rng)
        )

"""A defense: round the sums of the leaves, and state the rounding as a channel."""

from dataclasses import dataclass

from fedtrees import ChannelDefense, Structural, register
from fedtrees.core.deterministic_channels import Rounding
from fedtrees.core.parameters import positive
from fedtrees.messages.horizontal import LeafValues


@register.defense("rounded-leaves")
@dataclass(frozen=True)
class RoundedLeaves(ChannelDefense):
    """Round the sums G and H of every leaf to multiples of `step`."""

    step: float = positive(4.0)

    roles = frozenset({"server"})
    handled_types = (LeafValues,)

    def claim(self):
        return Structural()

    def channels(self, schema, parameters):
        return {(LeafValues, field): Rounding(self.step) for field in ("g", "h")}

"""A first draft of a defense: round the sums of the leaves before they are sent."""

from dataclasses import dataclass, replace

import numpy as np

from fedtrees import Defense, Structural, register
from fedtrees.messages.horizontal import LeafValues


@register.defense("rounded-leaves")
@dataclass(frozen=True)
class RoundedLeaves(Defense):
    """Round the sums G and H of every leaf to multiples of `step`."""

    step: float = 4.0

    roles = frozenset({"server"})
    handled_types = (LeafValues,)

    def claim(self):
        return Structural()

    def transform_message(self, message, ctx):
        if isinstance(message, LeafValues):
            g, h = (self.step * np.rint(v / self.step) for v in (message.g, message.h))
            return replace(message, g=g, h=h)
        return message

"""A new defense: the server broadcasts G, H and gain rounded to a step.

fedtrees check rounded_statistics.py
fedtrees bench --plugin rounded_statistics.py -d "rounded-statistics[step=0.1,1,4]"
"""

from dataclasses import dataclass, replace

import numpy as np

from fedtrees.core.defense import Defense
from fedtrees.core.errors import UsageError
from fedtrees.core.guarantee import Structural
from fedtrees.core.registry import register
from fedtrees.messages.boosting import LeafValues, NodeSplits
from fedtrees.messages.models import BoostedModel


@register.defense("rounded-statistics")
@dataclass(frozen=True)
class RoundedStatistics(Defense):
    """Round the statistics beside splits and leaf values to multiples of `step`."""

    step: float = 1.0

    at = frozenset({"server"})
    guards = (NodeSplits, LeafValues)
    exempts = {BoostedModel: "made of the statistics as they were sent"}
    requires = (LeafValues,)

    def __post_init__(self):
        if not self.step > 0:
            raise UsageError(f"step must be > 0; got {self.step}")

    def claim(self):
        return Structural()

    def outgoing(self, message, ctx):
        changed = {"g": self.round(message.g), "h": self.round(message.h)}
        if isinstance(message, NodeSplits):
            changed["gain"] = self.round(message.gain)
        return replace(message, **changed)

    def round(self, values):
        return None if values is None else np.round(values / self.step) * self.step

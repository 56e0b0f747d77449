"""A new defense: the server broadcasts G, H and gain rounded to multiples of a step.

fedtrees plugin check rounded_statistics.py
fedtrees bench --plugin rounded_statistics.py -d "rounded-statistics[step=0.1,1,4]"
"""

from dataclasses import dataclass

from fedtrees import ChannelDefense, Structural, register
from fedtrees.core.deterministic_channels import Rounding
from fedtrees.core.parameters import positive
from fedtrees.messages.horizontal import LeafValues, NodeSplits
from fedtrees.messages.models import BoostedModel

ROUNDED = {NodeSplits: ("g", "h", "gain"), LeafValues: ("g", "h")}


@register.defense("rounded-statistics")
@dataclass(frozen=True)
class RoundedStatistics(ChannelDefense):
    """Round the statistics of splits and leaves to multiples of `step`."""

    step: float = positive(1.0)

    roles = frozenset({"server"})
    handled_types = tuple(ROUNDED)
    permitted_types = {BoostedModel: "made of the statistics as they were sent"}
    applies_to = (LeafValues,)

    def claim(self):
        return Structural()

    def channels(self, schema, parameters):
        return {(kind, f): Rounding(self.step) for kind, names in ROUNDED.items() for f in names}

"""A minimal behaviour: a dishonest client that doubles the sums that it reports.

fedtrees plugin check docs/examples/minimal_behaviour.py
fedtrees explain fedtree-hist --plugin docs/examples/minimal_behaviour.py --threat client:inflating
"""

from dataclasses import replace

from fedtrees import Behaviour, handles, register
from fedtrees.messages.horizontal import HistogramRequest
from fedtrees.protocols.horizontal.histogram_parties import HistogramClient


@register.behaviour("inflating")
class Inflating(Behaviour, HistogramClient):
    """Report every gradient sum twice."""

    deviation = "doubles the sums that it reports"
    detectable = "only if the sums exceed what the declared rows can contribute"

    @handles(HistogramRequest)
    def histogram(self, message):
        honest = super().histogram(message)
        return replace(honest, sums=2 * honest.sums, totals=2 * honest.totals)

"""Protocol `fedtree-hist`: the server finds splits and broadcasts them with statistics."""

from dataclasses import dataclass
from typing import ClassVar

from fedtrees.core.composition import Composition
from fedtrees.core.local_data import LocalData
from fedtrees.core.messages import Message
from fedtrees.core.registry import register
from fedtrees.core.schema import Schema
from fedtrees.messages.boosting import LeafValues, NodeSplits
from fedtrees.protocols.horizontal.histograms import DecidingServer, HistogramClient
from fedtrees.protocols.horizontal.settings import HistogramProtocol


@register.protocol("fedtree-hist")
@dataclass(frozen=True, kw_only=True)
class FedTreeHist(HistogramProtocol):
    """FedTree's horizontal boosting (Li et al. 2023), as attacked by Di Gennaro et al. (2025).

    Clients send gradient histograms. The server sums them and broadcasts the chosen split of each
    node with the gradient sum G and hessian sum H, and the leaf values. The default of `max_bin` is
    FedTree's 32. FedTree's base score of 0.5 and equal-width cut points correspond to
    ``base_score=0.5,cuts=equal-width``.
    """

    max_bin: int = 32

    says: ClassVar[tuple[type[Message], ...]] = (*HistogramProtocol.says, NodeSplits, LeafValues)
    client: ClassVar[type[HistogramClient]] = HistogramClient
    server: ClassVar[type[DecidingServer]] = DecidingServer

    def party(
        self, name: str, role: str, held: LocalData | None, schema: Schema, defense: Composition
    ) -> DecidingServer | HistogramClient:
        """Create the server or a client."""
        if held is None:
            return self.server(self, schema, defense)
        return self.client(name, held.table, schema, self, defense.gradient_clip)

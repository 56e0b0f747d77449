"""`fedtree-hist`: the server finds the splits and broadcasts them with their statistics."""

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
    """FedTree's horizontal boosting (Li et al. 2023), as Di Gennaro et al. (2025) attack it.

    Clients send histograms; the server sums them and broadcasts, per node, the chosen split with
    G and H, and the leaf values. Default `max_bin` is FedTree's 32; its base score of 0.5 and
    equal-width cut points are ``base_score=0.5,cuts=equal-width``.
    """

    max_bin: int = 32

    says: ClassVar[tuple[type[Message], ...]] = (*HistogramProtocol.says, NodeSplits, LeafValues)
    client: ClassVar[type[HistogramClient]] = HistogramClient
    server: ClassVar[type[DecidingServer]] = DecidingServer

    def party(
        self, name: str, role: str, held: LocalData | None, schema: Schema, defense: Composition
    ) -> DecidingServer | HistogramClient:
        """Make the server or a client."""
        if held is None:
            return self.server(self, schema, defense)
        return self.client(name, held.table, schema, self, defense.gradient_clip)

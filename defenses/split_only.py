"""Defense `split-only`: statistics of nodes and splits stay with the party that grows trees."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, ClassVar

from fedtrees.core.channel import Change, Removal
from fedtrees.core.defense import Context, Defense, Place
from fedtrees.core.deployment import Deployed
from fedtrees.core.guarantee import Structural
from fedtrees.core.messages import Message, Reveal, Trait, exempting, having
from fedtrees.core.registry import register
from fedtrees.core.schema import Schema

_TO_SERVER = (
    "the server grows the trees and needs it; what clients learn is limited, not the server"
)


@register.defense("split-only")
@dataclass(frozen=True)
class SplitOnly(Defense):
    """Keep G, H and gains where the trees are grown (Di Gennaro et al. 2025, Sec. 7).

    A server that grows trees from the clients' histograms broadcasts them without these statistics.
    A client that grows trees locally also sends them without statistics, so that the server does
    not learn the sums either. Predictions are identical to those of the undefended run, bit for
    bit. The claim is structural. The leaf values that remain still reveal most leaf counts
    (measured in `docs/`), so that no bound on the leakage is guaranteed.
    """

    acts_through = frozenset({"outgoing"})
    guarantee = Structural()
    deployed: ClassVar[Mapping[str, Deployed]] = {
        "flower": Deployed(
            "the ClientApp sends no sum_hessian, loss_changes and base_weights of its trees"
        )
    }
    at = frozenset({"server", "client"})
    protects = frozenset({Reveal.LABELS, Reveal.COUNTS, Reveal.FEATURES})
    guards = having(Trait.STATISTICS)
    exempts = exempting(
        {
            Trait.START: "every prediction starts from it; it is the label mean of the federation",
            Trait.SETTLED: "the splits are made of them, or the model ends there",
            Trait.SUMMARY: _TO_SERVER,
            Trait.SUMMED: _TO_SERVER,
            Trait.SUMMED_SECURELY: _TO_SERVER,
            Trait.COUNTED: _TO_SERVER,
            Trait.NETWORK: "not covered: a network is trained on what the trees say, as without "
            "this",
        }
    )

    def channels(self, schema: Schema, parameters: Mapping[str, Any]) -> Mapping[Place, Change]:
        """State which fields are not sent."""
        # Every message type declares its statistics, so that a new type is covered without a
        # change.
        return {(kind, f): Removal() for kind in self.guards for f in kind.row_statistics}

    def outgoing(self, message: Message, ctx: Context) -> Message:
        """Remove the statistics from a message."""
        return replace(message, **dict.fromkeys(message.row_statistics))

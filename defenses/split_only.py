"""Split-only: others learn the split or the leaf value, never the sums behind it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from fedtrees.core.channel import Change, Removal
from fedtrees.core.defense import Context, Defense, Place
from fedtrees.core.guarantee import Structural
from fedtrees.core.messages import Message, Reveal
from fedtrees.core.registry import register
from fedtrees.core.schema import Schema
from fedtrees.messages.boosting import (
    BaseScore,
    Histogram,
    LabelSums,
    LeafSums,
    LeafValues,
    NodeSplits,
    StopBoosting,
    ValidationLoss,
)
from fedtrees.messages.cuts import (
    CutPoints,
    FeatureRanges,
    FeatureSketch,
    GridCounts,
    GridRequest,
)
from fedtrees.messages.forests import ClassCounts, ClassTotals, LeafClasses
from fedtrees.messages.networks import NetworkUpdate, NetworkWeights
from fedtrees.messages.shared_trees import ClientModels, ClientTrees, GlobalTrees
from fedtrees.messages.tree_networks import TreeNetworkModel

_SUMS = ("sum_hessian", "base_weights", "loss_changes")
_STRIPPED: dict[type[Message], tuple[str, ...]] = {
    NodeSplits: ("g", "h", "gain"),
    LeafValues: ("g", "h"),
    LeafClasses: ("counts",),
    **dict.fromkeys((ClientTrees, GlobalTrees, ClientModels, TreeNetworkModel), _SUMS),
}
_TO_SERVER = (
    "the server grows the trees and needs it; what clients learn is limited, not the server"
)
_NETWORK = "not covered: a network is trained on what the trees say, as without this"


@register.defense("split-only")
@dataclass(frozen=True)
class SplitOnly(Defense):
    """Keep G, H and gains where the trees are grown (Di Gennaro et al. 2025, Sec. 7).

    A server that grows trees from the clients' histograms broadcasts them bare; a client that grows
    trees by itself sends them so, and the server does not learn the sums either. Predictions are
    those of the undefended run, bit for bit. The claim is structural: the leaf values that remain
    still reveal most leaf counts (measured in `docs/`), so nothing is bounded.
    """

    acts_through = frozenset({"outgoing"})
    guarantee = Structural()
    at = frozenset({"server", "client"})
    protects = frozenset({Reveal.LABELS, Reveal.COUNTS, Reveal.FEATURES})
    guards = tuple(_STRIPPED)
    exempts = {
        BaseScore: "every prediction starts from it; it is the label mean of the federation",
        CutPoints: "the splits are made of them; settled before training",
        StopBoosting: "how many rounds are kept, from losses that crossed by a secure sum",
        GridRequest: "a grid for cut points; settled before training",
        GridCounts: _TO_SERVER,
        FeatureSketch: _TO_SERVER,
        FeatureRanges: _TO_SERVER,
        LabelSums: _TO_SERVER,
        ValidationLoss: _TO_SERVER,
        Histogram: _TO_SERVER,
        LeafSums: _TO_SERVER,
        ClassTotals: _TO_SERVER,
        ClassCounts: _TO_SERVER,
        NetworkUpdate: _NETWORK,
        NetworkWeights: _NETWORK,
    }

    def channels(self, schema: Schema, parameters: Mapping[str, Any]) -> Mapping[Place, Change]:
        """State which fields are not sent."""
        return {(kind, f): Removal() for kind, names in _STRIPPED.items() for f in names}

    def outgoing(self, message: Message, ctx: Context) -> Message:
        """Strip the statistics."""
        return replace(message, **dict.fromkeys(_STRIPPED[type(message)]))

"""Split-only broadcast: clients learn the split or the leaf value, never the sums behind it."""

from __future__ import annotations

from dataclasses import dataclass, replace

from fedtrees.core.defense import Context, Defense
from fedtrees.core.forest_messages import LeafClasses
from fedtrees.core.guarantee import Guarantee, Structural
from fedtrees.core.messages import Message, Reveal
from fedtrees.core.registry import register
from fedtrees.core.tree_messages import (
    BaseScore,
    CutPoints,
    LeafValues,
    NodeSplits,
    StopBoosting,
)


@register.defense("split-only")
@dataclass(frozen=True)
class SplitOnly(Defense):
    """Keep G, H and gains at the server (Di Gennaro et al. 2025, Sec. 7).

    Clients still send histograms to the server; predictions are those of the undefended run,
    bit for bit. The claim is structural: the leaf values that remain still reveal most leaf
    counts (measured in `docs/`), so nothing is bounded.
    """

    at = frozenset({"server"})
    protects = frozenset({Reveal.LABELS, Reveal.COUNTS, Reveal.FEATURES})
    guards = (NodeSplits, LeafValues, LeafClasses)
    exempts = {
        BaseScore: "every prediction starts from it; it is the label mean of the federation",
        CutPoints: "the splits are made of them; settled before training",
        StopBoosting: "how many rounds are kept, from losses that crossed by a secure sum",
    }
    requires = frozenset({"server-decides"})

    def claim(self) -> Guarantee:
        """Return a structural guarantee."""
        return Structural()

    def outgoing(self, message: Message, ctx: Context) -> Message:
        """Strip the statistics."""
        if isinstance(message, NodeSplits):
            return replace(message, g=None, h=None, gain=None)
        if isinstance(message, LeafClasses):
            return replace(message, counts=None)
        assert isinstance(message, LeafValues)
        return replace(message, g=None, h=None)

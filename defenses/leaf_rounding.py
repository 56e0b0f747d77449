"""Defense `leaf-rounding`: leaf values are rounded before they are sent."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, ClassVar

from fedtrees.core.channel import Change
from fedtrees.core.coarsening import Decimals
from fedtrees.core.defense import Context, Defense, Place
from fedtrees.core.deployment import Deployed
from fedtrees.core.errors import check_whole
from fedtrees.core.guarantee import Structural
from fedtrees.core.messages import Message, Trait, having
from fedtrees.core.registry import register
from fedtrees.core.schema import Schema


@register.defense("leaf-rounding")
@dataclass(frozen=True)
class LeafRounding(Defense):
    """Round every leaf value, or class share of a leaf, to `decimals` before it is sent.

    Rounding makes it harder to infer the class counts of a leaf from its value. It is not effective
    without a second defense, because the exact sums are sent together with the rounded values. A
    shared tree even contains the exact leaf value among its ``base_weights``. Combine it with
    `split-only`, or with ``leaf_counts=false`` for forests.

    Parameters
    ----------
    decimals : int
        Number of decimals of the rounded values, 0 to 12.
    """

    decimals: int = 3

    acts_through = frozenset({"outgoing"})
    guarantee = Structural()
    deployed: ClassVar[Mapping[str, Deployed]] = {
        "flower": Deployed(
            "the ClientApp rounds the split_conditions of leaves", {"decimals": "to {} decimals"}
        )
    }
    at = frozenset({"server", "client"})
    guards = having(Trait.LEAVES)

    def __post_init__(self) -> None:
        check_whole("decimals", self.decimals, 0, 12)

    def channels(self, schema: Schema, parameters: Mapping[str, Any]) -> Mapping[Place, Change]:
        """State the rounding of leaf values, which are float32, and of class shares."""
        return {(kind, kind.leaf_value): self.law(kind) for kind in self.guards}

    def law(self, kind: type[Message]) -> Decimals:
        """Return the rounding that is applied to messages of a type."""
        # Leaf values are float32 and class shares float64, which matters for the exact preimage of
        # a rounded value.
        return Decimals(self.decimals, single=kind.leaf_value == "value")

    def outgoing(self, message: Message, ctx: Context) -> Message:
        """Round the leaf values of a message."""
        field, law = message.leaf_value, self.law(type(message))
        return replace(message, **{field: law.send(getattr(message, field))})

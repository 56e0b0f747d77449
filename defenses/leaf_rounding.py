"""Leaf rounding: leaf values leave whoever finds them with a few decimals only."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from fedtrees.core.defense import Context, Declared, Defense
from fedtrees.core.errors import UsageError
from fedtrees.core.guarantee import Structural
from fedtrees.core.messages import Message
from fedtrees.core.registry import register
from fedtrees.core.schema import Schema
from fedtrees.messages.boosting import LeafValues
from fedtrees.messages.forests import LeafClasses, LocalForest, PooledForest
from fedtrees.messages.shared_trees import ClientModels, ClientTrees, GlobalTrees, SharedTrees
from fedtrees.messages.tree_networks import TreeNetworkModel


@register.defense("leaf-rounding")
@dataclass(frozen=True)
class LeafRounding(Defense):
    """Round every leaf value, or class share of a leaf, to `decimals` before it is sent.

    It coarsens what a value tells of the counts in its leaf and protects nothing by itself:
    compose it with `split-only`, or let forests have ``leaf_counts=false``, else the exact sums
    travel beside the rounded value (in a shared tree even the value itself, among its
    ``base_weights``).

    Parameters
    ----------
    decimals : int
        Decimals kept, 0 to 12.
    """

    decimals: int = 3

    guarantee = Structural()
    at = frozenset({"server", "client"})
    guards = (
        LeafValues, LeafClasses, LocalForest, PooledForest, ClientTrees, GlobalTrees, ClientModels,
        TreeNetworkModel,
    )  # fmt: skip

    def __post_init__(self) -> None:
        if (
            isinstance(self.decimals, bool)
            or not isinstance(self.decimals, int)
            or not 0 <= self.decimals <= 12
        ):
            raise UsageError(f"decimals must be an integer from 0 to 12; got {self.decimals!r}")

    def declares(self, schema: Schema, parameters: Mapping[str, Any]) -> Declared:
        """Publish the step."""
        return Declared(rounding=10.0**-self.decimals)

    def outgoing(self, message: Message, ctx: Context) -> Message:
        """Round the values."""
        if isinstance(message, LeafClasses | LocalForest):
            return replace(message, probability=np.round(message.probability, self.decimals))
        assert isinstance(message, LeafValues | SharedTrees)
        return replace(message, value=np.round(message.value, self.decimals))

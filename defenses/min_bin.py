"""Bin suppression: a bin with few rows is not sent."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from fedtrees.core.channel import Change
from fedtrees.core.coarsening import FewRows, Suppression
from fedtrees.core.defense import Context, Defense, Place
from fedtrees.core.errors import UsageError, check_known, check_whole
from fedtrees.core.guarantee import Structural
from fedtrees.core.messages import Message
from fedtrees.core.registry import register
from fedtrees.core.schema import Schema
from fedtrees.messages.boosting import GlobalHistogram, Histogram
from fedtrees.messages.vertical import OpenedBinSums
from fedtrees.trees.boosted.losses import objective_of

PLACES = ("client", "server")


@register.defense("min-bin")
@dataclass(frozen=True)
class MinBin(Defense):
    """Suppress bins that may hold fewer than `k` rows.

    A message holds sums, not counts, so the bound comes from the hessian: a row adds at most b
    (1/4 for two classes), hence a bin with a sum of ``k b`` or more holds k rows or more.
    Other bins are sent as 0, and count as missing values when splits are searched; of numeric
    targets, in columns that are declared complete, as rows like those that are shown. Which rows
    they are can still be bounded from the node's total; if a feature has one such bin in a node,
    the total gives it away.

    Vertically, passive parties count the rows themselves. Rows that bring nothing count, too, and
    whoever made up what they bring knows.

    `k`: Rows, at least 2.
    `node`: Vertically, rows of a node with a value, on average of the columns, below which none of
    its bins is sent.
    `by`: {"client", "server"}. Clients, and passive parties, suppress in what they send; the server
    in the sum it sends back.
    """

    k: int = 5
    by: str = "client"
    node: int = 0

    acts_through = frozenset({"outgoing"})
    guarantee = Structural()
    bounds_hessian = True

    def __post_init__(self) -> None:
        check_whole("k", self.k, 2)
        check_known("place", self.by, PLACES)
        check_whole("node", self.node, 0)
        if self.node and self.by == "server":
            raise UsageError("node is of passive parties, where no server sums; leave by out")

    @property
    def at(self) -> frozenset[str]:  # type: ignore[override]
        """The role that suppresses."""
        return frozenset({"client", "passive"} if self.by == "client" else {"server"})

    @property
    def guards(self) -> tuple[type[Message], ...]:  # type: ignore[override]
        """Sums that clients and passive parties send; of the server, the sum that it sends back."""
        return (Histogram, OpenedBinSums) if self.by == "client" else (GlobalHistogram,)

    @property
    def requires(self) -> tuple[type[Message], ...]:  # type: ignore[override]
        """Sums in which nodes of few rows are looked for, if any."""
        return (OpenedBinSums,) if self.node else ()

    def channels(self, schema: Schema, parameters: Mapping[str, Any]) -> Mapping[Place, Change]:
        """State which sums of hessians are too small for a bin to be sent; totals are."""
        found: dict[Place, Change] = {(self.guards[0], "sums"): self.law(schema, parameters)}
        return found | {(kind, "sums"): FewRows(self.k, self.node) for kind in self.guards[1:]}

    def law(self, schema: Schema, parameters: Mapping[str, Any]) -> Suppression:
        """Return the limit on sums of hessians."""
        _, bound = objective_of(parameters.get("objective"), schema.classes).bounds
        return Suppression(self.k * bound)

    def outgoing(self, message: Message, ctx: Context) -> Message:
        """Send small bins as 0."""
        if isinstance(message, OpenedBinSums):
            assert message.rows is not None
            valued = message.rows.sum(axis=1, keepdims=True)  # over all columns
            shown = (message.rows >= self.k) & (valued >= self.node * len(message.columns))
            return replace(message, sums=message.sums * shown[..., None])
        assert isinstance(message, Histogram | GlobalHistogram)
        law = self.law(ctx.schema, ctx.parameters).within(*message.unit_of("sums"))
        return replace(message, sums=law.send(message.sums))

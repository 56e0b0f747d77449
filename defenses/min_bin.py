"""Defense `min-bin`: histogram bins with few rows are sent as zeros."""

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
    """Suppress bins that may contain fewer than `k` rows.

    A histogram contains sums, not counts. A row adds at most b to a sum of hessians (b is 1/4 for
    two classes), so that a bin with a sum of at least ``k b`` contains at least k rows. All
    remaining bins are sent as 0. The split search treats their rows as missing values. For numeric
    targets, in columns that are declared complete, it treats them like the rows of the remaining
    bins instead.

    Suppression hides little if few bins are suppressed. The total of the node bounds the sum over
    the suppressed bins of a feature. If a feature has one suppressed bin in a node, the total
    determines its sums.

    In vertical training, passive parties count the rows themselves. The counts include rows whose
    gradients are 0. A malicious active party that sends such rows knows which rows they are.

    Parameters
    ----------
    k : int
        Smallest number of rows of a bin that is sent, at least 2.
    by : {"client", "server"}
        Role that suppresses bins. ``client``: clients and passive parties, in the sums that they
        send. ``server``: the server, in the sum that it returns to the clients.
    node : int
        Vertical training only: smallest number of rows of a node. If the columns of a party have
        values in fewer rows on average, no bin of the node is sent.
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
        """Roles that suppress bins."""
        return frozenset({"client", "passive"} if self.by == "client" else {"server"})

    @property
    def guards(self) -> tuple[type[Message], ...]:  # type: ignore[override]
        """Histograms that clients and passive parties send, or the sum that the server returns."""
        return (Histogram, OpenedBinSums) if self.by == "client" else (GlobalHistogram,)

    @property
    def requires(self) -> tuple[type[Message], ...]:  # type: ignore[override]
        """Histograms of passive parties if `node` is set, because only they contain row counts."""
        # `node` has an effect on passive parties only, so that their messages must occur.
        return (OpenedBinSums,) if self.node else ()

    def channels(self, schema: Schema, parameters: Mapping[str, Any]) -> Mapping[Place, Change]:
        """State the limit on sums of hessians, and on row counts of passive parties."""
        changes: dict[Place, Change] = {(self.guards[0], "sums"): self.law(schema, parameters)}
        return changes | {(kind, "sums"): FewRows(self.k, self.node) for kind in self.guards[1:]}

    def law(self, schema: Schema, parameters: Mapping[str, Any]) -> Suppression:
        """Return the limit on sums of hessians."""
        # The bound on the hessian of one row, for example 1/4 for two classes.
        _, bound = objective_of(parameters.get("objective"), schema.classes).bounds
        return Suppression(self.k * bound)

    def outgoing(self, message: Message, ctx: Context) -> Message:
        """Replace the sums of small bins by 0."""
        if isinstance(message, OpenedBinSums):
            assert message.rows is not None
            node_rows = message.rows.sum(axis=1, keepdims=True)  # summed over all columns
            shown = (message.rows >= self.k) & (node_rows >= self.node * len(message.columns))
            return replace(message, sums=message.sums * shown[..., None])
        assert isinstance(message, Histogram | GlobalHistogram)
        law = self.law(ctx.schema, ctx.parameters).within(*message.unit_of("sums"))
        return replace(message, sums=law.send(message.sums))

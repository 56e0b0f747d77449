"""Defenses that omit or overwrite statistics.

- `min-bin`: histogram bins with few rows are sent as zeros.
- `min-leaf`: a client that grows trees creates no leaf with few rows.
- `split-only`: statistics of nodes and splits stay with the party that grows trees.
- `mask-sum-hessian`: clients overwrite the hessian sums in their trees with 1.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from fedtrees.core.channel import Change, ConditionalOmission, Removal
from fedtrees.core.defense import (
    ChannelDefense,
    Channels,
    Context,
    Defense,
    DefenseInfo,
    Deployed,
    Place,
    Requirements,
)
from fedtrees.core.deterministic_channels import FewRows, Suppression
from fedtrees.core.errors import UsageError, check_known
from fedtrees.core.guarantee import Structural
from fedtrees.core.messages import Message, Reveal, Trait, permit_types_with, types_with
from fedtrees.core.parameters import whole
from fedtrees.core.registry import register
from fedtrees.core.schema import Schema
from fedtrees.messages.horizontal import ClientTrees, GlobalHistogram, Histogram
from fedtrees.messages.vertical import OpenedBinSums
from fedtrees.trees.boosted.losses import objective_of

PLACES = ("client", "server")


@register.defense("min-bin")
@dataclass(frozen=True)
class MinBin(ChannelDefense):
    """Suppress bins that may contain fewer than `k` rows.

    A histogram contains sums, not counts. A row adds at most b to a sum of hessians (b is 1/4 for
    two classes), so that a bin with a sum of at least ``k b`` contains at least k rows. All other
    bins are suppressed, that is, sent as 0. The split search treats the rows of suppressed bins as
    missing values. If the target is numeric and the column is declared complete, the sums of the
    remaining bins of this column are adjusted to the total of the node instead.

    Suppression hides little if few bins are suppressed, because a receiver that knows the total of
    a node can subtract the bins that were sent. In a column without missing values, the difference
    is the sum over the suppressed bins. If only one bin is suppressed, its sums follow exactly.

    In vertical training, passive parties compare the number of rows in a bin with `k`, not a sum of
    hessians. Rows with encrypted gradients of 0 count as well. A malicious active party can
    therefore send 0 for all rows except one, and receive the bin of this row.

    Parameters
    ----------
    k : int
        Smallest number of rows of a bin that is sent, at least 2.
    by : {"client", "server"}
        Role that suppresses bins. ``client``: clients and passive parties, in the sums that they
        send. ``server``: the server, in the sum that it returns to the clients.
    node : int
        Vertical training only: smallest number of rows of a node. The rows of the node that have a
        value are counted in each column of the party. If the average of these counts is below
        `node`, all bins of the node are sent as 0.
    """

    k: int = whole(2, default=5)
    by: str = "client"
    node: int = whole(0, default=0)

    guarantee = Structural()
    requirements = Requirements(bounded_hessian=True)

    def __post_init__(self) -> None:
        super().__post_init__()
        check_known("by", self.by, PLACES)
        if self.node and self.by == "server":
            raise UsageError("node applies to passive parties; do not combine it with by=server")

    @property
    def roles(self) -> frozenset[str]:  # type: ignore[override]
        """Roles that suppress bins."""
        return frozenset({"client", "passive"} if self.by == "client" else {"server"})

    @property
    def handled_types(self) -> tuple[type[Message], ...]:  # type: ignore[override]
        """Histograms that clients and passive parties send, or the sum that the server returns."""
        return (Histogram, OpenedBinSums) if self.by == "client" else (GlobalHistogram,)

    @property
    def applies_to(self) -> tuple[type[Message], ...]:  # type: ignore[override]
        """Histograms of passive parties if `node` is set, because only they contain row counts."""
        # `node` has an effect on passive parties only, so that their messages must occur.
        return (OpenedBinSums,) if self.node else ()

    def channels(self, schema: Schema, parameters: Mapping[str, Any]) -> Channels:
        """State the limit on sums of hessians, and on row counts of passive parties."""
        changes: dict[Place, Change] = {
            (self.handled_types[0], "sums"): self.law(schema, parameters)
        }
        return changes | {
            (kind, "sums"): FewRows(self.k, self.node) for kind in self.handled_types[1:]
        }

    def law(self, schema: Schema, parameters: Mapping[str, Any]) -> Suppression:
        """Return the limit on sums of hessians."""
        # The bound on the hessian of one row, for example 1/4 for two classes.
        _, bound = objective_of(parameters.get("objective"), schema.classes).bounds
        return Suppression(self.k * bound)

    def transform_message(self, message: Message, ctx: Context) -> Message:
        """Replace the sums of small bins by 0."""
        if isinstance(message, OpenedBinSums):
            assert message.rows is not None
            node_rows = message.rows.sum(axis=1, keepdims=True)  # summed over all columns
            shown = (message.rows >= self.k) & (node_rows >= self.node * len(message.columns))
            return replace(message, sums=message.sums * shown[..., None])
        return super().transform_message(message, ctx)


@register.defense("min-leaf")
@dataclass(frozen=True)
class MinLeaf(Defense):
    """Grow no leaf below `k` rows: a split needs k of the client's rows on either side.

    Rows whose value of the split feature is missing are not counted, because the direction of
    missing values may send them to either side. A client with fewer than k rows shares no tree. The
    claim is structural. The numbers of rows in the leaves remain exact, and a leaf of one tree may
    contain the same rows as a leaf of another tree and a single further row.

    Parameters
    ----------
    k : int
        Smallest number of rows of a leaf, at least 2.
    """

    k: int = whole(2, default=5)

    guarantee = Structural()

    def channels(self, schema: Schema, parameters: Mapping[str, Any]) -> Channels:
        """State that splits into smaller leaves do not occur."""
        return {("leaves", "rows"): ConditionalOmission(f"no leaf has fewer than {self.k} rows")}

    @property
    def requirements(self) -> Requirements:
        """Smallest number of rows that clients leave on either side of a split."""
        return Requirements(min_leaf_rows=self.k)


_TO_SERVER = "the server grows the trees and needs this value; only clients are denied it"


@register.defense("split-only")
@dataclass(frozen=True)
class SplitOnly(ChannelDefense):
    """Keep G, H and gains where the trees are grown (Di Gennaro et al. 2025, Sec. 7).

    A server that grows trees from the clients' histograms broadcasts them without these statistics.
    A client that grows trees locally also sends them without statistics, so that the server does
    not learn the sums either. Predictions are identical to those of the undefended run, bit for
    bit. The claim is structural. The leaf values that remain still reveal most leaf counts
    (measured in `docs/`), so that no bound on the leakage is guaranteed.
    """

    guarantee = Structural()
    info = DefenseInfo(
        deployments={
            "flower": Deployed(
                "the ClientApp sends no sum_hessian, loss_changes and base_weights of its trees"
            )
        }
    )
    roles = frozenset({"server", "client"})
    protects = frozenset({Reveal.LABELS, Reveal.COUNTS, Reveal.FEATURES})
    handled_types = types_with(Trait.STATISTICS)
    permitted_types = permit_types_with(
        {
            Trait.START: "every prediction starts from it; it is the label mean of the federation",
            Trait.ANNOUNCED: "the splits are made of them, or the model ends there",
            Trait.SUMMARY: _TO_SERVER,
            Trait.SUMMED: _TO_SERVER,
            Trait.SUMMED_SECURELY: _TO_SERVER,
            Trait.COUNTED: _TO_SERVER,
            Trait.NETWORK: "not covered: the network is trained on the outputs of the trees, as "
            "without this defense",
        }
    )

    def channels(self, schema: Schema, parameters: Mapping[str, Any]) -> Channels:
        """State which fields are not sent."""
        # Every message type declares its statistics, so that a new type is covered without a
        # change.
        return {(kind, f): Removal() for kind in self.handled_types for f in kind.row_statistics}


@register.defense("mask-sum-hessian")
@dataclass(frozen=True)
class MaskSumHessian(ChannelDefense):
    """Overwrite ``sum_hessian`` with 1 in every tree a client sends, as NVFlare does.

    This is ``mask_sum_hessian`` of NVFlare's tree-based XGBoost executor, which was added as a
    defense against Di Gennaro et al. (2025). Like NVFlare, it does not change leaf values,
    ``base_weights`` and ``loss_changes``. Predictions do not change.

    The claim is structural and weak. The weights and the gain of a split give two linear equations
    for the hessian sums of its two children. An adversary that knows lambda and the learning rate
    can solve them, unless two leaves have equal weights (see `docs/`).
    """

    guarantee = Structural()
    info = DefenseInfo(
        deployments={"nvflare": Deployed("nothing: FedXGBTreeExecutor always does it")}
    )
    roles = frozenset({"client"})
    protects = frozenset({Reveal.COUNTS})
    handled_types = (ClientTrees,)
    permitted_types = permit_types_with(
        {Trait.NETWORK: "a network over the trees has no sums of hessians"}
    )

    def channels(self, schema: Schema, parameters: Mapping[str, Any]) -> Channels:
        """State that the hessian sums are replaced by the constant 1."""
        return {(ClientTrees, "sum_hessian"): Removal(1.0)}

"""ID-LMID: what a set of record ids tells of the labels is bounded (Takahashi et al. 2023, 5.2)."""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from fedtrees.core.channel import Change, Event
from fedtrees.core.defense import Context, Defense, Level, Place
from fedtrees.core.errors import UsageError, check_flag, check_positive
from fedtrees.core.guarantee import Guarantee, MutualInformation
from fedtrees.core.messages import Message, Reveal
from fedtrees.core.registry import register
from fedtrees.core.schema import Schema
from fedtrees.messages.vertical import ChosenSplits, NodeRows, RowStatistics, RowsToRoute
from fedtrees.privacy.node_information import node_information

_MOST_ROWS = 2**31  # a class has one row at least: more than the log of all rows hides nothing


@register.defense("id-lmid")
@dataclass(frozen=True)
class IDLMID(Defense):
    """Show a node only if membership in it tells little of the label.

    The bound on the mutual information of label and membership is the larger of the divergences of
    the label among the rows in the node, and among those outside, from that of all rows (Corollary
    1). A passive party's candidate is dropped if a child would exceed it; children of the active
    party's splits that exceed it are grown, with all below, by the active party alone. **The bound
    is that of each node by itself**: what all nodes tell together is not bounded by it.

    `xi`: Bound in nats, above 0; at least ``log(1 / p)``, p the share of the rarest class, it
    bounds nothing.
    `relative`: Whether `xi` is a share of that ``log(1 / p)`` instead.
    """

    xi: float
    relative: bool = False

    acts_through = frozenset({"candidates", "shown"})
    at: ClassVar[frozenset[str]] = frozenset({"active"})
    protects: ClassVar[frozenset[Reveal]] = frozenset({Reveal.LABELS})
    exempts: ClassVar[Mapping[type[Message], str]] = {
        NodeRows: "nodes above the bound are not among them",
        ChosenSplits: "children above the bound are no candidates",
        RowStatistics: "encrypted",
        RowsToRoute: "rows that nobody trained on",
    }
    requires: ClassVar[tuple[type[Message], ...]] = (NodeRows,)
    counts_classes: ClassVar[bool] = True
    tries: ClassVar[Mapping[str, tuple[float, ...]]] = {"xi": (0.3, 0.5, 0.8)}

    def __post_init__(self) -> None:
        check_positive("xi", self.xi)
        check_flag("relative", self.relative)
        most, what = (1.0, "a share") if self.relative else (math.log(_MOST_ROWS), "nats")
        if self.xi > most:
            raise UsageError(
                f"xi={self.xi:g}: no node tells more than {most:.3g} ({what}), so that it hides "
                "nothing; give less, such as 0.5"
            )

    def claim(self) -> Guarantee:
        """Return the bound."""
        return MutualInformation(self.xi, "share" if self.relative else "nats")

    def channels(self, schema: Schema, parameters: Mapping[str, Any]) -> Mapping[Place, Change]:
        """State that class counts decide what is shown."""
        least = Event("a node of which membership tells more of the label than the bound is hidden")
        return {("shown", "nodes"): least, ("candidates", "splits"): least}

    def bound(self, totals: NDArray[np.int64]) -> float:
        """Return the bound in nats, given the rows of each class."""
        if len(totals) < 2:
            raise UsageError("id-lmid bounds what ids tell of classes; the target is a number")
        if not self.relative:
            return self.xi
        return self.xi * float(np.log(totals.sum() / totals[totals > 0].min()))

    def shown(self, mask: NDArray[np.bool_], tree: int, ctx: Context) -> NDArray[np.bool_]:
        """Hide nodes above the bound."""
        level = _level(ctx)
        return mask & (node_information(level.counts, level.totals) <= self.bound(level.totals))

    def candidates(self, mask: NDArray[np.bool_], tree: int, ctx: Context) -> NDArray[np.bool_]:
        """Drop others' candidates with a child above the bound, wherever missing values go."""
        level = _level(ctx)
        widths, ends = np.diff(level.offsets), level.offsets[1:] - 1
        others = np.repeat(level.others, widths)
        assert level.left is not None
        left = level.left[:, others]
        valued = np.repeat(level.left[:, ends], widths, axis=1)[:, others]
        node = level.counts[:, None]
        bound, worst = self.bound(level.totals), np.zeros(left.shape[:2])
        for side in (left, left + (node - valued)):
            for child in (side, node - side):
                np.maximum(worst, node_information(child, level.totals), out=worst)
        mask[:, others] &= worst <= bound
        return mask


def _level(ctx: Context) -> Level:
    assert ctx.level is not None
    return ctx.level

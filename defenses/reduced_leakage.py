"""Defense `reduced-leakage`: the active party grows the first trees from its own columns.

Implements the Reduced-Leakage variant of SecureBoost (Cheng et al. 2021, Sec. 5).
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from fedtrees.core.channel import Change, Event
from fedtrees.core.defense import Context, Defense, Place
from fedtrees.core.deployment import Deployed
from fedtrees.core.errors import DataError, UsageError, check_whole
from fedtrees.core.guarantee import Guarantee, Structural
from fedtrees.core.messages import Message, Reveal
from fedtrees.core.registry import register
from fedtrees.core.schema import Schema
from fedtrees.messages.vertical import ChosenSplits, NodeRows, RowStatistics, RowsToRoute

_LATER = "of later trees, whose residuals tell less"


@register.defense("reduced-leakage")
@dataclass(frozen=True)
class ReducedLeakage(Defense):
    """Grow the first trees from the active party's columns, and do not reveal their nodes.

    The gradients of the first tree determine the labels. Later gradients are residuals, which
    contain less information about them.

    Parameters
    ----------
    trees : int
        Number of boosting rounds, or of trees of a forest, that only the active party grows, at
        least 1.
    """

    trees: int = 1

    acts_through = frozenset({"shown"})
    deployed: ClassVar[Mapping[str, Deployed]] = {
        "secretflow": Deployed("first_tree_with_label_holder_feature=True", only={"trees": 1})
    }
    at: ClassVar[frozenset[str]] = frozenset({"active"})
    protects: ClassVar[frozenset[Reveal]] = frozenset({Reveal.LABELS})
    exempts: ClassVar[Mapping[type[Message], str]] = {
        NodeRows: _LATER,
        ChosenSplits: _LATER,
        RowStatistics: "encrypted",
        RowsToRoute: "rows that nobody trained on",
    }
    requires: ClassVar[tuple[type[Message], ...]] = (NodeRows,)

    def __post_init__(self) -> None:
        check_whole("trees", self.trees, 1)

    def check(self, roles: Mapping[str, str], parameters: Mapping[str, Any]) -> None:
        """Refuse more rounds than the protocol has trees. Raises `UsageError`."""
        if self.trees > parameters["trees"]:
            raise UsageError(
                f"reduced-leakage[trees={self.trees}] of {parameters['trees']} trees; give at most "
                "as many as are grown"
            )

    def claim(self) -> Guarantee:
        """Return a structural claim: the first trees are never revealed."""
        return Structural()

    def channels(self, schema: Schema, parameters: Mapping[str, Any]) -> Mapping[Place, Change]:
        """State that nodes of the first trees are not revealed."""
        return {("shown", "nodes"): Event("nodes of the first trees are hidden")}

    def shown(self, mask: NDArray[np.bool_], tree: int, ctx: Context) -> NDArray[np.bool_]:
        """Hide all nodes of the first trees. `mask` is bool, shape (n_nodes,).

        It raises `DataError` if the active party has no columns.
        """
        if ctx.columns is not None and not len(ctx.columns):
            raise DataError(
                f"{self.name!r} grows trees from {ctx.party!r}'s columns alone, and it holds none"
            )
        assert ctx.level is not None
        # Hiding the root of a tree makes the protocol grow it without the passive parties.
        return mask & (ctx.level.round >= self.trees)

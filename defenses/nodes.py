"""Defenses of vertical training that reveal the row ids of fewer nodes.

- `id-lmid` (Takahashi et al. 2023, Sec. 5.2): the active party reveals only row ids of nodes with a
  small leakage. `fedtrees.privacy.accounting` bounds the mutual information of one node.
- `reduced-leakage` (Cheng et al. 2021, Sec. 5): the active party grows the first trees from its
  columns without the passive parties.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from fedtrees.core.channel import ConditionalOmission
from fedtrees.core.defense import (
    Channels,
    Context,
    Defense,
    DefenseInfo,
    Deployed,
    OpenNodes,
    Requirements,
)
from fedtrees.core.errors import DataError, UsageError
from fedtrees.core.guarantee import Guarantee, MutualInformation, Structural
from fedtrees.core.messages import Message, Reveal
from fedtrees.core.parameters import flag, positive, whole
from fedtrees.core.registry import register
from fedtrees.core.schema import Schema
from fedtrees.messages.vertical import ChosenSplits, NodeRows, RowStatistics, RowsToRoute
from fedtrees.privacy.accounting import node_information

# The rarest class has at least one row, so that the information is at most the log of the number of
# rows. A larger bound would not hide any node.
_MOST_ROWS = 2**31


@register.defense("id-lmid")
@dataclass(frozen=True)
class IDLMID(Defense):
    """Reveal the row ids of a node only if they contain little information about the labels.

    The bound on the mutual information of label and membership is the larger one of two
    divergences: that of the label distribution of the rows in the node, and that of the rows
    outside, both from the label distribution of all rows (Takahashi et al. 2023, Corollary 1).

    A candidate split of a passive party is dropped if the bound of one of its children would exceed
    `xi`. If the children of a split of the active party exceed `xi`, the active party grows them,
    and everything below, without the passive parties. **The bound holds for each node separately.**
    It does not bound the information of all nodes together.

    Parameters
    ----------
    xi : float
        Bound on the mutual information, in nats, above 0. With p the share of the rarest class, a
        value of ``log(1 / p)`` or more does not hide any node.
    relative : bool
        Interpret `xi` as a fraction of ``log(1 / p)``.
    """

    xi: float = positive()
    relative: bool = flag(False)

    roles: ClassVar[frozenset[str]] = frozenset({"active"})
    protects: ClassVar[frozenset[Reveal]] = frozenset({Reveal.LABELS})
    permitted_types: ClassVar[Mapping[type[Message], str]] = {
        NodeRows: "nodes above the bound are not among them",
        ChosenSplits: "children above the bound are no candidates",
        RowStatistics: "encrypted",
        RowsToRoute: "rows that were not used for training",
    }
    applies_to: ClassVar[tuple[type[Message], ...]] = (NodeRows,)
    requirements = Requirements(class_counts=True)
    info = DefenseInfo(bench_grid={"xi": (0.3, 0.5, 0.8)})

    def __post_init__(self) -> None:
        super().__post_init__()
        largest, unit = (1.0, "a share") if self.relative else (math.log(_MOST_ROWS), "nats")
        if self.xi > largest:
            raise UsageError(
                f"xi={self.xi:g}: no node reveals more than {largest:.3g} ({unit}), so "
                "that nothing is hidden; give a smaller value, such as 0.5"
            )

    def claim(self) -> Guarantee:
        """Return the bound on the mutual information of each node."""
        return MutualInformation(self.xi, "share" if self.relative else "nats")

    def channels(self, schema: Schema, parameters: Mapping[str, Any]) -> Channels:
        """State that class counts decide which nodes and splits are revealed."""
        event = ConditionalOmission(
            "a node is hidden if membership in it reveals more about the label than the bound"
        )
        return {("visible_nodes", "nodes"): event, ("allowed_splits", "splits"): event}

    def bound(self, totals: NDArray[np.int64]) -> float:
        """Return the bound in nats for the numbers of training rows by class, shape (K,).

        It raises `UsageError` if the target is numeric, because the bound is about classes.
        """
        if len(totals) < 2:
            raise UsageError(
                "id-lmid limits the information of record ids about classes, but the target "
                "is a number"
            )
        if not self.relative:
            return self.xi
        # log(1 / p) with p the share of the rarest class that occurs.
        return self.xi * float(np.log(totals.sum() / totals[totals > 0].min()))

    def visible_nodes(self, mask: NDArray[np.bool_], tree: int, ctx: Context) -> NDArray[np.bool_]:
        """Hide the nodes whose bound exceeds `xi`.

        Parameters
        ----------
        mask : bool array, shape (n_nodes,)
            Nodes that would be revealed.
        tree : int
            Number of the tree. Not used.
        ctx : Context
            ``ctx.open_nodes`` contains the class counts of the nodes.

        Returns
        -------
        mask : bool array, shape (n_nodes,)
        """
        level = _level(ctx)
        return mask & (node_information(level.counts, level.totals) <= self.bound(level.totals))

    def allowed_splits(self, mask: NDArray[np.bool_], tree: int, ctx: Context) -> NDArray[np.bool_]:
        """Drop candidate splits of passive parties if the bound of a child exceeds `xi`.

        The children are computed for both directions of missing values, and the larger bound
        counts.

        Parameters
        ----------
        mask : bool array, shape (n_nodes, total_bins)
            Splits that may be chosen. Changed in place.
        tree : int
            Number of the tree. Not used.
        ctx : Context
            ``ctx.open_nodes`` contains the class counts up to every candidate.

        Returns
        -------
        mask : bool array, shape (n_nodes, total_bins)
        """
        level = _level(ctx)
        widths, ends = np.diff(level.offsets), level.offsets[1:] - 1
        of_passive = np.repeat(level.passive_columns, widths)
        assert level.left is not None
        # The last candidate of a column has all rows with a value on its left side.
        left = level.left[:, of_passive]
        with_value = np.repeat(level.left[:, ends], widths, axis=1)[:, of_passive]
        node = level.counts[:, None]
        bound, largest_bound = self.bound(level.totals), np.zeros(left.shape[:2])
        # Rows with a missing value can go to the left or to the right child.
        for side in (left, left + (node - with_value)):
            for child in (side, node - side):
                np.maximum(largest_bound, node_information(child, level.totals), out=largest_bound)
        mask[:, of_passive] &= largest_bound <= bound
        return mask


def _level(ctx: Context) -> OpenNodes:
    assert ctx.open_nodes is not None
    return ctx.open_nodes


_LATER = "of later trees, whose residuals reveal less"


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

    trees: int = whole(1, default=1)

    info = DefenseInfo(
        deployments={
            "secretflow": Deployed("first_tree_with_label_holder_feature=True", only={"trees": 1})
        }
    )
    roles: ClassVar[frozenset[str]] = frozenset({"active"})
    protects: ClassVar[frozenset[Reveal]] = frozenset({Reveal.LABELS})
    permitted_types: ClassVar[Mapping[type[Message], str]] = {
        NodeRows: _LATER,
        ChosenSplits: _LATER,
        RowStatistics: "encrypted",
        RowsToRoute: "rows that were not used for training",
    }
    applies_to: ClassVar[tuple[type[Message], ...]] = (NodeRows,)

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

    def channels(self, schema: Schema, parameters: Mapping[str, Any]) -> Channels:
        """State that nodes of the first trees are not revealed."""
        return {
            ("visible_nodes", "nodes"): ConditionalOmission("nodes of the first trees are hidden")
        }

    def visible_nodes(self, mask: NDArray[np.bool_], tree: int, ctx: Context) -> NDArray[np.bool_]:
        """Hide all nodes of the first trees. `mask` is bool, shape (n_nodes,).

        It raises `DataError` if the active party has no columns.
        """
        if ctx.columns is not None and not len(ctx.columns):
            raise DataError(
                f"{self.name!r} trains trees on the columns of {ctx.party!r} only, which has none"
            )
        assert ctx.open_nodes is not None
        # Hiding the root of a tree makes the protocol grow it without the passive parties.
        return mask & (ctx.open_nodes.round >= self.trees)

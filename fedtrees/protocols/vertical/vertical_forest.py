"""Protocol `vertical-forest`: a vertical random forest with encrypted labels."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedtrees.core.defense import Requirements
from fedtrees.core.errors import DataError
from fedtrees.core.local_data import LocalData
from fedtrees.core.network import Network
from fedtrees.core.registry import register
from fedtrees.core.schema import Schema
from fedtrees.crypto.packing import Slots
from fedtrees.protocols.settings import ACTIVE, PASSIVE, class_count
from fedtrees.protocols.vertical.active import Active, TreeInProgress, complete_counts
from fedtrees.protocols.vertical.passive import Limits, Passive
from fedtrees.protocols.vertical.protocol import VerticalModel, VerticalProtocol
from fedtrees.trees.forest.grower import ForestGrower, class_totals, draw_rows
from fedtrees.trees.forest.params import ForestParams
from fedtrees.trees.forest.random_forest import ClassTree, RandomForest
from fedtrees.trees.partition import RowPartition


class ForestActive(Active):
    """The active party of `vertical-forest`."""

    params: VerticalForest

    def train(self, net: Network) -> VerticalModel:
        """Grow tree by tree, level by level."""
        self.n_classes = class_count(self.schema)
        assert self.local_data.y is not None
        self.labels = self.local_data.y.astype(np.int64)
        self.settle(net)
        grown = [self.grow(net, t) for t in range(self.params.trees)]
        trees, rows = zip(*grown, strict=True)
        return VerticalModel(RandomForest(trees), tuple(self.owner), rows, self.labels)

    def grow(self, net: Network, number: int) -> tuple[ClassTree, RowPartition]:
        """Grow one tree on the rows drawn for it."""
        randomness = self.streams.rng("rows", number)
        weights = draw_rows(len(self.labels), self.params, randomness)
        rows = np.flatnonzero(weights).astype(np.int32)
        one_hot = np.zeros((len(weights), self.n_classes), dtype=np.int64)
        one_hot[rows, self.labels[rows]] = weights[rows]
        # The bootstrap can draw a row several times, so that its one-hot label exceeds 1.
        limit = int(weights.sum()) if self.params.bootstrap else 1
        tree = self.begin(net, number, number, rows, one_hot, Slots(limit, len(rows)))
        # The class totals of the root follow from the labels, without a passive party.
        totals = class_totals(self.labels, weights, self.n_classes)
        usable = np.sort(np.concatenate(list(tree.columns.values()))).astype(np.int64)
        # The features of every node are drawn from this key, as in the centralised engine.
        key = int(self.streams.rng("nodes", number).integers(0, 2**32))
        grower = ForestGrower(self.cuts, self.params, totals, usable, key)
        allowed: dict[int, NDArray[np.bool_]] | None = None
        while len(grower.nodes):
            # The grower can ask for the same nodes again with further features.
            if int(grower.nodes[0]) not in tree.classes:
                allowed = self.count_classes(net, tree, grower.nodes)
            counts = self.select_requested(grower, tree.classes)
            mask = None if allowed is None else self.select_requested(grower, allowed)
            chosen = grower.choose_splits(counts, mask)
            if len(chosen):
                self.split(net, tree, chosen)
        return grower.finish(), tree.rows

    def count_classes(
        self, net: Network, tree: TreeInProgress, nodes: NDArray[np.int32]
    ) -> dict[int, NDArray[np.bool_]] | None:
        """Count the classes of a level over all bins, and return the permitted splits by node.

        Only the smaller of two siblings is requested. The counts of the larger one are the
        difference to those of the parent.

        Parameters
        ----------
        net : Network
            Network of the run.
        tree : TreeInProgress
            State of the tree. Its `classes` are set.
        nodes : int32 array, shape (k,)
            Open nodes of the level.

        Returns
        -------
        allowed : dict of int to bool array, shape (total_bins,), or None
            None if all splits are permitted.
        """
        open_nodes = requested = nodes
        if nodes[0] != 0:
            left = np.unique(np.where(nodes % 2 == 1, nodes, nodes - 1)).astype(np.int32)
            open_nodes = np.stack([left, left + 1], axis=1).reshape(-1)
            sizes = np.diff(tree.rows.ranges(open_nodes), axis=1).reshape(-1, 2)
            requested = np.where(sizes[:, 1] < sizes[:, 0], left + 1, left).astype(np.int32)
        sums, allowed = self.sums(net, tree, open_nodes, requested)
        if not net.defense.requirements.class_counts:
            tree.classes = complete_counts(tree, open_nodes, requested, sums)
        return None if allowed is None else dict(zip(open_nodes.tolist(), allowed, strict=True))

    def select_requested(
        self, grower: ForestGrower, known_rows: Mapping[int, NDArray[Any]]
    ) -> NDArray[Any]:
        """Select the arrays that the grower requested, one node and feature after the other.

        Parameters
        ----------
        grower : ForestGrower
            Grower with open nodes and their drawn features.
        known_rows : mapping of int to array
            Array over the bins of all columns, by node.
        """
        starts, template = self.cuts.offsets, next(iter(known_rows.values()))
        parts = [template[:0]]
        for node, begin, end in zip(
            grower.nodes.tolist(), grower.offsets[:-1], grower.offsets[1:], strict=True
        ):
            node_array = known_rows[node]
            parts += [node_array[starts[f] : starts[f + 1]] for f in grower.features[begin:end]]
        return np.concatenate(parts)


@register.protocol("vertical-forest")
@dataclass(frozen=True, kw_only=True)
class VerticalForest(VerticalProtocol, ForestParams):
    """A vertical random forest with encrypted one-hot labels (Takahashi et al. 2023, Sec. 2).

    The passive parties add the ciphertexts over the bins of their columns. The active party
    decrypts the counts and chooses the split with the smallest Gini impurity. The owner of the
    split column answers which rows go left. The trees equal those of the centralised engine with
    the same row and column samples. Default values are those of the authors' code.

    Parameters
    ----------
    max_bin : int
        Number of candidate splits of a column, quantiles over all rows. With 65534 every value is a
        candidate, as in that code.
    tree_features : {"sqrt", "log2"}, int, float or None
        Number or share of its columns that each party draws for each tree.
    max_samples : float or None
        Share of the rows that a tree is trained on. The passive parties receive only these rows.
    """

    trees: int = 5
    max_depth: int | None = 6
    max_features: str | int | float | None = None
    tree_features: str | int | float | None = 0.8
    bootstrap: bool = False
    max_samples: float | None = 0.8
    max_bin: int = 32
    party_types = {ACTIVE: ForestActive, PASSIVE: Passive}

    def __post_init__(self) -> None:
        super().__post_init__()
        self.check_whole_levels()

    def check(self, schema: Schema) -> None:
        """Refuse a target without classes."""
        class_count(schema)

    def check_local_data(self, name: str, local_data: LocalData, schema: Schema) -> None:
        """Refuse sample weights."""
        super().check_local_data(name, local_data, schema)
        if local_data.weight is not None:
            raise DataError("random forests count rows and take no sample weights; drop them")

    @property
    def column_share(self) -> str | int | float | None:
        """Number or share of its columns that each party draws for a tree. None for all."""
        return self.tree_features

    def limits(self, schema: Schema, requirements: Requirements) -> Limits:
        """Return the limits within which a passive party answers."""
        return Limits(self.trees, self.depth, 0, class_count(schema))

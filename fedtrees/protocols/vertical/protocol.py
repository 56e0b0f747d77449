"""Parameters, messages and encryption that `secureboost` and `vertical-forest` share.

The module also contains the active party's share of a vertical model, because no party of such a
training has all thresholds.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from fedtrees.core.composition import Composition
from fedtrees.core.errors import ProtocolError
from fedtrees.core.local_data import LocalData
from fedtrees.core.messages import EncryptedComputation
from fedtrees.core.parameters import checked, one_of
from fedtrees.core.reasons import Reason
from fedtrees.core.schema import Schema
from fedtrees.core.view import View
from fedtrees.crypto.bin_sums import BinSumEvaluator, BinSumKeyOwner, IdealBinSums
from fedtrees.crypto.costs import DEFAULT_BITS, check_key_bits
from fedtrees.crypto.modes import MODES, create_encrypted_computation
from fedtrees.messages.vertical import (
    BinCounts,
    BinCountsRequest,
    BinSums,
    ChosenSplits,
    HeldModel,
    NodeRows,
    OpenedBinSums,
    OwnRowStatistics,
    RootRows,
    RoutedRows,
    RowStatistics,
    TreeColumns,
    mean_scores,
    summed_scores,
    visible_nodes,
)
from fedtrees.protocols.settings import ACTIVE, VerticallyPartitioned
from fedtrees.protocols.vertical.local_bins import LocalBins
from fedtrees.trees.boosted.forest import Forest
from fedtrees.trees.boosted.multi_output import MultiOutputForest
from fedtrees.trees.forest.random_forest import RandomForest
from fedtrees.trees.partition import RowPartition
from fedtrees.trees.routing import NODE_KINDS, join_nodes


@dataclass(frozen=True, kw_only=True)
class VerticalProtocol(VerticallyPartitioned):
    """Base class of vertical tree protocols with encrypted row statistics.

    Parameters
    ----------
    crypto : {"ideal", "real", "phe"}
        Protection of row statistics: by the ideal functionality, or under a Paillier key of the
        active party. Models, views and byte counts are the same. ``phe`` is the same encryption,
        computed by python-paillier, which is slower.
    key_bits : {1024, 2048, 3072}
        Length of the key. 1024 is weak and only for comparison.
    """

    crypto: str = one_of(MODES, default="ideal")
    key_bits: int = checked(check_key_bits, DEFAULT_BITS)

    released: ClassVar[bool] = False
    info = replace(
        VerticallyPartitioned.info,
        capabilities=frozenset({"allowed_splits", "visible_nodes"}),
        message_types=(
            BinCountsRequest, BinCounts, RootRows, TreeColumns, RowStatistics,
            OwnRowStatistics, NodeRows, BinSums, OpenedBinSums, ChosenSplits,
            RoutedRows, HeldModel,
        ),
    )  # fmt: skip

    def missing_requirement(self, schema: Schema, defense: Composition) -> Reason | None:
        """Return why a defense cannot change sums before their encryption, None if it can."""
        for part in defense.parts:
            if OpenedBinSums in part.handled_types and self.crypto != "ideal":
                return Reason("sums-encrypted", subject=part.name, crypto=self.crypto)
        return super().missing_requirement(schema, defense)

    def local_bins(self, local_data: LocalData) -> LocalBins:
        """Return the candidate splits of a party's columns."""
        return LocalBins(local_data, self.parameters["max_bin"])

    def encrypted_computation(self) -> EncryptedComputation:
        """Return the functions that encrypt, add and decrypt in one run."""
        sides = IdealBinSums, BinSumKeyOwner, BinSumEvaluator
        return create_encrypted_computation(self.crypto, *sides, self.key_bits, ACTIVE)

    def visible_node_rows(self, view: View) -> Iterator[NDArray[np.int32]]:
        """Yield the rows of all visible roots, inner nodes and leaves."""
        return (rows for _, _, rows in visible_nodes(view))


@dataclass(frozen=True, eq=False)
class VerticalModel:
    """Trees as the active party knows them.

    Attributes
    ----------
    forest : Forest, MultiOutputForest or RandomForest
        Features are positions in the schema. At a split of a passive party, the threshold b + 1
        represents bin b, because the active party does not know the value.
    owners : tuple of str
        Owner of each column.
    rows : tuple of RowPartition
        Training rows of the nodes of each tree. The active party moved them in training. Empty for
        `federboost-v`.
    y : array, shape (n,)
        Labels that the trees were trained on, after defenses changed them.
    grafts : mapping of (int, int) to object
        By tree and node: a tree over the active party's columns that replaces the outputs of all
        rows in that node. The routing of rows is unchanged.
    """

    forest: Forest | MultiOutputForest | RandomForest
    owners: tuple[str, ...]
    rows: tuple[RowPartition, ...]
    y: NDArray[Any]
    grafts: Mapping[tuple[int, int], Any] = field(default_factory=dict)

    @property
    def trees(self) -> tuple[Any, ...]:
        """Trees of the forest."""
        return self.forest.trees

    def __len__(self) -> int:
        return len(self.forest.trees)

    def predict(self, X: NDArray[np.float32]) -> NDArray[np.float64]:
        """Raise `ProtocolError`, because a prediction needs all parties."""
        raise ProtocolError(
            "no party has the complete model; its parties predict together: `Training.predict`"
        )

    def scores(
        self, leaves: NDArray[np.int32], X: NDArray[np.float32], columns: NDArray[np.intp]
    ) -> NDArray[np.float64]:
        """Return the predictions of rows from the leaves that they reach.

        Parameters
        ----------
        leaves : int32 array, shape (n, T)
            Leaf of every row in every tree.
        X : float32 array, shape (n, c)
            The active party's columns of the rows. Only grafts read them.
        columns : intp array, shape (c,)
            Positions of these columns in the schema.

        Returns
        -------
        scores : float64 array, shape (n,) or (n, K)
        """
        outputs = [self._outputs(t, leaves[:, t], X, columns) for t in range(len(self))]
        if isinstance(self.forest, RandomForest):
            return mean_scores(outputs)
        return summed_scores(outputs, self.forest.base_margin, self.forest.objective)

    def as_message(self) -> HeldModel:
        """Return the active party's knowledge of the trees, without grafts."""
        forest = self.forest
        value, objective, margin = "probability", "", np.zeros(0, dtype=np.float32)
        if not isinstance(forest, RandomForest):
            value, objective, margin = "value", forest.objective.name, forest.base_margin
        arrays = join_nodes(self.trees, {**NODE_KINDS, value: np.float32})
        return HeldModel(
            objective=objective,
            base_margin=margin,
            sizes=np.array([len(t) for t in self.trees], dtype=np.int64),
            value=arrays.pop(value),
            **arrays,
        )

    def _outputs(
        self, t: int, leaf: NDArray[np.int32], X: NDArray[np.float32], columns: NDArray[np.intp]
    ) -> NDArray[Any]:
        """Return the outputs of a tree for rows, including its grafts."""
        tree = self.trees[t]
        values = tree.probability if isinstance(self.forest, RandomForest) else tree.value
        output: NDArray[Any] = values[leaf]
        for (graft_tree, node), graft in self.grafts.items():
            if graft_tree == t:
                # The graft replaces the outputs of all leaves below its node.
                below = np.isin(leaf, descendants(tree, node))
                # A graft reads columns of the active party only, so that the other columns can be
                # missing.
                wide = np.full((int(below.sum()), len(self.owners)), np.nan, dtype=np.float32)
                wide[:, columns] = X[below]
                output[below] = graft(wide)
        return output


def descendants(tree: Any, node: int) -> list[int]:
    """Return a node and all nodes below it."""
    nodes = [node]
    for inner in nodes:
        if tree.feature[inner] >= 0:
            nodes += [int(tree.left[inner]), int(tree.right[inner])]
    return nodes

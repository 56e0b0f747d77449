"""Protocol `local-forests`: every client grows local trees, the server pools them."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from fedtrees.core.composition import Composition
from fedtrees.core.errors import DataError
from fedtrees.core.local_data import LocalData
from fedtrees.core.network import Network
from fedtrees.core.party import Party, handles
from fedtrees.core.registry import register
from fedtrees.core.requests import Once
from fedtrees.core.schema import Schema, Table
from fedtrees.messages.forests import LocalForest, LocalForestRequest, PooledForest
from fedtrees.protocols.base import Coordinator
from fedtrees.protocols.settings import ForestProtocol, checked_rows, class_count
from fedtrees.trees.cut_points import quantile_cuts
from fedtrees.trees.forest.grower import grow_random_forest, rows_of_tree
from fedtrees.trees.forest.random_forest import RandomForest, keep_large_leaves

_FIELDS = ("sizes", "feature", "threshold", "left", "default_left", "probability", "counts")


class GrowingClient(Party):
    """A client that grows a forest on its local rows, with local cut points and randomness.

    Parameters
    ----------
    name : str
        Name of the client.
    data : Table
        Local rows.
    protocol : LocalForests
        Public parameters.
    n_classes : int
        Number of classes.
    least_leaf_rows : int
        Smallest number of distinct rows on each side of a split, as a defense requires.
    """

    role = "client"

    def __init__(
        self, name: str, data: Table, protocol: LocalForests, n_classes: int, least_leaf_rows: int
    ) -> None:
        super().__init__(name)
        self.data, self.params = checked_rows(data, n_classes), protocol
        self.n_classes, self.least_leaf_rows = n_classes, least_leaf_rows
        self.asked = Once()

    @handles(LocalForestRequest)
    def grow(self, message: LocalForestRequest) -> LocalForest:
        """Answer once with a forest. It is empty if the client has too few rows for one leaf."""
        self.asked.take(message)
        X, y = self.data.X, self.data.y
        # The rows of every tree are drawn first, to check that each tree has enough rows for a
        # leaf.
        drawn = [
            rows_of_tree(len(X), self.params, self.streams, t) for t in range(self.params.trees)
        ]
        if not len(X) or min(int((d > 0).sum()) for d in drawn) < self.least_leaf_rows:
            return no_trees(self.n_classes)
        cuts = quantile_cuts(X, self.params.max_bin)
        min_rows = max(self.params.min_samples_leaf, self.least_leaf_rows)
        forest = grow_random_forest(
            X,
            y,
            cuts,
            replace(self.params, min_samples_leaf=min_rows),
            n_classes=self.n_classes,
            seed=self.streams,
        )
        grown = forest.trees
        # The bootstrap can draw a row twice, but the defense counts distinct rows.
        if self.least_leaf_rows and self.params.bootstrap:
            parts = zip(grown, forest.apply(X).T, drawn, strict=True)
            grown = tuple(keep_large_leaves(t, a[d > 0], min_rows) for t, a, d in parts)
        trees = []
        for tree in grown:
            leaves = tree.leaves
            assert tree.counts is not None
            counts = tree.counts[leaves] if self.params.leaf_counts else None
            trees.append(tree.released(tree.probability[leaves], counts))
        return LocalForest(**RandomForest(tuple(trees)).to_arrays())

    @handles(PooledForest, **dict.fromkeys(_FIELDS, "not read"))
    def end(self, message: PooledForest) -> None:
        """Receive the ensemble. It does not change the client's state."""


class PoolingServer(Coordinator):
    """The server. It requests the clients' forests and broadcasts the ensemble."""

    def __init__(self, schema: Schema) -> None:
        super().__init__("server")
        class_count(schema)

    def train(self, net: Network) -> RandomForest:
        """Request, pool and broadcast the forests."""
        why = "the trees of each client, which are pooled"
        parts = net.request("client", LocalForestRequest(), why=why)
        sent = net.send("client", pool(parts), why="the pooled trees: the model")
        return RandomForest.from_arrays(vars(sent))


@register.protocol("local-forests")
@dataclass(frozen=True, kw_only=True)
class LocalForests(ForestProtocol):
    """Hauschild et al. (2022): clients grow forests on their local rows, the server pools them.

    `trees` is the number of trees of each client. The ensemble has ``trees`` times the number of
    clients with rows, all with equal weight. The clients do not agree on common cut points, so that
    every threshold is computed from values of a single client.
    """

    info = replace(
        ForestProtocol.info,
        message_types=(LocalForestRequest, LocalForest, PooledForest),
        capabilities=frozenset({"min_leaf_rows"}),
    )

    def create_party(
        self,
        name: str,
        role: str,
        local_data: LocalData | None,
        schema: Schema,
        defense: Composition,
    ) -> PoolingServer | GrowingClient:
        """Create the server or a client."""
        if local_data is None:
            return PoolingServer(schema)
        least = defense.requirements.min_leaf_rows
        return GrowingClient(name, local_data.table, self, class_count(schema), least)


def no_trees(n_classes: int) -> LocalForest:
    """Return the reply of a client without enough rows."""
    return LocalForest(
        sizes=np.zeros(0, np.int64),
        feature=np.zeros(0, np.int32),
        threshold=np.zeros(0, np.float32),
        left=np.zeros(0, np.int32),
        default_left=np.zeros(0, np.bool_),
        probability=np.zeros((0, n_classes)),
    )


def pool(parts: list) -> PooledForest:  # type: ignore[type-arg]
    """Return the trees of all clients, in client order.

    Raises
    ------
    DataError
        If no client sent a tree.
    """
    parts = [p for p in parts if len(p.sizes)]
    if not parts:
        raise DataError("no client sent a tree; local-forests needs one with rows")
    # A defense may have removed the counts of some clients.
    shared = [f for f in _FIELDS if all(getattr(p, f) is not None for p in parts)]
    return PooledForest(**{f: np.concatenate([getattr(p, f) for p in parts]) for f in shared})

"""Protocol `local-forests`: every client grows local trees, the server pools them."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from fedtrees.core.errors import DataError
from fedtrees.core.network import Network
from fedtrees.core.party import Party, handles, ignores
from fedtrees.core.registry import register
from fedtrees.core.requests import Once
from fedtrees.messages.forests import LocalForest, LocalForestRequest, PooledForest
from fedtrees.protocols.base import Coordinator, Seat
from fedtrees.protocols.settings import ForestProtocol, checked_rows, class_count
from fedtrees.trees.cut_points import quantile_cuts
from fedtrees.trees.forest.grower import grow_random_forest, rows_of_tree
from fedtrees.trees.forest.random_forest import FOREST_DTYPES, RandomForest, keep_large_leaves
from fedtrees.trees.routing import join_nodes

_FIELDS = {"sizes": np.int64, **FOREST_DTYPES}


class GrowingClient(Party):
    """A client that grows a forest on its local rows, with local cut points and randomness.

    Parameters
    ----------
    seat : Seat
        Name, local rows and defenses of the client.
    protocol : LocalForests
        Public parameters.
    """

    role = "client"

    def __init__(self, seat: Seat, protocol: LocalForests) -> None:
        super().__init__(seat.name)
        self.params, self.n_classes = protocol, class_count(seat.schema)
        self.data = checked_rows(seat.table, self.n_classes)
        self.least_leaf_rows = seat.defense.requirements.min_leaf_rows
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

    end = ignores(PooledForest)


class PoolingServer(Coordinator):
    """The server. It requests the clients' forests and broadcasts the ensemble."""

    def __init__(self, seat: Seat, protocol: LocalForests) -> None:
        super().__init__(seat.name)

    def train(self, net: Network) -> RandomForest:
        """Request, pool and broadcast the forests."""
        reason = "the trees of each client, which are pooled"
        parts = net.request("client", LocalForestRequest(), reason=reason)
        sent = net.send("client", pool(parts), reason="the pooled trees: the model")
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
    party_types = {"server": PoolingServer, "client": GrowingClient}


def no_trees(n_classes: int) -> LocalForest:
    """Return the reply of a client without enough rows."""
    nothing: dict[str, Any] = {"probability": np.zeros((0, n_classes)), "counts": None}
    return LocalForest(**join_nodes((), _FIELDS) | nothing)


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
    return PooledForest(**join_nodes(parts, _FIELDS))

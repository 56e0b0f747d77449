"""The model that FedXGBllr ends with, and how it is told."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from fedtrees.core.errors import DataError
from fedtrees.core.messages import Reveal, Trait
from fedtrees.messages.packing import unpack
from fedtrees.messages.shared_trees import ClientModels
from fedtrees.neural.tree_outputs import RatesNetwork
from fedtrees.trees.boosted.forest import Tree
from fedtrees.trees.boosted.intercept import start_margin
from fedtrees.trees.boosted.losses import Objective, named_objective
from fedtrees.trees.routing import Routed, Routes

#: Rows whose hidden units are kept at once.
_BLOCK = 4096


@dataclass(frozen=True, eq=False, kw_only=True)
class TreeNetworkModel(ClientModels):
    """Every client's own model, and the network over the outputs of their trees.

    `weights`: float32 array, shape (parameters,). As
    `fedtrees.neural.tree_outputs.RatesNetwork.split` takes them.
    """

    traits: ClassVar[frozenset[Trait]] = frozenset({Trait.STATISTICS, Trait.LEAVES})
    discloses: ClassVar[frozenset[Reveal]] = ClientModels.discloses
    objective: str
    weights: NDArray[np.float32]

    def model(self) -> TreeNetwork:
        """Return the model.

        Raises `DataError` if the arrays do not fit one another.
        """
        return TreeNetwork(self)


def tree_outputs(models: ClientModels, X: NDArray[Any]) -> NDArray[np.float32]:
    """Return what every tree says of rows, float32, shape (n, models, trees).

    Leaf values: log-odds or values with the learning rate in them, and without base scores. (In
    the authors' code every tree's output has its model's base score in it.)

    Raises `DataError` if the models have different numbers of trees, or X is narrower than the
    features they use.
    """
    return leaf_values(unpack(models), len(models.owner), Routes.of(unpack(models)), X)


def leaf_values(
    trees: list[Tree] | tuple[Tree, ...], models: int, routes: Routes, X: NDArray[Any]
) -> NDArray[np.float32]:
    """Return the leaf values of rows, float32, shape (n, models, trees of each)."""
    leaves = routes.apply(X)
    found = np.empty((len(leaves), len(trees)), dtype=np.float32)
    for t, tree in enumerate(trees):
        found[:, t] = tree.value[leaves[:, t]]
    return found.reshape(len(found), models, len(trees) // models)


def start_of(models: ClientModels, objective: Objective) -> np.float32:
    """Return what is added to the network's output: the mean base score, as a margin.

    Base scores are averaged in their own units, so that a client of one class (0 or 1) moves the
    log-odds no further than its share.
    """
    mean = np.asarray(np.mean(models.base_score, axis=0, dtype=np.float64), dtype=np.float32)
    return np.float32(start_margin(objective, mean)[0])


@dataclass(frozen=True, eq=False)
class TreeNetwork(Routed):
    """Trees of several clients and a network over their outputs; it predicts without torch.

    `told`: What it is made of.
    """

    told: TreeNetworkModel

    def __post_init__(self) -> None:
        counts = self.told.trees
        if not len(counts) or (counts != counts[0]).any() or counts.sum() != len(self.told.sizes):
            raise DataError(f"models of {counts.tolist()} trees; each must have as many")
        self.network  # noqa: B018 - refuses weights that do not fit

    @cached_property
    def trees(self) -> tuple[Tree, ...]:  # type: ignore[override]
        """All trees, model after model."""
        return tuple(unpack(self.told))

    @cached_property
    def objective(self) -> Objective:
        """What turns the output into a prediction."""
        return named_objective(self.told.objective, 1)

    @cached_property
    def network(self) -> RatesNetwork:
        """The sizes of the network."""
        models, trees = len(self.told.trees), int(self.told.trees[0])
        return RatesNetwork.of(models, trees, len(self.told.weights))

    def margin(self, X: NDArray[Any]) -> NDArray[np.float32]:
        """Return log-odds or values, float32, shape (n,)."""
        X = self._routes.rows(X)
        start = start_of(self.told, self.objective)
        found = np.empty(len(X), dtype=np.float32)
        for begin in range(0, len(X), _BLOCK):
            block = slice(begin, begin + _BLOCK)
            V = leaf_values(self.trees, self.network.models, self._routes, X[block])
            found[block] = self.network.outputs(self.told.weights, V) + start
        return found

    def predict(self, X: NDArray[Any]) -> NDArray[np.float64]:
        """Return probabilities of class 1, or values, float64, shape (n,)."""
        return self.objective.predict(self.margin(X)[None])

    def as_message(self) -> TreeNetworkModel:
        """Return the message that tells it."""
        return self.told

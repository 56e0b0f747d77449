"""The model of FedXGBllr (Ma et al. 2023): trees of all clients, a network on their outputs."""

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

#: Number of rows whose hidden units are in memory at once.
_BLOCK = 4096


@dataclass(frozen=True, eq=False, kw_only=True)
class TreeNetworkModel(ClientModels):
    """The local models of all clients, and the network over the outputs of their trees.

    Attributes
    ----------
    weights : float32 array, shape (parameters,)
        In the order of `fedtrees.neural.tree_outputs.RatesNetwork.split`.
    """

    # The trees keep the statistics with which the clients shared them.
    traits: ClassVar[frozenset[Trait]] = frozenset({Trait.STATISTICS, Trait.LEAVES})
    # The network adds no type of information to that of the trees.
    discloses: ClassVar[frozenset[Reveal]] = ClientModels.discloses
    objective: str
    weights: NDArray[np.float32]

    def model(self) -> TreeNetwork:
        """Return the model.

        Raises
        ------
        DataError
            If the shapes of the arrays do not match.
        """
        return TreeNetwork(self)


def tree_outputs(models: ClientModels, X: NDArray[Any]) -> NDArray[np.float32]:
    """Return the output of every tree for rows, float32, shape (n, models, trees per model).

    The outputs are leaf values: log-odds or target values, learning rate included, without base
    scores. In the authors' code the output of every tree includes the base score of its model.

    Raises
    ------
    DataError
        If the models have different numbers of trees, or if X has fewer columns than they use.
    """
    return leaf_values(unpack(models), len(models.owner), Routes.of(unpack(models)), X)


def leaf_values(
    trees: list[Tree] | tuple[Tree, ...], models: int, routes: Routes, X: NDArray[Any]
) -> NDArray[np.float32]:
    """Return the leaf values of rows, float32, shape (n, models, trees per model).

    `routes` are the precomputed routes of `trees`, which are ordered model after model.
    """
    leaves = routes.apply(X)
    values = np.empty((len(leaves), len(trees)), dtype=np.float32)
    for t, tree in enumerate(trees):
        values[:, t] = tree.value[leaves[:, t]]
    return values.reshape(len(values), models, len(trees) // models)


def start_of(models: ClientModels, objective: Objective) -> np.float32:
    """Return the constant that is added to the network's output: the mean base score, as a margin.

    Base scores are averaged in XGBoost's units. A client of one class (base score 0 or 1) therefore
    changes the log-odds by no more than its share.
    """
    # The mean is computed in float64 and rounded once.
    mean = np.asarray(np.mean(models.base_score, axis=0, dtype=np.float64), dtype=np.float32)
    return np.float32(start_margin(objective, mean)[0])


@dataclass(frozen=True, eq=False)
class TreeNetwork(Routed):
    """Predictor of trees of several clients with a network over their outputs. It needs no torch.

    Attributes
    ----------
    told : TreeNetworkModel
        Trees and weights.
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
        """Objective that converts the output into a prediction."""
        return named_objective(self.told.objective, 1)

    @cached_property
    def network(self) -> RatesNetwork:
        """Architecture of the network."""
        models, trees = len(self.told.trees), int(self.told.trees[0])
        return RatesNetwork.of(models, trees, len(self.told.weights))

    def margin(self, X: NDArray[Any]) -> NDArray[np.float32]:
        """Return log-odds or target values, float32, shape (n,)."""
        X = self._routes.rows(X)
        start = start_of(self.told, self.objective)
        margins = np.empty(len(X), dtype=np.float32)
        for begin in range(0, len(X), _BLOCK):
            # Blocks of rows limit the memory of the hidden units.
            block = slice(begin, begin + _BLOCK)
            V = leaf_values(self.trees, self.network.models, self._routes, X[block])
            margins[block] = self.network.outputs(self.told.weights, V) + start
        return margins

    def predict(self, X: NDArray[Any]) -> NDArray[np.float64]:
        """Return probabilities of class 1, or target values, float64, shape (n,)."""
        return self.objective.predict(self.margin(X)[None])

    def as_message(self) -> TreeNetworkModel:
        """Return the message form of the model."""
        return self.told

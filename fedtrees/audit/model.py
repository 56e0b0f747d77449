"""A model file together with everything in it that prediction does not need."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from fedtrees.core.errors import DataError
from fedtrees.trees.boosted.forest import Forest
from fedtrees.trees.boosted.losses import LOGISTIC
from fedtrees.trees.forest.random_decision import RandomDecisionForest
from fedtrees.trees.forest.random_forest import RandomForest

Floats = NDArray[np.float64]

# XGBoost itself checks no number of columns; a file may name this many that no tree uses.
MOST_COLUMNS = 10**7


@dataclass(frozen=True, eq=False)
class Statistics:
    """What a file says of the training rows of one tree, beside its splits and leaf values.

    Arrays have the shape (n_nodes,); None where the file lacks them.
    """

    cover: Floats | None = None  # sum of hessians of each node (sum_hessian)
    weight: Floats | None = None  # Newton step of each inner node, not shrunk (base_weights)
    gain: Floats | None = None  # of each split (loss_changes)
    rows: NDArray[np.int64] | None = None  # training rows in each node
    positives: NDArray[np.int64] | None = None  # rows of the tree's class among them
    drawn: NDArray[np.int64] | None = None  # of each class, (n_nodes, K), where rows count by draws


@dataclass(frozen=True, eq=False)
class ModelFile:
    """A model and what its file carries."""

    path: Path
    format: str  # for people: ``XGBoost JSON`` and so on
    forest: Forest | RandomForest
    statistics: tuple[Statistics, ...]  # one per tree, in the order of the forest
    # mapping of str to list of float64 array: every statistic of the file, tree by tree, as written
    raw: Mapping[str, Sequence[Floats]]
    feature_names: tuple[str, ...] = ()  # empty where the file names none
    categorical: tuple[bool, ...] = ()  # columns that some split takes as categories
    # names of the categories by column, in the order of their codes, if the file states them
    categories: Mapping[int, Sequence[str] | Sequence[int]] = field(default_factory=dict)
    # learning_rate, reg_lambda: where the file states them (LightGBM does, XGBoost does not)
    learning_rate: float | None = None
    reg_lambda: float | None = None
    # Whether the user gave the base score. A later training may then have changed it.
    base_score_given: bool = False
    positive_weight: float = 1.0  # ``scale_pos_weight``: how much a row of class 1 counted
    # ranges, parameters: what the file says of the values of each column, and of the training
    ranges: Mapping[str, str] | None = None
    parameters: Mapping[str, str] = field(default_factory=dict)
    # False where LightGBM's counts of inner nodes are not the sums of those below
    consistent: bool = True
    # place in the file of each tree of the forest, which orders them by rounds of one tree an
    # output; -1 for a tree that is in no file; empty where it is the same
    places: tuple[int, ...] = ()
    # tuple of int array, shape (n_nodes,): number that the file gives each node (LightGBM: each
    # leaf), as the library's ``pred_leaf`` does; empty where it is the same
    numbers: tuple[NDArray[np.int64], ...] = ()
    # tuple of bool array, shape (n_nodes,): nodes whose threshold another party of a secure
    # vertical training keeps, with 0 in its place; empty if there are none
    hidden: tuple[NDArray[np.bool_], ...] = ()
    dropout: bool = False  # whether trees of XGBoost were dropped and rescaled in training (DART)
    # rounds with which XGBoost's scikit-learn interface predicts after early stopping; None: all
    served_rounds: int | None = None
    # a forest of random tests as its file has it; `forest` predicts the same by shares
    released: RandomDecisionForest | None = None

    def place_of(self, tree: int) -> int:
        """Return the place in the file of a tree of the forest."""
        return self.places[tree] if self.places else tree

    def number_of(self, tree: int, node: int) -> int:
        """Return the number in the file of a node of a tree of the forest."""
        return int(self.numbers[tree][node]) if self.numbers else node

    @property
    def served(self) -> Forest | RandomForest:
        """The forest that answers queries, without the rounds after the best iteration."""
        if self.served_rounds is None or not isinstance(self.forest, Forest):
            return self.forest
        return self.forest.first(self.served_rounds)

    @property
    def library(self) -> str:
        """``xgboost``, ``lightgbm`` or ``fedtrees``."""
        return self.format.split()[0].lower()

    def name_of(self, feature: int) -> str:
        """Return the name of a column, its number where the file names none."""
        return self.feature_names[feature] if self.feature_names else f"column {feature}"


def without_statistics(model: ModelFile) -> ModelFile:
    """Return what is left of a model without what prediction does not need."""
    bare = (Statistics(),) * len(model.statistics)
    return replace(model, statistics=bare, raw={}, ranges=None)


def is_logistic(model: ModelFile) -> bool:
    """Tell whether the model is boosted on the log loss of two classes."""
    return isinstance(model.forest, Forest) and model.forest.objective.name == LOGISTIC.name


def parameter(known: Mapping[str, str], name: str) -> float | None:
    """Return a training parameter that is a finite number, None where it is absent or another."""
    try:
        value = float(known[name])
    except (KeyError, ValueError):
        return None
    return value if np.isfinite(value) else None


def width_of(columns: int) -> int:
    if not 0 <= columns <= MOST_COLUMNS:
        raise DataError(
            f"the model says that it has {columns} columns; fewer than 0 and more than "
            f"{MOST_COLUMNS} are not believed: the file is damaged"
        )
    return columns

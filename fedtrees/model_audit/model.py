"""A model and the statistics in its file that are not needed for predictions.

Each reader (`fedtrees.model_audit.readers`) converts a file of its format to a `ModelFile`. The
remaining modules of the audit work on this class only.
"""

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

# XGBoost does not check the number of columns. A damaged file may state any number, and arrays of
# one entry per column would then exhaust the memory. Larger numbers are rejected.
MOST_COLUMNS = 10**7


@dataclass(frozen=True, eq=False)
class Statistics:
    """Statistics of the training rows of one tree, in addition to its splits and leaf values.

    Arrays have the shape (n_nodes,). A statistic is None if the file does not contain it.
    """

    cover: Floats | None = None  # sum of hessians of each node (sum_hessian)
    # Newton step of each inner node, before multiplication by the learning rate (base_weights)
    weight: Floats | None = None
    gain: Floats | None = None  # gain of each split (loss_changes)
    rows: NDArray[np.int64] | None = None  # training rows in each node
    positives: NDArray[np.int64] | None = None  # rows of the tree's class among them
    # Draws of each class, shape (n_nodes, K), if a row counts once for each time that it was drawn.
    drawn: NDArray[np.int64] | None = None


@dataclass(frozen=True, eq=False)
class ModelFile:
    """A model together with all statistics and names in its file."""

    path: Path
    format: str  # display name whose first word is the library, for example ``XGBoost JSON``
    forest: Forest | RandomForest
    statistics: tuple[Statistics, ...]  # one per tree, in the order of the forest
    # Every statistic of the file by its name there: one float64 array per tree, without changes.
    raw: Mapping[str, Sequence[Floats]]
    feature_names: tuple[str, ...] = ()  # empty if the file contains no names
    # One entry per column: whether some split of an XGBoost model treats it as categorical.
    categorical: tuple[bool, ...] = ()
    # Names of the categories by column, in the order of their codes, if the file contains them.
    categories: Mapping[int, Sequence[str] | Sequence[int]] = field(default_factory=dict)
    # The two settings are None if the file does not contain them. LightGBM writes them, XGBoost
    # does not.
    learning_rate: float | None = None
    reg_lambda: float | None = None
    # Whether the user gave the base score. A later training may then have changed it.
    base_score_given: bool = False
    positive_weight: float = 1.0  # ``scale_pos_weight``: weight of a row of class 1 in training
    # LightGBM's description of the values of each column, and the training parameters in the file.
    ranges: Mapping[str, str] | None = None
    parameters: Mapping[str, str] = field(default_factory=dict)
    # False if a count of an inner node in a LightGBM file is not the sum of its children's counts.
    consistent: bool = True
    # Position in the file of each tree of the forest. The forest contains rounds of one tree per
    # output. The position is -1 for a tree that is not in the file. Empty if both orders agree.
    places: tuple[int, ...] = ()
    # For each tree, the number of each node (LightGBM: of each leaf) in the file, int, shape
    # (n_nodes,). The library's ``pred_leaf`` returns these numbers. Empty if they are the indices.
    numbers: tuple[NDArray[np.int64], ...] = ()
    # For each tree, the nodes whose threshold is stored at another party of a secure vertical
    # training, bool, shape (n_nodes,). Their threshold here is 0. Empty if there are none.
    hidden: tuple[NDArray[np.bool_], ...] = ()
    dropout: bool = False  # whether trees of XGBoost were dropped and rescaled in training (DART)
    # Number of rounds that XGBoost's scikit-learn interface predicts with after early stopping.
    # None if it uses all rounds.
    served_rounds: int | None = None
    # The released counts of a private random decision forest. `forest` then predicts the same
    # class shares.
    released: RandomDecisionForest | None = None

    def place_of(self, tree: int) -> int:
        """Return the position in the file of a tree of the forest."""
        return self.places[tree] if self.places else tree

    def number_of(self, tree: int, node: int) -> int:
        """Return the number in the file of a node of the forest's tree `tree`."""
        return int(self.numbers[tree][node]) if self.numbers else node

    @property
    def boosted(self) -> Forest:
        """The forest of a boosted model, not of a random forest."""
        assert isinstance(self.forest, Forest)
        return self.forest

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
        """Return the name of a column, or ``column k`` if the file contains no names."""
        return self.feature_names[feature] if self.feature_names else f"column {feature}"


def without_statistics(model: ModelFile) -> ModelFile:
    """Return the model without its statistics and value ranges."""
    bare = (Statistics(),) * len(model.statistics)
    return replace(model, statistics=bare, raw={}, ranges=None)


def is_logistic(model: ModelFile) -> bool:
    """Return whether the model is boosted on the log loss of two classes."""
    return isinstance(model.forest, Forest) and model.forest.objective.name == LOGISTIC.name


def parameter(parameters: Mapping[str, str], name: str) -> float | None:
    """Return a training parameter as a number, None if it is absent or not a finite number."""
    try:
        value = float(parameters[name])
    except (KeyError, ValueError):
        return None
    return value if np.isfinite(value) else None


def width_of(columns: int) -> int:
    """Return the number of columns that a file states.

    Raises `DataError` if it is negative or above `MOST_COLUMNS`.
    """
    if not 0 <= columns <= MOST_COLUMNS:
        raise DataError(
            f"the model states {columns} columns; only 0 to {MOST_COLUMNS} are possible: "
            "the file is damaged"
        )
    return columns

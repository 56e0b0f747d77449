"""Parameters and checks that the random-forest protocols share."""

from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

from fedtrees.core.errors import DataError, UsageError, check_flag
from fedtrees.core.schema import Schema, Table
from fedtrees.protocols.base import Protocol
from fedtrees.protocols.training import Training
from fedtrees.trees.files.forests import save_random_forest
from fedtrees.trees.forest.params import ForestParams

#: Suffix and description of model files.
FOREST_FILE = (".npz", "a random forest; XGBoost has no such model")


@dataclass(frozen=True, kw_only=True)
class ForestProtocol(ForestParams, Protocol):
    """A random forest over the clients' rows, with the parameters of the engine (`ForestParams`).

    Parameters
    ----------
    leaf_counts : bool
        Send the clients the class counts of every leaf in addition to the predicted probabilities.
    """

    leaf_counts: bool = True

    file: ClassVar[tuple[str, str]] = FOREST_FILE

    def __post_init__(self) -> None:
        super().__post_init__()
        check_flag("leaf_counts", self.leaf_counts)

    def save(self, training: Training, path: Path) -> None:
        """Write the forest to a file.

        If every tree counts every row once, the file states it.
        """
        once = training.defense.sums_exactly and not self.bootstrap
        model = training.model
        save_random_forest(model.counted_once() if once else model, path, training.schema.features)

    def check(self, schema: Schema) -> None:
        """Refuse a target without classes."""
        class_count(schema)


def class_count(schema: Schema) -> int:
    """Return the number of classes K.

    Raises
    ------
    UsageError
        If the target has no classes.
    """
    if len(schema.classes) < 2:
        raise UsageError(
            f"random forests here classify; target {schema.target!r} has {len(schema.classes)} "
            "classes: use a boosting protocol"
        )
    return len(schema.classes)


def checked_rows(data: Table, n_classes: int) -> Table:
    """Return a client's rows if a forest can count them.

    Raises
    ------
    DataError
        If rows have weights, or a label is not a class code.
    """
    if data.weight is not None:
        raise DataError("random forests count rows and take no sample weights; drop the weights")
    if data.y.dtype.kind != "i" or (
        len(data) and not 0 <= data.y.min() <= data.y.max() < n_classes
    ):
        raise DataError(f"labels must be class codes from 0 to {n_classes - 1}")
    return data

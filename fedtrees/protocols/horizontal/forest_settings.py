"""What the two random-forest protocols share: public parameters and checks."""

from __future__ import annotations

from dataclasses import dataclass

from fedtrees.core.errors import DataError, UsageError
from fedtrees.core.schema import Schema, Table
from fedtrees.protocols.base import Protocol
from fedtrees.trees.forest.params import ForestParams


@dataclass(frozen=True, kw_only=True)
class ForestProtocol(ForestParams, Protocol):
    """A random forest over the clients' rows: the engine's parameters, and these.

    Parameters
    ----------
    leaf_counts : bool
        Tell the clients every leaf's class counts beside the probabilities they predict with.
    """

    leaf_counts: bool = True

    def __post_init__(self) -> None:
        super().__post_init__()
        if not isinstance(self.leaf_counts, bool):
            raise UsageError(f"leaf_counts={self.leaf_counts!r}: give true or false")

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
    """Return a client's rows if they can be counted.

    Raises
    ------
    DataError
        If rows carry weights, or a label is no class code.
    """
    if data.weight is not None:
        raise DataError("random forests count rows and take no sample weights; drop the weights")
    if data.y.dtype.kind != "i" or (
        len(data) and not 0 <= data.y.min() <= data.y.max() < n_classes
    ):
        raise DataError(f"labels must be class codes from 0 to {n_classes - 1}")
    return data

"""One party with the labels, and others with more columns of the same rows."""

from collections.abc import Mapping

from fedtrees.core.errors import DataError
from fedtrees.core.local_data import LocalData
from fedtrees.core.schema import Schema

ACTIVE, PASSIVE = "active", "passive"


def check_columns_held(local_data: Mapping[str, LocalData], schema: Schema) -> None:
    """Refuse labels in other hands, other rows, parties without columns, one class.

    Raises `DataError`.
    """
    (active, first), *others = local_data.items()
    if first.y is None:
        raise DataError(f"{active!r} holds no labels; give them to it, whoever else has them")
    for name, held in others:
        if held.y is not None:
            raise DataError(f"{name!r} holds labels; only {active!r} may have them")
        if not len(held.columns):
            raise DataError(f"{name!r} holds no column; give it one, or leave it out")
        if len(held) != len(first):
            raise DataError(
                f"{name!r} holds {len(held)} rows and {active!r} {len(first)}: align them by id"
            )
    if schema.classes and len(first) and (first.y == first.y[0]).all():
        raise DataError(f"all labels of {active!r} are {first.y[0]}; it takes two classes")

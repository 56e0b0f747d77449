"""One party with the labels, and others with more columns of the same rows."""

from collections.abc import Mapping

from fedtrees.core.errors import DataError
from fedtrees.core.local_data import Declared, LocalData
from fedtrees.core.schema import Schema

ACTIVE, PASSIVE = "active", "passive"


def check_columns_held(said: Mapping[str, Declared]) -> None:
    """Refuse labels in other hands, other rows, parties without columns.

    Raises `DataError`.
    """
    (active, first), *others = said.items()
    if not first.labels:
        raise DataError(f"{active!r} holds no labels; give them to it, whoever else has them")
    for name, one in others:
        if one.labels:
            raise DataError(f"{name!r} holds labels; only {active!r} may have them")
        if not one.columns:
            raise DataError(f"{name!r} holds no column; give it one, or leave it out")
        if one.rows != first.rows:
            raise DataError(
                f"{name!r} holds {one.rows} rows and {active!r} {first.rows}: align them by id"
            )


def check_two_classes(name: str, held: LocalData, schema: Schema) -> None:
    """Refuse labels that are all of one class.

    Raises `DataError`.
    """
    y = held.y
    if y is not None and schema.classes and len(y) and (y == y[0]).all():
        raise DataError(f"all labels of {name!r} are {y[0]}; it takes two classes")

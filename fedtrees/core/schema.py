"""Schema and rows of a table.

The schema is public: all parties of a federation know the columns, their kinds, the classes of the
target and the declared ranges. A `Table` contains private rows with labels.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from fedtrees.core.errors import DataError

Kind = Literal["continuous", "categorical"]


@dataclass(frozen=True)
class Feature:
    """One column of the feature table.

    Attributes
    ----------
    name : str
        Column name, unique in its schema.
    kind : {"continuous", "categorical"}
        A categorical column contains the ordinal codes 0, 1, ... as floats.
    low, high : float or None
        Declared public range, None if it is not declared. It is never computed from private rows.
    categories : tuple of str
        Names of the codes of a categorical column, else empty. The parties agree on the codes
        before the training. Therefore each of them knows that every code may occur, including a
        code that occurs only in the rows of one party or in the test data.
    cuts : tuple of float
        Declared public cut points in the format of XGBoost: a sentinel below every value, then the
        upper border of every bin, increasing. Empty if they are not declared.
    complete : bool
        Declaration that no row has a missing value here. False if some rows may have one.

    Raises
    ------
    DataError
        If the declared range is empty, or if the cut points are not at least two finite, increasing
        numbers.

    Examples
    --------
    >>> from fedtrees import Feature
    >>> Feature("age", low=0, high=120).declared_range
    (0, 120)
    """

    name: str
    kind: Kind = "continuous"
    low: float | None = None
    high: float | None = None
    categories: tuple[str, ...] = ()
    cuts: tuple[float, ...] = ()
    complete: bool = False

    def __post_init__(self) -> None:
        cuts = np.asarray(self.cuts, dtype=np.float32)
        if len(cuts) and not (
            len(cuts) > 1 and np.isfinite(cuts).all() and (np.diff(cuts) > 0).all()
        ):
            raise DataError(
                f"feature {self.name!r}: cut points {self.cuts[:5]} must be at least two finite "
                "float32 numbers in increasing order; the first is a sentinel below every value"
            )
        if self.low is not None and self.high is not None and not self.low < self.high:
            raise DataError(
                f"feature {self.name!r}: public range [{self.low}, {self.high}] is empty; "
                "low must be below high"
            )

    @property
    def declared_range(self) -> tuple[float, float] | None:
        """Smallest and largest value that are declared possible, None if no range is declared."""
        if self.low is not None and self.high is not None:
            return self.low, self.high
        if self.kind == "categorical" and self.categories:
            return 0.0, float(len(self.categories) - 1)
        return None

    def to_json(self) -> dict[str, Any]:
        """Return the feature as plain JSON types.

        The cut points are included only if they are declared. `complete` is not included, because
        it follows from the values.
        """
        plain = {**vars(self), "categories": list(self.categories), "cuts": list(self.cuts)}
        return {k: v for k, v in plain.items() if k != "complete" and (k != "cuts" or v)}


@dataclass(frozen=True)
class OneHot:
    """Group of binary columns that encode one category: exactly one of them is 1 in each row.

    Attributes
    ----------
    columns : tuple of str
        Names of the columns, two or more.
    empty : bool
        Whether all columns may be 0, which encodes a missing category.
    """

    columns: tuple[str, ...]
    empty: bool = False

    def to_json(self) -> dict[str, Any]:
        """Return the group as plain JSON types."""
        return {"columns": list(self.columns), "empty": self.empty}


@dataclass(frozen=True)
class Schema:
    """The columns in their order, and the classes of the target.

    Attributes
    ----------
    features : tuple of Feature
        The columns.
    target : str
        Name of the target.
    classes : tuple of str
        Name of each class code. With two classes, code 1 is the positive class. Empty for a numeric
        target. The classes are declared before the training, as the categories are.
    groups : tuple of OneHot
        Declared one-hot groups. A column is in at most one of them.

    Raises
    ------
    DataError
        If two columns have the same name, or if a one-hot group has fewer than two columns, an
        unknown column, or a column of another group.

    Examples
    --------
    >>> from fedtrees import Feature, Schema
    >>> schema = Schema((Feature("age"), Feature("bmi")), "ill", ("no", "yes"))
    >>> [feature.name for feature in schema.features]
    ['age', 'bmi']
    """

    features: tuple[Feature, ...]
    target: str
    classes: tuple[str, ...] = ("0", "1")
    groups: tuple[OneHot, ...] = ()

    def __post_init__(self) -> None:
        names = Counter(f.name for f in self.features)
        twice = sorted(name for name, times in names.items() if times > 1)
        if twice:
            raise DataError(f"duplicate column names {twice}; give every column another name")
        seen: set[str] = set()
        for group in self.groups:
            unknown = sorted({*group.columns} - {*names})
            times = Counter(group.columns)
            shared = sorted(n for n in group.columns if n in seen or times[n] > 1)
            if len(group.columns) < 2 or unknown or shared:
                fault = (
                    f"unknown columns {unknown}" if unknown
                    else f"{shared} twice" if shared
                    else "too few columns"
                )  # fmt: skip
                raise DataError(
                    f"one-hot group {list(group.columns)} has {fault}; name two or more columns, "
                    "each in one group"
                )
            # A column may belong to one group only.
            seen |= {*group.columns}

    @property
    def names(self) -> tuple[str, ...]:
        """Feature names in column order."""
        return tuple(f.name for f in self.features)

    @property
    def attributes(self) -> tuple[tuple[int, ...], ...]:
        """Columns of each attribute in column order.

        An attribute is a one-hot group or a single column.
        """
        at = {name: c for c, name in enumerate(self.names)}
        groups = [tuple(at[name] for name in g.columns) for g in self.groups]
        grouped = {c for columns in groups for c in columns}
        single = [(c,) for c in range(len(self.features)) if c not in grouped]
        return tuple(sorted([*groups, *single]))

    @property
    def categorical(self) -> NDArray[np.bool_]:
        """Mask, shape (d,), of the columns that are compared by equality."""
        return np.array([f.kind == "categorical" for f in self.features], dtype=bool)

    @property
    def complete(self) -> NDArray[np.bool_]:
        """Mask, shape (d,), of the columns that have no missing value in any row."""
        return np.array([f.complete for f in self.features], dtype=bool)

    @property
    def ranges(self) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
        """Declared lower and upper ends of all features, including codes.

        Two float32 arrays, shape (d,). NaN marks a feature without a declared range.
        """
        ends = [f.declared_range or (np.nan, np.nan) for f in self.features]
        both = np.array(ends, dtype=np.float32).reshape(-1, 2)
        return both[:, 0], both[:, 1]

    def of_columns(self, columns: Iterable[int]) -> Schema:
        """Return the schema of some columns. One-hot groups that lose a column are dropped.

        Parameters
        ----------
        columns : iterable of int
            Positions of the columns, in the order of the new schema.

        Returns
        -------
        schema : Schema
            Schema with the same target and classes.
        """
        features = tuple(self.features[c] for c in columns)
        names = {f.name for f in features}
        # Without one of its columns, a group no longer has exactly one 1 per row.
        groups = tuple(g for g in self.groups if names.issuperset(g.columns))
        return replace(self, features=features, groups=groups)

    def to_json(self) -> dict[str, Any]:
        """Return the schema as plain JSON types. Groups are included only if they are declared."""
        plain = {
            "features": [f.to_json() for f in self.features],
            "target": self.target,
            "classes": list(self.classes),
        }
        return {**plain, "groups": [g.to_json() for g in self.groups]} if self.groups else plain


def read_only(array: Any, kind: type) -> NDArray[Any]:
    """Return a contiguous read-only view of an array with the given dtype.

    Parameters
    ----------
    array : array
        Values, which are copied if they have another dtype or are not contiguous.
    kind : type
        The dtype.

    Returns
    -------
    array
        View whose elements cannot be changed.
    """
    view: NDArray[Any] = np.ascontiguousarray(array, dtype=kind).view()
    view.flags.writeable = False
    return view


@dataclass(frozen=True, eq=False)
class Table:
    """Rows with labels. The arrays are read-only.

    Attributes
    ----------
    X : float32 array, shape (n, d)
        Features. NaN marks a missing value.
    y : int64 or float64 array, shape (n,)
        Class codes, or a numeric target.
    weight : float32 array, shape (n,), or None
        Sample weights. None if every row counts 1.

    Examples
    --------
    >>> import numpy as np
    >>> from fedtrees import Table
    >>> Table(np.zeros((3, 2), dtype=np.float32), np.array([0, 1, 1]))
    <Table: 3 rows, 2 columns>
    """

    X: NDArray[np.float32]
    y: NDArray[Any]
    weight: NDArray[np.float32] | None = None

    def __post_init__(self) -> None:
        X, y = np.asarray(self.X), np.asarray(self.y)
        if X.ndim != 2 or y.shape != (X.shape[0],):
            raise DataError(f"a table needs X (n, d) and y (n,); got {X.shape} and {y.shape}")
        self._keep("X", X, np.float32)
        self._keep("y", y, np.float64 if y.dtype.kind == "f" else np.int64)
        if self.weight is not None:
            if np.shape(self.weight) != y.shape:
                raise DataError(f"{len(y)} rows but weights of shape {np.shape(self.weight)}")
            self._keep("weight", self.weight, np.float32)

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        self.__post_init__()  # numpy unpickles arrays as writeable arrays

    def _keep(self, name: str, array: NDArray[Any], kind: type) -> None:
        """Store an array as a read-only array with the given dtype."""
        object.__setattr__(self, name, read_only(array, kind))

    def __len__(self) -> int:
        return int(self.y.shape[0])

    def __repr__(self) -> str:
        return f"<Table: {self.X.shape[0]} rows, {self.X.shape[1]} columns>"

    def take(self, rows: NDArray[Any] | slice) -> Table:
        """Return the table of the given rows.

        Parameters
        ----------
        rows : int array, shape (m,), bool array, shape (n,), or slice
            Indices of the rows, a mask, or a range.

        Returns
        -------
        table : Table
            The rows in the order of the indices.
        """
        weight = None if self.weight is None else self.weight[rows]
        return Table(self.X[rows], self.y[rows], weight)

    @staticmethod
    def empty(schema: Schema) -> Table:
        """Return a table without rows that has the columns of the schema.

        Parameters
        ----------
        schema : Schema
            The columns.

        Returns
        -------
        table : Table
            X has the shape (0, d), and y the dtype int64.
        """
        return Table(np.zeros((0, len(schema.features)), np.float32), np.zeros(0, np.int64))

    @staticmethod
    def concat(tables: list[Table]) -> Table:
        """Stack tables with the same columns.

        Parameters
        ----------
        tables : list of Table
            One or more tables.

        Returns
        -------
        table : Table
            The rows of all tables in order. If only some tables have weights, the rows of the
            remaining tables get the weight 1.
        """
        weight = None
        if any(t.weight is not None for t in tables):
            parts = [np.ones(len(t)) if t.weight is None else t.weight for t in tables]
            weight = np.concatenate(parts).astype(np.float32)
        X, y = np.concatenate([t.X for t in tables]), np.concatenate([t.y for t in tables])
        return Table(X, y, weight)

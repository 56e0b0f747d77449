"""A validated table with its schema and a digest, its variants, and its split into parts.

The module also splits a dataset into training rows, test rows, and a reserve that no party
receives, and derives variants with other rows or cells. Examples of variants are
``stroke[rows=1000]``, ``pima[copies=2]`` and ``pima[missing=0.5]``.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedtrees.core.errors import DataError, did_you_mean
from fedtrees.core.schema import Schema, Table
from fedtrees.core.streams import Streams

# Square root of the largest float32. Gains contain squares of sums of gradients, which must not
# overflow in single precision.
_MOST_SUMMED = 1.8e19
# XGBoost's kRtEps, the smallest gain of a split. No split gains more than the sum of squared
# deviations from the mean, so that a target with a smaller sum cannot be learned.
_LEAST_GAIN = 1e-6


@dataclass(frozen=True, eq=False)
class Dataset:
    """A named table for a federation. Use `prepare` to create one from arrays.

    Attributes
    ----------
    name : str
        Name in results and messages.
    schema : Schema
        Columns and classes. ``len(schema.features) == table.X.shape[1]``. Columns without missing
        values are declared complete.
    table : Table
        All rows. The features are float32, shape (n, d). The target has shape (n,). It contains
        int64 class codes from 0, or float64 numbers if the schema has no classes.
    top : tuple of str
        Features that the publication that used this table calls most important, or empty.
    test_rows : int array, shape (t,), or None
        Rows that a published recipe fixes as its test set. If it is None, the split is drawn from
        the seed.
    notes : tuple of str
        Notes for readers of results, for example on constant columns or on a binarised target.
    files : tuple of tuple of int
        Columns of each party's file, the file with the labels first. Empty if the table was read
        from one file.
    owners : int array, shape (n,), or None
        Client of every row, if the table contains this information.
    owner_names : tuple of str
        Names of these clients by number.
    digest : str
        SHA-256 (hexadecimal) of schema, arrays, test rows, files and owners. Two datasets with the
        same digest have the same contents.

    Examples
    --------
    >>> import numpy as np
    >>> from fedtrees import Dataset, Feature, Schema, Table
    >>> schema = Schema((Feature("age"), Feature("bmi")), "ill")
    >>> Dataset("patients", schema, Table(np.ones((4, 2)), np.array([0, 1, 0, 1])))
    <Dataset patients: 4 rows, 2 columns, target ill>
    """

    name: str
    schema: Schema
    table: Table
    top: tuple[str, ...] = ()
    test_rows: NDArray[np.intp] | None = None
    notes: tuple[str, ...] = ()
    files: tuple[tuple[int, ...], ...] = ()
    owners: NDArray[np.intp] | None = None
    owner_names: tuple[str, ...] = ()
    digest: str = field(init=False)

    def __repr__(self) -> str:
        rows, columns = self.table.X.shape
        return f"<Dataset {self.name}: {rows} rows, {columns} columns, target {self.schema.target}>"

    def __post_init__(self) -> None:
        width, columns = self.table.X.shape[1], len(self.schema.features)
        if width != columns:
            raise DataError(f"{self.name}: schema has {columns} features, the table has {width}")
        for feature in self.top:
            if feature not in self.schema.names:
                hint = did_you_mean(feature, self.schema.names)
                raise DataError(f"{self.name}: unknown top feature {feature!r}{hint}")
        if self.test_rows is not None:
            object.__setattr__(self, "test_rows", _checked_rows(self.test_rows, len(self.table)))
        if self.owners is not None and len(self.owners) != len(self.table):
            raise DataError(f"{self.name}: {len(self.owners)} owners of {len(self.table)} rows")
        lacking = np.atleast_1d(np.isnan(self.table.X).any(axis=0))
        features = tuple(
            replace(f, complete=not lacking[k]) for k, f in enumerate(self.schema.features)
        )
        object.__setattr__(self, "schema", replace(self.schema, features=features))
        object.__setattr__(self, "digest", self._hash())

    @property
    def task(self) -> str:
        """``binary``, ``classes`` (three or more) or ``number``: the kind of the target."""
        return {0: "number", 2: "binary"}.get(len(self.schema.classes), "classes")

    def _hash(self) -> str:
        h = hashlib.sha256()
        h.update(json.dumps(self.schema.to_json(), sort_keys=True).encode())
        h.update(json.dumps(self.top).encode())
        # One bit pattern for every missing value, so that the digest follows the values.
        for rows in np.array_split(self.table.X, 1 + len(self.table) // 100_000):
            X = np.where(np.isnan(rows), np.float32(np.nan), rows)
            h.update(np.ascontiguousarray(X, dtype="<f4").tobytes())
        kind = "<i8" if self.schema.classes else "<f8"
        h.update(np.ascontiguousarray(self.table.y, dtype=kind).tobytes())
        if self.test_rows is not None:
            h.update(np.ascontiguousarray(self.test_rows, dtype="<i8").tobytes())
        if self.files:
            h.update(json.dumps(self.files).encode())
        if self.owners is not None:
            h.update(np.ascontiguousarray(self.owners, dtype="<i8").tobytes())
        return h.hexdigest()


def _checked_rows(rows: NDArray[Any], n: int) -> NDArray[np.intp]:
    """Return the test rows as a read-only array.

    Raises `DataError` if they are not distinct row numbers, or if they include every row.
    """
    rows = np.array(rows, dtype=np.intp)
    if rows.ndim != 1 or len(np.unique(rows)) != len(rows):
        raise DataError("test rows must be a list of distinct row numbers")
    if len(rows) and (rows.min() < 0 or rows.max() >= n):
        raise DataError(f"test rows must lie in 0..{n - 1}; got {rows.min()}..{rows.max()}")
    if len(rows) == n:
        raise DataError("every row is a test row; leave some for training")
    rows.flags.writeable = False
    return rows


def prepare(
    name: str,
    schema: Schema,
    X: NDArray[Any],
    y: NDArray[Any],
    *,
    top: Sequence[str] = (),
    test_rows: NDArray[Any] | None = None,
    notes: Sequence[str] = (),
    place: Callable[[int], str] = "row {}".format,
) -> Dataset:
    """Check raw arrays and create a `Dataset`.

    Parameters
    ----------
    name : str
        Name of the dataset.
    schema : Schema
        Columns and classes.
    X : array, shape (n, d)
        Numbers. NaN marks a missing value and is preserved.
    y : array, shape (n,)
        Class codes 0 to K-1, all of which must occur, or numbers if the schema has no classes.
    top : sequence of str, optional
        Features that a publication calls most important.
    test_rows : int array, shape (t,), optional
        Rows that a published recipe fixes as its test set.
    notes : sequence of str, optional
        Notes for readers of results.
    place : callable, optional
        Returns the origin of row i for messages, for example ``"line 7"``. The default is ``"row
        i"``, counted from 0.

    Returns
    -------
    dataset : Dataset
        Table with float32 features and checked targets.

    Raises
    ------
    DataError
        If the table is empty, a feature contains text, infinite values or values beyond 1.7e38, a
        row does not have exactly one 1 in a one-hot group, a target is missing, the classes are not
        those of the schema, a numeric target is constant, too large or too narrow for trees in
        single precision, or column names are duplicate or do not match.
    """
    X, y = np.asarray(X), np.asarray(y)
    if X.ndim != 2 or X.shape[0] == 0 or X.shape[1] == 0:
        raise DataError(f"{name}: the table is empty (shape {X.shape}); it needs rows and features")
    if y.shape != (X.shape[0],):
        raise DataError(f"{name}: {X.shape[0]} rows but labels of shape {y.shape}")
    if X.shape[1] != len(schema.features):
        raise DataError(
            f"{name}: schema has {len(schema.features)} features, the table has {X.shape[1]}"
        )
    numbers = _numeric_features(name, schema, X, place)
    _check_groups(name, schema, numbers, place)
    values = _target_values(name, schema, y, place)
    target = (
        _class_codes(name, schema, values)
        if schema.classes
        else _check_target(name, schema, values, place)
    )
    return Dataset(
        name,
        schema,
        Table(numbers, target),
        tuple(top),
        test_rows,
        (*notes, *_constant_columns(schema, numbers)),
    )


def _numeric_features(
    name: str, schema: Schema, X: NDArray[Any], place: Callable[[int], str]
) -> NDArray[np.float32]:
    """Return the features as float32. Raises `DataError` if a value is text or too large."""
    if X.dtype.kind not in "fiub":
        X = _to_float(name, schema, X, place)
    limit = 1.7e38  # half of float32's range, because the last cut point is twice the maximum
    narrow, bad = np.empty(X.shape, np.float32), []
    # The conversion proceeds by columns, because a float64 copy of the table would determine the
    # peak memory of loading.
    for k in range(X.shape[1]):
        wide = X[:, k].astype(np.float64)
        beyond = np.flatnonzero(np.abs(wide) > limit)
        bad += [(int(i), k, wide[i]) for i in beyond[:1]]
        with np.errstate(over="ignore"):
            narrow[:, k] = wide
    if bad:
        i, k, value = min(bad)
        raise DataError(
            f"{name}: feature {schema.names[k]!r} is {value} at {place(i)}; "
            "remove the row, or leave the value empty if it is missing (the limit is 1.7e38)"
        )
    return narrow


def _check_groups(
    name: str, schema: Schema, X: NDArray[np.float32], place: Callable[[int], str]
) -> None:
    """Raise `DataError` if a row violates a declared one-hot group."""
    at = {name: c for c, name in enumerate(schema.names)}
    for group in schema.groups:
        part = X[:, [at[c] for c in group.columns]]
        hot = (part == 1).sum(axis=1)
        good = ((part == 0) | (part == 1)).all(axis=1) & ((hot == 1) | (group.empty & (hot == 0)))
        if not good.all():
            i = int(good.argmin())
            raise DataError(
                f"{name}: columns {list(group.columns)} are {part[i].tolist()} at "
                f"{place(i)}; in a one-hot group exactly one column is 1"
                f"{' (or all are 0)' if group.empty else ''}: correct the row, or declare no group"
            )


def _to_float(
    name: str, schema: Schema, X: NDArray[Any], place: Callable[[int], str]
) -> NDArray[np.float64]:
    """Convert an array of objects to numbers.

    Raises `DataError` with the first cell that is not a number.
    """
    out = np.empty(X.shape, dtype=np.float64)
    for k, feature in enumerate(schema.names):
        for i, value in enumerate(X[:, k]):
            try:
                out[i, k] = np.nan if value is None else float(value)
            except (TypeError, ValueError):
                raise DataError(
                    f"{name}: column {feature!r} contains {value!r} at {place(i)}, "
                    "not a number; declare the column categorical, or correct the value"
                ) from None
    return out


def _target_values(
    name: str, schema: Schema, y: NDArray[Any], place: Callable[[int], str]
) -> NDArray[np.float64]:
    """Return the target as numbers. Raises `DataError` if a value is text, missing or infinite."""
    try:
        values = y.astype(np.float64)
    except (TypeError, ValueError):
        codes = "its classes as 0 and 1" if len(schema.classes) == 2 else "it as numbers from 0"
        raise DataError(f"{name}: target {schema.target!r} contains text; encode {codes}") from None
    missing = np.flatnonzero(~np.isfinite(values))
    if len(missing):
        raise DataError(
            f"{name}: target {schema.target!r} is missing or infinite at "
            f"{place(int(missing[0]))} ({len(missing)} such rows); remove them"
        )
    return np.asarray(values)


def _class_codes(name: str, schema: Schema, values: NDArray[np.float64]) -> NDArray[np.int64]:
    """Return the class codes. Raises `DataError` unless exactly the codes of the schema occur."""
    seen, n_classes = np.unique(values), len(schema.classes)
    where = f"{name}: target {schema.target!r}"
    if len(seen) < 2:
        raise DataError(f"{where} has one class only ({seen[0]:g}); all {n_classes} must occur")
    if len(seen) > n_classes == 2:
        raise DataError(
            f"{where} has {len(seen)} classes and the schema 2; name the positive class (the rest "
            "becomes class 0), or give the schema all the classes"
        )
    if not np.array_equal(seen, np.arange(n_classes)):
        codes = "0 and 1" if n_classes == 2 else f"all of 0 to {n_classes - 1}"
        raise DataError(f"{where} has codes {seen[:20].tolist()}; use {codes}")
    return np.asarray(values.astype(np.int64))


def _check_target(
    name: str, schema: Schema, values: NDArray[np.float64], place: Callable[[int], str]
) -> NDArray[np.float64]:
    """Return a numeric target. Raises `DataError` if trees in single precision cannot learn it."""
    where = f"{name}: target {schema.target!r}"
    if values.min() == values.max():
        raise DataError(f"{where} is {values[0]:g} in every row")
    scale = np.abs(values).max()
    if scale * np.abs(values / scale).sum() > _MOST_SUMMED:
        i = int(np.abs(values).argmax())
        raise DataError(
            f"{where} is {values[i]:g} at {place(i)}; correct the value, or divide the target by a "
            f"constant: its sizes may add up to {_MOST_SUMMED:g}"
        )
    if np.square(values - values.mean()).sum() < _LEAST_GAIN:
        raise DataError(
            f"{where} lies between {values.min():g} and {values.max():g}, too close for any split "
            f"to gain {_LEAST_GAIN:g}, the least that counts; multiply the target by a constant"
        )
    return values


def _constant_columns(schema: Schema, X: NDArray[np.float32]) -> list[str]:
    """Return a note for each column that is constant or always missing."""
    notes = []
    for k, feature in enumerate(schema.names):
        present = X[~np.isnan(X[:, k]), k]
        if len(present) == 0:
            notes.append(f"column {feature!r} is missing in every row")
        elif present.min() == present.max():
            notes.append(f"column {feature!r} is constant ({present[0]:g})")
    return notes


#: Share of all rows that measure the utility of the model.
TEST_SHARE = 0.2
#: Share of all rows in the reserve, if there is one.
RESERVE_SHARE = 0.2
#: Smallest table with a reserve. In smaller tables the reserve would have fewer than 1,000 rows,
#: and the training set would be smaller than in publications.
RESERVE_FROM = 5000


@dataclass(frozen=True, eq=False)
class Holdout:
    """Row numbers of the three parts, which are disjoint and together cover the dataset.

    Attributes
    ----------
    train : int array
        Rows of the parties.
    test : int array
        Rows that are used only to measure utility.
    reserve : int array or None
        Rows that neither the parties nor the utility test use. The specificity test compares
        guesses with them (`fedtrees.metrics.records`).
    """

    train: NDArray[np.intp]
    test: NDArray[np.intp]
    reserve: NDArray[np.intp] | None

    def tables(self, table: Table) -> tuple[Table, Table, Table | None]:
        """Split a table into its three parts.

        Parameters
        ----------
        table : Table
            The table whose rows were split.

        Returns
        -------
        train, test : Table
            Rows of the parties, and rows on which predictions are evaluated.
        reserve : Table or None
            Rows that no party has. None if there is no reserve.
        """
        reserve = None if self.reserve is None else table.take(self.reserve)
        return table.take(self.train), table.take(self.test), reserve


def holdout(dataset: Dataset, streams: Streams) -> Holdout:
    """Split a dataset at random, stratified by class (not by a numeric target).

    If a published recipe fixes the test rows, they are used and there is no reserve.

    Parameters
    ----------
    dataset : Dataset
        The table.
    streams : Streams
        Randomness, whose ``"holdout"`` stream determines the order of the rows.

    Returns
    -------
    Holdout
        Positions of the rows of each part, ascending.
    """
    n = len(dataset.table)
    if dataset.test_rows is not None:
        return Holdout(np.setdiff1d(np.arange(n), dataset.test_rows), dataset.test_rows, None)
    stratum = dataset.table.y if dataset.schema.classes else np.zeros(n, dtype=np.int64)
    reserve_share = RESERVE_SHARE if n >= RESERVE_FROM else 0.0
    rng = streams.rng("holdout")
    parts: list[list[NDArray[np.intp]]] = [[], [], []]
    for label in np.unique(stratum):
        rows = rng.permutation(np.flatnonzero(stratum == label))
        test = round(TEST_SHARE * len(rows))
        reserve = round(reserve_share * len(rows))
        for part, chunk in zip(parts, np.split(rows, [test, test + reserve]), strict=True):
            part.append(chunk)
    test_rows, reserve_rows, train_rows = (np.sort(np.concatenate(p)) for p in parts)
    return Holdout(train_rows, test_rows, reserve_rows if len(reserve_rows) else None)


def sample(dataset: Dataset, rows: int) -> Dataset:
    """Return a dataset with some of the rows, drawn at random.

    The same rows are drawn at every call. If a published recipe fixes the test rows, all of them
    remain, and the rows are drawn from the remaining ones.

    Parameters
    ----------
    dataset : Dataset
        The table.
    rows : int
        Number of drawn rows.

    Returns
    -------
    Dataset
        The drawn rows, followed by fixed test rows.

    Raises
    ------
    DataError
        If the table has fewer rows, or if the drawn rows lack a class.
    """
    n = len(dataset.table)
    fixed = np.zeros(0, dtype=np.intp) if dataset.test_rows is None else dataset.test_rows
    candidates = np.setdiff1d(np.arange(n), fixed)
    if isinstance(rows, bool) or not isinstance(rows, int) or not 0 < rows <= len(candidates):
        raise DataError(f"{dataset.name}: rows={rows!r}; give 1 to {len(candidates)}")
    # The seed is fixed, so that the sample is part of the dataset and the same in every run.
    drawn = Streams(0).child("sample", dataset.name).rng(str(rows)).permutation(candidates)[:rows]
    table = dataset.table.take(np.concatenate([np.sort(drawn), fixed]))
    if dataset.schema.classes and len(np.unique(table.y[:rows])) < len(dataset.schema.classes):
        raise DataError(f"{dataset.name}: {rows} rows lack a class; ask for more")
    return Dataset(
        f"{dataset.name}[rows={rows}]",
        dataset.schema,
        table,
        dataset.top,
        None if dataset.test_rows is None else np.arange(rows, rows + len(fixed)),
        (*dataset.notes, f"{rows} rows drawn from {len(candidates)}"),
    )


def repeated(dataset: Dataset, copies: int) -> Dataset:
    """Return a dataset that contains every row several times.

    Test rows that a published recipe fixes are not repeated.

    Parameters
    ----------
    dataset : Dataset
        The table.
    copies : int
        Number of copies of each row, 2 or more.

    Returns
    -------
    Dataset
        The table, `copies` times, followed by fixed test rows.

    Raises
    ------
    DataError
        If the number of copies is not an integer of 2 or more.
    """
    if isinstance(copies, bool) or not isinstance(copies, int) or copies < 2:
        raise DataError(f"{dataset.name}: copies={copies!r}; give a whole number of 2 or more")
    n = len(dataset.table)
    fixed = np.zeros(0, dtype=np.intp) if dataset.test_rows is None else dataset.test_rows
    # Copies of test rows would be training rows, and the utility would be overestimated.
    rows = np.tile(np.setdiff1d(np.arange(n), fixed), copies)
    return replace(
        dataset,
        name=f"{dataset.name}[copies={copies}]",
        table=dataset.table.take(np.concatenate([rows, fixed])),
        test_rows=None if not len(fixed) else np.arange(len(rows), len(rows) + len(fixed)),
        notes=(*dataset.notes, f"every row {copies} times"),
    )


def thinned(dataset: Dataset, missing: float) -> Dataset:
    """Return a dataset in which some cells are missing.

    The same cells are drawn at every call, and labels are never removed.

    Parameters
    ----------
    dataset : Dataset
        The table.
    missing : float
        Probability with which each cell is missing, between 0 and 1, both excluded.

    Returns
    -------
    Dataset
        Table with NaN in the drawn cells.

    Raises
    ------
    DataError
        If the probability is not a float between 0 and 1.
    """
    if not isinstance(missing, float) or not 0 < missing < 1:
        raise DataError(f"{dataset.name}: missing={missing!r}; give a share above 0 and below 1")
    table = dataset.table
    rng = Streams(0).child("missing", dataset.name).rng(str(missing))
    X = np.where(rng.random(table.X.shape) < missing, np.float32(np.nan), table.X)
    return replace(
        dataset,
        name=f"{dataset.name}[missing={missing:g}]",
        table=replace(table, X=X),
        notes=(*dataset.notes, f"{missing:.0%} of the cells made missing at random"),
    )

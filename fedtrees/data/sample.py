"""A named dataset with other rows: ``stroke[rows=1000]``, ``pima[copies=2]``, ``[missing=0.5]``."""

from dataclasses import replace

import numpy as np

from fedtrees.core.errors import DataError
from fedtrees.core.streams import Streams
from fedtrees.data.dataset import Dataset


def sample(dataset: Dataset, rows: int) -> Dataset:
    """Return a dataset of some of the rows, drawn at random and the same at every call.

    Raises `DataError` if the table has fewer, or the rows drawn lack a class.

    `dataset`: Where a recipe fixes the test rows they all stay; the rows are drawn from the others.
    `rows`: How many rows are drawn.
    """
    n = len(dataset.table)
    fixed = np.zeros(0, dtype=np.intp) if dataset.test_rows is None else dataset.test_rows
    others = np.setdiff1d(np.arange(n), fixed)
    if isinstance(rows, bool) or not isinstance(rows, int) or not 0 < rows <= len(others):
        raise DataError(f"{dataset.name}: rows={rows!r}; give 1 to {len(others)}")
    drawn = Streams(0).child("sample", dataset.name).rng(str(rows)).permutation(others)[:rows]
    table = dataset.table.take(np.concatenate([np.sort(drawn), fixed]))
    if dataset.schema.classes and len(np.unique(table.y[:rows])) < len(dataset.schema.classes):
        raise DataError(f"{dataset.name}: {rows} rows lack a class; ask for more")
    return Dataset(
        f"{dataset.name}[rows={rows}]",
        dataset.schema,
        table,
        dataset.top,
        None if dataset.test_rows is None else np.arange(rows, rows + len(fixed)),
        (*dataset.notes, f"{rows} rows drawn from {len(others)}"),
    )


def repeated(dataset: Dataset, copies: int) -> Dataset:
    """Return a dataset with every row so many times; test rows that a recipe fixes stay alone.

    Raises `DataError` if ``copies`` is no whole number of 2 or more.
    """
    if isinstance(copies, bool) or not isinstance(copies, int) or copies < 2:
        raise DataError(f"{dataset.name}: copies={copies!r}; give a whole number of 2 or more")
    n = len(dataset.table)
    fixed = np.zeros(0, dtype=np.intp) if dataset.test_rows is None else dataset.test_rows
    rows = np.tile(np.setdiff1d(np.arange(n), fixed), copies)
    return replace(
        dataset,
        name=f"{dataset.name}[copies={copies}]",
        table=dataset.table.take(np.concatenate([rows, fixed])),
        test_rows=None if not len(fixed) else np.arange(len(rows), len(rows) + len(fixed)),
        notes=(*dataset.notes, f"every row {copies} times"),
    )


def thinned(dataset: Dataset, missing: float) -> Dataset:
    """Return a dataset with cells made missing at random, the same at every call.

    `missing`: Probability that a cell goes missing, above 0 and below 1; labels stay.

    Raises `DataError` if ``missing`` is no such number.
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

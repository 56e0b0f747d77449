"""Variants of a dataset with other rows or cells.

Examples are ``stroke[rows=1000]``, ``pima[copies=2]`` and ``pima[missing=0.5]``.
"""

from dataclasses import replace

import numpy as np

from fedtrees.core.errors import DataError
from fedtrees.core.streams import Streams
from fedtrees.data.dataset import Dataset


def sample(dataset: Dataset, rows: int) -> Dataset:
    """Return a dataset with some of the rows, drawn at random.

    The same rows are drawn at every call. If a published recipe fixes the test rows, all of them
    remain, and the rows are drawn from the remaining ones.

    Raises `DataError` if the table has fewer than `rows` rows, or if the drawn rows lack a class.
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
    """Return a dataset that contains every row `copies` times.

    Test rows that a published recipe fixes are not repeated. Raises `DataError` if ``copies`` is
    not an integer of 2 or more.
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
    """Return a dataset in which each cell is missing with probability `missing`.

    The same cells are drawn at every call, and labels are never removed. Raises `DataError` if
    ``missing`` is not a float between 0 and 1, both excluded.
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

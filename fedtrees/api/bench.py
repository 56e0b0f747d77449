"""Run a benchmark from Python. It is the same as `fedtrees bench`, and returns a `Run`."""

import inspect
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from fedtrees.api.run import Run
from fedtrees.bench.options import BenchOptions, tell
from fedtrees.core.errors import DataError, StoreError, UsageError, did_you_mean
from fedtrees.data.spreadsheets import with_index_columns
from fedtrees.report.states import MARGIN

_TABLE = "table"  # name of the CSV file in the run folder to which a table from memory is written
_TARGET = "target"


def bench(**options: Any) -> Run:
    """Train federations with and without defenses, attack them, and return the results.

    The parameters are the options of ``fedtrees bench``. An option that can be repeated there is a
    list here.

    Parameters
    ----------
    data : str, list of str, DataFrame, or (X, y), optional
        Names of datasets, or a table. A table is a DataFrame with a column `target`, or rows of
        shape (n, d) and labels of shape (n,). It is interpreted like the CSV file to which it can
        be written: `task`, `positive`, `categorical`, `keep` and `drop` replace inferred
        properties.
    **options
        All options of ``fedtrees bench --help``, with underscores instead of hyphens.

    Returns
    -------
    run : Run
        The run folder with its results.

    Raises
    ------
    UsageError, DataError, StoreError
        As the command.

    Examples
    --------

    >>> import fedtrees
    >>> run = fedtrees.bench(suite="smoke", out="runs/smoke")  # doctest: +SKIP
    >>> print(run.verdict)  # doctest: +SKIP
    """
    for name in options:
        if name not in (names := inspect.signature(BenchOptions).parameters):
            raise UsageError(f"fedtrees.bench has no option {name!r}{did_you_mean(name, names)}")
    # If the benchmark cannot begin, the files that were written for it are removed.
    with ExitStack() as refused:
        if _is_table(options.get("data")):
            options, new = _with_table_written(options)
            refused.callback(_remove, new)
        settings = BenchOptions(**options)
        session = settings.session()
        tell(session.notes)
        session.open(settings.resume)
        refused.pop_all()
    session.run()
    return Run(session.folder, MARGIN if settings.margin is None else settings.margin)


bench.__signature__ = inspect.signature(BenchOptions).replace(return_annotation="Run")  # type: ignore[attr-defined]


def _with_table_written(options: dict[str, Any]) -> tuple[dict[str, Any], list[Path]]:
    """Write a table from memory to a file. Return the options that name it, and the new files."""
    from fedtrees.bench.session import fresh_folder
    from fedtrees.bench.suite import CHANGED

    if options.get("csv") or options.get("id"):
        raise UsageError("give data as a table, or csv, not both")
    if options.get("client_column"):
        raise UsageError("client_column is for csv: write the table to a file, and name it")
    frame, target = _frame(options["data"], options.get("target") or "")
    # Text in a DataFrame is always a value, also "None" and "NA". Missing values are written as
    # empty cells.
    missing = options.get("missing") or [""]
    options = {**options, "data": None, "target": target, "missing": missing}
    settings = BenchOptions(**{**options, "csv": f"{_TABLE}.csv"})
    folder = Path(settings.out) if settings.out else fresh_folder(Path("runs"), CHANGED)
    new = _new(folder)
    return {**options, "out": folder, "csv": str(_write(frame, folder))}, new


def _is_table(data: Any) -> bool:
    """Return whether the option ``data`` is a table instead of names."""
    return isinstance(data, (pd.DataFrame, tuple)) and not (
        isinstance(data, tuple) and all(isinstance(part, str) for part in data)
    )


def _frame(data: Any, target: str) -> tuple[pd.DataFrame, str]:
    """Return a table from memory with its target as a column, and the target's name.

    Raises `DataError` if the parts do not fit. Raises `UsageError` if no target is named.
    """
    if isinstance(data, pd.DataFrame):
        if not target:
            columns = ", ".join(map(str, data.columns[:60]))
            raise UsageError(f"a DataFrame needs target=COLUMN; the columns are {columns}")
        return with_index_columns(data), target
    if len(data) != 2:
        raise DataError(f"data is a tuple of {len(data)}; give (X, y)")
    X, y = data
    if not isinstance(X, pd.DataFrame):
        rows = np.asarray(X)
        if rows.ndim != 2:
            raise DataError(f"X has the shape {rows.shape}; give rows and columns, (n, d)")
        X = pd.DataFrame(rows, columns=[f"x{k}" for k in range(rows.shape[1])])
    labels = np.asarray(y)
    if labels.shape != (len(X),):
        raise DataError(f"{len(X)} rows in X but y of shape {labels.shape}; give one label a row")
    name = target or str(getattr(y, "name", None) or _TARGET)
    if name in X.columns:
        raise UsageError(f"X has a column {name!r}, too; name y otherwise: target=NAME")
    return X.assign(**{name: labels}), name


def _write(frame: pd.DataFrame, folder: Path) -> Path:
    """Write a table from memory into the run folder.

    Raises `StoreError` if the folder contains another table, which is not overwritten.
    """
    from fedtrees.bench.store import FOR_OWNER

    path = folder / f"{_TABLE}.csv"
    text = frame.to_csv(index=False)
    try:
        folder.mkdir(FOR_OWNER, parents=True, exist_ok=True)
        if path.exists() and path.read_text(encoding="utf-8") != text:
            raise StoreError(f"{folder} holds a run of another table; choose another out")
        path.write_text(text, encoding="utf-8")
    except OSError as error:
        raise StoreError(f"cannot write {path}: {error.strerror or error}") from error
    return path


def _new(folder: Path) -> list[Path]:
    """Return the file of the table and the folders above it, as far as they do not exist."""
    missing_paths = []
    for path in (folder / f"{_TABLE}.csv", folder, *folder.parents):
        if path.exists():
            break
        missing_paths.append(path)
    return missing_paths


def _remove(paths: Sequence[Path]) -> None:
    """Remove a file, and the folders above it if they are empty."""
    for path in paths:
        try:
            path.rmdir() if path.is_dir() else path.unlink(missing_ok=True)
        except OSError:  # the folder contains something else
            return

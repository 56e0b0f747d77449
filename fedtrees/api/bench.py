"""The bench from Python: it runs what `fedtrees bench` runs, and gives what it found."""

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

_TABLE = "table"  # a table from memory is a CSV file of this name in the run folder
_TARGET = "target"


def bench(**options: Any) -> Run:
    """Train federations with and without defenses, attack them, and return what leaked.

    Parameters are the options of ``fedtrees bench``; what may be repeated there is a list here.

    Parameters
    ----------
    data : str, list of str, DataFrame, or (X, y), optional
        Names of datasets, or a table: a DataFrame with its column `target`, or rows of shape
        (n, d) and labels of shape (n,). It is read as the CSV file would be that it makes:
        `task`, `positive`, `categorical`, `keep` and `drop` say what is not to be inferred.

    Returns
    -------
    Run

    Raises
    ------
    UsageError, DataError, StoreError
        As the command says.
    """
    for name in options:
        if name not in (known := inspect.signature(BenchOptions).parameters):
            raise UsageError(f"fedtrees.bench has no option {name!r}{did_you_mean(name, known)}")
    with ExitStack() as refused:  # what was written for a bench that never began goes again
        if _is_table(options.get("data")):
            options, new = _with_table_written(options)
            refused.callback(_remove, new)
        given = BenchOptions(**options)
        session = given.session()
        tell(session.notes)
        session.open(given.resume)
        refused.pop_all()
    session.run()
    return Run(session.folder, MARGIN if given.margin is None else given.margin)


bench.__signature__ = inspect.signature(BenchOptions).replace(return_annotation="Run")  # type: ignore[attr-defined]


def _with_table_written(options: dict[str, Any]) -> tuple[dict[str, Any], list[Path]]:
    """Return the options with a table from memory as a file, and what was made for it."""
    from fedtrees.bench.session import fresh_folder
    from fedtrees.bench.suite import CHANGED

    if options.get("csv") or options.get("id"):
        raise UsageError("give data as a table, or csv, not both")
    if options.get("client_column"):
        raise UsageError("client_column is for csv: write the table to a file, and name it")
    frame, target = _frame(options["data"], options.get("target") or "")
    # Text of a DataFrame is a value, also None and NA; missing values are written as empty cells.
    missing = options.get("missing") or [""]
    options = {**options, "data": None, "target": target, "missing": missing}
    given = BenchOptions(**{**options, "csv": f"{_TABLE}.csv"})
    folder = Path(given.out) if given.out else fresh_folder(Path("runs"), CHANGED)
    new = _new(folder)
    return {**options, "out": folder, "csv": str(_write(frame, folder))}, new


def _is_table(data: Any) -> bool:
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
    """Write a table from memory into the run folder; one of another content stays as it is."""
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
    """Return the table in a run folder, and the folders above it, that are not there yet."""
    found = []
    for path in (folder / f"{_TABLE}.csv", folder, *folder.parents):
        if path.exists():
            break
        found.append(path)
    return found


def _remove(paths: Sequence[Path]) -> None:
    """Remove a file and the folders above it that hold nothing else."""
    for path in paths:
        try:
            path.rmdir() if path.is_dir() else path.unlink(missing_ok=True)
        except OSError:  # something else is in it
            return

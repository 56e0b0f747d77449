"""Run a benchmark from Python. `bench` does the same as `fedtrees bench`, and returns a `Run`."""

import warnings
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any, Never

import numpy as np
import pandas as pd

from fedtrees.api.run import Run
from fedtrees.core.attack import Attack
from fedtrees.core.composition import Composition
from fedtrees.core.defense import Defense
from fedtrees.core.errors import DataError, StoreError, UsageError, did_you_mean
from fedtrees.data.table_files import with_index_columns
from fedtrees.experiments.options import BenchOptions, print_notes
from fedtrees.protocols.base import Protocol
from fedtrees.report.leakage import MARGIN

#: One name or several.
Names = str | Sequence[str]
_TABLE = "table"  # name of the CSV file in the run folder to which a table from memory is written
_TARGET = "target"
_OLD_OUTPUT = "out"  # name of the parameter `output` in the previous release


def bench(
    data: Names | pd.DataFrame | tuple[Any, Any] = (),
    *,
    protocol: Names | Protocol | Sequence[str | Protocol] = (),
    defense: Names | Defense | Composition | Sequence[str | Defense | Composition] = (),
    attack: Names | Attack | Sequence[str | Attack] = (),
    csv: Names | Path = (),
    target: str = "",
    task: str = "",
    positive: str = "",
    id: str = "",
    client_column: str = "",
    categorical: Names = (),
    keep: Names = (),
    drop: Names = (),
    sep: str = "",
    decimal: str = "",
    missing: Names = (),
    sheet: str = "",
    partition: Names = (),
    clients: int | Sequence[int] = (),
    threat: Names = (),
    seeds: str | int | Sequence[int] | None = None,
    suite: str = "",
    jobs: int | None = None,
    output: str | Path = "",
    resume: bool = False,
    time_limit: float | None = None,
    memory: float = 0.0,
    margin: float | None = None,
    data_dir: str | Path | None = None,
    plugin: Names | Path = (),
    unprotected: bool = False,
    **unknown: Never,
) -> Run:
    """Train federations with and without defenses, attack them, and return the results.

    The parameters are the options of the command ``fedtrees bench``. An option that can be repeated
    there is a list here.

    Parameters
    ----------
    data : str, sequence of str, DataFrame, or (X, y), optional
        Names of datasets (see ``fedtrees list datasets``), or a table. A table is a DataFrame with
        a column `target`, or rows of shape (n, d) and labels of shape (n,). It is interpreted like
        the CSV file to which it can be written: `task`, `positive`, `categorical`, `keep` and
        `drop` replace inferred properties.
    protocol : str, Protocol, or a sequence of them, optional
        Protocols, with grids: fedtree-hist[max_depth=3,6]. Instances of registered classes are
        accepted, too.
    defense : str, Defense, Composition, or a sequence of them, optional
        Defenses, with grids: split-only, laplace-hist[epsilon=1,4]. Instances of registered
        classes are accepted, too.
    attack : str, Attack, or a sequence of them, optional
        Attacks, with parameters.
    csv : str or sequence of str, optional
        Your table: CSV, .xlsx, .parquet or .feather. Repeat the option to give one file per
        client or, with `id`, one file per vertical party.
    target : str, optional
        Target column of `csv`.
    task : str, optional
        Kind of the target of `csv`: binary, classes or number (default: inferred).
    positive : str, optional
        Positive class of `csv`.
    id : str, optional
        Column by which the files of vertical parties are joined. The file with labels comes
        first.
    client_column : str, optional
        Column of `csv` with the name of the client that has the row.
    categorical : str or sequence of str, optional
        Further columns of `csv` to treat as categories (repeat the option, or separate by
        commas).
    keep : str or sequence of str, optional
        Columns of `csv` to use although they look like ids, dates or free text.
    drop : str or sequence of str, optional
        Columns of `csv` to leave out.
    sep : str, optional
        Separator of the CSV file, one character or 'tab' (default: inferred).
    decimal : str, optional
        Decimal mark of `csv`, . or , for columns whose values do not show it.
    missing : str or sequence of str, optional
        Marks of missing cells of `csv`, in addition to empty cells (repeat the option, or
        separate by commas; '': none). Default marks include NA, N/A, nan, null, none, ? and
        -.
    sheet : str, optional
        Sheet of an .xlsx file, by name or number.
    partition : str or sequence of str, optional
        iid, label-skew[alpha=], quantity-skew, ...
    clients : int or sequence of int, optional
        Number of parties with data.
    threat : str or sequence of str, optional
        Adversaries instead of the default ones: client, client[count=2], server, public,
        server+client (together); passive, active.
    seeds : int, sequence of int, or str, optional
        A number of seeds, or a list such as 0,1,2 (default: as in the suite).
    suite : str, optional
        smoke, quick (default), full, or a .toml file.
    jobs : int, optional
        Processes (default: all cores).
    output : str, optional
        Run folder (default: runs/SUITE, or runs/custom if options change the suite).
    resume : bool, optional
        Continue the run in `output`. Finished cells are not computed again.
    time_limit : float, optional
        Time limit of one training or attack in seconds (0: no limit).
    memory : float, optional
        Memory limit of one training or attack in GiB (0: no limit).
    margin : float, optional
        Largest advantage over a blind guess that counts as no leak (default: 0.05).
    data_dir : str, optional
        Folder with data files (default: $FEDTREES_DATA, or a folder of the user).
    plugin : str or sequence of str, optional
        Python file with @register decorators (repeatable).
    unprotected : bool, optional
        Run attacks of plug-ins even if the system cannot restrict them (no Landlock).
    **unknown
        Any other name raises `UsageError`. An exception is ``out``, the former name of `output`,
        which works in this release with a `DeprecationWarning`.

    Returns
    -------
    run : Run
        The run folder with its results.

    Raises
    ------
    UsageError
        If a name or an option is unknown, a value is out of range, or options contradict each
        other.
    DataError
        If a table cannot be used.
    StoreError
        If the run folder cannot be written, or contains another run.

    Examples
    --------
    >>> import fedtrees
    >>> run = fedtrees.bench(suite="smoke", output="runs/smoke")  # doctest: +SKIP
    >>> print(run.verdict)  # doctest: +SKIP
    """
    options = dict(locals())
    unknown = options.pop("unknown")
    if _OLD_OUTPUT in unknown:
        text = (
            "fedtrees.bench(out=...) is now output=...; the old name is removed in the next release"
        )
        warnings.warn(text, DeprecationWarning, stacklevel=2)
        options["output"] = output or unknown.pop(_OLD_OUTPUT)
    for name in unknown:
        raise UsageError(f"fedtrees.bench has no option {name!r}{did_you_mean(name, options)}")
    # If the benchmark cannot begin, the files that were written for it are removed.
    with ExitStack() as refused:
        options, new = with_table_written(options)
        refused.callback(remove_files, new)
        settings = BenchOptions(**options)
        session = settings.session()
        print_notes(session.notes)
        session.open(settings.resume)
        refused.pop_all()
    session.run()
    return Run(session.folder, MARGIN if settings.margin is None else settings.margin)


def with_table_written(options: dict[str, Any]) -> tuple[dict[str, Any], list[Path]]:
    """Write a table from memory to a file, if the option ``data`` is one.

    Return the options that name the file, and the new files and folders.
    """
    from fedtrees.experiments.session import fresh_folder
    from fedtrees.experiments.suite import CHANGED

    if not _is_table(options["data"]):
        return options, []
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
    folder = Path(settings.output) if settings.output else fresh_folder(Path("runs"), CHANGED)
    new = _new(folder)
    return {**options, "output": folder, "csv": str(_write(frame, folder))}, new


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
    from fedtrees.experiments.store import FOR_OWNER

    path = folder / f"{_TABLE}.csv"
    text = frame.to_csv(index=False)
    try:
        folder.mkdir(FOR_OWNER, parents=True, exist_ok=True)
        if path.exists() and path.read_text(encoding="utf-8") != text:
            raise StoreError(f"{folder} contains a run of another table; choose another output")
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


def remove_files(paths: Sequence[Path]) -> None:
    """Remove a file, and the folders above it if they are empty."""
    for path in paths:
        try:
            path.rmdir() if path.is_dir() else path.unlink(missing_ok=True)
        except OSError:  # the folder contains something else
            return

"""The bench from Python: it runs what `fedtrees bench` runs, and gives what it found."""

from __future__ import annotations

import shutil
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd

from fedtrees.core.errors import DataError, StoreError, UsageError
from fedtrees.core.rows import COLUMNS
from fedtrees.report.states import MARGIN

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from fedtrees.report.study import Study

Several = str | Sequence[str] | None
_TABLE = "table"  # a table from memory is a CSV file of this name in the run folder
_TARGET = "target"


@dataclass(frozen=True)
class Run:
    """A run folder and what is in it.

    Parameters
    ----------
    folder : path
        As `fedtrees bench` or `fedtrees.bench` wrote it.
    margin : float
        Advantage that counts as down to blind.
    """

    folder: Path
    margin: float = MARGIN

    def __post_init__(self) -> None:
        object.__setattr__(self, "folder", Path(self.folder))

    @cached_property
    def _study(self) -> Study:
        from fedtrees.cli.results import study_of

        return study_of(self.folder, None, self.margin)

    @property
    def frame(self) -> pd.DataFrame:
        """One row per cell and metric; guarantees are text."""
        from fedtrees.core.guarantee import join

        found = self._study.rows[[column.name for column in COLUMNS]].copy()
        for column in (c.name for c in COLUMNS if c.kind == "guarantee"):
            found[column] = [join(g) if g else "" for g in found[column]]
        return found

    @property
    def verdict(self) -> str:
        """What the run says, a line for each thing that a reader decides on."""
        from fedtrees.report.verdict_text import verdict

        return str(verdict(self._study.findings))

    def _repr_html_(self) -> str:
        """Return the report in a frame of its own, for notebooks."""
        from html import escape

        from fedtrees.report.html import render

        page = escape(render(self.folder, self.margin), quote=True)
        return f'<iframe srcdoc="{page}" width="100%" height="900" style="border:0"></iframe>'

    def figure(self, path: str | Path | None = None, **options: Any) -> Figure | Path:
        """Return the frontier as a matplotlib figure, or write it; see `fedtrees.report.plot`.

        Parameters
        ----------
        path : path, optional
            ``.html``, ``.svg``, ``.png`` or ``.pdf``.
        **options
            ``data``, ``threat``, ``protocol``, ``metric``, ``utility``, ``width``, ``labels``.
        """
        from fedtrees.report.plot import frontier_of, plot

        chosen, options = _chosen(options)
        if path is None:
            metric, utility = options.pop("metric", None), options.pop("utility", None)
            return frontier_of(self.folder, metric, utility, chosen=chosen, **options)
        return plot(self.folder, path, chosen=chosen, **options)

    def table(self, path: str | Path | None = None, **options: Any) -> pd.DataFrame | Path:
        """Return the numbers of the paper's table, or write it.

        Parameters
        ----------
        path : path, optional
            ``.tex``, ``.csv`` or ``.md``.
        **options
            ``data``, ``threat``, ``protocol``, ``metric``, ``utility``, ``labels``; see
            `fedtrees.report.paper_table.table_of`.
        """
        from fedtrees.report.paper_table import table_of, write_table

        chosen, options = _chosen(options)
        made = table_of([self.folder], chosen=chosen, **options)
        return made.frame() if path is None else write_table(made, path)

    def report(self) -> Path:
        """Write the HTML report into the folder and return its path."""
        from fedtrees.report.html import write_report

        return write_report(self.folder, margin=self.margin)

    def save(self, path: str | Path) -> Run:
        """Copy the folder; the command line reads the copy, too.

        Raises `StoreError` if there is something already, or it cannot be written.
        """
        if Path(path).exists():
            raise StoreError(f"{path} is there already; give another path, or remove it first")
        try:
            return Run(Path(shutil.copytree(self.folder, path)), self.margin)
        except (OSError, shutil.Error) as error:
            raise StoreError(f"cannot write {path}: {error}; make room or permission") from error


def bench(
    *,
    protocol: Several = None,
    defense: Several = None,
    attack: Several = None,
    data: Any = None,
    csv: Several = None,
    target: str = "",
    task: str = "",
    positive: str = "",
    id: str = "",
    client_column: str = "",
    categorical: Several = None,
    keep: Several = None,
    drop: Several = None,
    sep: str = "",
    partition: Several = None,
    clients: int | Sequence[int] | None = None,
    threat: Several = None,
    seeds: int | str | Sequence[int] | None = None,
    suite: str | None = None,
    jobs: int | None = None,
    out: str | Path | None = None,
    resume: bool = False,
    time_limit: float | None = None,
    margin: float | None = None,
    data_dir: str | None = None,
    plugin: Several = None,
) -> Run:
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
    from fedtrees.bench.session import Bench, default_workers
    from fedtrees.cli.bench import suite_of
    from fedtrees.cli.options import by_client, csv_table, load_plugins, tell
    from fedtrees.report.states import check_margin

    check_margin(MARGIN if margin is None else margin)
    plugins = load_plugins(several(plugin, "plugin"))
    named = None if data is None or _is_table(data) else several(data, "data")
    frame = None
    if _is_table(data):
        if csv is not None or id:
            raise UsageError("give data as a table, or csv, not both")
        frame, target = _frame(data, target)
        if client_column:
            raise UsageError("client_column is for csv: write the table to a file, and name it")
        csv = f"{_TABLE}.csv"
    table = csv_table(
        None if csv is None else several(csv, "csv"), named, target, task=task, positive=positive,
        id=id, client_column=client_column, sep=sep,
        categorical=several(categorical, "categorical"), keep=several(keep, "keep"),
        drop=several(drop, "drop"),
    )  # fmt: skip
    options = {
        "protocols": several(protocol, "protocol"),
        "defenses": several(defense, "defense"),
        "attacks": several(attack, "attack"),
        "partitions": several(partition, "partition"),
        "clients": [clients] if isinstance(clients, int) else list(clients or ()),
        "threats": several(threat, "threat"),
        "data": [table] if table else named,
    }
    given = {k: v for k, v in options.items() if v}
    if frame is None:
        given = by_client(table, given, data_dir)
    text = seeds if isinstance(seeds, str) or seeds is None else _seeds(seeds)
    where = None if out is None else str(out)
    workers = default_workers() if jobs is None else jobs
    if workers < 1:
        raise UsageError(f"jobs={jobs}: give 1 or more")
    with ExitStack() as refused:  # what was written for a bench that never began goes again
        if frame is not None:
            rest = {k: v for k, v in given.items() if k != "data"}
            _, folder = suite_of(rest, text, suite, where, resume, time_limit)
            where = str(folder)
            refused.callback(_remove, _new(folder))
            given["data"] = [{**(table or {}), "csv": str(_write(frame, folder))}]
        chosen, folder = suite_of(given, text, suite, where, resume, time_limit, data_dir)
        session = Bench(chosen, folder, workers, data_dir, plugins)
        tell(session.notes)
        session.open(resume)
        refused.pop_all()
    session.run()
    return Run(folder, MARGIN if margin is None else margin)


def several(given: Several, name: str = "") -> list[str]:
    """Return what an option of one text or several was given.

    Raises `UsageError`: it is neither. `name`: Of the option.
    """
    found = [given] if isinstance(given, str) else given
    if found is None or (isinstance(found, Sequence) and all(isinstance(t, str) for t in found)):
        return list(found or ())
    table = ", a DataFrame or (X, y)" if name == "data" else ""
    raise UsageError(f"{name}={given!r}: give a text or a list of texts{table}")


def _seeds(seeds: int | Sequence[int]) -> str:
    return str(seeds) if isinstance(seeds, int) else ",".join(map(str, seeds)) + ","


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
        return data, target
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


def _chosen(options: Mapping[str, Any]) -> tuple[Any, dict[str, Any]]:
    """Take what is to be shown out of the options of a figure or a table."""
    from fedtrees.report.selection import Selection

    keys = ("data", "threat", "protocol")
    chosen = Selection(*(tuple(several(options.get(key), key)) for key in keys))
    return chosen, {k: v for k, v in options.items() if k not in keys}

"""A run from Python: its rows, verdict, figures, tables and report."""

from __future__ import annotations

import shutil
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pandas as pd

from fedtrees.core.errors import StoreError
from fedtrees.core.rows import COLUMNS
from fedtrees.report.states import MARGIN

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from fedtrees.report.study import Study


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
        from fedtrees.report.study import study_of

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

        page = escape(render(self._study), quote=True)
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
        from fedtrees.report.html import write_page

        return write_page(self._study)

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


def _chosen(options: Mapping[str, Any]) -> tuple[Any, dict[str, Any]]:
    """Take what is to be shown out of the options of a figure or a table."""
    from fedtrees.bench.options import several
    from fedtrees.report.selection import Selection

    keys = ("data", "threat", "protocol")
    chosen = Selection(*(several(options.get(key), key) for key in keys))
    return chosen, {k: v for k, v in options.items() if k not in keys}

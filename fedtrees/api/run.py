"""Access the results of a run from Python: rows, verdict, figures, tables and report."""

from __future__ import annotations

import shutil
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pandas as pd

from fedtrees.core.errors import StoreError
from fedtrees.core.results import COLUMNS
from fedtrees.report.leakage import MARGIN

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from fedtrees.report.findings import RunAnalysis


@dataclass(frozen=True)
class Run:
    """The results in a run folder.

    Parameters
    ----------
    folder : str or Path
        Folder that `fedtrees bench` or `fedtrees.bench` has written.
    margin : float
        Largest advantage under a defense that counts as no better than a blind guess.
    """

    folder: Path
    margin: float = MARGIN

    def __post_init__(self) -> None:
        object.__setattr__(self, "folder", Path(self.folder))

    @cached_property
    def _analysis(self) -> RunAnalysis:
        """The rows of the run and the results that are derived from them."""
        from fedtrees.report.findings import analyze_run

        return analyze_run(self.folder, None, self.margin)

    @property
    def frame(self) -> pd.DataFrame:
        """The rows as a DataFrame, one per cell and metric. Guarantees are texts."""
        from fedtrees.core.guarantee import join

        rows = self._analysis.rows[[column.name for column in COLUMNS]].copy()
        for column in (c.name for c in COLUMNS if c.kind == "guarantee"):
            rows[column] = [join(g) if g else "" for g in rows[column]]
        return rows

    @property
    def verdict(self) -> str:
        """The verdict of the run, with one entry per decision of a reader."""
        from fedtrees.report.verdict import verdict

        return str(verdict(self._analysis))

    def _repr_html_(self) -> str:
        """Return the report in a separate frame, for notebooks."""
        from html import escape

        from fedtrees.report.page import render_report as render

        page = escape(render(self._analysis), quote=True)
        return f'<iframe srcdoc="{page}" width="100%" height="900" style="border:0"></iframe>'

    def figure(self, path: str | Path | None = None, **options: Any) -> Figure | Path:
        """Return the frontier as a matplotlib figure, or write it to a file.

        Parameters
        ----------
        path : str or Path, optional
            File to write, ending in ``.html``, ``.svg``, ``.png`` or ``.pdf``.
        **options
            ``data``, ``threat``, ``protocol``, ``metric``, ``utility``, ``width``, ``labels``, see
            `fedtrees.report.figures.plot`.

        Returns
        -------
        figure : matplotlib.figure.Figure or Path
            The figure, or the written file.
        """
        from fedtrees.report.figures.plot import frontier_of, plot

        chosen, options = _chosen(options)
        if path is None:
            metric, utility = options.pop("metric", None), options.pop("utility", None)
            return frontier_of(self.folder, metric, utility, chosen=chosen, **options)
        return plot(self.folder, path, chosen=chosen, **options)

    def table(self, path: str | Path | None = None, **options: Any) -> pd.DataFrame | Path:
        """Return the numbers of the table for a paper, or write the table to a file.

        Parameters
        ----------
        path : str or Path, optional
            File to write, ending in ``.tex``, ``.csv`` or ``.md``.
        **options
            ``data``, ``threat``, ``protocol``, ``metric``, ``utility``, ``labels``, see
            `fedtrees.report.paper_table.table_of`.

        Returns
        -------
        table : DataFrame or Path
            The numbers, or the written file.
        """
        from fedtrees.report.paper_table import table_of, write_table

        chosen, options = _chosen(options)
        table = table_of([self.folder], chosen=chosen, **options)
        return table.frame() if path is None else write_table(table, path)

    def report(self) -> Path:
        """Write the HTML report into the run folder, and return its path."""
        from fedtrees.report.page import write_page

        return write_page(self._analysis)

    def save(self, path: str | Path) -> Run:
        """Copy the run folder. The command line can read the copy, too.

        Raises `StoreError` if the path exists or cannot be written.
        """
        if Path(path).exists():
            raise StoreError(f"{path} is there already; give another path, or remove it first")
        try:
            return Run(Path(shutil.copytree(self.folder, path)), self.margin)
        except (OSError, shutil.Error) as error:
            raise StoreError(f"cannot write {path}: {error}; make room or permission") from error


def _chosen(options: Mapping[str, Any]) -> tuple[Any, dict[str, Any]]:
    """Split options into the selection of rows to show and the remaining options."""
    from fedtrees.experiments.options import parse_texts as several
    from fedtrees.report.results import Selection

    keys = ("data", "threat", "protocol")
    chosen = Selection(*(several(options.get(key), key) for key in keys))
    return chosen, {k: v for k, v in options.items() if k not in keys}

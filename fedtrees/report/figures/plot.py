"""Write the figures of a run to a file. The suffix of the file selects html, svg, png or pdf."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, get_args

from fedtrees.core.errors import UsageError, did_you_mean
from fedtrees.core.files import write_text
from fedtrees.report.figures.model import palette
from fedtrees.report.figures.static import Width, frontier, save
from fedtrees.report.findings import VERDICT, RunAnalysis
from fedtrees.report.frontier import unswept
from fedtrees.report.results import Selection, load_rows, merge_runs

if TYPE_CHECKING:
    from matplotlib.figure import Figure as Drawn

SUFFIXES = ("html", "svg", "png", "pdf")
EVERYTHING = Selection()
#: One run folder, or several whose rows are drawn together.
Runs = str | Path | Sequence[str | Path]


def plot(
    run_folder: Runs,
    out_path: str | Path,
    metric: str | None = None,
    utility: str | None = None,
    *,
    chosen: Selection = EVERYTHING,
    width: Width | None = None,
    labels: Mapping[str, str] | None = None,
) -> Path:
    """Plot one run or several: utility against worst-case advantage.

    Parameters
    ----------
    run_folder : str, Path or sequence of these
        Folders with ``rows.csv``. Defenses of several runs are drawn in one panel if table,
        partition, protocol and threat are equal. A cell that several runs contain is taken from the
        first.
    out_path : str or Path
        File to write. ``.html`` is interactive and self-contained. ``.svg``, ``.png`` and ``.pdf``
        are formatted for a paper (3.3 inches for one panel, 7 inches for several, type of 7 and 8
        points).
    metric, utility : str, optional
        Metrics on the axes. By default, that of the gravest leak of each adversary, which the
        verdict reports, and the first utility metric (see `fedtrees.report.frontier`).
    chosen : Selection
        Datasets, threats, protocols and defenses to show.
    width : {"column", "page"}, optional
        3.3 or 7 inches, for a frontier in a paper.
    labels : mapping of str to str, optional
        Labels for a frontier in a paper, by name: datasets, protocols, threats, defenses,
        references, metrics, and entries of the legend.

    Returns
    -------
    path : Path
        The written file.

    Raises
    ------
    UsageError
        If the suffix, a metric, the width, or a name to show or to label is not valid, or if the
        run contains no attack.
    StoreError
        If the rows cannot be read or the file cannot be written.
    """
    out = Path(out_path)
    suffix = out.suffix[1:].lower()
    if suffix not in SUFFIXES:
        raise UsageError(f"cannot write {out.name!r}: end the name in .{', .'.join(SUFFIXES)}")
    if (width or labels) and suffix == "html":
        raise UsageError(
            f"cannot apply --width or --label to {out.name!r}, because they are only for .svg, "
            ".png and .pdf; end the name in one of these, or leave the option out"
        )
    _check_width(width)
    analysis = _analyze(run_folder, chosen, metric, utility)
    if suffix == "html":
        from fedtrees.report.figures.interactive import render_html

        return write_text(out, render_html(analysis.frontiers))
    return save(_frontier(analysis, width, labels), out)


def frontier_of(
    run_folder: Runs,
    metric: str | None = None,
    utility: str | None = None,
    *,
    chosen: Selection = EVERYTHING,
    width: Width | None = None,
    labels: Mapping[str, str] | None = None,
) -> Drawn:
    """Return the frontier of a run as a matplotlib figure.

    Parameters
    ----------
    run_folder : str or Path
        Folder with ``rows.csv``.
    metric, utility : str, optional
        Metrics on the axes. By default, that of the gravest leak of each adversary, which the
        verdict reports, and the first utility metric (see `fedtrees.report.frontier`).
    chosen : Selection
        Datasets, threats, protocols and defenses to show.
    width : {"column", "page"}, optional
        3.3 or 7 inches.
    labels : mapping of str to str, optional
        Labels by name, as in `plot`.

    Raises
    ------
    UsageError
        If a metric, the width, or a name is not valid, or if the run contains no attack.
    StoreError
        If the rows cannot be read.
    """
    _check_width(width)
    return _frontier(_analyze(run_folder, chosen, metric, utility), width, labels)


def _frontier(
    analysis: RunAnalysis, width: Width | None, labels: Mapping[str, str] | None
) -> Drawn:
    """Draw the frontiers of a run. Panels that differ in one protocol parameter are joined."""
    joined = {(f.panel.setting, f.panel.threat) for f in analysis.over_budgets}
    rest = [
        f for f in analysis.frontiers if (unswept(f.panel.setting), f.panel.threat) not in joined
    ]
    every = (*analysis.frontiers, *analysis.over_budgets)
    colours = palette(p.family for f in every for p in f.points)
    return frontier([*analysis.over_budgets, *rest], colours, width, labels)


def _analyze(
    run_folder: Runs, chosen: Selection, metric: str | None, utility: str | None
) -> RunAnalysis:
    """Load the selected part of the runs. Raise `UsageError` if it contains no attack."""
    folders = [run_folder] if isinstance(run_folder, str | Path) else list(run_folder)
    if not folders:
        raise UsageError("no run to plot; give the folder of a run")
    rows = merge_runs([(str(folder), load_rows(folder)) for folder in folders])
    analysis = RunAnalysis(Path(folders[0]), chosen.of(rows), metric or VERDICT, utility)
    if not analysis.panels:
        raise UsageError(
            "the selected part of this run contains no attack, so that there is nothing to plot"
        )
    return analysis


def _check_width(width: Width | None) -> None:
    """Raise `UsageError` if a width is unknown."""
    if width not in (None, *get_args(Width)):
        raise UsageError(f"unknown width {width!r}{did_you_mean(str(width), get_args(Width))}")

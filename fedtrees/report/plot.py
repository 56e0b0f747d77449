"""Write the figures of a run to a file whose suffix says how: html, svg, png or pdf."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from html import escape
from pathlib import Path
from typing import TYPE_CHECKING, Literal, get_args

from fedtrees.core.errors import UsageError, did_you_mean
from fedtrees.core.files import write_text
from fedtrees.report.paper import Width
from fedtrees.report.paper_table import together
from fedtrees.report.protocol_budgets import unswept
from fedtrees.report.rows import load_rows
from fedtrees.report.selection import Selection
from fedtrees.report.study import Study
from fedtrees.report.web_page import inline_scripts, security_policy

if TYPE_CHECKING:
    from matplotlib.figure import Figure as Drawn

SUFFIXES = ("html", "svg", "png", "pdf")
Figure = Literal["frontier", "heatmap"]
EVERYTHING = Selection()
#: One run folder, or several whose rows are drawn together.
Runs = str | Path | Sequence[str | Path]


def plot(
    run_folder: Runs,
    out_path: str | Path,
    metric: str | None = None,
    utility: str | None = None,
    figure: Figure = "frontier",
    *,
    chosen: Selection = EVERYTHING,
    width: Width | None = None,
    labels: Mapping[str, str] | None = None,
) -> Path:
    """Plot one run or several: utility against worst-case advantage, or advantage per attack.

    Raises `UsageError`: an unknown suffix, figure, metric, utility, width, or name of something to
    show or to label, runs that contradict one another, or runs without an attack. Raises
    `StoreError`: the rows cannot be read, or the file cannot be written.

    Parameters
    ----------
    run_folder : path or sequence of path
        Folders that contain ``rows.csv``. Defenses of several runs are drawn in one panel if
        table, partition, protocol and threat are equal. A cell that several runs contain is taken
        from the first.
    out_path : path
        ``.html`` is interactive and self-contained; ``.svg``, ``.png`` and ``.pdf`` are set
        for a paper (3.3 inches for one panel, 7 for more; type of 7 and 8 points).
    metric, utility : str, optional
        What the axes show; see `frontiers`.
    figure : {"frontier", "heatmap"}
    chosen : Selection
        Datasets, threats and protocols to show.
    width : {"column", "page"}, optional
        3.3 or 7 inches, of a frontier for a paper.
    labels : mapping of str to str, optional
        What names are called in a frontier for a paper: of datasets, protocols, threats,
        defenses, references, metrics, and what stands in the legend.

    Returns
    -------
    Path
        The file written.
    """
    out = Path(out_path)
    suffix = out.suffix[1:].lower()
    if suffix not in SUFFIXES:
        raise UsageError(f"cannot write {out.name!r}: end the name in .{', .'.join(SUFFIXES)}")
    if figure not in get_args(Figure):
        raise UsageError(f"unknown figure {figure!r}{did_you_mean(figure, get_args(Figure))}")
    if (width or labels) and (suffix == "html" or figure != "frontier"):
        raise UsageError("widths and labels are of frontiers as .svg, .png or .pdf")
    _check_width(width)
    study = _study(run_folder, chosen, metric, utility)
    if suffix == "html":
        return write_text(out, _interactive(study, figure))
    from fedtrees.report import leaks, paper

    if figure == "frontier":
        return paper.save(_frontier(study, width, labels), out)
    metrics = {f.panel.setting: f.metric for f in reversed(study.frontiers)}
    grids = [leaks.leak_grid(study.rows, s, m) for s, m in sorted(metrics.items())]
    return paper.save(paper.heatmap(grids), out)


def frontier_of(
    run_folder: Runs,
    metric: str | None = None,
    utility: str | None = None,
    *,
    chosen: Selection = EVERYTHING,
    width: Width | None = None,
    labels: Mapping[str, str] | None = None,
) -> Drawn:
    """Return the frontier as a matplotlib figure; parameters and errors as `plot`."""
    _check_width(width)
    return _frontier(_study(run_folder, chosen, metric, utility), width, labels)


def _interactive(study: Study, figure: Figure) -> str:
    """Return an HTML document with one interactive plotly figure per panel.

    Its content security policy allows the scripts that plotly wrote, by their hashes.
    """
    import plotly.io
    from plotly.graph_objects import Figure as Plotly

    from fedtrees.report.frontier_figure import advantage_limits, draw_frontier
    from fedtrees.report.grid_figure import draw_heatmap
    from fedtrees.report.leaks import leak_grid, limit

    if figure == "frontier":
        limits = advantage_limits(study.frontiers)
        drawn = [(str(f.panel), draw_frontier(f, study.colours, limits)) for f in study.frontiers]
    else:
        metrics = {f.panel.setting: f.metric for f in reversed(study.frontiers)}
        grids = [leak_grid(study.rows, s, m) for s, m in sorted(metrics.items())]
        drawn = [(g.title, draw_heatmap(g, limit(grids))) for g in grids]
    parts, scripts = [], []
    for at, (title, drawing) in enumerate(drawn):
        made = Plotly(json.loads(drawing.json()))
        text = plotly.io.to_html(
            made, full_html=False, include_plotlyjs=at == 0, div_id=f"figure-{at}"
        )
        parts.append(f"<h2>{escape(title)}</h2>{text}")
        scripts += inline_scripts(text)
    body = "\n".join(parts)
    allowed = security_policy(scripts, images="data: blob:")  # plotly saves a figure by a blob
    policy = f'<meta http-equiv="Content-Security-Policy" content="{allowed}">'
    head = f"<meta charset='utf-8'>{policy}<title>fedtrees</title>"
    return f"<!doctype html>{head}<body>{body}</body>\n"


def _frontier(study: Study, width: Width | None, labels: Mapping[str, str] | None) -> Drawn:
    from fedtrees.report import paper

    joined = {(f.panel.setting, f.panel.threat) for f in study.over_budgets}
    rest = [f for f in study.frontiers if (unswept(f.panel.setting), f.panel.threat) not in joined]
    return paper.frontier([*study.over_budgets, *rest], study.colours, width, labels)


def _study(run_folder: Runs, chosen: Selection, metric: str | None, utility: str | None) -> Study:
    folders = [run_folder] if isinstance(run_folder, str | Path) else list(run_folder)
    if not folders:
        raise UsageError("no run to plot; give the folder of a run")
    rows = together([(str(folder), load_rows(folder)) for folder in folders])
    study = Study(Path(folders[0]), chosen.of(rows), metric, utility)
    if not study.panels:
        raise UsageError("there is no attack in what is shown of this run, so nothing to plot")
    return study


def _check_width(width: Width | None) -> None:
    if width not in (None, *get_args(Width)):
        raise UsageError(f"unknown width {width!r}{did_you_mean(str(width), get_args(Width))}")

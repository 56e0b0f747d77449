"""Write the figures of a run to a file whose suffix says how: html, svg, png or pdf."""

from __future__ import annotations

from pathlib import Path
from typing import Literal, get_args

from fedtrees.core.errors import UsageError, did_you_mean
from fedtrees.report.protocol_budgets import unswept
from fedtrees.report.rows import load_rows
from fedtrees.report.study import Study

SUFFIXES = ("html", "svg", "png", "pdf")
Figure = Literal["frontier", "heatmap"]


def plot(
    run_folder: str | Path,
    out_path: str | Path,
    metric: str | None = None,
    utility: str | None = None,
    figure: Figure = "frontier",
) -> Path:
    """Plot a run: utility against worst-case advantage, or advantage per attack.

    Parameters
    ----------
    run_folder : path
        Holds ``rows.csv``.
    out_path : path
        ``.html`` is interactive and self-contained; ``.svg``, ``.png`` and ``.pdf`` are set
        for a paper (3.4 inches for one panel, 7 for more; 8-point type).
    metric, utility : str, optional
        What the axes show; see `frontiers`.
    figure : {"frontier", "heatmap"}

    Returns
    -------
    Path
        The file written.

    Raises
    ------
    UsageError
        An unknown suffix, figure, metric or utility, or a run without an attack.
    StoreError
        The rows cannot be read, or the file cannot be written.
    """
    out = Path(out_path)
    suffix = out.suffix[1:].lower()
    if suffix not in SUFFIXES:
        raise UsageError(f"cannot write {out.name!r}: end the name in .{', .'.join(SUFFIXES)}")
    if figure not in get_args(Figure):
        raise UsageError(f"unknown figure {figure!r}{did_you_mean(figure, get_args(Figure))}")
    folder = Path(run_folder)
    study = Study(folder, load_rows(folder), metric, utility)
    if not study.panels:
        raise UsageError("this run holds no attack yet, so there is nothing to plot")
    if suffix == "html":
        from fedtrees.report.html import render, write_text

        names = {"frontier": ("frontier", "leaderboard"), "heatmap": ("leaks",)}
        return write_text(out, render(study, names[figure]))
    from fedtrees.report import leaks, paper

    if figure == "frontier":
        joined = {(f.panel.setting, f.panel.threat) for f in study.over_budgets}
        rest = [
            f for f in study.frontiers if (unswept(f.panel.setting), f.panel.threat) not in joined
        ]
        return paper.save(paper.frontier([*study.over_budgets, *rest], study.colours), out)
    metrics = {f.panel.setting: f.metric for f in reversed(study.frontiers)}
    grids = [leaks.leak_grid(study.rows, s, m) for s, m in sorted(metrics.items())]
    return paper.save(paper.heatmap(grids), out)

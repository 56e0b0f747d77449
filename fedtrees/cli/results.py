"""Print the results of a run in a terminal."""

from __future__ import annotations

from typing import TYPE_CHECKING

from fedtrees.cli.inspect import console
from fedtrees.report.findings import RunAnalysis

if TYPE_CHECKING:
    from rich.console import Console


def print_tables(study: RunAnalysis, *, skipped: bool = False) -> None:
    """Print one table per setting, then failures, and skipped cells if requested.

    Skipped cells are also printed if no attack ran at all.
    """
    from fedtrees.report.verdict import table

    out = console()
    for setting_findings in study.settings:
        rich_table, legend = table(setting_findings, out.width, study.metric)
        out.print(str(setting_findings.setting), style="bold", markup=False)
        out.print(rich_table)
        out.print(legend, markup=False, style="dim")
        out.print()
    rows = study.rows[study.rows["stage"] != "adversary"]
    attacked = bool(((rows["stage"] == "attack") & (rows["status"] == "ok")).any())
    for gap in study.gaps.requested:
        if skipped or not attacked or gap.status != "skipped":
            out.print(str(gap), markup=False)


def print_verdict(study: RunAnalysis, out: Console | None = None) -> None:
    """Print the verdict of a run with its labels in a separate column."""
    from rich.text import Text

    from fedtrees.report.verdict import SCREEN_COLUMNS, verdict

    out = out or console()
    result = verdict(study)
    out.print()
    out.print(result.setting, style="bold", markup=False)
    for line in result.lines:
        entry = Text(line.wrapped(min(out.width, SCREEN_COLUMNS)))
        entry.stylize("bold", 0, len(line.label))
        out.print(entry, soft_wrap=True)

"""What a run found, for a terminal."""

from __future__ import annotations

from typing import TYPE_CHECKING

from fedtrees.cli.inspect import console
from fedtrees.report.study import Study

if TYPE_CHECKING:
    from rich.console import Console


def print_tables(study: Study, *, skipped: bool = False) -> None:
    """Print one table per setting, then what failed; and what did not apply, if asked for."""
    from fedtrees.report.verdict_table import table

    out = console()
    for found in study.findings.settings:
        made, below = table(found, out.width, study.metric)
        out.print(str(found.setting), style="bold", markup=False)
        out.print(made)
        out.print(below, markup=False, style="dim")
        out.print()
    rows = study.rows[study.rows["stage"] != "adversary"]
    attacked = bool(((rows["stage"] == "attack") & (rows["status"] == "ok")).any())
    for gap in study.gaps.asked:
        if skipped or not attacked or gap.status != "skipped":
            out.print(str(gap), markup=False)


def print_verdict(study: Study, out: Console | None = None) -> None:
    """Print the verdict of a run: labels in a column, sentences next to them."""
    from rich.text import Text

    from fedtrees.report.verdict_text import SCREEN_COLUMNS, verdict

    out = out or console()
    result = verdict(study.findings)
    out.print()
    out.print(result.setting, style="bold", markup=False)
    for line in result.lines:
        entry = Text(line.wrapped(min(out.width, SCREEN_COLUMNS)))
        entry.stylize("bold", 0, len(line.label))
        out.print(entry, soft_wrap=True)

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
    """Print the verdict of a run, its keys beside its sentences."""
    from rich.table import Table
    from rich.text import Text

    from fedtrees.report.verdict_text import verdict

    out, said = out or console(), verdict(study.findings)
    made = Table.grid(padding=(0, 2))
    made.add_column(no_wrap=True, style="bold")
    made.add_column(overflow="fold")
    for line in said.lines:
        made.add_row(line.key, Text(line.text))
    out.print()
    out.print(said.setting, style="bold", markup=False)
    out.print(made)

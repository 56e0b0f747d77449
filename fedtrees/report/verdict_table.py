"""Print the table above a verdict: one line per defense, with as many measures as fit."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from fedtrees.core.errors import many
from fedtrees.core.results import measure
from fedtrees.report import wording
from fedtrees.report.leakage import gravity
from fedtrees.report.results import UNDEFENDED
from fedtrees.report.setting_findings import Adversary, Defended, SettingFindings
from fedtrees.report.style import number

if TYPE_CHECKING:
    from rich.table import Table

_NAME = 34  # width of a defense's name in the terminal
_LEGEND = ("open", "unsettled", "shut", "gone")
_COLOURS = {"open": "red", "unsettled": "yellow", "unknown": "yellow", "shut": "blue",
            "gone": "blue", "undefined": "dim"}  # fmt: skip


@dataclass(frozen=True)
class Column:
    """One measure of one adversary."""

    adversary: Adversary
    metric: str

    @property
    def head(self) -> str:
        """The header of two lines: the role of the adversary and the measure."""
        role = self.adversary.threat.partition("[")[0]
        return f"{role}\n{measure(self.metric).head.lower()}"


def columns(findings: SettingFindings, first: str | None = None) -> tuple[Column, ...]:
    """Return the measures of a setting: open ones without a defense first, then under the recipe.

    Measures without an open or unsettled cell are left out. The metric `first` comes before all.
    """
    candidates = [
        Column(a, m)
        for a in findings.tested
        for m in a.metrics
        if {a.cell(d.spec, m).state for d in findings.defenses} & {"open", "unsettled", "unknown"}
    ]

    def rank(c: Column) -> tuple[bool, bool, bool, int, int]:
        before = c.adversary.cell(c.adversary.base, c.metric).state == "open"
        after = (
            bool(findings.recipe) and c.adversary.cell(findings.recipe, c.metric).state == "open"
        )
        return c.metric != first, not before, not after, *gravity(c.metric)

    return tuple(sorted(candidates, key=rank))


def table(findings: SettingFindings, width: int, first: str | None = None) -> tuple[Table, str]:
    """Return the table of a setting and the line below it, for a terminal of the given width."""
    from rich.table import Table
    from rich.text import Text

    candidates = columns(findings, first)
    room = width - _NAME - 12
    shown: list[Column] = []
    for column in candidates:
        wide = max(len(line) for line in column.head.split("\n")) + 3
        if wide > room:
            break
        shown.append(column)
        room -= wide
    order = {a.threat: i for i, a in enumerate(findings.tested)}
    shown.sort(key=lambda c: order[c.adversary.threat])
    rich_table = Table(box=None, pad_edge=False, header_style="bold", title_justify="left")
    rich_table.add_column("", width=1)
    rich_table.add_column("\ndefense", max_width=_NAME, no_wrap=True)
    rich_table.add_column(
        f"\nΔ {measure(findings.utility.metric).head}", justify="right", no_wrap=True
    )
    for column in shown:
        rich_table.add_column(column.head, justify="right", no_wrap=True)
    for d in findings.defenses:
        cells = [_cell(c, d) for c in shown]
        mark = "→" if findings.recipe == d.spec else ""
        style = "bold" if mark else ""
        rich_table.add_row(mark, Text(wording.short(d.spec)), _price(d), *cells, style=style)
    legend = "  ".join(f"{wording.GLYPHS[s]} {wording.WORDS[s]}" for s in _LEGEND)
    more = len(candidates) - len(shown)
    hidden_note = f"  ({many(more, 'column')} more in the report)" if more else ""
    marked = "→ recipe  " if findings.recipe else ""
    return rich_table, f"{marked}{legend}  ? unsettled price{hidden_note}"


def _price(d: Defended) -> str:
    """Format the price of a defense. A question mark shows that it is not settled."""
    if d.spec == UNDEFENDED or not d.price.change.known:
        return ""
    if d.price.settled == "same":
        return "0"
    doubt = "?" if d.price.settled in ("unsettled", "one") else ""
    return number(d.price.change.mean, 3, signed=True) + doubt


def _cell(column: Column, d: Defended) -> str:
    """Format a score with the coloured symbol of its state."""
    cell = column.adversary.cell(d.spec, column.metric)
    glyph = wording.GLYPHS[cell.state]
    text = wording.value(cell, cell.score) if cell.scores else ""
    return f"{text} [{_COLOURS[cell.state]}]{glyph}[/]".strip()

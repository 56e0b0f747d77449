"""The leaderboard in a terminal, as many columns of it as there is room for."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from fedtrees.core.counts import listed
from fedtrees.core.specs import split_outside
from fedtrees.report import style
from fedtrees.report.frontier import Frontier
from fedtrees.report.intervals import Estimate
from fedtrees.report.rows import UNDEFENDED
from fedtrees.report.tables import LeaderRow

if TYPE_CHECKING:
    from rich.table import Table

MARKS = {
    "proved": "●",
    "computational": "■",
    "structural": "◆",
    "void": "✖",
    "none": "▲",
    "unknown": "?",
}
HOLLOW = {"●": "○", "■": "□", "◆": "◇", "▲": "△", "✖": "✕", "?": "?"}
_DEFENSE = 26  # cells that a defense's name has at least; longer ones are folded
_GAP = 3  # between two columns
_FOLDED = 16  # cells that a column of words has at least


@dataclass(frozen=True)
class _Column:
    """A column: its cells, whether they may be folded, and when it is given up (never: 0)."""

    name: str
    cells: tuple[str, ...]
    given_up: int = 0
    folds: bool = False

    @property
    def whole(self) -> int:
        """The cells of the terminal that it takes unfolded."""
        return max(len(line) for t in (self.name, *self.cells) for line in t.split("\n"))

    @property
    def least(self) -> int:
        """The fewest cells of the terminal that it needs."""
        least = _FOLDED if self.given_up else _DEFENSE
        return min(self.whole, least) if self.folds else self.whole


def leaderboard_table(frontier: Frontier, board: Sequence[LeaderRow], width: int = 160) -> Table:
    """Return one panel's leaderboard as a rich table.

    Parameters
    ----------
    frontier, board
        From `frontiers` and `leaderboard`.
    width : int
        Of the terminal, in cells. Columns that do not fit are left out, the least telling first;
        the defense, its utility and its advantage never are.
    """
    from rich import box
    from rich.table import Table
    from rich.text import Text

    columns = [c for c in _columns(frontier, board) if {*c.cells} != {"–"}]
    kept = list(columns)
    for column in sorted(columns, key=lambda c: c.given_up):
        if column.given_up and sum(c.least + _GAP for c in kept) > width:
            kept.remove(column)
    out = Table(title=Text(str(frontier.panel)), title_justify="left", title_style="bold",
                box=box.SIMPLE_HEAD, pad_edge=False)  # fmt: skip
    spare = width - sum(c.least + _GAP for c in kept)
    for column in kept:
        more = max(0, min(spare, column.whole - column.least))
        spare -= more
        side: Literal["left", "right"] = "left" if column.folds else "right"
        out.add_column(column.name, overflow="fold", width=column.least + more, justify=side)
    for at, row in enumerate(board):
        # Text, not str: a name in square brackets is not markup.
        style_ = "bold" if row.on_front else ""
        out.add_row(*(Text(c.cells[at]) for c in kept), style=style_)
    gone = [c.name for c in columns if c not in kept]
    hidden = f"; no room for {listed(gone)}" if gone else ""
    out.caption = Text(
        f"advantage of {frontier.metric}, worst attack, ± half of the 95% interval; exact rows: "
        "victims' rows right in every column, by the best attack at it (blind); bold: not "
        f"dominated; hollow mark: an applicable attack is missing{hidden}"
    )
    out.caption_justify = "left"
    return out


def _columns(frontier: Frontier, board: Sequence[LeaderRow]) -> tuple[_Column, ...]:
    utility = style.metric_name(frontier.utility)
    cells = list(zip(*map(_cells, board), strict=True)) or [()] * 10
    names = ("defense", utility, f"Δ {utility}", "advantage", "Δ adv.", "exact rows",
             "strongest attack", "claim", "traffic", "time")  # fmt: skip
    given_up = (0, 0, 4, 0, 3, 7, 6, 5, 2, 1)
    folds = {0, 6, 7}
    return tuple(
        _Column(name, tuple(mine), order, at in folds)
        for at, (name, mine, order) in enumerate(zip(names, cells, given_up, strict=True))
    )


def _cells(row: LeaderRow) -> tuple[str, ...]:
    p = row.point
    mark = MARKS[p.kind]
    base = p.defense == UNDEFENDED
    names = dict.fromkeys(a.partition("[")[0] for a, _ in p.attacks)
    attacks = ", ".join(names) or ("–" if p.state.ok else str(p.state))
    if p.hollow:
        attacks += f"; {p.coverage}"
    # A composed defense breaks between its parts.
    name = p.defense if len(p.defense) < _DEFENSE else "\n  +".join(split_outside(p.defense, "+"))
    return (
        f"{HOLLOW[mark] if p.hollow else mark}\N{NO-BREAK SPACE}{name}",
        _short(p.utility),
        "" if base else style.number(row.change.mean, 3, signed=True),
        _short(p.advantage, signed=True),
        "" if base else style.number(row.relief.mean, 3, signed=True),
        exact_rows(row),
        attacks,
        p.claimed or "not known",
        style.bytes_text(row.cost.bytes),
        style.seconds_text(row.cost.seconds.mean),
    )


def exact_rows(row: LeaderRow) -> str:
    """Write the share of rows reconstructed exactly, and blind: ``87% (0%)``."""
    if not row.exact.known:
        return "–"
    blind = f" ({row.exact_blind.mean:.0%})" if row.exact_blind.known else ""
    return f"{row.exact.mean:.0%}{blind}"


def _short(e: Estimate, signed: bool = False) -> str:
    text = style.number(e.mean, 3, signed)
    return f"{text} ±{(e.high - e.low) / 2:.3f}" if math.isfinite(e.low) else text

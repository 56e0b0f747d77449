"""The leaderboard in a terminal."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING

from fedtrees.report import style
from fedtrees.report.coverage import stopped
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


def leaderboard_table(frontier: Frontier, board: Sequence[LeaderRow]) -> Table:
    """Return one panel's leaderboard as a rich table.

    Parameters
    ----------
    frontier, board
        From `frontiers` and `leaderboard`.
    """
    from rich.table import Table
    from rich.text import Text

    utility = style.metric_name(frontier.utility)
    out = Table(title=Text(str(frontier.panel)), title_justify="left", title_style="bold")
    out.add_column("defense", overflow="fold", min_width=26)
    for name in (utility, f"Δ {utility}", "advantage", "Δ adv."):
        out.add_column(name, justify="right", no_wrap=True)
    out.add_column("exact rows", justify="right", no_wrap=True)
    out.add_column("strongest attack", overflow="fold")
    out.add_column("claim", overflow="fold")
    for name in ("traffic", "time"):
        out.add_column(name, justify="right", no_wrap=True)
    for row in board:
        p = row.point
        mark = MARKS[p.kind]
        name = f"{HOLLOW[mark] if p.hollow else mark}\N{NO-BREAK SPACE}{p.defense}"
        base = p.defense == UNDEFENDED
        attacks = ", ".join(a for a, _ in p.attacks) or p.note.partition(":")[0] or "–"
        if p.hollow:
            attacks += f"; {p.coverage}"
        if p.coverage.early:
            attacks += f"; {stopped(p.coverage.early)}"
        cells = (
            name,
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
        # Text, not str: a name in square brackets is not markup.
        out.add_row(*(Text(c) for c in cells), style="bold" if row.on_front else "")
    out.caption = Text(
        f"advantage of {frontier.metric}, worst attack, ± half of the 95% interval; exact rows: "
        "victims' rows right in every column, by the best attack at it (blind); bold: not "
        "dominated; hollow mark: an applicable attack is missing"
    )
    return out


def exact_rows(row: LeaderRow) -> str:
    """Write the share of rows reconstructed exactly, and blind: ``87% (0%)``."""
    if not row.exact.known:
        return "–"
    blind = f" ({row.exact_blind.mean:.0%})" if row.exact_blind.known else ""
    return f"{row.exact.mean:.0%}{blind}"


def _short(e: Estimate, signed: bool = False) -> str:
    text = style.number(e.mean, 3, signed)
    return f"{text} ±{(e.high - e.low) / 2:.3f}" if math.isfinite(e.low) else text

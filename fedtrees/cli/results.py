"""What a run found, for a terminal or for programs."""

from __future__ import annotations

import math
from dataclasses import asdict
from pathlib import Path
from typing import Any

from fedtrees.cli.inspect import console
from fedtrees.core.counts import many
from fedtrees.core.errors import StoreError
from fedtrees.report.intervals import Estimate
from fedtrees.report.rows import load_rows
from fedtrees.report.study import Study
from fedtrees.report.table_text import leaderboard_table
from fedtrees.report.verdict import MARGIN, at_blind


def study_of(run: Path, metric: str | None, margin: float | None) -> Study:
    """Return what a run found; no margin is the default one."""
    return Study(run, load_rows(run), metric, margin=MARGIN if margin is None else margin)


def leaderboards(study: Study) -> None:
    """Print one table per setting and threat, then what failed; of skips how many there are."""
    out = console()
    for frontier, board in study.boards:
        out.print(leaderboard_table(frontier, board, out.width))
        out.print()
    rows = study.rows[study.rows["stage"] != "exposure"]
    attacked = bool(((rows["stage"] == "attack") & (rows["status"] == "ok")).any())
    for gap in study.gaps.asked:
        if not attacked or gap.status != "skipped":
            out.print(str(gap), markup=False)
    skips = int((rows["status"] == "skipped").sum())
    if attacked and skips:
        does = "does" if skips == 1 else "do"
        out.print(f"{many(skips, 'cell')} {does} not apply here: the report says under Gaps why")


def print_verdict(study: Study) -> None:
    """Print the sentences of a run, a paragraph each, wrapped to the console."""
    from rich.padding import Padding
    from rich.text import Text

    out, said = console(), study.verdict
    for advice in said.settings:
        out.print(Text(f"\n{advice.setting}", style="bold"))
        for side in advice.sides:
            out.print(Padding(Text(" ".join(side.sentences)), (0, 0, 1, 2)))
        for at, step in enumerate(advice.steps, 1):
            lines = Text(step).wrap(out, max(out.width - 5, 20))
            for k, line in enumerate(lines):
                out.print(Text(f"{at:3}. " if k == 0 else " " * 5) + line)
    out.print(Text(f"\n{said.note}"))


def failures(run: Path) -> int:
    """Return how many cells of a run failed or ran out of time."""
    rows = load_rows(run)
    bad = rows["status"].isin(("failed", "timeout")) & (rows["stage"] != "exposure")
    return int(bad.sum())


def no_attack_ran(run: Path) -> bool:
    """Tell whether there are attacks in a run, and every one of them was skipped."""
    rows = load_rows(run)
    attacks = rows[rows["stage"] == "attack"]
    return len(attacks) > 0 and bool((attacks["status"] == "skipped").all())


def summary(study: Study) -> dict[str, Any]:
    """Return the leaderboards as plain JSON types.

    Raises `StoreError` if the run holds no rows.
    """
    if study.rows.empty:
        raise StoreError(
            f"{study.folder} holds no results yet; finish it with fedtrees bench --resume"
        )
    boards = [
        {
            "dataset": f.panel.setting.dataset,
            "partition": f.panel.setting.partition,
            "protocol": f.panel.setting.protocol,
            "threat": f.panel.threat,
            "metric": f.metric,
            "utility": f.utility,
            "verdict": study.verdict.text(f.panel),
            "defenses": [
                {
                    "defense": row.point.defense,
                    "utility": _estimate(row.point.utility),
                    "advantage": _estimate(row.point.advantage),
                    "attacks": [name for name, _ in row.point.attacks],
                    "coverage": asdict(row.point.coverage),
                    "at_blind": at_blind(row.point, row.leaks, study.margin),
                    "claimed": row.point.claimed,
                    "not_dominated": row.on_front,
                }
                for row in board
            ],
        }
        for f, board in study.boards
    ]
    counted = {"run": str(study.folder), "rows": len(study.rows), "margin": study.margin}
    gaps = [{**asdict(gap), "why": str(gap.why), "code": gap.why.code} for gap in study.gaps.asked]
    said = {"verdict": list(study.verdict.lines()), "gaps": gaps}
    return {**counted, "leaderboards": boards, **said}


def _estimate(e: Estimate) -> dict[str, float | None]:
    values = {"mean": e.mean, "low": e.low, "high": e.high}
    return {k: v if math.isfinite(v) else None for k, v in values.items()}

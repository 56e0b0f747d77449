"""What a run found, for a terminal or for programs."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

from fedtrees.cli.inspect import console
from fedtrees.core.errors import StoreError
from fedtrees.report.intervals import Estimate
from fedtrees.report.rows import NOT_OK, load_rows
from fedtrees.report.study import Study
from fedtrees.report.table_text import leaderboard_table


def leaderboards(run: Path, metric: str | None) -> None:
    """Print one table per setting and threat, then the cells that gave nothing."""
    study = Study(run, load_rows(run), metric)
    for frontier, board in study.boards:
        console().print(leaderboard_table(frontier, board))
    for line in gaps(study):
        console().print(line, markup=False)


def failures(run: Path) -> int:
    """Return how many cells of a run failed or ran out of time."""
    return int(load_rows(run)["status"].isin(("failed", "timeout")).sum())


def gaps(study: Study) -> list[str]:
    """Return one line per distinct reason why cells failed or were skipped."""
    bad = study.rows[study.rows["status"].isin(NOT_OK)]
    reasons = bad["reason"].str.removeprefix("training failed: ")
    lines = []
    for (status, reason), rows in bad.groupby(["status", reasons], sort=False):
        where = dict.fromkeys(
            f"{p} with {d}"
            for p, d in zip(rows["protocol"], rows["defense_spec"], strict=True)
            if d
        )
        named = ", ".join(list(where)[:3]) + (", ..." if len(where) > 3 else "")
        lines.append(f"{status}, {len(rows)} cells ({named}): {reason}")
    return lines


def summary(run: Path, metric: str | None) -> dict[str, Any]:
    """Return the leaderboards as plain JSON types.

    Raises `StoreError` if the run holds no rows.
    """
    rows = load_rows(run)
    if rows.empty:
        raise StoreError(f"{run} holds no results yet; finish it with fedtrees bench --resume")
    study = Study(run, rows, metric)
    boards = [
        {
            "dataset": f.panel.setting.dataset,
            "partition": f.panel.setting.partition,
            "protocol": f.panel.setting.protocol,
            "threat": f.panel.threat,
            "metric": f.metric,
            "utility": f.utility,
            "defenses": [
                {
                    "defense": row.point.defense,
                    "utility": _estimate(row.point.utility),
                    "advantage": _estimate(row.point.advantage),
                    "attacks": [name for name, _ in row.point.attacks],
                    "claimed": row.point.claimed,
                    "not_dominated": row.on_front,
                }
                for row in board
            ],
        }
        for f, board in study.boards
    ]
    return {"run": str(run), "rows": len(rows), "leaderboards": boards, "gaps": gaps(study)}


def _estimate(e: Estimate) -> dict[str, float | None]:
    values = {"mean": e.mean, "low": e.low, "high": e.high}
    return {k: v if math.isfinite(v) else None for k, v in values.items()}

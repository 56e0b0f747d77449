"""Summarise the results of a run as plain JSON types, for use by other programs."""

from dataclasses import asdict
from typing import Any

import pandas as pd

from fedtrees.core.errors import StoreError
from fedtrees.report.study import Study


def failures(rows: pd.DataFrame) -> int:
    """Return the number of cells of a run that failed or ran out of time."""
    bad = rows["status"].isin(("failed", "timeout")) & (rows["stage"] != "adversary")
    return int(bad.sum())


def no_attack_ran(rows: pd.DataFrame) -> bool:
    """Return whether a run contains attacks and every one of them was skipped."""
    attacks = rows[rows["stage"] == "attack"]
    return len(attacks) > 0 and bool((attacks["status"] == "skipped").all())


def summary(study: Study) -> dict[str, Any]:
    """Return leaderboards, findings, verdict and gaps of a run as plain JSON types.

    Raises `StoreError` if the run contains no rows.
    """
    from fedtrees.report.findings_json import as_json, estimate
    from fedtrees.report.verdict_text import verdict

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
            "defenses": [
                {
                    "defense": p.defense,
                    "utility": estimate(p.utility),
                    "advantage": estimate(p.advantage),
                    "attacks": [name for name, _ in p.attacks],
                    "coverage": asdict(p.coverage),
                    "claimed": p.claimed,
                    "measured": p.measured,
                    "pareto_optimal": p.defense in f.front,
                }
                for p in f.points
            ],
        }
        for f in study.frontiers
    ]
    run_verdict = verdict(study.findings)
    return {
        "run": str(study.folder),
        "rows": len(study.rows),
        "margin": study.margin,
        "leaderboards": boards,
        "findings": as_json(study.findings),
        "verdict": {
            "setting": run_verdict.setting,
            "lines": [asdict(x) for x in run_verdict.lines],
        },
        "gaps": [
            {**asdict(gap), "why": str(gap.why), "code": gap.why.code} for gap in study.gaps.asked
        ],
    }

"""Summarise the results of a run as plain JSON types, for use by other programs.

`summary` describes a complete run. The other functions convert the findings of one setting.
"""

from __future__ import annotations

import math
from dataclasses import asdict
from typing import Any

import pandas as pd

from fedtrees.core.errors import StoreError
from fedtrees.report.adversaries import AdversaryFindings
from fedtrees.report.findings import DefenseResult, RunAnalysis, SettingFindings
from fedtrees.report.guarantees import span
from fedtrees.report.leakage import STORED_STATES, LeakageResult
from fedtrees.report.recipe import Recipe
from fedtrees.report.statistics import Estimate


def as_json(analysis: RunAnalysis) -> list[dict[str, Any]]:
    """Return every setting with its adversaries, their cells, utility changes, recipe and gaps."""
    return [_setting(f) for f in analysis.settings]


def _setting(findings: SettingFindings) -> dict[str, Any]:
    """Return the findings of one setting."""
    lead = findings.leak
    return {
        "dataset": findings.setting.dataset,
        "partition": findings.setting.partition,
        "protocol": findings.setting.protocol,
        "seeds": findings.seeds,
        "utility": findings.utility.metric,
        "undefended": _number(findings.undefended),
        "leak": {
            "kind": lead.kind,
            "threat": lead.adversary.threat if lead.adversary else "",
            "metric": lead.result.metric if lead.result else "",
        },
        "recipe": _candidate(findings.recommended_recipe) if findings.recommended_recipe else None,
        "defenses": [_defense(d) for d in findings.defenses],
        "adversaries": [_adversary(findings, a) for a in findings.adversaries],
        "untested": {
            "adversaries": [threat for _, threat in findings.untested.adversaries],
            "defenses": list(findings.untested.defenses),
            "attacks": list(findings.untested.attacks),
            "cut_short": list(findings.untested.cut),
            "failed": dict(findings.untested.failed),
            "failed_trainings": dict(findings.untested.failed_trainings),
            "no_claim": dict(findings.untested.no_claim),
            "unfit": dict(findings.untested.unfit),
        },
    }


def _candidate(use: Recipe) -> dict[str, Any]:
    """Return a recipe with its utility change."""
    utility_change = use.utility_change
    return {"name": use.name, "holds": use.holds, "shown": use.shown, "reason": use.reason,
            "change": estimate(utility_change.change),
            "settled": utility_change.settled}  # fmt: skip


def _defense(d: DefenseResult) -> dict[str, Any]:
    """Return a defense with its utility, utility change and traffic."""
    return {
        "defense": d.spec,
        "label": d.label,
        "utility": _number(d.utility_change.mean_utility),
        "change": estimate(d.utility_change.change),
        "settled": d.utility_change.settled,
        "collapsed": d.utility_change.collapsed,
        "void": d.void,
        "measured": span(d.guarantees.measured),
        "bytes": _number(d.cost.bytes),
    }


def _adversary(findings: SettingFindings, adversary: AdversaryFindings) -> dict[str, Any]:
    """Return an adversary with one cell per defense and measure."""
    return {
        "threat": adversary.threat,
        "name": adversary.name,
        "tested": adversary.tested,
        "cells": [
            {"defense": d.spec, **_cell(r)}
            for d in findings.defenses
            for r in adversary.results(d.spec)
        ],
    }


def _cell(cell: LeakageResult) -> dict[str, Any]:
    """Return a cell with its state, score and baseline."""
    return {
        "metric": cell.metric,
        "state": STORED_STATES.get(cell.state, cell.state),
        "below_baseline": cell.below_baseline,
        "no_claim": dict(cell.no_claim),
        "score": _number(cell.score),
        "line": _number(cell.baseline),
        "advantage": estimate(cell.advantage),
        "rows": _number(cell.rows),
        "attacks": list(cell.attacks),
    }


def estimate(e: Estimate) -> dict[str, float | None]:
    """Return a mean with its interval. A number that is not known is None."""
    return {"mean": _number(e.mean), "low": _number(e.low), "high": _number(e.high)}


def _number(value: float) -> float | None:
    """Return a finite value, and None otherwise, because JSON has no NaN."""
    return value if math.isfinite(value) else None


def failures(rows: pd.DataFrame) -> int:
    """Return the number of cells of a run that failed or ran out of time."""
    bad = rows["status"].isin(("failed", "timeout")) & (rows["stage"] != "adversary")
    return int(bad.sum())


def no_attack_ran(rows: pd.DataFrame) -> bool:
    """Return whether a run contains attacks and every one of them was skipped."""
    attacks = rows[rows["stage"] == "attack"]
    return len(attacks) > 0 and bool((attacks["status"] == "skipped").all())


def summary(analysis: RunAnalysis) -> dict[str, Any]:
    """Return leaderboards, findings, verdict and gaps of a run as plain JSON types.

    Raises `StoreError` if the run contains no rows.
    """
    from fedtrees.report.verdict import verdict

    if analysis.rows.empty:
        raise StoreError(
            f"{analysis.folder} contains no results yet; finish it with fedtrees bench --resume"
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
                    "claimed": p.guarantees.claim,
                    "measured": p.measured,
                    "pareto_optimal": p.defense in f.front,
                }
                for p in f.points
            ],
        }
        for f in analysis.frontiers
    ]
    run_verdict = verdict(analysis)
    return {
        "run": str(analysis.folder),
        "rows": len(analysis.rows),
        "margin": analysis.margin,
        "leaderboards": boards,
        "findings": as_json(analysis),
        "verdict": {
            "setting": run_verdict.setting,
            "lines": [asdict(x) for x in run_verdict.lines],
        },
        "gaps": [
            {**asdict(gap), "why": str(gap.why), "code": gap.why.code}
            for gap in analysis.gaps.requested
        ],
    }

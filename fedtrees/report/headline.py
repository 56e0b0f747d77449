"""One-sentence answers, computed from the data: what leaks, what each defense changes."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from fedtrees.report import style
from fedtrees.report.frontier import LOWER_IS_BETTER, Frontier, Point
from fedtrees.report.intervals import Estimate
from fedtrees.report.rows import UNDEFENDED, Setting
from fedtrees.report.tables import LeaderRow


@dataclass(frozen=True)
class Answer:
    """What one setting says under its worst threat.

    `bottom_line`: Whether any defense both stopped the attacks that ran and was worth federating
    for.
    """

    setting: Setting
    threat: str
    leak: str  # what training without a defense gives away
    changes: tuple[str, ...]  # one sentence per defense
    others: tuple[str, ...]  # one sentence per other metric in which anything got past blind
    bottom_line: str


def answers(
    boards: Sequence[tuple[Frontier, Sequence[LeaderRow]]], others: Sequence[Frontier] = ()
) -> tuple[Answer, ...]:
    """Return one answer per setting, under the threat with the largest undefended advantage.

    `others`: The same panels in other metrics.
    """
    out = []
    for setting in sorted({f.panel.setting for f, _ in boards}):
        mine = [b for b in boards if b[0].panel.setting == setting]
        frontier, board = max(mine, key=lambda b: _undefended_leak(b[0]))
        base = next((r for r in board if r.point.defense == UNDEFENDED), None)
        beside = [_other(f) for f in others if f.panel == frontier.panel and _anything_past(f)]
        out.append(
            Answer(
                setting,
                frontier.panel.threat,
                _leak(frontier),
                tuple(_change(frontier, group, base) for group in _families(board)),
                tuple(beside),
                _bottom_line(frontier, board, bool(beside)),
            )
        )
    return tuple(out)


def _undefended_leak(frontier: Frontier) -> float:
    p = frontier.point(UNDEFENDED)
    return p.advantage.mean if p and p.advantage.known else -math.inf


def _families(board: Sequence[LeaderRow]) -> list[list[LeaderRow]]:
    groups: dict[str, list[LeaderRow]] = {}
    for row in board:
        if row.point.defense != UNDEFENDED:
            groups.setdefault(row.point.family, []).append(row)
    return list(groups.values())


def _leak(frontier: Frontier) -> str:
    p = frontier.point(UNDEFENDED)
    if p is None or not p.advantage.known:
        why = f" ({p.note})" if p and p.note else ""
        return f"What the undefended run leaks is not known{why}."
    name = style.metric_name(frontier.metric)
    attack = p.attacks[0][0]
    score = f"{name} {style.number(p.score.mean)} against {style.number(p.blind.mean)} blind"
    if _past_blind(p.advantage):
        text = (
            f"Undefended, {attack} recovers {_percent(p.advantage)} of what a blind adversary "
            f"is missing ({score})."
        )
    elif p.advantage.mean <= 0:
        text = f"Undefended, no attack that ran does better than blind ({attack}: {score})."
    else:
        text = (
            f"Undefended, {attack} is ahead of blind by {_percent(p.advantage)} of what is "
            f"missing, an interval that includes zero ({score})."
        )
    return text + (f" Known only from below: {'; '.join(p.failed)}." if p.failed else "")


def _anything_past(frontier: Frontier) -> bool:
    return any(p.advantage.known and _past_blind(p.advantage) for p in frontier.points)


def _other(frontier: Frontier) -> str:
    """Write a metric's scores, one clause per defense family, with the blind score."""
    clauses, blind = [], ""
    families: dict[str, list[Point]] = {}
    for p in frontier.points:
        if p.advantage.known:
            families.setdefault(p.family, []).append(p)
    for family, points in families.items():
        points.sort(key=lambda p: p.budget.value if p.budget.known else 0.0)
        shares = list(dict.fromkeys(f"{100 * p.score.mean:.0f}%" for p in points))
        span = shares[0] if len(shares) == 1 else f"{shares[0]} to {shares[-1]}"
        if family == UNDEFENDED:
            blind = f" (blind {100 * points[0].blind.mean:.0f}%)"
            clauses.insert(0, f"undefended {span}{blind}")
        else:
            clauses.append(f"{family} {span}")
    name = style.metric_name(frontier.metric)
    return f"{name[0].upper()}{name[1:]}: {', '.join(clauses)}."


def _past_blind(e: Estimate) -> bool:
    """Tell whether an advantage is above zero with its whole interval (one seed: its value)."""
    return (e.low if math.isfinite(e.low) else e.mean) > 0


def _percent(e: Estimate) -> str:
    digits = 1 if abs(e.mean) < 0.1 else 0
    mean, low, high = (style.number(100 * v, digits) for v in (e.mean, e.low, e.high))
    return f"{mean}% [{low}, {high}]" if math.isfinite(e.low) else f"{mean}%"


def _span(values: Sequence[float], signed: bool = False) -> str:
    """Write one number, or "a to b" over a sweep."""
    texts = list(dict.fromkeys(style.number(v, 3, signed) for v in values))
    return texts[0] if len(texts) == 1 else f"{texts[0]} to {texts[-1]}"


def _change(frontier: Frontier, group: Sequence[LeaderRow], base: LeaderRow | None) -> str:
    known = [r for r in group if r.point.drawn]
    if not known:
        return f"{group[0].point.family}: no result ({group[0].point.note})."
    known.sort(key=lambda r: r.point.budget.value if r.point.budget.known else 0.0)
    budget = known[0].point.budget
    name = known[0].point.defense if len(known) == 1 else known[0].point.family
    if budget.known and len(known) > 1:
        name += f" ({budget.name} {budget.value:g} to {known[-1].point.budget.value:g})"
    facts = [f"worst advantage {_span([r.point.advantage.mean for r in known], signed=True)}"]
    if all(r.change.known for r in known):
        utility = style.metric_name(frontier.utility)
        facts.append(f"change in {utility} {_span([r.change.mean for r in known], signed=True)}")
    times = [r.cost.bytes / base.cost.bytes for r in known] if base and base.cost.bytes else []
    if times and all(math.isfinite(x) for x in times):
        facts.append(f"traffic \N{MULTIPLICATION SIGN}{max(times):.2g}")
    hollow = sorted({f.partition(" (")[0] for r in known for f in r.point.failed})
    if hollow:
        facts.append(f"known only from below ({', '.join(hollow)} did not always finish)")
    return f"{name}: {', '.join(facts)}."


def _bottom_line(frontier: Frontier, board: Sequence[LeaderRow], more: bool) -> str:
    """Name the defenses whose interval reaches blind while beating training alone."""
    name = style.metric_name(frontier.metric)
    base = frontier.point(UNDEFENDED)
    if base and base.advantage.known and not base.hollow and not _past_blind(base.advantage):
        if more:
            judge = "judge the defenses by what else leaks"
            return f"By {name} no attack gets past blind here; {judge}."
        return (
            "The attacks that ran do not get past blind even without a defense, so this setting "
            "says nothing about the defenses."
        )
    local = dict(frontier.references).get("local-only", Estimate())
    sign = -1.0 if frontier.utility in LOWER_IS_BETTER else 1.0
    useful, useless = [], []
    for row in board:
        p = row.point
        if p.defense == UNDEFENDED or not p.drawn or p.hollow or _past_blind(p.advantage):
            continue
        worth = not local.known or sign * p.utility.mean > sign * local.mean
        (useful if worth else useless).append(p.defense)
    if useful:
        than = " and keeps more utility than training alone" if local.known else ""
        return f"By {name} down to blind against every attack that ran{than}: {', '.join(useful)}."
    if useless:
        names = ", ".join(useless)
        return f"Only {names} comes down to blind, and a party training alone does better."
    return "No defense whose attacks all finished comes down to blind."

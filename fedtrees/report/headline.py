"""One-sentence answers, computed from the data: what leaks, what each defense changes."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from fedtrees.core.rows import ALONE
from fedtrees.report import style
from fedtrees.report.coverage import stopped
from fedtrees.report.frontier import LOWER_IS_BETTER, Frontier, Point
from fedtrees.report.intervals import Estimate
from fedtrees.report.rows import UNDEFENDED, Panel
from fedtrees.report.tables import LeaderRow
from fedtrees.report.verdict import FEWEST_SEEDS, MARGIN, at_blind, past_blind


@dataclass(frozen=True)
class Answer:
    """What one setting says under one threat.

    `bottom_line`: Which defenses are shown to be down to blind, or why none is named.
    """

    panel: Panel
    leak: str  # what training without a defense gives away
    changes: tuple[str, ...]  # one sentence per defense
    others: tuple[str, ...]  # one sentence per other metric in which anything got past blind
    bottom_line: str


def answers(
    boards: Sequence[tuple[Frontier, Sequence[LeaderRow]]],
    others: Sequence[Frontier] = (),
    margin: float = MARGIN,
) -> tuple[Answer, ...]:
    """Return one answer per setting and threat, the threat that leaks most first.

    `others`: The same panels in other metrics. `margin`: Advantage that a defense may leave and
    still be called down to blind.
    """
    ranked = sorted(boards, key=lambda b: (b[0].panel.setting, -_undefended_leak(b[0])))
    out = []
    for frontier, board in ranked:
        base = next((r for r in board if r.point.defense == UNDEFENDED), None)
        beside = [_other(f) for f in others if f.panel == frontier.panel and _anything_past(f)]
        out.append(
            Answer(
                frontier.panel,
                _leak(frontier),
                tuple(_change(frontier, group, base) for group in _families(board)),
                tuple(beside),
                _bottom_line(frontier, board, margin),
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
    if past_blind(p.advantage):
        text = (
            f"Undefended, {attack} recovers {_percent(p.advantage)} of what a blind adversary "
            f"is missing ({score})."
        )
    elif p.advantage.mean <= 0:
        text = (
            f"Undefended, no attack that ran does better than blind by {name} ({attack}: "
            f"{style.number(p.score.mean)} against {style.number(p.blind.mean)})."
        )
    else:
        text = (
            f"Undefended, {attack} is ahead of blind by {_percent(p.advantage)} of what is "
            f"missing, an interval that includes zero ({score})."
        )
    if not p.coverage.complete:
        text += f" {_capital(str(p.coverage))}."
    return text + (f" {_capital(stopped(p.coverage.early))}." if p.coverage.early else "")


def _capital(text: str) -> str:
    return text[:1].upper() + text[1:]


def _anything_past(frontier: Frontier) -> bool:
    return any(p.advantage.known and past_blind(p.advantage) for p in frontier.points)


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
    return f"{_capital(name)}: {', '.join(clauses)}."


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
    usual = base.point.coverage if base else None
    covered = [r.point.coverage for r in known]
    facts.append(stopped(sorted({name for c in covered for name in c.early})))
    facts += [str(c) for c in dict.fromkeys(covered) if c.missing and str(c) != str(usual)]
    facts += dict.fromkeys(r.point.collapsed for r in known)
    return f"{name}: {', '.join(filter(None, facts))}."


def _bottom_line(frontier: Frontier, board: Sequence[LeaderRow], margin: float) -> str:
    """Name the defenses that are shown to be down to blind, or say why none can be."""
    base = next((r for r in board if r.point.defense == UNDEFENDED), None)
    whole = base is not None and base.point.coverage.complete and base.point.drawn
    if base and whole and not any(leak.past_blind for leak in base.leaks):
        return (
            "The attacks that ran do not get past blind even without a defense, so this setting "
            "says nothing about the defenses."
        )
    known = [r for r in board if r.point.defense != UNDEFENDED and r.point.drawn]
    if not known:
        unread = board and all(r.point.coverage.applicable == () for r in board)
        why = "no attack applies, which makes nothing safe" if unread else "no defense has a result"
        return f"No winner is named: {why}."
    judged = [r for r in known if r.point.coverage.complete]
    if not judged:
        return f"No winner is named: {known[0].point.coverage}."
    seeds = max(r.point.advantage.n for r in judged)
    if seeds < FEWEST_SEEDS:
        return (
            f"No winner is named: to show that a defense is down to blind takes {FEWEST_SEEDS} "
            f"seeds or more, and this run has {seeds}."
        )
    at = [r for r in judged if at_blind(r.point, r.leaks, margin)]
    sentences = _at_blind(frontier, at, margin, seeds)
    if not at:
        sentences.append(f"No defense is shown to be within {margin:g} of blind by every score.")
    doubtful = [
        _unsure(r, margin) for r in judged if r not in at and not any(k.past_blind for k in r.leaks)
    ]
    if doubtful:
        sentences.append(
            f"Not past blind, but not shown to be within {margin:g} of it: {', '.join(doubtful)}."
        )
    partial = [f"{r.point.defense} ({r.point.coverage})" for r in known if r not in judged]
    if partial:
        sentences.append(f"Not judged: {', '.join(partial)}.")
    return " ".join(sentences)


def _at_blind(
    frontier: Frontier, rows: Sequence[LeaderRow], margin: float, seeds: int
) -> list[str]:
    """Write who is within the margin: first who is worth federating for, then the others."""
    local = next((e for name, e in frontier.references if name in ALONE), Estimate())
    sign = -1.0 if frontier.utility in LOWER_IS_BETTER else 1.0
    groups: dict[bool, list[LeaderRow]] = {True: [], False: []}
    for row in rows:
        worth = not local.known or sign * row.point.utility.mean > sign * local.mean
        groups[worth].append(row)
    out = []
    for worth, group in groups.items():
        if not group:
            continue
        early = stopped(sorted({name for r in group for name in r.point.coverage.early}))
        counts = sorted({len(r.point.coverage.applicable or ()) for r in group})
        attacks = f"all {' or '.join(map(str, counts))} applicable attacks"
        attacks = "the one applicable attack" if counts == [1] else attacks
        than = "better" if worth else "no better"
        judged = f", and {than} than training alone" if local.known else ""
        out.append(
            f"Within {margin:g} of blind by every score, over {seeds} seeds, against {attacks}"
            f"{f' ({early})' if early else ''}{judged}: "
            f"{', '.join(map(_named, group))}."
        )
    return out


def _named(row: LeaderRow) -> str:
    """Write a defense with what became of its claim."""
    return _noted(row, row.point.collapsed)


def _noted(row: LeaderRow, *notes: str) -> str:
    said = "; ".join(filter(None, notes))
    return row.point.defense + (f" ({said})" if said else "")


def _unsure(row: LeaderRow, margin: float) -> str:
    """Write a defense with the score that may be furthest above blind."""
    wide = [leak for leak in row.leaks if not leak.upper < margin]
    if not wide:
        return _named(row)
    worst = max(wide, key=lambda leak: leak.upper)
    name = style.metric_name(worst.metric)
    reach = f"up to {style.number(worst.upper, 3, signed=True)}"
    few = f"on {worst.advantage.n} seeds only"
    said = f"{name} {reach if math.isfinite(worst.upper) else few}"
    return _noted(row, said, row.point.collapsed)

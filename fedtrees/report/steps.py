"""What to do about a run, in order."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence

from fedtrees.core.counts import listed, many
from fedtrees.core.guarantee import ActedOnNothing
from fedtrees.report import style
from fedtrees.report.budgets import ordered
from fedtrees.report.intervals import Estimate
from fedtrees.report.phrases import NO_DIFFERENCE, NOT_LOOKING, doing, reads
from fedtrees.report.rows import UNDEFENDED
from fedtrees.report.sides import Adversary
from fedtrees.report.verdict import FEWEST_SEEDS


def steps(sides: Sequence[Adversary], untried: Sequence[str]) -> list[str]:
    """Return what to do, in order: the cheapest defense, what stays open, what was not tried."""
    leaking = [side for side in sides if side.lead]
    common = [d for d in _drawn(leaking) if all(d in s.said.stops for s in leaking)]
    able = {s.who: common or [d for d in _drawn([s]) if d in s.said.stops] for s in leaking}
    best = {s.who: _cheapest(able[s.who], s) for s in leaking if able[s.who]}
    steps: list[str] = []
    for side in leaking:  # who reads most comes first
        defense = best.get(side.who)
        if defense is None:
            steps.append(_unstopped(side))
            continue
        mine = [s for s in leaking if best.get(s.who) == defense]
        if side is mine[0]:
            steps.append(_use(defense, mine, able[side.who]))
            steps += [_open(s, defense) for s in mine]
    if not leaking and sides and any(side.base and side.base.leaks for side in sides):
        steps.append("Nothing to stop was found here: try a harder setting before you trust this.")
    if untried:
        steps.append(f"Not tried: {'; '.join(untried)}.")
    return steps


def _drawn(sides: Sequence[Adversary]) -> list[str]:
    """Return the defenses with a utility under all of these threats, first things first."""
    if not sides:
        return []
    return [
        d
        for d, r in sides[0].board.items()
        if d != UNDEFENDED
        and r.point.utility.known
        and all(d in s.board and s.board[d].point.claimed != ActedOnNothing.kind for s in sides)
    ]


def _cheapest(defenses: Iterable[str], side: Adversary) -> str:
    """Return the defense of most utility; of equal ones the one of least traffic."""

    def price(defense: str) -> tuple[float, float]:
        row = side.board[defense]
        traffic = row.cost.bytes if math.isfinite(row.cost.bytes) else math.inf
        return -side.sign * row.point.utility.mean, traffic

    return min(defenses, key=price)


def _use(defense: str, sides: Sequence[Adversary], able: Sequence[str]) -> str:
    """Say which defense to take, against whom, and what it costs."""
    side = sides[0]
    row, base = side.board[defense], side.base
    assert base is not None
    against = listed([s.who for s in sides])
    mine, theirs = (style.number(r.point.utility.mean) for r in (row, base))
    unclear = f" ({NO_DIFFERENCE})" if side.no_clear_cost(defense) else ""
    facts, first = [f"{side.utility} {mine} instead of {theirs}{unclear}"], "Against"
    local = side.local()
    if local.known:
        worth = side.sign * row.point.utility.mean > side.sign * local.mean
        alone = "training alone gives" if worth else "no better than training alone, which gives"
        near = f" ({NO_DIFFERENCE})" if _overlap(row.point.utility, local) else ""
        facts.append(f"{alone} {style.number(local.mean)}{near}")
        first = first if worth else "Train alone, or against"
    if row.point.collapsed:
        facts.append(f"{row.point.collapsed}, so that it rests on these attacks alone")
    if row.point.coverage.missing:
        facts.append(f"only {row.point.coverage}")
    certain = [d for d in able if all(s.state(d) == "stops" for s in sides)]
    rivals, stop = (certain, "stop") if defense in certain else (able, "stop, or may stop,")
    of = len(rivals)
    cheapest = f", the cheapest of {of} that {stop} the worst of it" if of > 1 else ""
    return f"{first} {against} use {defense}{cheapest}: {', '.join(facts)}."


def _overlap(one: Estimate, other: Estimate) -> bool:
    """Whether one of two estimates lies within the other's interval."""
    within = one.low <= other.mean <= one.high or other.low <= one.mean <= other.high
    return one.n > 1 and other.n > 1 and within


def _open(side: Adversary, defense: str) -> str:
    """Say what stays open with a defense."""
    said, left = side.said, side.said.open[defense]
    row = side.board[defense]
    if not left:
        if side.closed(defense):
            return (
                f"With {defense}, {side.who} {side.are} within {side.margin:g} of {NOT_LOOKING} by "
                f"every score, over {many(row.point.utility.n, 'seed')}."
            )
        few = row.point.utility.n < FEWEST_SEEDS
        why = f"; to show it takes {FEWEST_SEEDS} seeds" if few else ""
        return (
            f"With {defense}, {side.who} can read nothing clear beyond {NOT_LOOKING}, by any "
            f"score; {many(row.point.utility.n, 'seed')} cannot rule out an advantage of "
            f"{side.margin:g} or more{why}."
        )
    can = side.can_all(left, defense)
    closing = [d for d in said.stops if d != defense and not {*left} & {*said.open[d]}]
    remedy = "no defense that was tried stops all of it"
    whole = [d for d in closing if not said.open[d]]
    if whole:
        remedy = f"{listed(ordered(whole), 'or')} would stop that too"
    elif closing:
        others = sorted({m for d in closing for m in said.open[d]})
        remedy = f"{listed(ordered(closing), 'or')} would stop that, and not {doing(others)}"
    return f"Still open: with {defense}, {side.who} can {can}; {remedy}."


def _unstopped(side: Adversary) -> str:
    """Say that nothing that was tried stops an adversary, and what leaves the least."""
    text = f"Still open: nothing that was tried stops {side.who}"
    if not _drawn([side]):
        return f"Still open: no defense was tried against {side.who}."
    cuts = [d for d in _drawn([side]) if side.state(d) == "cuts"]
    if not cuts:
        return f"{text}, and nothing clearly cuts what {side.they} {reads(side.several)}."
    least = min(cuts, key=lambda d: side.leak(d, side.lead).advantage.mean)
    left, had = (
        side.amount(side.lead, side.leak(d, side.lead).score.mean, whole=d == least)
        for d in (least, UNDEFENDED)
    )
    return f"{text}; least is left by {least}: {left} instead of {had} ({side.price([least])})."

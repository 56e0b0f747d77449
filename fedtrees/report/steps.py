"""What to do about a run, in order."""

from __future__ import annotations

from collections.abc import Sequence

from fedtrees.core.counts import listed, many
from fedtrees.report import style
from fedtrees.report.intervals import Estimate
from fedtrees.report.phrases import NO_DIFFERENCE, NOT_LOOKING
from fedtrees.report.recommend import Recommendation, Trial, recommend
from fedtrees.report.sides import Adversary
from fedtrees.report.verdict import FEWEST_SEEDS, MARGIN


def steps(sides: Sequence[Adversary], untried: Sequence[str]) -> list[str]:
    """Return what to do, in order: the defense to take, what stays open, what was not tried."""
    leaking = [side for side in sides if side.lead]
    whole = recommended(sides) if leaking else Recommendation(())
    each = {s.who: whole if whole.choice else recommended([s]) for s in leaking}
    best = {who: found.choice.name for who, found in each.items() if found.choice}
    steps: list[str] = []
    for side in leaking:  # who reads most comes first
        defense = best.get(side.who)
        if defense is None:
            steps.append(_unstopped(side, each[side.who]))
            continue
        mine = [s for s in leaking if best.get(s.who) == defense]
        if side is mine[0]:
            steps.append(_use(defense, mine, each[side.who].able))
            steps += [_rests(s, defense) for s in mine]
    blank = [(c.name, c.untested) for c in whole.candidates if c.untested]
    if blank:
        steps.append(_untested(blank))
    if not leaking and sides and any(side.base and side.base.leaks for side in sides):
        steps.append("Nothing to stop was found here: try a harder setting before you trust this.")
    if untried:
        steps.append(f"Not tried: {'; '.join(untried)}.")
    return steps


def recommended(sides: Sequence[Adversary]) -> Recommendation:
    """Return which defense to take against all of these adversaries."""
    trials: dict[str, list[Trial]] = {}
    for side in sides:
        for defense, row in side.board.items():
            if not row.point.unfit:
                cost = side.cost(defense, better=True) if side.base else Estimate()
                trials.setdefault(defense, []).append(Trial.of(side.who, row, cost))
    return recommend(trials, sides[0].margin)


def _untested(blank: Sequence[tuple[str, tuple[str, ...]]]) -> str:
    """Say which defenses cannot be recommended, because something did not run."""
    alike: dict[tuple[str, ...], list[str]] = {}
    for name, why in blank:
        alike.setdefault(why, []).append(name)
    said = (f"{listed(names)} ({'; '.join(why)})" for why, names in alike.items())
    return f"Untested, and so not to be recommended: {'; '.join(said)}."


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
    if not row.point.collapsed.ok:
        facts.append(f"{row.point.collapsed}, so that it rests on these attacks alone")
    certain = [d for d in able if all(s.closed(d) for s in sides)]
    rivals, stop = (certain, "stop") if defense in certain else (able, "stop, or may stop,")
    of = len(rivals)
    cheapest = f", the cheapest of {of} that {stop} all of it" if of > 1 else ""
    return f"{first} {against} use {defense}{cheapest}: {', '.join(facts)}."


def _overlap(one: Estimate, other: Estimate) -> bool:
    """Whether one of two estimates lies within the other's interval."""
    within = one.low <= other.mean <= one.high or other.low <= one.mean <= other.high
    return one.n > 1 and other.n > 1 and within


def _rests(side: Adversary, defense: str) -> str:
    """Say on what it rests that a defense leaves nothing."""
    seeds = side.board[defense].point.utility.n
    if side.closed(defense):
        return (
            f"With {defense}, {side.who} {side.are} within {side.margin:g} of {NOT_LOOKING} by "
            f"every score, over {many(seeds, 'seed')}."
        )
    why = f"; to show it takes {FEWEST_SEEDS} seeds" if seeds < FEWEST_SEEDS else ""
    past = any(leak.past_blind for leak in side.board[defense].leaks)
    reads = (
        f"{side.are} clearly past {NOT_LOOKING}, by no more than {MARGIN:g}"
        if past
        else f"can read nothing clear beyond {NOT_LOOKING}, by any score"
    )
    return (
        f"With {defense}, {side.who} {reads}; {many(seeds, 'seed')} cannot rule out an advantage "
        f"of {side.margin:g} or more{why}."
    )


def _unstopped(side: Adversary, found: Recommendation) -> str:
    """Say that nothing that was tried stops an adversary, and what leaves the least."""
    if not found.candidates:
        return f"Still open: no defense was tried against {side.who}."
    text = f"Still open: nothing that was tried stops {side.who} by every score"
    least = found.least
    if least is None:
        return f"{text}; none was tested by every attack that applies."
    left = f"{side.they} can {side.can_all(side.past(least.name), least.name)}"
    return f"{text}; least is left by {least.name} ({side.price([least.name])}): {left}."

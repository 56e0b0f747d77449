"""What one adversary reads, and what every defense changes about it."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property

from fedtrees.core.counts import listed
from fedtrees.core.rows import ALONE
from fedtrees.report import style
from fedtrees.report.coverage import stopped
from fedtrees.report.frontier import LOWER_IS_BETTER, Frontier, Point
from fedtrees.report.intervals import Estimate
from fedtrees.report.phrases import (
    KNOWS_OTHERS,
    NO_DIFFERENCE,
    NOT_LOOKING,
    WORDS,
    Called,
    capital,
    changed,
    count,
    doing,
    grid,
    percent,
    sees,
    span,
    unchanged,
    who,
    wording,
)
from fedtrees.report.rows import UNDEFENDED, Panel, Setting
from fedtrees.report.tables import LeaderRow
from fedtrees.report.verdict import Leak, above, at_blind, difference


@dataclass(frozen=True)
class Side:
    """What one adversary reads, and what every defense changes about it, in sentences."""

    panel: Panel
    sentences: tuple[str, ...]
    who: str
    lead: str


@dataclass(frozen=True)
class About:
    """What is known of a run besides its boards.

    `counts`: How many rows the shares of a metric are of, by panel and the metric's name; NaN where
    the run does not tell. `untried`: What could have been run in a setting and was not, in words.
    `called`: What its protocol calls one party of a role, and several. `margin`: Advantage that a
    defense may leave and still be called down to blind.
    """

    counts: Callable[[Panel, str], float]
    untried: Callable[[Setting], Sequence[str]]
    called: Callable[[Setting], Called]
    margin: float


class Adversary:
    """The numbers of one setting and threat, and how they are said."""

    def __init__(self, frontier: Frontier, board: Sequence[LeaderRow], about: About) -> None:
        self.frontier, self.counts, self.margin = frontier, about.counts, about.margin
        self.board = {r.point.defense: r for r in board}
        self.base = self.board.get(UNDEFENDED)
        self.who, self.several = who(frontier.panel.threat, about.called(frontier.panel.setting))
        self.they, self.are = ("they", "are") if self.several else ("it", "is")
        self.utility = style.metric_name(frontier.utility)
        self.seeds = max((r.point.utility.n for r in board), default=0)
        self.sign = -1.0 if frontier.utility in LOWER_IS_BETTER else 1.0
        past = self.past(UNDEFENDED)
        self.lead = past[0] if past else ""

    def severity(self) -> tuple[int, float]:
        """Return a key that puts who reads most first."""
        order = {name: at for at, name in enumerate(WORDS)}
        leak = self.leak(UNDEFENDED, self.lead)
        return order.get(self.lead, len(order) + (not self.lead)), -leak.beyond.mean

    # --- numbers

    def leak(self, defense: str, metric: str) -> Leak:
        """Return a leak, an unknown one where the score was not measured."""
        row = self.board.get(defense)
        found = (leak for leak in (row.leaks if row else ()) if leak.metric == metric)
        return next(found, Leak(metric, Estimate(), Estimate(), math.inf))

    def past(self, defense: str) -> tuple[str, ...]:
        """Return by which scores a defense leaks, the worst kind first.

        Of several scores of one kind the one is named that the table shows.
        """
        row = self.board.get(defense)
        found = [k.metric for k in (row.leaks if row else ()) if k.past_blind]
        shown = self.frontier.metric
        alone = [m for m in found if m == shown or not {*found} & {*wording(m).beside}]
        if shown in found:
            alone = [m for m in alone if m == shown or wording(m).doing != wording(shown).doing]
        said = [m for m in alone if self.differs(defense, m)]
        order: dict[str, int] = {}
        for at, words in enumerate(WORDS.values()):
            order.setdefault(words.doing, at)
        return tuple(sorted(said, key=lambda m: order.get(wording(m).doing, len(WORDS))))

    def differs(self, defense: str, metric: str) -> bool:
        """Whether a score and that of who never looked differ as they are written."""
        leak = self.leak(defense, metric)
        return self.amount(metric, leak.score.mean) != self.amount(metric, leak.line)

    def amount(self, metric: str, share: float, whole: bool = True) -> str:
        """Write how much: ``69 of 379 rows``, ``67%``, ``0.81``; without the whole, ``69``."""
        words = wording(metric)
        if words.plain:
            return "under 0.01" if 0 < share < 0.01 else style.number(share, 2)
        n = self.counts(self.frontier.panel, words.counted) if words.counted else math.nan
        if not math.isfinite(n):
            of = " of the rows" if words.counted and whole else ""
            return f"{percent(share)}{of}"
        many_of = f"{count(share * n)} of {n:,.0f} rows" if whole else count(share * n)
        return many_of

    def can(self, metric: str, leak: Leak, beside: str = f"{NOT_LOOKING}: ") -> str:
        """Write what an adversary can do, beside who never looked."""
        done = wording(metric).can.format(self.amount(metric, leak.score.mean))
        lines = [f"{beside}{self.amount(metric, leak.blind.mean, whole=False)}"]
        if leak.population.known:
            told = self.amount(metric, leak.population.mean, whole=False)
            lines.append(f"{KNOWS_OTHERS}: {told}")
        return f"{done} ({', '.join(lines)})"

    def can_all(self, metrics: Sequence[str], defense: str = UNDEFENDED, first: bool = True) -> str:
        """Write several things that an adversary can do; who never looked is named once."""
        leaks = [(m, self.leak(defense, m)) for m in metrics]
        said = [self.can(m, k, *([] if first and not at else ["against "]))
                for at, (m, k) in enumerate(leaks)]  # fmt: skip
        return listed(said)

    def change(self, defense: str) -> Estimate:
        """Return what a defense changes about the leading leak, paired by seed."""
        mine, base = (self.leak(d, self.lead).by_seed for d in (defense, UNDEFENDED))
        both = [(mine[s], base[s]) for s in mine if s in base]
        gaps = [a[0] - b[0] for a, b in both]
        return difference(gaps, [math.hypot(a[1], b[1]) for a, b in both])

    def cost(self, defense: str, better: bool = False) -> Estimate:
        """Return what a defense changes about the utility, paired by seed.

        `better`: Count what is better as positive.
        """
        assert self.base is not None
        theirs = {s.seed: s.utility for s in self.base.point.seeds}
        sign = self.sign if better else 1.0
        mine = self.board[defense].point.seeds
        return difference([sign * (s.utility - theirs.get(s.seed, math.nan)) for s in mine])

    # --- sentences

    @cached_property
    def said(self) -> Side:
        """The panel in sentences."""
        # Of those that do not fit the protocol the gaps tell.
        defenses = [d for d, r in self.board.items() if d != UNDEFENDED and not r.point.unfit]
        groups: dict[str, list[str]] = {}
        for d in defenses:
            groups.setdefault(self.state(d), []).append(d)
        sentences = [self.reads(), self.also()]
        if self.lead:
            subject = capital(wording(self.lead).doing)
            for state in (state for state in STATES if state in groups):
                sentences.append(self.group(subject, state, groups[state]))
                subject = "It"
                if state in ("stops", "may stop"):
                    sentences.append(self.besides(groups[state]))
        sentences.append(self.rests())
        return Side(self.frontier.panel, tuple(filter(None, sentences)), self.who, self.lead)

    def reads(self) -> str:
        """Say what the undefended run gives away."""
        someone = capital(self.who)
        if self.base is None or not self.base.leaks:
            note = self.base.point.note if self.base else "it was not run"
            return (
                f"What {self.who} could read without a defense is not known: {note}.{self.kept()}"
            )
        if not self.lead:
            first = next((m for m in WORDS if self.leak(UNDEFENDED, m).score.known), "")
            first = first or self.base.leaks[0].metric
            can = self.can(first, self.leak(UNDEFENDED, first))
            return (
                f"{someone} can read nothing clear in what {self.they} {sees(self.several)}: "
                f"{self.they} can {can}. That says nothing about the defenses."
            )
        leak, rows = self.leak(UNDEFENDED, self.lead), self.leak(UNDEFENDED, "exact_rows")
        attack = listed([*dict.fromkeys(name.partition("[")[0] for name in leak.attacks)], "or")
        if self.lead == "exact_rows" or not rows.score.known:
            return f"{someone} can {self.can(self.lead, leak)}, by {attack}."
        mine = self.amount("exact_rows", rows.score.mean)
        theirs = self.amount("exact_rows", rows.line, whole=False)
        return (
            f"{someone} cannot rebuild clearly more rows in every column than "
            f"{NOT_LOOKING} ({mine} against {theirs}), but can "
            f"{self.can(self.lead, leak, 'against ')}, by {attack}."
        )

    def kept(self) -> str:
        """Say what was measured where no attack was scored: the utility, and what it costs."""
        if self.base is None or not self.base.point.utility.known:
            return ""
        mine = f"{self.utility} {style.number(self.base.point.utility.mean)} without a defense"
        costs = [f"{self.price([d])} with {d}" for d in self.board
                 if d != UNDEFENDED and self.cost(d).known]  # fmt: skip
        return f" What was measured: {'; '.join([mine, *costs])}."

    def also(self) -> str:
        """Say what else the undefended run gives away."""
        more, they = self.past(UNDEFENDED)[1:], capital(self.they)
        said = f"{they} can also {self.can_all(more, first=False)}." if more else ""
        leak = self.leak(UNDEFENDED, self.frontier.metric)
        if leak.past_blind or not leak.population.known or not above(leak.advantage):
            return said
        can = self.can(leak.metric, leak)
        return f"{said} {they} can {can}: no more than the population tells.".strip()

    def state(self, defense: str) -> str:
        """Return what a defense does to the leading leak."""
        leak = self.leak(defense, self.lead)
        if not leak.score.known:
            return "unknown"
        if not leak.past_blind:
            return "stops" if leak.upper < self.margin else "may stop"
        change = self.change(defense)
        better = -1.0 if leak.score.mean < leak.blind.mean else 1.0  # of an error, less is more
        if change.n == 1:
            base = self.leak(UNDEFENDED, self.lead).score.mean
            alike = self.amount(self.lead, base) == self.amount(self.lead, leak.score.mean)
            return "same" if alike else ("cuts", "raises")[better * change.mean > 0]
        if better * change.low < 0 < better * change.high or not change.known or not change.mean:
            return "same"
        return "cuts" if better * change.mean < 0 else "raises"

    def group(self, subject: str, state: str, defenses: Sequence[str]) -> str:
        """Say what several defenses do that do the same; budgets of one defense are one item."""
        if state == "unknown":
            return f"Not known: {listed([self.unknown(d) for d in defenses])}."
        alike: dict[tuple[object, ...], list[Point]] = {}
        for d in defenses:
            p = self.board[d].point
            key = (*self.budget(d), self.no_clear_cost(d), *self.flaws(p))
            alike.setdefault(key, []).append(p)
        named = listed([self.named(points) for points in alike.values()])
        verb = STATES[state][0 if self.seeds > 1 else 1]
        return f"{subject} {verb} {named}."

    def besides(self, defenses: Sequence[str]) -> str:
        """Say which other leaks stay open under defenses that stop the leading one."""
        left: dict[tuple[str, ...], dict[tuple[object, ...], list[Point]]] = {}
        for d in defenses:
            if found := self.past(d):
                left.setdefault(found, {}).setdefault(self.budget(d), []).append(
                    self.board[d].point
                )
        said = [
            f"{doing(metrics)} (under {listed([grid(points) for points in alike.values()])})"
            for metrics, alike in left.items()
        ]
        return f"That leaves {listed(said)}." if said else ""

    def budget(self, defense: str) -> tuple[object, ...]:
        """Return what budgets of one defense have in common."""
        point = self.board[defense].point
        return (point.family, point.budget.rest) if point.budget.known else (defense,)

    def named(self, points: Sequence[Point]) -> str:
        """Write a defense with what it leaves, what it costs and what is wrong with it."""
        names = [p.defense for p in points]
        left = [self.leak(d, self.lead).score.mean for d in names]
        amounts = span([self.amount(self.lead, v, whole=False) for v in sorted(left)])
        facts = [f"{amounts} left", self.price(names), *self.flaws(points[0])]
        return f"{grid(points)} ({', '.join(facts)})"

    def price(self, defenses: Sequence[str]) -> str:
        """Write the change in utility, of several defenses that agree in whether it is clear."""
        costs = [self.cost(d).mean for d in defenses if self.cost(d).known]
        if not costs:
            return f"no {self.utility} measured"
        clear = unchanged(costs) or not self.no_clear_cost(defenses[0])
        return changed(self.utility, costs) + ("" if clear else f", {NO_DIFFERENCE}")

    def no_clear_cost(self, defense: str) -> bool:
        """Whether the change in utility lies within the interval of the seeds."""
        cost = self.cost(defense)
        return cost.n > 1 and cost.low <= 0 <= cost.high

    def flaws(self, point: Point) -> tuple[str, ...]:
        """Return what is wrong with a claim, and which attacks are missing here alone."""
        usual = self.base.point.coverage if self.base else None
        missing = point.coverage.missing and str(point.coverage) != str(usual)
        void = [] if point.collapsed.ok else [str(point.collapsed)]
        return (*void, *([str(point.coverage)] if missing else ()))

    def unknown(self, defense: str) -> str:
        """Write why nothing is known of a defense."""
        state = self.board[defense].point.state
        return f"{defense} ({'its score was not measured' if state.ok else state})"

    def rests(self) -> str:
        """Say which attacks this rests on."""
        if self.base is None:
            return ""
        found = self.base.point.coverage
        if found.applicable == ():
            return "No attack that is here applies, which makes nothing safe."
        if found.complete:
            n = len(found.applicable or ())
            text = (
                "The one attack that applies ran" if n == 1 else f"All {n} attacks that apply ran"
            )
        else:
            text = capital(str(found))
        early = stopped(found.early)
        why = f"; {early}, at a limit of the search: without it they may read more" if early else ""
        return f"{text}{why}."

    def local(self) -> Estimate:
        """Return the utility of training alone."""
        return next((e for name, e in self.frontier.references if name in ALONE), Estimate())

    def closed(self, defense: str) -> bool:
        """Whether a defense is shown to be down to blind by every score."""
        row = self.board[defense]
        return at_blind(row.point, row.leaks, self.margin)


#: What defenses do to the leading leak, over several seeds and in one.
STATES = {
    "stops": ("is stopped by", "is stopped by"),
    "may stop": (f"may be stopped ({NO_DIFFERENCE} from {NOT_LOOKING}) by",
                 "is not seen, in this one seed, with"),
    "cuts": ("is cut, and not stopped, by", "is less, in this one seed, with"),
    "same": ("is not clearly changed by", "is the same, in this one seed, with"),
    "raises": ("is made worse by", "is more, in this one seed, with"),
    "unknown": ("", ""),
}  # fmt: skip

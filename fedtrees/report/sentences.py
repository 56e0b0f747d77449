"""The verdict of a run in plain words: who reads what, what stops it, what to do, what is open.

Computed once (`Study.verdict`); the terminal, the report and Python print the same sentences.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

from fedtrees.core.counts import listed, many
from fedtrees.core.errors import UsageError
from fedtrees.core.guarantee import ActedOnNothing
from fedtrees.core.rows import ALONE
from fedtrees.core.threat import Threat
from fedtrees.report import style
from fedtrees.report.budgets import ordered
from fedtrees.report.coverage import stopped
from fedtrees.report.frontier import LOWER_IS_BETTER, Frontier, Point
from fedtrees.report.intervals import Estimate
from fedtrees.report.rows import UNDEFENDED, Panel, Setting
from fedtrees.report.tables import LeaderRow
from fedtrees.report.verdict import FEWEST_SEEDS, Leak, at_blind, difference, past_blind

NOT_LOOKING = "one who never looked"
NO_DIFFERENCE = "no clear difference"


@dataclass(frozen=True)
class Words:
    """How a score is said.

    `can`: What an adversary can do, with ``{}`` for how much. `doing`: The same as a subject.
    `counted`: The metric whose rows the share is of, "" where a percentage says more. `plain`: A
    number as it is, not a share. `beside`: Scores that tell the same more plainly: where one of
    them leaks, this one is not said.
    """

    can: str
    doing: str
    counted: str = ""
    plain: bool = False
    beside: tuple[str, ...] = ()


#: What is said of a leak, the worst kind first; the first that is past blind leads.
WORDS: dict[str, Words] = {
    "exact_rows": Words("rebuild {} in every column", "rebuilding rows", "records"),
    "returned_right": Words("be sure of {}, right in every bin", "being sure of rows", "records",
                            beside=("exact_rows",)),
    "label_accuracy": Words("put {} into the right class", "telling classes apart", "labels"),
    "thresholds": Words("find {} of the others' thresholds", "finding thresholds"),
    "rank_correlation": Words("order the others' values with a rank correlation of {}",
                              "ordering values", plain=True),
    "ra": Words("guess {} of the values right", "guessing values"),
    "column_values": Words("read {} of the values of every column, though not whose they are",
                           "reading columns"),
    "leaf_mass_exact": Words("tell how many rows of each class lie in a leaf, for {} of the rows",
                             "counting the classes in leaves"),
    "leaf_counts_exact": Words("tell how many rows of each class lie in {} of the leaves",
                               "counting the classes in leaves", beside=("leaf_mass_exact",)),
    "close_rows": Words("rebuild {} in 90% of the columns", "rebuilding most of a row", "records",
                        beside=("exact_rows", "ra")),
    "v_measure": Words("sort rows into classes with a V-measure of {}", "telling classes apart",
                       plain=True, beside=("label_accuracy",)),
    "rank_width": Words("narrow ranks down to {} of a column", "ordering values",
                        beside=("rank_correlation",)),
    "ranges_covered": Words("give {} of the ranges of somebody's values", "finding thresholds",
                            beside=("thresholds",)),
    "column_extremes": Words("read {} of the smallest and largest values", "reading columns",
                             beside=("column_values",)),
    "column_singles": Words("read {} of the values that one row alone has", "reading columns",
                            beside=("column_values",)),
}  # fmt: skip


@dataclass(frozen=True)
class Side:
    """What one adversary reads, and what every defense changes about it, in sentences.

    `stops`: Defenses under which the worst kind of leak is no longer past blind. `open`: By
    defense, what is still past blind, most severe first.
    """

    panel: Panel
    sentences: tuple[str, ...]
    who: str
    lead: str
    stops: frozenset[str]
    open: dict[str, tuple[str, ...]]


@dataclass(frozen=True)
class Advice:
    """One setting: its adversaries, the one that reads most first, and what to do, in order."""

    setting: Setting
    sides: tuple[Side, ...]
    steps: tuple[str, ...]


@dataclass(frozen=True)
class Verdict:
    """What a run says, the same wherever it is printed. `note`: What all numbers are."""

    settings: tuple[Advice, ...]
    note: str

    def text(self, panel: Panel) -> str:
        """Return what is said of one setting and threat."""
        sides = (side for advice in self.settings for side in advice.sides)
        return next((" ".join(s.sentences) for s in sides if s.panel == panel), "")

    def lines(self) -> tuple[str, ...]:
        """Return the whole as lines, each a heading or a paragraph."""
        out: list[str] = []
        for advice in self.settings:
            out.append(str(advice.setting))
            out += [" ".join(side.sentences) for side in advice.sides]
            out += [f"{at}. {step}" for at, step in enumerate(advice.steps, 1)]
        return (*out, self.note)

    def __str__(self) -> str:
        return "\n".join(self.lines())


Board = tuple[Frontier, Sequence[LeaderRow]]
Called = Mapping[str, tuple[str, str]]


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


def verdict(boards: Sequence[Board], about: About) -> Verdict:
    """Put a run into sentences."""
    settings: dict[Setting, list[Board]] = {}
    for frontier, board in boards:
        settings.setdefault(frontier.panel.setting, []).append((frontier, board))
    advice = []
    for setting, mine in settings.items():
        sides = [_Panel(frontier, board, about) for frontier, board in mine]
        sides.sort(key=_Panel.severity)
        advice.append(
            Advice(
                setting, tuple(s.said for s in sides), tuple(_steps(sides, about.untried(setting)))
            )
        )
    seeds = max((r.point.utility.n for _, board in boards for r in board), default=0)
    return Verdict(tuple(advice), _note(seeds))


def _words(metric: str) -> Words:
    name = style.metric_name(metric)
    return WORDS.get(metric, Words(f"reach {{}} in {name}", name, plain=True))


def _note(seeds: int) -> str:
    if seeds == 1:
        return (
            "One seed: every number is of a single run, and no difference is shown to be more than "
            "chance. Run it with --seeds 3 or more."
        )
    return (
        f"Means over {many(seeds, 'seed')}; {NO_DIFFERENCE} is one that lies within the 95% "
        "interval of the seeds. That these attacks fail does not show that others would."
    )


def who(threat: str, called: Called) -> tuple[str, bool]:
    """Return an adversary in words and whether it is several: ``server`` is ``your server``."""
    try:
        parsed = Threat.parse(threat)
    except UsageError:  # of another release
        return f"the adversary {threat!r}", False
    parts = []
    for part in parsed.parts:
        unnamed = f"the party {part.name!r}", f"of {part.name!r} together"
        one, several = called.get(part.name, unnamed)
        count, index = part.params.get("count", 1), part.params.get("index")
        text = one if count == 1 else f"{count} {several}"
        parts.append(text if index is None else f"{text} (number {index})")
    text, besides = listed(parts), []
    if parsed.queries:
        besides.append(f"may ask for {many(parsed.queries, 'prediction')}")
    if parsed.labels:
        besides.append(f"told {many(parsed.labels, 'label')}")
    if parsed.attributes:
        besides.append(f"told {many(parsed.attributes, 'attribute')} of every row")
    text += f" ({', '.join(besides)})" if besides else ""
    several = len(parts) > 1 or any(part.params.get("count", 1) != 1 for part in parsed.parts)
    return text, several


def _sees(several: bool) -> str:
    return "see" if several else "sees"


def _reads(several: bool) -> str:
    return "read" if several else "reads"


def _capital(text: str) -> str:
    return text[:1].upper() + text[1:]


class _Panel:
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
        return order.get(self.lead, len(order) + (not self.lead)), -leak.advantage.mean

    # --- numbers

    def leak(self, defense: str, metric: str) -> Leak:
        """Return a leak, an unknown one where the score was not measured."""
        row = self.board.get(defense)
        found = (leak for leak in (row.leaks if row else ()) if leak.metric == metric)
        return next(found, Leak(metric, Estimate(), math.inf))

    def past(self, defense: str) -> tuple[str, ...]:
        """Return by which scores a defense leaks, the worst kind first."""
        row = self.board.get(defense)
        found = [k.metric for k in (row.leaks if row else ()) if past_blind(k.advantage)]
        order = {name: at for at, name in enumerate(WORDS)}
        said = [m for m in found if not {*found} & {*_words(m).beside} and self.differs(defense, m)]
        return tuple(sorted(said, key=lambda m: order.get(m, len(order))))

    def differs(self, defense: str, metric: str) -> bool:
        """Whether a score and that of who never looked differ as they are written."""
        leak = self.leak(defense, metric)
        mine, theirs = (self.amount(metric, e.mean) for e in (leak.score, leak.blind))
        return mine != theirs

    def amount(self, metric: str, share: float, whole: bool = True) -> str:
        """Write how much: ``69 of 379 rows``, ``67%``, ``0.81``; without the whole, ``69``."""
        words = _words(metric)
        if words.plain:
            return "under 0.01" if 0 < share < 0.01 else style.number(share, 2)
        n = self.counts(self.frontier.panel, words.counted) if words.counted else math.nan
        if not math.isfinite(n):
            of = " of the rows" if words.counted and whole else ""
            return f"{_percent(share)}{of}"
        many_of = f"{_count(share * n)} of {n:,.0f} rows" if whole else _count(share * n)
        return many_of

    def can(self, metric: str, leak: Leak, beside: str = f"{NOT_LOOKING}: ") -> str:
        """Write what an adversary can do, beside who never looked."""
        done = _words(metric).can.format(self.amount(metric, leak.score.mean))
        return f"{done} ({beside}{self.amount(metric, leak.blind.mean, whole=False)})"

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

    def cost(self, defense: str) -> Estimate:
        """Return what a defense changes about the utility, paired by seed."""
        assert self.base is not None
        theirs = {s.seed: s.utility for s in self.base.point.seeds}
        mine = self.board[defense].point.seeds
        return difference([s.utility - theirs.get(s.seed, math.nan) for s in mine])

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
            subject = _capital(_words(self.lead).doing)
            for state in (state for state in _STATES if state in groups):
                sentences.append(self.group(subject, state, groups[state]))
                subject = "It"
        sentences.append(self.rests())
        stops = frozenset((*groups.get("stops", ()), *groups.get("may stop", ())))
        still = {d: tuple(self.past(d)) for d in defenses}
        return Side(
            self.frontier.panel, tuple(filter(None, sentences)), self.who, self.lead, stops, still
        )

    def reads(self) -> str:
        """Say what the undefended run gives away."""
        someone = _capital(self.who)
        if self.base is None or not self.base.leaks:
            note = self.base.point.note if self.base else "it was not run"
            return f"What {self.who} could read without a defense is not known: {note}."
        if not self.lead:
            first = next((m for m in WORDS if self.leak(UNDEFENDED, m).score.known), "")
            first = first or self.base.leaks[0].metric
            can = self.can(first, self.leak(UNDEFENDED, first))
            return (
                f"{someone} can read nothing clear in what {self.they} {_sees(self.several)}: "
                f"{self.they} can {can}. That says nothing about the defenses."
            )
        leak, rows = self.leak(UNDEFENDED, self.lead), self.leak(UNDEFENDED, "exact_rows")
        attack = listed([*dict.fromkeys(name.partition("[")[0] for name in leak.attacks)], "or")
        if self.lead == "exact_rows" or not rows.score.known:
            return f"{someone} can {self.can(self.lead, leak)}, by {attack}."
        mine = self.amount("exact_rows", rows.score.mean)
        theirs = self.amount("exact_rows", rows.blind.mean, whole=False)
        return (
            f"{someone} cannot rebuild clearly more rows in every column than "
            f"{NOT_LOOKING} ({mine} against {theirs}), but can "
            f"{self.can(self.lead, leak, 'against ')}, by {attack}."
        )

    def also(self) -> str:
        """Say what else the undefended run gives away."""
        more = self.past(UNDEFENDED)[1:]
        can = self.can_all(more, first=False)
        return f"{_capital(self.they)} can also {can}." if more else ""

    def state(self, defense: str) -> str:
        """Return what a defense does to the leading leak."""
        leak = self.leak(defense, self.lead)
        if not leak.score.known:
            return "unknown"
        if not past_blind(leak.advantage):
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
            budget = (p.family, p.budget.rest) if p.budget.known else (d,)
            alike.setdefault((*budget, self.no_clear_cost(d), *self.flaws(p)), []).append(p)
        named = listed([self.named(points) for points in alike.values()])
        verb = _STATES[state][0 if self.seeds > 1 else 1]
        return f"{subject} {verb} {named}."

    def named(self, points: Sequence[Point]) -> str:
        """Write a defense with what it leaves, what it costs and what is wrong with it."""
        names = [p.defense for p in points]
        left = [self.leak(d, self.lead).score.mean for d in names]
        amounts = _span([self.amount(self.lead, v, whole=False) for v in sorted(left)])
        facts = [f"{amounts} left", self.price(names), *self.flaws(points[0])]
        return f"{_grid(points)} ({', '.join(facts)})"

    def price(self, defenses: Sequence[str]) -> str:
        """Write the change in utility, of several defenses that agree in whether it is clear."""
        costs = sorted(self.cost(d).mean for d in defenses if self.cost(d).known)
        if not costs:
            return f"no {self.utility} measured"
        change = _span([style.number(c, 3, signed=True) for c in costs])
        unclear = f", {NO_DIFFERENCE}" if self.no_clear_cost(defenses[0]) else ""
        return f"{self.utility} {change}{unclear}"

    def no_clear_cost(self, defense: str) -> bool:
        """Whether the change in utility lies within the interval of the seeds."""
        cost = self.cost(defense)
        return cost.n > 1 and cost.low <= 0 <= cost.high

    def flaws(self, point: Point) -> tuple[str, ...]:
        """Return what is wrong with a claim, and which attacks are missing here alone."""
        usual = self.base.point.coverage if self.base else None
        missing = point.coverage.missing and str(point.coverage) != str(usual)
        found = (point.collapsed.partition(":")[0], str(point.coverage) if missing else "")
        return tuple(filter(None, found))

    def unknown(self, defense: str) -> str:
        """Write why nothing is known of a defense."""
        note = self.board[defense].point.note.partition(":")[0]
        return f"{defense} ({note or 'its score was not measured'})"

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
            text = _capital(str(found))
        early = stopped(found.early)
        return f"{text}{f'; {early}' if early else ''}."

    def local(self) -> Estimate:
        """Return the utility of training alone."""
        return next((e for name, e in self.frontier.references if name in ALONE), Estimate())

    def closed(self, defense: str) -> bool:
        """Whether a defense is shown to be down to blind by every score."""
        row = self.board[defense]
        return at_blind(row.point, row.leaks, self.margin)


#: What defenses do to the leading leak, over several seeds and in one.
_STATES = {
    "stops": ("is stopped by", "is stopped by"),
    "may stop": (f"may be stopped ({NO_DIFFERENCE} from {NOT_LOOKING}) by",
                 "is not seen, in this one seed, with"),
    "cuts": ("is cut, and not stopped, by", "is less, in this one seed, with"),
    "same": ("is not clearly changed by", "is the same, in this one seed, with"),
    "raises": ("is made worse by", "is more, in this one seed, with"),
    "unknown": ("", ""),
}  # fmt: skip


def _steps(sides: Sequence[_Panel], untried: Sequence[str]) -> list[str]:
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
            steps.append(_use(defense, mine, len(able[side.who])))
            steps += [_open(s, defense) for s in mine]
    if not leaking and sides and any(side.base and side.base.leaks for side in sides):
        steps.append("Nothing to stop was found here: try a harder setting before you trust this.")
    if untried:
        steps.append(f"Not tried: {'; '.join(untried)}.")
    return steps


def _drawn(sides: Sequence[_Panel]) -> list[str]:
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


def _cheapest(defenses: Iterable[str], side: _Panel) -> str:
    """Return the defense of most utility; of equal ones the one of least traffic."""

    def price(defense: str) -> tuple[float, float]:
        row = side.board[defense]
        traffic = row.cost.bytes if math.isfinite(row.cost.bytes) else math.inf
        return -side.sign * row.point.utility.mean, traffic

    return min(defenses, key=price)


def _use(defense: str, sides: Sequence[_Panel], rivals: int) -> str:
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
        facts.append(f"{alone} {style.number(local.mean)}")
        first = first if worth else "Train alone, or against"
    if row.point.collapsed:
        facts.append(f"{row.point.collapsed}, so that it rests on these attacks alone")
    if row.point.coverage.missing:
        facts.append(f"only {row.point.coverage}")
    sure = all(s.state(defense) == "stops" for s in sides)
    stop = "stop" if sure else "stop, or may stop,"
    cheapest = f", the cheapest of {rivals} that {stop} the worst of it" if rivals > 1 else ""
    return f"{first} {against} use {defense}{cheapest}: {', '.join(facts)}."


def _open(side: _Panel, defense: str) -> str:
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
            f"score; an advantage below {side.margin:g} in each of them is not shown{why}."
        )
    can = side.can_all(left, defense)
    closing = [d for d in said.stops if d != defense and not {*left} & {*said.open[d]}]
    remedy = "no defense that was tried stops all of it"
    if closing:
        remedy = f"{listed(ordered(closing), 'or')} would stop that too"
    return f"Still open: with {defense}, {side.who} can {can}; {remedy}."


def _unstopped(side: _Panel) -> str:
    """Say that nothing that was tried stops an adversary, and what leaves the least."""
    text = f"Still open: nothing that was tried stops {side.who}"
    if not _drawn([side]):
        return f"Still open: no defense was tried against {side.who}."
    cuts = [d for d in _drawn([side]) if side.state(d) == "cuts"]
    if not cuts:
        return f"{text}, and nothing clearly cuts what {side.they} {_reads(side.several)}."
    least = min(cuts, key=lambda d: side.leak(d, side.lead).advantage.mean)
    left, had = (
        side.amount(side.lead, side.leak(d, side.lead).score.mean, whole=d == least)
        for d in (least, UNDEFENDED)
    )
    return f"{text}; least is left by {least}: {left} instead of {had} ({side.price([least])})."


def _count(value: float) -> str:
    """Write a mean number of rows: whole where it is whole or large."""
    if value >= 9.95 or abs(value - round(value)) < 0.005:
        return f"{value:,.0f}"
    return f"{value:.1f}" if value >= 0.05 else "fewer than 0.1"


def _percent(share: float) -> str:
    digits = 1 if 0 < abs(share) < 0.0995 else 0
    return f"{style.number(100 * share, digits)}%"


def _span(texts: Sequence[str]) -> str:
    """Write one amount, or the first and the last of several."""
    return texts[0] if len(set(texts)) == 1 else f"{texts[0]} to {texts[-1]}"


def _grid(points: Sequence[Point]) -> str:
    """Write budgets of one defense as a grid: ``laplace-hist[epsilon=1,8]``."""
    first = points[0].defense
    if len(points) == 1:
        return first
    name = points[0].budget.name
    values = ",".join(f"{p.budget.value:g}" for p in sorted(points, key=lambda p: p.budget.value))
    return first.replace(f"{name}={points[0].budget.value:g}", f"{name}={values}", 1)

"""Which recipe meets a wish, computed from results; and the page that says so."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

import pandas as pd

from fedtrees.core.columns import UTILITY, measure
from fedtrees.core.counts import listed, many
from fedtrees.report.coverage import coverage
from fedtrees.report.deployed import settings
from fedtrees.report.findings import trials_of
from fedtrees.report.intervals import Estimate, t_estimate
from fedtrees.report.recipe import Candidate, Trial, recommend, recommended
from fedtrees.report.rows import UNDEFENDED
from fedtrees.report.said import can, change, parted, percent, settled, some, word
from fedtrees.report.states import FEWEST_SEEDS, Cell, upper
from fedtrees.report.style import interval, number
from fedtrees.report.web_page import render
from fedtrees.report.worst import by_seed

_UTILITY = UTILITY[0].key  # AUC


@dataclass(frozen=True)
class Wish:
    """What may be left and what must be kept.

    `exact_rows`: Largest share of others' rows reconstructed exactly. `membership`: Largest share
    of members recognised at 1% false alarms. `auc`: Smallest AUC on held-out rows.
    """

    exact_rows: float = 0.01
    membership: float = 0.05
    auc: float = 0.75

    @property
    def limits(self) -> dict[str, float]:
        """The largest share by measure."""
        return {"exact_rows": self.exact_rows, "members_1pct": self.membership}

    def __str__(self) -> str:
        rows, members = percent(self.exact_rows), percent(self.membership)
        return (
            f"at most {rows} of the other parties' rows reconstructed exactly, at most {members} "
            f"of members recognised at 1% false alarms, an AUC of at least {self.auc:g}"
        )


@dataclass(frozen=True)
class Tried:
    """A recipe held against a wish. `auc`: By seed."""

    candidate: Candidate
    auc: Mapping[int, float]
    wish: Wish

    @property
    def name(self) -> str:
        """The recipe."""
        return self.candidate.name

    @property
    def utility(self) -> Estimate:
        """Mean AUC with its 95% t interval over seeds."""
        return t_estimate(self.auc.values())

    @property
    def broken(self) -> str:
        """Why more seeds are not spent on it: a mean is beyond the wish, or an attack is missing.

        "" where nothing speaks against it yet.
        """
        return next(self._reasons(), "")

    @property
    def unmet(self) -> str:
        """Why it is not named: the first that is not shown to meet the wish; "" where all is."""
        reason = self.broken
        if not reason and len(self.auc) < FEWEST_SEEDS:
            return f"{many(len(self.auc), 'seed')} ran; {FEWEST_SEEDS} are needed for an interval"
        return reason or next(self._reasons(shown=True), "")

    @property
    def read(self) -> float:
        """The largest share of a limit that is read, on the means: 1 or less is within."""
        return max((c.score / self.wish.limits[c.metric] for _, c in self._limited()), default=0.0)

    @property
    def excess(self) -> float:
        """How far it is from the wish: 1 or less is within, on the means."""
        return max(self.read, self.wish.auc / self.utility.mean if self.auc else math.inf)

    def _limited(self) -> Iterator[tuple[Trial, Cell]]:
        limits = self.wish.limits
        yield from (
            (t, c)
            for t in self.candidate.trials
            for c in t.cells
            if c.scores and limits.get(c.metric)
        )

    def read_beyond(self, shown: bool = False) -> str:
        """Return what is read furthest beyond the wish, by the mean; "" where nothing is.

        `shown`: By the end of its interval.
        """
        over = []
        for trial, cell in self._limited():
            value, limit = highest(cell) if shown else cell.score, self.wish.limits[cell.metric]
            if value > limit:
                end = f", up to {percent(value)} by the interval" if shown else ""
                reason = f"{trial.place} can {can(cell)}{end}; wished: {percent(limit)}"
                over.append((value / limit, reason))
        return max(over)[1] if over else ""

    def _failed_attacks(self) -> Iterator[str]:
        """Yield by which limited measures nothing is shown, because an attack failed.

        An attack that scored worse than its baseline or returned no claim would otherwise meet
        every wish.
        """
        for trial in self.candidate.trials:
            for cell in (c for c in trial.cells if self.wish.limits.get(c.metric)):
                if cell.below_baseline or (cell.no_claim and cell.state != "open"):
                    yield f"{trial.place}: by {measure(cell.metric).name}, {word(cell)}"

    def _reasons(self, shown: bool = False) -> Iterator[str]:
        """Yield the reasons against a recipe.

        `shown`: Whether the ends of intervals are compared with the wish, instead of means.
        """
        if read := self.read_beyond(shown):
            yield read
        if shown:
            yield from self._failed_attacks()
        least = self.utility.low if shown else self.utility.mean
        if not least >= self.wish.auc:
            auc = interval(self.utility) if shown else number(self.utility.mean)
            yield f"AUC {auc}; wished: {self.wish.auc:g}"
        if self.candidate.untested:
            yield self.candidate.reason


def highest(cell: Cell) -> float:
    """Return the upper end of the 95% interval of a share; where it is 0 throughout, of a count."""
    e = t_estimate(cell.scores, cell.errors)
    high = e.high if math.isfinite(e.high) else math.inf
    return min(1.0, high if any(cell.scores) else max(high, upper(cell)))


def tried(rows: pd.DataFrame, wish: Wish) -> tuple[Tried, ...]:
    """Hold every recipe of a run against a wish, the best first (`fedtrees.report.recipe`).

    `rows`: Of one table (`fedtrees.report.rows.load_rows`).
    """
    trains = rows[rows["stage"] == "train"]
    auc: dict[tuple[str, str], Mapping[int, float]] = {
        (protocol, spec): by_seed(group, _UTILITY)
        for (protocol, spec), group in trains.groupby(
            [trains["setting"].map(lambda s: s.protocol).astype(str), "defense_spec"]
        )
    }
    tried_candidates = []
    for candidate in recommend(trials_of(rows, bare=True), recommended()).candidates:
        protocol, defense = recipe(candidate.name)
        tried_candidates.append(Tried(candidate, auc.get((protocol, defense), {}), wish))
    return tuple(tried_candidates)


def recipe(name: str) -> tuple[str, str]:
    """Return protocol and defense of a recipe of `fedtrees.report.findings.trials_of`."""
    protocol, defense = parted(name)
    return (protocol, defense) if protocol else (defense, UNDEFENDED)


@dataclass(frozen=True)
class Advice:
    """What to take.

    `tried`: Those on which all seeds were spent first, the best first. `undefended`: What is read
    without a defense, by place. `of`: Table, partition and seeds, in words. `version`: Of fedtrees.
    `cut`: Attacks whose search was cut short, with its limits. `left_out`: What was not run.
    """

    wish: Wish
    tried: tuple[Tried, ...]
    undefended: tuple[Trial, ...]
    of: str
    version: str
    cut: tuple[str, ...] = ()
    left_out: str = ""

    @classmethod
    def of_rows(
        cls, rows: pd.DataFrame, wish: Wish, tried: tuple[Tried, ...], left_out: str = ""
    ) -> Advice:
        """Return the advice of a run. `rows`: Of its last round."""
        first = rows[rows["stage"] == "train"].iloc[0]
        seeds = many(int(rows["seed"].dropna().nunique()), "seed")
        summary = f"{first['dataset']}, {first['partition']}, {seeds}"
        plain = trials_of(rows).get(UNDEFENDED, [])
        attacks = rows[rows["stage"] == "attack"]
        cut = coverage(rows[rows["stage"] == "adversary"], attacks).early
        return cls(wish, tried, tuple(plain), summary, first["version"], cut, left_out)

    @cached_property
    def met(self) -> tuple[Tried, ...]:
        """The recipes that meet the wish, the best first."""
        return tuple(t for t in self.tried if not t.unmet)

    @property
    def choice(self) -> Tried | None:
        """The recipe to take."""
        return next(iter(self.met), None)

    @property
    def nearest(self) -> Tried | None:
        """Where none meets the wish, the nearest of those that every attack was run on."""
        every = [t for t in self.tried if not t.candidate.untested]
        return None if self.choice else min(every, key=lambda t: t.excess, default=None)

    @property
    def verdict(self) -> tuple[str, ...]:
        """What to take, the next best, why the others are not it."""
        plain = Tried(Candidate(UNDEFENDED, self.undefended), {}, self.wish).read_beyond()
        without = plain or "nothing is read beyond the wish, on the mean"
        lines = [f"Wished: {self.wish}.", f"Without a defense: {without}.", *self._out_of_reach()]
        lines.append(self.headline)
        if self.choice:
            still = [f"{place} can {can(cell)}" for place, cell in self.choice.candidate.open]
            lines += [f"It leaves: {some(still)}."] * bool(still)
            lines += [f"Next best: {_told(t)}." for t in self.met[1:2]]
            lines += [*settings(*recipe(self.choice.name))] or [
                "No other system that is known here runs it as it is: `fedtrees federate` does."
            ]
        lines += [f"Not {t.name}: {t.unmet}." for t in self.tried if t.unmet]
        return tuple(lines)

    @property
    def headline(self) -> str:
        """What to take, or that there is nothing."""
        if self.choice:
            return f"Take {_told(self.choice)}."
        near = f" Nearest: {_told(self.nearest)}." if self.nearest else ""
        return f"None of {many(len(self.tried), 'recipe')} is shown to meet it.{near}"

    def _out_of_reach(self) -> Iterator[str]:
        """Yield which limits no defense can keep, since a blind guess is beyond them."""
        for metric, limit in self.wish.limits.items():
            cells = [c for t in self.undefended for c in t.cells if c.metric == metric and c.scores]
            blind = max((c.line for c in cells), default=0.0)
            if blind > limit:
                yield (
                    f"Out of reach of any defense: a blind guess has {percent(blind)} in "
                    f"{measure(metric).name}; wished: {percent(limit)}."
                )

    @property
    def sections(self) -> dict[str, list[str]]:
        """Those of a data protection impact assessment: paragraphs, and lists a line an item."""
        taken = self.choice or self.nearest
        places = [t.place for t in self.undefended]
        return {
            "Purpose": [f"To train one model over several parties, with {self.wish}."],
            "Data": [f"{self.of}. Computed by fedtrees {self.version}."],
            "Adversaries": [
                f"Honest-but-curious, each with all that it receives: {listed(places)}."
            ],
            "Risks without a measure": _risks(self.undefended),
            "Measures": [*self.verdict],
            "Residual risk": _risks(taken.candidate.trials) if taken else ["Not known."],
            "Not tested": [*self._untested()],
        }

    def page(self) -> str:
        """Return the advice as Markdown."""
        parts = [f"## {head}\n\n" + "\n\n".join(lines) for head, lines in self.sections.items()]
        return "\n\n".join(["# Advice", *parts]) + "\n"

    def html(self) -> str:
        """Return the advice as one HTML document; the same run gives the same bytes."""
        return render(
            "advice.html.j2",
            title=self.of,
            headline=self.headline,
            sections=self.sections,
            version=self.version,
        )

    def _untested(self) -> Iterator[str]:
        measured = {c.metric for t in self.tried for trial in t.candidate.trials
                    for c in trial.cells if c.scores}  # fmt: skip
        for metric in self.wish.limits:
            if metric not in measured:
                yield f"{measure(metric).name}: no attack that applies measures it."
        for t in self.tried:
            if t.candidate.untested:
                yield f"{t.name}: {some(t.candidate.untested)}."
        if self.left_out:
            yield f"{self.left_out[0].upper()}{self.left_out[1:]}."
        if self.cut:
            yield f"Beyond the search limit of {listed(self.cut)}."
        yield (
            "Adversaries that are not named above; attacks that are not in fedtrees; parties that "
            "lie or poison; other tables."
        )


def _told(found: Tried) -> str:
    cost = f"{change(found.candidate.price.change)} ({settled(found.candidate.price)})"
    return f"`{found.name}`, AUC {interval(found.utility)}, against the undefended run {cost}"


def _risks(trials: Iterable[Trial]) -> list[str]:
    """Write what is open, an adversary in a line."""
    lines = []
    for t in trials:
        open_cells: Sequence[Cell] = [c for c in t.cells if c.state == "open" and c.scores]
        below = [measure(c.metric).name for c in t.cells if c.below_baseline]
        unsettled = [
            measure(c.metric).name
            for c in t.cells
            if c.state in ("unsettled", "unknown") and not c.below_baseline
        ]
        what = [can(c) for c in open_cells] or ["nothing is shown to be read"]
        more = f"; not settled: {some(unsettled)}" if unsettled else ""
        if below:
            why = "the attack did worse than a blind guess, so that nothing is shown"
            more += f"; {why}: {some(below)}"
        lines.append(f"- {t.place}: {'; '.join(what)}{more}")
    return ["\n".join(lines)]

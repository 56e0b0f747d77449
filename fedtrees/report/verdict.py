"""Is a defense down to blind? A claim of equivalence: a margin, and enough seeds to show it."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import pandas as pd

from fedtrees.core.columns import measure
from fedtrees.core.errors import UsageError
from fedtrees.metrics.aggregate import t_upper
from fedtrees.report.frontier import Point
from fedtrees.report.intervals import Estimate, estimate, sampling_half
from fedtrees.report.worst import attack_metrics, worst_case

# What a defense may leave above blind and still be called down to it. Between federations of one
# table advantages differ by one to three points: three seeds can show five, and not much less.
MARGIN = 0.05
FEWEST_SEEDS = 3  # of fewer no interval is believed


@dataclass(frozen=True)
class Leak:
    """The worst advantage over the attacks that ran, by one score.

    `beyond`: The same against the better of two who never looked: the adversary itself, and where
    it has no rows somebody who knows other rows of the population. `upper`: Upper end of its 95% t
    interval over seeds; infinite below `FEWEST_SEEDS`. `score, blind, population`: Of the attack
    that is worst on each seed, and of those two. `attacks`: Names of
    those attacks, the most frequent first. `n`: How many rows the share is of, NaN where the run
    does not tell. `by_seed`: Their scores, each with its standard error where a sample of the rows
    was scored, else 0.
    """

    metric: str
    advantage: Estimate
    beyond: Estimate
    upper: float
    score: Estimate = Estimate()
    blind: Estimate = Estimate()
    population: Estimate = Estimate()
    attacks: tuple[str, ...] = ()
    n: float = math.nan
    by_seed: Mapping[int, tuple[float, float]] = field(default_factory=dict)

    @property
    def line(self) -> float:
        """What the attack is held against: the blind score, or that of who knows the population."""
        if not self.population.known:
            return self.blind.mean
        return self.population.mean if self.beyond.mean < self.advantage.mean else self.blind.mean

    @property
    def past_blind(self) -> bool:
        """Whether `beyond` is clearly above zero."""
        return above(self.beyond)

    def open(self, margin: float) -> bool:
        """Whether it is clearly past blind: by more than the margin, of single persons by any.

        A margin wider than `MARGIN` grants no more than that.
        """
        granted = min(margin, MARGIN, measure(self.metric).margin)
        return self.past_blind and self.beyond.mean > granted


def above(e: Estimate) -> bool:
    """Tell whether an advantage is above zero with its whole interval (one seed: its value)."""
    return (e.low if math.isfinite(e.low) else e.mean) > 0


def leaks_of(attacks: pd.DataFrame) -> dict[str, tuple[Leak, ...]]:
    """Return, per defense, the worst advantage by every headline score that was measured.

    `attacks`: Attack rows of one setting and threat.
    """
    found: dict[str, list[Leak]] = {}
    for metric in (m for m in attack_metrics(attacks) if measure(m).phrase):
        for spec, rows in worst_case(attacks, metric).groupby("defense_spec"):
            values = _beyond(rows)
            errors = rows["advantage_error"].tolist()
            upper = t_upper(values) if len(values) >= FEWEST_SEEDS else math.inf
            upper = math.fsum(values) / len(values) + math.hypot(
                upper - math.fsum(values) / len(values), sampling_half(errors)
            )
            scored = zip(rows["seed"], rows["value"], rows["value_error"], strict=True)
            found.setdefault(str(spec), []).append(
                Leak(
                    metric,
                    estimate(rows["advantage"], errors),
                    estimate(values, errors),
                    upper,
                    estimate(rows["value"], rows["value_error"]),
                    estimate(rows["blind"]),
                    estimate(rows["population"]),
                    tuple(name for name, _ in Counter(rows["attack_spec"]).most_common()),
                    float(rows["n"].mean()),
                    {int(seed): (value, error) for seed, value, error in scored},
                )
            )
    return {spec: tuple(leaks) for spec, leaks in found.items()}


def _beyond(rows: pd.DataFrame) -> list[float]:
    """Return advantages over the better of both lines; who reaches a perfect one has none."""
    told = rows["beyond"].where(rows["beyond"].notna() | rows["population"].isna(), 0.0)
    return [min(a, b) if math.isfinite(b) else a
            for a, b in zip(rows["advantage"], told, strict=True)]  # fmt: skip


def at_blind(point: Point, leaks: tuple[Leak, ...], margin: float) -> bool:
    """Tell whether it is shown that a defense leaves no more than `margin` above blind.

    Every attack that applies has run, and by every headline score that was measured the upper end
    of the interval lies below the margin: noise widens an interval and shows nothing.
    """
    return (
        point.drawn
        and point.coverage.complete
        and bool(leaks)
        and all(leak.upper < margin for leak in leaks)
    )


def difference(gaps: Sequence[float], errors: Sequence[float] = ()) -> Estimate:
    """Return the mean of paired differences with its 95% t interval; below 2 seeds without one.

    A bootstrap interval of a handful of seeds is too short to call a difference clear.

    `errors`: Standard errors of the differences, where they are of samples.
    """
    known = [g for g in gaps if math.isfinite(g)]
    if len(known) < 2:
        return Estimate(known[0], n=1) if known else Estimate()
    mean = math.fsum(known) / len(known)
    half = math.hypot(t_upper(known) - mean, sampling_half(errors))
    return Estimate(mean, mean - half, mean + half, len(known))


def check_margin(margin: float) -> float:
    """Return the margin; raise `UsageError` if it is none."""
    if not 0 < margin < 1:
        raise UsageError(f"margin {margin:g}: give an advantage above 0 and below 1, such as 0.05")
    return margin

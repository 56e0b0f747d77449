"""Utility against worst-case advantage: rows in, frontier points out. No drawing here."""

import math
from collections import Counter
from dataclasses import dataclass, field, replace

import numpy as np
import pandas as pd
from numpy.typing import ArrayLike, NDArray

from fedtrees.core.columns import UTILITY, measure
from fedtrees.core.guarantee import ActedOnNothing, Guarantee, join
from fedtrees.metrics.metric import headlines
from fedtrees.report import claims
from fedtrees.report.budgets import Budget, budgets, family, ordered
from fedtrees.report.coverage import Coverage, coverage, cut_short
from fedtrees.report.intervals import Estimate, estimate
from fedtrees.report.rows import UNDEFENDED, Panel, Setting
from fedtrees.report.states import margin_of
from fedtrees.report.worst import attack_metrics, by_seed, panels, worst_case


@dataclass(frozen=True)
class SeedPoint:
    """One seed: its utility, the largest advantage any attack reached, and which attack."""

    seed: int
    utility: float
    advantage: float
    attack: str = ""
    score: float = math.nan
    blind: float = math.nan


@dataclass(frozen=True)
class Point:
    """One defense at one setting of its parameters, under one threat."""

    defense: str
    family: str
    budget: Budget
    kind: claims.Kind
    claimed: str
    utility: Estimate
    advantage: Estimate
    score: Estimate
    blind: Estimate
    attacks: tuple[tuple[str, int], ...]
    seeds: tuple[SeedPoint, ...]
    coverage: Coverage = field(default_factory=Coverage)
    population: Estimate = Estimate()  # score of the population baseline
    measured: str = ""  # by an audit, of the seed of which it showed most
    untouched: bool = False  # no attack applies
    unfit: bool = False  # the defense makes no sense with the protocol
    attack_failed: bool = False  # the strongest attack scored worse than blind, by the margin

    @property
    def incomplete(self) -> bool:
        """Whether an attack that applies is missing: the advantage is only a lower bound."""
        return self.coverage.missing

    @property
    def drawn(self) -> bool:
        """Whether both coordinates are known."""
        return self.utility.known and self.advantage.known


@dataclass(frozen=True)
class Frontier:
    """The points of one panel, the non-dominated ones among them, and the lines to draw."""

    panel: Panel
    metric: str
    utility: str
    points: tuple[Point, ...]
    front: tuple[str, ...]
    lines: tuple[tuple[str, ...], ...]
    references: tuple[tuple[str, Estimate], ...]
    blind: tuple[str, ...] = ()  # the guesses that the blind baseline is of
    every_reference: bool = False  # the utility axis reaches them all, however far

    @property
    def undefended(self) -> Estimate:
        """The utility of the undefended run."""
        return next((p.utility for p in self.points if p.defense == UNDEFENDED), Estimate())

    @property
    def drawn(self) -> tuple[Point, ...]:
        """The points with both coordinates."""
        return tuple(p for p in self.points if p.drawn)

    def point(self, defense: str) -> Point | None:
        """Return the point of one defense, None if it is not in this panel."""
        return next((p for p in self.points if p.defense == defense), None)


def frontiers(
    rows: pd.DataFrame, metric: str | None = None, utility: str | None = None
) -> tuple[Frontier, ...]:
    """Compute the frontier of every (dataset, partition, protocol, threat).

    `rows`: As returned by `load_rows`.
    `metric`: Attack metric whose advantage is the leak. Not given: the first that a panel has.
    `utility`: Train metric. Not given: the first of `UTILITY` that the setting has.
    """
    return tuple(_frontier(rows, panel, metric, utility) for panel in panels(rows))


def _frontier(
    rows: pd.DataFrame, panel: Panel, metric: str | None, utility: str | None
) -> Frontier:
    here = rows[rows["setting"] == panel.setting]
    trains = here[here["stage"] == "train"]
    attacks = here[(here["stage"] == "attack") & (here["threat"] == panel.threat)]
    metric = metric or (*attack_metrics(attacks), *headlines())[0]
    measured = set(trains["metric"])
    utility = utility or next((u.key for u in UTILITY if u.key in measured), UTILITY[0].key)
    worst = _split(worst_case(attacks, metric))
    trained = _split(trains[(trains["metric"] == utility) | (trains["status"] != "ok")])
    # One row per attack cell is enough to tell what ran, what failed and what was skipped.
    noted = cut_short(attacks)
    same = ["defense_spec", "attack_spec", "seed", "status"]
    cells = _split(pd.concat([attacks[~noted].drop_duplicates(same), attacks[noted]]))
    exposed = _split(here[(here["stage"] == "adversary") & (here["threat"] == panel.threat)])
    specs = ordered({*trains["defense_spec"], *attacks["defense_spec"]})
    varying = budgets(specs)
    empty = rows.iloc[:0]
    parts = (trained, cells, worst, exposed)
    points = tuple(
        _point(spec, *(part.get(spec, empty) for part in parts), utility, varying[spec])
        for spec in specs
    )
    limit = margin_of(metric, counted=bool(measure(metric).counted_by))
    points = tuple(replace(p, attack_failed=p.advantage.mean < -limit) for p in points)
    refs, blind = references(rows, panel.setting, utility), blind_guesses(rows, panel, metric)
    front, lines = front_of(points, utility), lines_of(points)
    return Frontier(panel, metric, utility, points, front, lines, refs, blind)


def _split(rows: pd.DataFrame) -> dict[str, pd.DataFrame]:
    return {str(spec): group for spec, group in rows.groupby("defense_spec")}


def non_dominated(utility: ArrayLike, advantage: ArrayLike, lower: bool = False) -> NDArray:
    """Mark the points that no other point beats in one coordinate without losing in the other.

    `utility, advantage`: float arrays, shape (n,). More utility is better (less, if `lower`), less
    advantage is better.

    Returns: bool array, shape (n,).
    """
    u = np.asarray(utility, dtype=float) * (-1.0 if lower else 1.0)
    a = np.asarray(advantage, dtype=float)
    no_worse = (u[:, None] >= u[None, :]) & (a[:, None] <= a[None, :])
    better = (u[:, None] > u[None, :]) | (a[:, None] < a[None, :])
    return ~(no_worse & better).any(axis=0)


def references(
    rows: pd.DataFrame, setting: Setting, utility: str
) -> tuple[tuple[str, Estimate], ...]:
    """Return the utility of training without a federation: `ALONE`, and majority-class."""
    here = rows[
        (rows["stage"] == "reference")
        & (rows["dataset"] == setting.dataset)
        & (rows["partition"] == setting.partition)
        & rows["protocol_params"].isin(["", setting.protocol])
        & (rows["metric"] == utility)
        & (rows["status"] == "ok")
    ]
    groups = here.groupby("protocol")["value"]
    return tuple((str(name), estimate(values)) for name, values in groups)


def blind_guesses(rows: pd.DataFrame, panel: Panel, metric: str) -> tuple[str, ...]:
    """Return the names of the blind guesses that were best by a metric, of any seed."""
    here = rows[
        (rows["stage"] == "blind")
        & (rows["dataset"] == panel.setting.dataset)
        & (rows["partition"] == panel.setting.partition)
        & (rows["threat"] == panel.threat)
        & (rows["metric"] == metric)
    ]
    return tuple(sorted({*here["blind_guess"]} - {""}))


def _point(
    spec: str,
    trained: pd.DataFrame,
    attacks: pd.DataFrame,
    worst: pd.DataFrame,
    exposed: pd.DataFrame,
    utility: str,
    budget: Budget,
) -> Point:
    useful = by_seed(trained, utility)
    columns = (worst[c].tolist() for c in ("seed", "advantage", "attack_spec", "value", "blind"))
    leak = {int(seed): found for seed, *found in zip(*columns, strict=True)}
    seeds = [
        SeedPoint(seed, useful.get(seed, math.nan), *leak.get(seed, (math.nan,)))
        for seed in sorted({*useful, *leak})
    ]
    claimed, spent = (
        next((stated for part in (trained, attacks) for stated in part[column] if stated), None)
        for column in ("claimed", "spent")
    )
    shown = [m for m in trained["measured"] if m]
    measured = max(shown, key=lambda stated: stated[0].budget or ("", 0.0), default=None)
    return Point(
        defense=spec,
        family=family(spec),
        budget=budget,
        kind=claims.standing(claimed, spent, measured),
        claimed=_stated(claimed, spent),
        utility=estimate(useful.values()),
        advantage=estimate(worst["advantage"], worst.get("advantage_error", ())),
        score=estimate(worst["value"], worst.get("value_error", ())),
        blind=estimate(worst["blind"]),
        attacks=tuple(sorted(Counter(worst["attack_spec"]).items(), key=lambda x: (-x[1], x[0]))),
        seeds=tuple(seeds),
        coverage=coverage(exposed, attacks),
        population=estimate(worst["population"].dropna()),
        measured=claims.span([measured]) if measured else "",
        untouched=len(attacks) > 0 and bool((attacks["status"] == "skipped").all()),
        unfit=len(trained) > 0 and bool((trained["status"] == "skipped").all()),
    )


def lines_of(points: tuple[Point, ...]) -> tuple[tuple[str, ...], ...]:
    """Join the budgets of one defense, other parameters equal, in order of the budget."""
    groups: dict[tuple[str, str], list[Point]] = {}
    for p in points:
        if p.drawn and p.budget.known:
            groups.setdefault((p.family, p.budget.rest), []).append(p)
    return tuple(
        tuple(p.defense for p in sorted(group, key=lambda p: p.budget.value))
        for _, group in sorted(groups.items())
        if len(group) > 1
    )


def front_of(points: tuple[Point, ...], utility: str) -> tuple[str, ...]:
    """Return the non-dominated points, by utility.

    Points take no part whose advantage is only a lower bound: an attack did not finish or did not
    run (`Point.incomplete`), or it scored worse than the blind baseline (`Point.attack_failed`).
    """
    solid = [p for p in points if p.drawn and not (p.incomplete or p.attack_failed)]
    if not solid:
        return ()
    lower = measure(utility).better == "lower"
    mask = non_dominated(
        [p.utility.mean for p in solid], [p.advantage.mean for p in solid], lower=lower
    )
    kept = [p for p, keep in zip(solid, mask, strict=True) if keep]
    return tuple(p.defense for p in sorted(kept, key=lambda p: (p.utility.mean, p.advantage.mean)))


def _stated(claimed: tuple[Guarantee, ...] | None, spent: tuple[Guarantee, ...] | None) -> str:
    """Write what a defense claims; of one that never acted in a run, that it did not."""
    if any(isinstance(g, ActedOnNothing) for g in spent or ()):
        return ActedOnNothing.kind
    return join(claimed) if claimed else ""

"""Compute frontiers: utility against the worst-case advantage of all attacks, by defense.

The module only computes points. `interactive_figure` and `static_figure` draw them.
"""

import math
from collections import Counter
from dataclasses import dataclass, field, replace

import numpy as np
import pandas as pd
from numpy.typing import ArrayLike, NDArray

from fedtrees.core.guarantee import ActedOnNothing, Guarantee, join
from fedtrees.core.results import UTILITY, measure
from fedtrees.metrics.metric import headlines
from fedtrees.report import guarantees
from fedtrees.report.budgets import Budget, budgets, family, ordered
from fedtrees.report.coverage import Coverage, coverage, cut_short
from fedtrees.report.leakage import margin_of
from fedtrees.report.results import UNDEFENDED, Panel, Setting
from fedtrees.report.statistics import (
    Estimate,
    attack_metrics,
    by_seed,
    estimate,
    panels,
    worst_case,
)


@dataclass(frozen=True)
class SeedPoint:
    """Utility of one seed, and the attack with the largest advantage on this seed."""

    seed: int
    utility: float
    advantage: float
    attack: str = ""
    score: float = math.nan
    blind: float = math.nan


@dataclass(frozen=True)
class Point:
    """One defense with one setting of its parameters, under one threat.

    Attributes
    ----------
    defense, family : str
        Name with and without parameters.
    budget : Budget
        The swept parameter.
    kind : str
        Kind of the claim (`fedtrees.report.guarantees.KINDS`).
    claimed : str
        The claimed guarantee.
    utility, advantage, score, blind, population : Estimate
        Means over seeds: utility, advantage of the strongest attack, its score, and its two
        baselines.
    attacks : tuple of (str, int)
        The strongest attacks, with the number of seeds on which each was the strongest.
    seeds : tuple of SeedPoint
        The values of every seed.
    coverage : Coverage
        Which attacks apply, and how they ended.
    measured : str
        Largest guarantee that an audit measured on a seed, "" without an audit.
    untouched : bool
        Whether no attack applies.
    unfit : bool
        Whether the defense does not fit the protocol.
    attack_failed : bool
        Whether the strongest attack scored worse than its baseline by more than the margin.
    """

    defense: str
    family: str
    budget: Budget
    kind: guarantees.Kind
    claimed: str
    utility: Estimate
    advantage: Estimate
    score: Estimate
    blind: Estimate
    attacks: tuple[tuple[str, int], ...]
    seeds: tuple[SeedPoint, ...]
    coverage: Coverage = field(default_factory=Coverage)
    population: Estimate = Estimate()
    measured: str = ""
    untouched: bool = False
    unfit: bool = False
    attack_failed: bool = False

    @property
    def incomplete(self) -> bool:
        """Whether an applicable attack has no result. The advantage is then a lower bound."""
        return self.coverage.missing

    @property
    def drawn(self) -> bool:
        """Whether both coordinates are known."""
        return self.utility.known and self.advantage.known


@dataclass(frozen=True)
class Frontier:
    """The points of one panel, the non-dominated ones among them, and the lines to draw.

    Attributes
    ----------
    panel : Panel
        Setting and threat.
    metric, utility : str
        Keys of the attack metric and of the training metric.
    points : tuple of Point
        One point per defense.
    front : tuple of str
        Names of the non-dominated defenses, by utility.
    lines : tuple of tuple of str
        Names of defenses that a line joins, by budget.
    references : tuple of (str, Estimate)
        Utility of training on local data only, and of the constant model.
    blind : tuple of str
        Names of the guesses that the blind baseline consists of.
    every_reference : bool
        Whether the utility axis includes all references, however far away they are.
    """

    panel: Panel
    metric: str
    utility: str
    points: tuple[Point, ...]
    front: tuple[str, ...]
    lines: tuple[tuple[str, ...], ...]
    references: tuple[tuple[str, Estimate], ...]
    blind: tuple[str, ...] = ()
    every_reference: bool = False

    @property
    def undefended(self) -> Estimate:
        """Utility of the undefended run."""
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

    Parameters
    ----------
    rows : DataFrame
        Results as returned by `load_rows`.
    metric : str or None
        Attack metric whose advantage is the leak. Default: the first headline metric of each panel.
    utility : str or None
        Training metric. Default: the first metric of `UTILITY` that the setting has.
    """
    return tuple(_panel_frontier(rows, panel, metric, utility) for panel in panels(rows))


def _panel_frontier(
    rows: pd.DataFrame, panel: Panel, metric: str | None, utility: str | None
) -> Frontier:
    """Compute the frontier of one panel."""
    here = rows[rows["setting"] == panel.setting]
    trains = here[here["stage"] == "train"]
    attacks = here[(here["stage"] == "attack") & (here["threat"] == panel.threat)]
    metric = metric or (*attack_metrics(attacks), *headlines())[0]
    measured = set(trains["metric"])
    utility = utility or next((u.key for u in UTILITY if u.key in measured), UTILITY[0].key)
    worst = _split_by_defense(worst_case(attacks, metric))
    trained = _split_by_defense(trains[(trains["metric"] == utility) | (trains["status"] != "ok")])
    # One row per attack cell shows whether the attack ran, failed or was skipped. The rows that
    # record the limits of a search are needed, too.
    noted = cut_short(attacks)
    same = ["defense_spec", "attack_spec", "seed", "status"]
    cells = _split_by_defense(pd.concat([attacks[~noted].drop_duplicates(same), attacks[noted]]))
    exposed = _split_by_defense(
        here[(here["stage"] == "adversary") & (here["threat"] == panel.threat)]
    )
    specs = ordered({*trains["defense_spec"], *attacks["defense_spec"]})
    varying = budgets(specs)
    empty = rows.iloc[:0]
    parts = (trained, cells, worst, exposed)
    points = tuple(
        _build_point(spec, *(part.get(spec, empty) for part in parts), utility, varying[spec])
        for spec in specs
    )
    # Whether the strongest attack failed depends on the margin of the measure.
    limit = margin_of(metric, counted=bool(measure(metric).counted_by))
    points = tuple(replace(p, attack_failed=p.advantage.mean < -limit) for p in points)
    refs, blind = references(rows, panel.setting, utility), blind_guesses(rows, panel, metric)
    front, lines = front_of(points, utility), lines_of(points)
    return Frontier(panel, metric, utility, points, front, lines, refs, blind)


def _split_by_defense(rows: pd.DataFrame) -> dict[str, pd.DataFrame]:
    """Split rows by defense."""
    return {str(spec): group for spec, group in rows.groupby("defense_spec")}


def non_dominated(utility: ArrayLike, advantage: ArrayLike, lower: bool = False) -> NDArray:
    """Mark the points that no other point dominates.

    A point dominates another one if it is at least as good in both coordinates and better in one.

    Parameters
    ----------
    utility : float array, shape (n,)
        Larger values are better, unless `lower` is set.
    advantage : float array, shape (n,)
        Smaller values are better.
    lower : bool
        Whether smaller values of the utility are better.

    Returns
    -------
    mask : bool array, shape (n,)
        True for non-dominated points.
    """
    u = np.asarray(utility, dtype=float) * (-1.0 if lower else 1.0)
    a = np.asarray(advantage, dtype=float)
    # Entry (i, j) of these matrices compares point i with point j.
    no_worse = (u[:, None] >= u[None, :]) & (a[:, None] <= a[None, :])
    better = (u[:, None] > u[None, :]) | (a[:, None] < a[None, :])
    return ~(no_worse & better).any(axis=0)


def references(
    rows: pd.DataFrame, setting: Setting, utility: str
) -> tuple[tuple[str, Estimate], ...]:
    """Return the utility of training without a federation (`ALONE`) and of the constant model.

    Parameters
    ----------
    rows : DataFrame
        Results as returned by `load_rows`.
    setting : Setting
        Dataset, partition and protocol.
    utility : str
        Key of the training metric.

    Returns
    -------
    references : tuple of (str, Estimate)
        By name: one of `ALONE`, or "majority-class".
    """
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
    """Return the names of the blind guesses that were the best on some seed.

    Parameters
    ----------
    rows : DataFrame
        Results as returned by `load_rows`.
    panel : Panel
        Setting and threat.
    metric : str
        Key of the attack metric.
    """
    here = rows[
        (rows["stage"] == "blind")
        & (rows["dataset"] == panel.setting.dataset)
        & (rows["partition"] == panel.setting.partition)
        & (rows["threat"] == panel.threat)
        & (rows["metric"] == metric)
    ]
    return tuple(sorted({*here["blind_guess"]} - {""}))


def _build_point(
    spec: str,
    trained: pd.DataFrame,
    attacks: pd.DataFrame,
    worst: pd.DataFrame,
    exposed: pd.DataFrame,
    utility: str,
    budget: Budget,
) -> Point:
    """Compute the point of one defense from its rows.

    `trained`, `attacks` and `exposed` are rows of the stages train, attack and adversary. `worst`
    contains the worst-case row of each seed.
    """
    useful = by_seed(trained, utility)
    columns = (worst[c].tolist() for c in ("seed", "advantage", "attack_spec", "value", "blind"))
    leak = {int(seed): values for seed, *values in zip(*columns, strict=True)}
    seeds = [
        SeedPoint(seed, useful.get(seed, math.nan), *leak.get(seed, (math.nan,)))
        for seed in sorted({*useful, *leak})
    ]
    claimed, spent = (
        next(
            (guarantee for part in (trained, attacks) for guarantee in part[column] if guarantee),
            None,
        )
        for column in ("claimed", "spent")
    )
    shown = [m for m in trained["measured"] if m]
    measured = max(shown, key=lambda guarantee: guarantee[0].budget or ("", 0.0), default=None)
    return Point(
        defense=spec,
        family=family(spec),
        budget=budget,
        kind=guarantees.standing(claimed, spent, measured),
        claimed=_claim_text(claimed, spent),
        utility=estimate(useful.values()),
        advantage=estimate(worst["advantage"], worst.get("advantage_error", ())),
        score=estimate(worst["value"], worst.get("value_error", ())),
        blind=estimate(worst["blind"]),
        attacks=tuple(sorted(Counter(worst["attack_spec"]).items(), key=lambda x: (-x[1], x[0]))),
        seeds=tuple(seeds),
        coverage=coverage(exposed, attacks),
        population=estimate(worst["population"].dropna()),
        measured=guarantees.span([measured]) if measured else "",
        untouched=len(attacks) > 0 and bool((attacks["status"] == "skipped").all()),
        unfit=len(trained) > 0 and bool((trained["status"] == "skipped").all()),
    )


def lines_of(points: tuple[Point, ...]) -> tuple[tuple[str, ...], ...]:
    """Join the points of one family in the order of the swept parameter.

    Only points that agree in the remaining parameters are joined.
    """
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
    """Return the names of the non-dominated points, by utility.

    A point is excluded if its advantage is only a lower bound. This is the case if an attack did
    not finish or did not run (`Point.incomplete`), or if the strongest attack scored worse than its
    baseline (`Point.attack_failed`).
    """
    solid = [p for p in points if p.drawn and not (p.incomplete or p.attack_failed)]
    if not solid:
        return ()
    lower = measure(utility).better == "lower"
    mask = non_dominated(
        [p.utility.mean for p in solid], [p.advantage.mean for p in solid], lower=lower
    )
    front = [p for p, keep in zip(solid, mask, strict=True) if keep]
    return tuple(p.defense for p in sorted(front, key=lambda p: (p.utility.mean, p.advantage.mean)))


def _claim_text(claimed: tuple[Guarantee, ...] | None, spent: tuple[Guarantee, ...] | None) -> str:
    """Write the claim of a defense. A defense that changed no message in a run has no claim."""
    if any(isinstance(g, ActedOnNothing) for g in spent or ()):
        return ActedOnNothing.kind
    return join(claimed) if claimed else ""

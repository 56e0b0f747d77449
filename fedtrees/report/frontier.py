"""Compute frontiers: utility against the worst-case advantage of all attacks, by defense.

`panel_frontier` collects one `Point` per defense from the findings of a setting. `over_budgets`
joins the frontiers of a protocol that was run with several values of a parameter. The figures draw
them (`fedtrees.report.figures`).
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import TYPE_CHECKING

import numpy as np
import pandas as pd
from numpy.typing import ArrayLike, NDArray

from fedtrees.core.results import UTILITY, measure
from fedtrees.core.specs import Composed, Value, parse_one
from fedtrees.metrics.metric import headlines
from fedtrees.report.cost import references
from fedtrees.report.coverage import Coverage
from fedtrees.report.guarantees import DefenseGuarantees, Kind, span
from fedtrees.report.leakage import LeakageResult
from fedtrees.report.results import UNDEFENDED, Panel, Setting, family
from fedtrees.report.statistics import Estimate, attack_metrics, by_seed, t_estimate

if TYPE_CHECKING:
    from fedtrees.report.findings import SettingFindings


@dataclass(frozen=True)
class Budget:
    """The swept parameter of one defense.

    Attributes
    ----------
    name : str
        Name of the parameter, for example "epsilon". "" if nothing was swept.
    value : float
        Value of the parameter, NaN if nothing was swept.
    rest : str
        The remaining parameters. Only points that agree in them are joined by a line.
    """

    name: str = ""
    value: float = math.nan
    rest: str = ""

    @property
    def known(self) -> bool:
        """Whether the defense was swept over a numeric parameter."""
        return not math.isnan(self.value)


@dataclass(frozen=True)
class Point:
    """One defense with one setting of its parameters, under one threat.

    Attributes
    ----------
    defense, family : str
        Name with and without parameters.
    budget : Budget
        The swept parameter.
    guarantees : DefenseGuarantees
        Claimed, spent and measured guarantees.
    utilities : mapping of int to float
        Utility by seed.
    utility_metric : str
        Key of the metric of the utility.
    leakage : LeakageResult
        The strongest attack of every seed, with its score and its baselines.
    coverage : Coverage
        Which attacks apply, and how they ended.
    untouched : bool
        Whether no attack applies.
    """

    defense: str
    family: str
    budget: Budget
    guarantees: DefenseGuarantees
    utilities: Mapping[int, float]
    utility_metric: str
    leakage: LeakageResult
    coverage: Coverage = field(default_factory=Coverage)
    untouched: bool = False

    @cached_property
    def kind(self) -> Kind:
        """Kind of the claim (`fedtrees.report.guarantees.KINDS`)."""
        return self.guarantees.kind

    @property
    def measured(self) -> str:
        """Guarantee that the audits of all seeds measured together, "" without an audit."""
        return span([self.guarantees.combined]) if self.guarantees.combined else ""

    @cached_property
    def utility(self) -> Estimate:
        """Mean utility with its 95% interval."""
        return t_estimate(self.utilities.values(), bounds=measure(self.utility_metric).bounds)

    @cached_property
    def advantage(self) -> Estimate:
        """Mean advantage of the strongest attack, over the better of both baselines."""
        return self.leakage.advantage

    def _of_scores(self, values: Iterable[float], errors: Iterable[float] = ()) -> Estimate:
        """Return the mean of values of the measure of the leak."""
        return t_estimate(values, errors, measure(self.leakage.metric).bounds)

    @cached_property
    def score(self) -> Estimate:
        """Mean score of the strongest attack."""
        return self._of_scores(self.leakage.scores, self.leakage.score_errors)

    @cached_property
    def blind(self) -> Estimate:
        """Mean score of the blind baseline."""
        return self._of_scores(self.leakage.blinds)

    @cached_property
    def population(self) -> Estimate:
        """Mean score of the population baseline, unknown for adversaries with local rows."""
        return self._of_scores(self.leakage.populations)

    @property
    def attacks(self) -> tuple[tuple[str, int], ...]:
        """The strongest attacks, with the number of seeds on which each was the strongest."""
        counts = Counter(self.leakage.strongest)
        return tuple(sorted(counts.items(), key=lambda x: (-x[1], x[0])))

    @property
    def seeds(self) -> tuple[tuple[float, float], ...]:
        """Utility and advantage of every seed that has both."""
        leaks = zip(self.leakage.seeds, self.leakage.advantages, strict=True)
        return tuple((self.utilities[s], a) for s, a in leaks if s in self.utilities)

    @property
    def attack_failed(self) -> bool:
        """Whether the strongest attack scored worse than its baseline by more than the margin."""
        return self.leakage.below_baseline

    @property
    def incomplete(self) -> bool:
        """Whether an applicable attack has no result. The advantage is then a lower bound."""
        return self.coverage.missing

    @property
    def is_lower_bound(self) -> bool:
        """Whether the leak can be larger than the advantage: an attack is missing or failed."""
        return self.incomplete or self.attack_failed

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


def panel_frontier(
    findings: SettingFindings, threat: str, metric: str | None = None, utility: str | None = None
) -> Frontier:
    """Compute the frontier of one setting under one threat.

    Parameters
    ----------
    findings : SettingFindings
        Findings of the setting.
    threat : str
        A threat under which it was attacked.
    metric : str or None
        Attack metric whose advantage is the leak. Default: the first headline metric of the panel.
    utility : str or None
        Training metric. Default: the first metric of `UTILITY` that the setting has.
    """
    adversary, trains = findings.by_threat[threat], findings.trains
    metric = metric or (*attack_metrics(adversary.attacks), *headlines())[0]
    measured = {*trains["metric"]}
    utility = utility or next((u.key for u in UTILITY if u.key in measured), UTILITY[0].key)
    leakage, varying = adversary.by_defense(metric), budgets(findings.specs)
    points = []
    for spec in findings.specs:
        attacks = adversary.attacks[adversary.attacks["defense_spec"] == spec]
        points.append(
            Point(
                spec,
                family(spec),
                varying[spec],
                findings.guarantees[spec],
                by_seed(trains[trains["defense_spec"] == spec], utility),
                utility,
                leakage.get(spec, LeakageResult(metric)),
                adversary.coverage.get(spec) or findings.coverage(threat, spec),
                len(attacks) > 0 and bool((attacks["status"] == "skipped").all()),
            )
        )
    panel, rows = Panel(findings.setting, threat), findings.run.rows
    return Frontier(
        panel, metric, utility, tuple(points), front_of(points, utility), lines_of(points),
        references(rows, findings.setting, utility), blind_guesses(rows, panel, metric),
    )  # fmt: skip


def non_dominated(
    utility: ArrayLike, advantage: ArrayLike, lower: bool = False
) -> NDArray[np.bool_]:
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
    return np.logical_not((no_worse & better).any(axis=0))


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


def lines_of(points: Sequence[Point]) -> tuple[tuple[str, ...], ...]:
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


def front_of(points: Sequence[Point], utility: str) -> tuple[str, ...]:
    """Return the names of the non-dominated points, by utility.

    A point is excluded if its advantage is only a lower bound. This is the case if an attack did
    not finish or did not run (`Point.incomplete`), or if the strongest attack scored worse than its
    baseline (`Point.attack_failed`).
    """
    solid = [p for p in points if p.drawn and not p.is_lower_bound]
    if not solid:
        return ()
    lower = measure(utility).better == "lower"
    mask = non_dominated(
        [p.utility.mean for p in solid], [p.advantage.mean for p in solid], lower=lower
    )
    front = [p for p, keep in zip(solid, mask, strict=True) if keep]
    return tuple(p.defense for p in sorted(front, key=lambda p: (p.utility.mean, p.advantage.mean)))


def parameters(defense: Composed) -> dict[str, Value]:
    """Return the parameters of a defense by ``part.name``, to distinguish equal names of parts."""
    return {f"{p.name}.{key}": value for p in defense.parts for key, value in p.params.items()}


def budgets(specs: Iterable[str]) -> dict[str, Budget]:
    """Find the swept parameter of each family of defenses, and return it by defense.

    It is a numeric parameter that differs within the family. If several differ, epsilon and xi have
    priority.
    """
    families: dict[str, dict[str, dict[str, Value]]] = {}
    for spec in specs:
        defense = parse_one(spec)
        families.setdefault(defense.name, {})[spec] = parameters(defense)
    out = {}
    for members in families.values():
        key = _find_swept(list(members.values()))
        for spec, own_parameters in members.items():
            rest = str(sorted((k, v) for k, v in own_parameters.items() if k != key))
            out[spec] = Budget(key.rsplit(".", 1)[-1], _number(own_parameters.get(key)), rest)
    return out


def _find_swept(members: list[dict[str, Value]]) -> str:
    """Return the key of the swept parameter, "" if no numeric parameter differs."""
    keys = sorted({k for m in members for k in m})
    varying = [
        key
        for key in keys
        if len({m.get(key) for m in members}) > 1
        and not any(math.isnan(_number(m.get(key))) for m in members)
    ]
    # False sorts before True, so that privacy parameters come first.
    varying.sort(key=lambda k: k.rsplit(".", 1)[-1] not in ("epsilon", "xi"))
    return varying[0] if varying else ""


def _number(value: Value) -> float:
    """Return a value as float, NaN if it is not a number. Booleans are not numbers."""
    number = isinstance(value, (int, float)) and not isinstance(value, bool)
    return float(value) if number else math.nan  # type: ignore[arg-type]


def over_budgets(panels: Sequence[Frontier]) -> tuple[Frontier, ...]:
    """Join the panels of protocols that differ in one number, such as ``dp-forest[epsilon=]``.

    The result has one panel per dataset, partition, protocol and threat. It contains one line for
    the protocol without a defense, and one line for each defense. Only references that do not
    depend on the parameter are shown, all of them.
    """
    groups: dict[Panel, list[tuple[Frontier, Budget]]] = {}
    for data in panels:
        setting = data.panel.setting
        protocols = {
            f.panel.setting.protocol
            for f in panels
            if replace(f.panel.setting, protocol="") == replace(setting, protocol="")
            and family(f.panel.setting.protocol) == family(setting.protocol)
        }
        budget = budgets(protocols)[setting.protocol]
        if len(protocols) > 1 and budget.known:
            groups.setdefault(Panel(unswept(setting), data.panel.threat), []).append((data, budget))
    joined = (_join_frontiers(panel, parts) for panel, parts in groups.items())
    return tuple(data for data in joined if data.lines)


def unswept(setting: Setting) -> Setting:
    """Return a setting without the parameters of its protocol."""
    return replace(setting, protocol=family(setting.protocol))


def _join_frontiers(panel: Panel, parts: list[tuple[Frontier, Budget]]) -> Frontier:
    """Join the frontiers of one protocol, given with their values of the parameter."""
    parts = sorted(parts, key=lambda part: part[1].value)
    first = parts[0][0]
    comparable = [
        (f, b) for f, b in parts if (f.metric, f.utility) == (first.metric, first.utility)
    ]
    points = tuple(_point(f, b, p) for f, b in comparable for p in f.drawn)
    same: dict[str, set[Estimate]] = {}
    for f, _ in comparable:
        for name, value in f.references:
            same.setdefault(name, set()).add(value)
    # A reference that differs between the panels depends on the swept parameter.
    fixed = tuple((name, next(iter(v))) for name, v in same.items() if len(v) == 1)
    return Frontier(
        panel, first.metric, first.utility, points, front_of(points, first.utility),
        lines_of(points), fixed, first.blind, every_reference=True,
    )  # fmt: skip


def _point(data: Frontier, budget: Budget, point: Point) -> Point:
    """Return a point with the protocol in its name, so that points of several panels differ."""
    protocol, defended = data.panel.setting.protocol, point.defense != UNDEFENDED
    return replace(
        point,
        defense=f"{protocol} {point.defense}" if defended else protocol,
        family=f"{family(protocol)} {point.family}" if defended else family(protocol),
        budget=replace(budget, rest=f"{budget.rest} {point.defense}"),
    )

"""Compute what a defense costs: the change in utility, and traffic, rounds and time of training.

Changes in utility are paired by seed, so that the variation between federations cancels.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

import pandas as pd

from fedtrees.core.errors import many
from fedtrees.core.results import CIPHERTEXTS, CPU, RAREST, UTILITY, measure
from fedtrees.report.results import UNDEFENDED, Setting
from fedtrees.report.statistics import Estimate, by_seed, mean_of, t_estimate

Settled = Literal["same", "equal", "ok", "worse", "one", "unsettled", "unknown"]

#: Changes in utility up to this size count as no change.
TOLERANCE = 0.01
#: A recipe with a larger mean loss is recommended only if no cheaper recipe helps.
MOST_LOSS = 0.02
FEW = 10  # fewer test rows of a class make a utility change uncertain
MOST_SEEDS = 30  # if more seeds are necessary, the text states the precision of this number instead
_Z = 1.96
#: Utility metrics in order of preference. The metrics that need both classes come first.
ORDER = tuple(m.key for m in UTILITY)


@dataclass(frozen=True)
class Utility:
    """The metric by which the models of a setting are compared.

    Attributes
    ----------
    metric : str
        Key of the metric.
    fallen : str
        Preferred metric that is undefined on some seeds, because a test set lacks one class. ""
        if there is none.
    lacking : int
        Number of seeds on which `fallen` is undefined.
    seeds : int
        Number of seeds.
    rarest : float
        Smallest number of test rows of a class, NaN if it is not known.
    """

    metric: str
    fallen: str = ""
    lacking: int = 0
    seeds: int = 0
    rarest: float = math.nan

    @property
    def few(self) -> str:
        """A warning that the rarest class has few test rows, "" if it has at least `FEW`."""
        if not self.rarest < FEW:
            return ""
        rows = many(int(self.rarest), "test row")
        return f"Prices are uncertain: the rarest class has {rows}."

    @property
    def sign(self) -> float:
        """1 if larger values are better, else -1."""
        return measure(self.metric).sign


def utility_of(trains: pd.DataFrame) -> Utility:
    """Return the preferred metric (`ORDER`) that the undefended models have on every seed.

    If no metric is complete, it is the one with the most seeds. The rows are the training rows of
    one setting.
    """
    ok = trains[trains["status"] == "ok"]
    seeds = set(ok["seed"])
    counts = {m: len(by_seed(ok[ok["defense_spec"] == UNDEFENDED], m)) for m in ORDER}
    present = [m for m in ORDER if m in set(ok["metric"])]
    complete = [m for m in present if counts[m] == len(seeds)]
    chosen = next(iter(complete or sorted(present, key=lambda m: -counts[m])), ORDER[0])
    first = present[0] if present else chosen
    rarest = float(ok[ok["metric"] == RAREST.key]["value"].min())
    if chosen == first:
        return Utility(chosen, seeds=len(seeds), rarest=rarest)
    return Utility(chosen, first, len(seeds) - counts[first], len(seeds), rarest)


@dataclass(frozen=True)
class UtilityChange:
    """The change in utility against the undefended run of the same seed. Positive is better.

    Attributes
    ----------
    utility : Utility
        The metric.
    change : Estimate
        Mean change with its 95% t interval.
    by_seed : mapping of int to float
        Change by seed.
    mean_utility : float
        Mean utility of the defended model.
    collapsed : bool
        Whether the model has lost at least nine tenths of the advantage of the undefended model
        over the constant one.
    """

    utility: Utility
    change: Estimate = Estimate()
    by_seed: Mapping[int, float] = field(default_factory=dict)
    mean_utility: float = math.nan
    collapsed: bool = False

    @property
    def settled(self) -> Settled:
        """Classification of the change.

        "same": no seed differs. "equal": the interval is within `TOLERANCE`. "ok": a loss above
        `TOLERANCE` is excluded. "worse": a loss is certain. "one": there is one seed only.
        "unsettled": none of these. "unknown": there is no pair of seeds.
        """
        e, changes = self.change, self.by_seed.values()
        if not changes:
            return "unknown"
        if not any(changes):
            return "same"
        if len(changes) < 2:
            return "one"
        if e.high < 0 and e.low <= -TOLERANCE:
            return "worse"
        if max(abs(e.low), abs(e.high)) <= TOLERANCE:
            return "equal"
        return "ok" if e.low > -TOLERANCE else "unsettled"

    @property
    def seeds_needed(self) -> int:
        """Estimated number of seeds that settle the change to within `TOLERANCE`.

        The estimate assumes that the standard deviation over seeds stays the same.
        """
        # Two further seeds account for the difference between the normal and the t distribution.
        return math.ceil((_Z * self._deviation / TOLERANCE) ** 2) + 2

    @property
    def shown_by_most(self) -> float:
        """Expected half length of the interval with `MOST_SEEDS` seeds."""
        return _Z * self._deviation / math.sqrt(MOST_SEEDS - 2)

    @property
    def _deviation(self) -> float:
        """Sample standard deviation of the changes over seeds."""
        values = [*self.by_seed.values()]
        mean = math.fsum(values) / len(values)
        return math.sqrt(math.fsum((v - mean) ** 2 for v in values) / (len(values) - 1))

    @property
    def tier(self) -> int:
        """Class of the loss: 0 small, 1 larger than `MOST_LOSS` on the mean only, 2 clearly larger.

        A model without paired seeds and a collapsed model are in class 2.
        """
        if not self.by_seed or self.collapsed:
            return 2
        if self.change.mean >= -MOST_LOSS:
            return 0
        # One seed has no interval. Its mean is then used.
        high = self.change.high if math.isfinite(self.change.high) else self.change.mean
        return 2 if high < -MOST_LOSS else 1


def utility_changes(
    trains: pd.DataFrame, utility: Utility, constant: float, base: pd.DataFrame | None = None
) -> dict[str, UtilityChange]:
    """Return the change in utility of every defense of a setting.

    Parameters
    ----------
    trains : DataFrame
        Training rows of the setting.
    utility : Utility
        The metric.
    constant : float
        Utility of the constant model, NaN if it is not known.
    base : DataFrame or None
        Training rows with the undefended run if it belongs to another setting.

    Returns
    -------
    changes : dict of str to UtilityChange
        By defense.
    """
    ok = trains[trains["status"] == "ok"]
    plain = ok if base is None else base[base["status"] == "ok"]
    undefended = by_seed(plain[plain["defense_spec"] == UNDEFENDED], utility.metric)
    by_defense = {}
    for spec in dict.fromkeys(trains["defense_spec"]):
        defended = by_seed(ok[ok["defense_spec"] == spec], utility.metric)
        # Only seeds with both runs form a pair.
        both = [s for s in defended if s in undefended]
        # Positive changes are improvements, also for losses such as the log loss.
        changes = {s: utility.sign * (defended[s] - undefended[s]) for s in sorted(both)}
        mean = mean_of(defended.values())
        lost = _has_collapsed(utility, mean, mean_of(undefended.values()), constant)
        by_defense[spec] = UtilityChange(
            utility, t_estimate([*changes.values()]), changes, mean, lost
        )
    return by_defense


def _has_collapsed(utility: Utility, mean: float, undefended: float, constant: float) -> bool:
    """Return whether a model lost 90% of the undefended model's advantage over the constant one."""
    if not all(map(math.isfinite, (mean, undefended, constant))):
        return False
    gained, remaining = utility.sign * (undefended - constant), utility.sign * (mean - constant)
    return gained > 0 and remaining < 0.1 * gained


def references(
    rows: pd.DataFrame, setting: Setting, utility: str
) -> tuple[tuple[str, Estimate], ...]:
    """Return the utility of training without a federation and of the constant model.

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
        By name: one of `fedtrees.core.results.ALONE`, or "majority-class".
    """
    groups = reference_rows(rows, setting, utility).groupby("protocol")["value"]
    bounds = measure(utility).bounds
    return tuple((str(name), t_estimate(values, bounds=bounds)) for name, values in groups)


def reference_rows(rows: pd.DataFrame, setting: Setting, utility: str) -> pd.DataFrame:
    """Return the rows of the references of a setting by one training metric (see `references`).

    The column ``protocol`` contains the name of the reference.
    """
    return rows[
        (rows["stage"] == "reference")
        & (rows["dataset"] == setting.dataset)
        & (rows["partition"] == setting.partition)
        & rows["protocol_params"].isin(["", setting.protocol])
        & (rows["metric"] == utility)
        & (rows["status"] == "ok")
    ]


@dataclass(frozen=True)
class TrainingCost:
    """Costs of training with one defense, as means over seeds.

    Attributes
    ----------
    up, down : Estimate
        Bytes that are sent to and from the coordinating party.
    rounds : Estimate
        Number of communication rounds.
    seconds, cpu_seconds : Estimate
        Wall-clock and processor seconds of the training cell.
    ciphertexts : Estimate
        Number of ciphertexts that are sent. Not known (NaN) for runs without cryptography, and 0
        for pairwise masks.
    """

    up: Estimate
    down: Estimate
    rounds: Estimate
    seconds: Estimate
    cpu_seconds: Estimate
    ciphertexts: Estimate = Estimate()

    @property
    def bytes(self) -> float:
        """Mean bytes in both directions, NaN if neither direction is known."""
        means = [e.mean for e in (self.up, self.down) if e.known]
        return sum(means) if means else math.nan


def training_cost(train: pd.DataFrame) -> TrainingCost:
    """Compute the costs of one defense in one setting from its training rows."""
    ok = train[train["status"] == "ok"]
    # Each row of a training cell repeats the totals of the cell, so that the first row per seed
    # suffices.
    firsts = ok.groupby("seed")[["bytes_up", "bytes_down", "rounds", "seconds"]].first()
    up, down, rounds, seconds = (t_estimate(firsts[name]) for name in firsts)
    cpu, ciphertexts = (t_estimate(by_seed(ok, m.key).values()) for m in (CPU, CIPHERTEXTS))
    return TrainingCost(up, down, rounds, seconds, cpu, ciphertexts)

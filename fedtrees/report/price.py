"""What a defense costs: the change in utility, paired by seed, and whether it is settled."""

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

import pandas as pd

from fedtrees.core.columns import RAREST, UTILITY, measure
from fedtrees.core.counts import many
from fedtrees.report.intervals import Estimate, mean_of, t_estimate
from fedtrees.report.rows import UNDEFENDED
from fedtrees.report.worst import by_seed

Settled = Literal["same", "equal", "ok", "worse", "one", "unsettled", "unknown"]

#: A change in utility that is called none.
TOLERANCE = 0.01
#: A mean loss beyond which a recipe is taken only where nothing else helps.
MOST_LOSS = 0.02
FEW = 10  # held-out rows of a class on which a price says little
MOST_SEEDS = 30  # beyond these it is said what so many would show
_Z = 1.96
#: How a model is scored, the first that every seed has; what needs both classes comes first.
ORDER = tuple(m.key for m in UTILITY)


@dataclass(frozen=True)
class Utility:
    """By what a setting's models are compared.

    `fallen`: The score that would have come first and is undefined on `lacking` of `seeds` seeds
    ("" where none is): a held-out set lacks one class. `rarest`: The fewest held-out rows that a
    class has; NaN: not known.
    """

    metric: str
    fallen: str = ""
    lacking: int = 0
    seeds: int = 0
    rarest: float = math.nan

    @property
    def few(self) -> str:
        """Of how few rows it is the score, in a sentence; "" where they are enough."""
        if not self.rarest < FEW:
            return ""
        rows = many(int(self.rarest), "held-out row")
        return f"Prices are uncertain: the rarest class has {rows}."

    @property
    def sign(self) -> float:
        """1 where more is better, else -1."""
        return measure(self.metric).sign


def utility_of(trains: pd.DataFrame) -> Utility:
    """Return the score that every trained model of a setting has, by `ORDER`.

    `trains`: Training rows of one setting.
    """
    ok = trains[trains["status"] == "ok"]
    seeds = set(ok["seed"])
    counts = {m: len(by_seed(ok[ok["defense_spec"] == UNDEFENDED], m)) for m in ORDER}
    present = [m for m in ORDER if m in set(ok["metric"])]
    whole = [m for m in present if counts[m] == len(seeds)]
    chosen = next(iter(whole or sorted(present, key=lambda m: -counts[m])), ORDER[0])
    first = present[0] if present else chosen
    rarest = float(ok[ok["metric"] == RAREST.key]["value"].min())
    if chosen == first:
        return Utility(chosen, seeds=len(seeds), rarest=rarest)
    return Utility(chosen, first, len(seeds) - counts[first], len(seeds), rarest)


@dataclass(frozen=True)
class Price:
    """The change in utility against the undefended run of the same seed; above 0 is better.

    `mean_utility`: Of the defended model itself. `collapsed`: Whether the model says no more than
    the constant one does.
    """

    utility: Utility
    change: Estimate = Estimate()
    by_seed: Mapping[int, float] = field(default_factory=dict)
    mean_utility: float = math.nan
    collapsed: bool = False

    @property
    def settled(self) -> Settled:
        """What is shown of the price."""
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
        """How many seeds would settle it to within `TOLERANCE`, were they to differ as these do."""
        return math.ceil((_Z * self._deviation / TOLERANCE) ** 2) + 2

    @property
    def shown_by_most(self) -> float:
        """What `MOST_SEEDS` seeds would show."""
        return _Z * self._deviation / math.sqrt(MOST_SEEDS - 2)

    @property
    def _deviation(self) -> float:
        values = [*self.by_seed.values()]
        mean = math.fsum(values) / len(values)
        return math.sqrt(math.fsum((v - mean) ** 2 for v in values) / (len(values) - 1))

    @property
    def tier(self) -> int:
        """0 where the mean loss is small, 1 where more is lost and not shown, 2 where it is."""
        if not self.by_seed or self.collapsed:
            return 2
        if self.change.mean >= -MOST_LOSS:
            return 0
        high = self.change.high if math.isfinite(self.change.high) else self.change.mean
        return 2 if high < -MOST_LOSS else 1


def prices(
    trains: pd.DataFrame, utility: Utility, constant: float, base: pd.DataFrame | None = None
) -> dict[str, Price]:
    """Return the price of every defense of a setting.

    `trains`: Training rows of the setting.
    `constant`: The utility of the constant model, NaN where it is not known.
    `base`: Training rows that hold the undefended run, where it is of another setting.
    """
    ok = trains[trains["status"] == "ok"]
    plain = ok if base is None else base[base["status"] == "ok"]
    undefended = by_seed(plain[plain["defense_spec"] == UNDEFENDED], utility.metric)
    found = {}
    for spec in dict.fromkeys(trains["defense_spec"]):
        mine = by_seed(ok[ok["defense_spec"] == spec], utility.metric)
        both = [s for s in mine if s in undefended]
        changes = {s: utility.sign * (mine[s] - undefended[s]) for s in sorted(both)}
        mean = mean_of(mine.values())
        lost = _collapsed(utility, mean, mean_of(undefended.values()), constant)
        found[spec] = Price(utility, t_estimate([*changes.values()]), changes, mean, lost)
    return found


def _collapsed(utility: Utility, mean: float, undefended: float, constant: float) -> bool:
    """Tell whether a model has lost all that the undefended one has over the constant one."""
    if not all(map(math.isfinite, (mean, undefended, constant))):
        return False
    gained, left = utility.sign * (undefended - constant), utility.sign * (mean - constant)
    return gained > 0 and left < 0.1 * gained

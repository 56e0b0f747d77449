"""Compute means over seeds with 95% confidence intervals.

All figures, tables and conclusions use the intervals of Student's t distribution (`t_estimate`).

`worst_case` selects the strongest attack for each seed, and `troubles` lists the attacks that did
not finish.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd

from fedtrees.core.results import measure
from fedtrees.metrics.metric import headlines
from fedtrees.report.results import Panel

#: Coverage of intervals.
LEVEL = 0.95
_Z = 1.96  # 97.5% quantile of the standard normal distribution
#: Fewer seeds or rows than these give a warning with a figure or table for a paper.
FEW_SEEDS, FEW_ROWS = 5, 200


@dataclass(frozen=True, eq=False)
class Estimate:
    """Mean over ``n`` seeds with its interval.

    The interval is NaN if ``n`` is below 2 and no standard error is known. All numbers are NaN if
    ``n`` is 0. Two estimates are equal if all numbers are equal, and NaN equals NaN. (The generated
    comparison of a dataclass decides the latter differently before and after Python 3.13.)
    """

    mean: float = math.nan
    low: float = math.nan
    high: float = math.nan
    n: int = 0

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Estimate) and self._numbers() == other._numbers()

    def __hash__(self) -> int:
        return hash(self._numbers())

    def _numbers(self) -> tuple[float | None, ...]:
        """Return all numbers, with None in the place of NaN."""
        numbers = (self.mean, self.low, self.high, self.n)
        return tuple(None if math.isnan(number) else number for number in numbers)

    @property
    def half(self) -> float:
        """Half the length of the interval, measured at the end that is not cut at a bound."""
        return max(self.high - self.mean, self.mean - self.low)

    @property
    def known(self) -> bool:
        """Whether at least one seed has a value."""
        return self.n > 0


def mean_of(values: Iterable[float]) -> float:
    """Return the mean of the finite values, NaN if there is none."""
    finite_values = [v for v in values if math.isfinite(v)]
    return math.fsum(finite_values) / len(finite_values) if finite_values else math.nan


def finite(value: float, otherwise: float = -math.inf) -> float:
    """Return a value if it is finite, and a replacement otherwise."""
    return value if math.isfinite(value) else otherwise


#: Bounds of an advantage (`fedtrees.metrics.metric.advantage`): 1 is a perfect guess.
ADVANTAGE_BOUNDS = (-math.inf, 1.0)


def t_estimate(
    values: Iterable[float],
    errors: Iterable[float] = (),
    bounds: tuple[float, float] = (-math.inf, math.inf),
) -> Estimate:
    """Return the mean of the finite values with its 95% interval of Student's t distribution.

    Fewer than two values have no interval unless their standard errors are known. The order of the
    values does not matter. A percentile bootstrap interval would be too short for a handful of
    seeds: with 5 normally distributed values its coverage is about 83% instead of 95%.

    Parameters
    ----------
    values : iterable of float
        One value per seed.
    errors : iterable of float
        Standard errors of the values if they are estimates from samples. They widen the interval,
        and a single value then has an interval, too.
    bounds : tuple of float
        Smallest and largest possible value, such as `fedtrees.core.results.Measure.bounds`. The
        interval is cut there, because it is computed as if the values were not bounded. An AUC of
        0.99 can therefore have the interval from 0.96 to 1.
    """
    finite_values = sorted(float(v) for v in values if math.isfinite(v))
    if not finite_values:
        return Estimate()
    mean, sampling = math.fsum(finite_values) / len(finite_values), sampling_half(errors)
    half = _t_upper(finite_values) - mean if len(finite_values) > 1 else 0.0
    if len(finite_values) < 2 and not sampling:
        return Estimate(mean, n=1)
    # The variation over seeds and the sampling error are independent, so that variances add.
    half = math.hypot(half, sampling)
    low, high = (min(max(end, bounds[0]), bounds[1]) for end in (mean - half, mean + half))
    return Estimate(mean, low, high, len(finite_values))


def sampling_half(errors: Iterable[float]) -> float:
    """Return half the length of the 95% interval of a mean of values with these standard errors."""
    finite_errors = [e for e in errors if math.isfinite(e)]
    return _Z * math.hypot(*finite_errors) / len(finite_errors) if finite_errors else 0.0


def _t_upper(values: Sequence[float]) -> float:
    """Return the upper end of Student's t interval of a mean over two or more seeds."""
    from scipy.special import stdtrit

    n = len(values)
    array = np.asarray(values, dtype=np.float64)
    half = stdtrit(n - 1, (1 + LEVEL) / 2) * array.std(ddof=1) / np.sqrt(n)
    return float(array.mean() + half)


def panels(rows: pd.DataFrame) -> tuple[Panel, ...]:
    """Return the panels that contain at least one attack row, sorted."""
    attacks = rows[rows["stage"] == "attack"]
    return tuple(
        sorted({Panel(s, t) for s, t in zip(attacks["setting"], attacks["threat"], strict=True)})
    )


def attack_metrics(rows: pd.DataFrame) -> tuple[str, ...]:
    """Return the attack metrics with an advantage in at least one row, headline metrics first."""
    ok = rows[(rows["stage"] == "attack") & (rows["status"] == "ok")]
    names = set(ok.loc[ok["advantage"].notna() & (ok["part"] == ""), "metric"])
    order = {name: at for at, name in enumerate(headlines())}
    return tuple(sorted(names, key=lambda n: (order.get(n, len(order)), n)))


def worst_case(rows: pd.DataFrame, metric: str) -> pd.DataFrame:
    """Return the row with the largest advantage for each (setting, defense, threat, seed).

    A row without an advantage is left out. An advantage is missing if the blind baseline already
    reaches the best value. If several attacks have the same advantage, the one whose name comes
    first is returned.

    Parameters
    ----------
    rows : DataFrame
        Result of `fedtrees.report.results.load_rows`, or a part of it.
    metric : str
        Key of the attack metric.

    Returns
    -------
    worst : DataFrame
        The column ``advantage`` refers to the better of both baselines
        (`over_the_better_baseline`). The columns ``value_error`` and ``advantage_error`` are
        standard errors if only a sample of the rows was scored, and 0 otherwise. The error of the
        advantage includes that of the blind baseline, because both scores come from the same
        sample.
    """
    keep = (
        (rows["stage"] == "attack")
        & (rows["status"] == "ok")
        & (rows["metric"] == metric)
        & rows["advantage"].notna()
    )
    ordered = rows[keep].sort_values(
        ["advantage", "attack_spec"], ascending=[False, True], kind="stable"
    )
    first = ordered.drop_duplicates(["setting", "defense_spec", "threat", "seed"])
    return over_the_better_baseline(with_errors(first))


def over_the_better_baseline(rows: pd.DataFrame) -> pd.DataFrame:
    """Return rows whose ``advantage`` refers to the better of the two baselines.

    An adversary without local rows knows as much as the population baseline. Its advantage over the
    blind baseline would therefore count this knowledge as a leak. If the population baseline is
    perfect, no advantage over it is defined. The attack then demonstrates nothing, and the
    advantage is 0.
    """
    # `beyond` is the advantage over the population baseline. It is missing if that baseline does
    # not exist, or if it is perfect. In the second case the result is 0.
    beyond = rows["beyond"].where(rows["beyond"].notna() | rows["population"].isna(), 0.0)
    return rows.assign(advantage=np.minimum(rows["advantage"], beyond.fillna(math.inf)))


def with_errors(rows: pd.DataFrame) -> pd.DataFrame:
    """Add ``value_error`` and ``advantage_error`` to the rows of one metric (see `worst_case`).

    Call it before `over_the_better_baseline`, because it compares the advantages over both
    baselines.
    """
    # The reported advantage is the smaller one of those over both baselines
    # (`over_the_better_baseline`).
    over_population = rows["beyond"] < rows["advantage"].fillna(math.inf)
    baseline = rows["population"].where(over_population, rows["blind"])
    # `room` is the difference between a perfect score and the baseline, by which advantages are
    # divided. Score and baseline have independent errors of equal size, which gives the factor
    # sqrt(2).
    best = rows["metric"].map(lambda key: measure(key).best if key else None).astype(float)
    room = (best - baseline).abs()
    room = room.where((room > 0) & (room < math.inf), 1.0)
    error = rows["error"].fillna(0.0)
    return rows.assign(value_error=error, advantage_error=math.sqrt(2) * error / room)


def describe_thin_evidence(rows: pd.DataFrame, remedy: str = "--seeds") -> list[str]:
    """Return warnings about tables with fewer than `FEW_SEEDS` seeds or `FEW_ROWS` attacked rows.

    Parameters
    ----------
    rows : DataFrame
        Result of `fedtrees.report.results.load_rows`, or a part of it.
    remedy : str
        Option with which the command runs more seeds.
    """
    notes = []
    attacks = rows[(rows["stage"] == "attack") & (rows["status"] == "ok")]
    for dataset, group in attacks.groupby("dataset", observed=True):
        seeds, attacked = group["seed"].nunique(), group["n"].max()
        if seeds < FEW_SEEDS:
            notes.append(
                f"{dataset} has {seeds} seed{'s' * (seeds != 1)}. Intervals over fewer "
                f"than {FEW_SEEDS} seeds are wide, and one seed has none; run more with {remedy}"
            )
        if attacked < FEW_ROWS:
            notes.append(
                f"at most {attacked:.0f} rows of {dataset} were attacked. One row is "
                f"{1 / attacked:.1%} of them, so that small differences between defenses are noise"
            )
    return notes


def troubles(rows: pd.DataFrame, *by: str) -> dict[tuple[Any, ...], dict[float, None]]:
    """Group the rows that are not "ok" by some columns, and return the seeds of each group.

    Parameters
    ----------
    rows : DataFrame
        Rows of attacks or of trainings.
    by : str
        Names of the columns, for example ``status``, ``why`` and ``attack_spec``.

    Returns
    -------
    seeds : dict
        By the values of the columns. The inner dict is an ordered set of seeds.
    """
    bad = rows[rows["status"] != "ok"]
    seeds_of: dict[tuple[Any, ...], dict[float, None]] = {}
    for seed, *key in zip(*(bad[c].tolist() for c in ("seed", *by)), strict=True):
        seeds_of.setdefault(tuple(key), {})[seed] = None
    return seeds_of


def by_seed(rows: pd.DataFrame, metric: str) -> dict[int, float]:
    """Return the finite values of one training metric by seed."""
    values: dict[int, float] = {}
    columns = (rows[c].tolist() for c in ("metric", "status", "seed", "value"))
    for name, status, seed, value in zip(*columns, strict=True):
        if name == metric and status == "ok" and math.isfinite(value):
            values.setdefault(int(seed), float(value))
    return values

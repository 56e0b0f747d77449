"""Select the worst case over attacks for each seed, and list the attacks that did not finish."""

import math
from typing import Any

import numpy as np
import pandas as pd

from fedtrees.metrics.metric import headlines
from fedtrees.report.rows import Panel


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
        Result of `fedtrees.report.rows.load_rows`, or a part of it.
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
    """Add ``value_error`` and ``advantage_error`` to the rows of one metric (see `worst_case`)."""
    # `room` is the difference between a perfect score and the blind score, by which advantages are
    # divided. Score and baseline have independent errors of equal size, which gives the factor
    # sqrt(2).
    error, room = rows["error"].fillna(0.0), (1 - rows["blind"]).where(rows["blind"] < 1, 1.0)
    return rows.assign(value_error=error, advantage_error=math.sqrt(2) * error / room)


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

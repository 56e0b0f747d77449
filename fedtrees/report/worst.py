"""The worst case over attacks, per seed, and the attacks that did not finish."""

import math
from typing import Any

import numpy as np
import pandas as pd

from fedtrees.metrics.metric import headlines
from fedtrees.report.rows import Panel


def panels(rows: pd.DataFrame) -> tuple[Panel, ...]:
    """Return the panels that hold at least one attack row, in order."""
    attacks = rows[rows["stage"] == "attack"]
    return tuple(
        sorted({Panel(s, t) for s, t in zip(attacks["setting"], attacks["threat"], strict=True)})
    )


def attack_metrics(rows: pd.DataFrame) -> tuple[str, ...]:
    """Return the attack metrics that have an advantage anywhere, headlines first."""
    ok = rows[(rows["stage"] == "attack") & (rows["status"] == "ok")]
    names = set(ok.loc[ok["advantage"].notna() & (ok["part"] == ""), "metric"])
    order = {name: at for at, name in enumerate(headlines())}
    return tuple(sorted(names, key=lambda n: (order.get(n, len(order)), n)))


def worst_case(rows: pd.DataFrame, metric: str) -> pd.DataFrame:
    """Return, per (setting, defense, threat, seed), the row of the largest advantage.

    A null advantage (blind already scores the best value) is no advantage and is left out;
    ties go to the attack whose name comes first. The column ``advantage`` of the result is over the
    better of both baselines (`over_the_better_baseline`). The columns ``value_error`` and
    ``advantage_error`` are standard errors where a sample of the rows was scored, else 0: score
    and blind baseline are of the same sample, and each of them may be off.
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
    """Return rows whose ``advantage`` is over the blind or the population baseline, the better one.

    The attack of an adversary without local rows has the knowledge of the population baseline, so
    that its advantage over blind alone would count what this knowledge is worth as a leak. Where
    the population baseline is perfect, no advantage over it is defined, and the attack shows
    nothing: an advantage of 0.
    """
    beyond = rows["beyond"].where(rows["beyond"].notna() | rows["population"].isna(), 0.0)
    return rows.assign(advantage=np.minimum(rows["advantage"], beyond.fillna(math.inf)))


def with_errors(rows: pd.DataFrame) -> pd.DataFrame:
    """Add ``value_error`` and ``advantage_error`` to rows of one metric (see `worst_case`)."""
    error, room = rows["error"].fillna(0.0), (1 - rows["blind"]).where(rows["blind"] < 1, 1.0)
    return rows.assign(value_error=error, advantage_error=math.sqrt(2) * error / room)


def troubles(rows: pd.DataFrame, *by: str) -> dict[tuple[Any, ...], dict[float, None]]:
    """Return the seeds of what is not ok, by other columns; the one way in which rows are grouped.

    `by`: Such as ``status``, ``why`` and ``attack_spec``.
    """
    bad = rows[rows["status"] != "ok"]
    found: dict[tuple[Any, ...], dict[float, None]] = {}
    for seed, *key in zip(*(bad[c].tolist() for c in ("seed", *by)), strict=True):
        found.setdefault(tuple(key), {})[seed] = None
    return found


def by_seed(rows: pd.DataFrame, metric: str) -> dict[int, float]:
    """Return the finite values of one train metric, by seed."""
    found: dict[int, float] = {}
    columns = (rows[c].tolist() for c in ("metric", "status", "seed", "value"))
    for name, status, seed, value in zip(*columns, strict=True):
        if name == metric and status == "ok" and math.isfinite(value):
            found.setdefault(int(seed), float(value))
    return found

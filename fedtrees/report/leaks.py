"""Compute the grids behind the heatmaps: advantages by threat and attack, and by defense."""

import math
from collections.abc import Iterable
from dataclasses import dataclass, field

import numpy as np
import pandas as pd

from fedtrees.core.errors import many
from fedtrees.core.results import measure
from fedtrees.report.budgets import ordered
from fedtrees.report.leakage import margin_of
from fedtrees.report.results import Setting
from fedtrees.report.statistics import (
    Estimate,
    estimate,
    mean_of,
    over_the_better_baseline,
    troubles,
    with_errors,
)


@dataclass(frozen=True)
class Cell:
    """One measured advantage, or the state that explains why there is none.

    Attributes
    ----------
    advantage : Estimate
        Mean over seeds of the advantage over the better of the blind and the population baseline.
        The interval includes the sampling error if only a sample of the victims' rows was scored.
    score, blind, population : float
        Mean score of the attack and means of both baselines. The population baseline is NaN for
        adversaries with local rows.
    state : str
        "ok", "failed", "timeout", "skipped", "undefined" (the blind baseline already has the best
        score) or "" (not part of the run).
    note : str
        Number of seeds by state, and reasons.
    failed : bool
        Whether the attack scored worse than its baseline by more than the margin.
    partial : bool
        Whether a seed is missing because an attack failed or timed out.
    """

    advantage: Estimate = field(default_factory=Estimate)
    score: float = math.nan
    blind: float = math.nan
    population: float = math.nan
    state: str = ""
    note: str = ""
    failed: bool = False
    partial: bool = False


@dataclass(frozen=True)
class Grid:
    """A table of cells. Its rows are pairs of threat and attack, its columns are defenses."""

    title: str
    metric: str
    rows: tuple[str, ...]
    columns: tuple[str, ...]
    cells: tuple[tuple[Cell, ...], ...]


def leak_grid(rows: pd.DataFrame, setting: Setting, metric: str) -> Grid:
    """Return the advantage of every attack under every threat, by defense.

    Parameters
    ----------
    rows : DataFrame
        Results as returned by `load_rows`.
    setting : Setting
        Dataset, partition and protocol.
    metric : str
        Key of the attack metric.
    """
    here = rows[rows["stage"] == "attack"]
    here = here[here["setting"] == setting]
    here = with_errors(here[(here["metric"] == metric) | (here["status"] != "ok")])
    here = over_the_better_baseline(here)
    columns = ordered(set(here["defense_spec"]))
    names = sorted(set(zip(here["threat"], here["attack_spec"], strict=True)))
    groups = dict(iter(here.groupby(["threat", "attack_spec", "defense_spec"])))
    margin = margin_of(metric, counted=bool(measure(metric).counted_by))
    cells = tuple(
        tuple(_cell(groups.get((threat, attack, c)), margin) for c in columns)
        for threat, attack in names
    )
    return Grid(str(setting), metric, tuple(f"{t} · {a}" for t, a in names), tuple(columns), cells)


def limit(grids: Iterable[Grid]) -> float:
    """Return the largest absolute mean advantage, at least 0.1.

    It is the end of the colour scale that several grids share.
    """
    means = [abs(c.advantage.mean) for g in grids for line in g.cells for c in line]
    finite = [m for m in means if math.isfinite(m)]
    return max([0.1, *finite])


def _cell(rows: pd.DataFrame | None, limit: float) -> Cell:
    """Compute the cell of one attack and one defense from its rows."""
    if rows is None or rows.empty:
        return Cell()
    bad = {status: len(seeds) for (status,), seeds in troubles(rows, "status").items()}
    why = sorted(str(reason) for (reason,) in troubles(rows, "why"))
    note = "; ".join([*(f"{s} on {many(n, 'seed')}" for s, n in sorted(bad.items())), *why])
    if not (rows["status"] == "ok").any():
        # If all seeds failed in different ways, a failure is named before a skip.
        return Cell(state=min(bad, key=lambda s: (s == "skipped", s)), note=note)
    names = ("status", "advantage", "value", "blind", "population", "advantage_error")
    columns = (rows[c].tolist() for c in names)
    ok = [line[1:] for line in zip(*columns, strict=True) if line[0] == "ok"]
    advantages, scores, blinds, populations, errors = zip(*ok, strict=True)
    errors_of_finite = (e for e, a in zip(errors, advantages, strict=True) if math.isfinite(a))
    advantage = estimate(advantages, errors_of_finite)
    return Cell(
        advantage=advantage,
        score=mean_of(scores),
        blind=mean_of(blinds),
        population=mean_of(populations),
        state="ok" if advantage.known else "undefined",
        note=note,
        failed=advantage.mean < -limit,
        partial=bool({"failed", "timeout"} & bad.keys()),
    )


def matrix(grid: Grid) -> np.ndarray:
    """Return the mean advantages, a float array of shape (rows, columns). NaN if there is none."""
    return np.array([[c.advantage.mean for c in line] for line in grid.cells], dtype=float).reshape(
        len(grid.rows), len(grid.columns)
    )

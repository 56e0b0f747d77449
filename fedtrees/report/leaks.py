"""Advantage by threat and attack, and by feature: the grids behind the heatmaps."""

import math
from collections.abc import Iterable
from dataclasses import dataclass, field

import numpy as np
import pandas as pd

from fedtrees.core.columns import measure
from fedtrees.core.counts import many
from fedtrees.report.budgets import ordered
from fedtrees.report.intervals import Estimate, estimate, mean_of
from fedtrees.report.rows import Setting
from fedtrees.report.states import margin_of
from fedtrees.report.worst import over_the_better_baseline, troubles, with_errors


@dataclass(frozen=True)
class Cell:
    """One measured advantage, or the word that says why there is none.

    `advantage`: Over the better of the blind and the population baseline, over seeds; wider where a
    sample of the victims' rows was scored.
    `state`: "ok", "failed", "timeout", "skipped", "undefined" (blind already scores the best value)
    or "" (not part of the run). `score, blind, population`: Means of the attack's score and of both
    baselines; the population baseline is NaN for adversaries with local rows.
    """

    advantage: Estimate = field(default_factory=Estimate)
    score: float = math.nan
    blind: float = math.nan
    population: float = math.nan
    state: str = ""
    note: str = ""
    failed: bool = False  # whether the attack scored worse than blind, by more than the margin
    partial: bool = False  # whether a seed is missing because an attack failed or timed out


@dataclass(frozen=True)
class Grid:
    """A table of cells: rows are (threat, attack) or features, columns are defenses."""

    title: str
    metric: str
    rows: tuple[str, ...]
    columns: tuple[str, ...]
    cells: tuple[tuple[Cell, ...], ...]


def leak_grid(rows: pd.DataFrame, setting: Setting, metric: str) -> Grid:
    """Return the advantage of every attack under every threat, per defense."""
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
    """Return the largest absolute mean advantage, to share one colour scale (at least 0.1)."""
    means = [abs(c.advantage.mean) for g in grids for line in g.cells for c in line]
    finite = [m for m in means if math.isfinite(m)]
    return max([0.1, *finite])


def _cell(rows: pd.DataFrame | None, limit: float) -> Cell:
    if rows is None or rows.empty:
        return Cell()
    bad = {status: len(seeds) for (status,), seeds in troubles(rows, "status").items()}
    why = sorted(str(reason) for (reason,) in troubles(rows, "why"))
    note = "; ".join([*(f"{s} on {many(n, 'seed')}" for s, n in sorted(bad.items())), *why])
    if not (rows["status"] == "ok").any():
        return Cell(state=min(bad, key=lambda s: (s == "skipped", s)), note=note)
    names = ("status", "advantage", "value", "blind", "population", "advantage_error")
    columns = (rows[c].tolist() for c in names)
    ok = [line[1:] for line in zip(*columns, strict=True) if line[0] == "ok"]
    advantages, scores, blinds, populations, errors = zip(*ok, strict=True)
    known = (e for e, a in zip(errors, advantages, strict=True) if math.isfinite(a))
    advantage = estimate(advantages, known)
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
    """Return the mean advantages, shape (rows, columns), NaN where there is none."""
    return np.array([[c.advantage.mean for c in line] for line in grid.cells], dtype=float).reshape(
        len(grid.rows), len(grid.columns)
    )

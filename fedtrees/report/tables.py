"""The tables of a report as data: leaderboard, guarantees, cost, what did not run."""

from __future__ import annotations

import math
from dataclasses import dataclass

import pandas as pd

from fedtrees.core.columns import BYTES_DOWN, BYTES_UP, CIPHERTEXTS, CPU, OPERATIONS
from fedtrees.core.guarantee import Guarantee, join
from fedtrees.report import claims
from fedtrees.report.budgets import ordered
from fedtrees.report.frontier import Frontier, Point
from fedtrees.report.intervals import Estimate, estimate, t_estimate
from fedtrees.report.rows import UNDEFENDED, Setting
from fedtrees.report.worst import by_part, by_seed


@dataclass(frozen=True)
class LeaderRow:
    """One defense of a leaderboard: what it keeps, what still leaks, what it costs."""

    point: Point
    change: Estimate
    relief: Estimate
    cost: Cost
    guarantees: Guarantees
    on_front: bool


@dataclass(frozen=True)
class Cost:
    """What training one defense took, means over seeds.

    `up, down`: Bytes to and from the coordinating party. `rounds, seconds, cpu_seconds`:
    Communication rounds; wall-clock and processor seconds of the training cell. `ciphertexts`:
    Ciphertexts sent; not known of runs without cryptography, 0 of masks. `operations`: What the
    cryptography did, all parties together, by name.
    """

    defense: str
    up: Estimate
    down: Estimate
    rounds: Estimate
    seconds: Estimate
    cpu_seconds: Estimate
    by_type: tuple[tuple[str, str, Estimate], ...] = ()
    ciphertexts: Estimate = Estimate()
    operations: tuple[tuple[str, Estimate], ...] = ()

    @property
    def bytes(self) -> float:
        """Mean bytes in both directions; NaN if neither is known."""
        known = [e.mean for e in (self.up, self.down) if e.known]
        return sum(known) if known else math.nan


@dataclass(frozen=True)
class Guarantees:
    """What a defense claims, what an accountant says was spent, what an audit measured."""

    defense: str
    claimed: tuple[tuple[Guarantee, ...], ...]
    spent: tuple[tuple[Guarantee, ...], ...]
    measured: tuple[tuple[Guarantee, ...], ...]
    verdict: str
    refuted: bool


def leaderboard(rows: pd.DataFrame, frontier: Frontier) -> tuple[LeaderRow, ...]:
    """Return one row per defense of a panel, the undefended run first.

    Changes are paired: differences to the undefended run of the same seed, then averaged.
    """
    base = frontier.point(UNDEFENDED)
    here = _of_setting(rows, frontier.panel.setting)
    costs = {c.defense: c for c in cost_table(here, frontier.panel.setting)}
    stated = {g.defense: g for g in guarantee_table(here, frontier.panel.setting)}
    return tuple(
        LeaderRow(
            point=p,
            change=paired(p, base, "utility"),
            relief=paired(p, base, "advantage"),
            cost=costs[p.defense],
            guarantees=stated[p.defense],
            on_front=p.defense in frontier.front,
        )
        for p in frontier.points
    )


def paired(point: Point, base: Point | None, field: str) -> Estimate:
    """Return the mean difference to `base` over the seeds both have."""
    if base is None:
        return Estimate()
    theirs = {s.seed: getattr(s, field) for s in base.seeds}
    return t_estimate([getattr(s, field) - theirs.get(s.seed, math.nan) for s in point.seeds])


def _of_setting(rows: pd.DataFrame, setting: Setting) -> pd.DataFrame:
    here = rows[rows["stage"].isin(["train", "attack"])]
    return here[here["setting"] == setting]


def cost_table(rows: pd.DataFrame, setting: Setting) -> tuple[Cost, ...]:
    """Return what each defense cost in one setting, in the order of the leaderboard."""
    here = _of_setting(rows, setting)
    train = here[here["stage"] == "train"]
    return tuple(
        _cost(spec, train[train["defense_spec"] == spec])
        for spec in ordered(set(here["defense_spec"]))
    )


def _cost(defense: str, train: pd.DataFrame) -> Cost:
    ok = train[train["status"] == "ok"]
    # The cell's totals stand on each of its rows: one row per seed is enough.
    firsts = ok.groupby("seed")[["bytes_up", "bytes_down", "rounds", "seconds"]].first()
    by_type = [(way, *of) for way, m in (("down", BYTES_DOWN), ("up", BYTES_UP))
               for of in by_part(ok, m.key)]  # fmt: skip
    cpu, ciphertexts = (estimate(by_seed(ok, m.key).values()) for m in (CPU, CIPHERTEXTS))
    totals = (estimate(firsts[name]) for name in firsts)
    done = tuple(by_part(ok, OPERATIONS.key))
    return Cost(defense, *totals, cpu, tuple(by_type), ciphertexts, done)


def guarantee_table(rows: pd.DataFrame, setting: Setting) -> tuple[Guarantees, ...]:
    """Return the claimed, spent and measured guarantee of each defense in one setting."""
    here = _of_setting(rows, setting)
    out = []
    for spec in ordered(set(here["defense_spec"])):
        mine = here[here["defense_spec"] == spec]
        stated = [
            tuple(sorted({g for g in mine[c] if g}, key=join))
            for c in ("claimed", "spent", "measured")
        ]
        measured = max(stated[2], key=lambda g: g[0].budget or ("", 0.0), default=None)
        told = (*(found[0] if found else None for found in stated[:2]), measured)
        verdict = claims.compare(*told)
        if any(len(found) > 1 for found in stated):
            verdict = "; ".join(filter(None, [verdict, "differs between seeds or threats"]))
        out.append(Guarantees(spec, *stated, verdict, claims.refuted(*told)))
    return tuple(out)

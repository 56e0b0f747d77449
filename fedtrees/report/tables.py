"""What defenses cost and guarantee in one setting, as data."""

import math
from dataclasses import dataclass

import pandas as pd

from fedtrees.core.columns import CIPHERTEXTS, CPU
from fedtrees.core.guarantee import Guarantee, join
from fedtrees.report import claims
from fedtrees.report.budgets import ordered
from fedtrees.report.intervals import Estimate, estimate
from fedtrees.report.rows import Setting
from fedtrees.report.worst import by_seed


@dataclass(frozen=True)
class Cost:
    """What training one defense took, means over seeds.

    `up, down`: Bytes to and from the coordinating party. `rounds, seconds, cpu_seconds`:
    Communication rounds; wall-clock and processor seconds of the training cell. `ciphertexts`:
    Ciphertexts sent; not known of runs without cryptography, 0 of masks.
    """

    defense: str
    up: Estimate
    down: Estimate
    rounds: Estimate
    seconds: Estimate
    cpu_seconds: Estimate
    ciphertexts: Estimate = Estimate()

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


def _of_setting(rows: pd.DataFrame, setting: Setting) -> pd.DataFrame:
    here = rows[rows["stage"].isin(["train", "attack"])]
    return here[here["setting"] == setting]


def cost_table(rows: pd.DataFrame, setting: Setting) -> tuple[Cost, ...]:
    """Return what each defense cost in one setting."""
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
    cpu, ciphertexts = (estimate(by_seed(ok, m.key).values()) for m in (CPU, CIPHERTEXTS))
    totals = (estimate(firsts[name]) for name in firsts)
    return Cost(defense, *totals, cpu, ciphertexts)


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

"""Compute the costs and the privacy guarantees of the defenses in one setting."""

import math
from dataclasses import dataclass

import pandas as pd

from fedtrees.core.guarantee import Guarantee, join
from fedtrees.core.results import CIPHERTEXTS, CPU
from fedtrees.report import guarantees
from fedtrees.report.budgets import ordered
from fedtrees.report.results import Setting
from fedtrees.report.statistics import Estimate, by_seed, estimate


@dataclass(frozen=True)
class Cost:
    """Costs of training with one defense, as means over seeds.

    Attributes
    ----------
    defense : str
        Name of the defense.
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

    defense: str
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


@dataclass(frozen=True)
class Guarantees:
    """Guarantees of one defense: as claimed, as composed by an accountant, as measured by an audit.

    Attributes
    ----------
    defense : str
        Name of the defense.
    claimed, spent, measured : tuple of tuple of Guarantee
        The distinct guarantees over all seeds and threats. More than one entry means that they
        differ.
    verdict : str
        Comparison of the three in words (`fedtrees.report.guarantees.compare`), "" if there is
        nothing to report.
    refuted : bool
        Whether an audit measured more than the guarantee permits.
    """

    defense: str
    claimed: tuple[tuple[Guarantee, ...], ...]
    spent: tuple[tuple[Guarantee, ...], ...]
    measured: tuple[tuple[Guarantee, ...], ...]
    verdict: str
    refuted: bool


def _of_setting(rows: pd.DataFrame, setting: Setting) -> pd.DataFrame:
    """Return the training and attack rows of a setting."""
    here = rows[rows["stage"].isin(["train", "attack"])]
    return here[here["setting"] == setting]


def cost_table(rows: pd.DataFrame, setting: Setting) -> tuple[Cost, ...]:
    """Return the costs of each defense in one setting, in the order of `ordered`."""
    here = _of_setting(rows, setting)
    train = here[here["stage"] == "train"]
    return tuple(
        _cost(spec, train[train["defense_spec"] == spec])
        for spec in ordered(set(here["defense_spec"]))
    )


def _cost(defense: str, train: pd.DataFrame) -> Cost:
    """Compute the costs of one defense from its training rows."""
    ok = train[train["status"] == "ok"]
    # Each row of a training cell repeats the totals of the cell, so that the first row per seed
    # suffices.
    firsts = ok.groupby("seed")[["bytes_up", "bytes_down", "rounds", "seconds"]].first()
    cpu, ciphertexts = (estimate(by_seed(ok, m.key).values()) for m in (CPU, CIPHERTEXTS))
    totals = (estimate(firsts[name]) for name in firsts)
    return Cost(defense, *totals, cpu, ciphertexts)


def guarantee_table(rows: pd.DataFrame, setting: Setting) -> tuple[Guarantees, ...]:
    """Return the claimed, spent and measured guarantee of each defense in one setting."""
    here = _of_setting(rows, setting)
    out = []
    for spec in ordered(set(here["defense_spec"])):
        defense_rows = here[here["defense_spec"] == spec]
        distinct_guarantees = [
            tuple(sorted({g for g in defense_rows[c] if g}, key=join))
            for c in ("claimed", "spent", "measured")
        ]
        measured = max(distinct_guarantees[2], key=lambda g: g[0].budget or ("", 0.0), default=None)
        compared = (
            *(distinct[0] if distinct else None for distinct in distinct_guarantees[:2]),
            measured,
        )
        verdict = guarantees.compare(*compared)
        if any(len(distinct) > 1 for distinct in distinct_guarantees):
            verdict = "; ".join(filter(None, [verdict, "differs between seeds or threats"]))
        out.append(Guarantees(spec, *distinct_guarantees, verdict, guarantees.refuted(*compared)))
    return tuple(out)

"""Compute the contents of figures and tables of a run on demand, each only once."""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path

import pandas as pd

from fedtrees.core.errors import UsageError, check_margin, did_you_mean
from fedtrees.core.results import UTILITY
from fedtrees.report import style
from fedtrees.report.coverage import Gaps
from fedtrees.report.findings import findings
from fedtrees.report.frontier import Frontier, frontiers
from fedtrees.report.leakage import MARGIN
from fedtrees.report.protocol_budgets import over_budgets
from fedtrees.report.results import Panel, Setting, load_rows
from fedtrees.report.setting_findings import RunFindings
from fedtrees.report.statistics import attack_metrics, panels


@dataclass(frozen=True)
class Study:
    """The rows of a run, and the results that are derived from them on demand.

    Attributes
    ----------
    folder : Path
        Folder of the run.
    rows : DataFrame
        Results as returned by `load_rows`.
    metric, utility : str or None
        Keys of the metrics to show. None: the first one of each panel.
    margin : float
        Largest advantage under a defense that counts as no better than a blind guess.
    """

    folder: Path
    rows: pd.DataFrame = field(repr=False)
    metric: str | None = None
    utility: str | None = None
    margin: float = MARGIN

    def __post_init__(self) -> None:
        check_margin(self.margin)
        if self.metric is not None and self.metric not in (metrics := attack_metrics(self.rows)):
            raise UsageError(
                f"no attack of this run reports an advantage for {self.metric!r}"
                f"{did_you_mean(self.metric, metrics)}"
            )
        trained = set(self.rows.loc[self.rows["stage"] == "train", "metric"])
        if self.utility is not None and self.utility not in trained:
            known_utilities = [m.key for m in UTILITY if m.key in trained]
            raise UsageError(
                f"no model of this run was scored by {self.utility!r}"
                f"{did_you_mean(self.utility, known_utilities)}"
            )

    @cached_property
    def panels(self) -> tuple[Panel, ...]:
        """Every attacked pair of setting and threat."""
        return panels(self.rows)

    @cached_property
    def settings(self) -> tuple[Setting, ...]:
        """Every setting with a training or an attack."""
        here = self.rows[self.rows["stage"].isin(["train", "attack"])]
        return tuple(sorted(set(here["setting"])))

    @cached_property
    def frontiers(self) -> tuple[Frontier, ...]:
        """The frontier of every panel, in the requested metric and utility."""
        return frontiers(self.rows, self.metric, self.utility)

    @cached_property
    def over_budgets(self) -> tuple[Frontier, ...]:
        """Frontiers of protocols that were run with several values of a parameter."""
        return over_budgets(self.frontiers)

    @cached_property
    def findings(self) -> RunFindings:
        """Findings of the run: states, prices, recipe and gaps."""
        return findings(self.rows, self.folder, self.margin)

    @cached_property
    def gaps(self) -> Gaps:
        """Defenses, threats and attacks that were not run or failed."""
        return Gaps.of(self.rows, self.settings)

    @cached_property
    def colours(self) -> dict[str, tuple[str, str]]:
        """Colour and dash pattern of each defense family, equal in every figure."""
        drawn = (*self.frontiers, *self.over_budgets)
        return style.palette(p.family for f in drawn for p in f.points)


def study_of(run: Path, metric: str | None = None, margin: float | None = None) -> Study:
    """Load a run.

    Parameters
    ----------
    run : Path
        Folder of the run.
    metric : str or None
        Attack metric to show.
    margin : float or None
        Margin of the states, None for the default.
    """
    return Study(run, load_rows(run), metric, margin=MARGIN if margin is None else margin)

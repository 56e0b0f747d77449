"""What figures and tables of a run show, computed once."""

from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path

import pandas as pd

from fedtrees.core.columns import UTILITY
from fedtrees.core.errors import UsageError, check_margin, did_you_mean
from fedtrees.report import style
from fedtrees.report.findings import findings
from fedtrees.report.found import Findings
from fedtrees.report.frontier import Frontier, frontiers
from fedtrees.report.gaps import Gaps
from fedtrees.report.protocol_budgets import over_budgets
from fedtrees.report.rows import Panel, Setting, load_rows
from fedtrees.report.states import MARGIN
from fedtrees.report.worst import attack_metrics, panels


@dataclass(frozen=True)
class Study:
    """The rows of a run and what is derived from them on demand.

    `metric, utility`: What to show; None lets each panel use its first. `margin`: Advantage that a
    defense may leave and still be called down to blind.
    """

    folder: Path
    rows: pd.DataFrame = field(repr=False)
    metric: str | None = None
    utility: str | None = None
    margin: float = MARGIN

    def __post_init__(self) -> None:
        check_margin(self.margin)
        if self.metric is not None and self.metric not in (known := attack_metrics(self.rows)):
            raise UsageError(
                f"no attack of this run reports an advantage for {self.metric!r}"
                f"{did_you_mean(self.metric, known)}"
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
        """Every (setting, threat) that was attacked."""
        return panels(self.rows)

    @cached_property
    def settings(self) -> tuple[Setting, ...]:
        """Every setting a model was trained in."""
        here = self.rows[self.rows["stage"].isin(["train", "attack"])]
        return tuple(sorted(set(here["setting"])))

    @cached_property
    def frontiers(self) -> tuple[Frontier, ...]:
        """The frontier of every panel, in the metric and utility asked for."""
        return frontiers(self.rows, self.metric, self.utility)

    @cached_property
    def over_budgets(self) -> tuple[Frontier, ...]:
        """Protocols that were run at several budgets of their own, one frontier each."""
        return over_budgets(self.frontiers)

    @cached_property
    def findings(self) -> Findings:
        """What the run found: states, prices, recipe, what was not tested."""
        return findings(self.rows, self.folder, self.margin)

    @cached_property
    def gaps(self) -> Gaps:
        """What could have been run and was not."""
        return Gaps.of(self.rows, self.settings)

    @cached_property
    def colours(self) -> dict[str, tuple[str, str]]:
        """One colour per defense family, equal in every figure."""
        drawn = (*self.frontiers, *self.over_budgets)
        return style.palette(p.family for f in drawn for p in f.points)


def study_of(run: Path, metric: str | None = None, margin: float | None = None) -> Study:
    """Return what a run found; no margin is the default one."""
    return Study(run, load_rows(run), metric, margin=MARGIN if margin is None else margin)

"""Everything a report shows, computed once from a run folder."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path

import pandas as pd

from fedtrees.core.columns import UTILITY
from fedtrees.core.errors import UsageError, did_you_mean
from fedtrees.core.specs import parse_one
from fedtrees.report import style
from fedtrees.report.frontier import Frontier, frontiers
from fedtrees.report.gaps import Gaps, called
from fedtrees.report.glossary import Explained
from fedtrees.report.protocol_budgets import over_budgets
from fedtrees.report.rows import UNDEFENDED, Panel, Setting
from fedtrees.report.sentences import About, Verdict, verdict
from fedtrees.report.tables import LeaderRow, leaderboard
from fedtrees.report.verdict import MARGIN, check_margin
from fedtrees.report.worst import attack_metrics, panels

MOST_METRICS = 6  # in the report's chooser: each one adds a figure per panel to the file


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
    def boards(self) -> tuple[tuple[Frontier, tuple[LeaderRow, ...]], ...]:
        """Every frontier with its leaderboard."""
        return tuple((f, leaderboard(self.rows, f)) for f in self.frontiers)

    @cached_property
    def verdict(self) -> Verdict:
        """What the run says, in sentences."""
        return verdict(self.boards, About(self.gaps.named, called, self.margin))

    @cached_property
    def explained(self) -> Explained:
        """What puts a word's meaning behind it; defenses and attacks of the run are words, too."""
        specs = (s for s in {*self.rows["defense_spec"]} - {"", UNDEFENDED})
        defenses = {("defense", part.name) for s in specs for part in parse_one(s).parts}
        attacks = {("attack", name) for name in {*self.rows["attack"]} - {"", "blind"}}
        return Explained(sorted(defenses | attacks))

    @cached_property
    def gaps(self) -> Gaps:
        """What could have been run and was not."""
        return Gaps.of(self.rows, self.settings)

    @cached_property
    def colours(self) -> dict[str, tuple[str, str]]:
        """One colour per defense family, equal in every figure."""
        drawn = (*self.frontiers, *self.over_budgets)
        return style.palette(p.family for f in drawn for p in f.points)

    @cached_property
    def other_metrics(self) -> tuple[str, ...]:
        """The metrics a reader can switch to."""
        shown = {f.metric for f in self.frontiers}
        rest = [m for m in attack_metrics(self.rows) if m not in shown]
        return tuple(rest[: MOST_METRICS - 1])

    def in_metric(self, metric: str) -> Sequence[Frontier]:
        """Return the frontiers in another metric; panels without it are left out."""
        return [f for f in frontiers(self.rows, metric, self.utility) if f.drawn]

"""The verdict of a run in plain words: who reads what, what stops it, what to do, what is open.

Computed once (`Study.verdict`); the terminal, the report and Python print the same sentences.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from fedtrees.core.columns import said
from fedtrees.core.counts import many
from fedtrees.report.frontier import Frontier
from fedtrees.report.phrases import NO_DIFFERENCE
from fedtrees.report.recommend import Recommendation
from fedtrees.report.rows import Panel, Setting
from fedtrees.report.sides import About, Adversary, Side
from fedtrees.report.steps import recommended, steps
from fedtrees.report.tables import LeaderRow


@dataclass(frozen=True)
class Advice:
    """One setting: its adversaries, the one that reads most first, and what to do, in order.

    `found`: What stops all of them, computed.
    """

    setting: Setting
    sides: tuple[Side, ...]
    steps: tuple[str, ...]
    found: Recommendation


@dataclass(frozen=True)
class Verdict:
    """What a run says, the same wherever it is printed. `note`: What all numbers are."""

    settings: tuple[Advice, ...]
    note: str

    def text(self, panel: Panel) -> str:
        """Return what is said of one setting and threat."""
        sides = (side for advice in self.settings for side in advice.sides)
        return next((" ".join(s.sentences) for s in sides if s.panel == panel), "")

    def lines(self) -> tuple[str, ...]:
        """Return the whole as lines, each a heading or a paragraph."""
        out: list[str] = []
        for advice in self.settings:
            out.append(str(advice.setting))
            out += [" ".join(side.sentences) for side in advice.sides]
            out += [f"{at}. {step}" for at, step in enumerate(advice.steps, 1)]
        return (*out, self.note)

    def __str__(self) -> str:
        return "\n".join(self.lines())


Board = tuple[Frontier, Sequence[LeaderRow]]


def verdict(boards: Sequence[Board], about: About) -> Verdict:
    """Put a run into sentences."""
    settings: dict[Setting, list[Board]] = {}
    for frontier, board in boards:
        settings.setdefault(frontier.panel.setting, []).append((frontier, board))
    advice = []
    for setting, mine in settings.items():
        sides = [Adversary(frontier, board, about) for frontier, board in mine]
        sides.sort(key=Adversary.severity)
        advice.append(
            Advice(
                setting,
                tuple(s.said for s in sides),
                tuple(steps(sides, about.untried(setting))),
                recommended(sides),
            )
        )
    seeds = max((r.point.utility.n for _, board in boards for r in board), default=0)
    told = {k.metric for _, board in boards for r in board for k in r.leaks}
    notes = filter(None, (m.explained for m in said(told)))
    return Verdict(tuple(advice), " ".join([_note(seeds), *notes]))


def _note(seeds: int) -> str:
    if seeds == 1:
        return (
            "One seed: every number is of a single run, and no difference is shown to be more than "
            "chance. Run it with --seeds 3 or more."
        )
    return (
        f"Means over {many(seeds, 'seed')}; {NO_DIFFERENCE} is one that lies within the 95% "
        "interval of the seeds. That these attacks fail does not show that others would."
    )

"""`moved-cuts`: where a client that cheats says that it moved cut points, or splits of roots."""

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from fedtrees.core.attack import Attack
from fedtrees.core.guess import CutWindows, Guess
from fedtrees.core.reasons import Reason
from fedtrees.core.registry import register
from fedtrees.core.view import View
from fedtrees.messages.horizontal import CutPoints, FeatureSketch


@register.attack("moved-cuts")
@dataclass(frozen=True)
class MovedCuts(Attack):
    """Claim the windows of the sketch that was sent, or the cuts that sums were to make win."""

    claims = (CutWindows,)

    behaviours: ClassVar[tuple[str, ...]] = (
        "poisoned", "poisoned-unbounded", "crafted-sketch", "crafted-sketch-unbounded",
    )  # fmt: skip
    threats: ClassVar[tuple[str, ...]] = ("client:poisoned", "client:crafted-sketch")
    numbers: ClassVar[bool] = True

    def inapplicable(self, view: View) -> Reason | None:
        """Return why there are no cut points, None if there are some."""
        return None if any(True for _ in view.messages(CutPoints)) else Reason("no-splits")

    def run(self, view: View, rng: np.random.Generator) -> Guess:
        """Return what was to come of the cheating."""
        if why := self.inapplicable(view):
            return Guess.none(why)
        cuts = next(m for _, m in view.messages(CutPoints))
        if any(name.startswith("crafted") for name in view.behaviours):
            sent = [m for s, m in view.messages(FeatureSketch) if s.sender in view.principals]
            if not sent:
                return Guess.none(Reason("cuts-not-from-sketches"))
            starts, ends = sent[-1].offsets[:-1], sent[-1].offsets[1:]
            some = np.flatnonzero(ends > starts)
            low, high = sent[-1].points[starts[some]], sent[-1].points[ends[some] - 1]
            return Guess((CutWindows(some, low, high, np.full(len(some), -1)),))
        each = max(len(view.schema.classes), 2) - 1
        outputs = each if each == 1 else each + 1
        trees = np.arange(0, int(view.parameters["trees"]) * outputs, 2)
        columns = trees // 2 % (len(cuts.offsets) - 1)
        at = cuts.values[cuts.offsets[columns]]
        return Guess((CutWindows(columns, at, at, trees),))

"""Attack `moved-cuts`: claim the cut points or root splits that a malicious client determined.

The adversary is a client with one of the behaviours `crafted-sketch` or `poisoned`. The metric
`moved-cuts` checks whether the manipulation succeeded.
"""

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from fedtrees.core.attack import Attack
from fedtrees.core.claims import CutWindows, Guess
from fedtrees.core.reasons import Reason
from fedtrees.core.registry import register
from fedtrees.core.view import View
from fedtrees.messages.horizontal import CutPoints, FeatureSketch


@register.attack("moved-cuts")
@dataclass(frozen=True)
class MovedCuts(Attack):
    """Claim the windows of a crafted sketch, or the cuts that poisoned sums favour."""

    claims = (CutWindows,)

    behaviours: ClassVar[tuple[str, ...]] = (
        "poisoned", "poisoned-unbounded", "crafted-sketch", "crafted-sketch-unbounded",
    )  # fmt: skip
    threats: ClassVar[tuple[str, ...]] = ("client:poisoned", "client:crafted-sketch")
    supports_regression: ClassVar[bool] = True

    def inapplicable(self, view: View) -> Reason | None:
        """Return a reason if the view contains no cut points, None if it contains some."""
        return None if any(True for _ in view.messages(CutPoints)) else Reason("no-splits")

    def run(self, view: View, rng: np.random.Generator) -> Guess:
        """Claim the intended results of the manipulation."""
        if reason := self.inapplicable(view):
            return Guess.none(reason)
        cuts = next(m for _, m in view.messages(CutPoints))
        if any(name.startswith("crafted") for name in view.behaviours):
            sent = [m for s, m in view.messages(FeatureSketch) if s.sender in view.principals]
            if not sent:
                return Guess.none(Reason("cuts-not-from-sketches"))
            starts, ends = sent[-1].offsets[:-1], sent[-1].offsets[1:]
            crafted_columns = np.flatnonzero(ends > starts)
            low = sent[-1].points[starts[crafted_columns]].astype(np.float64)
            high = sent[-1].points[ends[crafted_columns] - 1].astype(np.float64)
            return Guess(
                (CutWindows(crafted_columns, low, high, np.full(len(crafted_columns), -1)),)
            )
        # Poisoned clients change every second tree and take the columns in turn
        # (`Poisoned`).
        n_margins = max(len(view.schema.classes), 2) - 1
        outputs = n_margins if n_margins == 1 else n_margins + 1
        trees = np.arange(0, int(view.parameters["trees"]) * outputs, 2)
        columns = trees // 2 % (len(cuts.offsets) - 1)
        lowest_cuts = cuts.values[cuts.offsets[columns]].astype(np.float64)
        return Guess((CutWindows(columns, lowest_cuts, lowest_cuts, trees),))

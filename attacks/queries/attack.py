"""Attack `threshold-queries`: find the split thresholds of other parties by bisection.

The adversary is the active party of a vertical federation. It sends chosen records to the
prediction endpoint and infers from the answers on which side of a threshold each record fell.
`search` implements the search, and `splits` contains its state.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from fedtrees.attacks.queries.search import Search
from fedtrees.attacks.queries.splits import Splits
from fedtrees.core.attack import Attack
from fedtrees.core.claims import Guess, Thresholds
from fedtrees.core.errors import UsageError, check_known
from fedtrees.core.reasons import Reason
from fedtrees.core.registry import register
from fedtrees.core.view import View
from fedtrees.messages.vertical import HeldModel


@register.attack("threshold-queries")
@dataclass(frozen=True, kw_only=True)
class ThresholdQueries(Attack):
    """Find the split thresholds of other parties by queries (Li et al. 2022, Sec. 5, Algorithm 1).

    The attack proceeds from the roots of the trees to their leaves. The values on the adversary's
    columns, and thresholds that were found before, lead a record to a split of the victim. The
    records of a request differ only in the victim's column, and the answers show which of them went
    left.

    The published attack sends m records per request, spread over the interval that contains the
    threshold. This implementation differs in four points:

    - It does not send the two ends of the interval again, because their sides are known.
    - If the budget is small, one record contains the middles of the intervals of several columns.
    - It changes the base record until the answer distinguishes the two sides. The attack therefore
      also works with scores, rounded scores and labels instead of leaf numbers.
    - Under noise it repeats a record until the odds of one side reach e^7 (about 1,100 to 1).

    Parameters
    ----------
    m : int
        Number of records per request, including both ends: at least 3. 0 chooses the largest number
        that the budget allows, and 3 if the budget is small or the answers are noisy.
    epsilon : float
        Width of the interval at which the search for a threshold stops, as a share of the declared
        range of the column. At 0, or without a declared range, the search stops at two adjacent
        float32 numbers.
    columns : {"told", "unknown"}
        ``"told"`` uses the split columns that the messages of the training contain, as Li et al. do
        in their Algorithm 1. ``"unknown"`` ignores them, as in their Sec. 2.3.
    """

    claims = (Thresholds,)

    supports_regression: ClassVar[bool] = True

    m: int = 0
    epsilon: float = 0.0
    columns: str = "told"

    threats: ClassVar[tuple[str, ...]] = (
        "active[queries=1000,answers=leaf-ids]",
        "active[queries=1000]",
    )

    def __post_init__(self) -> None:
        if type(self.m) is not int or (self.m != 0 and self.m < 3):
            raise UsageError(f"m={self.m!r}: give 3 records or more, or 0 to adapt to the budget")
        if not 0 <= self.epsilon < 1:
            raise UsageError(f"epsilon={self.epsilon!r} is a share of a range: 0 or more, below 1")
        check_known("columns", self.columns, ("told", "unknown"))

    def inapplicable(self, view: View) -> Reason | None:
        """Return why there is no endpoint or no threshold to find, None if there is."""
        if view.oracle is None:
            return Reason("no-endpoint", threat="queries=1000")
        if view.oracle.records != "chosen":
            return Reason("no-records-chosen")
        if self.columns == "unknown" and view.oracle.answers == "label":
            return Reason("few-label-turns", use="columns=told")
        if not any(view.messages(HeldModel)):
            return Reason("no-tree-splits")
        if not any(u.victim for u in Splits(view, use_split_columns=True).unknown):
            return Reason("no-others-splits")
        return None

    def run(self, view: View, rng: np.random.Generator) -> Guess:
        """Send queries until all thresholds are found or the budget is spent."""
        if not any(view.messages(HeldModel)) or view.oracle is None:
            return Guess.none(self.inapplicable(view) or Reason("no-tree-splits"))
        search = Search(
            view, rng, m=self.m, epsilon=self.epsilon, use_split_columns=self.columns == "told"
        )
        search.all()
        return search.guess()

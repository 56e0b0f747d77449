"""`threshold-queries`: bisect the thresholds of others by what an endpoint answers."""

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from fedtrees.attacks.queries.search import Search
from fedtrees.attacks.queries.splits import Splits
from fedtrees.core.attack import Attack
from fedtrees.core.errors import UsageError, check_known
from fedtrees.core.guess import Guess, Thresholds
from fedtrees.core.reasons import Reason
from fedtrees.core.registry import register
from fedtrees.core.view import View
from fedtrees.messages.vertical import HeldModel


@register.attack("threshold-queries")
@dataclass(frozen=True, kw_only=True)
class ThresholdQueries(Attack):
    """Find the thresholds of others' splits by queries (Li et al. 2022, Sec. 5, Algorithm 1).

    From the root down, records reach a split of a victim by own values and by thresholds that are
    known already; they differ in the victim's column, and the answer tells where the way turns. The
    published attack asks m records over the interval, each time. Here ends are not asked again;
    where records are scarce, one asks the middles of several columns at once; base records are
    changed until the answer tells the sides apart, so that scores, rounded scores and labels serve
    like leaf ids; and under noise a record is asked again until the odds are e^7.

    Parameters
    ----------
    m : int
        Records of a request, both ends counted: 3 or more. 0: as many as the budget bears, 3 where
        it is scarce or answers are noisy.
    epsilon : float
        Width at which a threshold is found, as a share of the column's declared range; 0, or no
        such range: two neighbouring float32 numbers.
    columns : {"told", "unknown"}
        Whether the attack uses what the messages of the training tell of a split's column. Li et
        al. take it as known; their Sec. 2.3 has it unknown.
    """

    claims = (Thresholds,)

    numbers: ClassVar[bool] = True

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
        """Return why there is nobody to ask, or nothing to ask about; None if there is."""
        if view.oracle is None:
            return Reason("no-endpoint", threat="queries=1000")
        if view.oracle.records != "chosen":
            return Reason("no-records-chosen")
        if self.columns == "unknown" and view.oracle.answers == "label":
            return Reason("few-label-turns", use="columns=told")
        if not any(view.messages(HeldModel)):
            return Reason("no-tree-splits")
        if not any(u.victim for u in Splits(view, told=True).unknown):
            return Reason("no-others-splits")
        return None

    def run(self, view: View, rng: np.random.Generator) -> Guess:
        """Ask until all is found, or no record is left."""
        if not any(view.messages(HeldModel)) or view.oracle is None:
            return Guess.none(self.inapplicable(view) or Reason("no-tree-splits"))
        search = Search(view, rng, m=self.m, epsilon=self.epsilon, told=self.columns == "told")
        search.all()
        return search.guess()

"""What an endpoint answers at all, and how many rows."""

from dataclasses import dataclass

from fedtrees.core.defense import Defense
from fedtrees.core.errors import check_whole
from fedtrees.core.guarantee import Structural
from fedtrees.core.registry import register


@register.defense("query-limit")
@dataclass(frozen=True)
class QueryLimit(Defense):
    """Answer so many rows to one asker, and no more.

    Rows count, not requests: what takes a hundred requests of 201 rows takes fewer rows in requests
    of one (Li et al. 2022 count requests).

    `records`: At least 1.
    """

    records: int = 1000

    acts_through = frozenset({"endpoint"})
    guarantee = Structural()

    def __post_init__(self) -> None:
        check_whole("records", self.records, 1)

    def endpoint(self, answers: str, budget: int) -> tuple[str, int]:
        """Cut the budget."""
        return answers, min(budget, self.records)


@register.defense("hide-leaf-ids")
@dataclass(frozen=True)
class HideLeafIds(Defense):
    """Answer scores where leaf ids were asked for.

    It takes parties that route rows without telling each other the way; what does that is assumed
    to be ideal.
    """

    acts_through = frozenset({"endpoint"})
    guarantee = Structural()

    def endpoint(self, answers: str, budget: int) -> tuple[str, int]:
        """Answer scores."""
        return ("score" if answers == "leaf-ids" else answers), budget

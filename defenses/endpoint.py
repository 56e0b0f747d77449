"""Defenses of an inference endpoint that limit the kind and the number of its answers."""

from dataclasses import dataclass

from fedtrees.core.defense import Defense
from fedtrees.core.errors import check_whole
from fedtrees.core.guarantee import Structural
from fedtrees.core.registry import register


@register.defense("query-limit")
@dataclass(frozen=True)
class QueryLimit(Defense):
    """Limit the number of rows that one client of the endpoint can query.

    The limit counts rows, not requests. A limit on requests would depend on their size: 20,100 rows
    are 100 requests of 201 rows, or 20,100 requests of one row. Li et al. 2022 count requests.

    Parameters
    ----------
    records : int
        Number of rows, at least 1.
    """

    records: int = 1000

    acts_through = frozenset({"endpoint"})
    guarantee = Structural()

    def __post_init__(self) -> None:
        check_whole("records", self.records, 1)

    def endpoint(self, answers: str, budget: int) -> tuple[str, int]:
        """Reduce the budget to `records` rows."""
        return answers, min(budget, self.records)


@register.defense("hide-leaf-ids")
@dataclass(frozen=True)
class HideLeafIds(Defense):
    """Return scores from an endpoint that would otherwise return leaf indices.

    The parties must then route rows without revealing the path of a row to one another. fedtrees
    assumes an ideal functionality for this, and does not implement a protocol.
    """

    acts_through = frozenset({"endpoint"})
    guarantee = Structural()

    def endpoint(self, answers: str, budget: int) -> tuple[str, int]:
        """Replace leaf indices by scores."""
        return ("score" if answers == "leaf-ids" else answers), budget

"""Defense `min-leaf`: a client that grows trees creates no leaf with few rows."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from fedtrees.core.channel import Change, Event
from fedtrees.core.defense import Defense, Place
from fedtrees.core.errors import check_whole
from fedtrees.core.guarantee import Structural
from fedtrees.core.registry import register
from fedtrees.core.schema import Schema


@register.defense("min-leaf")
@dataclass(frozen=True)
class MinLeaf(Defense):
    """Grow no leaf below `k` rows: a split needs k of the client's rows on either side.

    Rows whose value of the split feature is missing are not counted, because the direction of
    missing values may send them to either side. A client with fewer than k rows shares no tree. The
    claim is structural. The numbers of rows in the leaves remain exact, and a leaf of one tree may
    contain the same rows as a leaf of another tree and a single further row.

    Parameters
    ----------
    k : int
        Smallest number of rows of a leaf, at least 2.
    """

    k: int = 5

    guarantee = Structural()

    def __post_init__(self) -> None:
        check_whole("k", self.k, 2)

    def channels(self, schema: Schema, parameters: Mapping[str, Any]) -> Mapping[Place, Change]:
        """State that splits into smaller leaves do not occur."""
        return {("leaves", "rows"): Event(f"no leaf has fewer than {self.k} rows")}

    @property
    def least_leaf_rows(self) -> int:  # type: ignore[override]
        """Smallest number of rows that clients leave on either side of a split."""
        return self.k

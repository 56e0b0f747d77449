"""Minimum leaves: a client grows no leaf on few rows."""

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

    Rows whose value of the split's feature is missing are not counted on, as they may go either
    way. A client with fewer than k rows shares nothing. The claim is structural: how many rows are
    in a leaf is as exact as before, and leaves of two trees may share all rows but one.

    `k`: Rows, at least 2.
    """

    k: int = 5

    guarantee = Structural()

    def __post_init__(self) -> None:
        check_whole("k", self.k, 2)

    def channels(self, schema: Schema, parameters: Mapping[str, Any]) -> Mapping[Place, Change]:
        """State that splits which would leave fewer rows are not made."""
        return {("leaves", "rows"): Event(f"no leaf has fewer than {self.k} rows")}

    @property
    def least_leaf_rows(self) -> int:  # type: ignore[override]
        """Rows that clients leave on either side of a split."""
        return self.k

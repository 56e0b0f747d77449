"""Bins that one machine found, and the rows in them, as attacks on a view."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray

from fedtrees.attacks.evidence.machines import Told, bins_of, extremes, values_of, values_told
from fedtrees.core.attack import Attack
from fedtrees.core.guess import ColumnValues, Guess
from fedtrees.core.reasons import Reason
from fedtrees.core.registry import register
from fedtrees.core.view import View
from fedtrees.messages.captured import HistogramSegment
from fedtrees.messages.lightgbm import BinMappers


def _told(view: View) -> Told:
    return Told.of((item.sender, item.message) for item in view.seen)


def _claim(
    owner: str, column: int, values: NDArray[np.float64], counts: NDArray[np.int64], exact: bool
) -> ColumnValues:
    """Return a claim of values in float32, equal ones together."""
    told, where = np.unique(values.astype(np.float32), return_inverse=True)
    held = np.bincount(where, counts, len(told)).astype(np.int64)
    return ColumnValues(owner, column, told, held, exact)


@register.attack("bin-mapper-reading")
@dataclass(frozen=True, kw_only=True)
class BinMapperReading(Attack):
    """Read a machine's values off the bins that it found for a block of columns.

    LightGBM's data-parallel machines each find the bins of some columns on their own rows and tell
    all. Cuts are midway between values: from the least or greatest one, which cross as they are,
    each follows from the one before, if every bin has one value
    (`fedtrees.trees.lightgbm.midpoints`).
    """

    numbers: ClassVar[bool] = True

    def inapplicable(self, view: View) -> Reason | None:
        """Return why the principals see no bins of others, None if they do."""
        seen = any(item.sender not in view.principals for item, _ in view.messages(BinMappers))
        return None if seen else Reason("no-bins-found")

    def run(self, view: View, rng: np.random.Generator) -> Guess:
        """Return the values of others' columns that bins tell, or their ends."""
        told, claims = _told(view), {}
        for owner, mappers in told.mappers.items():
            for column in {c for c, _ in extremes(mappers)}:
                ends = np.array([v for c, v in extremes(mappers) if c == column])
                claims[owner, column] = _claim(owner, column, ends, np.ones(len(ends), int), False)
        for owner, column, found in values_told(told.mappers):
            ones = np.ones(len(found.values), np.int64)
            claims[owner, column] = _claim(owner, column, found.values, ones, False)
        others = [c for (owner, _), c in claims.items() if owner not in view.principals]
        read = float(sum(len(c.values) for c in others))
        return Guess(tuple(others), {"values": read})


@register.attack("single-row-bins")
@dataclass(frozen=True, kw_only=True)
class SingleRowBins(Attack):
    """Read values with the labels of their rows off a machine's own histogram on its own bins.

    Whoever gets the sums of a column from one machine alone, or of all it has as the leader of an
    odd one, sees rows and positives of each bin (`fedtrees.attacks.evidence.machines`). On bins
    that this machine found, a bin of one row is a value and its label.
    """

    numbers: ClassVar[bool] = True

    def inapplicable(self, view: View) -> Reason | None:
        """Return why the principals see no sums of one machine alone, None if they do."""
        seen = any(
            item.sender not in view.principals for item, _ in view.messages(HistogramSegment)
        )
        return None if seen and _told(view).start is not None else Reason("no-own-sums")

    def run(self, view: View, rng: np.random.Generator) -> Guess:
        """Return columns with how many rows have each value; notes tell of labels."""
        claims, notes = [], {"values_with_labels": 0.0, "certain_ones": 0.0}
        for claim, labelled, certain in self._columns(view):
            claims.append(claim)
            notes["values_with_labels"] += labelled
            notes["certain_ones"] += certain
        return Guess(tuple(claims), notes)

    def _columns(self, view: View) -> Iterator[tuple[ColumnValues, int, int]]:
        told = _told(view)
        for name, bins in bins_of(told):
            owner, k = told.columns[bins.column]
            if name in view.principals or name != owner:
                continue
            mappers = told.mappers[owner]
            found = values_of(mappers, k, bins.rows[:, 0])
            held = bins.rows[found.bins]
            some = held[:, 0] > 0
            if not some.any():
                continue
            sure = found.certain & bins.sure
            missing = np.isnan(mappers.bins(k)[-1])
            rest = bins.rows[:, 0].sum() - held[:, 0].sum() - missing * bins.rows[-1, 0]
            exact = bool(sure[some].all() and not rest)
            claim = _claim(name, bins.column, found.values[some], held[some, 0], exact)
            yield claim, int((held[:, 0] == 1).sum()), int((sure & (held[:, 0] == 1)).sum())

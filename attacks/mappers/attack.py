"""Bins that one machine found, and the rows in them, as attacks on a view."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray

from fedtrees.attacks.evidence.machines import Told, bins_of, extremes, values_of, values_told
from fedtrees.attacks.mappers.likely import Known, likely_column
from fedtrees.core.attack import Attack
from fedtrees.core.guess import ColumnValues, Guess
from fedtrees.core.reasons import Reason
from fedtrees.core.registry import register
from fedtrees.core.view import View
from fedtrees.messages.captured import HistogramSegment
from fedtrees.messages.lightgbm import BinMappers
from fedtrees.trees.lightgbm.midpoints import ZERO

Read = dict[tuple[str, int], NDArray[np.float64]]


def _told(view: View) -> Told:
    return Told.of((item.sender, item.message) for item in view.seen)


def _claim(
    owner: str, column: int, values: NDArray[np.float64], counts: NDArray[np.int64], exact: bool
) -> ColumnValues:
    """Return a claim of values in float32, equal ones together."""
    told, where = np.unique(values.astype(np.float32), return_inverse=True)
    held = np.bincount(where, counts, len(told)).astype(np.int64)
    return ColumnValues(owner, column, told, held, exact)


def _read(view: View, told: Told) -> Read:
    """Return the values that bins of others tell, or that are their ends, by owner and column."""
    read: Read = {}
    for owner, mappers in told.mappers.items():
        for column in {c for c, _ in extremes(mappers)}:
            read[owner, column] = np.array([v for c, v in extremes(mappers) if c == column])
    for owner, column, found in values_told(told.mappers):
        read[owner, column] = found.values
    return {key: values for key, values in read.items() if key[0] not in view.principals}


def _filled(
    view: View,
    told: Told,
    read: Read,
    counted: Mapping[tuple[str, int], NDArray[np.int64]],
) -> Iterator[ColumnValues]:
    """Yield the likeliest columns of others.

    They have the share of missing values, and between the known values the distribution, of the
    rows of the prior (`View.prior_rows`).

    `counted`: int64 array, shape (b,). Rows in each bin, where they are known.
    """
    likely = view.prior_rows
    assert likely is not None
    found, midway = told.columns, view.defense.cut_plan is None
    least = int(view.parameters.get("min_data_in_bin", 1)) if midway else 0
    for owner, root in told.roots.items():
        if owner in view.principals:
            continue
        for column, own in enumerate(likely.X.T.astype(np.float64)):
            present = own[~np.isnan(own)]
            n = round(root.rows * len(present) / len(own))
            if not n or not len(present):
                continue
            known = Known(read.get((owner, column), np.zeros(0)), np.zeros(0))
            categorical, rows = view.schema.categorical[column], counted.get((owner, column))
            finder, k = found.get(column, ("", 0))
            if not categorical and (finder == owner or rows is not None):
                mappers = told.mappers[finder]
                ends = float(mappers.low[k]), float(mappers.high[k])
                cuts = mappers.bins(k)
                cuts = cuts[np.isfinite(cuts)]
                if rows is not None:
                    rows = rows[: len(cuts) + 1]
                    n = int(rows.sum())
                if finder == owner:
                    single = values_of(mappers, k, rows).bins
                    between = (np.abs(cuts) > 2 * ZERO) & midway
                    known = Known(known.values, cuts, *ends, least, between, single, rows)
                else:
                    ends = min(*ends, present.min()), max(*ends, present.max())
                    known = Known(known.values, cuts, *ends, rows=rows)
            values, counts = likely_column(present, n, known, bool(categorical))
            yield _claim(owner, column, values, counts, False)


@register.attack("bin-mapper-reading")
@dataclass(frozen=True, kw_only=True)
class BinMapperReading(Attack):
    """Read a machine's values off the bins that it found for a block of columns.

    LightGBM's data-parallel machines each find the bins of some columns on their own rows and tell
    all. Cuts are midway between values: from the least or greatest one, which cross as they are,
    each follows from the one before, if every bin has one value
    (`fedtrees.trees.lightgbm.midpoints`). What bins do not tell is filled in from own rows
    (`fedtrees.attacks.mappers.likely`).
    """

    claims = (ColumnValues,)

    numbers: ClassVar[bool] = True

    def inapplicable(self, view: View) -> Reason | None:
        """Return why the principals see no bins of others, None if they do."""
        seen = any(item.sender not in view.principals for item, _ in view.messages(BinMappers))
        return None if seen else Reason("no-bins-found")

    def run(self, view: View, rng: np.random.Generator) -> Guess:
        """Return others' columns; notes count the values that bins tell, or that are ends."""
        told = _told(view)
        read = _read(view, told)
        claims = {
            (owner, column): _claim(owner, column, values, np.ones(len(values), int), False)
            for (owner, column), values in read.items()
        }
        if view.prior_rows is not None and len(view.prior_rows):
            claims |= {(c.owner, c.feature): c for c in _filled(view, told, read, {})}
        notes = {"values": float(sum(map(len, read.values())))}
        return Guess.of(claims.values(), notes, otherwise=Reason("no-bins-found"))


@register.attack("single-row-bins")
@dataclass(frozen=True, kw_only=True)
class SingleRowBins(Attack):
    """Read values with the labels of their rows off a machine's own histogram on its own bins.

    Whoever gets the sums of a column from one machine alone, or of all it has as the leader of an
    odd one, sees rows and positives of each bin (`fedtrees.attacks.evidence.machines`). On bins
    that this machine found, a bin of one row is a value and its label. The values of other bins are
    the likeliest that own rows say.
    """

    claims = (ColumnValues,)

    numbers: ClassVar[bool] = True

    def inapplicable(self, view: View) -> Reason | None:
        """Return why the principals see no sums of one machine alone, None if they do."""
        seen = any(
            item.sender not in view.principals for item, _ in view.messages(HistogramSegment)
        )
        return None if seen and _told(view).start is not None else Reason("no-own-sums")

    def run(self, view: View, rng: np.random.Generator) -> Guess:
        """Return columns with how many rows have each value; notes tell of labels."""
        told, notes = _told(view), {"values_with_labels": 0.0, "certain_ones": 0.0}
        claims = dict[tuple[str, int], ColumnValues]()
        counted = dict[tuple[str, int], NDArray[np.int64]]()
        read = _read(view, told)
        for name, bins in bins_of(told):
            if name not in view.principals:
                key, (owner, k) = (name, bins.column), told.columns[bins.column]
                counted[key] = bins.rows[:, 0]
                found = values_of(told.mappers[owner], k, bins.rows[:, 0])
                held = bins.rows[found.bins]
                some = held[:, 0] > 0
                if name != owner or not some.any():
                    continue
                sure = found.certain & bins.sure
                missing = np.isnan(told.mappers[owner].bins(k)[-1])
                rest = bins.rows[:, 0].sum() - held[:, 0].sum() - missing * bins.rows[-1, 0]
                exact = bool(sure[some].all() and not rest)
                read[key] = found.values[some]
                claims[key] = _claim(name, bins.column, found.values[some], held[some, 0], exact)
                notes["values_with_labels"] += int((held[:, 0] == 1).sum())
                notes["certain_ones"] += int((sure & (held[:, 0] == 1)).sum())
        if view.prior_rows is not None and len(view.prior_rows):
            for claim in _filled(view, told, read, counted):
                if (key := (claim.owner, claim.feature)) not in claims or not claims[key].exact:
                    claims[key] = claim
        return Guess.of(claims.values(), notes, otherwise=Reason("no-own-sums"))

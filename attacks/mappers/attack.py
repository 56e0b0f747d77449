"""Attacks on bins that a LightGBM machine computed on its local rows.

`bin-mapper-reading` infers values from the cut points, and `single-row-bins` additionally uses the
histograms of one machine. The adversary is another machine of the training.
"""

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
    """Return the messages of a LightGBM training in the view."""
    return Told.of((item.sender, item.message) for item in view.seen)


def _claim(
    owner: str, column: int, values: NDArray[np.float64], counts: NDArray[np.int64], exact: bool
) -> ColumnValues:
    """Return a claim of float32 values, with equal values merged.

    Parameters
    ----------
    owner : str
        Machine whose rows have the values.
    column : int
        Position of the column in the schema.
    values : float64 array, shape (k,)
    counts : int64 array, shape (k,)
        Number of rows with each value.
    exact : bool
        Whether the values are certain.
    """
    distinct, position = np.unique(values.astype(np.float32), return_inverse=True)
    totals = np.bincount(position, counts, len(distinct)).astype(np.int64)
    return ColumnValues(owner, column, distinct, totals, exact)


def _read(view: View, told: Told) -> Read:
    """Return the values that follow from bins or are their extremes, by owner and column."""
    read: Read = {}
    for owner, mappers in told.mappers.items():
        for column in {c for c, _ in extremes(mappers)}:
            # The smallest and the largest value are sent with the bins.
            read[owner, column] = np.array([v for c, v in extremes(mappers) if c == column])
    for owner, column, inferred in values_told(told.mappers):
        read[owner, column] = inferred.values
    return {key: values for key, values in read.items() if key[0] not in view.principals}


def _filled(
    view: View,
    told: Told,
    read: Read,
    counted: Mapping[tuple[str, int], NDArray[np.int64]],
) -> Iterator[ColumnValues]:
    """Yield the most probable columns of the other machines.

    The share of missing values and the distribution between known values are those of the rows of
    the prior (`View.prior_rows`).

    Parameters
    ----------
    view : View
        Provides the schema and the prior rows.
    told : Told
        Bins and sums of the machines.
    read : mapping
        Known values by machine and column.
    counted : mapping
        Number of rows in each bin, int64 of shape (b,), by machine and column, if known.
    """
    prior_rows = view.prior_rows
    assert prior_rows is not None
    finders, midway = told.columns, view.defense.cut_plan is None
    least = int(view.parameters.get("min_data_in_bin", 1)) if midway else 0
    for owner, root in told.roots.items():
        if owner in view.principals:
            continue
        for column, prior_column in enumerate(prior_rows.X.T.astype(np.float64)):
            present = prior_column[~np.isnan(prior_column)]
            # Number of present values of the machine in this column.
            n = round(root.rows * len(present) / len(prior_column))
            if not n or not len(present):
                continue
            facts = Known(read.get((owner, column), np.zeros(0)), np.zeros(0))
            is_categorical, rows = view.schema.categorical[column], counted.get((owner, column))
            finder, k = finders.get(column, ("", 0))
            if not is_categorical and (finder == owner or rows is not None):
                mappers = told.mappers[finder]
                ends = float(mappers.low[k]), float(mappers.high[k])
                cuts = mappers.bins(k)
                cuts = cuts[np.isfinite(cuts)]
                if rows is not None:
                    rows = rows[: len(cuts) + 1]
                    n = int(rows.sum())
                if finder == owner:
                    single = values_of(mappers, k, rows).bins
                    # LightGBM reserves a bin around zero, whose cuts are not midpoints.
                    between = (np.abs(cuts) > 2 * ZERO) & midway
                    facts = Known(facts.values, cuts, *ends, least, between, single, rows)
                else:
                    ends = min(*ends, present.min()), max(*ends, present.max())
                    facts = Known(facts.values, cuts, *ends, rows=rows)
            values, counts = likely_column(present, n, facts, bool(is_categorical))
            yield _claim(owner, column, values, counts, False)


@register.attack("bin-mapper-reading")
@dataclass(frozen=True, kw_only=True)
class BinMapperReading(Attack):
    """Infer a machine's values from the bins that it computed for a block of columns.

    In LightGBM's data-parallel mode, each machine computes the bins of some columns on its local
    rows and sends them to all machines. Cuts are midpoints of adjacent values. The smallest and the
    largest value are sent unchanged. Starting from either of them, each value follows from the
    previous one and the cut between them, if every bin contains one distinct value
    (`fedtrees.trees.lightgbm.midpoints`). For example, the value 2 and the cut 2.5 give the value
    3. Values that bins do not determine are estimated from the prior rows
    (`fedtrees.attacks.mappers.likely`).
    """

    claims = (ColumnValues,)

    numbers: ClassVar[bool] = True

    def inapplicable(self, view: View) -> Reason | None:
        """Return why the principals see no bins of other machines, None if they do."""
        seen = any(item.sender not in view.principals for item, _ in view.messages(BinMappers))
        return None if seen else Reason("no-bins-found")

    def run(self, view: View, rng: np.random.Generator) -> Guess:
        """Claim the columns of other machines.

        The diagnostic ``values`` counts the values that bins determine or that are extremes.
        """
        training = _told(view)
        read = _read(view, training)
        claims = {
            (owner, column): _claim(owner, column, values, np.ones(len(values), int), False)
            for (owner, column), values in read.items()
        }
        if view.prior_rows is not None and len(view.prior_rows):
            claims |= {(c.owner, c.feature): c for c in _filled(view, training, read, {})}
        notes = {"values": float(sum(map(len, read.values())))}
        return Guess.of(claims.values(), notes, otherwise=Reason("no-bins-found"))


@register.attack("single-row-bins")
@dataclass(frozen=True, kw_only=True)
class SingleRowBins(Attack):
    """Infer values with their labels from a machine's histogram on bins that it computed itself.

    The adversary receives the sums of a column from one machine only. It receives all sums of a
    machine if LightGBM's reduction assigns this machine to it, which happens if the number of
    machines is not a power of two. It computes the rows and the positive labels in each bin
    (`fedtrees.attacks.evidence.machines`). If the same machine also computed the bins of the
    column, a bin of one row shows a value and its label. The values in the remaining bins are
    estimated from the prior rows.
    """

    claims = (ColumnValues,)

    numbers: ClassVar[bool] = True

    def inapplicable(self, view: View) -> Reason | None:
        """Return why the principals see no sums of a single machine, None if they do."""
        seen = any(
            item.sender not in view.principals for item, _ in view.messages(HistogramSegment)
        )
        return None if seen and _told(view).start is not None else Reason("no-own-sums")

    def run(self, view: View, rng: np.random.Generator) -> Guess:
        """Claim columns with the number of rows of each value.

        Diagnostics: ``values_with_labels`` counts bins of one row, and ``certain_ones`` those of
        them whose value and label are certain.
        """
        training, notes = _told(view), {"values_with_labels": 0.0, "certain_ones": 0.0}
        claims = dict[tuple[str, int], ColumnValues]()
        counted = dict[tuple[str, int], NDArray[np.int64]]()
        read = _read(view, training)
        for name, bins in bins_of(training):
            if name not in view.principals:
                key, (owner, k) = (name, bins.column), training.columns[bins.column]
                counted[key] = bins.rows[:, 0]
                inferred = values_of(training.mappers[owner], k, bins.rows[:, 0])
                row_counts = bins.rows[inferred.bins]
                nonempty = row_counts[:, 0] > 0
                # Only bins that the machine computed itself determine its values.
                if name != owner or not nonempty.any():
                    continue
                certain = inferred.certain & bins.sure
                missing = np.isnan(training.mappers[owner].bins(k)[-1])
                unexplained = (
                    bins.rows[:, 0].sum() - row_counts[:, 0].sum() - missing * bins.rows[-1, 0]
                )
                exact = bool(certain[nonempty].all() and not unexplained)
                read[key] = inferred.values[nonempty]
                claims[key] = _claim(
                    name, bins.column, inferred.values[nonempty], row_counts[nonempty, 0], exact
                )
                notes["values_with_labels"] += int((row_counts[:, 0] == 1).sum())
                notes["certain_ones"] += int((certain & (row_counts[:, 0] == 1)).sum())
        if view.prior_rows is not None and len(view.prior_rows):
            for claim in _filled(view, training, read, counted):
                # An exact claim is not replaced by an estimate.
                if (key := (claim.owner, claim.feature)) not in claims or not claims[key].exact:
                    claims[key] = claim
        return Guess.of(claims.values(), notes, otherwise=Reason("no-own-sums"))

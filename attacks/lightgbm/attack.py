"""Attacks on one machine of a training without a server: LightGBM's bins, and sums in a ring.

`bin-mapper-reading` infers values from the cut points that a LightGBM machine computed on its local
rows, and `single-row-bins` additionally uses the histograms of one machine. The adversary is
another machine of the training.

`ring-segments` infers the class counts of one worker from its partial sums in a ring. The adversary
is a worker of a captured XGBoost training. In a ring all-reduce, the first message of each segment
contains the sums of its sender only.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray

from fedtrees.attacks.lightgbm.column_values import ColumnFacts, allocate_counts, likely_column
from fedtrees.attacks.observations.lightgbm import (
    LightGBMTranscript,
    bins_of,
    counts,
    extremes,
    shares,
    values_of,
    values_of_columns,
)
from fedtrees.core.attack import Attack
from fedtrees.core.claims import BinClassCounts, ColumnValues, Guess
from fedtrees.core.reasons import Reason
from fedtrees.core.registry import register
from fedtrees.core.view import View
from fedtrees.messages.captured import GradientTotals, HistogramSegment, Intercept
from fedtrees.messages.lightgbm import BinMappers
from fedtrees.trees.lightgbm.bins import ZERO


@register.attack("ring-segments")
@dataclass(frozen=True, kw_only=True)
class RingSegments(Attack):
    """Infer rows and positives in one worker's bins from the first sums of a ring all-reduce.

    XGBoost's all-reduce (``allreduce.cc``) passes segments of a histogram around a ring. The first
    hop of each segment contains the sums of its sender only, so that the next worker learns them. A
    worker that sees two sums that differ by one worker learns the contribution of that worker. In
    the first tree, all rows of a class have the same gradient.
    """

    claims = (BinClassCounts,)

    def inapplicable(self, view: View) -> Reason | None:
        """Return why the principals see no sums of a single worker in a ring, None if they do."""
        ring = not any(True for _ in view.messages(BinMappers))
        sent = any(i.sender not in view.principals for i, _ in view.messages(HistogramSegment))
        return None if ring and sent and _start(view) is not None else Reason("no-own-sums")

    def run(self, view: View, rng: np.random.Generator) -> Guess:
        """Claim class counts of bins, -1 if unknown.

        Diagnostics: ``bins_seen`` counts bins with exact counts, and ``bins_of_one_row`` those with
        one row.
        """
        start = _start(view)
        first = [m for _, m in view.messages(HistogramSegment) if m.tree == m.level == 0]
        if start is None or not first:
            return Guess.none(Reason("no-own-sums"))
        counts_of_worker, roots = {}, dict[str, NDArray[np.int64]]()
        notes = {"bins_seen": 0.0, "bins_of_one_row": 0.0}
        for owner, sums in sorted(shares(first).items()):
            if owner in view.principals or len(sums) % 2:
                continue
            rows, positives = counts(sums, start).T
            class_counts = np.where(rows < 0, -1, np.stack([rows - positives, positives])).T
            counts_of_worker[owner] = class_counts
            notes["bins_seen"] += float((rows >= 0).sum())
            notes["bins_of_one_row"] += float((rows == 1).sum())
        for _, m in view.messages(GradientTotals):
            if m.tree == 0 and m.parties not in view.principals and "," not in m.parties:
                g, h = m.sums
                # Row sums of gradient p - y and hessian p (1 - p), solved for the class counts.
                ones, rows = h / (1 - start) - g, h / (start * (1 - start))
                notes[f"positives of {m.parties}"] = round(float(ones), 3)
                roots[m.parties] = np.rint([rows - ones, ones]).astype(np.int64)
        if counts_of_worker:
            counts_of_worker = allocate_counts(
                view, counts_of_worker, _of_all(view, first, start), roots
            )
        claims = (BinClassCounts(*item) for item in sorted(counts_of_worker.items()))
        return Guess.of(claims, notes, otherwise=Reason("no-own-sums"))


def _of_all(view: View, first: Sequence[HistogramSegment], start: float) -> NDArray[np.int64]:
    """Return class counts of all workers together, int64, shape (b, 2), -1 if unknown."""
    workers = sum(role == "client" for role in view.roles.values())
    sums = np.full(max(segment.first + len(segment.sums) for segment in first), np.nan)
    for segment in first:
        if segment.parties.count(",") + 1 == workers:
            sums[segment.first : segment.first + len(segment.sums)] = segment.sums
    rows, ones = counts(sums, start).T
    return np.where(rows < 0, -1, np.stack([rows - ones, ones])).T


def _start(view: View) -> float | None:
    """Return the initial probability of boosting from a message, or from the parameters."""
    announced = next((m.value for _, m in view.messages(Intercept)), None)
    start = view.parameters.get("base_score") if announced is None else announced
    return float(start) if start is not None and 0 < start < 1 else None


Longs = NDArray[np.int64]
#: Known values, and known rows of bins, by machine and column.
Read = dict[tuple[str, int], NDArray[np.float64]]
BinRows = Mapping[tuple[str, int], Longs]


def _read_transcript(view: View) -> LightGBMTranscript:
    """Return the messages of a LightGBM training in the view."""
    return LightGBMTranscript.of((item.sender, item.message) for item in view.seen)


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


def _read_values(view: View, transcript: LightGBMTranscript) -> Read:
    """Return the values that follow from bins or are their extremes, by owner and column."""
    read: Read = {}
    for owner, mappers in transcript.mappers.items():
        for column in {c for c, _ in extremes(mappers)}:
            # The smallest and the largest value are sent with the bins.
            read[owner, column] = np.array([v for c, v in extremes(mappers) if c == column])
    for owner, column, inferred in values_of_columns(transcript.mappers):
        read[owner, column] = inferred.values
    return {key: values for key, values in read.items() if key[0] not in view.principals}


def _fill_columns(
    view: View,
    transcript: LightGBMTranscript,
    read: Read,
    bin_rows: BinRows,
) -> Iterator[ColumnValues]:
    """Yield the most probable columns of the other machines.

    The share of missing values and the distribution between known values are those of the rows of
    the prior (`View.prior_rows`).

    Parameters
    ----------
    view : View
        Provides the schema and the prior rows.
    transcript : LightGBMTranscript
        Bins and sums of the machines.
    read : mapping
        Known values by machine and column.
    bin_rows : mapping
        Number of rows in each bin, int64 of shape (b,), by machine and column, if known.
    """
    prior_rows = view.prior_rows
    assert prior_rows is not None
    finders, midway = transcript.columns, view.defense.cut_plan() is None
    least = int(view.parameters.get("min_data_in_bin", 1)) if midway else 0
    for owner, root in transcript.roots.items():
        if owner in view.principals:
            continue
        for column, prior_column in enumerate(prior_rows.X.T.astype(np.float64)):
            present = prior_column[~np.isnan(prior_column)]
            # Number of present values of the machine in this column.
            n = round(root.rows * len(present) / len(prior_column))
            if not n or not len(present):
                continue
            facts = ColumnFacts(read.get((owner, column), np.zeros(0)), np.zeros(0))
            is_categorical, rows = view.schema.categorical[column], bin_rows.get((owner, column))
            finder, k = finders.get(column, ("", 0))
            if not is_categorical and (finder == owner or rows is not None):
                mappers = transcript.mappers[finder]
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
                    facts = ColumnFacts(facts.values, cuts, *ends, least, between, single, rows)
                else:
                    ends = min(*ends, present.min()), max(*ends, present.max())
                    facts = ColumnFacts(facts.values, cuts, *ends, rows=rows)
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
    (`fedtrees.trees.lightgbm.bins`). For example, the value 2 and the cut 2.5 give the value
    3. Values that bins do not determine are estimated from the prior rows
    (`fedtrees.attacks.lightgbm.column_values`).
    """

    claims = (ColumnValues,)

    supports_regression: ClassVar[bool] = True

    nothing: ClassVar[str] = "no-bins-found"

    def inapplicable(self, view: View) -> Reason | None:
        """Return why the principals see no bins of other machines, None if they do."""
        seen = any(item.sender not in view.principals for item, _ in view.messages(BinMappers))
        return None if seen else Reason("no-bins-found")

    def run(self, view: View, rng: np.random.Generator) -> Guess:
        """Claim the columns of other machines.

        The diagnostic ``values`` counts the values that bins determine or that are extremes.
        """
        training = _read_transcript(view)
        read = _read_values(view, training)
        claims, bin_rows, notes = self.read_claims(view, training, read)
        if view.prior_rows is not None and len(view.prior_rows):
            for claim in _fill_columns(view, training, read, bin_rows):
                # An exact claim is not replaced by an estimate.
                if (key := (claim.owner, claim.feature)) not in claims or not claims[key].exact:
                    claims[key] = claim
        return Guess.of(claims.values(), notes, otherwise=Reason(self.nothing))

    def read_claims(
        self, view: View, training: LightGBMTranscript, read: Read
    ) -> tuple[dict[tuple[str, int], ColumnValues], BinRows, dict[str, float]]:
        """Return claims that need no prior, known rows of bins, and diagnostics.

        Values that follow from other messages are added to `read`.
        """
        claims = {
            (owner, column): _claim(owner, column, values, np.ones(len(values), int), False)
            for (owner, column), values in read.items()
        }
        return claims, {}, {"values": float(sum(map(len, read.values())))}


@register.attack("single-row-bins")
@dataclass(frozen=True, kw_only=True)
class SingleRowBins(BinMapperReading):
    """Infer values with their labels from a machine's histogram on bins that it computed itself.

    The adversary receives the sums of a column from one machine only. It receives all sums of a
    machine if LightGBM's reduction assigns this machine to it, which happens if the number of
    machines is not a power of two. It computes the rows and the positive labels in each bin
    (`fedtrees.attacks.observations.lightgbm`). If the same machine also computed the bins of the
    column, a bin of one row shows a value and its label. The values in the remaining bins are
    estimated from the prior rows.
    """

    nothing: ClassVar[str] = "no-own-sums"

    def inapplicable(self, view: View) -> Reason | None:
        """Return why the principals see no sums of a single machine, None if they do."""
        seen = any(
            item.sender not in view.principals for item, _ in view.messages(HistogramSegment)
        )
        return None if seen and _read_transcript(view).start is not None else Reason("no-own-sums")

    def read_claims(
        self, view: View, training: LightGBMTranscript, read: Read
    ) -> tuple[dict[tuple[str, int], ColumnValues], BinRows, dict[str, float]]:
        """Claim values of bins of one machine, with the number of rows of each value.

        Diagnostics: ``values_with_labels`` counts bins of one row, and ``certain_ones`` those of
        them whose value and label are certain.
        """
        notes = {"values_with_labels": 0.0, "certain_ones": 0.0}
        claims, counted = dict[tuple[str, int], ColumnValues](), dict[tuple[str, int], Longs]()
        for name, bins in bins_of(training):
            if name in view.principals:
                continue
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
            claims[key] = _claim(name, bins.column, read[key], row_counts[nonempty, 0], exact)
            notes["values_with_labels"] += int((row_counts[:, 0] == 1).sum())
            notes["certain_ones"] += int((certain & (row_counts[:, 0] == 1)).sum())
        return claims, counted, notes

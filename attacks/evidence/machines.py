"""Infer values and class counts of bins from the messages of LightGBM's machines.

A machine announces the bins of the columns it is responsible for, with their smallest and largest
value. The hops of the histogram reduction reveal which machine has how many rows in each bin.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from itertools import accumulate

import numpy as np
from numpy.typing import NDArray

from fedtrees.attacks.evidence.shares import counts, shares
from fedtrees.core.messages import Message
from fedtrees.messages.captured import HistogramSegment
from fedtrees.messages.lightgbm import BinMappers, ClassRows, OwnStart, RootSums
from fedtrees.trees.lightgbm.bins import ZERO, dealt, values_between, values_from

_MOST_ROWS = 1 << 17  # float32 sums determine numbers of rows up to this one
_NEAR = 1e-5


@dataclass
class LightGBMTranscript:
    """Messages before the second step of the first tree, by machine.

    Attributes
    ----------
    mappers : dict of str to BinMappers
        Bins of the columns that each machine is responsible for.
    classes : dict of str to ClassRows
        Number of rows of each class.
    starts : dict of str to OwnStart
        Initial score of each machine.
    roots : dict of str to RootSums
        Sums over the root of the first tree.
    segments : list of HistogramSegment
        Parts of the first histogram.
    """

    mappers: dict[str, BinMappers] = field(default_factory=dict)
    classes: dict[str, ClassRows] = field(default_factory=dict)
    starts: dict[str, OwnStart] = field(default_factory=dict)
    roots: dict[str, RootSums] = field(default_factory=dict)
    segments: list[HistogramSegment] = field(default_factory=list)

    @staticmethod
    def of(messages_by_sender: Iterable[tuple[str, Message]]) -> LightGBMTranscript:
        """Collect the relevant messages from pairs of sender and message."""
        messages = LightGBMTranscript()
        for sender, m in messages_by_sender:
            if isinstance(m, BinMappers):
                messages.mappers[sender] = m
            elif isinstance(m, ClassRows):
                messages.classes[sender] = m
            elif isinstance(m, OwnStart):
                messages.starts[sender] = m
            elif isinstance(m, RootSums) and m.tree == 0:
                messages.roots[sender] = m
            elif isinstance(m, HistogramSegment) and m.tree == m.level == 0:
                messages.segments.append(m)
        return messages

    @property
    def start(self) -> float | None:
        """The first probability, or None if the root sums are not those of the logistic loss."""
        if not self.classes or set(self.classes) != set(self.roots):
            return None
        rows = {name: c.positives + c.negatives for name, c in self.classes.items()}
        mean = sum(c.positives for c in self.classes.values()) / max(sum(rows.values()), 1)
        # boosting starts at the mean label, or at 1/2 if this is switched off
        for p in (mean, 0.5):
            if 0 < p < 1 and all(
                root.rows == rows[name]
                and abs(root.hessian - root.rows * p * (1 - p)) <= _NEAR * rows[name]
                and abs(root.gradient - root.rows * p + self.classes[name].positives)
                <= _NEAR * rows[name]
                for name, root in self.roots.items()
            ):
                return p
        return None

    @property
    def mean_labels(self) -> dict[str, float]:
        """The mean label of every machine. Empty unless the loss is squared error."""
        if self.classes or not self.starts or set(self.starts) != set(self.roots):
            return {}
        mean = np.mean([s.score for s in self.starts.values()])
        for name, root in self.roots.items():
            expected = root.rows * (mean - self.starts[name].score)
            scale = _NEAR * max(root.rows * (abs(mean) + abs(self.starts[name].score)), 1e-9)
            if not root.rows or root.hessian != root.rows or abs(root.gradient - expected) > scale:
                return {}
        return {name: s.score for name, s in self.starts.items()}

    @property
    def columns(self) -> dict[int, tuple[str, int]]:
        """The machine that announced the bins of each used column, and the position there."""
        return {
            m.first + int(k): (owner, int(k))
            for owner, m in sorted(self.mappers.items(), key=lambda item: item[1].first)
            for k in np.flatnonzero(m.used)
        }

    @property
    def places(self) -> dict[int, int]:
        """The offset of every column in a histogram."""
        sent = {c: self.mappers[owner].sent(k) for c, (owner, k) in self.columns.items()}
        order = [c for machine_columns in dealt(sent, len(self.mappers)) for c in machine_columns]
        return dict(zip(order, accumulate((2 * sent[c] for c in order), initial=0), strict=False))


@dataclass(frozen=True)
class Bins:
    """Rows of one machine in the bins of one column.

    Attributes
    ----------
    column : int
        Index of the column.
    rows : int64 array, shape (b, 2)
        Rows and positives of each bin.
    sure : bool
        False if LightGBM may bundle the column with other columns, which can lose rows.
    """

    column: int
    rows: NDArray[np.int64]
    sure: bool


def bins_of(transcript: LightGBMTranscript) -> Iterator[tuple[str, Bins]]:
    """Yield each machine with its rows in the bins of each column that can be determined.

    Nothing is yielded if the loss is not logistic or if there are too many rows for float32 sums.
    """
    start, total = transcript.start, sum(r.rows for r in transcript.roots.values())
    if start is None or total >= _MOST_ROWS:
        return
    columns, places = transcript.columns, transcript.places
    full = all((m.sparse[m.used] < 0.5).all() for m in transcript.mappers.values())
    for owner, machine_sums in shares(transcript.segments).items():
        classes = transcript.classes[owner]
        for column, first in places.items():
            mappers, k = transcript.mappers[columns[column][0]], columns[column][1]
            part = machine_sums[first : first + 2 * mappers.sent(k)]
            if len(part) < 2 * mappers.sent(k) or np.isnan(part).any():
                continue
            rows = counts(part, start)
            # LightGBM does not send the first bin if it is the most frequent one
            if mappers.frequent[k] == 0:
                rows = np.concatenate([np.zeros((1, 2), np.int64), rows])
            often = int(mappers.frequent[k])
            rows[often] = 0
            if (rows < 0).any():
                continue
            rest = np.array([classes.positives + classes.negatives, classes.positives])
            rows[often] = rest - rows.sum(axis=0)
            if rows[often].min() < 0 or rows[often, 1] > rows[often, 0]:
                continue
            majority = 2 * (rows[:, 0].sum() - rows[often, 0]) > rows[:, 0].sum()
            yield owner, Bins(column, rows, bool(full and majority))


@dataclass(frozen=True)
class Values:
    """One value for each bin of a column in which a value can be determined.

    Attributes
    ----------
    bins : int64 array, shape (v,)
        Bin of each value.
    values : float64 array, shape (v,)
        The value, if the bin contains only one.
    certain : bool array, shape (v,)
        Whether the value is certain.
    """

    bins: NDArray[np.int64]
    values: NDArray[np.float64]
    certain: NDArray[np.bool_]


def values_of(mappers: BinMappers, k: int, rows: NDArray[np.int64] | None = None) -> Values:
    """Return the values that the bins of a column reveal about their machine's rows.

    Bounds are midway between values, so that each value follows from the one before.

    Parameters
    ----------
    mappers : BinMappers
        Bins that the machine announced.
    k : int
        Position of the column in the message.
    rows : int64 array, shape (b,), optional
        Number of rows in each bin, if known. A bin of one row has one value.

    Returns
    -------
    Values
        Empty for a categorical column.
    """
    empty = np.zeros(0)
    bin_values = Values(empty.astype(np.int64), empty, empty.astype(np.bool_))
    if mappers.categorical[k]:
        return bin_values
    bounds, low, high = mappers.bins(k), float(mappers.low[k]), float(mappers.high[k])
    bounds = bounds[: -1 if np.isnan(bounds[-1]) else None]
    single = np.zeros(len(bounds), np.bool_) if rows is None else rows[: len(bounds)] == 1
    at = np.flatnonzero(np.abs(bounds) < 2 * ZERO)
    below = int(at[0]) if len(at) and bounds[at[0]] < 0 else -1  # the last bin of negative values
    above = int(at[-1]) + 1 if len(at) and bounds[at[-1]] > 0 else len(bounds)
    parts = []
    if low < -ZERO and below >= 0:
        span, end = slice(0, below + 1), high if high < -ZERO else None
        parts.append((span, _told(low, end, bounds[:below], single[span])))
    if high > ZERO and above < len(bounds):
        span, end = slice(above, len(bounds)), low if low > ZERO else None
        values, certain = _told(
            -high, None if end is None else -end, -bounds[above:-1][::-1], single[span][::-1]
        )
        parts.append((span, (-values[::-1], certain[::-1])))
    for span, (values, certain) in parts:
        if len(values):
            bins = np.arange(span.start, span.stop)
            bin_values = Values(*(np.concatenate(pair) for pair in zip(
                (bin_values.bins, bin_values.values, bin_values.certain), (bins, values, certain),
                strict=True
            )))  # fmt: skip
    return bin_values


def _told(
    low: float, high: float | None, cuts: NDArray[np.float64], single: NDArray[np.bool_]
) -> tuple[NDArray[np.float64], NDArray[np.bool_]]:
    if high is not None:
        return values_between(low, high, cuts, single)
    values = values_from(low, cuts)
    return values, np.zeros(len(values), np.bool_)


def extremes(mappers: BinMappers) -> Iterator[tuple[int, float]]:
    """Yield column and value of the smallest and the largest value of each used column.

    Values of 0 are left out, because they may represent a missing value.
    """
    for k in np.flatnonzero(mappers.used):
        for value in {float(mappers.low[k]), float(mappers.high[k])}:
            if abs(value) > ZERO:
                yield mappers.first + int(k), value


def values_told(mappers: Mapping[str, BinMappers]) -> Iterator[tuple[str, int, Values]]:
    """Yield machine, column and values of every used column with at least one value."""
    for owner, m in mappers.items():
        for k in np.flatnonzero(m.used).tolist():
            bin_values = values_of(m, k)
            if len(bin_values.values):
                yield owner, m.first + k, bin_values

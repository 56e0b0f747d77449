"""What LightGBM's machines told: values off the bins they found, and whose rows are in each bin."""

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
from fedtrees.trees.lightgbm.midpoints import ZERO, dealt, values_between, values_from

_MOST_ROWS = 1 << 17  # sums of float32 tell numbers of rows up to so many
_NEAR = 1e-5


@dataclass
class Told:
    """What was said before the second step of the first tree, by machine."""

    mappers: dict[str, BinMappers] = field(default_factory=dict)
    classes: dict[str, ClassRows] = field(default_factory=dict)
    starts: dict[str, OwnStart] = field(default_factory=dict)
    roots: dict[str, RootSums] = field(default_factory=dict)
    segments: list[HistogramSegment] = field(default_factory=list)

    @staticmethod
    def of(said: Iterable[tuple[str, Message]]) -> Told:
        """Keep what tells something, given with its sender."""
        told = Told()
        for sender, m in said:
            if isinstance(m, BinMappers):
                told.mappers[sender] = m
            elif isinstance(m, ClassRows):
                told.classes[sender] = m
            elif isinstance(m, OwnStart):
                told.starts[sender] = m
            elif isinstance(m, RootSums) and m.tree == 0:
                told.roots[sender] = m
            elif isinstance(m, HistogramSegment) and m.tree == m.level == 0:
                told.segments.append(m)
        return told

    @property
    def start(self) -> float | None:
        """The first probability, if the sums over the first root are those of the logistic loss."""
        if not self.classes or set(self.classes) != set(self.roots):
            return None
        rows = {name: c.positives + c.negatives for name, c in self.classes.items()}
        mean = sum(c.positives for c in self.classes.values()) / max(sum(rows.values()), 1)
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
        """The mean label of every machine, if sums over the first root are of squared errors."""
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
        """Of every column that is used, the machine whose rows its bins are of, and its place."""
        return {
            m.first + int(k): (owner, int(k))
            for owner, m in sorted(self.mappers.items(), key=lambda item: item[1].first)
            for k in np.flatnonzero(m.used)
        }

    @property
    def places(self) -> dict[int, int]:
        """The first number of every column in a histogram."""
        sent = {c: self.mappers[owner].sent(k) for c, (owner, k) in self.columns.items()}
        order = [c for own in dealt(sent, len(self.mappers)) for c in own]
        return dict(zip(order, accumulate((2 * sent[c] for c in order), initial=0), strict=False))


@dataclass(frozen=True)
class Bins:
    """The rows of one machine in the bins of one column.

    `rows`: int64 array, shape (b, 2). Rows and positives of each bin.
    `sure`: Whether the column is none that LightGBM bundles with others, where rows can be lost.
    """

    column: int
    rows: NDArray[np.int64]
    sure: bool


def bins_of(told: Told) -> Iterator[tuple[str, Bins]]:
    """Yield whose rows are in the bins of columns, where their own sums are seen or follow."""
    start, total = told.start, sum(r.rows for r in told.roots.values())
    if start is None or total >= _MOST_ROWS:
        return
    columns, places = told.columns, told.places
    full = all((m.sparse[m.used] < 0.5).all() for m in told.mappers.values())
    for owner, own in shares(told.segments).items():
        classes = told.classes[owner]
        for column, first in places.items():
            mappers, k = told.mappers[columns[column][0]], columns[column][1]
            part = own[first : first + 2 * mappers.sent(k)]
            if len(part) < 2 * mappers.sent(k) or np.isnan(part).any():
                continue
            rows = counts(part, start)
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
            most = 2 * (rows[:, 0].sum() - rows[often, 0]) > rows[:, 0].sum()
            yield owner, Bins(column, rows, bool(full and most))


@dataclass(frozen=True)
class Values:
    """Values that are in bins of a column, if each bin has one.

    `bins`: int64 array, shape (v,).
    `values`: float64 array, shape (v,).
    `certain`: bool array, shape (v,).
    """

    bins: NDArray[np.int64]
    values: NDArray[np.float64]
    certain: NDArray[np.bool_]


def values_of(mappers: BinMappers, k: int, rows: NDArray[np.int64] | None = None) -> Values:
    """Return the values that the bins of a column tell of whoever found them.

    `rows`: int64 array, shape (b,). Rows in each bin, where that is known.
    """
    none = np.zeros(0)
    found = Values(none.astype(np.int64), none, none.astype(np.bool_))
    if mappers.categorical[k]:
        return found
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
            found = Values(*(np.concatenate(pair) for pair in zip(
                (found.bins, found.values, found.certain), (bins, values, certain), strict=True
            )))  # fmt: skip
    return found


def _told(
    low: float, high: float | None, cuts: NDArray[np.float64], single: NDArray[np.bool_]
) -> tuple[NDArray[np.float64], NDArray[np.bool_]]:
    if high is not None:
        return values_between(low, high, cuts, single)
    values = values_from(low, cuts)
    return values, np.zeros(len(values), np.bool_)


def extremes(mappers: BinMappers) -> Iterator[tuple[int, float]]:
    """Yield column and value of what is least and greatest, but 0, which may be a missing one."""
    for k in np.flatnonzero(mappers.used):
        for value in {float(mappers.low[k]), float(mappers.high[k])}:
            if abs(value) > ZERO:
                yield mappers.first + int(k), value


def values_told(mappers: Mapping[str, BinMappers]) -> Iterator[tuple[str, int, Values]]:
    """Yield owner, column and values of every column that is used."""
    for owner, m in mappers.items():
        for k in np.flatnonzero(m.used).tolist():
            found = values_of(m, k)
            if len(found.values):
                yield owner, m.first + k, found

"""What somebody reads from the messages that were seen, without guessing."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from fedtrees.capture.records import Record
from fedtrees.capture.shares import WHOLE, counts, shares
from fedtrees.core.schema import Table
from fedtrees.messages.captured import (
    GradientTotals,
    HistogramSegment,
    LabelMean,
    RankedSketch,
)


@dataclass(frozen=True)
class Reading:
    """Some facts of one kind about one party.

    Attributes
    ----------
    what : str
    owner : str
    facts : tuple
        ``(column, value, rows, positives)`` each; None: that it does not tell.
    certain : bool
        Whether all of them follow from the bytes.
    """

    what: str
    owner: str
    facts: tuple[tuple[int | None, float | None, int | None, int | None], ...]
    certain: bool

    def wrong(self, truth: Table) -> int:
        """Return how many of the facts are not so."""
        return sum(not _holds(fact, truth) for fact in self.facts)


def _holds(fact: tuple[int | None, float | None, int | None, int | None], truth: Table) -> bool:
    column, value, rows, positives = fact
    there = np.ones(len(truth), dtype=bool)
    if column is not None:
        there = truth.X[:, column] == np.float32(value)
    labels = truth.y[there]
    return (rows is None or len(labels) == rows) and (
        positives is None or int((labels == 1).sum()) == positives
    )


def readings(seen: Iterable[Record], who: Sequence[str]) -> list[Reading]:
    """Return what follows from messages about everybody but those who read them."""
    sketches: dict[str, RankedSketch] = {}
    means: dict[str, LabelMean] = {}
    totals: dict[str, NDArray[np.float64]] = {}
    root: list[HistogramSegment] = []
    for record in seen:
        m = record.message
        if isinstance(m, RankedSketch):
            sketches[record.sender] = m
        elif isinstance(m, LabelMean):
            means[record.sender] = m
        elif isinstance(m, GradientTotals) and m.tree == 0:
            totals[record.sender] = m.sums
        elif isinstance(m, HistogramSegment) and m.tree == 0 and m.level == 0:
            root.append(m)
    start = _start(means, totals)
    return [
        *(r for name, m in means.items() if name not in who for r in _labels(name, m, start)),
        *(r for name, s in sketches.items() if name not in who for r in _columns(name, s)),
        *(() if start is None else _with_labels(sketches, shares(root), start, who)),
    ]


def _start(
    means: Mapping[str, LabelMean], totals: Mapping[str, NDArray[np.float64]]
) -> float | None:
    """Return the first probability, if labels are 0 and 1 and the loss is the logistic one."""
    rows = sum(m.rows for m in means.values())
    if not rows or not totals or not all(0 <= m.mean <= 1 for m in means.values()):
        return None
    sums = list(totals.values())
    same = all((s == sums[0]).all() for s in sums)
    G, H = sums[0] if same and len(means) == 2 else np.sum(sums, axis=0)
    positives = sum(round(m.rows * m.mean) for m in means.values())
    start = (G + positives) / rows
    if 0 < start < 1 and abs(H - rows * start * (1 - start)) < 1e-4 * H:
        return float(start)
    return None


def _labels(name: str, m: LabelMean, start: float | None) -> list[Reading]:
    positives = m.rows * m.mean
    # a share in float32 tells the number of rows up to so much
    sure = start is not None and abs(positives - round(positives)) < WHOLE and m.rows < 1 << 20
    found = [Reading("number of rows", name, ((None, None, m.rows, None),), True)]
    if sure:
        fact = (None, None, None, round(positives))
        found.append(Reading("number of positives", name, (fact,), True))
    return found


def _columns(name: str, sketch: RankedSketch) -> list[Reading]:
    found = []
    for f in range(len(sketch.low)):
        part = slice(sketch.offsets[f], sketch.offsets[f + 1])
        pairs = zip(sketch.points[part].tolist(), sketch.weights[part].tolist(), strict=True)
        if sketch.whole[f]:
            facts = tuple((f, value, rows, None) for value, rows in pairs)
            found.append(Reading("values of a column, each with its rows", name, facts, True))
    return found


def _with_labels(
    sketches: Mapping[str, RankedSketch],
    own: Mapping[str, NDArray[np.float64]],
    start: float,
    who: Sequence[str],
) -> list[Reading]:
    """Read labels off bins that one value alone is in."""
    values = _bins(sketches)
    if values is None:
        return []
    found = []
    for name, numbers in own.items():
        if name in who or name not in sketches or len(numbers) != 2 * len(values):
            continue
        told = counts(numbers, start)
        facts = []
        for (f, value), (rows, positives) in zip(values, told.tolist(), strict=True):
            if rows > 0 and rows == _rows_of(sketches[name], f, value):
                facts.append((f, value, rows, positives))
        if facts:
            found.append(Reading("values with the labels of their rows", name, tuple(facts), True))
    return found


def _bins(sketches: Mapping[str, RankedSketch]) -> list[tuple[int, float]] | None:
    """Return column and value of every bin, where all values have one of their own."""
    if not sketches or not all(s.whole.all() for s in sketches.values()):
        return None
    found: list[tuple[int, float]] = []
    for f in range(len(next(iter(sketches.values())).low)):
        every = [s.points[s.offsets[f] : s.offsets[f + 1]] for s in sketches.values()]
        found += [(f, value) for value in np.unique(np.concatenate(every)).tolist()]
    return found


def _rows_of(sketch: RankedSketch, f: int, value: float) -> int:
    part = slice(sketch.offsets[f], sketch.offsets[f + 1])
    at = np.searchsorted(sketch.points[part], np.float32(value))
    there = at < sketch.offsets[f + 1] - sketch.offsets[f] and sketch.points[part][at] == value
    return int(sketch.weights[part][at]) if there else 0

"""What somebody reads from the messages that were seen, without guessing."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from fedtrees.attacks.evidence.shares import WHOLE, counts, shares
from fedtrees.capture.operations import worker
from fedtrees.capture.records import Record
from fedtrees.core.schema import Table
from fedtrees.messages.captured import (
    BestSplits,
    GradientTotals,
    HistogramSegment,
    Intercept,
    LabelShare,
    RankedSketch,
    RowGradients,
)


@dataclass(frozen=True)
class Reading:
    """Some facts of one kind about one party.

    `facts`: ``(column, value, rows, positives)`` each; None: that it does not tell. Without a
    column, the value is the mean label.
    `certain`: Whether all of them follow from the bytes.
    """

    what: str
    owner: str
    facts: tuple[tuple[int | None, float | None, int | None, int | None], ...]
    certain: bool

    def wrong(self, truth: Table) -> int:
        """Return how many of the facts are not so."""
        return sum(not _holds(fact, truth) for fact in self.facts)


@dataclass(frozen=True)
class RowLabels(Reading):
    """Labels of all rows, in their order: the facts are as many, and tell nothing else."""

    labels: tuple[int, ...] = ()

    def wrong(self, truth: Table) -> int:
        """Return how many labels are not so."""
        if len(truth) != len(self.labels):
            return len(self.labels)
        return int((truth.y != np.array(self.labels)).sum())


def _holds(fact: tuple[int | None, float | None, int | None, int | None], truth: Table) -> bool:
    column, value, rows, positives = fact
    if column is None and value is not None:
        return bool(np.isclose(truth.y.mean(), value, rtol=1e-6))
    there = np.ones(len(truth), dtype=bool)
    if column is not None:
        there = truth.X[:, column] == np.float32(value)
        if rows is None:  # a value that somebody has, no more
            return bool(there.any())
    labels = truth.y[there]
    return (rows is None or len(labels) == rows) and (
        positives is None or int((labels == 1).sum()) == positives
    )


def readings(seen: Iterable[Record], who: Sequence[str]) -> list[Reading]:
    """Return what follows from messages about everybody but those who read them."""
    sketches: dict[str, RankedSketch] = {}
    means: dict[str, LabelShare] = {}
    intercept, roots = None, dict[frozenset[str], NDArray[np.float64]]()
    segments: list[HistogramSegment] = []
    cuts: dict[str, set[tuple[int, float]]] = {}
    labels: tuple[int, ...] = ()
    for record in seen:
        m = record.message
        if isinstance(m, RankedSketch):
            sketches[m.owner or record.sender] = m
        elif isinstance(m, LabelShare):
            means[record.sender] = m
        elif isinstance(m, Intercept):
            intercept = m.value
        elif isinstance(m, GradientTotals) and m.tree == 0:
            roots[frozenset(m.parties.split(","))] = m.sums
        elif isinstance(m, HistogramSegment) and m.tree == 0 and m.level == 0:
            segments.append(m)
        elif isinstance(m, RowGradients) and m.round == 0:
            labels = _row_labels(m)
        elif isinstance(m, BestSplits) and m.owner not in who:
            cuts.setdefault(m.owner, set()).update(_thresholds(m))
    start = _start(intercept, means, sketches, roots)
    rows = sum(m.rows for m in means.values()) if set(sketches) <= set(means) else 0
    found: list[Reading] = []
    if labels and worker(0) not in who:
        facts = ((None, None, None, None),) * len(labels)
        found.append(RowLabels("labels of rows, in their order", worker(0), facts, True, labels))
    for owner, pairs in cuts.items():
        facts = tuple((f, value, None, None) for f, value in sorted(pairs))
        found.append(Reading("thresholds that are values of the party", owner, facts, False))
    for name in (name for name in sketches if name not in who):
        found += _counts(name, means.get(name), rows, roots.get(frozenset([name])), start)
        found += _columns(name, sketches[name])
    if start is not None:
        found += _with_labels(sketches, shares(segments), start, who)
    return found


def _start(
    intercept: float | None,
    means: Mapping[str, LabelShare],
    sketches: Mapping[str, RankedSketch],
    roots: Mapping[frozenset[str], NDArray[np.float64]],
) -> float | None:
    """Return the first probability, if hessians over the root are those of the logistic loss.

    Where it is not told it may be 1/2, which the hessians then say.
    """
    start = 0.5 if intercept is None else intercept
    if not 0 < start < 1 or not roots:
        return None
    for whose, (_, hessian) in roots.items():
        if not whose <= set(sketches):
            return None
        rows = 0
        for name in whose:  # columns without missing values tell it as well
            told = max(map(int, _sizes(sketches[name])), default=0)
            rows += means[name].rows if name in means else told
        expected = rows * start * (1 - start)
        if not abs(hessian - expected) < 1e-5 * expected:
            return None
    return start


def _sizes(sketch: RankedSketch) -> Iterator[int]:
    for begin, end in pairwise(sketch.offsets):
        yield sketch.weights[begin:end].sum()


def _counts(
    name: str,
    told: LabelShare | None,
    rows: int,
    root: NDArray[np.float64] | None,
    start: float | None,
) -> Iterator[Reading]:
    """Read numbers of rows and of positives, off label shares or the sums over a first root.

    `rows`: Of all parties, 0 if not known.
    """
    own = told.rows if told is not None else None
    positives = told.share * rows if told is not None and rows else np.nan
    if start is not None and root is not None:
        own = own or round(root[1] / (start * (1 - start)))
        positives = own * start - root[0]
    if own is not None:
        yield Reading("number of rows", name, ((None, None, own, None),), True)
    # sums of float32 tell it up to so many rows
    sure = start is not None and abs(positives - np.rint(positives)) < WHOLE and rows < 1 << 17
    if sure and own is not None and 0 <= round(positives) <= own:
        yield Reading("number of positives", name, ((None, None, None, round(positives)),), True)


def _row_labels(m: RowGradients) -> tuple[int, ...]:
    """Return the labels of all rows, if there are two gradients, 1 apart; () if not."""
    values = np.unique(m.g)
    if len(values) != 2 or abs(values[1] - values[0] - 1) > 1e-6:
        return ()
    return tuple((m.g < 0).astype(int).tolist())


def _thresholds(m: BestSplits) -> Iterator[tuple[int, float]]:
    """Yield the party's column and threshold of splits that gain anything."""
    for feature, value, gain in zip(m.feature, m.threshold, m.gain, strict=True):
        if gain > 0 and m.first <= feature < m.first + m.columns:
            yield int(feature) - m.first, float(value)


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
    others = {name: n for name, n in own.items() if name not in who and name in sketches}
    total = max((len(n) // 2 for n in others.values()), default=0)
    told = {name: counts(n, start) for name, n in others.items() if len(n) == 2 * total}
    for bins in _bins(sketches, total):
        alone = np.array([value is not None for _, value in bins])
        held = {name: np.array([_rows_of(sketches[name], f, v) for f, v in bins]) for name in told}
        seen = {name: alone & ~np.isnan(others[name].reshape(-1, 2)).any(axis=1) for name in told}
        if any((told[k][seen[k], 0] != held[k][seen[k]]).any() for k in told):
            continue  # other bins; or of another loss, or of a sample of the rows
        found = []
        for name in told:
            facts = tuple(
                (*bins[b], *told[name][b].tolist())
                for b in np.flatnonzero(seen[name] & (held[name] > 0))
            )
            if facts:
                found.append(Reading("values with the labels of their rows", name, facts, True))
        return found
    return []


def _bins(
    sketches: Mapping[str, RankedSketch], total: int
) -> Iterator[list[tuple[int, float | None]]]:
    """Yield what so many bins may be: column, and value where it has the bin for itself.

    Columns with more values than bins are allowed have as many bins, all of them: these with most.
    """
    if not sketches or not total or not all(s.whole.all() for s in sketches.values()):
        return
    values = []
    for f in range(len(next(iter(sketches.values())).low)):
        every = [s.points[s.offsets[f] : s.offsets[f + 1]] for s in sketches.values()]
        values.append(np.unique(np.concatenate(every)))
    sizes = np.array([len(v) for v in values])
    for shared in range(len(sizes)):
        largest = set(np.argsort(-sizes, kind="stable")[:shared].tolist())
        left = total - sum(n for f, n in enumerate(sizes.tolist()) if f not in largest)
        if left < 0 or (left % shared if shared else left):
            continue
        each = left // max(shared, 1)
        if any(not 0 < each < sizes[f] for f in largest):
            continue
        yield [
            (f, value)
            for f, own in enumerate(values)
            for value in ([None] * each if f in largest else own.tolist())
        ]


def _rows_of(sketch: RankedSketch, f: int, value: float | None) -> int:
    if value is None:
        return 0
    part = slice(sketch.offsets[f], sketch.offsets[f + 1])
    at = np.searchsorted(sketch.points[part], np.float32(value))
    there = at < sketch.offsets[f + 1] - sketch.offsets[f] and sketch.points[part][at] == value
    return int(sketch.weights[part][at]) if there else 0

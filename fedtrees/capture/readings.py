"""Facts that follow from captured messages without an attack, and promises that are not kept.

For example, the sketch of a column with few distinct values contains each value together with its
number of rows. Each fact can be compared with the true rows.

The messages of LightGBM's machines have separate functions. The module also compares the promises
of a framework with a capture, and reports the promises that are not kept.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from fedtrees.attacks.observations.lightgbm import (
    WHOLE,
    LightGBMTranscript,
    bins_of,
    counts,
    extremes,
    shares,
    values_of,
    values_told,
)
from fedtrees.audit import Audit
from fedtrees.capture.collective import worker
from fedtrees.capture.records import Record, Run
from fedtrees.core.schema import Table
from fedtrees.messages.captured import (
    BestSplits,
    CollectiveCall,
    GradientTotals,
    HistogramSegment,
    Intercept,
    LabelShare,
    RankedSketch,
    RowGradients,
)
from fedtrees.messages.lightgbm import BinMappers


@dataclass(frozen=True)
class Reading:
    """Facts of one kind about one party.

    Attributes
    ----------
    what : str
        Description of the facts.
    owner : str
        The party that the facts are about.
    facts : tuple of (column, value, rows, positives)
        An entry is None if the fact does not contain it. Without a column, the value is the mean
        label.
    certain : bool
        Whether all facts follow from the bytes with certainty.
    """

    what: str
    owner: str
    facts: tuple[tuple[int | None, float | None, int | None, int | None], ...]
    certain: bool

    def wrong(self, truth: Table) -> int:
        """Return the number of facts that are not true."""
        return sum(not _holds(fact, truth) for fact in self.facts)


@dataclass(frozen=True)
class RowLabels(Reading):
    """Labels of all rows, in their order. There is one empty fact per row."""

    labels: tuple[int, ...] = ()

    def wrong(self, truth: Table) -> int:
        """Return the number of wrong labels."""
        if len(truth) != len(self.labels):
            return len(self.labels)
        return int((truth.y != np.array(self.labels)).sum())


def _holds(fact: tuple[int | None, float | None, int | None, int | None], truth: Table) -> bool:
    """Return whether a fact is true."""
    column, value, rows, positives = fact
    if column is None and value is not None:
        return bool(np.isclose(truth.y.mean(), value, rtol=1e-6))
    selected = np.ones(len(truth), dtype=bool)
    if column is not None:
        selected = truth.X[:, column] == np.float32(value)
        if rows is None:  # the fact only states that some row has this value
            return bool(selected.any())
    labels = truth.y[selected]
    return (rows is None or len(labels) == rows) and (
        positives is None or int((labels == 1).sum()) == positives
    )


def readings(seen: Iterable[Record], who: Sequence[str]) -> list[Reading]:
    """Return the facts that follow from messages about all parties except their readers."""
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
    result: list[Reading] = []
    if labels and worker(0) not in who:
        facts = ((None, None, None, None),) * len(labels)
        result.append(RowLabels("labels of rows, in their order", worker(0), facts, True, labels))
    for owner, pairs in cuts.items():
        facts = tuple((f, value, None, None) for f, value in sorted(pairs))
        result.append(Reading("thresholds that are values of the party", owner, facts, False))
    for name in (name for name in sketches if name not in who):
        result += _counts(name, means.get(name), rows, roots.get(frozenset([name])), start)
        result += _columns(name, sketches[name])
    if start is not None:
        result += _with_labels(sketches, shares(segments), start, who)
    return result


def _start(
    intercept: float | None,
    means: Mapping[str, LabelShare],
    sketches: Mapping[str, RankedSketch],
    roots: Mapping[frozenset[str], NDArray[np.float64]],
) -> float | None:
    """Return the initial probability, None unless the root hessians agree with the logistic loss.

    If no intercept was sent, the probability may be 1/2, which the hessians confirm or refute.
    """
    start = 0.5 if intercept is None else intercept
    if not 0 < start < 1 or not roots:
        return None
    for whose, (_, hessian) in roots.items():
        if not whose <= set(sketches):
            return None
        rows = 0
        for name in whose:  # a column without missing values also reveals the number of rows
            fullest = max(map(int, _sizes(sketches[name])), default=0)
            rows += means[name].rows if name in means else fullest
        expected = rows * start * (1 - start)
        if not abs(hessian - expected) < 1e-5 * expected:
            return None
    return start


def _sizes(sketch: RankedSketch) -> Iterator[int]:
    """Yield the number of rows in each column of a sketch."""
    for begin, end in pairwise(sketch.offsets):
        yield sketch.weights[begin:end].sum()


def _counts(
    name: str,
    label_share: LabelShare | None,
    rows: int,
    root: NDArray[np.float64] | None,
    start: float | None,
) -> Iterator[Reading]:
    """Yield the numbers of rows and of positives of a party.

    They follow from label shares, or from the sums of a first root. `rows` is the number of rows of
    all parties, 0 if it is not known.
    """
    n_rows = label_share.rows if label_share is not None else None
    positives = label_share.share * rows if label_share is not None and rows else np.nan
    if start is not None and root is not None:
        # In the first tree, all rows have the same prediction p. The sum of hessians is then
        # N p (1 - p), and the sum of gradients is N p - N1.
        n_rows = n_rows or round(root[1] / (start * (1 - start)))
        positives = n_rows * start - root[0]
    if n_rows is not None:
        yield Reading("number of rows", name, ((None, None, n_rows, None),), True)
    # Up to 2^17 rows, float32 sums are precise enough to determine the number of positives.
    sure = start is not None and abs(positives - np.rint(positives)) < WHOLE and rows < 1 << 17
    if sure and n_rows is not None and 0 <= round(positives) <= n_rows:
        yield Reading("number of positives", name, ((None, None, None, round(positives)),), True)


def _row_labels(m: RowGradients) -> tuple[int, ...]:
    """Return the labels of all rows, empty unless there are two gradients with difference 1."""
    # A gradient of the logistic loss is p - y. In the first round p is the same for all rows.
    values = np.unique(m.g)
    if len(values) != 2 or abs(values[1] - values[0] - 1) > 1e-6:
        return ()
    return tuple((m.g < 0).astype(int).tolist())


def _thresholds(m: BestSplits) -> Iterator[tuple[int, float]]:
    """Yield column and threshold of a party's splits with a positive gain."""
    for feature, value, gain in zip(m.feature, m.threshold, m.gain, strict=True):
        if gain > 0 and m.first <= feature < m.first + m.columns:
            yield int(feature) - m.first, float(value)


def _columns(name: str, sketch: RankedSketch) -> list[Reading]:
    """Return the values of each column whose sketch contains all of them."""
    result = []
    for f in range(len(sketch.low)):
        part = slice(sketch.offsets[f], sketch.offsets[f + 1])
        pairs = zip(sketch.points[part].tolist(), sketch.weights[part].tolist(), strict=True)
        if sketch.whole[f]:
            facts = tuple((f, value, rows, None) for value, rows in pairs)
            result.append(Reading("values of a column, each with its rows", name, facts, True))
    return result


def _with_labels(
    sketches: Mapping[str, RankedSketch],
    histograms: Mapping[str, NDArray[np.float64]],
    start: float,
    who: Sequence[str],
) -> list[Reading]:
    """Return the labels of the rows in bins that contain exactly one value."""
    victims = {name: n for name, n in histograms.items() if name not in who and name in sketches}
    total = max((len(n) // 2 for n in victims.values()), default=0)
    label_counts = {name: counts(n, start) for name, n in victims.items() if len(n) == 2 * total}
    for bins in _bins(sketches, total):
        single_valued = np.array([value is not None for _, value in bins])
        rows_in_bins = {
            name: np.array([_count_rows(sketches[name], f, v) for f, v in bins])
            for name in label_counts
        }
        seen = {
            name: single_valued & ~np.isnan(victims[name].reshape(-1, 2)).any(axis=1)
            for name in label_counts
        }
        # The sketches also give the rows of each value. If they disagree with the histogram, the
        # assumed meaning of the bins is wrong.
        if any(
            (label_counts[k][seen[k], 0] != rows_in_bins[k][seen[k]]).any() for k in label_counts
        ):
            continue  # the bins, the loss or the rows are not those that were assumed
        result = []
        for name in label_counts:
            facts = tuple(
                (*bins[b], *label_counts[name][b].tolist())
                for b in np.flatnonzero(seen[name] & (rows_in_bins[name] > 0))
            )
            if facts:
                result.append(Reading("values with the labels of their rows", name, facts, True))
        return result
    return []


def _bins(
    sketches: Mapping[str, RankedSketch], total: int
) -> Iterator[list[tuple[int, float | None]]]:
    """Yield the possible meanings of `total` bins.

    The meaning of a bin is its column, and its value if it has only one. Columns with more values
    than the allowed number of bins have exactly this number of bins. They are the columns with the
    most values.
    """
    if not sketches or not total or not all(s.whole.all() for s in sketches.values()):
        return
    values = []
    for f in range(len(next(iter(sketches.values())).low)):
        every = [s.points[s.offsets[f] : s.offsets[f + 1]] for s in sketches.values()]
        values.append(np.unique(np.concatenate(every)))
    sizes = np.array([len(v) for v in values])
    # `shared` is the tried number of columns that have more values than bins.
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
            for f, column_values in enumerate(values)
            for value in ([None] * each if f in largest else column_values.tolist())
        ]


def _count_rows(sketch: RankedSketch, f: int, value: float | None) -> int:
    """Return the number of rows with a value in a column of a sketch."""
    if value is None:
        return 0
    part = slice(sketch.offsets[f], sketch.offsets[f + 1])
    at = np.searchsorted(sketch.points[part], np.float32(value))
    present = at < sketch.offsets[f + 1] - sketch.offsets[f] and sketch.points[part][at] == value
    return int(sketch.weights[part][at]) if present else 0


def machine_readings(seen: Iterable[Record], who: Sequence[str]) -> Iterator[Reading]:
    """Yield the facts that follow from messages about all parties except their readers."""
    evidence = LightGBMTranscript.of((r.sender, r.message) for r in seen)
    for name, root in evidence.roots.items():
        if (
            name not in who and name not in evidence.classes
        ):  # not certain, the rows may be a sample
            yield Reading("number of rows", name, ((None, None, root.rows, None),), False)
    for name, c in evidence.classes.items():
        if name not in who:
            rows = c.positives + c.negatives
            yield Reading("number of rows", name, ((None, None, rows, None),), True)
            yield Reading("number of positives", name, ((None, None, None, c.positives),), True)
    for name, mean in evidence.mean_labels.items():
        if name not in who:
            yield Reading("mean label", name, ((None, mean, None, None),), True)
    for name, mappers in evidence.mappers.items():
        ends = tuple((f, value, None, None) for f, value in extremes(mappers))
        if ends and name not in who:
            yield Reading("least and greatest values", name, ends, True)
    for name, column, column_values in values_told(evidence.mappers):
        if name not in who:
            facts = tuple((column, float(v), None, None) for v in column_values.values)
            yield Reading("values off the bins of a column", name, facts, False)
    yield from _machines_with_labels(evidence, who)


def _machines_with_labels(evidence: LightGBMTranscript, who: Sequence[str]) -> Iterator[Reading]:
    """Yield the values of columns together with the labels of their rows."""
    for name, bins in bins_of(evidence):
        owner, k = evidence.columns[bins.column]
        if name in who or name != owner:
            continue
        column_values = values_of(evidence.mappers[owner], k, bins.rows[:, 0])
        if not len(column_values.values):
            continue
        labelled_rows = bins.rows[column_values.bins]
        sure = column_values.certain & bins.sure
        for certain in (True, False):
            facts = tuple(
                (bins.column, float(v), *map(int, rows))
                for v, rows in zip(
                    column_values.values[sure == certain],
                    labelled_rows[sure == certain],
                    strict=True,
                )
            )
            if facts:
                yield Reading("values with the labels of their rows", name, facts, certain)


def promises(
    run: Run, raw: Iterable[Record], records: list[Record], who: str, models: Audit | None
) -> Iterator[str]:
    """Yield each promise that the capture contradicts, as a sentence.

    Parameters
    ----------
    run : Run
        Information about the run.
    raw : iterable of Record
        The records as they were captured.
    records : list of Record
        The decoded messages that the observer saw.
    who : str
        The observer.
    models : Audit or None
        Audit of all trees that were shared with the observer.

    Yields
    ------
    sentence : str
    """
    if not run.wire:
        yield "nothing is known of promises: messages were handed over by the framework itself"
        return
    if run.wire in ("rabit", "xgboost", "lightgbm"):
        yield "encryption on the way: everything here was read as it crossed, in plain text"
    if run.wire == "xgboost":
        yield (
            "only parties take part: without certificates, whoever reaches the server is the rank "
            "that it names"
        )
    if run.details.get("secure"):
        calls = [r.message.sealed for r in raw if isinstance(r.message, CollectiveCall)]
        if calls and sum(calls) < len(calls):
            yield (
                f"secure training encrypts: {sum(calls):,} of {len(calls):,} messages are encrypted"
            )
    if models is not None and models.restored:
        yield (
            "sums of hessians are masked: weights and gains of the same splits give every one of "
            "them back"
        )
    yield from _not_summed(records, who)


def _not_summed(records: list[Record], who: str) -> Iterator[str]:
    """Yield the promises about sums and local rows that the messages contradict."""
    received = [r.message for r in records if r.sender != who]
    single_party = [m for m in received if isinstance(m, HistogramSegment) and "," not in m.parties]
    if single_party:
        numbers = sum(len(m.sums) for m in single_party)
        yield (
            f"only sums over all parties are shared: {numbers:,} numbers of the first tree's "
            "histograms are of one party alone"
        )
    if rows := next((len(m.g) for m in received if isinstance(m, RowGradients)), 0):
        yield f"labels stay with who has them: gradients of all {rows:,} rows cross, one by one"
    mappers = [m for m in received if isinstance(m, BinMappers)]
    if mappers:
        columns = sum(int(m.used.sum()) for m in mappers)
        yield f"rows stay where they are: {columns:,} columns have bins made of one machine's rows"
    sketches = [m for m in received if isinstance(m, RankedSketch)]
    if sketches:
        complete = sum(int(s.whole.sum()) for s in sketches)
        columns = sum(len(s.whole) for s in sketches)
        yield f"rows stay where they are: {complete:,} of {columns:,} columns cross value by value"

"""What LightGBM's machines reveal: bins of columns, the model, and histogram sums.

The machines bin disjoint columns each, announce the splits that they find, and exchange partial
sums. `LightGBMTranscript` collects the messages about bins, `machines_model` rebuilds the model
from the announced splits, and `shares` adds the segments of a reduction up to sums of one machine.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import accumulate, pairwise, permutations
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from fedtrees.core.messages import Message
from fedtrees.core.view import View
from fedtrees.messages.captured import HistogramSegment
from fedtrees.messages.lightgbm import BinMappers, ClassRows, FoundSplits, OwnStart, RootSums
from fedtrees.trees.boosted.forest import Forest, Tree
from fedtrees.trees.boosted.losses import objective_of
from fedtrees.trees.lightgbm.bins import ZERO, Mapper, dealt, values_between, values_from
from fedtrees.trees.lightgbm.growing import LeafTotals, LeafWiseGrower, Split


@dataclass(frozen=True, eq=False)
class BinnedColumn:
    """Bins of a column, and their position in histograms (None: the column is not used)."""

    mapper: Mapper
    first: int | None


class TreeObserver(Protocol):
    """Follows a tree that is grown again from the announced splits."""

    def see_children(self, step: int, nodes: Sequence[int]) -> bool:
        """Return whether the messages about the two newest nodes are complete."""

    def see_split(self, node: int, split: Split, left: int, right: int) -> None:
        """Distribute the rows of a node to its children."""


def machines_model(view: View) -> Forest | None:
    """Return the model that follows from the splits of all machines.

    None is returned if the splits of a machine are not visible, or if the view comes from a capture
    without the parameter ``num_leaves``.
    """
    if "num_leaves" not in view.parameters:
        return None
    kinds = (BinMappers, OwnStart, RootSums, FoundSplits)
    readable = ((item.sender, m) for kind in kinds for item, m in view.messages(kind))
    messages = LightGBMTranscript.of(readable)
    machines = [*view.roles.values()].count("client")
    by_step = (*messages.tree_roots.values(), *messages.splits.values())
    if not messages.starts or not all(len(of_step) == machines for of_step in by_step):
        return None
    columns = messages.binned_columns(len(view.schema.features))
    grown = (messages.grow_tree(view, t, columns) for t in sorted(messages.tree_roots))
    trees = tuple(tree for _, tree in filter(None, grown) if len(tree) > 1)
    objective = objective_of(view.parameters.get("objective"), view.schema.classes)
    mean = np.mean([m.score for m in messages.starts.values()])
    return Forest(trees, np.array([mean], np.float32), objective)


#: Largest distance of counts of rows and positives from integers, in rows.
WHOLE = 0.02


def shares(segments: Iterable[HistogramSegment]) -> dict[str, NDArray[np.float64]]:
    """Return each worker's numbers in one histogram, NaN where they cannot be determined.

    The observed messages contain sums over some of the workers. If the workers of one sum are those
    of another plus one, the difference is the contribution of this one worker.
    """
    segments = list(segments)
    ends = sorted({e for one in segments for e in (one.first, one.first + len(one.sums))})
    seen: dict[int, dict[frozenset[str], NDArray[np.float64]]] = defaultdict(dict)
    for one in segments:
        whose, parts = frozenset(one.parties.split(",")), [e for e in ends if e >= one.first]
        for first, end in pairwise(parts):
            if end <= one.first + len(one.sums):
                seen[first][whose] = one.sums[first - one.first : end - one.first]
    contributions: dict[str, NDArray[np.float64]] = {}
    for first, sums in seen.items():
        part = {frozenset[str](): np.zeros(1), **sums}
        for less, more in permutations(sorted(part, key=len), 2):
            if less < more and len(more - less) == 1:
                (worker,) = more - less
                worker_sums = contributions.setdefault(worker, np.full(ends[-1], np.nan))
                span = slice(first, first + len(part[more]))
                if np.isnan(worker_sums[span]).any():
                    worker_sums[span] = part[more] - part[less]
    return contributions


def counts(bin_sums: NDArray[np.float64], start: float) -> NDArray[np.int64]:
    """Return rows and positives of every bin of the root of the first tree.

    The gradient of every row is then `start` less its label, and its hessian start (1 - start).

    Parameters
    ----------
    bin_sums : float64 array, shape (2 bins,)
        Gradient and hessian sums of each bin, NaN where they are not known.
    start : float
        Initial probability.

    Returns
    -------
    int64 array, shape (bins, 2)
        -1 where the sums are not known or do not give integers.
    """
    g, h = bin_sums.reshape(-1, 2).T
    with np.errstate(over="ignore", invalid="ignore"):  # of sums that were garbled
        rows = h / (start * (1 - start))
        positives = rows * start - g
        solved = np.stack([rows, positives], axis=1)
        # unknown sums become -1, which is rejected below
        near = np.rint(np.nan_to_num(solved, nan=-1.0))
        sure = (np.abs(solved - near) < WHOLE).all(axis=1)
    sure &= (near[:, 1] >= 0) & (near[:, 1] <= near[:, 0]) & (near[:, 0] < 1 << 40)
    return np.where(sure[:, None], near, -1).astype(np.int64)


_MOST_ROWS = 1 << 17  # float32 sums determine numbers of rows up to this one
_NEAR = 1e-5


@dataclass
class LightGBMTranscript:
    """Messages about bins, roots, splits and histograms.

    Attributes
    ----------
    mappers : dict of str to BinMappers
        Bins of the columns that each machine is responsible for.
    classes : dict of str to ClassRows
        Number of rows of each class.
    starts : dict of str to OwnStart
        Initial score of each machine.
    tree_roots : dict of int to dict of str to RootSums
        Sums over the root, by tree and machine.
    splits : dict of (int, int) to list of FoundSplits
        Announced splits, by tree and step.
    tree_segments : dict of (int, int) to list of HistogramSegment
        Parts of histograms, by tree and step.
    """

    mappers: dict[str, BinMappers] = field(default_factory=dict)
    classes: dict[str, ClassRows] = field(default_factory=dict)
    starts: dict[str, OwnStart] = field(default_factory=dict)
    tree_roots: dict[int, dict[str, RootSums]] = field(default_factory=lambda: defaultdict(dict))
    splits: dict[tuple[int, int], list[FoundSplits]] = field(
        default_factory=lambda: defaultdict(list)
    )
    tree_segments: dict[tuple[int, int], list[HistogramSegment]] = field(
        default_factory=lambda: defaultdict(list)
    )

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
            elif isinstance(m, RootSums):
                messages.tree_roots[m.tree][sender] = m
            elif isinstance(m, FoundSplits):
                messages.splits[m.tree, m.step].append(m)
            elif isinstance(m, HistogramSegment):
                messages.tree_segments[m.tree, m.level].append(m)
        return messages

    @property
    def roots(self) -> dict[str, RootSums]:
        """Sums over the root of the first tree, by machine."""
        return self.tree_roots.get(0, {})

    @property
    def segments(self) -> list[HistogramSegment]:
        """Parts of the first histogram."""
        return self.tree_segments.get((0, 0), [])

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
            size = float(root.rows * (abs(mean) + abs(self.starts[name].score)))
            scale = _NEAR * max(size, 1e-9)
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

    def binned_columns(self, d: int) -> list[BinnedColumn]:
        """Return the bins of all d columns."""
        unused = Mapper(np.array([np.inf]), 0.0, 0.0, False, 0, 1.0)
        columns, places = [BinnedColumn(unused, None)] * d, self.places
        for c, (owner, k) in self.columns.items():
            m = self.mappers[owner]
            low, high, sparse = float(m.low[k]), float(m.high[k]), float(m.sparse[k])
            mapper = Mapper(m.bins(k), low, high, True, int(m.frequent[k]), sparse)
            columns[c] = BinnedColumn(mapper, places[c])
        return columns

    def grow_tree(
        self,
        view: View,
        tree: int,
        columns: Sequence[BinnedColumn],
        observer: TreeObserver | None = None,
    ) -> tuple[LeafWiseGrower, Tree] | None:
        """Grow a tree from the announced splits, as the machines do.

        Parameters
        ----------
        view : View
            Parameters of the training.
        tree : int
            Number of the tree.
        columns : sequence of BinnedColumn
            Bins of all columns.
        observer : TreeObserver, optional
            Follows the growth.

        Returns
        -------
        tuple (LeafWiseGrower, Tree) or None
            None if the observer misses messages.
        """
        p, roots = view.parameters, self.tree_roots[tree].values()
        gradient, hessian = sum(r.gradient for r in roots), sum(r.hessian for r in roots)
        totals = LeafTotals(gradient, hessian, sum(r.rows for r in roots))
        growing, step, pair = LeafWiseGrower(np.zeros(0, dtype=np.intp), totals), 0, (0, -1)
        for _ in range(p["num_leaves"] - 1):
            # machines only search splits for leaves that may be split, which defines the step
            if growing.worth(pair, p["min_data_in_leaf"], p["max_depth"]):
                messages, pair = self.splits.get((tree, step), []), growing.ordered(pair)
                nodes = [growing.leaves[k].node for k in pair if k >= 0]
                if observer is not None and (
                    len(messages) < len(roots) or not observer.see_children(step, nodes)
                ):
                    return None
                growing.settle(pair, [m.splits for m in sorted(messages, key=lambda m: m.rank)])
                step += 1
            chosen = growing.best()
            if chosen is None:
                break
            leaf = growing.leaves[chosen]
            assert leaf.best is not None
            mapper = columns[leaf.best.feature].mapper
            pair = growing.split(chosen, np.zeros(0, np.int64), mapper)
            if observer is not None:
                children = (growing.leaves[k].node for k in pair)
                observer.see_split(leaf.node, leaf.best, *children)
        used: Mapping[int, Any] = dict(enumerate(columns))
        values = growing.values(p["reg_lambda"], p["learning_rate"])
        return growing, growing.tree(used, values)


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
        parts.append((span, _values_of_span(low, end, bounds[:below], single[span])))
    if high > ZERO and above < len(bounds):
        span, end = slice(above, len(bounds)), low if low > ZERO else None
        values, certain = _values_of_span(
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


def _values_of_span(
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


def values_of_columns(mappers: Mapping[str, BinMappers]) -> Iterator[tuple[str, int, Values]]:
    """Yield machine, column and values of every used column with at least one value."""
    for owner, m in mappers.items():
        for k in np.flatnonzero(m.used).tolist():
            bin_values = values_of(m, k)
            if len(bin_values.values):
                yield owner, m.first + k, bin_values

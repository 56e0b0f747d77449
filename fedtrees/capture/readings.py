"""Facts that follow from captured messages without an attack, and promises that are not kept."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import NamedTuple

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
    values_of_columns,
)
from fedtrees.capture.collective import worker
from fedtrees.capture.models import ModelExchange, SharedModel, joined, trees_of
from fedtrees.capture.records import Record, Run
from fedtrees.capture.xgboost_training import SERVER
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
from fedtrees.model_audit import Audit, Known, audit
from fedtrees.model_audit.exposure import TreeExposure
from fedtrees.model_audit.model import ModelFile
from fedtrees.trees.boosted.forest import Tree
from fedtrees.trees.routing import Routes


class Fact(NamedTuple):
    """One fact about the rows of a party. An entry is None if the fact does not contain it.

    Without a column, the value is the mean label.
    """

    column: int | None = None
    value: float | None = None
    rows: int | None = None
    positives: int | None = None


@dataclass(frozen=True)
class RevealedFacts:
    """Facts of one kind about one party.

    Attributes
    ----------
    what : str
        Description of the facts.
    owner : str
        The party that the facts are about.
    facts : tuple of Fact
        The facts.
    certain : bool
        Whether all facts follow from the bytes with certainty.
    """

    what: str
    owner: str
    facts: tuple[Fact, ...]
    certain: bool

    def wrong(self, truth: Table) -> int:
        """Return the number of facts that are not true."""
        return sum(not _holds(fact, truth) for fact in self.facts)


@dataclass(frozen=True)
class RowLabels(RevealedFacts):
    """Labels of all rows, in their order. There is one empty fact per row."""

    labels: tuple[int, ...] = ()

    def wrong(self, truth: Table) -> int:
        """Return the number of wrong labels."""
        if len(truth) != len(self.labels):
            return len(self.labels)
        return int((truth.y != np.array(self.labels)).sum())


def _holds(fact: Fact, truth: Table) -> bool:
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


def readings(seen: Iterable[Record], who: Sequence[str]) -> list[RevealedFacts]:
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
    result: list[RevealedFacts] = []
    if labels and worker(0) not in who:
        facts = (Fact(),) * len(labels)
        result.append(RowLabels("labels of rows, in their order", worker(0), facts, True, labels))
    for owner, pairs in cuts.items():
        facts = tuple(Fact(f, value) for f, value in sorted(pairs))
        result.append(RevealedFacts("thresholds that are values of the party", owner, facts, False))
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
        yield int(sketch.weights[begin:end].sum())


def _counts(
    name: str,
    label_share: LabelShare | None,
    rows: int,
    root: NDArray[np.float64] | None,
    start: float | None,
) -> Iterator[RevealedFacts]:
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
        yield RevealedFacts("number of rows", name, (Fact(rows=n_rows),), True)
    # Up to 2^17 rows, float32 sums are precise enough to determine the number of positives.
    sure = start is not None and abs(positives - np.rint(positives)) < WHOLE and rows < 1 << 17
    if sure and n_rows is not None and 0 <= round(positives) <= n_rows:
        yield RevealedFacts("number of positives", name, (Fact(positives=round(positives)),), True)


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


def _columns(name: str, sketch: RankedSketch) -> list[RevealedFacts]:
    """Return the values of each column whose sketch contains all of them."""
    result = []
    for f in range(len(sketch.low)):
        part = slice(sketch.offsets[f], sketch.offsets[f + 1])
        pairs = zip(sketch.points[part].tolist(), sketch.weights[part].tolist(), strict=True)
        if sketch.whole[f]:
            facts = tuple(Fact(f, value, rows) for value, rows in pairs)
            result.append(
                RevealedFacts("values of a column, each with its rows", name, facts, True)
            )
    return result


def _with_labels(
    sketches: Mapping[str, RankedSketch],
    histograms: Mapping[str, NDArray[np.float64]],
    start: float,
    who: Sequence[str],
) -> list[RevealedFacts]:
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
                Fact(*bins[b], *label_counts[name][b].tolist())
                for b in np.flatnonzero(seen[name] & (rows_in_bins[name] > 0))
            )
            if facts:
                result.append(
                    RevealedFacts("values with the labels of their rows", name, facts, True)
                )
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


def machine_readings(seen: Iterable[Record], who: Sequence[str]) -> Iterator[RevealedFacts]:
    """Yield the facts that follow from messages about all parties except their readers."""
    evidence = LightGBMTranscript.of((r.sender, r.message) for r in seen)
    for name, root in evidence.roots.items():
        if (
            name not in who and name not in evidence.classes
        ):  # not certain, the rows may be a sample
            yield RevealedFacts("number of rows", name, (Fact(rows=root.rows),), False)
    for name, c in evidence.classes.items():
        if name not in who:
            rows = c.positives + c.negatives
            yield RevealedFacts("number of rows", name, (Fact(rows=rows),), True)
            yield RevealedFacts("number of positives", name, (Fact(positives=c.positives),), True)
    for name, mean in evidence.mean_labels.items():
        if name not in who:
            yield RevealedFacts("mean label", name, (Fact(value=mean),), True)
    for name, mappers in evidence.mappers.items():
        ends = tuple(Fact(f, value) for f, value in extremes(mappers))
        if ends and name not in who:
            yield RevealedFacts("least and greatest values", name, ends, True)
    for name, column, column_values in values_of_columns(evidence.mappers):
        if name not in who:
            facts = tuple(Fact(column, float(v)) for v in column_values.values)
            yield RevealedFacts("values off the bins of a column", name, facts, False)
    yield from _machines_with_labels(evidence, who)


def _machines_with_labels(
    evidence: LightGBMTranscript, who: Sequence[str]
) -> Iterator[RevealedFacts]:
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
                Fact(bins.column, float(v), *map(int, rows))
                for v, rows in zip(
                    column_values.values[sure == certain],
                    labelled_rows[sure == certain],
                    strict=True,
                )
            )
            if facts:
                yield RevealedFacts("values with the labels of their rows", name, facts, certain)


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
            "only parties take part: without certificates, every sender that reaches "
            "the server can claim any rank"
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
            "histograms are those of a single party"
        )
    if rows := next((len(m.g) for m in received if isinstance(m, RowGradients)), 0):
        yield (
            f"labels stay with the party that has them: gradients of all {rows:,} rows "
            "cross, one by one"
        )
    mappers = [m for m in received if isinstance(m, BinMappers)]
    if mappers:
        columns = sum(int(m.used.sum()) for m in mappers)
        yield f"rows stay where they are: {columns:,} columns have bins made of one machine's rows"
    sketches = [m for m in received if isinstance(m, RankedSketch)]
    if sketches:
        complete = sum(int(s.whole.sum()) for s in sketches)
        columns = sum(len(s.whole) for s in sketches)
        yield f"rows stay where they are: {complete:,} of {columns:,} columns cross value by value"


#: An observer that sees all messages and is not a party.
THIRD = "third"
#: Owner of a tree whose client is not known.
SOMEBODY = "one of the other parties"


@dataclass(frozen=True)
class LeafRows(RevealedFacts):
    """Rows and positives of leaves, tree by tree."""

    leaves: tuple[tuple[Tree, TreeExposure], ...] = ()

    def wrong(self, truth: Table) -> int:
        """Return the number of leaves with wrong counts."""
        return sum(self._wrong(truth))

    def wrong_of_all(self, truths: Iterable[Table]) -> int:
        """Return the number of leaves with wrong counts if the owner of the trees is not known.

        Each tree is compared with the party whose rows fit it best.
        """
        return sum(map(min, zip(*map(self._wrong, truths), strict=True)))

    def _wrong(self, truth: Table) -> list[int]:
        """Return the number of leaves with wrong counts for each tree."""
        wrong_leaves = []
        for tree, exposure in self.leaves:
            at = Routes.of([tree]).apply(truth.X)[:, 0]
            leaves = exposure.leaf[exposure.exact]
            rows = (at[:, None] == leaves).sum(axis=0)
            positives = ((at[:, None] == leaves) & (truth.y == 1)[:, None]).sum(axis=0)
            off = (rows != exposure.n[exposure.exact]) | (
                positives != exposure.n_pos[exposure.exact]
            )
            wrong_leaves.append(int(off.sum()))
        return wrong_leaves


@dataclass(frozen=True, eq=False)
class ObservedTrees:
    """All trees that a party received, as one model, and the owner of each tree.

    Attributes
    ----------
    model : ModelFile
        The trees.
    owners : tuple of str
        The site that grew each tree, or a placeholder if it is not known.
    scores : dict of str to float32 array, shape (K,)
        Base score of each site that began a model, if it was sent.
    starts : dict of int to float
        For each tree that began a training, by its number, the probability from which it started.
    """

    model: ModelFile
    owners: tuple[str, ...]
    scores: dict[str, NDArray[np.float32]]
    starts: dict[int, float]

    @staticmethod
    def of(seen: Iterable[Record], who: str) -> ObservedTrees | None:
        """Combine the models that an observer saw. Return None if there were no models.

        Only the server and an observer of the wire know which site replied with which tree.
        """
        downloads, replies = list[SharedModel](), list[SharedModel]()
        for sent in ModelExchange(seen).models():
            if sent.model is not None:
                (downloads if sent.record.sender == SERVER else replies).append(sent)
        parts, n_trees = list[ModelFile](), 0
        starts: dict[bytes, set[float]] = defaultdict(set)
        for sent in downloads + replies:
            for tree, start in _starts(sent):
                starts[_key(tree)].add(start)
        # The models to all sites contain the same trees. Each tree is used once.
        for sent in downloads:
            assert sent.model is not None
            if sent.first == n_trees:  # otherwise it is the copy for another site
                parts.append(sent.model)
                n_trees += len(trees_of(sent.model))
        owner: dict[bytes, str] = {}
        scores: dict[str, NDArray[np.float32]] = {}
        received_keys = {_key(t) for part in parts for t in trees_of(part)}
        for sent in replies:
            assert sent.model is not None
            if not sent.first:  # otherwise it is the base score of the site that began the model
                scores.setdefault(sent.record.sender, sent.scores[0])
            trees = trees_of(sent.model)
            owner |= {_key(t): sent.record.sender for t in trees}
            if not {_key(t) for t in trees} & received_keys and who != sent.record.sender:
                parts.append(sent.model)  # trees of the last round, which no site receives
        if not parts:
            return None
        model = joined(parts)
        names = tuple(owner.get(_key(t), SOMEBODY) for t in trees_of(model))
        begun = {t: starts[_key(tree)] for t, tree in enumerate(trees_of(model))}
        return ObservedTrees(
            model, names, scores, {t: s.pop() for t, s in begun.items() if len(s) == 1}
        )


def _starts(sent: SharedModel) -> Iterator[tuple[Tree, float]]:
    """Yield trees that began a training, with the probability from which each of them started.

    These are the first trees of sites without a model. The server's first model contains the base
    score of each tree if every part of it is one tree.
    """
    trees = () if sent.model is None else trees_of(sent.model)
    if sent.first or not trees or any(score.size > 1 for score in sent.scores):
        return
    if sent.record.sender != SERVER:
        yield trees[0], float(sent.scores[0][0])
    elif len(trees) == len(sent.scores):
        yield from zip(trees, (float(score[0]) for score in sent.scores), strict=True)


def _key(tree: Tree) -> bytes:
    """Return a key that distinguishes a tree from all different trees."""
    return b"".join(a.tobytes() for a in (tree.feature, tree.threshold, tree.value))


def audited(capture: Iterable[Record], who: str) -> tuple[ObservedTrees, Audit] | None:
    """Audit all trees that an observer saw. Return None if there were none.

    Every participant knows eta and lambda. They are therefore inferred from the trees of all sites.
    """
    everybody = ObservedTrees.of(capture, SERVER)
    seen = (r for r in capture if who in (THIRD, r.sender, *r.receivers))
    shared = everybody if who == SERVER else ObservedTrees.of(seen, who)
    if everybody is None or shared is None:
        return None
    result = audit(everybody.model, Known(starts=everybody.starts))
    if shared is everybody:
        return shared, result
    knowledge = Known(starts=shared.starts)
    if result.settings is not None:
        eta, reg_lambda = result.settings.learning_rate, result.settings.reg_lambda
        knowledge = replace(knowledge, learning_rate=eta, reg_lambda=reg_lambda)
    return shared, audit(shared.model, knowledge)


def model_readings(shared: ObservedTrees, audited: Audit, who: str) -> Iterator[RevealedFacts]:
    """Yield the facts that follow from models about all parties except their reader.

    Parameters
    ----------
    shared : Shared
        The trees that the reader saw.
    audited : Audit
        Audit of these trees.
    who : str
        The reader.

    Yields
    ------
    reading : Reading
    """
    firsts = dict[str, TreeExposure]()
    leaves: dict[str, list[tuple[Tree, TreeExposure]]] = defaultdict(list)
    cuts: dict[str, set[tuple[int, float]]] = defaultdict(set)
    for tree, exposure, owner in zip(
        trees_of(shared.model), audited.trees, shared.owners, strict=True
    ):
        if owner == who:
            continue
        firsts.setdefault(owner, exposure)
        if exposure.exact.any():
            leaves[owner].append((tree, exposure))
        inner = tree.feature >= 0
        cuts[owner].update(
            zip(tree.feature[inner].tolist(), tree.threshold[inner].tolist(), strict=True)
        )
    for owner, first in firsts.items():
        score, complete = shared.scores.get(owner), bool(first.exact.all())
        rows, positives = int(first.n.sum()), int(first.n_pos.sum())
        if complete and owner != SOMEBODY:
            sure = not audited.assumes
            yield RevealedFacts("number of rows", owner, (Fact(rows=rows),), sure)
            yield RevealedFacts("number of positives", owner, (Fact(positives=positives),), sure)
        if score is not None:
            same = complete and abs(float(score[0]) * rows - positives) < 1e-3 * max(positives, 1)
            yield RevealedFacts("mean label", owner, (Fact(value=float(score[0])),), same)
    for owner, leaves_of_owner in leaves.items():
        facts = tuple(
            Fact(rows=int(n), positives=int(k))
            for _, exposure in leaves_of_owner
            for n, k in zip(exposure.n[exposure.exact], exposure.n_pos[exposure.exact], strict=True)
        )
        what, sure = "leaves with their rows and positives", not audited.assumes
        yield LeafRows(what, owner, facts, sure, tuple(leaves_of_owner))
    for owner, pairs in cuts.items():
        told_cuts = tuple(Fact(f, value) for f, value in sorted(pairs))
        yield RevealedFacts("thresholds that are values of the party", owner, told_cuts, False)

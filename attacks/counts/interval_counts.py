"""Infer the counts of every tree of the first round from the sums in a view.

The claims of an attack about the leaves of these trees are then restricted to the possible counts
(`with_counts_read_back`).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from fedtrees.attacks.counts.count_bounds import (
    N1,
    CountBounds,
    N,
    Row,
    SumBounds,
    narrow,
    possible,
    read_counts,
)
from fedtrees.attacks.counts.count_estimate import likely_counts
from fedtrees.attacks.counts.leaf_sums import Counts
from fedtrees.attacks.counts.rounded_leaf_values import ValuesSeen, counts_of_values
from fedtrees.attacks.counts.sum_bounds import (
    OwnPart,
    SentBounds,
    bounded_sums,
    most_informative_histograms,
    row_of,
    sums_of_nodes,
)
from fedtrees.attacks.observations.applicability import classes_of_leaves
from fedtrees.attacks.observations.boosting import BoostingObservations
from fedtrees.attacks.observations.reading import read_boosting
from fedtrees.attacks.observations.replay import (
    EVERYONE,
    OTHERS,
    clients_in,
    law_of_sums,
    law_of_values,
    params_of,
)
from fedtrees.core.claims import Guess, LeafCounts
from fedtrees.core.errors import UsageError
from fedtrees.core.view import View
from fedtrees.messages.horizontal import (
    BaseScore,
    GlobalHistogram,
    Histogram,
    HistogramRequest,
    NodeSplits,
)
from fedtrees.trees.binning import Cuts
from fedtrees.trees.boosted.forest import Tree
from fedtrees.trees.boosted.histogram import UNIT_BITS, Bits
from fedtrees.trees.boosted.losses import LOGISTIC

Longs = NDArray[np.int64]
Of = Mapping[str, list[Histogram | GlobalHistogram]]  # histograms by source

PASSES = 3  # over sources, whose numbers of rows have a known sum


@dataclass(frozen=True, eq=False)
class SumsOfOneSender:
    """One source's sums of a tree, and the counts that they leave possible."""

    name: str
    sums: SumBounds
    counted: CountBounds


@dataclass(frozen=True, eq=False)
class FirstTreeCounts:
    """Possible counts of a tree of the first round, for all rows except the adversary's."""

    tree: Tree
    row: Row
    sources: tuple[SumsOfOneSender, ...]

    @property
    def counted(self) -> CountBounds:
        """Bounds on the counts of all sources' rows together."""
        first, *rest = (s.counted for s in self.sources)
        for part in rest:
            first = first.plus(part)
        return first

    @property
    def leaves(self) -> tuple[Longs, Longs]:
        """Bounds on n0 and n1 of every leaf, int64, shape (J, 2) each."""
        lo, hi = self.counted.nodes
        return lo[self.tree.leaves], hi[self.tree.leaves]

    def leaf_counts(self, number: int) -> LeafCounts | None:
        """Return the certain counts as a claim about this tree number, None if there are none."""
        is_certain, (lo, _) = self.certain, self.leaves
        return (
            LeafCounts(number, self.tree.leaves[is_certain], lo[is_certain])
            if is_certain.any()
            else None
        )

    @property
    def likely(self) -> Longs:
        """The most probable n0 and n1 of every leaf, int64, shape (J, 2)."""
        parts = (likely_counts(s.counted, self.tree, s.sums, self.row) for s in self.sources)
        counts_of_nodes: Longs = np.sum(list(parts), axis=0)
        return counts_of_nodes[self.tree.leaves]

    @property
    def certain(self) -> NDArray[np.bool_]:
        """Leaves whose counts are certain, bool, shape (J,)."""
        lo, hi = self.leaves
        return np.asarray((lo == hi).all(axis=1))


def first_trees(view: View, evidence: BoostingObservations) -> list[FirstTreeCounts] | None:
    """Infer the counts of every tree of the first round from the sums in a view.

    Parameters
    ----------
    view : View
        The adversary's view.
    evidence : BoostingObservations
        Result of `read_boosting` for this view.

    Returns
    -------
    list of FirstTreeCounts or None
        None if no sums are seen, if they are not `readable`, or if they contradict each other.
    """
    cuts, histograms = evidence.observed.cuts, most_informative_histograms(view)
    if cuts is None or not readable(view, evidence):
        return None
    trees = []
    for t in range(evidence.outputs):
        tree = _first_tree(view, evidence, cuts, histograms.get(t, {}), t)
        if tree is None:
            return None
        trees.append(tree)
    return trees


def readable(view: View, evidence: BoostingObservations) -> bool:
    """Return whether every row in a sum counts once, with its true label."""
    lost, noisy = view.changes("sums", "parties"), view.changes("labels", "y")
    if classes_of_leaves(view) is None or "hessian_share" in view.parameters:
        return False  # no log loss, or sums of a mechanism
    if (
        view.weighted
        or lost
        or noisy
        or view.defense.requirements.unit_hessian
        or not evidence.trees
    ):
        return False
    return (
        not evidence.foreign
        and evidence.observed.own_inside
        and _has_announced_splits(view, evidence)
    )


def _has_announced_splits(view: View, evidence: BoostingObservations) -> bool:
    """Return whether the trees of the first round have the broadcast splits, if there are any."""
    for _, m in view.messages(NodeSplits):
        if m.tree < evidence.outputs:
            tree = evidence.trees[m.tree]
            if m.nodes.max(initial=0) >= len(tree):
                return False
            for name in ("feature", "threshold", "default_left", "left"):
                announced, grown = getattr(m, name), getattr(tree, name)[m.nodes]
                if not np.array_equal(announced, grown, equal_nan=name == "threshold"):
                    return False
    return True


def _first_tree(
    view: View, evidence: BoostingObservations, cuts: Cuts, histograms: Of, t: int
) -> FirstTreeCounts | None:
    tree, part = evidence.trees[t], OwnPart.of(view, t)
    bits = _bits(view)
    row = row_of(view, evidence, t, bits)
    bounds = SentBounds.of(view, bits, row)
    n_victims = max(view.n_rows - len(part.table), 0)
    lacking = np.array([not f.complete for f in view.schema.features])
    space = possible(tree, cuts, row, n_victims, lacking)
    shared = EVERYONE in histograms or not histograms
    knows_part = all(m.nodes.tobytes() in part.sent for m in histograms.get(EVERYONE, ()))
    if space is None or (shared and evidence.share < 1 and len(part.table) and not knows_part):
        return None  # too large, or it is unknown which local rows the sums contain
    local_sums = part.histograms(tree, cuts, row, evidence.class_of(t)) if shared else None
    clients = sum(role == "client" for role in view.roles.values()) if shared else 1
    every = evidence.share == 1
    limits = (n_victims if every else 0, n_victims)
    positives = _positives(view, evidence, part) if every else None
    if histograms:
        sums = {
            name: bounded_sums(
                m, clients, bounds, None if local_sums is None else (part, local_sums), len(tree)
            )
            for name, m in histograms.items()
        }
    elif every and (nodes := sums_of_nodes(tree, cuts, clients, bounds, bits, local_sums)):
        sums = {EVERYONE: nodes}
    else:
        return None
    known_sizes = (limits, positives) if len(sums) == 1 else ((0, n_victims), None)
    sources = []
    for name, one in sums.items():
        counted = read_counts(space, tree, one, row, *known_sizes)
        if counted is None:
            return None
        sources.append(SumsOfOneSender(name, one, counted))
    first_tree = FirstTreeCounts(tree, row, tuple(sources))
    return first_tree if _share_out(first_tree, limits, positives) else None


def values_seen(view: View) -> tuple[ValuesSeen, int, tuple[int, int] | None] | None:
    """Return a first tree of which only leaf values are seen, computed from rounded sums.

    The result also contains the number of other parties' rows, and bounds on their positives. It is
    None if there is no such tree.
    """
    seen = tuple(s for s in view.seen if getattr(s.message, "tree", 0) < 1)
    evidence = read_boosting(replace(view, seen=seen))
    if evidence is None or evidence.observed.cuts is None or evidence.observed.level != "values":
        return None
    if not readable(view, evidence) or evidence.outputs > 1 or evidence.share < 1:
        return None
    bits = _bits(view)
    row, part = row_of(view, evidence, 0, bits), OwnPart.of(view, 0)
    bounds = SentBounds.of(view, bits, row)
    law = bounds.law
    requested = [m.nodes for _, m in view.messages(HistogramRequest) if m.tree == 0]
    if law is None or not law.deterministic or bounds.step.min() < 2 or law_of_values(view):
        return None
    if not requested:
        return None
    values = ValuesSeen(
        evidence.trees[0], evidence.observed.cuts, params_of(view), bits, row, bounds,
        np.concatenate(requested), part, clients_in(view, OTHERS),
        view.prior_rows or part.table,
    )  # fmt: skip
    return values, max(view.n_rows - len(part.table), 0), _positives(view, evidence, part)


def _bits(view: View) -> Bits:
    for _, m in view.messages(BaseScore):
        return m.g_bits, m.h_bits
    return UNIT_BITS


def _share_out(
    first_tree: FirstTreeCounts, rows: tuple[int, int], positives: tuple[int, int] | None
) -> bool:
    """Narrow the counts of the sources by the totals of all rows. False if impossible."""
    if len(first_tree.sources) == 1:
        return True
    for _ in range(PASSES):
        changed = False
        for form, limits in ((N, rows), (N1, positives)):
            if limits is None:
                continue
            low = sum(int(s.counted.lo[0, -1, form]) for s in first_tree.sources)
            high = sum(int(s.counted.hi[0, -1, form]) for s in first_tree.sources)
            for s in first_tree.sources:
                lo, hi = s.counted.lo[0, -1], s.counted.hi[0, -1]
                a = max(lo[form], limits[0] - (high - hi[form]))
                b = min(hi[form], limits[1] - (low - lo[form]))
                changed |= bool(a > lo[form] or b < hi[form])
                if a > b:
                    return False
                lo[form], hi[form] = a, b
        if not changed:
            return True
        if not all(narrow(s.counted, first_tree.tree, first_tree.row) for s in first_tree.sources):
            return False
    return True


def _positives(view: View, evidence: BoostingObservations, part: OwnPart) -> tuple[int, int] | None:
    """Return bounds on other parties' rows of label 1 if boosting starts at the mean label."""
    if evidence.outputs > 1 or not evidence.row_counts.mean_start:
        return None
    margin = next((m.margin for _, m in view.messages(BaseScore)), None)
    if margin is None:
        return None
    n = view.n_rows
    # float32 rounding of the margin leaves a few neighbouring counts possible
    near = round(n / (1 + np.exp(-float(margin[0]))))
    fits = [k for k in range(max(near - 3, 1), min(near + 4, n)) if _starts(k, n, margin[0])]
    local_positives = int((part.table.y == 1).sum())
    return (min(fits) - local_positives, max(fits) - local_positives) if fits else None


def _starts(positives: int, n: int, margin: np.float32) -> bool:
    try:
        return bool(LOGISTIC.start(np.array([n, n - positives, positives], float))[0] == margin)
    except UsageError:
        return False


def first_round(view: View) -> list[FirstTreeCounts] | None:
    """Infer the counts of the first round's trees without reading later trees, as `first_trees`."""
    classes = len(view.schema.classes)
    outputs = 1 if classes == 2 else classes
    seen = tuple(s for s in view.seen if getattr(s.message, "tree", 0) < outputs)
    part = replace(view, seen=seen)
    evidence = read_boosting(part)
    return None if evidence is None else first_trees(part, evidence)


def counts_read_back(view: View) -> list[FirstTreeCounts] | None:
    """Return `first_round` if sums are bounded or noisy, and None if they are exact."""
    return None if law_of_sums(view) is None else first_round(view)


def counts_of(trees: Sequence[FirstTreeCounts]) -> tuple[Counts, ...]:
    """Return the victims' counts in the leaves of all trees, or none unless all are certain."""
    if not all(tree.certain.all() for tree in trees):
        return ()
    return tuple(Counts(*tree.leaves[0].T, 0.0) for tree in trees)


def with_counts_read_back(
    guess: Guess, view: View, trees: Sequence[FirstTreeCounts] | None = None
) -> Guess:
    """Replace the leaf counts of a guess by the most probable counts of the first round.

    If histograms are seen, the counts are those of `FirstTreeCounts`. Otherwise claims are clipped
    to the possible range. With exact sums a guess is returned unchanged.

    Parameters
    ----------
    guess : Guess
        The guess of an attack.
    view : View
        The adversary's view.
    trees : sequence of FirstTreeCounts, optional
        Result of `counts_read_back`, if it was already computed.
    """
    if law_of_sums(view) is None:
        return guess
    trees = counts_read_back(view) if trees is None else trees
    if not trees:
        return _with_counts_of_values(guess, view)
    return _with_counts(guess, [tree.tree for tree in trees], lambda c: _moved(c, trees[c.tree]))


def _with_counts(
    guess: Guess, trees: Sequence[Tree], counts: Callable[[LeafCounts], Longs]
) -> Guess:
    """Replace the counts of the claims about all leaves of some trees."""
    claims = tuple(
        replace(claim, counts=counts(claim))
        if isinstance(claim, LeafCounts)
        and claim.tree < len(trees)
        and np.array_equal(claim.leaf, trees[claim.tree].leaves)
        else claim
        for claim in guess.claims
    )
    return replace(guess, claims=claims)


def _moved(claim: LeafCounts, read: FirstTreeCounts) -> Longs:
    if all(len(s.sums.nodes) for s in read.sources):
        return read.likely
    return np.clip(claim.counts, *read.leaves)


def _with_counts_of_values(guess: Guess, view: View) -> Guess:
    """Replace the counts of the first tree by those that its leaf values make most probable."""
    seen = values_seen(view)
    counts = None if seen is None else counts_of_values(*seen, np.random.default_rng(0))
    if seen is None or counts is None:
        return guess
    return _with_counts(guess, [seen[0].tree], lambda _: counts)

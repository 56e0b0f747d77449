"""The counts of every tree of the first round, from a view."""

from collections.abc import Mapping
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from fedtrees.attacks.evidence.boosted import Evidence
from fedtrees.attacks.evidence.laws import law_of_values
from fedtrees.attacks.evidence.readable import classes_of_leaves
from fedtrees.attacks.evidence.readback.bounds import SentBounds
from fedtrees.attacks.evidence.readback.forms import (
    N1,
    Counted,
    N,
    Row,
    SumBounds,
    narrow,
    possible,
    read_counts,
)
from fedtrees.attacks.evidence.readback.likely import likely_counts
from fedtrees.attacks.evidence.readback.sources import (
    OwnPart,
    bounded_sums,
    row_of,
    sums_of_nodes,
    told_histograms,
)
from fedtrees.attacks.evidence.readback.values import ValuesSeen
from fedtrees.attacks.evidence.replay import EVERYONE, OTHERS, clients_in, params_of
from fedtrees.attacks.evidence.view import evidence_of
from fedtrees.core.errors import UsageError
from fedtrees.core.guess import LeafCounts
from fedtrees.core.view import View
from fedtrees.messages.boosting import (
    BaseScore,
    GlobalHistogram,
    Histogram,
    HistogramRequest,
    NodeSplits,
)
from fedtrees.trees.binning import Cuts
from fedtrees.trees.boosted.fixed_point import UNIT_BITS, Bits
from fedtrees.trees.boosted.forest import Tree
from fedtrees.trees.boosted.losses import LOGISTIC

Longs = NDArray[np.int64]
Of = Mapping[str, list[Histogram | GlobalHistogram]]  # what each source sent

PASSES = 3  # over sources that share their number of rows, and trees that share their root


@dataclass(frozen=True, eq=False)
class Source:
    """One source's sums of a tree, and the counts they leave possible."""

    name: str
    sums: SumBounds
    counted: Counted


@dataclass(frozen=True, eq=False)
class FirstTree:
    """What is certain of a tree of the first round, of all rows but the principals' own."""

    tree: Tree
    row: Row
    sources: tuple[Source, ...]

    @property
    def counted(self) -> Counted:
        """Bounds on the counts of all sources' rows together."""
        first, *others = (s.counted for s in self.sources)
        for part in others:
            first = first.plus(part)
        return first

    @property
    def leaves(self) -> tuple[Longs, Longs]:
        """Bounds on n0 and n1 of every leaf, int64, shape (J, 2) each."""
        lo, hi = self.counted.nodes
        return lo[self.tree.leaves], hi[self.tree.leaves]

    def leaf_counts(self, number: int) -> LeafCounts | None:
        """Return the counts that are certain, of the tree of this number; None: none are."""
        known, (lo, _) = self.certain, self.leaves
        return LeafCounts(number, self.tree.leaves[known], lo[known]) if known.any() else None

    @property
    def likely(self) -> Longs:
        """The likeliest n0 and n1 of every leaf, int64, shape (J, 2)."""
        parts = (likely_counts(s.counted, self.tree, s.sums, self.row) for s in self.sources)
        whole: Longs = np.sum(list(parts), axis=0)
        return whole[self.tree.leaves]

    @property
    def certain(self) -> NDArray[np.bool_]:
        """Leaves whose counts are certain, bool, shape (J,)."""
        lo, hi = self.leaves
        return np.asarray((lo == hi).all(axis=1))


def first_trees(view: View, evidence: Evidence) -> list[FirstTree] | None:
    """Read back the counts of every tree of the first round from the sums in a view.

    `evidence`: What `evidence_of` reads in it.

    Returns: None where no sums are seen, rows do not count once each, or sums contradict.
    """
    cuts, told = evidence.cuts, told_histograms(view)
    if cuts is None or not readable(view, evidence):
        return None
    found = []
    for t in range(evidence.outputs):
        tree = _first_tree(view, evidence, cuts, told.get(t, {}), t)
        if tree is None:
            return None
        found.append(tree)
    return found


def readable(view: View, evidence: Evidence) -> bool:
    """Tell whether every row in a sum counts once, by its true label."""
    lost, noisy = view.changes("sums", "parties"), view.changes("labels", "y")
    if classes_of_leaves(view) is None or "hessian_share" in view.parameters:
        return False  # no log loss, or sums of a mechanism
    if view.weighted or lost or noisy or view.defense.unit_hessian or not evidence.trees:
        return False
    return not evidence.foreign and evidence.own_inside and _as_told(view, evidence)


def _as_told(view: View, evidence: Evidence) -> bool:
    """Tell whether the trees of the first round are split as was broadcast, where it was."""
    for _, m in view.messages(NodeSplits):
        if m.tree < evidence.outputs:
            tree = evidence.trees[m.tree]
            if m.nodes.max(initial=0) >= len(tree):
                return False
            for name in ("feature", "threshold", "default_left", "left"):
                told, grown = getattr(m, name), getattr(tree, name)[m.nodes]
                if not np.array_equal(told, grown, equal_nan=name == "threshold"):
                    return False
    return True


def _first_tree(view: View, evidence: Evidence, cuts: Cuts, told: Of, t: int) -> FirstTree | None:
    tree, part = evidence.trees[t], OwnPart.of(view, t)
    bits = _bits(view)
    row = row_of(view, evidence, t, bits)
    bounds = SentBounds.of(view, bits, row)
    others = max(view.n_rows - len(part.table), 0)
    lacking = np.array([not f.complete for f in view.schema.features])
    space = possible(tree, cuts, row, others, lacking)
    shared = EVERYONE in told or not told
    told_own = all(m.nodes.tobytes() in part.sent for m in told.get(EVERYONE, ()))
    if space is None or (shared and evidence.share < 1 and len(part.table) and not told_own):
        return None  # too large, or which own rows are in the sums was not told
    own = part.histograms(tree, cuts, row, evidence.class_of(t)) if shared else None
    clients = sum(role == "client" for role in view.roles.values()) if shared else 1
    every = evidence.share == 1
    limits = (others if every else 0, others)
    positives = _positives(view, evidence, part) if every else None
    if told:
        sums = {
            name: bounded_sums(m, clients, bounds, None if own is None else (part, own), len(tree))
            for name, m in told.items()
        }
    elif every and (nodes := sums_of_nodes(tree, cuts, clients, bounds, bits, own)):
        sums = {EVERYONE: nodes}
    else:
        return None
    alone = (limits, positives) if len(sums) == 1 else ((0, others), None)
    sources = []
    for name, one in sums.items():
        counted = read_counts(space, tree, one, row, *alone)
        if counted is None:
            return None
        sources.append(Source(name, one, counted))
    found = FirstTree(tree, row, tuple(sources))
    return found if _share_out(found, limits, positives) else None


def values_seen(view: View) -> tuple[ValuesSeen, int, tuple[int, int] | None] | None:
    """Return a first tree of which leaf values alone are seen, of sums rounded to the nearest.

    With others' rows, and bounds on their positives; None where there is no such tree.
    """
    seen = tuple(s for s in view.seen if getattr(s.message, "tree", 0) < 1)
    evidence = evidence_of(replace(view, seen=seen))
    if evidence is None or evidence.cuts is None or evidence.level != "values":
        return None
    if not readable(view, evidence) or evidence.outputs > 1 or evidence.share < 1:
        return None
    bits = _bits(view)
    row, part = row_of(view, evidence, 0, bits), OwnPart.of(view, 0)
    bounds = SentBounds.of(view, bits, row)
    law, asked = bounds.law, [m.nodes for _, m in view.messages(HistogramRequest) if m.tree == 0]
    if law is None or not law.deterministic or bounds.step.min() < 2 or law_of_values(view):
        return None
    if not asked:
        return None
    found = ValuesSeen(
        evidence.trees[0], evidence.cuts, params_of(view), bits, row, bounds,
        np.concatenate(asked), part, clients_in(view, OTHERS),
        view.prior_rows or part.table,
    )  # fmt: skip
    return found, max(view.n_rows - len(part.table), 0), _positives(view, evidence, part)


def _bits(view: View) -> Bits:
    for _, m in view.messages(BaseScore):
        return m.g_bits, m.h_bits
    return UNIT_BITS


def _share_out(found: FirstTree, rows: tuple[int, int], positives: tuple[int, int] | None) -> bool:
    """Let sources narrow each other: what is known of all their rows; False where impossible."""
    if len(found.sources) == 1:
        return True
    for _ in range(PASSES):
        changed = False
        for form, limits in ((N, rows), (N1, positives)):
            if limits is None:
                continue
            low = sum(int(s.counted.lo[0, -1, form]) for s in found.sources)
            high = sum(int(s.counted.hi[0, -1, form]) for s in found.sources)
            for s in found.sources:
                lo, hi = s.counted.lo[0, -1], s.counted.hi[0, -1]
                a = max(lo[form], limits[0] - (high - hi[form]))
                b = min(hi[form], limits[1] - (low - lo[form]))
                changed |= bool(a > lo[form] or b < hi[form])
                if a > b:
                    return False
                lo[form], hi[form] = a, b
        if not changed:
            return True
        if not all(narrow(s.counted, found.tree, found.row) for s in found.sources):
            return False
    return True


def _positives(view: View, evidence: Evidence, part: OwnPart) -> tuple[int, int] | None:
    """Return bounds on others' rows of label 1, where boosting starts at the mean label."""
    if evidence.outputs > 1 or not evidence.mean_start:
        return None
    margin = next((m.margin for _, m in view.messages(BaseScore)), None)
    if margin is None:
        return None
    n = view.n_rows
    near = round(n / (1 + np.exp(-float(margin[0]))))
    fits = [k for k in range(max(near - 3, 1), min(near + 4, n)) if _starts(k, n, margin[0])]
    own = int((part.table.y == 1).sum())
    return (min(fits) - own, max(fits) - own) if fits else None


def _starts(positives: int, n: int, margin: np.float32) -> bool:
    try:
        return bool(LOGISTIC.start(np.array([n, n - positives, positives], float))[0] == margin)
    except UsageError:
        return False

"""Read the observations of boosted trees from the messages in a view.

In `dp-gbdt`, whose splits ignore the data, leaf sums may be opened beyond the release. If the
server adds the noise, it opens exact sums of every client or of all clients together. If the
clients add shares of the noise, only the sum is opened. An adversary that knows some of the shares,
because its parties sent them, subtracts these and the contribution of its rows. The remaining noise
is that of the other shares.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from fedtrees.attacks.observations.boosting import (
    LEVELS,
    BoostingObservations,
    ColumnKnowledge,
    Distortion,
    Level,
    NodeHistograms,
    ObservedSums,
    RowCounts,
    SumVariance,
    Targets,
    sums_below,
)
from fedtrees.attacks.observations.columns import are_drawn
from fedtrees.attacks.observations.lightgbm import machines_model
from fedtrees.attacks.observations.replay import (
    EVERYONE,
    OTHERS,
    ReplayedTree,
    bins_left,
    cell_variance,
    clients_in,
    cuts_of,
    law_of_rows,
    law_of_sums,
    law_of_values,
    leaf_sum_variance,
    own_sums,
    params_of,
    reach_of,
    replay_trees,
    row_variance,
    trees_grown_locally,
)
from fedtrees.core.schema import Table
from fedtrees.core.view import View
from fedtrees.messages.horizontal import BaseScore, LeafSums, LeafValues, NodeSplits
from fedtrees.messages.models import BoostedModel
from fedtrees.trees.binning import Cuts
from fedtrees.trees.boosted.forest import Tree
from fedtrees.trees.boosted.grower import TreeBuilder, children_to_build
from fedtrees.trees.boosted.histogram import from_fixed, to_fixed
from fedtrees.trees.routing import Routes

Floats = NDArray[np.float64]


@dataclass(frozen=True, eq=False)
class Opened:
    """Leaf sums of every tree, from one source.

    Attributes
    ----------
    sums : tuple of float64 array, shape (J, 2)
        Gradients and hessians, in the order of `Tree.leaves`.
    noise : float
        Remaining share of the declared noise variance. 0 means that the sums are exact.
    own_inside : bool
        Whether the sums contain the adversary's rows.
    """

    sums: tuple[Floats, ...]
    noise: float
    own_inside: bool

    def trees(self, trees: Sequence[Tree]) -> tuple[Tree, ...]:
        """Return the trees with these sums in all nodes."""
        return tuple(_with_sums(t, s) for t, s in zip(trees, self.sums, strict=True))


def releases_leaves(view: View) -> bool:
    """Return whether the protocol releases only leaf sums, with declared Gaussian noise."""
    return "hessian_share" in view.parameters


def opened_leaves(view: View) -> dict[str, Opened]:
    """Return leaf sums that were opened beyond the release, by source.

    A source is the name of a client, `EVERYONE` or `OTHERS`. The result is empty if the adversary's
    parties know only the public release.
    """
    if not releases_leaves(view):
        return {}
    start = next((m for _, m in view.messages(BaseScore)), None)
    if start is None:
        return {}
    bits = (start.g_bits, start.h_bits)
    parts: dict[str, dict[int, Floats]] = defaultdict(dict)
    for item, m in view.messages(LeafSums):
        parts[EVERYONE if item.opened else item.sender][m.tree] = from_fixed(m.sums, bits)
    if view.changes(LeafSums, "sums", "client"):
        return _less_own(view, parts)
    if EVERYONE in parts:  # it contains the replies of the adversary's parties as well
        return {EVERYONE: Opened(_in_order(parts[EVERYONE]), 0.0, True)}
    if set(parts) <= set(view.principals):
        return {}
    return {
        source: Opened(_in_order(p), 0.0, source in view.principals) for source, p in parts.items()
    }


def together(opened: dict[str, Opened]) -> Opened:
    """Add the sums of all sources."""
    each = [o.sums for o in opened.values()]
    sums = tuple(np.sum(part, axis=0) for part in zip(*each, strict=True))
    return Opened(
        sums, max(o.noise for o in opened.values()), any(o.own_inside for o in opened.values())
    )


def _less_own(view: View, parts: dict[str, dict[int, Floats]]) -> dict[str, Opened]:
    """Return the noisy sums of all clients less the messages of the adversary's parties."""
    released = {
        m.tree: np.stack([m.g, m.h], axis=1)
        for _, m in view.messages(LeafValues)
        if m.g is not None and m.h is not None
    }
    total = parts.pop(EVERYONE, released)
    local_parts = [
        p for source, p in parts.items() if source in view.principals and set(p) == set(total)
    ]
    clients = sum(role == "client" for role in view.roles.values())
    if not total or not local_parts:
        return {EVERYONE: Opened(_in_order(total), 1.0, True)} if total is not released else {}
    # the subtracted messages contain the noise of these parties, so that their share of it vanishes
    rest = {t: sums - np.sum([p[t] for p in local_parts], axis=0) for t, sums in total.items()}
    return {OTHERS: Opened(_in_order(rest), 1 - len(local_parts) / clients, False)}


def _in_order(by_tree: dict[int, Floats]) -> tuple[Floats, ...]:
    return tuple(by_tree[t] for t in sorted(by_tree))


def _with_sums(tree: Tree, sums: Floats) -> Tree:
    both = sums_below(tree, sums)
    return replace(tree, g=both[:, 0], h=both[:, 1])


def leaf_noise(view: View, trees: tuple[Tree, ...], left: float) -> tuple[SumVariance, ...] | None:
    """Return the noise on node sums computed from leaf sums. None means exact.

    On a grid as fine as that of the fixed-point numbers, a discrete Gaussian has the moments of the
    continuous one to double precision (Canonne, Kamath and Steinke 2020, fact 18).

    Parameters
    ----------
    view : View
        The adversary's view.
    trees : tuple of Tree
        The trees.
    left : float
        Share of the noise variance that the sums contain.
    """
    laws = (view.channel(LeafValues, "g", "server"), view.channel(LeafValues, "h", "server"))
    if not left or laws == (None, None):
        return None
    g, h = (
        0.0 if law is None else left * float(law.posterior_moments(np.zeros(1))[1][0])
        for law in laws
    )
    out = []
    for tree in trees:
        leaves = sums_below(tree, np.ones(len(tree.leaves)))
        out.append(SumVariance(g=g * leaves, h=h * leaves, cell_g=g, cell_h=h))
    return tuple(out)


def read_boosting(view: View, max_level: Level = "histograms") -> BoostingObservations | None:
    """Return the trees of a run with all visible statistics, read from the messages in a view.

    Parameters
    ----------
    view : View
        The adversary's view.
    max_level : {"histograms", "statistics", "values"}
        Most detailed level to use. It serves to compare the value of each level of detail.

    Returns
    -------
    BoostingObservations or None
        None if the view contains no trained tree, or trees of single clients.
    """
    if trees_grown_locally(view):
        return None
    cuts, classes = cuts_of(view), len(view.schema.classes)
    read = _read_trees(view, cuts)
    if not read.trees or len(read.start) != (1 if classes in (0, 2) else classes):
        return None
    level = min(read.level, max_level, key=LEVELS.index)
    histograms = read.histograms if level == read.level else None
    trees = read.trees if level != "values" else tuple(_bare(t) for t in read.trees)
    params, p, law = params_of(view), view.parameters, law_of_sums(view)
    hides = law is not None and bool(law.suppresses)
    held_out = p["validation_fraction"] if p.get("early_stopping_rounds") else 0.0
    samples_rows = params.subsample < 1 or held_out > 0 or hides
    # the contribution of the local rows can be subtracted with the noise that was added to it
    own_leaf_sums = own_sums(view, trees, cuts) if samples_rows or law is not None else None
    has_own_rows = own_leaf_sums is not None and view.rows is not None and len(view.rows) > 0
    parties = (
        clients_in(view, OTHERS if has_own_rows else EVERYONE), clients_in(view, read.source)
    )  # fmt: skip
    # a view with only the model has no cut points, and its thresholds are the best substitute
    noisy_cuts = cuts or _cuts_used(read.trees, len(view.schema.features))
    includes_own = "all" if read.source == EVERYONE else "leaves"
    evidence = BoostingObservations(
        trees,
        read.start[0] if len(read.start) == 1 else read.start,
        params,
        ObservedSums(level, histograms, cuts, includes_own, own_leaf_sums),
        Distortion(
            noise_of(view, trees, noisy_cuts, parties, read.histograms is None),
            law_of_values(view),
            law_of_rows(view),
            hides,
        ),
        RowCounts(view.n_rows, mean_start=params.base_score is None, held_out=held_out),
        ColumnKnowledge(cuts_reveal_ranges=not are_drawn(view), population=view.population),
        constant_hessian=view.defense.requirements.unit_hessian or not classes,
        targets=None if classes else Targets.unknown(),
    )
    opened = opened_leaves(view) if level == "statistics" else {}
    return with_opened(view, evidence, together(opened)) if opened else evidence


class _ReadTrees(NamedTuple):
    """Trees of a view with their most detailed statistics.

    Attributes
    ----------
    trees : tuple of Tree
        The trees.
    start : float32 array, shape (outputs,)
        Base margin.
    level : {"histograms", "statistics", "values"}
        Most detailed level of the statistics.
    histograms : tuple of NodeHistograms, or None
        Histograms of the trees. None: sums were sent with splits and leaf values.
    source : str
        Whose rows are in the sums.
    """

    trees: tuple[Tree, ...]
    start: NDArray[np.float32]
    level: Level
    histograms: tuple[NodeHistograms, ...] | None = None
    source: str = EVERYONE


def _read_trees(view: View, cuts: Cuts | None) -> _ReadTrees:
    """Read trees from histograms, from splits and leaf values, or from the released model."""
    start = _start(view)
    if cuts is None or start is None:  # the view contains only the model
        return _ReadTrees(*_released_trees(view))
    if replayed := list(replay_trees(view, by_client=False)):
        (source,) = replayed[0].sums
        histograms = tuple(histograms_of(view, one, source) for one in replayed)
        trees = tuple(one.tree for one in replayed)
        return _ReadTrees(trees, start, "histograms", histograms, source)
    trees = _assemble(view)
    has_sums = bool(trees) and trees[0].g is not None
    return _ReadTrees(trees, start, "statistics" if has_sums else "values")


def with_opened(view: View, evidence: BoostingObservations, opened: Opened) -> BoostingObservations:
    """Replace the released sums of the evidence by opened sums.

    Parameters
    ----------
    view : View
        The adversary's view.
    evidence : BoostingObservations
        All released trees.
    opened : Opened
        Sums that the adversary's parties opened.
    """
    n_rows = view.n_rows
    if not opened.own_inside and view.rows is not None:
        n_rows -= len(view.rows)
    trees = opened.trees(evidence.trees)
    return evidence.change(
        trees=trees,
        noise=leaf_noise(view, trees, opened.noise),
        includes_own="leaves" if opened.own_inside else "none",
        n_rows=n_rows,
    )


def _start(view: View) -> NDArray[np.float32] | None:
    for _, m in view.messages(BaseScore):
        return m.margin
    return None


def histograms_of(view: View, replayed: ReplayedTree, source: str) -> NodeHistograms:
    """Return the histograms of one source in a replayed tree, converted from fixed point.

    Parameters
    ----------
    view : View
        The adversary's view.
    replayed : ReplayedTree
        The tree.
    source : str
        Key of the histograms in ``replayed.sums``.
    """
    fixed = replayed.sums[source], replayed.totals[source][replayed.nodes]
    sums, totals = (from_fixed(part, replayed.bits) for part in fixed)
    law = law_of_sums(view, clients_in(view, source), hiding=False)
    slack = None if law is None else reach_of(law, replayed.n_summands, replayed.bits)
    return NodeHistograms(replayed.nodes, sums, totals, slack, replayed.n_summands == 1)


def _assemble(view: View) -> tuple[Tree, ...]:
    """Build the trees from the broadcast splits and leaf values."""
    builders: dict[int, TreeBuilder] = defaultdict(TreeBuilder)
    for item in view.seen:
        m = item.message
        if isinstance(m, NodeSplits):
            builder = builders[m.tree]
            split = (m.feature, m.threshold, m.default_left, m.gain, m.categories)
            builder.expand(m.nodes, *split)
        elif isinstance(m, LeafValues):
            builder = builders[m.tree]
            builder.set_values(m.nodes, m.value)
        else:
            continue
        if m.g is not None and m.h is not None:
            builder.set_sums(m.nodes, np.stack([m.g, m.h], axis=1))
    return tuple(builders[t].build() for t in sorted(builders))


def _released_trees(view: View) -> tuple[tuple[Tree, ...], NDArray[np.float32], Level]:
    """Return trees, base margin and level of the model that all parties have.

    There are no trees if the view contains no model.
    """
    models = (message.model() for _, message in view.messages(BoostedModel))
    forest = next(models, None) or machines_model(view)
    if forest is None:
        return (), np.zeros(0, dtype=np.float32), "values"
    shows_sums = all(t.h is not None for t in forest.trees)
    return forest.trees, forest.base_margin, "statistics" if shows_sums else "values"


def _cuts_used(trees: Sequence[Tree], features: int) -> Cuts:
    """Return the thresholds of a model as cut points. The true cut points include these."""
    feature = np.concatenate([t.feature for t in trees] or [np.zeros(0, dtype=np.int32)])
    threshold = np.concatenate([t.threshold for t in trees] or [np.zeros(0, dtype=np.float32)])
    is_number = np.isfinite(threshold)  # a split by categories, or of missing values, has none
    used = [np.unique(threshold[(feature == k) & is_number]) for k in range(features)]
    used = [values if len(values) else np.zeros(1, dtype=np.float32) for values in used]
    return Cuts.join(used, [np.nextafter(values[0], np.float32(-np.inf)) for values in used])


def _bare(tree: Tree) -> Tree:
    return replace(tree, g=None, h=None, gain=None)


def noise_of(
    view: View,
    trees: tuple[Tree, ...],
    cuts: Cuts,
    parties: tuple[int, int],
    sent_with_splits: bool = False,
    rows: tuple[Tree, ...] | None = None,
) -> tuple[SumVariance, ...] | None:
    """Return the known noise on the sums of every tree, None if they are exact.

    Parameters
    ----------
    view : View
        The adversary's view.
    trees : tuple of Tree
        Trees with the sums of all clients, which decide which nodes were built.
    cuts : Cuts
        Bins of the histograms.
    parties : tuple of int
        Number of clients whose noise is in the sums of nodes, and in those of bins.
    sent_with_splits : bool, default False
        Whether the sums were sent with splits and leaf values.
    rows : tuple of Tree, optional
        The trees with the sums that contain the noise, if these are different.
    """
    if releases_leaves(view):
        return leaf_noise(view, trees, 1.0)
    cell_of = [
        cell_variance(law_of_sums(view, n, hiding=False)) if n else (0.0, 0.0) for n in parties
    ]
    each, more = row_variance(view), leaf_sum_variance(view) if sent_with_splits else (0.0, 0.0)
    if not (any(map(any, cell_of)) or each or any(more)):
        return None
    nodes, bins = ([node_noise(t, cuts, cell) for t in trees] for cell in cell_of)
    cells = [replace(b, g=n.g + more[0], h=n.h + more[1]) for n, b in zip(nodes, bins, strict=True)]
    if not each:
        return tuple(cells)
    if view.defense.requirements.unit_hessian and trees[0].h is not None:
        inside = [np.maximum(t.h, 0.0) for t in rows or trees]  # type: ignore[arg-type]
    else:
        inside = _expected_rows(view, trees)
    return tuple(
        replace(n, g=n.g + each * r, row_g=each) for n, r in zip(cells, inside, strict=True)
    )


def _expected_rows(view: View, trees: tuple[Tree, ...]) -> list[NDArray[np.float64]]:
    """Return the expected number of rows in every node, one array per tree.

    The rows of the prior (`View.prior_rows`) are routed through each tree, and their share of a
    node estimates the share of all rows.
    """
    X = (view.prior_rows or Table.empty(view.schema)).X
    out = []
    for tree, leaf in zip(trees, Routes.of(trees).apply(X).T, strict=True):
        rows = np.bincount(leaf, minlength=len(tree)) + np.where(tree.feature < 0, 0.5, 0.0)
        rows *= view.n_rows / rows.sum()
        out.append(sums_below(tree, rows[tree.leaves]))
    return out


def node_noise(tree: Tree, cuts: Cuts, cell: tuple[float, float]) -> SumVariance:
    """Propagate the variance of the noise through splits and sibling subtraction.

    Parameters
    ----------
    tree : Tree
        ``tree.h`` decides which sibling was built.
    cuts : Cuts
        Bins of the histograms.
    cell : tuple of float
        Variance of gradient and hessian in a newly built bin, over all clients.
    """
    node = np.zeros((len(tree), 2))
    cells = np.broadcast_to(cell, node.shape).copy()
    node[0] = cell
    bin_of = _bins_left(tree, cuts)
    for i in np.flatnonzero(tree.feature >= 0):
        left, right = int(tree.left[i]), int(tree.right[i])
        node[left] = bin_of[i] * cells[i]
        # the right child is the difference of parent and left child, so that variances add up
        node[right] = node[i] + node[left]
        if tree.h is not None:
            pair = np.array([left, right], dtype=np.int32)
            sums = to_fixed(np.stack([np.zeros(2), tree.h[pair]], axis=1))
            built = int(children_to_build(pair, sums)[0])
            cells[left + right - built] = cells[i] + cell
    g, h = node.T.copy()
    return SumVariance(g=g, h=h, cell_g=cells[:, 0].copy(), cell_h=cells[:, 1].copy())


def _bins_left(tree: Tree, cuts: Cuts) -> NDArray[np.int64]:
    """Return the number of histogram cells in each inner node's left child, int64, (n_nodes,)."""
    count = np.zeros(len(tree), dtype=np.int64)
    for i in np.flatnonzero(tree.feature >= 0):
        count[i] = bins_left(tree, int(i), cuts).sum()
    return count

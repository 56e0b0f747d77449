"""Visible leaves, splits and local candidates of a party without labels, and their likelihood.

The messages of a vertical training contain the row ids of tree nodes. A party therefore knows the
rows of many nodes, and which split candidates of its columns were not chosen.

Every node of a tree takes the best of all candidate splits. Under the true labels, the chosen
partition gains at least as much as every local candidate. The likelihood of the splits, given
labels of the rows (`log_probability`), is a softmax: a partition is chosen with a probability
proportional to exp(beta * gain).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from fedtrees.core.compilation import kernel
from fedtrees.core.reasons import Reason
from fedtrees.core.view import View
from fedtrees.messages.vertical import KnownNodes, RootRows, TreeColumns, replayed, visible_leaves
from fedtrees.trees.binning import bin_rows
from fedtrees.trees.cut_points import quantile_cuts

#: Largest number of bins per column.
MOST_BINS = 64


@dataclass(frozen=True, eq=False)
class Columns:
    """Local columns of the principals, restricted to rows that all of them have."""

    ids: NDArray[np.int64]  # shape (N,)
    positions: NDArray[np.intp]  # shape (F,): positions of the columns in the schema
    X: NDArray[np.float32]  # shape (N, F)


@dataclass(frozen=True, eq=False)
class SeenTree:
    """The visible nodes of one tree.

    Attributes
    ----------
    number : int
        Number of the tree.
    rows : int32 array, shape (m,)
        Rows of the tree, in an order in which every node is a slice.
    begin, middle, end : int64 array, shape (V,)
        Slices of nodes with a visible split, and the end of their left child. They are followed by
        the leaves above the last two levels, with `middle` -1.
    early : int32 array, shape (k,)
        One row of each of these leaves, which are mostly pure.
    leaf : int64 array, shape (N,)
        Visible leaf of every row, numbered from 0, -1 if the row is not in the tree.
    usable : bool array, shape (F,)
        Local columns that the tree may use.
    """

    number: int
    rows: NDArray[np.int32]
    begin: NDArray[np.int64]
    middle: NDArray[np.int64]
    end: NDArray[np.int64]
    early: NDArray[np.int32]
    leaf: NDArray[np.int64]
    usable: NDArray[np.bool_]


def own_columns(view: View) -> Columns | None:
    """Return the local columns of the principals, None if they have no data or know labels."""
    if not view.local_data or any(local.y is not None for local in view.local_data):
        return None
    ids = view.local_data[0].ids
    for local in view.local_data[1:]:
        ids = ids[np.isin(ids, local.ids)]
    parts = []
    for local in view.local_data:
        # the parties can have their rows in different orders
        order = np.argsort(local.ids)
        parts.append(local.X[order[np.searchsorted(local.ids[order], ids)]])
    positions = np.concatenate([local.columns for local in view.local_data])
    return Columns(ids, positions, np.concatenate(parts, axis=1))


def no_leaves(view: View) -> Reason | None:
    """Return why there are no visible leaves of rows without labels, None if there are."""
    if own_columns(view) is None:
        return Reason("no-unlabelled-rows")
    if not any(isinstance(item.message, RootRows) for item in view.seen):
        return Reason("no-record-ids")
    return None


def tree_weights(view: View, trees: int, decay: float) -> NDArray[np.float64]:
    """Return the weight of each tree: 1 in a forest, ``decay ** round`` in boosting."""
    if not is_boosted(view):
        return np.ones(trees)
    return decay ** (np.arange(trees) // outputs(view)).astype(np.float64)


def is_boosted(view: View) -> bool:
    """Return whether the trees are boosted. Otherwise they form a random forest."""
    return "learning_rate" in view.parameters


def outputs(view: View) -> int:
    """Return the number of trees per round of boosting: one, or one per class."""
    K = len(view.schema.classes)
    return K if K > 2 and not view.parameters.get("multi_output") else 1


def seen_leaves(view: View, single: str) -> tuple[NDArray[np.int32], NDArray[np.intp]]:
    """Return visible leaves, int32 (N, T), and the numbers of their trees.

    Trees without visible leaves are omitted. With ``single="drop"``, trees with one visible leaf
    are omitted, too, because they show only which rows were sampled for the tree.
    """
    leaves = visible_leaves(view)
    least = 2 if single == "drop" else 1
    informative = [t for t in range(leaves.shape[1]) if _different(leaves[:, t]) >= least]
    numbers = np.array(informative, dtype=np.intp)
    return np.ascontiguousarray(leaves[:, numbers]), numbers


def _different(leaf: NDArray[np.int32]) -> int:
    return int((np.bincount(leaf + 1)[1:] > 0).sum()) if len(leaf) else 0


def _size(tree_nodes: KnownNodes, node: int) -> int:
    """Return the number of rows in a known node."""
    return len(tree_nodes.partition.rows_of(node))


def seen_trees(view: View, positions: NDArray[np.intp]) -> list[SeenTree]:
    """Return the visible nodes of all trees whose root rows the principals received, in order."""
    usable = _usable(view, positions)
    deepest = view.parameters.get("max_depth")
    max_depth = int(deepest) if isinstance(deepest, int) and deepest > 0 else 2**30
    trees = []
    for number, tree_nodes in sorted(replayed(view).items()):
        nodes, left = tree_nodes.nodes, tree_nodes.left
        # depth of each node, because nodes are in order from the root down
        depth = {0: 0}
        for node in nodes:
            if node in left:
                depth[left[node]] = depth[left[node] + 1] = depth[node] + 1
        early = [n for n in nodes if n not in left and depth[n] < max_depth - 1]
        if view.parameters.get("max_leaves"):
            early = []  # the limit on the number of leaves can be the reason, too
        # With noisy sums, a split can produce children without rows. These contain no information.
        split = [
            n
            for n in nodes
            if n in left and _size(tree_nodes, left[n]) * _size(tree_nodes, left[n] + 1)
        ]
        early = [n for n in early if _size(tree_nodes, n)]
        ranges = tree_nodes.partition.ranges(np.array([*split, *early], dtype=np.int32))
        lefts = np.array([left[n] for n in split], dtype=np.int32)
        middle = np.full(len(ranges), -1, dtype=np.int64)
        middle[: len(split)] = tree_nodes.partition.ranges(lefts)[:, 1]
        leaf = np.full(view.n_rows, -1, dtype=np.int64)
        for code, node in enumerate(tree_nodes.leaves):
            leaf[tree_nodes.rows_of(node)] = code
        trees.append(
            SeenTree(
                number,
                tree_nodes.partition.rows,
                ranges[:, 0].astype(np.int64),
                middle,
                ranges[:, 1].astype(np.int64),
                tree_nodes.partition.rows[ranges[len(split) :, 0]],
                leaf,
                usable.get(number, np.ones(len(positions), dtype=bool)),
            )
        )
    return trees


def _usable(view: View, positions: NDArray[np.intp]) -> dict[int, NDArray[np.bool_]]:
    """Return which local columns every tree may use, if the principals announced it."""
    usable: dict[int, NDArray[np.bool_]] = {}
    tree = -1
    for item in view.seen:
        message = item.message
        if isinstance(message, RootRows):
            tree = message.tree
        elif isinstance(message, TreeColumns) and message.party in view.principals:
            here = usable.setdefault(tree, np.zeros(len(positions), dtype=bool))
            here |= np.isin(positions, message.columns)
    return usable


def candidate_bins(
    X: NDArray[np.float32], max_bin: int
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Return the bin of every value, int64 (N, F), and the number of bins of each column.

    Candidate splits lie between bins. Missing values are in a separate last bin.
    """
    cuts = quantile_cuts(X, min(max_bin, MOST_BINS))
    bins = bin_rows(X, cuts)
    codes = np.stack([bins.codes[:, f] for f in range(X.shape[1])], axis=1).astype(np.int64)
    missing = codes == bins.missing
    codes = np.where(missing, cuts.n_bins.astype(np.int64), codes)
    return codes, cuts.n_bins.astype(np.int64) + missing.any(axis=0)


Floats = NDArray[np.float64]

#: Inverse temperatures that are tried, per unit of gain.
BETAS = 4.0 ** np.arange(-4, 3)
#: Relative difference of gains up to which a local candidate is considered the chosen partition.
SAME = 1e-9


@dataclass(frozen=True, eq=False)
class Candidates:
    """The local candidate splits, which lie between neighbouring bins."""

    codes: NDArray[np.int64]  # shape (N, F): bin of every value
    n_bins: NDArray[np.int64]  # shape (F,): bins per column


def log_probability(
    tree: SeenTree,
    local_candidates: Candidates,
    G: Floats,
    H: Floats,
    lam: float,
    floor: float,
    doubt: float,
) -> tuple[float, Floats]:
    """Return the log-likelihood of the splits of one tree, and its derivative with respect to G.

    Parameters
    ----------
    tree : SeenTree
        Visible nodes.
    local_candidates : Candidates
        Local candidate splits.
    G, H : float64 array, shape (N, C)
        The score of a node S is ``sum_c G_S^2 / (H_S + lam)``, with sums over its rows. Class
        shares for G, ones for H and lam = 0 give the Gini criterion times the number of rows.
        Gradients and hessians give the gain of XGBoost.
    lam : float
        L2 penalty.
    floor : float
        Smallest gain of a split. The best candidate of a node without split gains at most this.
    doubt : float
        Probability that the lack of a visible split has another reason than a lack of gain.

    Returns
    -------
    log_likelihood : float
        In nats, at the best inverse temperature of `BETAS`.
    slope : float64 array, shape (N, C)
        Derivative with respect to G.
    """
    B = int(local_candidates.n_bins.max(initial=0))
    slope = np.zeros_like(G)
    V = len(tree.begin)
    if not V or B < 2 or not tree.usable.any():
        return 0.0, slope
    used = np.flatnonzero(tree.usable)
    codes = np.ascontiguousarray(local_candidates.codes[:, used])
    n_bins = local_candidates.n_bins[used]
    nodes = (tree.rows, tree.begin, tree.middle, tree.end, codes, n_bins)
    taken, gains, left_g, left_h, total_g, total_h, own_g, own_h = _gains(*nodes, G, H, lam, B)
    split = tree.middle >= 0
    taken = np.where(split, taken, floor)
    scale = np.abs(taken)[:, None, None] + 1e-12
    # A local candidate with the same gain is the chosen partition itself, and must not compete.
    twice = split[:, None, None] & (np.abs(gains - taken[:, None, None]) <= SAME * scale)
    gains = np.where(twice, -np.inf, gains)
    every = np.concatenate([taken[:, None], gains.reshape(V, -1)], axis=1) - taken[:, None]
    chances, away_at = _odds(every, split)
    fits = [float(np.log(_soften(chance, split, doubt)).sum()) for chance in chances]
    best = int(np.argmax(fits))
    chance, away = chances[best], away_at(best)
    sure = np.where(split, 1.0, (1 - doubt) * chance / _soften(chance, split, doubt))
    away = (away * sure[:, None]).reshape(gains.shape)
    pull = (away.sum(axis=(1, 2)), away)
    _pulls(*nodes, left_g, left_h, total_g, total_h, own_g, own_h, *pull, lam, slope)
    return fits[best], BETAS[best] * slope


def _odds(excess: Floats, split: NDArray[np.bool_]) -> tuple[list[Floats], Callable[[int], Floats]]:
    """Return the probability of every choice, and its logarithmic derivatives.

    Parameters
    ----------
    excess : float64 array, shape (V, 1 + candidates)
        Gain of each candidate minus that of the chosen partition, which comes first.
    split : bool array, shape (V,)
        Whether the node was split. At other nodes only candidates with a larger gain count.

    Returns
    -------
    chances : list of float64 array, shape (V,)
        Probabilities of the choices, for each of `BETAS`.
    away : callable
        ``away(k)`` returns the derivatives of the log probabilities with respect to the gains of
        the candidates, times -1 / beta, for ``BETAS[k]``, float64, shape (V, candidates).
    """
    # Powers of the smallest inverse temperature give all larger ones, because each is four times
    # the previous one. This replaces further calls of exp.
    top = np.maximum(excess.max(axis=1, keepdims=True), 0.0)
    counts = split[:, None] | (excess[:, 1:] > 0)
    spared = np.where(split, 0, counts.sum(axis=1))
    odds, spare = np.exp(BETAS[0] * (excess - top)), np.exp(-BETAS[0] * top[:, 0])
    odds[:, 1:] *= counts
    wholes, chances = list[Floats](), list[Floats]()
    for _ in BETAS:  # each is four times the one before
        wholes.append(odds.sum(axis=1) - spared * spare)
        chances.append(odds[:, 0] / wholes[-1])
        odds, spare = odds**2, spare**4
        odds *= odds

    def away(at: int) -> Floats:
        odds_at = np.exp(BETAS[at] * (excess[:, 1:] - top))
        return np.asarray(odds_at * counts / wholes[at][:, None])

    return chances, away


def _soften(chance: Floats, split: NDArray[np.bool_], doubt: float) -> Floats:
    return np.maximum(np.where(split, chance, (1 - doubt) * chance + doubt), 1e-300)


@kernel
def _gains(rows, begin, middle, end, codes, n_bins, G, H, lam, B):  # type: ignore[no-untyped-def]
    V, F, C = len(begin), codes.shape[1], G.shape[1]
    taken = np.zeros(V)
    gains = np.full((V, F, B), -np.inf)
    left_g, left_h = np.zeros((V, F, B, C)), np.zeros((V, F, B, C))
    total_g, total_h = np.zeros((V, C)), np.zeros((V, C))
    own_g, own_h = np.zeros((V, C)), np.zeros((V, C))
    count = np.empty((F, B))
    for v in range(V):
        count[:] = 0
        for q in range(begin[v], end[v]):
            i = rows[q]
            for c in range(C):
                total_g[v, c] += G[i, c]
                total_h[v, c] += H[i, c]
                if q < middle[v]:
                    own_g[v, c] += G[i, c]
                    own_h[v, c] += H[i, c]
            for f in range(F):
                b = codes[i, f]
                count[f, b] += 1
                for c in range(C):
                    left_g[v, f, b, c] += G[i, c]
                    left_h[v, f, b, c] += H[i, c]
        # The gain of a partition is the score of both children minus that of the node.
        base = 0.0
        for c in range(C):
            base += total_g[v, c] ** 2 / (total_h[v, c] + lam)
        taken[v] = -base
        for c in range(C):
            g, h = total_g[v, c] - own_g[v, c], total_h[v, c] - own_h[v, c]
            taken[v] += own_g[v, c] ** 2 / (own_h[v, c] + lam) + g * g / (h + lam)
        n = end[v] - begin[v]
        for f in range(F):
            seen = 0
            for b in range(n_bins[f] - 1):
                seen += count[f, b]
                if b > 0:  # cumulative sums over bins are the sums of the left child
                    for c in range(C):
                        left_g[v, f, b, c] += left_g[v, f, b - 1, c]
                        left_h[v, f, b, c] += left_h[v, f, b - 1, c]
                if count[f, b] == 0 or seen == n:  # same partition as before, or an empty child
                    continue
                gains[v, f, b] = -base
                for c in range(C):
                    a, d = left_g[v, f, b, c], left_h[v, f, b, c]
                    g, h = total_g[v, c] - a, total_h[v, c] - d
                    gains[v, f, b] += a * a / (d + lam) + g * g / (h + lam)
    return taken, gains, left_g, left_h, total_g, total_h, own_g, own_h


@kernel
def _pulls(  # type: ignore[no-untyped-def]
    rows, begin, middle, end, codes, n_bins,
    left_g, left_h, total_g, total_h, own_g, own_h, toward, away, lam, slope,
):  # fmt: skip
    V, F, C = len(begin), codes.shape[1], slope.shape[1]
    B = left_g.shape[2]
    bins = np.zeros((F, B, C))
    lift, drop = np.zeros(C), np.zeros(C)
    for v in range(V):
        for f in range(F):
            for c in range(C):
                # rows of a bin are left of the candidates from this bin on, right of earlier ones
                below = 0.0
                for b in range(n_bins[f]):
                    bins[f, b, c] = below
                    g, h = total_g[v, c] - left_g[v, f, b, c], total_h[v, c] - left_h[v, f, b, c]
                    if away[v, f, b] > 0:
                        below += away[v, f, b] * 2 * g / (h + lam)
                above = 0.0
                for b in range(n_bins[f] - 1, -1, -1):
                    if away[v, f, b] > 0:
                        above += away[v, f, b] * 2 * left_g[v, f, b, c] / (left_h[v, f, b, c] + lam)
                    bins[f, b, c] += above
        for c in range(C):
            g, h = own_g[v, c], own_h[v, c]
            lift[c] = toward[v] * 2 * g / (h + lam)
            g, h = total_g[v, c] - g, total_h[v, c] - h
            drop[c] = toward[v] * 2 * g / (h + lam)  # for a node without split, of all its rows
        for q in range(begin[v], end[v]):
            i = rows[q]
            for c in range(C):
                s = lift[c] if q < middle[v] else drop[c]
                for f in range(F):
                    s -= bins[f, codes[i, f], c]
                slope[i, c] += s

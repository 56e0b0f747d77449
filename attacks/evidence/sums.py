"""Leaf sums of the victims' rows: the broadcast sums less the contribution of the local rows."""

from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from fedtrees.attacks.evidence.boosted import Evidence
from fedtrees.attacks.evidence.own_sums import bins_left
from fedtrees.attacks.evidence.routing import add_values, gradients_of
from fedtrees.core.schema import Table
from fedtrees.trees.boosted.forest import Tree
from fedtrees.trees.routing import Routes

Floats = NDArray[np.float64]


@dataclass(frozen=True, eq=False)
class LeafSums:
    """Sums over the leaves of one tree, in ascending node order.

    Attributes
    ----------
    g, h : float64 array, shape (J,), or None
        Victims' sums of gradients and hessians. None if only leaf values are visible.
    var_g, var_h : float64 array, shape (J,)
        Variance of the noise on these sums, 0 if they are exact.
    own_g, own_h : float64 array, shape (J,)
        Contribution of the adversary's rows that was subtracted.
    own_n0, own_n1 : int64 array, shape (J,)
        Number of the adversary's rows of other classes than the tree's, and of that class.
    own_leaf : int32 array, shape (n_own,)
        Position (not node number) of the leaf of each row of the prior.
    prior_n0, prior_n1 : int64 array, shape (J,), or None
        Number of rows from which leaf shares and class rates are estimated: local rows, else rows
        of the population. None means that they are the local rows.
    """

    g: Floats | None
    h: Floats | None
    var_g: Floats
    var_h: Floats
    own_g: Floats
    own_h: Floats
    own_n0: NDArray[np.int64]
    own_n1: NDArray[np.int64]
    own_leaf: NDArray[np.int32]
    prior_n0: NDArray[np.int64] | None = None
    prior_n1: NDArray[np.int64] | None = None

    @property
    def prior_counts(self) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """The prior's rows in each leaf outside and inside the tree's class, shape (J,) each."""
        if self.prior_n0 is None or self.prior_n1 is None:
            return self.own_n0, self.own_n1
        return self.prior_n0, self.prior_n1


def victim_sums(
    evidence: Evidence, local_rows: Table, n_trees: int, subtract: bool = True
) -> list[LeafSums]:
    """Return the sums of the victims' rows for each tree.

    The local rows are routed with their float32 margins, as in training. With ``subtract=False``
    the sums are those of all rows, which Di Gennaro et al. (2025) reconstruct.

    Parameters
    ----------
    evidence : Evidence
        Trees and sums.
    local_rows : Table
        Local rows.
    n_trees : int
        Number of trees.
    subtract : bool, default True
        Whether to subtract the contribution of the local rows.
    """
    # float32 margins reproduce the gradients of the training exactly
    margin = evidence.start(len(local_rows))
    out = []
    nodes = Routes.of(evidence.trees[:n_trees]).apply(local_rows.X)
    likely = evidence.prior_rows(local_rows)
    placed = None if likely is local_rows else Routes.of(evidence.trees[:n_trees]).apply(likely.X)
    for t in range(n_trees):
        tree, node, k = evidence.trees[t], nodes[:, t], t % evidence.outputs
        if k == 0:
            before = margin.copy()
        g, h = gradients_of(evidence, before, local_rows.y, local_rows.X[:, -1], k)
        positive = local_rows.y == evidence.class_of(t)
        sums = _one_tree(evidence, t, positive, node, (g, h), subtract)
        if placed is not None:
            of_class = likely.y == evidence.class_of(t)
            n0, n1 = (_per_leaf(tree, placed[part, t]) for part in (~of_class, of_class))
            sums = replace(sums, prior_n0=n0, prior_n1=n1)
        out.append(sums)
        add_values(margin, k, tree.value[node])
    return out


def _per_leaf(tree: Tree, node: NDArray[np.int32]) -> NDArray[np.int64]:
    """Return the number of rows in each leaf of a tree, given the leaf nodes of the rows."""
    return np.bincount(node, minlength=len(tree))[tree.leaves]


def with_leaves_of(rows: Table, evidence: Evidence, sums: list[LeafSums]) -> list[LeafSums]:
    """Return the sums with ``own_leaf`` for other prior rows.

    Parameters
    ----------
    rows : Table
        Rows of the prior.
    evidence : Evidence
        The trees.
    sums : list of LeafSums
        Sums of the first trees.
    """
    trees = evidence.trees[: len(sums)]
    nodes = Routes.of(trees).apply(rows.X).T
    return [
        replace(s, own_leaf=np.searchsorted(tree.leaves, node).astype(np.int32))
        for s, tree, node in zip(sums, trees, nodes, strict=True)
    ]


def _one_tree(
    evidence: Evidence,
    t: int,
    positive: NDArray[np.bool_],
    node: NDArray[np.int32],
    own_gh: tuple[Floats, Floats],
    subtract: bool,
) -> LeafSums:
    tree = evidence.trees[t]
    leaves, n = tree.leaves, len(tree)
    own_g, own_h = (np.bincount(node, part, n)[leaves].astype(np.float64) for part in own_gh)
    own_n0, own_n1 = (np.bincount(node[of], minlength=n)[leaves] for of in (~positive, positive))
    variance = np.zeros((2, len(leaves)))
    if not subtract:
        own_g, own_h = np.zeros_like(own_g), np.zeros_like(own_h)
    elif evidence.own_sums is not None:
        sent_sums = evidence.own_sums[t].T
        if evidence.suppressed:  # rows of small bins count in wrong leaves, also those of victims
            rows_ratio = (evidence.n_rows or 0) / max(len(node), 1) - 1
            variance = (max(rows_ratio, 0.0) * (sent_sums - np.stack([own_g, own_h]))) ** 2
        own_g, own_h = sent_sums
    elif evidence.share < 1:  # each row takes part with this probability
        spread = evidence.share * (1 - evidence.share)
        variance = np.stack([spread * np.bincount(node, part**2, n)[leaves] for part in own_gh])
        own_g, own_h = evidence.share * own_g, evidence.share * own_h
    seen = leaf_sums(evidence, t)
    noise = None if evidence.noise is None else evidence.noise[t]
    if not evidence.own_inside and evidence.reg_alpha:  # a value of 0 leaves G open
        variance[0] += np.where(tree.value[leaves] == 0, evidence.reg_alpha**2 / 3, 0.0)
    return LeafSums(
        g=None if seen is None else seen[0] - own_g,
        h=None if seen is None else seen[1] - own_h,
        var_g=variance[0] + (0.0 if noise is None else np.maximum(noise.g[leaves], 0.0)),
        var_h=variance[1] + (0.0 if noise is None else np.maximum(noise.h[leaves], 0.0)),
        own_g=own_g,
        own_h=own_h,
        own_n0=own_n0,
        own_n1=own_n1,
        own_leaf=np.searchsorted(leaves, node).astype(np.int32),
    )


def leaf_sums(evidence: Evidence, t: int) -> tuple[Floats, Floats] | None:
    """Return the broadcast sums (G, H) of each leaf, float64, shape (J,) each.

    They are taken from the nodes. If only hessians are visible, G follows from the leaf value (Di
    Gennaro et al. 2025, Eq. 7). If only histograms are visible, both are computed from the parent's
    bins. The result is None if none of these determines the sums.
    """
    if evidence.level == "values":
        return None
    tree = evidence.trees[t]
    leaves = tree.leaves
    if tree.h is not None:
        h = np.nan_to_num(tree.h[leaves].astype(np.float64))
        if tree.g is not None:
            return np.nan_to_num(tree.g[leaves].astype(np.float64)), h
        u = tree.value[leaves].astype(np.float64) / evidence.learning_rate
        return -u * (h + evidence.reg_lambda) - evidence.reg_alpha * np.sign(u), h
    if evidence.histograms is None or evidence.cuts is None:
        return None
    sums = _sums_from_histograms(evidence, t, tree)
    return None if sums is None else (sums[leaves, 0], sums[leaves, 1])


def _sums_from_histograms(evidence: Evidence, t: int, tree: Tree) -> Floats | None:
    assert evidence.histograms is not None
    assert evidence.cuts is not None
    hist, cuts = evidence.histograms[t], evidence.cuts
    sums = np.full((len(tree), 2), np.nan)
    sums[hist.nodes] = hist.totals
    for k, node in enumerate(hist.nodes):
        f = tree.feature[node]
        if f < 0:
            continue
        a, b = int(cuts.offsets[f]), int(cuts.offsets[f + 1])
        left = hist.sums[k, a:b][bins_left(tree, int(node), cuts)].sum(axis=0)
        if tree.default_left[node]:
            left = left + hist.totals[k] - hist.sums[k, a:b].sum(axis=0)
        for child, part in ((tree.left[node], left), (tree.right[node], hist.totals[k] - left)):
            # totals that were sent take precedence over derived ones
            if np.isnan(sums[child, 0]):
                sums[child] = part
    return None if np.isnan(sums[tree.leaves]).any() else sums

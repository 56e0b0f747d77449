"""Rows joined by the leaves that they share."""

import numpy as np
from numpy.typing import NDArray
from scipy.sparse import coo_array
from scipy.sparse.csgraph import connected_components

from fedtrees.attacks.labels.twins import Twins
from fedtrees.trees.jit import kernel

#: Share of the rows that a part needs to count as a class.
LEAST_PART = 0.1
#: Groups beyond so many, the smallest, are not joined but put where they share most.
MOST_GROUPS = 8192


def components(twins: Twins) -> NDArray[np.int64]:
    """Return the component of every group in the record-id graph (the Union attack of
    Takahashi et al. 2023: rows that share a leaf have one label, and so on from leaf to leaf)."""
    S, J = len(twins.leaf), len(twins.tree)
    s, t = np.nonzero(twins.leaf >= 0)
    ends = (s, S + twins.leaf[s, t])
    graph = coo_array((np.ones(len(s), np.int8), ends), shape=(S + J, S + J))
    return connected_components(graph, directed=False)[1][:S].astype(np.int64)


def joined(twins: Twins, count: int) -> NDArray[np.int64]:
    """Return the part of every group, int64 (S,), where edges that weigh too little are cut.

    That is single linkage (Gower and Ross 1969) by the weights of Eq. 1: the least weight is taken
    at which `count` parts are of a tenth of the rows each. Groups of smaller parts go to the large
    one whose rows they share most with. Where no weight leaves so many, `components`.
    """
    joint = np.argsort(-twins.weight, kind="stable")[:MOST_GROUPS]
    if not len(joint):
        return components(twins)
    parent, weight = _spanning_tree(twins.leaf[joint], twins.eta)
    whole = twins.weight.sum()
    for least in np.unique(weight[1:]):
        kept = np.flatnonzero(weight >= least)
        edges = (np.ones(len(kept), np.int8), (kept, parent[kept]))
        graph = coo_array(edges, shape=(len(joint), len(joint)))
        part = connected_components(graph, directed=False)[1]
        rows = np.bincount(part, twins.weight[joint])
        if (rows >= LEAST_PART * whole).sum() >= count:
            large = np.argsort(-rows, kind="stable")[:count]
            return _nearest(twins, joint, part, large)
    return components(twins)


def _nearest(
    twins: Twins, joint: NDArray[np.intp], part: NDArray[np.int32], large: NDArray[np.intp]
) -> NDArray[np.int64]:
    """Return the large part that every group shares most with, on average over its rows."""
    inside = np.zeros((len(twins.leaf), len(large)))
    inside[joint] = twins.weight[joint, None] * (part[:, None] == large)
    shared = twins.per_leaf(inside) / inside.sum(axis=0) * twins.eta[twins.tree][:, None]
    shared = np.vstack([shared, np.zeros((1, len(large)))])
    at = np.where(twins.leaf >= 0, twins.leaf, len(twins.tree))
    return np.asarray(shared[at].sum(axis=1).argmax(axis=1))


@kernel
def _spanning_tree(leaf, eta):  # type: ignore[no-untyped-def]
    """Return the heaviest spanning tree (Prim 1957): each group's neighbour, and that edge."""
    S, T = leaf.shape
    parent, weight = np.zeros(S, dtype=np.int64), np.full(S, -1.0)
    left = np.ones(S, dtype=np.bool_)
    at = 0
    for _ in range(S - 1):
        left[at] = False
        best, to = -1.0, at
        for s in range(S):
            if not left[s]:
                continue
            edge = 0.0
            for t in range(T):
                if leaf[s, t] >= 0 and leaf[s, t] == leaf[at, t]:
                    edge += eta[t]
            if edge > weight[s]:
                weight[s], parent[s] = edge, at
            if weight[s] > best:
                best, to = weight[s], s
        at = to
    return parent, weight

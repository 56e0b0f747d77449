"""Communities of the record-id graph: Louvain and greedy merging, without the graph's matrix.

The adjacency matrix of N rows has N^2 entries. All sums over edges follow from the counts of rows
per leaf and community, because two rows are connected if they share a leaf. Rows that share all
visible leaves are contracted to one weighted group.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedtrees.core.compilation import kernel


def number_values(values: NDArray[np.integer]) -> tuple[NDArray[np.intp], NDArray[Any]]:
    """Return the number of every value, and the distinct values in the order of their numbers.

    Parameters
    ----------
    values : int array, shape (n,)

    Returns
    -------
    number : intp array, shape (n,)
        0 for the first value and those equal to it, 1 for the next distinct value, and so on.
    distinct : array of the type of `values`

    Examples
    --------
    >>> number, distinct = number_values(np.array([7, 3, 7, -1]))
    >>> number.tolist(), distinct.tolist()
    ([0, 1, 0, 2], [7, 3, -1])
    """
    n = len(values)
    low = int(values.min(initial=0))
    span = int(values.max(initial=0)) - low + 1
    if span > 4 * n + 64:  # such as hashes: sort the values
        ordered, first, place = np.unique(values, return_index=True, return_inverse=True)
    else:  # such as leaves: count them, in linear time
        place = values.astype(np.intp) - low
        first = np.full(span, n, dtype=np.intp)
        first[place[::-1]] = np.arange(n)[::-1]  # the last assignment is the first appearance
        present = first < n
        place = (np.cumsum(present) - 1)[place]
        ordered = (np.flatnonzero(present) + low).astype(values.dtype)
        first = first[present]
    order = np.argsort(first)
    number = np.empty(len(order), dtype=np.intp)
    number[order] = np.arange(len(order))
    return number[place.reshape(-1)], ordered[order]


#: Beyond this a packed key no longer fits in an int64.
_MOST_KEYS = 2**62


@dataclass(frozen=True, eq=False)
class Twins:
    """The record-id graph of Takahashi et al. (2023, Eq. 1) without its N x N matrix.

    The weight of an edge between two rows is ``A_ij = sum_t eta_t [leaf_t(i) = leaf_t(j)]``, the
    diagonal included. Rows with equal leaves in every tree are twins. ``A = sum_t eta_t M_t M_t'``
    is positive semi-definite, so ``k_i^2 / 2m <= A_ii = A_ij`` for twins: no partition loses
    modularity if all twins move to the best of their communities, and some optimum keeps every
    group together.
    """

    # shape (S, T): leaf of every group in every tree, numbered 0 to J - 1 over all trees, -1 if the
    # group is absent
    leaf: NDArray[np.int32]
    weight: NDArray[np.float64]  # shape (S,): rows in each group
    of_row: NDArray[np.int64]  # shape (N,): group of each row
    eta: NDArray[np.float64]  # shape (T,): weight of each tree
    tree: NDArray[np.int32]  # shape (J,): tree of each leaf

    @property
    def size(self) -> NDArray[np.float64]:
        """Rows in each leaf, shape (J,)."""
        return self.per_leaf(self.weight)

    @property
    def degree(self) -> NDArray[np.float64]:
        """Total weight of the edges of one row of each group, self-loop included, shape (S,)."""
        size = self.size
        seen = np.where(self.leaf >= 0, size[self.leaf] if len(size) else 0.0, 0.0)
        return np.asarray(seen @ self.eta)

    def per_leaf(self, values: NDArray[Any]) -> NDArray[np.float64]:
        """Return sums over the groups in every leaf: (S,) or (S, K) to (J,) or (J, K)."""
        J, T = len(self.tree), self.leaf.shape[1]
        flat = np.asarray(values, dtype=np.float64).reshape(len(self.leaf), -1)
        out = np.zeros((J + 1, flat.shape[1]))
        for t in range(T):
            at = np.where(self.leaf[:, t] >= 0, self.leaf[:, t], J)
            for k in range(flat.shape[1]):
                out[:, k] += np.bincount(at, flat[:, k], J + 1)
        return out[:J].reshape((J, *np.shape(values)[1:]))


def contract(leaves: NDArray[np.integer[Any]], eta: NDArray[np.float64] | None = None) -> Twins:
    """Contract rows that share all their visible leaves.

    Parameters
    ----------
    leaves : int array, shape (N, T)
        Visible leaf of every row in every tree, any number from 0, or -1 if absent.
    eta : float64 array, shape (T,), or None
        Weights of the trees. None: 1 each.

    Examples
    --------
    The first and the last row share both leaves:

    >>> contract(np.array([[0, 3], [0, 4], [0, 3]])).of_row.tolist()
    [0, 1, 0]

    Notes
    -----
    The leaves of a row are packed into one integer (7 bits per tree of depth 6). Hashing these
    integers takes time linear in N. Groups are in the order of their first row.
    """
    N, T = leaves.shape
    key, keys = np.zeros(N, dtype=np.int64), 1
    offset, columns, trees = 0, [], []
    for t in range(T):
        code, distinct = number_values(leaves[:, t])
        absent = np.flatnonzero(distinct < 0)
        L = len(distinct)
        # Replace the keys by consecutive numbers before the next product overflows.
        if keys * L >= _MOST_KEYS:
            key, seen = number_values(key)
            keys = len(seen)
        key = key * L + code
        keys *= L
        number = np.arange(L, dtype=np.int32)
        if len(absent):
            number[absent[0] :] -= 1
            number[absent[0]] = -1 - offset
        columns.append((code, number + offset))
        J = L - len(absent)
        offset += J
        trees.append(np.full(J, t, dtype=np.int32))
    of_row, seen = number_values(key)
    S = len(seen)
    first = np.empty(S, dtype=np.int64)
    first[of_row[::-1]] = np.arange(N)[::-1]
    leaf = np.empty((S, T), dtype=np.int32)
    for t, (code, number) in enumerate(columns):
        leaf[:, t] = number[code[first]]
    return Twins(
        leaf,
        np.bincount(of_row, minlength=S).astype(np.float64),
        of_row.astype(np.int64),
        np.ones(T) if eta is None else np.asarray(eta, dtype=np.float64),
        np.concatenate([*trees, np.zeros(0, np.int32)]).astype(np.int32),
    )


SWEEPS = 100
LEAST_GAIN = 1e-9  # smallest increase of the modularity for which another level is computed


def modularity(twins: Twins, community: NDArray[np.int64]) -> float:
    """Return Newman's modularity Q of a partition of the groups (Takahashi et al. 2023, Eq. 2)."""
    W = between(twins, community)
    total = W.sum()
    return float(np.trace(W) / total - ((W.sum(axis=1) / total) ** 2).sum()) if total else 0.0


def between(twins: Twins, community: NDArray[np.int64]) -> NDArray[np.float64]:
    """Return the total edge weight between every two communities, shape (c, c)."""
    c = int(community.max(initial=-1)) + 1
    counts = _counts(twins.leaf, twins.weight, community, len(twins.tree), c)
    return np.asarray((counts * twins.eta[twins.tree][:, None]).T @ counts)


def louvain(twins: Twins, rng: np.random.Generator) -> tuple[NDArray[np.int64], float]:
    """Maximise the modularity by the Louvain method, started from the leaves of each tree.

    We follow Blondel et al. (2008), with counts of rows per leaf and community instead of the
    adjacency matrix. A move costs (trees x communities), and the memory is (leaves x communities).
    Unlike in their method, each level moves single groups again, so that a group can leave a merged
    community.

    Returns
    -------
    community : int64 array, shape (S,)
        Communities, numbered from 0 by their first group.
    Q : float
        Modularity of the best partition, 0 if it is negative.
    """
    best, best_partition = -np.inf, np.zeros(len(twins.leaf), dtype=np.int64)
    for t in range(twins.leaf.shape[1]):
        start = _number_labels(twins.leaf[:, t].astype(np.int64))
        community, Q = _from(twins, start, rng)
        if best + LEAST_GAIN < Q:
            best, best_partition = Q, community
    return best_partition, max(best, 0.0)


def _from(
    twins: Twins, community: NDArray[np.int64], rng: np.random.Generator
) -> tuple[NDArray[np.int64], float]:
    degree = twins.degree
    Q = modularity(twins, community)
    while True:
        order = rng.permutation(len(community))
        moved = _number_labels(
            _sweeps(twins.leaf, twins.weight, degree, twins.eta, community, order, len(twins.tree))
        )
        merged = _number_labels(_merged_greedily(between(twins, moved))[moved])
        gained = modularity(twins, merged)
        if gained < Q + LEAST_GAIN:
            return (merged, gained) if gained > Q else (community, Q)
        community, Q = merged, gained


def merge_to(twins: Twins, community: NDArray[np.int64], count: int) -> NDArray[np.int64]:
    """Merge the two communities that cost the least modularity until `count` remain.

    Parameters
    ----------
    twins : Twins
        The record-id graph.
    community : int64 array, shape (S,)
        Community of each group.
    count : int
        Number of communities to return.
    """
    W = between(twins, community)
    total = W.sum()
    # `into` maps every community to the one that it was merged into.
    into = np.arange(len(W))
    alive = list(range(len(W)))
    while len(alive) > count:
        part = W[np.ix_(alive, alive)]
        degree = part.sum(axis=1)
        gain = part / total - np.outer(degree, degree) / total**2 if total else part
        gain[np.tril_indices(len(alive))] = -np.inf
        a, b = (alive[i] for i in np.unravel_index(int(gain.argmax()), gain.shape))
        W[a] += W[b]
        W[:, a] += W[:, b]
        into[into == b] = a
        alive.remove(b)
    return _number_labels(into[community])


def _merged_greedily(W: NDArray[np.float64]) -> NDArray[np.int64]:
    """Merge communities while the modularity grows. Return the new number of each."""
    c, total = len(W), W.sum()
    label, degree = np.arange(c), W.sum(axis=1)
    moved = total > 0
    while moved:
        moved = False
        for i in range(c):
            onto = np.bincount(label, W[i], c)
            tot = np.bincount(label, degree, c)
            # without community i itself, which leaves its present place
            onto[label[i]] -= W[i, i]
            tot[label[i]] -= degree[i]
            gain = onto - degree[i] * tot / total
            to = int(gain.argmax())
            if gain[to] > gain[label[i]] + LEAST_GAIN * total:
                label[i], moved = to, True
    return label


def _number_labels(labels: NDArray[np.int64]) -> NDArray[np.int64]:
    """Number labels from 0 by first appearance."""
    return np.asarray(number_values(labels)[0], dtype=np.int64)


@kernel
def _counts(leaf, weight, community, J, c):  # type: ignore[no-untyped-def]
    counts = np.zeros((J, c))
    for s in range(leaf.shape[0]):
        for t in range(leaf.shape[1]):
            if leaf[s, t] >= 0:
                counts[leaf[s, t], community[s]] += weight[s]
    return counts


@kernel
def _sweeps(leaf, weight, degree, eta, start, order, J):  # type: ignore[no-untyped-def]
    """Move single groups to the community with the largest gain, until no group moves."""
    S, T = leaf.shape
    # counts[leaf, community] replaces the adjacency matrix: the edges between a group and a
    # community are the rows of the community in the leaves of the group.
    community = start.copy()
    c = community.max() + 1
    counts = np.zeros((J, c))
    tot, many = np.zeros(c), np.zeros(c, dtype=np.int64)
    total = 0.0
    for s in range(S):
        many[community[s]] += 1
        tot[community[s]] += weight[s] * degree[s]
        total += weight[s] * degree[s]
        for t in range(T):
            if leaf[s, t] >= 0:
                counts[leaf[s, t], community[s]] += weight[s]
    if total == 0.0:
        return community
    active = np.arange(c)
    alive = c
    gain = np.empty(c)
    for _ in range(SWEEPS):
        moved = 0
        for i in range(S):
            s = order[i]
            a, w, d = community[s], weight[s], degree[s]
            # Gain of the group in each community, up to a common factor. The group itself is still
            # included in its present community, which `self_loop` corrects.
            for j in range(alive):
                gain[j] = -tot[active[j]] * d / total
            self_loop = w * d * d / total
            for t in range(T):
                at = leaf[s, t]
                if at >= 0:
                    self_loop -= eta[t] * w
                    for j in range(alive):
                        gain[j] += eta[t] * counts[at, active[j]]
            best, to, stay = -np.inf, a, 0.0
            for j in range(alive):
                if active[j] == a:
                    stay = gain[j] + self_loop
                elif gain[j] > best:
                    best, to = gain[j], active[j]
            if best <= stay + 1e-9 * d:
                continue
            moved += 1
            community[s] = to
            tot[a] -= w * d
            tot[to] += w * d
            many[a] -= 1
            many[to] += 1
            for t in range(T):
                if leaf[s, t] >= 0:
                    counts[leaf[s, t], a] -= w
                    counts[leaf[s, t], to] += w
            if many[a] == 0:  # remove the empty community from the list of candidates
                k = 0
                for j in range(alive):
                    if active[j] != a:
                        active[k] = active[j]
                        k += 1
                alive = k
        if moved == 0:
            break
    return community

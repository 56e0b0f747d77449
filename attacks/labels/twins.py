"""The record-id graph, with rows that share all visible leaves contracted to one weighted group."""

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedtrees.attacks.labels.numbering import numbered

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
        code, distinct = numbered(leaves[:, t])
        absent = np.flatnonzero(distinct < 0)
        L = len(distinct)
        # Replace the keys by consecutive numbers before the next product overflows.
        if keys * L >= _MOST_KEYS:
            key, seen = numbered(key)
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
    of_row, seen = numbered(key)
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

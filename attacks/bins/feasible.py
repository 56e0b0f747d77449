"""Shares of rows in bins that satisfy all sums: linear reconstruction (Dinur and Nissim 2003)."""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from fedtrees.attacks.evidence.subsets import Certain, Column
from fedtrees.core.compilation import kernel

Floats = NDArray[np.float64]

STEPS = 100
#: Relative eigenvalue below which a direction counts as undetermined.
SLIGHT = 1e-11
#: Largest number of open rows that are solved for, because work grows with its square.
MOST_ROWS = 5000


@dataclass(frozen=True, eq=False)
class LinearConstraints:
    """Orthonormalised linear equations for the bins of the open rows.

    Attributes
    ----------
    open : int64 array, shape (m,)
        Rows whose bin is not certain.
    sides : float64 array, shape (m, r)
        Left-hand sides.
    sums : float64 array, shape (r, B + 1)
        Right-hand sides.
    allowed : bool array, shape (m, B + 1)
        Possible bins.
    """

    open: NDArray[np.int64]  # shape (m,)
    sides: Floats  # float64 array, shape (m, r)
    sums: Floats  # float64 array, shape (r, B + 1)
    allowed: NDArray[np.bool_]  # shape (m, B + 1)

    def nearest(self, start: Floats) -> Floats:
        """Return shares (m, B + 1) close to ``start`` that satisfy the sums and the allowed bins.

        Douglas-Rachford iterations alternate between shares that add up to 1 in every row and
        shares that satisfy the sums (Eckstein and Bertsekas 1992). They converge to a point of both
        sets if there is one.
        """
        at, shares = start.copy(), np.empty_like(start)
        across = np.ascontiguousarray(self.sides.T)
        for _ in range(STEPS):
            _on_simplex(at, self.allowed, shares)
            beyond = 2 * shares - at
            at += beyond + self.sides @ (self.sums - across @ beyond) - shares
        _on_simplex(at, self.allowed, shares)
        return shares

    def condition_ranks(self, rank: Floats, middle: Floats) -> Floats:
        """Return the expected ranks of all rows given the sums, for a normal prior.

        Parameters
        ----------
        rank : float64 array, shape (N,)
            Prior means.
        middle : float64 array, shape (B + 1,)
            Rank of every bin.
        """
        out = rank.copy()
        gap = self.sums @ middle - self.sides.T @ rank[self.open]
        out[self.open] += self.sides @ gap
        return out

    @property
    def even(self) -> Floats:
        """Uniform distribution over the allowed bins, shape (m, B + 1)."""
        return np.asarray(self.allowed / self.allowed.sum(axis=1, keepdims=True))


def constrain_open_rows(column: Column, certain: Certain) -> LinearConstraints:
    """Return the equations for the open rows, after subtracting the rows with certain bins."""
    open = np.flatnonzero(certain.bin < 0)
    place = np.full(len(certain.bin), -1)
    place[open] = np.arange(len(open))
    left, right = [], []
    for node in column.nodes:
        here, certain_bin = place[node.rows], certain.bin[node.rows]
        free = here >= 0
        if not free.any():
            continue
        rest = node.sums.copy()
        np.subtract.at(rest, certain_bin[~free], node.contributions[~free])
        statistics = node.contributions[free].astype(np.float64)
        length = np.linalg.norm(statistics, axis=0)
        for s in np.flatnonzero(length > 0).tolist():
            side = np.zeros(len(open))
            side[here[free]] = statistics[:, s] / length[s]
            left.append(side)
            right.append(rest[:, s] / length[s])
    nothing = np.zeros((0, len(open))), np.zeros((0, certain.allowed.shape[1]))
    sides, sums = _orthonormal(*((np.array(left), np.array(right)) if left else nothing))
    return LinearConstraints(open, sides, sums, np.ascontiguousarray(certain.allowed[open]))


def _orthonormal(left: Floats, right: Floats) -> tuple[Floats, Floats]:
    """Return equivalent equations with orthonormal left-hand sides (m, r)."""
    if len(left) < left.shape[1]:
        values, vectors = np.linalg.eigh(left @ left.T)
        is_determined = values > SLIGHT * values.max(initial=0.0)
        vectors = vectors[:, is_determined] / np.sqrt(values[is_determined])
        return np.ascontiguousarray(left.T @ vectors), vectors.T @ right
    values, vectors = np.linalg.eigh(left.T @ left)
    is_determined = values > SLIGHT * values.max(initial=0.0)
    sides = np.ascontiguousarray(vectors[:, is_determined])
    return sides, (sides.T @ (left.T @ right)) / values[is_determined][:, None]


@kernel
def _on_simplex(at, allowed, out):  # type: ignore[no-untyped-def]
    """Project rows on distributions over the allowed bins (Held, Wolfe and Crowder 1974)."""
    n, B = at.shape
    few = np.empty(B)
    for i in range(n):
        k = 0
        for b in range(B):
            if allowed[i, b]:
                few[k] = at[i, b]
                k += 1
        ordered, total, least = np.sort(few[:k]), 0.0, 0.0
        for j in range(k - 1, -1, -1):
            total += ordered[j]
            if ordered[j] <= (total - 1) / (k - j):
                break
            least = (total - 1) / (k - j)
        for b in range(B):
            out[i, b] = max(at[i, b] - least, 0.0) if allowed[i, b] else 0.0

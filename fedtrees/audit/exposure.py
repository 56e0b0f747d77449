"""What a model says of the training rows in its leaves: counts where certain, else bounds."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from fedtrees.trees.boosted.losses import sigmoid

Ints = NDArray[np.int64]
Floats = NDArray[np.float64]

UNKNOWN = -1  # a count that does not follow from the file
SMALL = 5  # rows: groups below this size are small; many statistical offices publish none


@dataclass(frozen=True, eq=False)
class TreeExposure:
    """The leaves of one tree.

    Attributes
    ----------
    index : int
        Place of the tree in the model.
    output : int
        Class whose margin the tree adds to; 0 where there is one margin.
    leaf : intp array, shape (J,)
        Node numbers of the leaves.
    n, n_pos : int64 array, shape (J,)
        Rows, and rows of class 1 (of the tree's class, of several); `UNKNOWN` where not certain.
    at_least, at_most : int64 array, shape (J,)
        Bounds on the rows; `UNKNOWN` where there are none.
    base_score : float or None
        What every row was predicted before the tree, where that follows.
    source : str or None
        Client the tree comes from, where that follows.
    how : str
        How the counts follow, or why they do not.
    """

    index: int
    output: int
    leaf: NDArray[np.intp]
    n: Ints
    n_pos: Ints
    at_least: Ints
    at_most: Ints
    how: str
    base_score: float | None = None
    source: str | None = None

    @cached_property
    def exact(self) -> NDArray[np.bool_]:
        """Leaves whose rows and labels are both certain, bool, shape (J,)."""
        return np.asarray((self.n != UNKNOWN) & (self.n_pos != UNKNOWN))

    @cached_property
    def small(self) -> NDArray[np.bool_]:
        """Leaves of fewer than `SMALL` rows, for certain."""
        few = (self.n != UNKNOWN) & (self.n < SMALL)
        return np.asarray(few | ((self.at_most != UNKNOWN) & (self.at_most < SMALL)))

    @cached_property
    def single(self) -> NDArray[np.bool_]:
        """Leaves of one row, for certain."""
        return np.asarray((self.n == 1) | (self.at_most == 1))

    @cached_property
    def pure(self) -> NDArray[np.bool_]:
        """Leaves whose rows all have one label, for certain."""
        return np.asarray(self.exact & ((self.n_pos == 0) | (self.n_pos == self.n)))

    def of(self, source: str | None) -> TreeExposure:
        """Return the same with its source."""
        return replace(self, source=source)


def unknown_counts(leaves: int) -> Ints:
    """Return a count per leaf that says that it is unknown."""
    return np.full(leaves, UNKNOWN, dtype=np.int64)


def least_rows(h: Floats, g: Floats | None, scale: float) -> Ints:
    """Return the fewest rows that can bring these sums, int64, shape (J,).

    A row's hessian is at most scale/4 and its gradient at most 1 (a little is allowed for
    float32).
    """
    need = 4 * h / scale
    if g is not None:
        need = np.maximum(need, np.abs(g))
    need = np.minimum(np.ceil(need * (1 - 1e-5) - 1e-6), 2.0**53)
    return np.maximum(need, h > 0).astype(np.int64)  # a refreshed model has leaves without rows


def most_rows(h: Floats, margins: tuple[float, float], total: int | None) -> Ints:
    """Return the most rows that can bring these hessian sums, int64, shape (J,).

    Parameters
    ----------
    h : float64 array, shape (J,)
    margins : pair of float
        Log-odds between which every row's prediction lies before the tree: the hessian of a row is
        least at one of them.
    total : int or None
        Rows of the table.
    """
    p = sigmoid(np.array(margins, dtype=np.float32)).astype(np.float64)
    least = float((p * (1 - p)).min())
    limit = np.inf if total is None else float(total)
    most = np.full(len(h), limit)
    if least > 0:
        most = np.minimum(h / least * (1 + 1e-5) + 1e-6, limit)
    known = np.isfinite(most) & (most < 2**53)
    return np.where(known, np.floor(np.where(known, most, 0)), UNKNOWN).astype(np.int64)


@dataclass(frozen=True)
class Summary:
    """Exposure of a whole model, in leaves and rows.

    Attributes
    ----------
    leaves : int
    counted : int
        Leaves whose number of rows is certain.
    exact : int
        Leaves whose labels are certain too.
    small, single, pure : int
        Leaves of fewer than `SMALL` rows, of one row, of one label; each for certain.
    rows_in_pure : int
        Rows in pure leaves of the tree that has most of them: whoever knows that one of these
        people is in the training table, and the columns the tree asks for, knows the label.
    """

    leaves: int
    counted: int
    exact: int
    small: int
    single: int
    pure: int
    rows_in_pure: int


def summary(trees: Sequence[TreeExposure]) -> Summary:
    """Add up the exposure of trees."""
    return Summary(
        leaves=sum(len(t.leaf) for t in trees),
        counted=sum(int((t.n != UNKNOWN).sum()) for t in trees),
        exact=sum(int(t.exact.sum()) for t in trees),
        small=sum(int(t.small.sum()) for t in trees),
        single=sum(int(t.single.sum()) for t in trees),
        pure=sum(int(t.pure.sum()) for t in trees),
        rows_in_pure=max((int(t.n[t.pure].sum()) for t in trees), default=0),
    )

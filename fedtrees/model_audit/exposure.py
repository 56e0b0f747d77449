"""Counts and bounds of training rows per leaf, and the background knowledge of the auditor.

A count is exact if it follows from the file with certainty. The remaining leaves have a lower and
an upper bound, or `UNKNOWN`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from fractions import Fraction
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from fedtrees.core.errors import UsageError
from fedtrees.trees.boosted.losses import sigmoid

Ints = NDArray[np.int64]
Floats = NDArray[np.float64]

UNKNOWN = -1  # marks a count that cannot be derived from the file
# Share of a tree's sum of hessians. A smaller sum can be a rounding error in a leaf without rows.
TRACE = 1e-5
# Leaves with fewer rows are called small. Many statistical offices do not publish such groups.
SMALL = 5


@dataclass(frozen=True, eq=False)
class TreeExposure:
    """Rows and labels in the J leaves of one tree.

    Attributes
    ----------
    at : int
        Position of the tree in the forest, which contains rounds of one tree per output.
    output : int
        Class to whose margin the tree contributes, 0 if there is a single margin.
    leaf : int array, shape (J,)
        Node numbers.
    n : int64 array, shape (J,)
        Number of rows, `UNKNOWN` if it is not certain. The same applies to the next three arrays.
    n_pos : int64 array, shape (J,)
        Number of rows of class 1, or of the tree's class if there are more than two.
    at_least, at_most : int64 array, shape (J,)
        Lower and upper bound on the number of rows.
    how : str
        Why the counts follow from the file, or why they do not.
    base_score : float or None
        Prediction of every row before the tree. None if the rows have different predictions.
    source : str or None
        Client that grew the tree. None if it is not known.
    index : int
        Number of the tree in the file.
    saw_all_rows : bool
        Whether the tree is known to have seen all rows of the table.
    """

    at: int
    output: int
    leaf: NDArray[np.intp]
    n: Ints
    n_pos: Ints
    at_least: Ints
    at_most: Ints
    how: str
    base_score: float | None = None
    source: str | None = None
    index: int = UNKNOWN
    saw_all_rows: bool = False

    @staticmethod
    def of(
        place: tuple[int, int],
        leaf: NDArray[np.intp],
        how: str,
        counts: tuple[Ints | None, Ints | None] = (None, None),
        bounds: tuple[Ints | None, Ints | None] | None = None,
        base_score: float | None = None,
    ) -> TreeExposure:
        """Return the exposure of a tree of which only some counts are known.

        Parameters
        ----------
        place : (int, int)
            `at` and `output`.
        leaf : int array, shape (J,)
            Node numbers of the leaves.
        how : str
            Why the counts follow from the file, or why they do not.
        counts : (array or None, array or None)
            `n` and `n_pos`. None stands for `UNKNOWN` in every leaf.
        bounds : (array or None, array or None), optional
            `at_least` and `at_most`. The default is `n` for both.
        base_score : float, optional
            Prediction of every row before the tree.

        Returns
        -------
        exposure : TreeExposure
            `UNKNOWN` where neither counts nor bounds are given.
        """
        parts = (*counts, *(bounds or (counts[0], counts[0])))
        unknown = np.full(len(leaf), UNKNOWN, dtype=np.int64)
        n, n_pos, lower, upper = (unknown if part is None else part for part in parts)
        return TreeExposure(*place, leaf, n, n_pos, lower, upper, how, base_score)

    @cached_property
    def counted(self) -> NDArray[np.bool_]:
        """Leaves whose number of rows is certain, bool, shape (J,), like all masks below."""
        return np.asarray(self.n != UNKNOWN)

    @cached_property
    def exact(self) -> NDArray[np.bool_]:
        """Leaves whose numbers of rows and of labels are both certain."""
        return np.asarray(self.counted & (self.n_pos != UNKNOWN))

    @cached_property
    def small(self) -> NDArray[np.bool_]:
        """Leaves that certainly contain fewer than `SMALL` of the rows that the tree saw."""
        few = self.counted & (self.n < SMALL)
        return np.asarray(few | ((self.at_most != UNKNOWN) & (self.at_most < SMALL)))

    @cached_property
    def single(self) -> NDArray[np.bool_]:
        """Leaves that certainly contain exactly one of the rows that the tree saw."""
        return np.asarray((self.n == 1) | (self.at_most == 1))

    @property
    def isolated(self) -> NDArray[np.bool_]:
        """Leaves with one row of the table, if the tree is known to have seen all rows."""
        return self.single & self.saw_all_rows

    @cached_property
    def one_label(self) -> NDArray[np.bool_]:
        """Leaves in which all rows that the tree saw certainly have the same label."""
        return np.asarray(self.exact & ((self.n_pos == 0) | (self.n_pos == self.n)))

    @property
    def pure(self) -> NDArray[np.bool_]:
        """Leaves in which all rows of the table certainly have the same label."""
        return self.one_label & self.saw_all_rows

    @property
    def rows(self) -> int | None:
        """Number of rows in all leaves, None if some leaf is not certain."""
        return int(self.n.sum()) if self.counted.all() else None


def least_rows(h: Floats, g: Floats | None, scale: float) -> Ints:
    """Return the smallest number of rows that can produce these sums.

    Parameters
    ----------
    h : float64 array, shape (J,)
        Sum of hessians of each leaf. The hessian of a row is at most ``scale / 4``.
    g : float64 array, shape (J,), or None
        Absolute value of the sum of gradients. The gradient of a row is between -1 and 1.
    scale : float
        Factor of the hessians: 2 for softmax, else 1.

    Returns
    -------
    least : int64 array, shape (J,)
        At least 1 for a leaf whose H is not a rounding error.
    """
    need = 4 * h / scale
    if g is not None:
        need = np.maximum(need, np.abs(g))
    need = np.minimum(np.ceil(need * (1 - 1e-5) - 1e-6), 2.0**53)
    # A leaf contains at least one row if its H is not a rounding error. A refreshed model can have
    # leaves without rows, in which the subtraction of sums leaves a small remainder.
    rows: Ints = np.maximum(need, h > TRACE * h.sum()).astype(np.int64)
    return rows


def most_rows(h: Floats, margins: tuple[float, float], total: int | None) -> Ints:
    """Return the largest number of rows that can produce these sums of hessians.

    Parameters
    ----------
    h : float64 array, shape (J,)
        Sum of hessians of each leaf.
    margins : (float, float)
        Bounds on the log-odds of every row before the tree. The hessian of a row is smallest at one
        of them.
    total : int or None
        Number of rows of the table, if it is known.

    Returns
    -------
    most : int64 array, shape (J,)
        `UNKNOWN` if there is no finite bound.
    """
    p = sigmoid(np.array(margins, dtype=np.float32)).astype(np.float64)
    least = float((p * (1 - p)).min())
    bound = np.full(len(h), np.inf if total is None else float(total))
    if least > 0:
        bound = np.minimum(h / least * (1 + 1e-5) + 1e-6, bound)
    finite = np.isfinite(bound) & (bound < 2**53)
    return np.where(finite, np.floor(np.where(finite, bound, 0)), UNKNOWN).astype(np.int64)


@dataclass(frozen=True)
class Summary:
    """Number of leaves of the complete model, and of those in each mask of `TreeExposure`.

    Attributes
    ----------
    leaves : int
        Number of leaves of all trees.
    counted, exact, small, single, isolated, one_label, pure : int
        Number of leaves in the mask of this name.
    rows_of_one_label, rows_in_pure : int
        Rows in the leaves of `one_label` or `pure`, of the tree with the largest number.
    """

    leaves: int
    counted: int
    exact: int
    small: int
    single: int
    isolated: int
    one_label: int
    rows_of_one_label: int
    pure: int
    rows_in_pure: int


def summary(trees: Sequence[TreeExposure]) -> Summary:
    """Count the leaves of all trees in each mask.

    Parameters
    ----------
    trees : sequence of TreeExposure
        Exposure of each tree.

    Returns
    -------
    Summary
        Sums over the trees.
    """
    masks = ("counted", "exact", "small", "single", "isolated", "one_label", "pure")
    return Summary(
        leaves=sum(len(t.leaf) for t in trees),
        rows_of_one_label=max((int(t.n[t.one_label].sum()) for t in trees), default=0),
        rows_in_pure=max((int(t.n[t.pure].sum()) for t in trees), default=0),
        **{name: sum(int(getattr(t, name).sum()) for t in trees) for name in masks},
    )


@dataclass(frozen=True, kw_only=True)
class Known:
    """Background knowledge of the auditor, in addition to the file.

    Attributes
    ----------
    rows : int or None
        Number of rows of the training table, of all clients together. Counts from leaf values
        without statistics assume that the first tree was grown on all of them.
    learning_rate, reg_lambda : float or None
        Eta and lambda of the training.
    starts : mapping of int to float
        Trees, by their number, that were the first of a training on two classes, with the
        probability from which each started. The model's base score may be that of another training.

    Raises
    ------
    UsageError
        If a value is out of its range.
    """

    rows: int | None = None
    learning_rate: float | None = None
    reg_lambda: float | None = None
    starts: Mapping[int, float] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if self.rows is not None and self.rows < 1:
            raise UsageError(f"rows {self.rows} must be at least 1")
        if self.learning_rate is not None and not 0 < self.learning_rate < np.inf:
            raise UsageError(f"learning rate {self.learning_rate} must be a positive number")
        if self.reg_lambda is not None and not 0 <= self.reg_lambda < np.inf:
            raise UsageError(f"lambda {self.reg_lambda} must be 0 or a positive number")

    @property
    def settings(self) -> tuple[float, float] | None:
        """Eta and lambda, None unless both are known."""
        if self.learning_rate is None or self.reg_lambda is None:
            return None
        return self.learning_rate, self.reg_lambda


@dataclass(frozen=True)
class Rows:
    """Size of the training table.

    Attributes
    ----------
    n : int or None
        Number of rows. None if it cannot be derived.
    n_pos : int or None
        Number of rows of class 1. None if it cannot be derived.
    share : Fraction or None
        N1/N in lowest terms, derived from the base score.
    how : str
        The evidence, as a sentence.
    complete : bool
        False if the file shows that `n` is only a part of the table.
    declared : bool
        Whether the auditor declared `n`. Only this shows that it is complete.
    """

    n: int | None
    n_pos: int | None
    share: Fraction | None
    how: str
    complete: bool = True
    declared: bool = False

    @property
    def total(self) -> int | None:
        """Number of rows of the table, None if the file shows that `n` is only a part."""
        return self.n if self.complete else None

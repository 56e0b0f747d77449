"""What a model says of the training rows: counts where certain, else bounds; what is known."""

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

UNKNOWN = -1  # a count that does not follow from the file
TRACE = 1e-5  # of a tree's hessian: less may be left where sums were subtracted
SMALL = 5  # rows: groups below this size are small; many statistical offices publish none


@dataclass(frozen=True, eq=False)
class TreeExposure:
    """The J leaves of one tree; all arrays have the shape (J,)."""

    at: int  # place of the tree in the forest, which orders them by rounds of one tree an output
    output: int  # class whose margin the tree adds to; 0 of one margin
    leaf: NDArray[np.intp]  # node numbers
    n: Ints  # rows; `UNKNOWN` where not certain, as all counts below
    n_pos: Ints  # rows of class 1 (of several classes, the tree's)
    at_least: Ints  # bounds on the rows
    at_most: Ints
    how: str  # why the counts follow, or why they do not
    base_score: float | None = None  # every row's prediction before the tree, where it follows
    source: str | None = None  # client the tree comes from, where that follows
    index: int = UNKNOWN  # the tree's number in the file
    whole: bool = False  # whether it is shown that the tree saw all rows of the table

    @staticmethod
    def of(
        place: tuple[int, int],
        leaf: NDArray[np.intp],
        how: str,
        counts: tuple[Ints | None, Ints | None] = (None, None),
        bounds: tuple[Ints | None, Ints | None] | None = None,
        base_score: float | None = None,
    ) -> TreeExposure:
        """Return a tree of which only some is known; None stands for unknown in every leaf.

        `place` is `at` and `output`, `counts` are `n` and `n_pos`, `bounds` are `at_least` and
        `at_most`: by default `n` for both.
        """
        parts = (*counts, *(bounds or (counts[0], counts[0])))
        unknown = np.full(len(leaf), UNKNOWN, dtype=np.int64)
        n, n_pos, least, most = (unknown if part is None else part for part in parts)
        return TreeExposure(*place, leaf, n, n_pos, least, most, how, base_score)

    @cached_property
    def counted(self) -> NDArray[np.bool_]:
        """Leaves whose rows are certain, bool, shape (J,), as all masks below."""
        return np.asarray(self.n != UNKNOWN)

    @cached_property
    def exact(self) -> NDArray[np.bool_]:
        """Leaves whose rows and labels are both certain."""
        return np.asarray(self.counted & (self.n_pos != UNKNOWN))

    @cached_property
    def small(self) -> NDArray[np.bool_]:
        """Leaves of fewer than `SMALL` rows among those that the tree saw, for certain."""
        few = self.counted & (self.n < SMALL)
        return np.asarray(few | ((self.at_most != UNKNOWN) & (self.at_most < SMALL)))

    @cached_property
    def single(self) -> NDArray[np.bool_]:
        """Leaves of one row among those that the tree saw, for certain."""
        return np.asarray((self.n == 1) | (self.at_most == 1))

    @property
    def isolated(self) -> NDArray[np.bool_]:
        """Leaves of one row of the table: the tree is shown to have seen all rows."""
        return self.single & self.whole

    @cached_property
    def one_label(self) -> NDArray[np.bool_]:
        """Leaves of which all rows that the tree saw have one label, for certain."""
        return np.asarray(self.exact & ((self.n_pos == 0) | (self.n_pos == self.n)))

    @property
    def pure(self) -> NDArray[np.bool_]:
        """Leaves of which all rows of the table have one label, for certain."""
        return self.one_label & self.whole

    @property
    def rows(self) -> int | None:
        """Rows of all leaves; None where one is not certain."""
        return int(self.n.sum()) if self.counted.all() else None


def least_rows(h: Floats, g: Floats | None, scale: float) -> Ints:
    """Return the fewest rows that can bring these sums, int64, shape (J,).

    A row's hessian is at most scale/4 and its gradient at most 1, up to float32.
    """
    need = 4 * h / scale
    if g is not None:
        need = np.maximum(need, np.abs(g))
    need = np.minimum(np.ceil(need * (1 - 1e-5) - 1e-6), 2.0**53)
    # a refreshed model has leaves without rows, and of others sums may leave a trace of rounding
    return np.maximum(need, h > TRACE * h.sum()).astype(np.int64)


def most_rows(h: Floats, margins: tuple[float, float], total: int | None) -> Ints:
    """Return the most rows that can bring these hessian sums, int64, shape (J,).

    Every row's log-odds before the tree lie between the two `margins`; its hessian is least at one
    of them. `total` are the rows of the table, where known.
    """
    p = sigmoid(np.array(margins, dtype=np.float32)).astype(np.float64)
    least = float((p * (1 - p)).min())
    most = np.full(len(h), np.inf if total is None else float(total))
    if least > 0:
        most = np.minimum(h / least * (1 + 1e-5) + 1e-6, most)
    known = np.isfinite(most) & (most < 2**53)
    return np.where(known, np.floor(np.where(known, most, 0)), UNKNOWN).astype(np.int64)


@dataclass(frozen=True)
class Summary:
    """Leaves of a whole model: all, and those of each mask of `TreeExposure`."""

    leaves: int
    counted: int
    exact: int
    small: int
    single: int
    isolated: int
    one_label: int
    rows_of_one_label: int  # of the tree that has most of them
    pure: int
    rows_in_pure: int  # likewise


def summary(trees: Sequence[TreeExposure]) -> Summary:
    """Add up the exposure of trees."""
    masks = ("counted", "exact", "small", "single", "isolated", "one_label", "pure")
    return Summary(
        leaves=sum(len(t.leaf) for t in trees),
        rows_of_one_label=max((int(t.n[t.one_label].sum()) for t in trees), default=0),
        rows_in_pure=max((int(t.n[t.pure].sum()) for t in trees), default=0),
        **{name: sum(int(getattr(t, name).sum()) for t in trees) for name in masks},
    )


@dataclass(frozen=True, kw_only=True)
class Known:
    """What the auditor knows beside the file.

    Raises `UsageError` if one is out of its range.

    `rows`: Rows of the training table, of all clients together. Counts from leaf values alone
    assume that the first tree was grown on all of them.
    `learning_rate, reg_lambda`: eta and lambda of the training.
    `starts`: Trees, by their number, that began a training, and the probability that each began
    with; of two classes. The model's base score may be that of another training.
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
        """eta and lambda; None unless both are known."""
        if self.learning_rate is None or self.reg_lambda is None:
            return None
        return self.learning_rate, self.reg_lambda


@dataclass(frozen=True)
class Rows:
    """Size of the training table."""

    n: int | None  # None where it does not follow, as n_pos
    n_pos: int | None
    share: Fraction | None  # N1/N in lowest terms, as the base score tells it
    how: str  # they follow
    whole: bool = True  # False where something shows that `n` are not all of them
    declared: bool = False  # by the auditor; without that nothing shows that `n` are all of them

    @property
    def total(self) -> int | None:
        """Rows of the table as far as anything shows, None where `n` are not all of them."""
        return self.n if self.whole else None

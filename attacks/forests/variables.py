"""What rows may look like: columns of numbers as variables with a few levels each."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from fedtrees.core.errors import DataError

#: Levels of one variable: a test is a set of levels, kept as the bits of a word.
MOST_LEVELS = 62


@dataclass(frozen=True, eq=False)
class Variables:
    """Columns of a table as categorical variables.

    Attributes
    ----------
    columns : tuple of tuple of int
        Columns of each variable: one, or those of a one-hot group. Every column has one.
    levels : tuple of float32 array, shape (r, number of its columns)
        What the columns hold at each level.

    Raises
    ------
    DataError
        If a column belongs to no or to several variables, or a variable has not 1 to
        `MOST_LEVELS` levels.
    """

    columns: tuple[tuple[int, ...], ...]
    levels: tuple[NDArray[np.float32], ...]

    def __post_init__(self) -> None:
        named = [j for columns in self.columns for j in columns]
        twice = sorted({j for j in named if named.count(j) > 1})
        if twice:
            raise DataError(f"columns {twice} belong to two groups; groups must not overlap")
        if sorted(named) != list(range(len(named))):
            raise DataError(f"variables of columns {sorted(named)} leave some out; number them all")
        for columns, levels in zip(self.columns, self.levels, strict=True):
            if levels.ndim != 2 or levels.shape[1] != len(columns):
                raise DataError(f"levels of shape {levels.shape} for {len(columns)} columns")
            if not 1 <= len(levels) <= MOST_LEVELS:
                raise DataError(
                    f"columns {list(columns)} have {len(levels)} levels; 1 to {MOST_LEVELS} are "
                    "supported: declare coarser cut points"
                )

    @staticmethod
    def binary(width: int, groups: Iterable[Sequence[int]] = (), none: bool = False) -> Variables:
        """Return the variables of columns of zeros and ones.

        Parameters
        ----------
        width : int
            Number of columns.
        groups : iterable of sequences of int
            One-hot groups: exactly one of their columns is 1.
        none : bool
            At most one of them is.

        Raises
        ------
        DataError
            Groups that overlap, or name columns that do not exist.
        """
        made = [tuple(int(j) for j in group) for group in groups]
        unknown = sorted({j for group in made for j in group if not 0 <= j < width})
        if unknown:
            raise DataError(f"groups name columns {unknown}; the table has 0 to {width - 1}")
        grouped = {j for group in made for j in group}
        columns = sorted([*made, *((j,) for j in range(width) if j not in grouped)])
        single = np.array([[0], [1]], dtype=np.float32)
        levels = []
        for of in columns:
            hot = np.eye(len(of), dtype=np.float32)
            hot = np.vstack([hot, np.zeros_like(hot[:1])]) if none else hot
            levels.append(hot if of in made else single)
        return Variables(tuple(columns), tuple(levels))

    @property
    def width(self) -> int:
        """Number of columns."""
        return sum(map(len, self.columns))

    def __len__(self) -> int:
        return len(self.columns)

    @cached_property
    def sizes(self) -> NDArray[np.int64]:
        """Number of levels of each variable, int64, shape (G,)."""
        return np.array([len(levels) for levels in self.levels], dtype=np.int64)

    @cached_property
    def rows_possible(self) -> int:
        """How many different rows there are, labels aside."""
        return int(np.prod([int(r) for r in self.sizes], dtype=object))

    def variable_of(self, column: int) -> int:
        """Return the variable that a column belongs to."""
        return next(g for g, columns in enumerate(self.columns) if column in columns)

    def right(self, column: int, threshold: float) -> tuple[int, int]:
        """Return a test ``x >= threshold``: its variable, and its levels as bits that pass."""
        g = self.variable_of(column)
        value = self.levels[g][:, self.columns[g].index(column)]
        return g, sum(1 << v for v in np.flatnonzero(value >= threshold).tolist())

    def decode(self, coded: NDArray[np.integer]) -> NDArray[np.float32]:
        """Return the columns of coded rows, float32, shape (n, width)."""
        X = np.empty((len(coded), self.width), dtype=np.float32)
        for g, (columns, levels) in enumerate(zip(self.columns, self.levels, strict=True)):
            X[:, columns] = levels[coded[:, g]]
        return X

    def encode(self, X: NDArray[np.floating]) -> NDArray[np.int16]:
        """Return rows as levels, int16, shape (n, G).

        Raises
        ------
        DataError
            If a row holds what no level is.
        """
        if X.ndim != 2 or X.shape[1] != self.width:
            raise DataError(f"rows of shape {X.shape}; the variables have {self.width} columns")
        coded = np.empty((len(X), len(self)), dtype=np.int16)
        for g, (columns, levels) in enumerate(zip(self.columns, self.levels, strict=True)):
            same = (X[:, columns][:, None, :] == levels[None]).all(axis=2)
            if not same.any(axis=1).all():
                row = int(np.flatnonzero(~same.any(axis=1))[0])
                raise DataError(
                    f"row {row} has {X[row, columns].tolist()} in columns {list(columns)}, which "
                    f"is none of its {len(levels)} levels; binary columns hold 0 and 1, of a "
                    "one-hot group exactly one is 1"
                )
            coded[:, g] = same.argmax(axis=1)
        return coded

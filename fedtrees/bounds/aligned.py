"""Every table of rows that several parties hold columns of, and know by id."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import product

import numpy as np
from numpy.typing import NDArray

from fedtrees.bounds.tables import MOST_TABLES, TinyTables
from fedtrees.core.errors import check_whole
from fedtrees.core.guess import ColumnBins, Guess, Labels
from fedtrees.core.local_data import LocalData


@dataclass(frozen=True)
class AlignedTables(TinyTables):
    """All tables whose rows several parties hold columns of, aligned by id.

    Who holds columns guesses row by row: labels, where it has none, else the others' columns. Who
    holds nothing guesses whole rows, in no order, as of `TinyTables`.

    Raises `UsageError` if there are no columns or rows, or more than `MOST_TABLES` tables.

    Parameters
    ----------
    rows : tuple of int
        How many rows there are: one number.
    names : tuple of str
        Parties, the one with the labels first. The others have the first columns, in turn.
    """

    names: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        check_whole("columns", self.columns, 1, 6)
        (n,) = self.rows
        check_whole("rows", n, 1, 12)
        check_whole("tables", 2 ** ((self.columns + 1) * n), 1, MOST_TABLES)

    @property
    def holders(self) -> int:
        """How many parties hold something."""
        return len(self.names)

    @cached_property
    def held(self) -> list[tuple[tuple[int, ...], ...]]:
        """Types of the rows, by table and in order: T of them."""
        return [(rows,) for rows in product(range(len(self.types)), repeat=self.rows[0])]

    @cached_property
    def weight(self) -> NDArray[np.float64]:
        """Probability of every table, float64, shape (T,)."""
        return np.asarray(self.prior[self._types].prod(axis=1), dtype=np.float64)

    @cached_property
    def _types(self) -> NDArray[np.int64]:
        """Types of all rows, shape (T, n)."""
        return np.array(self.held)[:, 0]

    @cached_property
    def _dealt(self) -> dict[str, NDArray[np.intp]]:
        """Columns of each party, the last one being the label's."""
        first, *others = self.names
        *parts, last = np.array_split(np.arange(self.columns), len(self.names))
        return {first: np.append(last, self.columns), **dict(zip(others, parts, strict=True))}

    def local_data(self, table: int) -> Mapping[str, LocalData]:
        """Return what each party holds of one table."""
        rows, ids, found = self.types[self._types[table]], np.arange(self.rows[0]), {}
        for name, columns in self._dealt.items():
            mine = columns[columns < self.columns]
            y = None if len(mine) == len(columns) else rows[:, -1]
            found[name] = LocalData(ids, mine, rows[:, mine].astype(np.float32), y)
        return found

    def places(self, principals: Sequence[str]) -> int:
        """Return how many rows they know by id, 0 where these hold nothing."""
        return self.rows[0] if {*principals} & {*self.names} else 0

    def _asked(self, principals: Sequence[str]) -> NDArray[np.intp]:
        """Return the columns that they guess, the label's alone where they lack it."""
        own = [self._dealt[n] for n in principals if n in self._dealt]
        left = np.setdiff1d(np.arange(self.columns + 1), np.concatenate(own))
        return left[-1:] if self.columns in left else left

    def _coded(self, columns: NDArray[np.intp]) -> NDArray[np.int64]:
        """Return such columns of all rows as one number each, shape (T, n)."""
        places: NDArray[np.int64] = 2 ** np.arange(len(columns))[::-1]
        return np.asarray((self.types[:, columns] @ places)[self._types], dtype=np.int64)

    def victims(self, principals: Sequence[str]) -> NDArray[np.int64]:
        """Return what is guessed of every row, int64, shape (T, V): n blocks of a one and zeros.

        Where rows are not known by id: how many there are of each type.
        """
        if not self.places(principals):
            return super().victims(principals)
        asked = self._asked(principals)
        codes = self._coded(asked)[:, :, None] == np.arange(2 ** len(asked))
        return np.asarray(codes.reshape(len(codes), -1), dtype=np.int64)

    def own(self, principals: Sequence[str]) -> NDArray[np.int64]:
        """Return what they hold of every row, int64, shape (T, n)."""
        own = [self._dealt[n] for n in principals if n in self._dealt]
        return self._coded(np.concatenate([np.zeros(0, dtype=np.intp), *own]))

    def named(
        self, principals: Sequence[str], guess: Guess, blind: NDArray[np.float64]
    ) -> NDArray[np.int64]:
        """Return what an attack says of every row, as a line of `victims`.

        `blind`: float64 array, shape (V,). Chances by what they hold, for what it does not say:
        columns, and the names of clusters.
        """
        asked = self._asked(principals)
        chance = blind.reshape(self.rows[0], -1)
        code = chance.argmax(axis=1)
        for labels in guess.all(Labels):
            code[labels.ids] = _named(labels, np.log(chance + 1e-12))
        for bins in (b for b in guess.all(ColumnBins) if b.feature in asked):
            bit = 2 ** int(len(asked) - 1 - np.searchsorted(asked, bins.feature))
            told = bins.ids[bins.bin >= 0]
            code[told] = code[told] & ~bit | bit * (bins.bin[bins.bin >= 0] > 0)
        return np.asarray((code[:, None] == np.arange(chance.shape[1])).ravel(), dtype=np.int64)


def _named(labels: Labels, log_blind: NDArray[np.float64]) -> NDArray[np.int64]:
    """Return classes of rows; of a cluster without a name the likeliest, by what is held."""
    if labels.probability is not None:
        return np.asarray(labels.probability.argmax(axis=1), dtype=np.int64)
    found = np.zeros(len(labels.ids), dtype=np.int64)
    for one in np.unique(labels.cluster):
        mine = labels.cluster == one
        found[mine] = log_blind[labels.ids[mine]].sum(axis=0).argmax()
    return found

"""Split a dataset into training rows, held-out test rows and a reserve nobody holds."""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from fedtrees.core.schema import Table
from fedtrees.core.streams import Streams
from fedtrees.data.dataset import Dataset

#: Share of all rows held out for utility.
TEST_SHARE = 0.2
#: Share of all rows kept as a reserve, where there is one.
RESERVE_SHARE = 0.2
#: Fewest rows of a table that can spare a reserve. Below it the reserve (1,000 rows here) would
#: be small against the federation and its loss would change the published sizes of small tables.
RESERVE_FROM = 5000


@dataclass(frozen=True, eq=False)
class Holdout:
    """Row numbers of the three parts, disjoint and covering.

    `train, test`: Rows of the federation; rows used for utility and nothing else. `reserve`: Rows
    that neither the federation nor the test uses, for the specificity test.
    """

    train: NDArray[np.intp]
    test: NDArray[np.intp]
    reserve: NDArray[np.intp] | None

    def tables(self, table: Table) -> tuple[Table, Table, Table | None]:
        """Return the train, test and reserve tables."""
        reserve = None if self.reserve is None else table.take(self.reserve)
        return table.take(self.train), table.take(self.test), reserve


def holdout(dataset: Dataset, streams: Streams) -> Holdout:
    """Split a dataset, stratified by class (not by a numeric target) and seeded by name.

    `dataset`: Where a recipe fixes the test rows they are used as they are, and there is no
    reserve. `streams`: The ``"holdout"`` stream orders the rows.
    """
    n = len(dataset.table)
    if dataset.test_rows is not None:
        return Holdout(np.setdiff1d(np.arange(n), dataset.test_rows), dataset.test_rows, None)
    stratum = dataset.table.y if dataset.schema.classes else np.zeros(n, dtype=np.int64)
    reserve_share = RESERVE_SHARE if n >= RESERVE_FROM else 0.0
    rng = streams.rng("holdout")
    parts: list[list[NDArray[np.intp]]] = [[], [], []]
    for label in np.unique(stratum):
        rows = rng.permutation(np.flatnonzero(stratum == label))
        test = round(TEST_SHARE * len(rows))
        reserve = round(reserve_share * len(rows))
        for part, chunk in zip(parts, np.split(rows, [test, test + reserve]), strict=True):
            part.append(chunk)
    test_rows, reserve_rows, train_rows = (np.sort(np.concatenate(p)) for p in parts)
    return Holdout(train_rows, test_rows, reserve_rows if len(reserve_rows) else None)

"""Split a dataset into training rows, test rows, and a reserve that no party receives."""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from fedtrees.core.schema import Table
from fedtrees.core.streams import Streams
from fedtrees.data.dataset import Dataset

#: Share of all rows that measure the utility of the model.
TEST_SHARE = 0.2
#: Share of all rows in the reserve, if there is one.
RESERVE_SHARE = 0.2
#: Smallest table with a reserve. In smaller tables the reserve would have fewer than 1,000 rows,
#: and the training set would be smaller than in publications.
RESERVE_FROM = 5000


@dataclass(frozen=True, eq=False)
class Holdout:
    """Row numbers of the three parts, which are disjoint and together cover the dataset.

    Attributes
    ----------
    train : int array
        Rows of the parties.
    test : int array
        Rows that are used only to measure utility.
    reserve : int array or None
        Rows that neither the parties nor the utility test use. The specificity test compares
        guesses with them (`fedtrees.metrics.specificity`).
    """

    train: NDArray[np.intp]
    test: NDArray[np.intp]
    reserve: NDArray[np.intp] | None

    def tables(self, table: Table) -> tuple[Table, Table, Table | None]:
        """Return the train, test and reserve tables."""
        reserve = None if self.reserve is None else table.take(self.reserve)
        return table.take(self.train), table.take(self.test), reserve


def holdout(dataset: Dataset, streams: Streams) -> Holdout:
    """Split a dataset at random, stratified by class (not by a numeric target).

    If a published recipe fixes the test rows, they are used and there is no reserve. The
    ``"holdout"`` stream of `streams` determines the order of the rows.
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

"""Oracles: an inference endpoint that an adversary may ask, so many rows and no more."""

from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedtrees.core.errors import DataError, ProtocolError, UsageError

#: What an endpoint may answer; the first unless a threat says otherwise.
ANSWERS = ("score", "leaf-ids", "label")
#: Who says what others hold of a row: the asker, or they themselves, who look it up by its id.
RECORDS = ("chosen", "held", "new")

Answer = Callable[..., NDArray[Any]]


class Oracle:
    """Answers inference queries, and counts them.

    `log`: Rows of every query so far.

    Parameters
    ----------
    answer : callable
        From rows, float32, shape (n, d), and their ids if any, to what a query gets back.
    budget : int
        Rows that may be asked in all.
    answers : {"score", "leaf-ids", "label"}
        What comes back: scores, float64, (n,) or (n, K); the leaf of every tree, int32, (n, T); or
        the class, int32, (n,).
    records : {"chosen", "held", "new"}
        ``chosen``: the asker gives whole rows. ``held``: it gives ids of training rows and its own
        columns; others look up theirs, and what stands in their columns is not read. ``new``: the
        same, and ids are places among the rows to predict (`fedtrees.core.view.View.asked`).
    width : int or None
        Columns d of a row; None: it is not checked.
    """

    def __init__(
        self,
        answer: Answer,
        budget: int,
        *,
        answers: str = ANSWERS[0],
        records: str = RECORDS[0],
        width: int | None = None,
    ) -> None:
        if budget < 1:
            raise UsageError(f"a query budget of {budget} rows asks nothing; give 1 or more")
        self._answer, self.budget, self.log = answer, budget, list[int]()
        self.answers, self.records, self.width = answers, records, width

    @property
    def left(self) -> int:
        """Rows that may still be asked."""
        return self.budget - sum(self.log)

    def query(self, X: NDArray[np.float32], ids: NDArray[np.int64] | None = None) -> NDArray[Any]:
        """Return what the endpoint answers of some rows.

        Parameters
        ----------
        X : float32 array, shape (n, d)
            NaN marks a missing value.
        ids : int64 array, shape (n,), optional
            Which rows, where others look up their columns (``records=held`` or ``new``).

        Raises
        ------
        ProtocolError
            If that is more than the budget has left; nothing is answered then.
        DataError
            If these are no rows of d columns, or one is infinite or empty; nothing is counted then.
        """
        X = np.asarray(X, dtype=np.float32)
        self._check(X, ids)
        if len(X) > self.left:
            raise ProtocolError(
                f"a query of {len(X)} rows; {self.left} of {self.budget} are left: ask fewer, or "
                "give the threat a larger budget (queries=)"
            )
        self.log.append(len(X))
        return self._answer(X) if ids is None else self._answer(X, ids)

    def _check(self, X: NDArray[np.float32], ids: NDArray[np.int64] | None) -> None:
        if X.ndim != 2 or (self.width is not None and X.shape[1] != self.width):
            wanted = "n" if self.width is None else f"n, {self.width}"
            raise DataError(f"the endpoint takes rows of shape ({wanted}); got {X.shape}")
        bad = np.isinf(X).any(axis=1)
        if self.records == "chosen":
            bad |= np.isnan(X).all(axis=1)
        if bad.any():
            raise DataError(
                f"record {int(bad.argmax())} of the query is infinite or has no value at all; give "
                "finite values, NaN for single ones that are missing"
            )
        named = self.records != "chosen"
        if (ids is not None) != named or len(X if ids is None else ids) != len(X):
            rule = "takes an id of every row" if named else "takes no ids"
            raise DataError(f"an endpoint with records={self.records} {rule}")

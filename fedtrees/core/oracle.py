"""Oracles: an inference endpoint that somebody curious may ask, so many rows and no more."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from fedtrees.core.errors import ProtocolError, UsageError

Answer = Callable[[NDArray[np.float32]], NDArray[np.float64]]


class Oracle:
    """Answers inference queries, and counts them.

    Parameters
    ----------
    answer : callable
        From rows, float32, shape (n, d), to what an inference query gets back.
    budget : int
        Rows that may be asked in all.

    Attributes
    ----------
    log : list of int
        Rows of every query so far.
    """

    def __init__(self, answer: Answer, budget: int) -> None:
        if budget < 1:
            raise UsageError(f"a query budget of {budget} rows asks nothing; give 1 or more")
        self._answer, self.budget, self.log = answer, budget, list[int]()

    @property
    def left(self) -> int:
        """Rows that may still be asked."""
        return self.budget - sum(self.log)

    def query(self, X: NDArray[np.float32]) -> NDArray[np.float64]:
        """Return the scores of rows, as the endpoint gives them.

        Raises
        ------
        ProtocolError
            If that is more than the budget has left; nothing is answered then.
        """
        if len(X) > self.left:
            raise ProtocolError(
                f"a query of {len(X)} rows; {self.left} of {self.budget} are left: ask fewer, or "
                "give the threat a larger budget (queries=)"
            )
        self.log.append(len(X))
        return self._answer(np.asarray(X, dtype=np.float32))

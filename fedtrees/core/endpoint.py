"""Models, and the inference endpoint that an adversary may query.

`Model` is the interface of all models. `Oracle` is an endpoint that answers a limited number of
queries of an adversary.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol, runtime_checkable

import numpy as np
from numpy.typing import NDArray

from fedtrees.core.errors import DataError, ProtocolError, UsageError


@runtime_checkable
class Model(Protocol):
    """Result of a training. `fedtrees.messages.models.as_message` creates its release message."""

    def predict(self, X: NDArray[np.float32]) -> NDArray[Any]:
        """Return scores or values of rows.

        Parameters
        ----------
        X : float32 array, shape (n, d)
            Rows, NaN where a value is missing.

        Returns
        -------
        array, shape (n,) or (n, K)
            Scores of class 1, scores of every class, or predicted values.
        """


#: Kinds of answers of an endpoint. The first is the default.
ANSWERS = ("score", "leaf-ids", "label")
#: Source of the columns that the adversary does not have: ``chosen`` by the adversary itself, or
#: looked up by the other parties (``held``, ``new``).
RECORDS = ("chosen", "held", "new")

Answer = Callable[..., NDArray[Any]]


class Oracle:
    """Inference endpoint that answers queries and counts their rows.

    Parameters
    ----------
    answer : callable
        Function from rows, float32, shape (n, d), and optionally their ids to the answers.
    budget : int
        Total number of rows that may be queried.
    answers : {"score", "leaf-ids", "label"}
        Kind of answers: scores, float64, (n,) or (n, K), the leaf of every tree, int32, (n, T), or
        the class, int32, (n,).
    records : {"chosen", "held", "new"}
        - ``chosen``: the adversary supplies all columns of each row.
        - ``held``: it supplies ids of training rows and the values of its columns. The other
          parties look up their columns. Values that the adversary supplies for these columns are
          ignored.
        - ``new``: as ``held``, but ids are positions among the rows to predict
          (`fedtrees.core.view.View.queried_rows`).
    width : int or None
        Number d of columns of a row. None: it is not checked.

    Attributes
    ----------
    log : list of int
        Number of rows of every query so far.
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
            raise UsageError(f"a query budget of {budget} rows permits no query; give 1 or more")
        self._answer, self.budget, self.log = answer, budget, list[int]()
        self.answers, self.records, self.width = answers, records, width

    @property
    def left(self) -> int:
        """Number of rows that may still be queried."""
        return self.budget - sum(self.log)

    def query(self, X: NDArray[np.float32], ids: NDArray[np.int64] | None = None) -> NDArray[Any]:
        """Return the answers of the endpoint.

        Parameters
        ----------
        X : float32 array, shape (n, d)
            Rows. NaN marks a missing value.
        ids : int64 array, shape (n,), optional
            Ids of the rows, if other parties look up their columns (``records=held`` or ``new``).

        Returns
        -------
        array, shape (n,), (n, K) or (n, T)
            Scores, classes or leaves, depending on `answers`.

        Raises
        ------
        ProtocolError
            If the query exceeds the remaining budget. It is not answered then.
        DataError
            If the rows do not have d columns, or a row is infinite or empty. The query is not
            counted then.
        """
        X = np.asarray(X, dtype=np.float32)
        self._check(X, ids)
        if len(X) > self.left:
            raise ProtocolError(
                f"a query of {len(X)} rows exceeds the {self.left} of {self.budget} rows that are "
                "left; send fewer rows, or give the threat a larger budget (queries=)"
            )
        # A query is counted before it is answered, so that an error of the model costs budget, too.
        self.log.append(len(X))
        return self._answer(X) if ids is None else self._answer(X, ids)

    def _check(self, X: NDArray[np.float32], ids: NDArray[np.int64] | None) -> None:
        """Raise `DataError` if a query is malformed."""
        if X.ndim != 2 or (self.width is not None and X.shape[1] != self.width):
            shape = "n" if self.width is None else f"n, {self.width}"
            raise DataError(f"the endpoint takes rows of shape ({shape}); got {X.shape}")
        bad = np.isinf(X).any(axis=1)
        if self.records == "chosen":
            # Other kinds of records permit rows without a value of the adversary.
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

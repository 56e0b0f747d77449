"""Messages of explainable boosting machines: bins of every column and their contributions."""

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.special import expit

from fedtrees.core.messages import Message, Reveal, message


# Everything except which rows belong to which client, and membership.
# Cuts lie midway between two values of rows, and the ends are values of rows.
@message(
    discloses=frozenset(Reveal) - {Reveal.IDS, Reveal.MEMBERSHIP}, verbatim={"cuts", "low", "high"}
)
class ShapeFunctions(Message):
    """An additive model: one contribution per bin of every column (fields as in interpret-core).

    A column with c cuts has c + 3 bins: one for missing values, c + 1 between the cuts, and one for
    unknown values.

    Attributes
    ----------
    cuts : float64 array, shape (c,)
        Borders of the bins, midway between values of rows. A value goes below a cut if ``x < cut``.
    offsets : int64 array, shape (d + 1,)
        The cuts of column f are ``cuts[offsets[f]:offsets[f + 1]]``.
    bin_weights : float64 array, shape (b,)
        Number of rows in every bin, or the sum of their weights, column by column.
    scores : float64 array, shape (m, b)
        Contribution of every bin to the log-odds, for each of the m bags.
    intercept, bag_weights : float64 array, shape (m,)
        Initial log-odds of every bag, and the weight of the rows that it was trained on.
    low, high : float64 array, shape (d,)
        Smallest and largest value of every column.
    """

    cuts: NDArray[np.float64]
    offsets: NDArray[np.int64]
    bin_weights: NDArray[np.float64]
    scores: NDArray[np.float64]
    intercept: NDArray[np.float64]
    bag_weights: NDArray[np.float64]
    low: NDArray[np.float64]
    high: NDArray[np.float64]

    @property
    def bins(self) -> Iterator[slice]:
        """Slices of the bins of every column within `bin_weights` and the rows of `scores`."""
        # Every earlier column has three bins more than cuts.
        begin = self.offsets + 3 * np.arange(len(self.offsets))
        return (slice(a, b) for a, b in pairwise(begin.tolist()))

    def cuts_of(self, column: int) -> NDArray[np.float64]:
        """Return the cuts of a column.

        Parameters
        ----------
        column : int
            Position of the column in the schema.

        Returns
        -------
        cuts : float64 array, shape (c,)
            Borders of its bins, ascending.
        """
        return self.cuts[self.offsets[column] : self.offsets[column + 1]]

    def model(self) -> "AdditiveModel":
        """Return the predictor with these shape functions."""
        return AdditiveModel(self)


@message(kw_only=True)
class ClientShapes(ShapeFunctions):
    """The model that a client trained on its local rows and sends to the server.

    It has no bags if all rows of the client belong to one class. The optional arrays are empty if
    the protocol does not send them.

    Attributes
    ----------
    histogram : float64 array, shape (k,)
        Number of rows between equidistant borders from the smallest to the largest value, column by
        column. Empty if not sent.
    histogram_offsets : int64 array, shape (d + 1,)
        The counts of column f are ``histogram[histogram_offsets[f]:histogram_offsets[f + 1]]``.
    unique : int64 array, shape (d,)
        Number of distinct values of each column. Empty if not sent.
    iterations : int64 array, shape (m,)
        Number of boosting steps of every bag. Empty if not sent.
    """

    histogram: NDArray[np.float64]
    histogram_offsets: NDArray[np.int64]
    unique: NDArray[np.int64]
    iterations: NDArray[np.int64]


@message()
class MergedShapes(ShapeFunctions):
    """The merged model: the cuts of all clients, and the bags of all clients in client order."""


@dataclass(frozen=True, eq=False)
class AdditiveModel:
    """Predictor of an additive model of two classes. It does not need interpret-core.

    Attributes
    ----------
    message : ShapeFunctions
        The shape functions.
    """

    message: ShapeFunctions

    def predict(self, X: NDArray[Any]) -> NDArray[np.float64]:
        """Return probabilities of class 1.

        Parameters
        ----------
        X : float array, shape (n, d)
            Rows, NaN where a value is missing.

        Returns
        -------
        probabilities : float64 array, shape (n,)
            Prediction with the mean of the bags, weighted by their rows.
        """
        m = self.message
        # interpret-core predicts with the mean of the bags, weighted by their rows.
        mean = np.average(m.scores, axis=0, weights=m.bag_weights)
        margin = np.full(len(X), np.average(m.intercept, weights=m.bag_weights))
        for column, bins in enumerate(m.bins):
            x = np.asarray(X[:, column], dtype=np.float64)
            bin_index = np.searchsorted(m.cuts_of(column), x, side="right") + 1
            margin += mean[bins][np.where(np.isnan(x), 0, bin_index)]
        return np.asarray(expit(margin), dtype=np.float64)

    def as_message(self) -> ShapeFunctions:
        """Return the shape functions, which are the message form of the model."""
        return self.message

"""Messages of federated linear and logistic regression.

Their numbers are integers in units of ``2^-bits`` (`fedtrees.linear`), so that all computations on
the vertical protocol's ciphertexts are exact. The protocols are in
`fedtrees.protocols.regression`.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedtrees.core.messages import Message, Request, Reveal, Sealed, message, summable
from fedtrees.linear import predict_from_scores, unpack_integers
from fedtrees.messages.aggregation import PaillierKey

_ROWS = frozenset({Reveal.FEATURES, Reveal.LABELS})


@message()
class KeyRequest(Request[PaillierKey]):
    """Ask the arbiter for its public key."""


@message(discloses={Reveal.FEATURES})
class ColumnScales(Message):
    """Mean and standard deviation by which a party standardises its columns.

    Attributes
    ----------
    party : str
        Name of the party.
    columns : int32 array, shape (c,)
        Positions in the schema.
    mean, scale : float64 array, shape (c,)
        Over the present values. A scale of 0 marks a constant column.
    declared : bool
        True if both follow from declared ranges and not from data.
    """

    party: str
    columns: NDArray[np.int32]
    mean: NDArray[np.float64]
    scale: NDArray[np.float64]
    declared: bool = False


@message()
class ScoresRequest(Request["EncryptedScores"]):
    """Ask a party for the contribution of its columns to the scores of a round's rows.

    Attributes
    ----------
    round : int
        Number of the round, from 0.
    """

    round: int


@message(discloses={Reveal.FEATURES})
class EncryptedScores(Message):
    """The reply: the scores ``z = X W`` of a party, and the powers of z that the sigmoid needs.

    Attributes
    ----------
    party : str
        Name of the party.
    round : int
        Number of the round, from 0.
    scores : Sealed
        Encrypted integers.
    """

    party: str
    round: int
    scores: Sealed


@message(discloses=_ROWS)
class EncryptedResiduals(Message):
    """Encrypted residuals ``d`` of a round's rows, sent to a party that computes its gradient.

    Attributes
    ----------
    round : int
        Number of the round, from 0.
    residuals : Sealed
        Encrypted integers, one per row.
    """

    round: int
    residuals: Sealed


@message(discloses=_ROWS)
class OpenedVector(Message):
    """A vector that the arbiter decrypted for a colluding party. No honest party sends it.

    Attributes
    ----------
    party : str
        Party whose scores ``z = X W`` it contains. Empty for residuals.
    round : int
        Number of the round, from 0.
    values : uint8 array, shape (m, width)
        Packed integers.
    """

    party: str
    round: int
    values: NDArray[np.uint8]


@message(discloses=_ROWS)
class EncryptedGradient(Request["Gradient"]):
    """A party's encrypted gradient ``X' d``, for the arbiter to decrypt.

    Attributes
    ----------
    party : str
        Name of the party.
    round : int
        Number of the round, from 0.
    gradient : Sealed
        Encrypted integers, one per column.
    bits : int
        Their binary places.
    """

    party: str
    round: int
    gradient: Sealed
    bits: int


@message(discloses=_ROWS)
class Gradient(Message):
    """The decrypted gradient, which the arbiter sends to the party of these columns.

    Attributes
    ----------
    party : str
        Name of the party.
    round : int
        Number of the round, from 0.
    values : uint8 array, shape (c, width)
        Packed integers.
    bits : int
        Their binary places.
    """

    party: str
    round: int
    values: NDArray[np.uint8]
    bits: int

    def unit_of(self, field: str) -> tuple[float, bool]:
        """Return the unit of the gradient.

        Parameters
        ----------
        field : str
            Name of a field. All fields have the same unit.

        Returns
        -------
        units : float
            Number of units that make 1: ``2^bits``.
        integers : bool
            True, because the numbers are integers.
        """
        return 2.0**self.bits, True

    def numbers(self, field: str) -> NDArray[Any]:
        """Return the unpacked integers of a field.

        Parameters
        ----------
        field : str
            Name of the field, ``"values"``.

        Returns
        -------
        object array, shape (c,)
            Python integers.
        """
        return unpack_integers(self.values)


@message(discloses=_ROWS)
class OwnDesign(Message):
    """The encoded rows and target that the active party computes with. It is noted, never sent.

    Attributes
    ----------
    columns : int32 array, shape (c,)
        Positions in the schema, -1 for the intercept, -2 for a column of random numbers.
    design : uint8 array, shape (m, c, width)
        Packed rows.
    target : uint8 array, shape (m, width)
        Class 0 or 1, or the standardised target.
    bits : int
        Binary places of both.
    center, spread : float
        Mean and standard deviation of a numeric target, 0 and 1 for classes.
    """

    columns: NDArray[np.int32]
    design: NDArray[np.uint8]
    target: NDArray[np.uint8]
    bits: int
    center: float
    spread: float


@message()
class RowsToScore(Request["ScoresOfRows"]):
    """Ask a party for the contribution of its columns to the scores of the test rows.

    Attributes
    ----------
    rows : int
        Number of test rows.
    """

    rows: int


@message(discloses={Reveal.FEATURES})
class ScoresOfRows(Message):
    """The reply to `RowsToScore` in plain text.

    Attributes
    ----------
    party : str
        Name of the party.
    scores : float64 array, shape (n,)
        Contribution of its columns to the score of each row.
    """

    party: str
    scores: NDArray[np.float64]


@message(discloses={Reveal.MODEL})
class HeldWeights(Message):
    """The active party's share of a vertical model.

    Attributes
    ----------
    weights : float64 array, shape (c,)
        Weights in the order of the columns of `OwnDesign`.
    """

    weights: NDArray[np.float64]


@message()
class MomentsRequest(Request["Moments"]):
    """Ask clients for sums and sums of squares of their columns around given centres.

    Attributes
    ----------
    around : float64 array, shape (c,)
        The centres.
    """

    around: NDArray[np.float64]


@message(discloses=_ROWS | {Reveal.COUNTS})
class Moments(Message):
    """Sums over a client's rows, for the columns and, if it is numeric, the target.

    Attributes
    ----------
    count, total, squares : float64 array, shape (c,)
        Number of present values, their sum, and the sum of squared distances from the requested
        centres.
    """

    # All three fields are summed, so that the server never receives those of one client.
    count: NDArray[np.float64] = summable()
    total: NDArray[np.float64] = summable()
    squares: NDArray[np.float64] = summable()


@message(discloses=_ROWS)
class CommonScales(Message):
    """Mean and standard deviation by which all clients standardise. The target comes last.

    Attributes
    ----------
    mean, scale : float64 array, shape (c,)
        Over the rows of all clients.
    """

    mean: NDArray[np.float64]
    scale: NDArray[np.float64]


@message()
class WeightsRequest(Request["LocalWeights"]):
    """Ask clients for their weights after a local step.

    Attributes
    ----------
    round : int
        Number of the round, from 0.
    """

    round: int


@message(discloses=_ROWS | {Reveal.MODEL})
class LocalWeights(Message):
    """A client's weights after a step on its local rows.

    Attributes
    ----------
    round : int
        Number of the round, from 0.
    weights : int64 array, shape (c,)
        In units of ``2^-bits``.
    """

    round: int
    # Summed over clients, so that the server computes only the average.
    weights: NDArray[np.int64] = summable()


@message(discloses=_ROWS | {Reveal.MODEL})
class AverageWeights(Message):
    """The average of all clients' weights.

    Attributes
    ----------
    round : int
        Number of the round, from 0.
    weights : int64 array, shape (c,)
        In units of ``2^-bits``.
    bits : int
        Binary places of the weights.
    """

    round: int
    weights: NDArray[np.int64]
    bits: int

    def unit_of(self, field: str) -> tuple[float, bool]:
        """Return the unit of the weights.

        Parameters
        ----------
        field : str
            Name of a field. All fields have the same unit.

        Returns
        -------
        units : float
            Number of units that make 1: ``2^bits``.
        integers : bool
            True, because the numbers are integers.
        """
        return 2.0**self.bits, True


# The moments of the columns are part of the released model.
@message(discloses={Reveal.MODEL})
class RegressionWeights(Message):
    """A released regression over standardised columns. The intercept comes last.

    Attributes
    ----------
    kind : str
        ``"logistic"`` or ``"linear"``.
    classes : bool
        Whether the target has classes.
    mean, scale : float64 array, shape (c,)
        Moments by which columns and target were standardised.
    weights : float64 array, shape (c,)
        Weights of the standardised columns, and the intercept.
    """

    kind: str
    classes: bool
    mean: NDArray[np.float64]
    scale: NDArray[np.float64]
    weights: NDArray[np.float64]

    def model(self) -> RegressionWeights:
        """Return the predictor, which is the message."""
        return self

    def as_message(self) -> RegressionWeights:
        """Return the message form, which is the model."""
        return self

    def predict(self, X: NDArray[np.float32]) -> NDArray[np.float64]:
        """Return probabilities of class 1, or target values.

        Parameters
        ----------
        X : float32 array, shape (n, d)
            Rows. A missing value (NaN) counts as the mean of its column.

        Returns
        -------
        predictions : float64 array, shape (n,)
            Prediction of every row.
        """
        mean, scale = self.mean[:-1], self.scale[:-1]
        Z = (X.astype(np.float64) - mean) / np.where(scale > 0, scale, np.inf)
        z = np.full(len(X), self.weights[-1])
        for column, weight in zip(np.nan_to_num(Z, nan=0.0).T, self.weights, strict=False):
            z += weight * column  # a fixed order of summation gives equal bits on all processors
        return predict_from_scores(
            self.kind, z, float(self.mean[-1]), float(self.scale[-1]), self.classes
        )

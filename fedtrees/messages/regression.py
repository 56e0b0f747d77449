"""Messages and fixed-point arithmetic of federated linear and logistic regression.

All computations on the vertical protocol's ciphertexts are exact: weights, rows and scores are
integers in units of ``2^-bits`` (`fedtrees.messages.fixed_point`). The protocols are in
`fedtrees.protocols.regression`.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from fedtrees.core.messages import Message, Request, Reveal, Sealed, summable
from fedtrees.messages.aggregation import PaillierKey
from fedtrees.messages.fixed_point import Integers, encoded, integers, unpacked

_ROWS = frozenset({Reveal.FEATURES, Reveal.LABELS})

#: Polynomial approximations of the sigmoid for computation under encryption, as coefficients of 1,
#: z, z^2, z^3: the first-order Taylor polynomial (FATE), and the least-squares cubic on [-8, 8] of
#: Kim et al. 2018.
SIGMOIDS: dict[int, tuple[Fraction, ...]] = {
    1: (Fraction(1, 2), Fraction(1, 4)),
    3: (Fraction(1, 2), Fraction(15012, 10**5), Fraction(0), Fraction(-15930, 10**7)),
}
#: Binary places of the coefficients.
SIGMOID_BITS = 20
#: Bound on the absolute score if rows are bounded. The linear sigmoid reaches 0 and 1 there.
SCORE_BOUND = 2.0


@dataclass(frozen=True, eq=False)
class KeyRequest(Request[PaillierKey]):
    """Ask the arbiter for its public key."""


@dataclass(frozen=True, eq=False)
class ColumnScales(Message):
    """Mean and standard deviation by which a party standardises its columns.

    Attributes
    ----------
    columns : int32 array, shape (c,)
        Positions in the schema.
    mean, scale : float64 array, shape (c,)
        Over the present values. A scale of 0 marks a constant column.
    declared : bool
        True if both follow from declared ranges and not from data.
    """

    discloses: ClassVar[frozenset[Reveal]] = frozenset({Reveal.FEATURES})
    party: str
    columns: NDArray[np.int32]
    mean: NDArray[np.float64]
    scale: NDArray[np.float64]
    declared: bool = False


@dataclass(frozen=True, eq=False)
class ScoresRequest(Request["EncryptedScores"]):
    """Ask a party for the contribution of its columns to the scores of a round's rows."""

    round: int


@dataclass(frozen=True, eq=False)
class EncryptedScores(Message):
    """The reply: the scores ``z = X W`` of a party, and the powers of z that the sigmoid needs."""

    discloses: ClassVar[frozenset[Reveal]] = frozenset({Reveal.FEATURES})
    party: str
    round: int
    scores: Sealed


@dataclass(frozen=True, eq=False)
class EncryptedResiduals(Message):
    """Encrypted residuals ``d`` of a round's rows, sent to a party that computes its gradient."""

    discloses: ClassVar[frozenset[Reveal]] = _ROWS
    round: int
    residuals: Sealed


@dataclass(frozen=True, eq=False)
class OpenedVector(Message):
    """A vector that the arbiter decrypted for a colluding party. No honest party sends it.

    Attributes
    ----------
    party : str
        Party whose scores ``z = X W`` it contains. Empty for residuals.
    values : uint8 array, shape (m, width)
        Packed integers.
    """

    discloses: ClassVar[frozenset[Reveal]] = _ROWS
    party: str
    round: int
    values: NDArray[np.uint8]


@dataclass(frozen=True, eq=False)
class EncryptedGradient(Request["Gradient"]):
    """A party's encrypted gradient ``X' d``, for the arbiter to decrypt, and its binary places."""

    discloses: ClassVar[frozenset[Reveal]] = _ROWS
    party: str
    round: int
    gradient: Sealed
    bits: int


@dataclass(frozen=True, eq=False)
class Gradient(Message):
    """The decrypted gradient, which the arbiter sends to the party of these columns.

    Attributes
    ----------
    values : uint8 array, shape (c, width)
        Packed integers.
    bits : int
        Their binary places.
    """

    discloses: ClassVar[frozenset[Reveal]] = _ROWS
    party: str
    round: int
    values: NDArray[np.uint8]
    bits: int

    def unit_of(self, field: str) -> tuple[float, bool]:
        """Return how many units make 1, and that the numbers are integers."""
        return 2.0**self.bits, True

    def numbers(self, field: str) -> NDArray[Any]:
        """Return the unpacked integers."""
        return unpacked(self.values)


@dataclass(frozen=True, eq=False)
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

    discloses: ClassVar[frozenset[Reveal]] = _ROWS
    columns: NDArray[np.int32]
    design: NDArray[np.uint8]
    target: NDArray[np.uint8]
    bits: int
    center: float
    spread: float


@dataclass(frozen=True, eq=False)
class RowsToScore(Request["ScoresOfRows"]):
    """Ask a party for the contribution of its columns to the scores of the test rows."""

    rows: int


@dataclass(frozen=True, eq=False)
class ScoresOfRows(Message):
    """The reply to `RowsToScore` in plain text: float64, shape (n,)."""

    discloses: ClassVar[frozenset[Reveal]] = frozenset({Reveal.FEATURES})
    party: str
    scores: NDArray[np.float64]


@dataclass(frozen=True, eq=False)
class HeldWeights(Message):
    """The active party's share of a vertical model: its weights, in the order of `OwnDesign`."""

    discloses: ClassVar[frozenset[Reveal]] = frozenset({Reveal.MODEL})
    weights: NDArray[np.float64]


@dataclass(frozen=True, eq=False)
class MomentsRequest(Request["Moments"]):
    """Ask clients for sums and sums of squares of their columns around given centres."""

    around: NDArray[np.float64]


@dataclass(frozen=True, eq=False)
class Moments(Message):
    """Sums over a client's rows, for the columns and, if it is numeric, the target.

    Attributes
    ----------
    count, total, squares : float64 array, shape (c,)
        Number of present values, their sum, and the sum of squared distances from the requested
        centres.
    """

    discloses: ClassVar[frozenset[Reveal]] = _ROWS | {Reveal.COUNTS}
    # All three fields are summed, so that the server never receives those of one client.
    count: NDArray[np.float64] = summable()
    total: NDArray[np.float64] = summable()
    squares: NDArray[np.float64] = summable()


@dataclass(frozen=True, eq=False)
class CommonScales(Message):
    """Mean and standard deviation by which all clients standardise. The target comes last."""

    discloses: ClassVar[frozenset[Reveal]] = _ROWS
    mean: NDArray[np.float64]
    scale: NDArray[np.float64]


@dataclass(frozen=True, eq=False)
class WeightsRequest(Request["LocalWeights"]):
    """Ask clients for their weights after a local step."""

    round: int


@dataclass(frozen=True, eq=False)
class LocalWeights(Message):
    """A client's weights after a step on its local rows, int64, in units of ``2^-bits``."""

    discloses: ClassVar[frozenset[Reveal]] = _ROWS | {Reveal.MODEL}
    round: int
    # Summed over clients, so that the server computes only the average.
    weights: NDArray[np.int64] = summable()


@dataclass(frozen=True, eq=False)
class AverageWeights(Message):
    """The average of all clients' weights, int64, shape (c,), in units of ``2^-bits``."""

    discloses: ClassVar[frozenset[Reveal]] = _ROWS | {Reveal.MODEL}
    round: int
    weights: NDArray[np.int64]
    bits: int

    def unit_of(self, field: str) -> tuple[float, bool]:
        """Return how many units make 1, and that the numbers are integers."""
        return 2.0**self.bits, True


@dataclass(frozen=True, eq=False)
class RegressionWeights(Message):
    """A released regression over standardised columns. The intercept comes last."""

    # The moments of the columns are part of the released model.
    discloses: ClassVar[frozenset[Reveal]] = frozenset({Reveal.MODEL})
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
        """Return probabilities of class 1, or target values, float64, shape (n,)."""
        mean, scale = self.mean[:-1], self.scale[:-1]
        Z = (X.astype(np.float64) - mean) / np.where(scale > 0, scale, np.inf)
        z = np.full(len(X), self.weights[-1])
        for column, weight in zip(np.nan_to_num(Z, nan=0.0).T, self.weights, strict=False):
            z += weight * column  # a fixed order of summation gives equal bits on all processors
        return answered(self.kind, z, float(self.mean[-1]), float(self.scale[-1]), self.classes)


def answered(
    kind: str, z: NDArray[np.float64], center: float, spread: float, classes: bool = False
) -> NDArray[np.float64]:
    """Convert scores to predictions.

    Parameters
    ----------
    kind : {"logistic", "linear"}
        Logistic regression uses the exact sigmoid, not its approximation.
    z : float64 array, shape (n,)
        Scores.
    center, spread : float
        Mean and standard deviation of the target of a linear regression.
    classes : bool
        Whether the target has classes. A linear prediction is then clipped to [0, 1].

    Returns
    -------
    predictions : float64 array, shape (n,)
    """
    if kind == "logistic":
        # The last bit of numpy's exponential depends on the instruction set of the processor.
        return np.array([1 / (1 + math.exp(-min(max(v, -700.0), 700.0))) for v in z.tolist()])
    # The target was standardised, so that the score is in units of its deviation.
    predictions = center + spread * z
    return np.clip(predictions, 0.0, 1.0) if classes else predictions


def standardised(
    X: NDArray[np.floating], mean: NDArray[np.float64], scale: NDArray[np.float64], bits: int
) -> Integers:
    """Return standardised rows in fixed-point representation.

    Missing values and constant columns become 0.

    Parameters
    ----------
    X : float array, shape (n, c)
        Rows.
    mean, scale : float64 array, shape (c,)
        Means and standard deviations of the columns.
    bits : int
        Binary places.

    Returns
    -------
    Z : object array of Python integers, shape (n, c)
    """
    Z = (X.astype(np.float64) - mean) / np.where(scale > 0, scale, np.inf)
    return encoded(np.nan_to_num(Z, nan=0.0), bits)


def link_of(parameters: Mapping[str, Any], classes: bool) -> tuple[Fraction, ...]:
    """Return the link function as coefficients of a polynomial of the score, constant first.

    It is the approximated sigmoid of logistic regression, or the identity of linear regression.
    """
    kind = parameters["kind"] or ("logistic" if classes else "linear")
    identity = (Fraction(0), Fraction(1))
    return SIGMOIDS[int(parameters.get("degree", 1))] if kind == "logistic" else identity


def largest_residual(link: Sequence[Fraction]) -> float:
    """Return the bound on ``|link(z) - y|`` for labels 0 and 1 and ``|z| <= SCORE_BOUND``.

    The coefficients are rounded to `SIGMOID_BITS` places as in training. All links increase on this
    interval, so that its ends determine the bound.
    """
    # Links increase on this interval, so that the largest residual is at one of its ends.
    coefficients = [Fraction(int(c * (1 << SIGMOID_BITS)), 1 << SIGMOID_BITS) for c in link]
    ends = (-SCORE_BOUND, SCORE_BOUND)
    low, high = (sum(c * Fraction(z) ** k for k, c in enumerate(coefficients)) for z in ends)
    return float(max(high, 1 - low))


def shortened(design: Integers, bits: int, bounds: tuple[float, float] | None) -> Integers:
    """Scale rows down to the largest permitted norm, rounding toward 0.

    Parameters
    ----------
    design : object array of Python integers, shape (m, c)
        Rows in units of ``2^-bits``.
    bits : int
        Binary places.
    bounds : (float, float) or None
        Bounds on the norm of a row and on its score. None leaves the rows unchanged.

    Returns
    -------
    design : object array, shape (m, c)
    """
    if bounds is None:
        return design
    max_norm = int(Fraction(str(bounds[0])) * (1 << bits))
    # Rounded up, so that the norm of a scaled row never exceeds the bound.
    norms = [math.isqrt(max(sum(v * v for v in row) - 1, 0)) + 1 for row in design.tolist()]
    scaled = [
        [v if n <= max_norm else (abs(v) * max_norm // n) * (1 if v > 0 else -1) for v in row]
        for row, n in zip(design.tolist(), norms, strict=True)
    ]
    return integers(scaled).reshape(design.shape)


def limited(scores: Integers, bits: int, bounds: tuple[float, float] | None) -> Integers:
    """Clip scores with `bits` binary places to ``[-bounds[1], bounds[1]]``.

    None as `bounds` leaves them unchanged.
    """
    if bounds is None:
        return scores
    max_score = int(Fraction(str(bounds[1])) * (1 << bits))
    return integers([max(-max_score, min(max_score, int(z))) for z in scores.ravel()]).reshape(
        scores.shape
    )


def stepped(
    weights: Integers, gradient: Integers, places: int, rows: int, lr: Any, alpha: Any
) -> Integers:
    """Return ``W - lr (g / m + alpha W)``, rounded to the nearest last place, halves up.

    Parameters
    ----------
    weights : object array, shape (c,)
        Weights W as fixed-point integers.
    gradient : object array, shape (c,)
        Gradient sum g.
    places : int
        Binary places that the gradient has in addition to those of the weights. Negative if it has
        fewer.
    rows : int
        Number of rows m.
    lr, alpha : float
        Learning rate and L2 penalty. Their decimal notation is taken exactly.
    """
    # The shortest decimal notation of a float is the number that a user wrote.
    rate, decay = Fraction(str(lr)), Fraction(str(lr)) * Fraction(str(alpha))
    unit = rate / rows / Fraction(2) ** places
    stepped_weights = [
        (Fraction(int(w)) * (1 - decay) - unit * int(g) + Fraction(1, 2)).__floor__()
        for w, g in zip(weights, gradient, strict=True)
    ]
    return integers(stepped_weights)


def batches_of(rows: int, batch: int) -> tuple[slice, ...]:
    """Split `rows` rows into consecutive batches of almost equal size, at most `batch` rows each.

    One batch contains all rows if `batch` is 0.

    Examples
    --------
    >>> batches_of(5, 2)
    (slice(0, 1, None), slice(1, 3, None), slice(3, 5, None))
    """
    count = -(-rows // batch) if batch else 1
    return tuple(slice(k * rows // count, (k + 1) * rows // count) for k in range(count))


def moments(X: NDArray[np.float32]) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Return mean and standard deviation of the present values, float64, shape (c,) each."""
    present = ~np.isnan(X)
    count = np.maximum(present.sum(axis=0), 1)
    filled = np.where(present, X, 0).astype(np.float64)
    mean = filled.sum(axis=0) / count
    deviation = np.where(present, filled - mean, 0.0)
    # The computed deviation of equal values can differ from 0 by rounding.
    constant = np.array([len(np.unique(x[~np.isnan(x)])) < 2 for x in X.T], dtype=bool)
    return mean, np.where(constant, 0.0, np.sqrt((deviation**2).sum(axis=0) / count))


def design_of(
    values: NDArray[np.float64], scales: CommonScales, bits: int, intercept: bool
) -> tuple[Integers, Integers]:
    """Return standardised columns followed by the intercept, (n, c), and the target, (n,).

    The last column of `values` is the target. All results have `bits` binary places.
    """
    Z = standardised(values, scales.mean, scales.scale, bits)
    # The column of ones is the intercept. It has the same fixed-point unit as the columns.
    ones = np.full((len(values), int(intercept)), 1 << bits, dtype=object)
    return np.concatenate([Z[:, :-1], ones], axis=1), Z[:, -1]


def gradient_of(
    design: Integers, target: Integers, weights: Integers, bits: int, logistic: bool
) -> Integers:
    """Return ``X' (link(X W) - y)``, with ``3 bits + SIGMOID_BITS`` binary places.

    X, y and W have `bits` binary places. The link is the identity, or the linear approximation of
    the sigmoid if `logistic` is true.
    """
    constant, slope = SIGMOIDS[1] if logistic else (0, 1)
    z = design @ weights
    residual = z * int(slope * (1 << SIGMOID_BITS)) + int(constant * (1 << SIGMOID_BITS + 2 * bits))
    gradient: Integers = design.T @ (residual - (target << (bits + SIGMOID_BITS)))
    return gradient

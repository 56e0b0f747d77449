"""What the parties of a federated regression say; numbers have binary places (`fixed_point`)."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from fedtrees.core.messages import Message, Reveal, summable
from fedtrees.core.sealed import Sealed
from fedtrees.messages.fixed_point import Integers, encoded, integers, unpacked

_ROWS = frozenset({Reveal.FEATURES, Reveal.LABELS})

#: Sigmoids that are computed under encryption, as coefficients of 1, z, z^2, z^3: Taylor's first
#: (FATE), and the least-squares cubic on [-8, 8] of Kim et al. 2018.
SIGMOIDS: dict[int, tuple[Fraction, ...]] = {
    1: (Fraction(1, 2), Fraction(1, 4)),
    3: (Fraction(1, 2), Fraction(15012, 10**5), Fraction(0), Fraction(-15930, 10**7)),
}
#: Binary places of the coefficients.
SIGMOID_BITS = 20
#: Where rows are bounded: how far from 0 a score may be. The first sigmoid is 0 and 1 there.
SCORE_BOUND = 2.0


@dataclass(frozen=True, eq=False)
class KeyRequest(Message):
    """Ask the arbiter for its public key."""

    discloses: ClassVar[frozenset[Reveal]] = frozenset()


@dataclass(frozen=True, eq=False)
class ColumnScales(Message):
    """Mean and standard deviation of a party's columns, by which they are standardised."""

    discloses: ClassVar[frozenset[Reveal]] = frozenset({Reveal.FEATURES})
    party: str
    columns: NDArray[np.int32]  # shape (c,): positions in the schema
    # mean, scale, shape (c,): of the values that are there; a scale of 0: the column is constant
    mean: NDArray[np.float64]
    scale: NDArray[np.float64]
    declared: bool = False  # whether they follow from declared ranges alone


@dataclass(frozen=True, eq=False)
class ScoresRequest(Message):
    """Ask for what a party's columns bring to the scores of a round's rows."""

    discloses: ClassVar[frozenset[Reveal]] = frozenset()
    round: int


@dataclass(frozen=True, eq=False)
class EncryptedScores(Message):
    """The answer: ``z = X W`` of a party, and its powers where the sigmoid has them, sealed."""

    discloses: ClassVar[frozenset[Reveal]] = frozenset({Reveal.FEATURES})
    party: str
    round: int
    scores: Sealed


@dataclass(frozen=True, eq=False)
class EncryptedResiduals(Message):
    """Residuals ``d`` of a round's rows, sealed, for a party's gradient."""

    discloses: ClassVar[frozenset[Reveal]] = _ROWS
    round: int
    residuals: Sealed


@dataclass(frozen=True, eq=False)
class OpenedVector(Message):
    """What an arbiter opened for one it colludes with; nothing crosses between parties."""

    discloses: ClassVar[frozenset[Reveal]] = _ROWS
    party: str  # whose scores ``z = X W``; empty: residuals
    round: int
    values: NDArray[np.uint8]  # shape (m, width): whole numbers, packed


@dataclass(frozen=True, eq=False)
class EncryptedGradient(Message):
    """A party's gradient ``X' d``, sealed, for the arbiter to open; and its binary places."""

    discloses: ClassVar[frozenset[Reveal]] = _ROWS
    party: str
    round: int
    gradient: Sealed
    bits: int


@dataclass(frozen=True, eq=False)
class Gradient(Message):
    """What the arbiter opened, for the party whose gradient it is."""

    discloses: ClassVar[frozenset[Reveal]] = _ROWS
    party: str
    round: int
    values: NDArray[np.uint8]  # shape (c, width): whole numbers, packed
    bits: int  # their binary places

    def unit_of(self, field: str) -> tuple[float, bool]:
        """Return that of the last binary place."""
        return 2.0**self.bits, True

    def numbers(self, field: str) -> NDArray[Any]:
        """Return the whole numbers."""
        return unpacked(self.values)


@dataclass(frozen=True, eq=False)
class OwnDesign(Message):
    """What the active party computes with, as encoded; it notes it, and nothing crosses."""

    discloses: ClassVar[frozenset[Reveal]] = _ROWS
    # shape (c,): positions in the schema; -1: the intercept, -2: a column of randomness
    columns: NDArray[np.int32]
    design: NDArray[np.uint8]  # shape (m, c, width)
    target: NDArray[np.uint8]  # shape (m, width): class 0 or 1, or the standardised target
    bits: int
    # center, spread: mean and standard deviation of a numeric target; 0 and 1 of a class
    center: float
    spread: float


@dataclass(frozen=True, eq=False)
class RowsToScore(Message):
    """Ask for what a party's columns bring to the scores of so many rows to predict."""

    discloses: ClassVar[frozenset[Reveal]] = frozenset()
    rows: int


@dataclass(frozen=True, eq=False)
class ScoresOfRows(Message):
    """The answer, in the clear: float64, shape (n,)."""

    discloses: ClassVar[frozenset[Reveal]] = frozenset({Reveal.FEATURES})
    party: str
    scores: NDArray[np.float64]


@dataclass(frozen=True, eq=False)
class HeldWeights(Message):
    """The active party's part of a vertical model: its weights, in the order of `OwnDesign`."""

    discloses: ClassVar[frozenset[Reveal]] = frozenset({Reveal.MODEL})
    weights: NDArray[np.float64]


@dataclass(frozen=True, eq=False)
class MomentsRequest(Message):
    """Ask clients for sums and sums of squares of their columns."""

    discloses: ClassVar[frozenset[Reveal]] = frozenset()
    around: NDArray[np.float64]


@dataclass(frozen=True, eq=False)
class Moments(Message):
    """Sums over a client's rows, of the columns and, where it is a number, of the target.

    `count, total, squares`: float64 array, shape (c,). Values there, their sum, and the sum of
    squares around what was asked.
    """

    discloses: ClassVar[frozenset[Reveal]] = _ROWS | {Reveal.COUNTS}
    count: NDArray[np.float64] = summable()
    total: NDArray[np.float64] = summable()
    squares: NDArray[np.float64] = summable()


@dataclass(frozen=True, eq=False)
class CommonScales(Message):
    """Mean and standard deviation that all clients standardise by; the target's come last."""

    discloses: ClassVar[frozenset[Reveal]] = _ROWS
    mean: NDArray[np.float64]
    scale: NDArray[np.float64]


@dataclass(frozen=True, eq=False)
class WeightsRequest(Message):
    """Ask clients for their weights after a local step."""

    discloses: ClassVar[frozenset[Reveal]] = frozenset()
    round: int


@dataclass(frozen=True, eq=False)
class LocalWeights(Message):
    """A client's weights after a step on its own rows, int64, in units of the last place."""

    discloses: ClassVar[frozenset[Reveal]] = _ROWS | {Reveal.MODEL}
    round: int
    weights: NDArray[np.int64] = summable()


@dataclass(frozen=True, eq=False)
class AverageWeights(Message):
    """The average of all clients' weights, int64, shape (c,), with so many binary places."""

    discloses: ClassVar[frozenset[Reveal]] = _ROWS | {Reveal.MODEL}
    round: int
    weights: NDArray[np.int64]
    bits: int

    def unit_of(self, field: str) -> tuple[float, bool]:
        """Return that of the last binary place."""
        return 2.0**self.bits, True


@dataclass(frozen=True, eq=False)
class RegressionWeights(Message):
    """A released regression, over standardised columns, the intercept last."""

    discloses: ClassVar[frozenset[Reveal]] = frozenset({Reveal.MODEL})
    kind: str
    classes: bool
    mean: NDArray[np.float64]
    scale: NDArray[np.float64]
    weights: NDArray[np.float64]

    def model(self) -> RegressionWeights:
        """Return the model: itself."""
        return self

    def as_message(self) -> RegressionWeights:
        """Return the message that tells it: itself."""
        return self

    def predict(self, X: NDArray[np.float32]) -> NDArray[np.float64]:
        """Return probabilities of class 1, or values, float64, shape (n,)."""
        mean, scale = self.mean[:-1], self.scale[:-1]
        Z = (X.astype(np.float64) - mean) / np.where(scale > 0, scale, np.inf)
        z = np.full(len(X), self.weights[-1])
        for column, weight in zip(np.nan_to_num(Z, nan=0.0).T, self.weights, strict=False):
            z += weight * column  # in this order, whatever the processor
        return answered(self.kind, z, float(self.mean[-1]), float(self.scale[-1]), self.classes)


def answered(
    kind: str, z: NDArray[np.float64], center: float, spread: float, classes: bool = False
) -> NDArray[np.float64]:
    """Return the prediction of rows by their scores z, float64, shape (n,).

    Of a logistic regression, the true sigmoid of z; of a linear one on classes, kept in [0, 1].
    """
    if kind == "logistic":
        # numpy's exponentials differ by the processor's instructions
        return np.array([1 / (1 + math.exp(-min(max(v, -700.0), 700.0))) for v in z.tolist()])
    found = center + spread * z
    return np.clip(found, 0.0, 1.0) if classes else found


def standardised(
    X: NDArray[np.floating], mean: NDArray[np.float64], scale: NDArray[np.float64], bits: int
) -> Integers:
    """Return rows as they are computed with: whole numbers, 0 where a value is missing.

    A constant column is 0, whatever it holds.
    """
    Z = (X.astype(np.float64) - mean) / np.where(scale > 0, scale, np.inf)
    return encoded(np.nan_to_num(Z, nan=0.0), bits)


def link_of(parameters: Mapping[str, Any], classes: bool) -> tuple[Fraction, ...]:
    """Return the link of a regression as a polynomial of the score, constant first."""
    kind = parameters["kind"] or ("logistic" if classes else "linear")
    identity = (Fraction(0), Fraction(1))
    return SIGMOIDS[int(parameters.get("degree", 1))] if kind == "logistic" else identity


def largest_residual(link: Sequence[Fraction]) -> float:
    """Return the bound on ``|link(z) - y|`` for y of 0 or 1 and z within `SCORE_BOUND` of 0.

    Of the coefficients as they are computed with; links rise there.
    """
    kept = [Fraction(int(c * (1 << SIGMOID_BITS)), 1 << SIGMOID_BITS) for c in link]
    ends = (-SCORE_BOUND, SCORE_BOUND)
    low, high = (sum(c * Fraction(z) ** k for k, c in enumerate(kept)) for z in ends)
    return float(max(high, 1 - low))


def shortened(design: Integers, bits: int, bounds: tuple[float, float] | None) -> Integers:
    """Return rows scaled down to the norm that they may have, toward 0, (m, c)."""
    if bounds is None:
        return design
    most = int(Fraction(str(bounds[0])) * (1 << bits))
    norms = [math.isqrt(max(sum(v * v for v in row) - 1, 0)) + 1 for row in design.tolist()]
    found = [
        [v if n <= most else (abs(v) * most // n) * (1 if v > 0 else -1) for v in row]
        for row, n in zip(design.tolist(), norms, strict=True)
    ]
    return integers(found).reshape(design.shape)


def limited(scores: Integers, bits: int, bounds: tuple[float, float] | None) -> Integers:
    """Return scores, of so many binary places, within what they may be."""
    if bounds is None:
        return scores
    most = int(Fraction(str(bounds[1])) * (1 << bits))
    return integers([max(-most, min(most, int(z))) for z in scores.ravel()]).reshape(scores.shape)


def stepped(
    weights: Integers, gradient: Integers, places: int, rows: int, lr: Any, alpha: Any
) -> Integers:
    """Return ``W - lr (g / m + alpha W)`` to the nearest last place, halves up.

    `weights`: object array, shape (c,).
    `gradient`: object array, shape (c,). With so many binary places more than the weights have,
    fewer if negative.
    `lr, alpha`: float. Taken as written in decimal.
    """
    rate, decay = Fraction(str(lr)), Fraction(str(lr)) * Fraction(str(alpha))
    unit = rate / rows / Fraction(2) ** places
    found = [
        (Fraction(int(w)) * (1 - decay) - unit * int(g) + Fraction(1, 2)).__floor__()
        for w, g in zip(weights, gradient, strict=True)
    ]
    return integers(found)


def batches_of(rows: int, batch: int) -> tuple[slice, ...]:
    """Return which rows are stepped on in turn, round by round: as even as can be, all where 0."""
    count = -(-rows // batch) if batch else 1
    return tuple(slice(k * rows // count, (k + 1) * rows // count) for k in range(count))


def moments(X: NDArray[np.float32]) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Return mean and standard deviation of the values that are there, float64, shape (c,)."""
    there = ~np.isnan(X)
    count = np.maximum(there.sum(axis=0), 1)
    filled = np.where(there, X, 0).astype(np.float64)
    mean = filled.sum(axis=0) / count
    apart = np.where(there, filled - mean, 0.0)
    constant = np.array([len(np.unique(x[~np.isnan(x)])) < 2 for x in X.T], dtype=bool)
    return mean, np.where(constant, 0.0, np.sqrt((apart**2).sum(axis=0) / count))


def design_of(
    values: NDArray[np.float64], scales: CommonScales, bits: int, intercept: bool
) -> tuple[Integers, Integers]:
    """Return standardised columns with the intercept last, (n, c), and the target, (n,)."""
    Z = standardised(values, scales.mean, scales.scale, bits)
    ones = np.full((len(values), int(intercept)), 1 << bits, dtype=object)
    return np.concatenate([Z[:, :-1], ones], axis=1), Z[:, -1]


def gradient_of(
    design: Integers, target: Integers, weights: Integers, bits: int, logistic: bool
) -> Integers:
    """Return ``X' (link(X W) - y)``, with ``3 bits + SIGMOID_BITS`` binary places."""
    constant, slope = SIGMOIDS[1] if logistic else (0, 1)
    z = design @ weights
    residual = z * int(slope * (1 << SIGMOID_BITS)) + int(constant * (1 << SIGMOID_BITS + 2 * bits))
    found: Integers = design.T @ (residual - (target << (bits + SIGMOID_BITS)))
    return found

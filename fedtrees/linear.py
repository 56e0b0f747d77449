"""Arithmetic of federated linear and logistic regression, exact on every machine.

A number with ``bits`` binary places is represented by the integer ``value * 2^bits``. Arrays of
such integers have dtype object and contain Python integers of unlimited length. All computations on
ciphertexts use this representation: weights, rows and scores are integers in units of ``2^-bits``.
Messages contain such arrays as bytes (`pack_integers`). The messages are in
`fedtrees.messages.regression`, the protocols in `fedtrees.protocols.regression`.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from fractions import Fraction
from typing import Any

import numpy as np
from numpy.typing import NDArray

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
Integers = NDArray[Any]


def to_python_integers(values: Any) -> Integers:
    """Convert an array of integers to an array of Python integers of the same shape."""
    shape = np.shape(values)
    flat = [int(v) for v in np.asarray(values, dtype=object).ravel()]
    return np.array([*flat, None], dtype=object)[:-1].reshape(shape)


def to_fixed_point(values: NDArray[np.float64], bits: int) -> Integers:
    """Round each value to the nearest multiple of ``2^-bits``, exactly, and halves to even.

    Examples
    --------
    >>> encoded(np.array([0.5, -0.25]), bits=2).tolist()
    [2, -1]
    """
    scaled = [round(Fraction(v) * (1 << bits)) for v in np.ravel(values).tolist()]
    return to_python_integers(scaled).reshape(np.shape(values))


def from_fixed_point(values: Integers, bits: int) -> NDArray[np.float64]:
    """Return the float64 numbers that are nearest to ``values * 2^-bits``."""
    numbers = [float(Fraction(int(v), 1 << bits)) for v in np.ravel(values)]
    return np.array(numbers, dtype=np.float64).reshape(np.shape(values))


def drop_places(values: Integers, places: int) -> Integers:
    """Remove the last binary places of each number, rounding to the nearest and halves up.

    Parameters
    ----------
    values : object array of Python integers
    places : int
        Number of binary places to remove. A negative number appends zeros instead.

    Returns
    -------
    values : object array, same shape
    """
    if places <= 0:
        return values << -places if len(values) else values
    # A right shift of Python integers rounds down, so that adding one half rounds to the nearest.
    half = 1 << (places - 1)
    return to_python_integers((values + half) >> places)


def pack_integers(values: Integers) -> NDArray[np.uint8]:
    """Return integers as little-endian bytes, uint8, shape (..., width).

    All numbers have the width of the longest one, in two's complement.
    """
    flat = [int(v) for v in np.ravel(values)]
    # One bit more than the absolute value needs, for the sign.
    width = max((v.bit_length() // 8 + 1 for v in flat), default=1)
    raw = b"".join(v.to_bytes(width, "little", signed=True) for v in flat)
    return np.frombuffer(raw, np.uint8).reshape(*np.shape(values), width)


def unpack_integers(raw: NDArray[np.uint8]) -> Integers:
    """Return the integers that `pack_integers` wrote."""
    rows = raw.reshape(-1, raw.shape[-1])
    numbers = [int.from_bytes(row.tobytes(), "little", signed=True) for row in rows]
    return to_python_integers(numbers).reshape(raw.shape[:-1])


def predict_from_scores(
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


def standardise_rows(
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
    return to_fixed_point(np.nan_to_num(Z, nan=0.0), bits)


def link_polynomial(parameters: Mapping[str, Any], classes: bool) -> tuple[Fraction, ...]:
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


def shorten_rows(design: Integers, bits: int, bounds: tuple[float, float] | None) -> Integers:
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
    return to_python_integers(scaled).reshape(design.shape)


def clip_scores(scores: Integers, bits: int, bounds: tuple[float, float] | None) -> Integers:
    """Clip scores with `bits` binary places to ``[-bounds[1], bounds[1]]``.

    None as `bounds` leaves them unchanged.
    """
    if bounds is None:
        return scores
    max_score = int(Fraction(str(bounds[1])) * (1 << bits))
    return to_python_integers(
        [max(-max_score, min(max_score, int(z))) for z in scores.ravel()]
    ).reshape(scores.shape)


def take_step(
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
    return to_python_integers(stepped_weights)


def split_batches(rows: int, batch: int) -> tuple[slice, ...]:
    """Split `rows` rows into consecutive batches of almost equal size, at most `batch` rows each.

    One batch contains all rows if `batch` is 0.

    Examples
    --------
    >>> batches_of(5, 2)
    (slice(0, 1, None), slice(1, 3, None), slice(3, 5, None))
    """
    count = -(-rows // batch) if batch else 1
    return tuple(slice(k * rows // count, (k + 1) * rows // count) for k in range(count))


def column_moments(X: NDArray[np.float32]) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Return mean and standard deviation of the present values, float64, shape (c,) each."""
    present = ~np.isnan(X)
    count = np.maximum(present.sum(axis=0), 1)
    filled = np.where(present, X, 0).astype(np.float64)
    mean = filled.sum(axis=0) / count
    deviation = np.where(present, filled - mean, 0.0)
    # The computed deviation of equal values can differ from 0 by rounding.
    constant = np.array([len(np.unique(x[~np.isnan(x)])) < 2 for x in X.T], dtype=bool)
    return mean, np.where(constant, 0.0, np.sqrt((deviation**2).sum(axis=0) / count))


def build_design(
    values: NDArray[np.float64],
    mean: NDArray[np.float64],
    scale: NDArray[np.float64],
    bits: int,
    intercept: bool,
) -> tuple[Integers, Integers]:
    """Return standardised columns followed by the intercept, (n, c), and the target, (n,).

    The last column of `values` is the target. `mean` and `scale` are those of all columns. The
    results have `bits` binary places.
    """
    Z = standardise_rows(values, mean, scale, bits)
    # The column of ones is the intercept. It has the same fixed-point unit as the columns.
    ones = np.full((len(values), int(intercept)), 1 << bits, dtype=object)
    return np.concatenate([Z[:, :-1], ones], axis=1), Z[:, -1]


def compute_gradient(
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

"""Objectives as XGBoost computes them: base score, gradients, predictions and losses.

`estimated_score` is the base score that XGBoost estimates from labels, also for a party that lacks
a class.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
from numpy.typing import ArrayLike, NDArray

from fedtrees.core.compilation import kernel
from fedtrees.core.errors import DataError, UsageError, check_known
from fedtrees.trees.boosted.histogram import Bits, bits_for

_ONE = np.float32(1)
_EPS = np.float32(1e-16)
LEAST_PROBABILITY = np.float32(1e-37)  # smallest probability whose odds a float32 can represent
_EXP_LIMIT = np.float32(88.7)  # expf overflows above this number


@kernel
def _sigmoid(margin: NDArray[np.float32], out: NDArray[np.float32]) -> None:
    """Compute probabilities of margins."""
    for i in range(margin.shape[0]):
        x = min(-margin[i], _EXP_LIMIT)
        out[i] = _ONE / (np.float32(math.exp(x)) + _ONE + _EPS)


def sigmoid(margin: NDArray[np.float32]) -> NDArray[np.float32]:
    """Return probabilities, float32, shape (n,), bit for bit as XGBoost computes them."""
    margin = np.ascontiguousarray(margin, dtype=np.float32)
    out = np.empty_like(margin)
    _sigmoid(margin, out)
    return out


@kernel
def _softmax(margin: NDArray[np.float32], out: NDArray[np.float32]) -> None:
    """Compute class probabilities of margins."""
    for i in range(margin.shape[1]):
        top = margin[0, i]
        for k in range(1, margin.shape[0]):
            # Subtracting the largest margin prevents an overflow.
            top = max(top, margin[k, i])
        total = 0.0
        for k in range(margin.shape[0]):
            out[k, i] = np.float32(math.exp(np.float32(margin[k, i] - top)))
            total += out[k, i]
        for k in range(margin.shape[0]):
            out[k, i] /= np.float32(total)


def softmax(margin: NDArray[np.float32]) -> NDArray[np.float32]:
    """Return class probabilities, float32, shape (K, n), from margins of the same shape."""
    margin = np.ascontiguousarray(margin, dtype=np.float32)
    out = np.empty_like(margin)
    _softmax(margin, out)
    return out


class Objective(ABC):
    """Loss function that boosting minimises. Each row has K margins.

    Attributes
    ----------
    name : str
        Name in XGBoost.
    n_outputs : int
        Number K of margins per row, and of trees per round.
    bounds : pair of float
        Largest ``|g|`` and largest ``h`` of a row of weight 1.
    norms : pair of float
        Largest Euclidean norm of a row's K gradients, and of its K hessians.
    free : float
        With G the first of `norms`, ``|h|^2 <= free^2 (G^2 - |g|^2)`` for every row of weight 1.
        Infinite if there is no such bound.
    """

    name: ClassVar[str]
    bounds: ClassVar[tuple[float, float]]
    norms: ClassVar[tuple[float, float]]
    free: ClassVar[float] = math.inf

    @property
    def n_outputs(self) -> int:
        """Number of margins per row."""
        return 1

    @abstractmethod
    def check(self, y: NDArray[Any]) -> None:
        """Raise `DataError` if a label is invalid."""

    @abstractmethod
    def target_sums(self, y: NDArray[Any], weight: NDArray[Any] | None) -> NDArray[np.float64]:
        """Summarise labels by numbers that can be added over parties, float64, shape (m,).

        The first entry is the number of rows.
        """

    @abstractmethod
    def start(self, sums: NDArray[np.float64]) -> NDArray[np.float32]:
        """Return the initial margins, float32, shape (K,), from the target sums of all parties.

        Raises
        ------
        DataError
            If they are not finite, for example because a class has no rows.
        """

    def bits(self, sums: NDArray[np.float64]) -> Bits:
        """Return the units in which gradients and hessians of these targets are summed."""
        rows, weight = float(sums[0]), float(sums[1:].sum())
        size = bits_for(weight / max(rows, 1.0), rows)
        return size, size

    @abstractmethod
    def base_margin(self, score: ArrayLike) -> NDArray[np.float32]:
        """Return the margins of a base score in XGBoost's units, float32, shape (K,)."""

    @abstractmethod
    def gradients(self, margin: NDArray[np.float32], y: NDArray[Any]) -> NDArray[np.float32]:
        """Return gradient and hessian of every row and output, float32, shape (K, n, 2).

        Parameters
        ----------
        margin : float32 array, shape (K, n)
            Margins predicted so far.
        y : array, shape (n,)
            Labels.
        """

    @abstractmethod
    def predict(self, margin: NDArray[np.float32]) -> NDArray[np.float64]:
        """Convert margins, shape (K, n), to predictions, float64.

        Their shape is (n,) if K is 1, else (n, K).
        """

    @abstractmethod
    def loss(self, margin: NDArray[np.float32], y: NDArray[Any]) -> NDArray[np.float64]:
        """Return the loss of every row, float64, shape (n,), in nats or squared target units."""


def _pairs(g: NDArray[np.float32], h: NDArray[np.float32]) -> NDArray[np.float32]:
    """Return gradients and hessians as one array with a last axis of length 2."""
    gh = np.empty((*g.shape, 2), dtype=np.float32)
    gh[..., 0], gh[..., 1] = g, h
    return gh


def _class_sums(y: NDArray[Any], weight: NDArray[Any] | None, n: int) -> NDArray[np.float64]:
    """Return the number of rows and the weight of each class."""
    sums = np.bincount(y.astype(np.int64), weights=weight, minlength=n)
    return np.concatenate([[len(y)], sums]).astype(np.float64)


@dataclass(frozen=True)
class Logistic(Objective):
    """Log loss of labels 0 and 1. The margin is the log-odds of class 1."""

    name: ClassVar[str] = "binary:logistic"
    bounds: ClassVar[tuple[float, float]] = (1.0, 0.25)
    norms: ClassVar[tuple[float, float]] = bounds
    # g^2 (1 - g)^2 / (1 - g^2) is largest at the golden ratio, (sqrt(5) - 1) / 2. Its maximum is
    # the fifth power of this number.
    free: ClassVar[float] = math.sqrt(((math.sqrt(5) - 1) / 2) ** 5)

    def check(self, y: NDArray[Any]) -> None:
        """Raise `DataError` unless every label is 0 or 1."""
        if not np.isin(y, (0, 1)).all():
            raise DataError(f"{self.name} needs labels 0 and 1; got {_sample(y)}")

    def target_sums(self, y: NDArray[Any], weight: NDArray[Any] | None) -> NDArray[np.float64]:
        """Return the number of rows and the weight of each class, shape (3,)."""
        return _class_sums(y, weight, 2)

    def start(self, sums: NDArray[np.float64]) -> NDArray[np.float32]:
        """Return the log-odds of the weighted mean label."""
        if not sums[1:].sum() > 0:
            raise DataError("no training row, or none of any weight; boosting needs both classes")
        mean = float(sums[2] / sums[1:].sum())
        # The log-odds would be infinite.
        if np.float32(mean) in (0, 1):
            raise DataError(f"all training labels are {round(mean)}; boosting needs both classes")
        return self.base_margin(mean)

    def base_margin(self, score: ArrayLike) -> NDArray[np.float32]:
        """Return the log-odds of a probability, in float32 as XGBoost does."""
        p = np.float32(np.asarray(score, dtype=np.float64).reshape(()))
        if not LEAST_PROBABILITY <= p < 1:
            raise UsageError(
                f"base_score={score!r}: {self.name} starts from a probability, strictly between 0 "
                "and 1 in float32"
            )
        # The float32 logarithm of the C library is the rounded float64 logarithm. That of numpy can
        # differ in the last bit.
        return np.array([-math.log(_ONE / p - _ONE)], dtype=np.float32)

    def gradients(self, margin: NDArray[np.float32], y: NDArray[Any]) -> NDArray[np.float32]:
        """Return ``p - y`` and ``p (1 - p)``."""
        p = sigmoid(margin[0])
        g = p - np.asarray(y, dtype=np.float32)
        return _pairs(g, np.maximum(p * (_ONE - p), _EPS))[None]

    def predict(self, margin: NDArray[np.float32]) -> NDArray[np.float64]:
        """Return the probability of class 1, shape (n,)."""
        return sigmoid(margin[0]).astype(np.float64)

    def loss(self, margin: NDArray[np.float32], y: NDArray[Any]) -> NDArray[np.float64]:
        """Return the log loss in nats."""
        return np.asarray(np.logaddexp(0, np.where(y == 1, -1, 1) * margin[0].astype(np.float64)))


@dataclass(frozen=True)
class Softmax(Objective):
    """Log loss of labels 0 to K-1, with one margin and one tree per round for every class."""

    n_classes: int
    name: ClassVar[str] = "multi:softprob"
    bounds: ClassVar[tuple[float, float]] = (1.0, 0.5)
    norms: ClassVar[tuple[float, float]] = (math.sqrt(2.0), math.sqrt(16 / 27))
    # 4 p^2 (1 - p)^2 <= p (1 - p), and |g|^2 = 1 - 2 p_y + sum p^2.
    free: ClassVar[float] = 1.0

    def __post_init__(self) -> None:
        if not isinstance(self.n_classes, int | np.integer) or self.n_classes < 2:
            raise UsageError(f"{self.name} needs 2 classes or more, not {self.n_classes!r}")

    @property
    def n_outputs(self) -> int:
        """Number of classes."""
        return self.n_classes

    def check(self, y: NDArray[Any]) -> None:
        """Raise `DataError` unless every label is one of 0 to K-1."""
        if not np.isin(y, np.arange(self.n_classes)).all():
            top = self.n_classes - 1
            raise DataError(f"{self.name} needs labels 0 to {top}; got {_sample(y)}")

    def target_sums(self, y: NDArray[Any], weight: NDArray[Any] | None) -> NDArray[np.float64]:
        """Return the number of rows and the weight of each class, shape (K + 1,)."""
        return _class_sums(y, weight, self.n_classes)

    def start(self, sums: NDArray[np.float64]) -> NDArray[np.float32]:
        """Return the centred logarithms of the class shares, as XGBoost 3.2 does."""
        empty = np.flatnonzero(sums[1:] <= 0)
        if len(empty):
            raise DataError(f"no training row has class {empty.tolist()}; give a base_score")
        return log_shares(sums[1:])

    def base_margin(self, score: ArrayLike) -> NDArray[np.float32]:
        """Return the given margins. A single number is used for all classes, as in XGBoost."""
        scores = np.asarray(score, dtype=np.float32)
        if scores.shape not in ((), (1,), (self.n_classes,)) or not np.isfinite(scores).all():
            raise DataError(f"base score {score!r}: give one finite number, or one for each class")
        return np.ascontiguousarray(np.broadcast_to(scores, self.n_classes))

    def gradients(self, margin: NDArray[np.float32], y: NDArray[Any]) -> NDArray[np.float32]:
        """Return ``p - [y = k]`` and ``2 p (1 - p)``, XGBoost's bound on the hessian."""
        p = softmax(margin)
        is_label = np.arange(self.n_classes)[:, None] == np.asarray(y)
        h = np.float32(2) * p * (_ONE - p)
        return _pairs(np.where(is_label, p - _ONE, p), np.maximum(h, _EPS))

    def predict(self, margin: NDArray[np.float32]) -> NDArray[np.float64]:
        """Return class probabilities, shape (n, K)."""
        return softmax(margin).T.astype(np.float64)

    def loss(self, margin: NDArray[np.float32], y: NDArray[Any]) -> NDArray[np.float64]:
        """Return the log loss in nats."""
        m = margin.astype(np.float64)
        # Subtracting the largest margin prevents an overflow.
        m = m - m.max(axis=0)
        of_class = m[np.asarray(y).astype(np.int64), np.arange(m.shape[1])]
        return np.asarray(np.log(np.exp(m).sum(axis=0)) - of_class)


@dataclass(frozen=True)
class SquaredError(Objective):
    """Half the squared error of numeric targets. The margin is the prediction."""

    name: ClassVar[str] = "reg:squarederror"
    bounds: ClassVar[tuple[float, float]] = (math.inf, 1.0)
    norms: ClassVar[tuple[float, float]] = bounds

    def check(self, y: NDArray[Any]) -> None:
        """Raise `DataError` unless every target is finite in float32."""
        with np.errstate(over="ignore"):
            finite = np.isfinite(np.asarray(y).astype(np.float32))
        if not finite.all():
            raise DataError(f"{self.name} needs finite targets; got {_sample(y[~finite])}")

    def target_sums(self, y: NDArray[Any], weight: NDArray[Any] | None) -> NDArray[np.float64]:
        """Return the number of rows and the sums of ``w``, ``w y`` and ``w y^2``, shape (4,)."""
        t = np.asarray(y, dtype=np.float64)
        w = np.ones(len(t)) if weight is None else np.asarray(weight, dtype=np.float64)
        return np.array([len(t), w.sum(), (w * t).sum(), (w * t * t).sum()])

    def start(self, sums: NDArray[np.float64]) -> NDArray[np.float32]:
        """Return the weighted mean."""
        if not sums[1] > 0:
            raise DataError("all sample weights are 0; give some row a weight")
        return np.array([sums[2] / sums[1]], dtype=np.float32)

    def bits(self, sums: NDArray[np.float64]) -> Bits:
        """Return units for residuals and weights of this size.

        ``sum w |r| <= sqrt(sum w  sum w r^2)`` (Cauchy and Schwarz), and boosting does not increase
        the sum of squares. Two bits are reserved for subsampled rounds, which may increase it.
        Squares are taken about zero and not about the mean, because the base score may be any
        number between them.
        """
        n, w, _, squares = map(float, sums)
        return bits_for(4 * math.sqrt(w * squares) / n, n), bits_for(w / n, n)

    def base_margin(self, score: ArrayLike) -> NDArray[np.float32]:
        """Return the score as a margin."""
        margin = np.asarray(score, dtype=np.float32).reshape(1)
        if not np.isfinite(margin).all():
            raise DataError(f"base score {score!r} is not a finite number")
        return margin

    def gradients(self, margin: NDArray[np.float32], y: NDArray[Any]) -> NDArray[np.float32]:
        """Return ``margin - y`` and 1."""
        g = margin[0] - np.asarray(y, dtype=np.float32)
        return _pairs(g, np.ones_like(g))[None]

    def predict(self, margin: NDArray[np.float32]) -> NDArray[np.float64]:
        """Return the values, shape (n,)."""
        values: NDArray[np.float64] = margin[0].astype(np.float64)
        return values

    def loss(self, margin: NDArray[np.float32], y: NDArray[Any]) -> NDArray[np.float64]:
        """Return the squared error."""
        error: NDArray[np.float64] = margin[0].astype(np.float64) - np.asarray(y, dtype=np.float64)
        return error * error


def _sample(y: NDArray[Any]) -> str:
    """Return up to five distinct labels as text."""
    return ", ".join(map(str, np.unique(np.asarray(y).astype(str))[:5]))


LOGISTIC = Logistic()
SQUARED_ERROR = SquaredError()
OBJECTIVES = (Logistic.name, Softmax.name, SquaredError.name)


def objective_of(name: str | None, classes: Sequence[Any]) -> Objective:
    """Return the objective of this name, or the one that fits the target if the name is None.

    Parameters
    ----------
    name : str or None
        One of `OBJECTIVES`.
    classes : sequence
        Classes of the target, empty if it is numeric.

    Raises
    ------
    UsageError
        If the name is unknown or does not fit the target.
    """
    if name is None:
        fitting = {0: SquaredError.name, 2: Logistic.name}
        name = fitting.get(len(classes), Softmax.name)
    if name == SquaredError.name:
        return SQUARED_ERROR
    if name in OBJECTIVES and not classes:
        raise UsageError(f"{name} needs classes, the target is a number; use {SquaredError.name}")
    if name == Logistic.name and len(classes) != 2:
        raise UsageError(f"{name} needs two classes, not {len(classes)}; use {Softmax.name}")
    return named_objective(name, len(classes))


def named_objective(name: str, n_classes: int) -> Objective:
    """Return the objective of this name, one of `OBJECTIVES`.

    Raises
    ------
    UsageError
        If the name is unknown.
    """
    check_known("objective", name, OBJECTIVES)
    simple: dict[str, Objective] = {Logistic.name: LOGISTIC, SquaredError.name: SQUARED_ERROR}
    return simple[name] if name in simple else Softmax(n_classes)


# If gradients are clipped, the loss of a test row is clipped to this number of nats, which
# corresponds to a probability of 0.018.
LOSS_BOUND = 4.0


def clipped_bounds(objective: Objective, clip: float) -> tuple[float, float]:
    """Return the bounds on a row's ``|g|`` and ``h`` after clipping to R and 2R.

    A bound of the objective that is smaller is used instead.
    """
    g, h = objective.bounds
    return min(clip, g), min(2.0 * clip, h)


def logistic_gradients(margin: NDArray[np.float32], y: NDArray[Any]) -> NDArray[np.float32]:
    """Return gradient and hessian of the binary log loss, float32, shape (n, 2).

    Parameters
    ----------
    margin : float32 array, shape (n,)
        Log-odds predicted so far.
    y : array, shape (n,)
        Labels 0 or 1.
    """
    gh: NDArray[np.float32] = LOGISTIC.gradients(np.asarray(margin, dtype=np.float32)[None], y)[0]
    return gh


def log_shares(weight: NDArray[np.float64]) -> NDArray[np.float32]:
    """Return the centred logarithms of class shares, float32, shape (K,).

    As in XGBoost 3.2, 1e-6 is added to every share, so that a class without rows has a finite
    logarithm.
    """
    logs = np.log(weight / weight.sum() + np.float64(np.float32(1e-6)))
    return np.asarray(logs - logs.mean(), dtype=np.float32)


INTERCEPTS = ("mean", "newton")

# XGBoost's smallest distance of a probability from 0 and 1 before it computes log-odds.
_LEAST = np.float32(1e-6)


def estimated_score(
    objective: Objective, sums: NDArray[np.float64], how: str = "mean"
) -> NDArray[np.float32]:
    """Return the base score that XGBoost estimates from labels, in its units, float32, shape (K,).

    It is a probability for ``binary:logistic``, possibly 0 or 1. For further objectives it consists
    of margins.

    Parameters
    ----------
    objective : Objective
        The objective.
    sums : float64 array, shape (m,)
        Result of `Objective.target_sums`, summed over parties.
    how : {"mean", "newton"}
        - ``mean``: the label mean, as in XGBoost 3.2. With more than two classes, the centred
          logarithms of the class shares.
        - ``newton``: one Newton step from margin 0, as in XGBoost 2.1. With more than two classes,
          0.5.

    Raises
    ------
    DataError
        If no row has a positive weight.
    """
    if not sums[1:].sum() > 0:
        raise DataError("no training row, or none of any weight; there is no base score to take")
    if isinstance(objective, Logistic):
        mean = sums[2] / sums[1:].sum()
        if how == "newton":
            return sigmoid(np.array([4 * (mean - 0.5)], dtype=np.float32))
        return np.array([mean], dtype=np.float32)
    if isinstance(objective, Softmax):
        if how == "newton":
            return np.full(objective.n_outputs, 0.5, dtype=np.float32)
        return log_shares(sums[1:])
    return objective.start(sums)


def start_margin(objective: Objective, score: NDArray[np.float32]) -> NDArray[np.float32]:
    """Return the margins of a base score in XGBoost's units, float32, shape (K,).

    As in XGBoost, a probability of 0 or 1 is replaced by one at a distance of 1e-6. The log-odds
    are then -13.8 or 13.8.
    """
    if isinstance(objective, Logistic):
        score = np.clip(score, _LEAST, np.float32(1) - _LEAST)
    return objective.base_margin(score)

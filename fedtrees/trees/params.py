"""What a boosted forest is grown with."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

from fedtrees.core.errors import UsageError


def _is_int(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)


@dataclass(frozen=True, kw_only=True)
class TreeParams:
    """Hyperparameters, under XGBoost's names and with its defaults where it has one.

    Attributes
    ----------
    trees : int
        Boosting rounds, at least 1.
    max_depth : int
        Splits on the longest path, 1 to 30.
    learning_rate : float
        Shrinkage ``eta`` in (0, 1].
    reg_lambda : float
        L2 penalty on leaf values, at least 0.
    gamma : float
        Smallest gain a split must reach, at least 0.
    min_child_weight : float
        Smallest sum of hessians in a child, at least 0.
    max_bin : int
        Bins per feature, 2 to 65534.
    base_score : float or None
        Probability every row starts from, in (0, 1). None: the mean label of the training rows.

    Raises
    ------
    UsageError
        If a value is outside its range.
    """

    trees: int = 100
    max_depth: int = 6
    learning_rate: float = 0.3
    reg_lambda: float = 1.0
    gamma: float = 0.0
    min_child_weight: float = 1.0
    max_bin: int = 256
    base_score: float | None = None

    def __post_init__(self) -> None:
        for name, low, high in (
            ("trees", 1, 2**31 - 1),
            ("max_depth", 1, 30),
            ("max_bin", 2, 65534),
        ):
            value = getattr(self, name)
            if not _is_int(value) or not low <= value <= high:
                raise UsageError(f"{name}={value!r}: give a whole number from {low} to {high}")
        for name in ("reg_lambda", "gamma", "min_child_weight"):
            value = getattr(self, name)
            if not _is_number(value) or value < 0:
                raise UsageError(f"{name}={value!r}: give a finite number, 0 or more")
        if not _is_number(self.learning_rate) or not 0 < self.learning_rate <= 1:
            raise UsageError(f"learning_rate={self.learning_rate!r}: give a number in (0, 1]")
        score = self.base_score
        if score is not None and (not _is_number(score) or not 0 < score < 1):
            raise UsageError(f"base_score={score!r}: give a probability strictly between 0 and 1")

"""What an auditor knows beside the file, and what is known of the training table."""

from __future__ import annotations

from dataclasses import dataclass
from fractions import Fraction

import numpy as np

from fedtrees.core.errors import UsageError


@dataclass(frozen=True, kw_only=True)
class Known:
    """What the auditor knows beside the file.

    Attributes
    ----------
    rows : int or None
        Rows of the training table, of all clients together. Counts from leaf values alone assume
        that the first tree was grown on all of them.
    learning_rate, reg_lambda : float or None
        eta and lambda of the training.

    Raises
    ------
    UsageError
        If one is out of its range.
    """

    rows: int | None = None
    learning_rate: float | None = None
    reg_lambda: float | None = None

    def __post_init__(self) -> None:
        if self.rows is not None and self.rows < 1:
            raise UsageError(f"rows {self.rows} must be at least 1")
        if self.learning_rate is not None and not 0 < self.learning_rate < np.inf:
            raise UsageError(f"learning rate {self.learning_rate} must be a positive number")
        if self.reg_lambda is not None and not 0 <= self.reg_lambda < np.inf:
            raise UsageError(f"lambda {self.reg_lambda} must be 0 or a positive number")

    @property
    def settings(self) -> tuple[float, float] | None:
        """eta and lambda; None unless both are known."""
        if self.learning_rate is None or self.reg_lambda is None:
            return None
        return self.learning_rate, self.reg_lambda


@dataclass(frozen=True)
class Rows:
    """Size of the training table."""

    n: int | None  # None where it does not follow, as n_pos
    n_pos: int | None
    share: Fraction | None  # N1/N in lowest terms, as the base score tells it
    how: str  # they follow
    whole: bool = True  # False where `n` may be the rows of some clients only

    @property
    def total(self) -> int | None:
        """Rows of the whole table, None where that does not follow."""
        return self.n if self.whole else None

"""Public parameters that the horizontal histogram protocols share."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from fedtrees.core.errors import UsageError, did_you_mean
from fedtrees.core.messages import Message
from fedtrees.core.tree_messages import LabelSums
from fedtrees.protocols.base import Protocol
from fedtrees.trees.params import TreeParams

CUT_METHODS = ("sketch", "equal-width", "public")


@dataclass(frozen=True, kw_only=True)
class HistogramProtocol(Protocol):
    """A boosted forest grown from summed histograms, under XGBoost's parameter names.

    Parameters
    ----------
    trees, max_depth, learning_rate, reg_lambda, gamma, min_child_weight, max_bin
        As in `fedtrees.trees.params.TreeParams`.
    cuts : {"sketch", "equal-width", "public"}
        Cut points from merged client sketches, equal-width from the pooled ranges (FedTree), or
        equal-width from the schema's declared public ranges, which reveals nothing.
    base_score : "mean" or float
        Label mean by a secure sum (XGBoost >= 2), or a fixed probability such as 0.5.
    """

    trees: int = 100
    max_depth: int = 6
    learning_rate: float = 0.3
    reg_lambda: float = 1.0
    gamma: float = 0.0
    min_child_weight: float = 1.0
    max_bin: int = 256
    cuts: str = "sketch"
    base_score: float | str = "mean"

    summed: ClassVar[tuple[type[Message], ...]] = (LabelSums,)

    def __post_init__(self) -> None:
        if self.cuts not in CUT_METHODS:
            raise UsageError(
                f"unknown cuts {self.cuts!r}{did_you_mean(str(self.cuts), CUT_METHODS)}"
            )
        if isinstance(self.base_score, str) and self.base_score != "mean":
            raise UsageError(f"base_score={self.base_score!r}; give 'mean' or a probability")
        _ = self.tree_params

    @property
    def tree_params(self) -> TreeParams:
        """The engine's parameters."""
        return TreeParams(
            trees=self.trees,
            max_depth=self.max_depth,
            learning_rate=self.learning_rate,
            reg_lambda=self.reg_lambda,
            gamma=self.gamma,
            min_child_weight=self.min_child_weight,
            max_bin=self.max_bin,
            base_score=None if isinstance(self.base_score, str) else self.base_score,
        )

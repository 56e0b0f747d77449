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
class HistogramProtocol(TreeParams, Protocol):
    """A boosted forest grown from summed histograms: the engine's parameters, and these.

    A `base_score` of None is the label mean by a secure sum (as XGBoost >= 2 estimates it); a
    number such as 0.5 reveals nothing.

    Parameters
    ----------
    cuts : {"sketch", "equal-width", "public"}
        Cut points from merged client sketches, equal-width from the pooled ranges (FedTree), or
        equal-width from the schema's declared public ranges, which reveals nothing.
    """

    cuts: str = "sketch"

    summed: ClassVar[tuple[type[Message], ...]] = (LabelSums,)

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.cuts not in CUT_METHODS:
            raise UsageError(
                f"unknown cuts {self.cuts!r}{did_you_mean(str(self.cuts), CUT_METHODS)}"
            )

"""Defense `sketch-rounding`: clients round the values of their quantile sketches."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedtrees.core.channel import Change, Reshaped
from fedtrees.core.defense import Context, Defense, Place
from fedtrees.core.errors import check_whole
from fedtrees.core.guarantee import Structural
from fedtrees.core.messages import Message, Reveal, exempting
from fedtrees.core.registry import register
from fedtrees.core.schema import Schema
from fedtrees.defenses.settled_cuts import LATER
from fedtrees.messages.cuts import FeatureSketch


@register.defense("sketch-rounding")
@dataclass(frozen=True)
class SketchRounding(Defense):
    """Round every value of a client's quantile summary to `digits` significant decimal digits.

    Values that become equal are sent once, with the sum of their rows. Rounding guarantees no bound
    on the leakage. Integers with at most `digits` digits stay exact, and so do the numbers of rows
    around every value.

    Parameters
    ----------
    digits : int
        Number of significant digits, 1 to 8.
    """

    digits: int = 2

    acts_through = frozenset({"outgoing"})
    guarantee = Structural()
    at = frozenset({"client"})
    protects = frozenset({Reveal.FEATURES})
    guards = (FeatureSketch,)
    exempts = exempting(LATER)

    def __post_init__(self) -> None:
        check_whole("digits", self.digits, 1, 8)

    def channels(self, schema: Schema, parameters: Mapping[str, Any]) -> Mapping[Place, Change]:
        """State that values which become equal are sent once."""
        merged = Reshaped(f"values of {self.digits} significant digits; equal ones are sent once")
        return {(FeatureSketch, f): merged for f in ("points", "weights", "offsets", "low")}

    def outgoing(self, message: Message, ctx: Context) -> Message:
        """Round the points and the smallest values of all columns."""
        assert isinstance(message, FeatureSketch)
        rounded = self._rounded(message.points)
        points, weights = [rounded[:0]], [message.weights[:0]]
        for a, b in pairwise(message.offsets):
            # Values that become equal are merged, and the weights of all of them are added.
            values, group = np.unique(rounded[a:b], return_inverse=True)
            rows = np.zeros(len(values), dtype=np.int64)
            np.add.at(rows, group, message.weights[a:b])
            points.append(values)
            weights.append(rows)
        return replace(
            message,
            points=np.concatenate(points),
            weights=np.concatenate(weights),
            offsets=np.cumsum([0, *map(len, points[1:])]).astype(np.int32),
            low=self._rounded(message.low),
        )

    def _rounded(self, values: NDArray[np.float32]) -> NDArray[np.float32]:
        """Round by way of decimal text, so that the result is the same on every machine."""
        text = [f"{v:.{self.digits - 1}e}" for v in values.tolist()]
        return np.array(text, dtype=np.float64).astype(np.float32)

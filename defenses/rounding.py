"""Defenses that round the numbers of messages.

- `hist-rounding`: the gradient and hessian sums of clients' histograms.
- `leaf-rounding`: leaf values.
- `sketch-rounding`: the values of clients' quantile sketches.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedtrees.core.channel import ChangedCount
from fedtrees.core.defense import ChannelDefense, Channels, Context, Defense, DefenseInfo, Deployed
from fedtrees.core.deterministic_channels import Decimals, Rounding
from fedtrees.core.guarantee import Structural
from fedtrees.core.messages import Message, Reveal, Trait, permit_types_with, types_with
from fedtrees.core.parameters import flag, positive, whole
from fedtrees.core.registry import register
from fedtrees.core.schema import Schema
from fedtrees.defenses.cut_points import LATER
from fedtrees.messages.horizontal import FeatureSketch, Histogram


@register.defense("hist-rounding")
@dataclass(frozen=True)
class HistogramRounding(ChannelDefense):
    """Round every gradient and hessian sum to a multiple of `step` before a client sends it.

    Rounding guarantees no bound on the leakage, because an adversary can exploit that a sum adds
    the gradients of a whole number of rows, and these take few values.

    Parameters
    ----------
    step : float
        Distance of the rounded values, in the unit of the gradient, above 0.
    random : bool
        Round up or down at random so that the expected value is the sum (stochastic rounding).
        False: round to the nearest multiple.
    """

    step: float = positive(0.001)
    random: bool = flag(False)

    guarantee = Structural()
    randomness = "rounding"
    roles = frozenset({"client"})
    handled_types = (Histogram,)

    def channels(self, schema: Schema, parameters: Mapping[str, Any]) -> Channels:
        """State the rounding of the sums of bins and of nodes."""
        law = Rounding(float(self.step), self.random)
        return {(Histogram, "sums"): law, (Histogram, "totals"): law}


@register.defense("leaf-rounding")
@dataclass(frozen=True)
class LeafRounding(ChannelDefense):
    """Round every leaf value, or class share of a leaf, to `decimals` before it is sent.

    Rounding makes it harder to infer the class counts of a leaf from its value. It is not effective
    without a second defense, because the exact sums are sent together with the rounded values. A
    shared tree even contains the exact leaf value among its ``base_weights``. Combine it with
    `split-only`, or with ``leaf_counts=false`` for forests.

    In `fedtree-hist`, the released model contains the rounded values, because the server builds it
    from the values that it sent. The defense does not fit protocols in which every client computes
    the leaf values, such as `nvflare-hist`.

    Parameters
    ----------
    decimals : int
        Number of decimals of the rounded values, 0 to 12.
    """

    decimals: int = whole(0, 12, default=3)

    guarantee = Structural()
    info = DefenseInfo(
        deployments={
            "flower": Deployed(
                "the ClientApp rounds the split_conditions of leaves",
                {"decimals": "to {} decimals"},
            )
        }
    )
    roles = frozenset({"server", "client"})
    handled_types = types_with(Trait.LEAVES)

    def channels(self, schema: Schema, parameters: Mapping[str, Any]) -> Channels:
        """State the rounding of leaf values, which are float32, and of class shares."""
        # Leaf values are float32 and class shares float64, which matters for the exact preimage of
        # a rounded value.
        return {
            (kind, kind.leaf_value): Decimals(self.decimals, float32=kind.leaf_value == "value")
            for kind in self.handled_types
        }


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

    digits: int = whole(1, 8, default=2)

    guarantee = Structural()
    roles = frozenset({"client"})
    protects = frozenset({Reveal.FEATURES})
    handled_types = (FeatureSketch,)
    permitted_types = permit_types_with(LATER)

    def channels(self, schema: Schema, parameters: Mapping[str, Any]) -> Channels:
        """State that values which become equal are sent once."""
        merged = ChangedCount(
            f"values of {self.digits} significant digits; equal ones are sent once"
        )
        return {(FeatureSketch, f): merged for f in ("points", "weights", "offsets", "low")}

    def transform_message(self, message: Message, ctx: Context) -> Message:
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

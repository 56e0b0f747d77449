"""Decrypted precision: what is opened for a party keeps so many binary places."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, ClassVar

import numpy as np

from fedtrees.core.channel import Change
from fedtrees.core.coarsening import Rounding
from fedtrees.core.defense import Context, Defense, Place
from fedtrees.core.errors import check_whole
from fedtrees.core.guarantee import Structural
from fedtrees.core.messages import Message
from fedtrees.core.registry import register
from fedtrees.core.schema import Schema
from fedtrees.messages.fixed_point import integers, packed, rounded, unpacked
from fedtrees.messages.regression import AverageWeights, Gradient


@register.defense("decrypted-precision")
@dataclass(frozen=True)
class DecryptedPrecision(Defense):
    """Round gradients that an arbiter opens, and averages that a server tells.

    Residuals of successive rounds are nearly collinear, so that an inversion multiplies what
    rounding leaves by their condition. Rounding bounds nothing.

    `bits`: Binary places that are kept, 0 or more.
    """

    bits: int = 16

    acts_through = frozenset({"outgoing"})
    guarantee = Structural()
    at = frozenset({"arbiter", "server"})
    guards = (Gradient, AverageWeights)
    tries: ClassVar[Mapping[str, tuple[float, ...]]] = {"bits": (8, 16, 24, 32)}

    def __post_init__(self) -> None:
        check_whole("bits", self.bits, 0)

    def channels(self, schema: Schema, parameters: Mapping[str, Any]) -> Mapping[Place, Change]:
        """State the rounding."""
        law = Rounding(2.0**-self.bits)
        return {(Gradient, "values"): law, (AverageWeights, "weights"): law}

    def outgoing(self, message: Message, ctx: Context) -> Message:
        """Round."""
        assert isinstance(message, (Gradient, AverageWeights))
        places = message.bits - self.bits
        if places <= 0:
            return message
        if isinstance(message, Gradient):
            kept = rounded(unpacked(message.values), places)
            return replace(message, values=packed(kept), bits=self.bits)
        kept = rounded(integers(message.weights), places)
        return replace(message, weights=kept.astype(np.int64), bits=self.bits)

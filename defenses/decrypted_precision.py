"""Defense `decrypted-precision`: values that are decrypted for a party have a limited precision.

Applies to vertical regressions, in which an arbiter decrypts gradients, and to federated averaging
of regressions, in which the server broadcasts averaged weights.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from fedtrees.core.defense import Channels, Context, Defense, DefenseInfo
from fedtrees.core.deterministic_channels import Rounding
from fedtrees.core.guarantee import Structural
from fedtrees.core.messages import Message
from fedtrees.core.parameters import whole
from fedtrees.core.registry import register
from fedtrees.core.schema import Schema
from fedtrees.linear import drop_places, pack_integers, to_python_integers, unpack_integers
from fedtrees.messages.regression import AverageWeights, Gradient


@register.defense("decrypted-precision")
@dataclass(frozen=True)
class DecryptedPrecision(Defense):
    """Round the gradients that an arbiter decrypts, and the averages that a server broadcasts.

    A party that inverts the gradients of successive rounds solves a nearly singular system, because
    the residuals of successive rounds are nearly collinear. The rounding error is multiplied by the
    condition number of this system. Rounding does not guarantee a bound on the leakage.

    Parameters
    ----------
    bits : int
        Number of binary places of the rounded values, 0 or more. Values that have fewer places are
        sent unchanged.
    """

    bits: int = whole(0, default=16)

    guarantee = Structural()
    roles = frozenset({"arbiter", "server"})
    handled_types = (Gradient, AverageWeights)
    info = DefenseInfo(bench_grid={"bits": (8, 16, 24, 32)})

    def channels(self, schema: Schema, parameters: Mapping[str, Any]) -> Channels:
        """State the rounding to multiples of ``2^-bits``."""
        # The statement is in the unit of the gradient, not in the fixed-point unit of the message.
        law = Rounding(2.0**-self.bits)
        return {(Gradient, "values"): law, (AverageWeights, "weights"): law}

    def transform_message(self, message: Message, ctx: Context) -> Message:
        """Round the gradient or the averaged weights."""
        assert isinstance(message, (Gradient, AverageWeights))
        places = message.bits - self.bits
        if places <= 0:
            return message
        if isinstance(message, Gradient):
            # Gradients can exceed 64 bits. They are packed as bytes of arbitrary-precision
            # integers.
            rounded_values = drop_places(unpack_integers(message.values), places)
            return replace(message, values=pack_integers(rounded_values), bits=self.bits)
        rounded_values = drop_places(to_python_integers(message.weights), places)
        return replace(message, weights=rounded_values.astype(np.int64), bits=self.bits)

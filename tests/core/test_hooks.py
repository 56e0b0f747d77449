"""Errors of a defense name its line, the field, its unit and the remedy."""

from dataclasses import dataclass, replace

import numpy as np
import pytest

from fedtrees.conformance.samples import make_small_protocol, sample_training
from fedtrees.core.composition import Composition
from fedtrees.core.defense import Defense
from fedtrees.core.errors import ProtocolError
from fedtrees.core.guarantee import Structural
from fedtrees.messages.horizontal import Histogram
from fedtrees.privacy.noise import Gaussian


@dataclass(frozen=True)
class First(Defense):
    """Variants of a first attempt to write a defense."""

    how: str = "new array"
    roles = frozenset({"client"})
    handled_types = (Histogram,)

    def claim(self):
        return Structural()

    def channels(self, schema, parameters):
        return {(Histogram, "sums"): Gaussian(0.1)}

    def transform_message(self, message, ctx):
        noise = ctx.rng("noise").normal(0, 1, message.sums.shape)
        if self.how == "new array":
            return replace(message, sums=message.sums + noise)
        if self.how == "in place":
            sums = message.sums.copy()
            sums += noise  # the line of the error
            return replace(message, sums=sums)
        if self.how == "nothing":
            return None
        channel = Gaussian(0.1).in_units_of(
            *message.unit_of("sums")
        )  # as the message of the error suggests
        return replace(message, sums=channel.send(message.sums, ctx.rng("noise")))


def trained(variant):
    return sample_training(make_small_protocol("fedtree-hist"), Composition((First(variant),)))[0]


@pytest.mark.parametrize(
    ("variant", "cause"),
    [
        ("new array", r"line \d+\) returned float64 numbers in Histogram.sums"),
        ("in place", r"sums \+= noise  # the line of the error\): UFuncTypeError"),
    ],
)
def test_noise_of_a_wrong_type_is_refused_with_line_field_unit_and_remedy(variant, cause):
    with pytest.raises(ProtocolError, match=cause) as error_info:
        trained(variant)
    text = str(error_info.value)
    assert __file__ in text
    assert "Histogram.sums contains whole numbers (int64), of which 1,073,741,824" in text
    assert "law = Gaussian(sigma).in_units_of(*message.unit_of('sums'))" in text


def test_a_hook_that_returns_no_message_is_refused():
    with pytest.raises(ProtocolError, match="transform_message returned a NoneType"):
        trained("nothing")


def test_the_remedy_in_the_message_works():
    assert np.isfinite(trained("remedy").predict(np.zeros((1, 5), np.float32))).all()

"""Attacks on messages whose noise has no variance, as a plug-in may state it."""

from dataclasses import dataclass, replace

import numpy as np
import pytest
from federations import over_clients, sample_federation

from fedtrees.core.channel import Channel
from fedtrees.core.composition import Composition
from fedtrees.core.defense import ChannelDefense
from fedtrees.core.guarantee import Structural
from fedtrees.core.registry import register
from fedtrees.core.specs import Spec
from fedtrees.messages.horizontal import Histogram
from fedtrees.protocols.training import train
from fedtrees.protocols.views import view_of


@dataclass(frozen=True)
class Cauchy(Channel):
    """Noise of the Cauchy distribution. It overrides nothing that is not abstract."""

    scale: float

    def in_units_of(self, units, integers=True):
        return replace(self, scale=self.scale * float(np.max(units)))

    def send(self, x, rng=None):
        y = x + self.scale * rng.standard_cauchy(np.shape(x))
        return np.rint(y).astype(x.dtype) if x.dtype.kind == "i" else y


@dataclass(frozen=True)
class CauchyHistograms(ChannelDefense):
    """Noise in the histograms of the clients."""

    name = "cauchy-histograms"
    roles = frozenset({"client"})
    handled_types = (Histogram,)

    def claim(self):
        return Structural()

    def channels(self, schema, parameters):
        return {(Histogram, field): Cauchy(0.1) for field in ("sums", "totals")}


@pytest.fixture(scope="module")
def view():
    (table, *_), schema = sample_federation(rows=90, clients=1)
    local_data = over_clients([table.take(part) for part in np.array_split(np.arange(90), 3)])
    protocol = register.make("protocol", Spec("fedtree-hist", {"trees": 2, "max_depth": 2}))
    training = train(
        protocol, local_data, schema, defense=Composition((CauchyHistograms(),)), seed=1
    )
    return view_of(training, ("server",), local_data)


def test_the_spread_of_noise_without_a_variance_is_that_of_its_quartiles():
    sent = np.array([[3.0, -2.0]])
    mean, variance = Cauchy(2.0).posterior_moments(sent)
    assert np.array_equal(mean, sent)
    # The quartiles of the Cauchy distribution are at plus and minus its scale.
    assert np.sqrt(variance) * 1.34898 == pytest.approx(np.full((1, 2), 4.0), rel=0.1)


@pytest.mark.parametrize(
    "name", ["timberstrike", "joint", "class-shares", "histogram-peeling", "lattice", "membership"]
)
def test_an_attack_uses_noise_without_a_variance_or_states_a_reason(view, name):
    attack = register.make("attack", Spec(name))
    guess = attack.run(view, np.random.default_rng(0))
    assert guess.claims or not guess.reason.ok

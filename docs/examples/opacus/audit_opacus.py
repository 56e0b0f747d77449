"""Audit the training of `train_opacus.py`: which epsilon does the released model refute?

fedtrees privacy measure opacus-training --plugin docs/examples/opacus/audit_opacus.py
"""

import runpy
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from fedtrees import (
    ApproximateDP,
    Coordinator,
    Feature,
    Message,
    Party,
    Protocol,
    ProtocolInfo,
    Reveal,
    Schema,
    Table,
    handles,
    register,
)
from fedtrees.core.local_data import over_clients
from fedtrees.privacy_audit.canaries import Canaries, register_canaries

SCRIPT = Path(__file__).with_name("train_opacus.py")


@dataclass(frozen=True, eq=False)
class TrainRequest(Message):
    discloses = frozenset()


@dataclass(frozen=True, eq=False)
class LinearModel(Message):  # the model, and the epsilon that opacus reports
    discloses = frozenset({Reveal.FEATURES, Reveal.LABELS})
    weights: np.ndarray
    bias: float
    epsilon: float

    def predict(self, X):
        return 1 / (1 + np.exp(-(X @ self.weights + self.bias)))

    def as_message(self):
        return self


class Owner(Party):
    role = "client"

    def __init__(self, name, local_data, params):
        super().__init__(name)
        self.local_data, self.params = local_data, params

    @handles(TrainRequest)
    def train(self, message):
        seed, p = int(self.streams.noise.rng("opacus").integers(1 << 63)), self.params
        train = runpy.run_path(str(SCRIPT))["train"]  # the code that is audited
        return LinearModel(*train(self.local_data.X, self.local_data.y, p.epsilon, p.delta, seed))


class Publisher(Coordinator):
    def train(self, net):
        return net.request("client", TrainRequest(), reason="the trained model")[0]


class OneColumnEach(Canaries):
    """Canary i is the only row with a value in column i, so that weight i shows its gradients."""

    max_canaries, runs = 512, 4
    schema = Schema(tuple(Feature(f"x{i}", low=0.0, high=10.0) for i in range(max_canaries)), "y")

    def rows(self, count, rng):
        zeros = np.zeros((count, self.max_canaries), np.float32)
        return Table(
            10 * np.eye(count, self.max_canaries, dtype=np.float32), np.zeros(count, np.int64)
        ), (Table(zeros, np.arange(count) % 2))

    def distribute(self, rows, is_included, companions):
        return over_clients([Table.concat([rows.take(is_included), companions])])

    def scores(self, training, rows, companions):
        # The gradient of a canary of class 0 is positive, and a step goes against the gradient.
        moved = -training.model.weights.astype(np.float64)
        return moved - np.median(moved)


@register.protocol("opacus-training")
@dataclass(frozen=True, kw_only=True)
class OpacusTraining(Protocol):
    """Logistic regression that one party trains by opacus and releases."""

    epsilon: float = 4.0
    delta: float = 1e-5
    info = ProtocolInfo(
        default_parties=1,
        extra_packages=("torch", "opacus"),
        message_types=(TrainRequest, LinearModel),
    )

    def create_party(self, seat):
        if seat.role == "server":
            return Publisher("server")
        return Owner(seat.name, seat.local_data, self)

    def claim(self):
        return ApproximateDP(self.epsilon, self.delta, unprotected=("rows",))

    def spent(self, transcript):
        models = [d.message for d in transcript if isinstance(d.message, LinearModel)]
        return ApproximateDP(float(models[0].epsilon), self.delta, unprotected=("rows",))


@register_canaries(OpacusTraining)
def create_canaries(protocol):
    return OneColumnEach()

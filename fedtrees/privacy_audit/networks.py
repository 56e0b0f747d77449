"""Canaries for an audit of network training, recognised by their gradients in client updates."""

from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from fedtrees.core.composition import Composition
from fedtrees.core.local_data import LocalData, client_names, over_clients
from fedtrees.core.messages import has_sealed_field
from fedtrees.core.schema import Feature, Schema, Table
from fedtrees.defenses.dp_sgd import DPSGD
from fedtrees.messages.networks import NetworkUpdate, NetworkWeights, Standardisation
from fedtrees.neural.encoding import Encoding
from fedtrees.neural.perceptron import Layers
from fedtrees.neural.training import example_gradients
from fedtrees.privacy_audit.canaries import Canaries, register_audit_setting, register_canaries
from fedtrees.protocols.networks.network_training import FedSGD, NetworkProtocol
from fedtrees.protocols.training import Training

_COLUMNS, _CATEGORIES = 2, 64


@dataclass(frozen=True)
class NetworkCanaries(Canaries):
    """Rows with rare categories, whose gradients in the first layer rarely overlap.

    Parameters
    ----------
    batch : int
        Number of rows of a step. A client must have at least so many rows.
    along : {1, -1}
        1 if updates are gradients, -1 if they are steps against the gradient.
    """

    batch: int
    along: int

    schema = Schema(
        tuple(
            Feature(f"c{i}", "categorical", categories=tuple(map(str, range(_CATEGORIES))))
            for i in range(_COLUMNS)
        ),
        "y",
    )

    @property
    def max_canaries(self) -> int:  # type: ignore[override]
        """Number that fills four batches, so that half of it fills two, at least 128."""
        return max(4 * self.batch, 128)

    def rows(self, count: int, rng: np.random.Generator) -> tuple[Table, Table]:
        """Return canaries with random categories and labels, and two further batches."""
        n = count + 2 * self.batch
        X = rng.integers(0, _CATEGORIES, (n, _COLUMNS)).astype(np.float32)
        table, is_canary = Table(X, rng.integers(0, 2, n)), np.arange(n) < count
        return table.take(is_canary), table.take(~is_canary)

    def scores(self, training: Training, rows: Table, companions: Table) -> NDArray[np.float64]:
        """Compare updates of the first layer with the canaries' gradients at the sent weights."""
        encoding, scores = Encoding.of(self.schema), np.zeros(len(rows))
        layers, weights = training.model.layers, dict[int, NDArray[np.float32]]()
        inner = layers.sizes[0] * layers.sizes[1]
        for d in training.transcript:
            m, is_visible = d.message, d.sender == "client-0" or d.receivers == (d.sender,)
            if isinstance(m, Standardisation):
                inputs = encoding.standardised(m.mean, m.std).encode(rows.X)
            elif isinstance(m, NetworkWeights):
                weights[m.round] = m.weights
            elif isinstance(m, NetworkUpdate) and is_visible and not has_sealed_field(m):
                first = np.zeros_like(m.update)
                # Only the first layer. Its rows of rare categories rarely overlap with other rows.
                first[:inner] = m.update[:inner]
                slopes = _slopes(layers, weights[m.round], first, inputs, rows.y)
                # The common part of all rows of a class says nothing about a single row.
                class_means = np.array([slopes[rows.y == label].mean() for label in (0, 1)])
                scores += self.along * (slopes - class_means[rows.y])
        return scores


@dataclass(frozen=True)
class GradientCanaries(Canaries):
    """One canary per client, among known rows, in the first sum of clipped gradients.

    The number of rows counts as public. The audit therefore ignores how it changes the noise.

    Parameters
    ----------
    batch : int
        Number of known rows of each client. Almost all of them are drawn for a step.
    clip : float
        Bound on the norm of a row's gradient.
    """

    batch: int
    clip: float

    max_canaries = 64
    runs = 32
    schema = Schema((Feature("x", low=0.0, high=1.0),), "y", ("0", "1"))

    def rows(self, count: int, rng: np.random.Generator) -> tuple[Table, Table]:
        """Return canaries at the end of the range, and known rows of both classes in its middle."""
        ends, middle = np.ones((count, 1), np.float32), np.full((self.batch, 1), 0.5, np.float32)
        return Table(ends, np.zeros(count, np.int64)), Table(middle, np.arange(self.batch) % 2)

    def distribute(
        self, rows: Table, is_included: NDArray[np.bool_], companions: Table
    ) -> dict[str, LocalData]:
        """Return at most one canary per client, and the known rows."""
        client_canaries = (
            rows.take(np.flatnonzero(is_included[i : i + 1]) + i) for i in range(len(rows))
        )
        return over_clients([Table.concat([canary, companions]) for canary in client_canaries])

    def scores(self, training: Training, rows: Table, companions: Table) -> NDArray[np.float64]:
        """Compare each client's first update with the gradient of its canary."""
        layers, scores = training.model.layers, np.zeros(len(rows))
        client_index = {name: i for i, name in enumerate(client_names(len(rows)))}
        for d in training.transcript:
            m = d.message
            if isinstance(m, NetworkWeights):
                inputs = training.model.encoding.encode(np.concatenate([rows.X[:1], companions.X]))
                y = np.concatenate([rows.y[:1], companions.y])
                gradients = example_gradients(layers, m.weights, inputs, y).astype(np.float64)
                norms = np.linalg.norm(gradients, axis=1, keepdims=True)
                canary_gradient, *rest = gradients * np.minimum(1.0, self.clip / norms)
                # The expected score of a canary that takes part with probability 1/2.
                half = canary_gradient @ (np.sum(rest, axis=0) + canary_gradient / 2)
            elif (
                isinstance(m, NetworkUpdate)
                and d.sender in client_index
                and not has_sealed_field(m)
            ):
                scores[client_index[d.sender]] += canary_gradient @ m.update - half
        return scores


@register_canaries(NetworkProtocol)
def create_network_canaries(protocol: NetworkProtocol) -> NetworkCanaries:
    """Create canaries for an audit of updates."""
    return NetworkCanaries(protocol.batch, protocol.along)


@register_audit_setting(FedSGD)
def choose_gradient_setting(
    protocol: FedSGD, defense: Composition
) -> tuple[FedSGD, GradientCanaries] | None:
    """Send one sum, over almost all rows, of a small network. None without `dp-sgd`."""
    clip = next((part.clip for part in defense.parts if isinstance(part, DPSGD)), None)
    one = replace(protocol, rounds=1, batch=32, units=4, statistics="public")
    return None if clip is None else (one, GradientCanaries(one.batch, float(clip)))


def _slopes(
    layers: Layers,
    weights: NDArray[np.float32],
    update: NDArray[np.float32],
    X: NDArray[np.float32],
    y: NDArray[np.int64],
) -> NDArray[np.float64]:
    """Return the change of each row's loss along an update, shape (n,).

    It is the product of the row's gradient and the update.
    """
    # Forward differentiation: `change` is the derivative of the activations along the update.
    A, change = X.astype(np.float64), np.zeros(X.shape)
    for (W, b), (dW, db) in zip(layers.split(weights), layers.split(update), strict=True):
        Z, dZ = A @ W.T + b, change @ W.T + A @ dW.T + db
        A, change = np.maximum(Z, 0.0), np.where(Z > 0, dZ, 0.0)
    # Derivative of the cross-entropy: softmax minus one-hot label, times the change of the logits.
    p = np.exp(Z - Z.max(axis=1, keepdims=True))
    p /= p.sum(axis=1, keepdims=True)
    return np.asarray((p * dZ).sum(axis=1) - dZ[np.arange(len(y)), y])

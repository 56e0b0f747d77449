"""Rows that an audit of networks looks for: by their gradients, in what clients send."""

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedtrees.core.local_data import LocalData, client_names, over_clients
from fedtrees.core.messages import closed
from fedtrees.core.schema import Feature, Schema, Table
from fedtrees.messages.networks import NetworkUpdate, NetworkWeights, Standardisation
from fedtrees.neural.encoding import Encoding
from fedtrees.neural.perceptron import Layers
from fedtrees.neural.training import example_gradients
from fedtrees.protocols.canaries import Canaries

_COLUMNS, _CATEGORIES = 2, 64


@dataclass(frozen=True)
class NetworkCanaries(Canaries):
    """Rows of rare categories, whose gradients in the first layer hardly meet.

    `batch`: Rows that a client is to hold at least.
    `along`: {1, -1}. Whether updates are gradients, or steps against them.
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
    def most(self) -> int:  # type: ignore[override]
        """Twice as many as fill two batches where half of them take part."""
        return max(4 * self.batch, 128)

    def rows(self, count: int, rng: np.random.Generator) -> tuple[Table, Table]:
        """Return rows of random categories and labels, and two batches more."""
        n = count + 2 * self.batch
        X = rng.integers(0, _CATEGORIES, (n, _COLUMNS)).astype(np.float32)
        table, mine = Table(X, rng.integers(0, 2, n)), np.arange(n) < count
        return table.take(mine), table.take(~mine)

    def scores(self, training: Any, rows: Table, others: Table) -> NDArray[np.float64]:
        """Compare updates of the first layer with each row's gradient at the weights before."""
        encoding, found = Encoding.of(self.schema), np.zeros(len(rows))
        layers, weights = training.model.layers, dict[int, NDArray[np.float32]]()
        inner = layers.sizes[0] * layers.sizes[1]
        for d in training.transcript:
            m, mine = d.message, d.sender == "client-0" or d.receivers == (d.sender,)
            if isinstance(m, Standardisation):
                inputs = encoding.standardised(m.mean, m.std).encode(rows.X)
            elif isinstance(m, NetworkWeights):
                weights[m.round] = m.weights
            elif isinstance(m, NetworkUpdate) and mine and not closed(m):
                first = np.zeros_like(m.update)
                first[:inner] = m.update[:inner]
                told = _slopes(layers, weights[m.round], first, inputs, rows.y)
                # what rows of a label share tells of none of them
                share = np.array([told[rows.y == label].mean() for label in (0, 1)])
                found += self.along * (told - share[rows.y])
        return found


@dataclass(frozen=True)
class GradientCanaries(Canaries):
    """A row a client, among rows that everybody knows, in the first sum of clipped gradients.

    How many rows there are is taken as public, so that what it changes of the noise is not read.

    `batch`: Rows that everybody knows, of each client: nearly all of them are drawn.
    `clip`: Bound on the norm of a row's gradient.
    """

    batch: int
    clip: float

    most = 64
    runs = 32
    schema = Schema((Feature("x", low=0.0, high=1.0),), "y", ("0", "1"))

    def rows(self, count: int, rng: np.random.Generator) -> tuple[Table, Table]:
        """Return rows at the end of the range, and as many of either class in its middle."""
        ends, middle = np.ones((count, 1), np.float32), np.full((self.batch, 1), 0.5, np.float32)
        return Table(ends, np.zeros(count, np.int64)), Table(middle, np.arange(self.batch) % 2)

    def held(self, rows: Table, there: NDArray[np.bool_], others: Table) -> dict[str, LocalData]:
        """Return a canary or none for each client, and what everybody knows."""
        own = (rows.take(np.flatnonzero(there[i : i + 1]) + i) for i in range(len(rows)))
        return over_clients([Table.concat([mine, others]) for mine in own])

    def scores(self, training: Any, rows: Table, others: Table) -> NDArray[np.float64]:
        """Compare each client's first update with its canary's gradient."""
        layers, found = training.model.layers, np.zeros(len(rows))
        who = {name: i for i, name in enumerate(client_names(len(rows)))}
        for d in training.transcript:
            m = d.message
            if isinstance(m, NetworkWeights):
                inputs = training.model.encoding.encode(np.concatenate([rows.X[:1], others.X]))
                y = np.concatenate([rows.y[:1], others.y])
                each = example_gradients(layers, m.weights, inputs, y).astype(np.float64)
                norms = np.linalg.norm(each, axis=1, keepdims=True)
                mine, *rest = each * np.minimum(1.0, self.clip / norms)
                half = mine @ (np.sum(rest, axis=0) + mine / 2)
            elif isinstance(m, NetworkUpdate) and d.sender in who and not closed(m):
                found[who[d.sender]] += mine @ m.update - half
        return found


def _slopes(
    layers: Layers,
    weights: NDArray[np.float32],
    update: NDArray[np.float32],
    X: NDArray[np.float32],
    y: NDArray[np.int64],
) -> NDArray[np.float64]:
    """Return each row's gradient times the update, shape (n,): how its loss changes along it."""
    A, change = X.astype(np.float64), np.zeros(X.shape)
    for (W, b), (dW, db) in zip(layers.split(weights), layers.split(update), strict=True):
        Z, dZ = A @ W.T + b, change @ W.T + A @ dW.T + db
        A, change = np.maximum(Z, 0.0), np.where(Z > 0, dZ, 0.0)
    p = np.exp(Z - Z.max(axis=1, keepdims=True))
    p /= p.sum(axis=1, keepdims=True)
    return np.asarray((p * dZ).sum(axis=1) - dZ[np.arange(len(y)), y])

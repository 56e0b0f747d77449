"""Rows that an audit of networks looks for: gradients that have little to do with one another."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedtrees.core.messages import closed
from fedtrees.core.schema import Feature, Schema, Table
from fedtrees.messages.networks import NetworkUpdate, NetworkWeights, Standardisation
from fedtrees.neural.encoding import Encoding
from fedtrees.neural.perceptron import Layers
from fedtrees.protocols.canaries import Canaries

_COLUMNS, _CATEGORIES = 2, 64


@dataclass(frozen=True)
class NetworkCanaries(Canaries):
    """Rows of rare categories, whose gradients in the first layer hardly meet.

    Parameters
    ----------
    batch : int
        Rows that a client is to hold at least.
    along : {1, -1}
        Whether updates are gradients, or steps against them.
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

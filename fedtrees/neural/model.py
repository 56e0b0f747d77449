"""A trained network, with how rows become its inputs."""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from fedtrees.neural.encoding import Encoding
from fedtrees.neural.perceptron import Layers, logits, softmax


@dataclass(frozen=True, eq=False)
class TabularNetwork:
    """A perceptron on the rows of a table; it predicts without torch.

    `weights`: float32 array, shape (parameters,). As `Layers.split` takes them.
    """

    layers: Layers
    weights: NDArray[np.float32]
    encoding: Encoding

    def predict(self, X: NDArray[np.float32]) -> NDArray[np.float64]:
        """Return probabilities of class 1, shape (n,), or of every class, (n, K).

        Raises `DataError` if a category is not among those that the schema declares.
        """
        parts = [(w.astype(np.float64), b.astype(np.float64)) for w, b in self.split()]
        found = softmax(logits(parts, self.encoding.encode(X).astype(np.float64)))
        return np.asarray(found[:, 1] if found.shape[1] == 2 else found)

    def split(self) -> list[tuple[NDArray[np.float32], NDArray[np.float32]]]:
        """Return weight and bias of every layer."""
        return self.layers.split(self.weights)

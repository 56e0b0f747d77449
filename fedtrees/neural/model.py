"""A trained network together with the encoding of its inputs."""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from fedtrees.neural.encoding import Encoding
from fedtrees.neural.perceptron import Layers, logits, softmax


@dataclass(frozen=True, eq=False)
class TabularNetwork:
    """A perceptron on the rows of a table. Predictions do not need torch.

    `weights` contains all parameters, float32, shape (P,), in the order of `Layers.split`.
    """

    layers: Layers
    weights: NDArray[np.float32]
    encoding: Encoding

    def predict(self, X: NDArray[np.float32]) -> NDArray[np.float64]:
        """Return probabilities of class 1, shape (n,), or of every class, shape (n, K) with K > 2.

        It raises `DataError` if a category is not declared in the schema, or a number is infinite.
        """
        # Predictions are computed in float64, the training in float32.
        parts = [(w.astype(np.float64), b.astype(np.float64)) for w, b in self.split()]
        probabilities = softmax(logits(parts, self.encoding.encode(X).astype(np.float64)))
        return np.asarray(probabilities[:, 1] if probabilities.shape[1] == 2 else probabilities)

    def split(self) -> list[tuple[NDArray[np.float32], NDArray[np.float32]]]:
        """Return weight and bias of every layer."""
        return self.layers.split(self.weights)

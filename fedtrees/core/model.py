"""Interface of all models."""

from typing import Any, Protocol, runtime_checkable

import numpy as np
from numpy.typing import NDArray


@runtime_checkable
class Model(Protocol):
    """Result of a training. `fedtrees.messages.models.as_message` creates its release message."""

    def predict(self, X: NDArray[np.float32]) -> NDArray[Any]:
        """Return scores or values of rows.

        Scores of class 1, shape (n,), scores of every class, shape (n, K), or predicted values,
        shape (n,).
        """

"""Models: anything that predicts, and can be told to somebody."""

from typing import Any, Protocol, runtime_checkable

import numpy as np
from numpy.typing import NDArray


@runtime_checkable
class Model(Protocol):
    """What a training releases. How it is told is up to `fedtrees.messages.models.as_message`."""

    def predict(self, X: NDArray[np.float32]) -> NDArray[Any]:
        """Return scores of rows: of class 1, shape (n,), of every class, (n, K), or values."""

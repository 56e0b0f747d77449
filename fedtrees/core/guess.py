"""What an attack returns: a guess about what the victims hold."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from fedtrees.core.errors import ProtocolError
from fedtrees.core.schema import Table


@dataclass(frozen=True, eq=False)
class LeafCounts:
    """How many victims' rows of each class fell into each leaf of one tree.

    Attributes
    ----------
    tree : int
        Index of the tree in the released model.
    leaf : int array, shape (J,)
        Node numbers of the leaves.
    n0, n1 : int64 array, shape (J,)
        Guessed number of rows with label 0 and with label 1.
    """

    tree: int
    leaf: NDArray[np.intp]
    n0: NDArray[np.int64]
    n1: NDArray[np.int64]

    def __post_init__(self) -> None:
        if not self.leaf.shape == self.n0.shape == self.n1.shape:
            raise ProtocolError(
                f"leaf counts need arrays of one shape; got {self.leaf.shape}, "
                f"{self.n0.shape}, {self.n1.shape}"
            )


@dataclass(frozen=True, eq=False)
class Guess:
    """Everything an attack claims to know; each part may be absent.

    Attributes
    ----------
    records : Table or None
        Reconstructed rows with labels, in no particular order.
    leaf_counts : tuple of LeafCounts
    notes : mapping of str to float
        Diagnostics the attack can see itself (residuals, seconds per stage).
    """

    records: Table | None = None
    leaf_counts: tuple[LeafCounts, ...] = ()
    notes: Mapping[str, float] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if self.records is not None and not isinstance(self.records, Table):
            raise ProtocolError(f"guessed records are a {type(self.records).__name__}, not a Table")
        if not all(isinstance(c, LeafCounts) for c in self.leaf_counts):
            raise ProtocolError("guessed leaf counts must be a tuple of LeafCounts")
        for key, value in self.notes.items():
            if not isinstance(value, (int, float, np.number)):
                raise ProtocolError(f"note {key!r} is {value!r}; notes are numbers")

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
    confidence : float64 array, shape (m,), or None
        Probability, to the attack's knowledge, that each of the m rows is right.
    owner : tuple of str, length m, or None
        Party that holds each row.
    """

    records: Table | None = None
    leaf_counts: tuple[LeafCounts, ...] = ()
    notes: Mapping[str, float] = field(default_factory=dict)
    confidence: NDArray[np.float64] | None = None
    owner: tuple[str, ...] | None = None

    def __post_init__(self) -> None:
        if self.records is not None and not isinstance(self.records, Table):
            raise ProtocolError(f"guessed records are a {type(self.records).__name__}, not a Table")
        if not all(isinstance(c, LeafCounts) for c in self.leaf_counts):
            raise ProtocolError("guessed leaf counts must be a tuple of LeafCounts")
        m = 0 if self.records is None else len(self.records)
        if self.confidence is not None:
            c = np.asarray(self.confidence, dtype=np.float64)
            object.__setattr__(self, "confidence", c)
            if c.shape != (m,) or not ((c >= 0) & (c <= 1)).all():
                raise ProtocolError(
                    f"confidence of shape {c.shape} for {m} guessed rows; give one probability, "
                    "0 to 1, per row"
                )
        if self.owner is not None and not (
            len(self.owner) == m and all(isinstance(o, str) for o in self.owner)
        ):
            raise ProtocolError(
                f"{len(self.owner)} owners for {m} guessed rows; give one party name per row"
            )
        for key, value in self.notes.items():
            if not isinstance(value, (int, float, np.number)):
                raise ProtocolError(f"note {key!r} is {value!r}; notes are numbers")

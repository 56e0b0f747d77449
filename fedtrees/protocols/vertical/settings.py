"""Parameters, messages and encryption that `secureboost` and `vertical-forest` share."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from fedtrees.core.composition import Composition
from fedtrees.core.errors import check_known
from fedtrees.core.messages import Message
from fedtrees.core.reasons import Reason
from fedtrees.core.schema import Schema
from fedtrees.core.sealed import Sealing
from fedtrees.core.view import View
from fedtrees.messages.vertical import (
    BinCounts,
    BinCountsRequest,
    BinSums,
    ChosenSplits,
    NodeRows,
    OpenedBinSums,
    OwnRowStatistics,
    RootRows,
    RoutedRows,
    RowStatistics,
    TreeColumns,
    visible_nodes,
)
from fedtrees.messages.vertical_model import HeldModel
from fedtrees.protocols.vertically_held import ACTIVE, VerticallyHeld
from fedtrees.sealing.ideal import MODES, sealing
from fedtrees.sealing.row_sums import IdealRowSums
from fedtrees.sealing.sizes import DEFAULT_BITS, check_key_bits


@dataclass(frozen=True, kw_only=True)
class VerticalProtocol(VerticallyHeld):
    """Base class of vertical tree protocols with encrypted row statistics.

    Parameters
    ----------
    crypto : {"ideal", "real", "phe"}
        Protection of row statistics: by the ideal functionality, or under a Paillier key of the
        active party. Models, views and byte counts are the same. ``phe``: the same encryption
        computed by python-paillier, which is slower.
    key_bits : {1024, 2048, 3072}
        Length of the key. 1024 is weak and only for comparison.
    """

    crypto: str = "ideal"
    key_bits: int = DEFAULT_BITS

    released: ClassVar[bool] = False
    serves: ClassVar[frozenset[str]] = frozenset({"candidates", "shown"})
    says: ClassVar[tuple[type[Message], ...]] = (
        BinCountsRequest, BinCounts, RootRows, TreeColumns, RowStatistics, OwnRowStatistics,
        NodeRows, BinSums, OpenedBinSums, ChosenSplits, RoutedRows, HeldModel,
    )  # fmt: skip

    def __post_init__(self) -> None:
        parent: Any = super()
        if hasattr(parent, "__post_init__"):
            parent.__post_init__()
        check_known("crypto", self.crypto, MODES)
        check_key_bits("key_bits", self.key_bits)

    def lacks(self, schema: Schema, defense: Composition) -> Reason | None:
        """Return why a defense cannot change sums before their encryption, None if it can."""
        for part in defense.parts:
            if OpenedBinSums in part.guards and self.crypto != "ideal":
                return Reason("sums-encrypted", subject=part.name, crypto=self.crypto)
        return super().lacks(schema, defense)

    def sealing(self) -> Sealing:
        """Return the functions that encrypt, add and decrypt in one run."""
        return sealing(self.crypto, "row-sums", IdealRowSums, self.key_bits, ACTIVE)

    def nodes_shown(self, view: View) -> Iterator[NDArray[np.int32]]:
        """Yield the rows of all visible roots, inner nodes and leaves."""
        return (rows for _, _, rows in visible_nodes(view))

"""What the vertical protocols share: roles, messages, and how sums are sealed."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from fedtrees.core.errors import check_known
from fedtrees.core.local_data import Declared, LocalData
from fedtrees.core.messages import Message
from fedtrees.core.rows import ACTIVE_ONLY
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
from fedtrees.protocols.base import Protocol
from fedtrees.protocols.vertically_held import (
    ACTIVE,
    PASSIVE,
    check_columns_held,
    check_two_classes,
)
from fedtrees.sealing.ideal import MODES, sealing
from fedtrees.sealing.row_sums import IdealRowSums
from fedtrees.sealing.sizes import DEFAULT_BITS, check_key_bits


@dataclass(frozen=True, kw_only=True)
class VerticalProtocol(Protocol):
    """Trees over the columns of several parties.

    `crypto`: {"ideal", "real"}. How statistics of rows are sealed: by the ideal functionality, or
    under a Paillier key that the active party draws. Models, views and byte counts are the
    same.
    `key_bits`: {1024, 2048, 3072}. Length of the key; 1024 is weak, and for comparison.
    """

    crypto: str = "ideal"
    key_bits: int = DEFAULT_BITS

    layout: ClassVar[str] = "vertical"
    holders: ClassVar[tuple[str, ...]] = (ACTIVE, PASSIVE)
    released: ClassVar[bool] = False
    adversaries: ClassVar[tuple[str, ...]] = (PASSIVE, ACTIVE)
    usual_parties: ClassVar[int] = 2
    alone: ClassVar[str] = ACTIVE_ONLY
    called: ClassVar[Mapping[str, tuple[str, str]]] = {
        ACTIVE: ("the party with the labels", "parties with labels together"),
        PASSIVE: ("a party without labels", "parties without labels together"),
    }
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

    def roles(self, parties: int) -> Mapping[str, str]:
        """Return the active party, who has the labels, and the passive ones."""
        return {ACTIVE: ACTIVE, **{f"{PASSIVE}-{i}": PASSIVE for i in range(1, parties)}}

    def sealing(self) -> Sealing:
        """Say what encrypts, adds and opens in one run."""
        return sealing(self.crypto, "row-sums", IdealRowSums, self.key_bits, ACTIVE)

    def nodes_shown(self, view: View) -> Iterator[NDArray[np.int32]]:
        """Yield the rows of roots, inner nodes and leaves."""
        return (rows for _, _, rows in visible_nodes(view))

    def check_held(self, name: str, held: LocalData, schema: Schema) -> None:
        """Refuse labels of one class."""
        check_two_classes(name, held, schema)

    def check_declared(self, said: Mapping[str, Declared], schema: Schema) -> None:
        """Refuse labels in other hands, other rows, parties without columns."""
        check_columns_held(said)

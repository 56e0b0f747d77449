"""What the protocols over columns share: roles, messages, and how sums are sealed."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any, ClassVar

from fedtrees.core.errors import DataError, UsageError, check_known
from fedtrees.core.holding import Holding
from fedtrees.core.messages import Message
from fedtrees.core.rows import ACTIVE_ONLY
from fedtrees.core.schema import Schema
from fedtrees.core.sealed import Sealing
from fedtrees.crypto.keys import DEFAULT_BITS, KEY_BITS
from fedtrees.crypto.ledger import Ledger, costs_of
from fedtrees.crypto.row_sums import BlindRowSums, IdealRowSums, KeyedRowSums
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
)
from fedtrees.messages.vertical_model import HeldModel
from fedtrees.protocols.base import Protocol

ACTIVE, PASSIVE = "active", "passive"
CRYPTO = ("ideal", "real")


@dataclass(frozen=True, kw_only=True)
class VerticalProtocol(Protocol):
    """Trees over the columns of several parties.

    Parameters
    ----------
    crypto : {"ideal", "real"}
        How statistics of rows are sealed: by the ideal functionality, or under a Paillier key that
        the active party draws. Models, views and byte counts are the same.
    key_bits : {1024, 2048, 3072}
        Length of the key; 1024 is weak, and for comparison.
    """

    crypto: str = "ideal"
    key_bits: int = DEFAULT_BITS

    layout: ClassVar[str] = "columns"
    holders: ClassVar[tuple[str, ...]] = (ACTIVE, PASSIVE)
    released: ClassVar[bool] = False
    curious: ClassVar[tuple[str, ...]] = (PASSIVE,)
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
        check_known("crypto", self.crypto, CRYPTO)
        if self.key_bits not in KEY_BITS:
            known = ", ".join(map(str, KEY_BITS))
            raise UsageError(f"key_bits={self.key_bits!r}: a Paillier key has one of {known}")

    def roles(self, parties: int) -> Mapping[str, str]:
        """Return the active party, who has the labels, and the passive ones."""
        return {ACTIVE: ACTIVE, **{f"{PASSIVE}-{i}": PASSIVE for i in range(1, parties)}}

    def sealing(self) -> Sealing:
        """Say what encrypts, adds and opens in one run."""
        ledger, bits = Ledger(), self.key_bits
        costs = partial(costs_of, ledger)
        if self.crypto == "ideal":
            ideal = IdealRowSums(bits, ledger)
            return Sealing(ACTIVE, lambda: ideal, lambda: ideal, costs)
        return Sealing(
            ACTIVE, partial(KeyedRowSums, bits, ledger), partial(BlindRowSums, ledger), costs
        )

    def check_holders(self, holdings: Mapping[str, Holding], schema: Schema) -> None:
        """Refuse labels in other hands, other rows, parties without columns, one class."""
        check_columns_held(holdings, schema)


def check_columns_held(holdings: Mapping[str, Holding], schema: Schema) -> None:
    """Refuse labels in other hands, other rows, parties without columns, one class.

    Raises
    ------
    DataError
    """
    (active, first), *others = holdings.items()
    if first.y is None:
        raise DataError(f"{active!r} holds no labels; give them to it, whoever else has them")
    for name, held in others:
        if held.y is not None:
            raise DataError(f"{name!r} holds labels; only {active!r} may have them")
        if not len(held.columns):
            raise DataError(f"{name!r} holds no column; give it one, or leave it out")
        if len(held) != len(first):
            raise DataError(
                f"{name!r} holds {len(held)} rows and {active!r} {len(first)}: align them by id"
            )
    if schema.classes and len(first) and (first.y == first.y[0]).all():
        raise DataError(f"all labels of {active!r} are {first.y[0]}; it takes two classes")

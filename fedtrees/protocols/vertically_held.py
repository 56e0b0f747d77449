"""Roles and checks of vertical protocols.

The active party has the labels and some columns. Passive parties have further columns of the same
rows.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

from fedtrees.core.errors import DataError
from fedtrees.core.local_data import Declared, LocalData
from fedtrees.core.results import ACTIVE_ONLY
from fedtrees.core.schema import Schema
from fedtrees.protocols.base import Protocol, ProtocolInfo

ACTIVE, PASSIVE = "active", "passive"


@dataclass(frozen=True, kw_only=True)
class VerticallyHeld(Protocol):
    """Base class of vertical protocols with one active party and at least one passive party."""

    layout: ClassVar[str] = "vertical"
    holders: ClassVar[tuple[str, ...]] = (ACTIVE, PASSIVE)
    info = ProtocolInfo(
        adversaries=(PASSIVE, ACTIVE),
        default_parties=2,
        local_reference=ACTIVE_ONLY,
        role_labels={
            ACTIVE: ("the party with the labels", "parties with labels together"),
            PASSIVE: ("a party without labels", "parties without labels together"),
        },
    )

    def roles(self, parties: int) -> Mapping[str, str]:
        """Return the roles: the active party, which has the labels, and the passive parties."""
        return {ACTIVE: ACTIVE, **{f"{PASSIVE}-{i}": PASSIVE for i in range(1, parties)}}

    def check_local_data(self, name: str, local_data: LocalData, schema: Schema) -> None:
        """Refuse labels that all belong to one class."""
        y = local_data.y
        if y is not None and schema.classes and len(y) and (y == y[0]).all():
            raise DataError(f"all labels of {name!r} are of one class; it takes two classes")

    def check_joint_data(self, declarations: Mapping[str, Declared], schema: Schema) -> None:
        """Refuse labels at a passive party, unequal numbers of rows, and missing columns."""
        (active, first), *passive_parties = declarations.items()
        if not first.labels:
            raise DataError(f"{active!r} holds no labels; give them to it, whoever else has them")
        for name, one in passive_parties:
            if one.labels:
                raise DataError(f"{name!r} holds labels; only {active!r} may have them")
            if not one.columns:
                raise DataError(f"{name!r} holds no column; give it one, or leave it out")
            if one.rows != first.rows:
                raise DataError(
                    f"{name!r} holds {one.rows} rows and {active!r} {first.rows}: align them by id"
                )

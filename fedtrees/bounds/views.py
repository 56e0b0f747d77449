"""Which tables look alike to whom: views of real runs, told apart by what is readable in them."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from hashlib import blake2b
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedtrees.bounds.tables import TinyTables
from fedtrees.core.composition import Composition
from fedtrees.core.errors import FedtreesError, UsageError
from fedtrees.core.local_data import LocalData
from fedtrees.core.messages import Message, names_of
from fedtrees.core.sealed import Sealed
from fedtrees.core.threat import Threat
from fedtrees.core.transcript import PUBLIC
from fedtrees.core.view import View
from fedtrees.protocols.base import Protocol
from fedtrees.protocols.training import Training, train
from fedtrees.protocols.views import view_of

#: Tables that are trained with another seed, to see whether a view depends on it.
_TRIED = 6


@dataclass(frozen=True, eq=False)
class Views:
    """Which view of a threat each of the enumerated tables gives.

    `of`: int64 array, shape (T,). Number of the view.
    `refused`: bool array, shape (T,). Tables on which the run stops: that is a view as well.
    """

    threat: str
    principals: tuple[str, ...]
    of: NDArray[np.int64]
    refused: NDArray[np.bool_]


@dataclass(frozen=True)
class Tiny:
    """Enumerated tables, and what trains on them; randomness is that of one seed."""

    tables: TinyTables
    protocol: Protocol
    defense: Composition = Composition()
    seed: int = 0

    @property
    def roles(self) -> dict[str, str]:
        """Role of every party by name, and of whoever has a released model."""
        public = {PUBLIC: PUBLIC} if self.protocol.released else {}
        return {**self.protocol.roles(self.tables.holders), **public}

    def principals(self, threat: str) -> tuple[str, ...]:
        """Return the names of the colluding parties; raises `UsageError` if no victim is left."""
        who = Threat.parse(threat).principals(self.roles)
        if set(self.protocol.holder_names(self.tables.holders)) <= set(who):
            raise UsageError(f"threat {threat}: everybody who holds rows colludes")
        return who

    def training(self, table: int, seed: int | None = None) -> Training:
        """Train on one of the tables; raises `FedtreesError` where the run stops."""
        return train(
            self.protocol, self.tables.local_data(table), self.tables.schema,
            defense=self.defense, seed=self.seed if seed is None else seed, noise_from="seed",
        )  # fmt: skip

    def view(self, table: int, principals: Sequence[str]) -> View | None:
        """Return what principals see of one of the tables, None where the run stops."""
        try:
            training = self.training(table)
        except FedtreesError:
            return None
        return view_of(training, principals, self.tables.local_data(table))


def views(tiny: Tiny, threats: Sequence[str], tables: Sequence[int] | None = None) -> list[Views]:
    """Train on every table and tell which of them look alike to each threat.

    Raises `UsageError` if what is seen depends on the seed: of one draw, who does not know it would
    be granted it; or if no table is trained on.

    `tables`: Some of them alone, by number; then arrays are of these, in that order.
    """
    every = range(len(tiny.tables.held)) if tables is None else tables
    who = {threat: tiny.principals(threat) for threat in threats}
    _refuse_randomness(tiny, who, every)
    keys = {threat: list[bytes]() for threat in threats}
    refused = []
    stopped = None
    for table in every:
        seen, stopped = _keys(tiny, table, who, tiny.seed)
        refused.append(stopped is not None)
        for threat, key in seen.items():
            keys[threat].append(key)
    mask = np.array(refused)
    if mask.all():
        raise UsageError(f"no table is trained on: {stopped}")
    return [Views(t, who[t], _numbered(found), mask) for t, found in keys.items()]


def _refuse_randomness(tiny: Tiny, who: Mapping[str, tuple[str, ...]], tables: Any) -> None:
    for table in tables[:: max(1, len(tables) // _TRIED)]:
        if _keys(tiny, table, who, tiny.seed)[0] != _keys(tiny, table, who, tiny.seed + 1)[0]:
            raise UsageError(
                "what is seen depends on random draws, over which a ceiling would have to be "
                "summed: one seed would grant them to who does not know them"
            )


def _numbered(keys: Iterable[bytes]) -> NDArray[np.int64]:
    numbers: dict[bytes, int] = {}
    return np.array([numbers.setdefault(key, len(numbers)) for key in keys], dtype=np.int64)


def _keys(
    tiny: Tiny, table: int, who: Mapping[str, tuple[str, ...]], seed: int
) -> tuple[dict[str, bytes], str | None]:
    """Return what tells the view of each threat apart, and why the run stopped, None if not."""
    held = tiny.tables.local_data(table)
    try:
        training = tiny.training(table, seed)
    except FedtreesError as err:  # what an error says, everybody reads
        said = f"{type(err).__name__}: {err}"
        return {t: _own(held, names) + said.encode() for t, names in who.items()}, said
    seen: dict[int, bytes] = {}
    return {t: _key(view_of(training, names, held), held, seen) for t, names in who.items()}, None


def _own(held: Mapping[str, LocalData], names: Sequence[str]) -> bytes:
    mine = [held[n] for n in names if n in held]
    return b"".join(h.X.tobytes() + (b"" if h.y is None else h.y.tobytes()) for h in mine)


def _key(view: View, held: Mapping[str, LocalData], known: dict[int, bytes]) -> bytes:
    """Return a digest of all that is readable in a view.

    What is sealed counts by its type, ciphertexts and keys not at all: by the cryptography that
    made them they say nothing, and every run has others.
    """
    made = blake2b(_own(held, view.principals))
    for item in view.seen:
        made.update(f"{item.round} {item.sender} {item.receivers}".encode())
        if id(item.message) not in known:
            known[id(item.message)] = digest_of(item.message)
        made.update(known[id(item.message)])
    return made.digest()


def digest_of(message: Message) -> bytes:
    """Return a digest of the readable fields of a message."""
    made = blake2b(type(message).__qualname__.encode())
    for name in names_of(message):
        value: Any = getattr(message, name)
        if isinstance(value, Sealed):
            value = (value.keyholders, value.shape, value.dtype)
        if isinstance(value, np.ndarray):
            made.update(f"{name} {value.dtype.str} {value.shape}".encode() + value.tobytes())
        else:
            made.update(f"{name} {value!r}".encode())
    return made.digest()

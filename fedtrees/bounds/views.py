"""Views of the adversary on enumerated tables, and which tables have equal views.

A protocol is run on every table. Two tables have equal views if all readable contents of the
messages in the view, and the local data of the adversary, are equal.
"""

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
from fedtrees.core.messages import Message, Sealed, names_of
from fedtrees.core.threat import Threat
from fedtrees.core.transcript import PUBLIC
from fedtrees.core.view import View
from fedtrees.protocols.base import Protocol
from fedtrees.protocols.training import Training, train
from fedtrees.protocols.views import view_of

#: Number of tables that are also trained with a second seed, to detect views that depend on it.
_TRIED_TABLES = 6


@dataclass(frozen=True, eq=False)
class Views:
    """View of a threat model for each of the T enumerated tables.

    Attributes
    ----------
    threat : str
        Threat model.
    principals : tuple of str
        Names of the parties of the adversary.
    of : int64 array, shape (T,)
        Number of the view of each table. Equal numbers mean equal views.
    refused : bool array, shape (T,)
        Tables on which the training fails. Failure with an error message is a view as well.
    """

    threat: str
    principals: tuple[str, ...]
    of: NDArray[np.int64]
    refused: NDArray[np.bool_]


@dataclass(frozen=True)
class Tiny:
    """Enumerated tables, and the protocol and defense that are trained on them with one seed."""

    tables: TinyTables
    protocol: Protocol
    defense: Composition = Composition()
    seed: int = 0

    @property
    def roles(self) -> dict[str, str]:
        """Role of every party by name, and of the public if the protocol releases the model."""
        public = {PUBLIC: PUBLIC} if self.protocol.released else {}
        return {**self.protocol.roles(self.tables.holders), **public}

    def principals(self, threat: str) -> tuple[str, ...]:
        """Return the colluding parties. Raises `UsageError` if no victim remains."""
        colluding = Threat.parse(threat).principals(self.roles)
        if set(self.protocol.holder_names(self.tables.holders)) <= set(colluding):
            raise UsageError(
                f"threat {threat}: all parties with rows collude, so that no victim remains; name "
                "fewer parties"
            )
        return colluding

    def training(self, table: int, seed: int | None = None) -> Training:
        """Train on one table. Raises `FedtreesError` if the training fails."""
        return train(
            self.protocol, self.tables.local_data(table), self.tables.schema,
            defense=self.defense, seed=self.seed if seed is None else seed, noise_from="seed",
        )  # fmt: skip

    def view(self, table: int, principals: Sequence[str]) -> View | None:
        """Return the view of the principals for one table, None if the training fails."""
        try:
            training = self.training(table)
        except FedtreesError:
            return None
        return view_of(training, principals, self.tables.local_data(table))


def views(tiny: Tiny, threats: Sequence[str], tables: Sequence[int] | None = None) -> list[Views]:
    """Train on every table, and number the different views of each threat model.

    Parameters
    ----------
    tiny : Tiny
        Enumerated tables, protocol and defense.
    threats : sequence of str
        Threat models.
    tables : sequence of int, optional
        Numbers of the tables to train on. None: all tables. The arrays of the result are in this
        order.

    Returns
    -------
    views : list of Views
        One per threat model.

    Raises
    ------
    UsageError
        If a view depends on the seed, or training fails on every table. With a single seed, the
        adversary would be granted the random draws, so that the ceiling would be too high.
    """
    numbers = range(len(tiny.tables.row_types)) if tables is None else tables
    principals_of = {threat: tiny.principals(threat) for threat in threats}
    _refuse_randomness(tiny, principals_of, numbers)
    keys = {threat: list[bytes]() for threat in threats}
    refused = []
    stopped = None
    for table in numbers:
        view_keys, stopped = _keys(tiny, table, principals_of, tiny.seed)
        refused.append(stopped is not None)
        for threat, key in view_keys.items():
            keys[threat].append(key)
    mask = np.array(refused)
    if mask.all():
        raise UsageError(f"no table is trained on: {stopped}")
    return [Views(t, principals_of[t], _numbered(digests), mask) for t, digests in keys.items()]


def _refuse_randomness(
    tiny: Tiny, principals_of: Mapping[str, tuple[str, ...]], tables: Any
) -> None:
    """Raise `UsageError` if a view depends on the seed, by a second training on a few tables."""
    for table in tables[:: max(1, len(tables) // _TRIED_TABLES)]:
        if (
            _keys(tiny, table, principals_of, tiny.seed)[0]
            != _keys(tiny, table, principals_of, tiny.seed + 1)[0]
        ):
            raise UsageError(
                "the view depends on random draws. A ceiling would have to be summed over all of "
                "them, because an adversary who knows one seed would know the draws, too"
            )


def _numbered(keys: Iterable[bytes]) -> NDArray[np.int64]:
    """Return a number for each key. Equal keys have equal numbers, from 0."""
    numbers: dict[bytes, int] = {}
    return np.array([numbers.setdefault(key, len(numbers)) for key in keys], dtype=np.int64)


def _keys(
    tiny: Tiny, table: int, principals_of: Mapping[str, tuple[str, ...]], seed: int
) -> tuple[dict[str, bytes], str | None]:
    """Return the digest of the view of each threat model, and the error message or None."""
    local_data = tiny.tables.local_data(table)
    try:
        training = tiny.training(table, seed)
    except FedtreesError as err:  # all parties can read the error message
        error_text = f"{type(err).__name__}: {err}"
        return {
            t: _local_bytes(local_data, names) + error_text.encode()
            for t, names in principals_of.items()
        }, error_text
    digests: dict[int, bytes] = {}
    return {
        t: _key(view_of(training, names, local_data), local_data, digests)
        for t, names in principals_of.items()
    }, None


def _local_bytes(local_data: Mapping[str, LocalData], names: Sequence[str]) -> bytes:
    """Return the local data of some parties as bytes."""
    parts = [local_data[n] for n in names if n in local_data]
    return b"".join(h.X.tobytes() + (b"" if h.y is None else h.y.tobytes()) for h in parts)


def _key(view: View, local_data: Mapping[str, LocalData], digests: dict[int, bytes]) -> bytes:
    """Return a digest of everything that is readable in a view.

    Protected values (`Sealed`) count only by key holders, shape and type. Their ciphertexts are
    assumed to reveal nothing, and they differ in every run. `digests` caches the digests of
    messages by the id of the message.
    """
    # The local data is part of the view.
    digest = blake2b(_local_bytes(local_data, view.principals))
    for item in view.seen:
        digest.update(f"{item.round} {item.sender} {item.receivers}".encode())
        if id(item.message) not in digests:
            digests[id(item.message)] = digest_of(item.message)
        digest.update(digests[id(item.message)])
    return digest.digest()


def digest_of(message: Message) -> bytes:
    """Return a digest of the readable fields of a message."""
    digest = blake2b(type(message).__qualname__.encode())
    for name in names_of(message):
        value: Any = getattr(message, name)
        if isinstance(value, Sealed):
            value = (value.keyholders, value.shape, value.dtype)
        if isinstance(value, np.ndarray):
            digest.update(f"{name} {value.dtype.str} {value.shape}".encode() + value.tobytes())
        else:
            digest.update(f"{name} {value!r}".encode())
    return digest.digest()

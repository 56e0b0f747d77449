"""Canaries of a privacy audit: rows that a training includes or omits by coin flips.

The audit (Steinke, Nasr and Jagielski 2023) guesses from the messages of a run which canaries took
part. The number of correct guesses gives a lower bound on epsilon
(`fedtrees.privacy_audit.bounds`).

The canaries of a protocol are found by its class. The other modules of this package register those
of the built-in protocols, and the module of a plug-in registers its own.
"""

import math
from abc import ABC, abstractmethod
from collections.abc import Callable
from functools import cache, singledispatch
from importlib import import_module
from pkgutil import iter_modules
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

import fedtrees.privacy_audit
from fedtrees.core.channel import honest_shares
from fedtrees.core.composition import Composition
from fedtrees.core.local_data import LocalData, over_clients
from fedtrees.core.schema import Schema, Table
from fedtrees.protocols.base import Protocol
from fedtrees.protocols.training import Training

#: In a tree of 2^12 = 4096 leaves, most of 2048 canaries share their leaf with no other canary.
#: The number of such runs is 8.
SEPARATING_DEPTH, SEPARATE_CANARIES, SEPARATE_RUNS = 12, 2048, 8

Create = TypeVar("Create", bound=Callable[..., "Canaries | None"])
Choose = TypeVar("Choose", bound=Callable[..., "tuple[Protocol, Canaries] | None"])


class Canaries(ABC):
    """Base class of canaries: rows that a protocol can distinguish as well as possible.

    Attributes
    ----------
    schema : Schema
        Columns and target of the canaries.
    max_canaries : int
        Largest number of canaries that one run can include without hiding one another.
    runs : int
        Number of runs of a thorough audit.
    """

    schema: Schema
    max_canaries: int
    runs: int = 1

    def distribute(
        self, rows: Table, is_included: NDArray[np.bool_], companions: Table
    ) -> dict[str, LocalData]:
        """Return the local data of each party.

        By default client 0 has the included canaries, and client 1 the remaining rows.

        Parameters
        ----------
        rows : Table
            Canaries, as returned by `rows`.
        is_included : bool array, shape (n,)
            Which canaries take part.
        companions : Table
            Rows that always take part, as returned by `rows`.
        """
        return over_clients([rows.take(is_included), companions])

    @abstractmethod
    def rows(self, count: int, rng: np.random.Generator) -> tuple[Table, Table]:
        """Draw `count` canaries, and rows that always take part."""

    @abstractmethod
    def scores(self, training: Training, rows: Table, companions: Table) -> NDArray[np.float64]:
        """Return the log odds that each canary took part, relative to the coin flip.

        Parameters
        ----------
        training : Training
            A finished training.
        rows, companions : Table
            As returned by `rows`.

        Returns
        -------
        scores : float64 array, shape (n,)
        """

    def residuals(
        self, training: Training, rows: Table, is_included: NDArray[np.bool_], companions: Table
    ) -> NDArray[np.float64]:
        """Return the differences between noisy sums and the true sums of the rows.

        Parameters
        ----------
        training : Training
            A finished training.
        rows : Table
            Canaries.
        is_included : bool array, shape (n,)
            Which canaries took part.
        companions : Table
            Rows that always take part.

        Returns
        -------
        residuals : float64 array, shape (m,)
            In standard deviations of the agreed noise. Empty if the audit compares no sums.
        """
        return np.zeros(0)


@singledispatch
def _canaries_of(protocol: Protocol) -> Canaries | None:
    # Plug-ins of version 1.0 define methods of the protocol, which are kept for one release.
    method = getattr(protocol, "canaries", None)
    return method() if method else None


@singledispatch
def _audit_setting_of(
    protocol: Protocol, defense: Composition
) -> tuple[Protocol, Canaries | None] | None:
    method = getattr(protocol, "worst_case", None)
    return method(defense) if method else None


def register_canaries(protocol: type[Any]) -> Callable[[Create], Create]:
    """Register the decorated function, which creates the canaries of a class of protocols.

    Its argument is the protocol. It may return None if no canaries fit the parameters.
    """

    def register(create: Create) -> Create:
        _canaries_of.register(protocol, create)
        return create

    return register


def register_audit_setting(protocol: type[Any]) -> Callable[[Choose], Choose]:
    """Register the decorated function, which chooses revealing parameters of a class of protocols.

    Its arguments are the protocol and the defense (`choose_audit_setting`). It may return None.
    """

    def register(choose: Choose) -> Choose:
        _audit_setting_of.register(protocol, choose)
        return choose

    return register


def create_canaries(protocol: Protocol) -> Canaries | None:
    """Create the rows that an audit of a protocol inserts.

    Parameters
    ----------
    protocol : Protocol
        The protocol with its parameters.

    Returns
    -------
    canaries : Canaries or None
        None if no canaries are registered for the class of the protocol, or if none of them fits
        the parameters.
    """
    _import_canaries()
    return _canaries_of(protocol)


def choose_audit_setting(
    protocol: Protocol, defense: Composition
) -> tuple[Protocol, Canaries | None]:
    """Choose parameters and canaries that reveal most about a row.

    A claim about epsilon must be true for every table and all public parameters. The auditor
    therefore chooses both: one tree, few columns, and gradients near their bound.

    Parameters
    ----------
    protocol : Protocol
        The protocol with its parameters.
    defense : Composition
        The defense.

    Returns
    -------
    setting : (Protocol, Canaries or None)
        The given protocol and its own canaries if no setting is registered for its class.
    """
    _import_canaries()
    return _audit_setting_of(protocol, defense) or (protocol, _canaries_of(protocol))


@cache
def _import_canaries() -> None:
    """Import the modules of this package, which register the canaries of the built-in protocols."""
    for module in iter_modules(fedtrees.privacy_audit.__path__):
        import_module(f"fedtrees.privacy_audit.{module.name}")


def spare_noise(training: Training) -> float:
    """Return the standard deviation of a sum's noise, relative to the calibrated one.

    Noise shares are calibrated for fewer clients than take part, because some may collude
    (`honest_shares`). The noise of the complete sum is then wider than the claim needs. Without
    shared noise the result is 1.
    """
    protocol: Any = training.protocol
    if getattr(protocol, "noise", "") != "distributed":
        return 1.0
    clients = [*training.transcript.roles.values()].count("client")
    return math.sqrt(clients / honest_shares(clients, protocol.colluders, 0))


def alone_in_leaf(leaf: NDArray[np.int32]) -> NDArray[np.bool_]:
    """Return which canaries share their leaf with no other canary, bool, shape (n,)."""
    return np.asarray(np.bincount(leaf)[leaf] == 1)

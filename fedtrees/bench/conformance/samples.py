"""Build small tables, and train protocols on them, for checks."""

import inspect
from typing import Any

import numpy as np

from fedtrees.core.composition import Composition
from fedtrees.core.errors import FedtreesError
from fedtrees.core.local_data import LocalData
from fedtrees.core.registry import register
from fedtrees.core.schema import Feature, Schema, Table
from fedtrees.core.specs import Spec, parse_grid
from fedtrees.core.streams import Streams
from fedtrees.data.layout import lay_out
from fedtrees.data.partition import Partition
from fedtrees.protocols.base import Protocol
from fedtrees.protocols.training import Training, train

_SMALL: dict[str, Any] = {"trees": 3, "max_depth": 3, "max_bin": 16, "iterations": 8}
#: Networks learn in a few long steps. The duration of cryptography depends on their parameters.
_SMALL_NETWORK: dict[str, Any] = {"units": 8, "rounds": 8, "lr": 1.0}


def trainable() -> list[str]:
    """Return the protocols whose optional packages are installed."""
    return [
        name for name in register.names("protocol") if not register.get("protocol", name).missing()
    ]


def sample_table(seed: int = 0, rows: int = 240) -> tuple[Table, Schema]:
    """Build a small random table that an attack cannot contain."""
    rng = np.random.default_rng([77, seed])
    X = rng.normal(size=(rows, 5)) * [1, 10, 3, 0.5, 2]  # values use all bits of a float32
    X[:, 4] = rng.integers(0, 3, rows)
    y = (X[:, 0] + X[:, 1] / 10 + rng.normal(0, 0.5, rows) > 0).astype(np.int64)
    names = ["a", "b", "c", "d"]
    features = [Feature(n, low=-50, high=50) for n in names]
    kinds = Feature("e", kind="categorical", categories=("x", "y", "z"))
    return Table(X.astype(np.float32), y), Schema((*features, kinds), "label")


def sample_local_data(protocol: Protocol, parties: int = 3) -> dict[str, LocalData]:
    """Distribute the small table over the parties of a protocol."""
    table, schema = sample_table()
    names = protocol.holder_names(parties)
    rng = Streams(0).rng("sample")
    return lay_out(protocol.layout, table, schema, names, Partition("iid"), rng)


def sample_training(
    protocol: Protocol, defense: Composition | None = None, parties: int = 3, seed: int = 5
) -> tuple[Training, dict[str, LocalData]]:
    """Train a protocol on the small table. Return the training and the local data.

    Parameters
    ----------
    protocol : Protocol
        The protocol.
    defense : Composition or None
        The defense.
    parties : int
        Number of parties that have data.
    seed : int
        Seed of the training.
    """
    local_data, (_, schema) = sample_local_data(protocol, parties=parties), sample_table()
    run = train(protocol, local_data, schema, defense=defense, seed=seed, noise_from="seed")
    return run, local_data


def made(name: str) -> Protocol | None:
    """Return a small protocol, None if it cannot be created here."""
    try:
        protocol = register.make("protocol", small(parse_grid(name)[0]))
    except FedtreesError:
        return None
    return protocol if isinstance(protocol, Protocol) else None


def small(spec: Spec) -> Spec:
    """Return a protocol with few trees or rounds, if it has such parameters."""
    parameters = inspect.signature(register.get("protocol", spec.name)).parameters
    few = _SMALL | (_SMALL_NETWORK if "units" in parameters else {})
    return Spec(spec.name, {**{k: v for k, v in few.items() if k in parameters}, **spec.params})

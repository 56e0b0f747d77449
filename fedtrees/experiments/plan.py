"""Cells: the units of work of a suite, each hashed from everything that can change its result."""

from __future__ import annotations

import hashlib
import json
import platform
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cache, cached_property, lru_cache
from importlib.metadata import version
from itertools import product
from pathlib import Path
from typing import Any

from fedtrees import __version__
from fedtrees.core.registry import register
from fedtrees.core.specs import Composed, Spec
from fedtrees.core.threat import Threat
from fedtrees.experiments.suite import DataRef, Suite, fits, roles_of
from fedtrees.protocols.base import Protocol

_LIBRARIES = ("numpy", "numba", "scipy", "scikit-learn", "ortools", "imbalanced-learn")
# Rooms that compute no result; of all others the source is part of every cell's key.
_SHOW = ("audit", "benchmarks", "cli", "cluster", "estimators", "report")


@dataclass(frozen=True)
class Setting:
    """A federation: which rows, spread how, drawn from which seed, over whom.

    `roles`: Name and role of every party of the protocol, and of whoever gets its model.
    """

    data: DataRef
    partition: Spec
    clients: int  # parties that hold data
    seed: int
    roles: tuple[tuple[str, str], ...]
    holders: tuple[str, ...]  # names of the parties that hold data
    layout: str  # how the table is laid out over them

    @classmethod
    def of(
        cls, data: DataRef, partition: Spec, clients: int, seed: int, protocol: Protocol
    ) -> Setting:
        """Return the federation that a protocol is run over."""
        roles = roles_of(protocol, clients)
        holders = tuple(protocol.holder_names(clients))
        return cls(data, partition, clients, seed, tuple(roles.items()), holders, protocol.layout)

    @property
    def partition_text(self) -> str:
        """The partition with its number of clients, as it stands in results."""
        return str(Spec(self.partition.name, {"clients": self.clients, **self.partition.params}))


@dataclass(frozen=True)
class Cell:
    """Base of all cells.

    `stage`: ``train``, ``cheated``, ``adversary``, ``attack``, ``blind`` or ``reference``.
    """

    setting: Setting
    stage = "cell"

    def describe(self) -> dict[str, Any]:
        """Return what identifies the cell, as plain JSON types."""
        s = self.setting
        place = {"data": s.data.name, "partition": s.partition_text, "seed": s.seed}
        return {"stage": self.stage, **place}

    @property
    def label(self) -> str:
        """A short text for progress lines and errors."""
        return " ".join(str(v) for k, v in self.describe().items() if k != "stage" and v != "")

    def key(self, provenance: Provenance) -> str:
        """Return the hash under which the result is stored."""
        digest = provenance.digests[self.setting.data]
        spread = {"roles": self.setting.roles, "layout": self.setting.layout}
        stamp = {"digest": digest, **spread, **provenance.stamp}
        text = json.dumps({**self.describe(), **stamp}, sort_keys=True)
        return hashlib.sha256(text.encode()).hexdigest()[:24]


@dataclass(frozen=True)
class BlindCell(Cell):
    """What an adversary guesses who sees nothing."""

    threat: str
    stage = "blind"

    def describe(self) -> dict[str, Any]:
        """Add the threat."""
        return {**super().describe(), "threat": self.threat}


@dataclass(frozen=True)
class ReferenceCell(Cell):
    """Utility without a federation: each client alone, and the majority class."""

    protocol: Spec
    stage = "reference"

    def describe(self) -> dict[str, Any]:
        """Add the protocol whose parameters the lone clients train with."""
        return {**super().describe(), "protocol": canonical(self.protocol)}


@dataclass(frozen=True)
class TrainCell(Cell):
    """One defended training run."""

    protocol: Spec
    defense: Composed
    behaviours: tuple[tuple[str, str], ...] = ()  # of parties that cheat, by name

    @property
    def stage(self) -> str:  # type: ignore[override]
        """``cheated``, if somebody cheats."""
        return "cheated" if self.behaviours else "train"

    def describe(self) -> dict[str, Any]:
        """Add protocol and defense, and who cheats."""
        defense = "+".join(map(canonical, self.defense.parts)) or "none"
        cheats = {"cheats": ":".join(map(" ".join, self.behaviours))} if self.behaviours else {}
        identity = {"protocol": canonical(self.protocol), "defense": defense}
        return {**super().describe(), **identity, **cheats}


@dataclass(frozen=True)
class AttackCell(Cell):
    """One attack on one training run."""

    train: TrainCell
    threat: str
    attack: Spec
    stage = "attack"

    def describe(self) -> dict[str, Any]:
        """Add threat and attack to what identifies the training."""
        identity = {"stage": self.stage, "threat": self.threat, "attack": canonical(self.attack)}
        return {**self.train.describe(), **identity}


@dataclass(frozen=True)
class AdversaryCell(Cell):
    """Which attacks apply to what one adversary saw of a training run, whether they run or not."""

    train: TrainCell
    threat: str
    stage = "adversary"

    def describe(self) -> dict[str, Any]:
        """Add the threat to what identifies the training."""
        return {**self.train.describe(), "stage": self.stage, "threat": self.threat}


@dataclass(frozen=True)
class Group:
    """One training run with all attacks on it: trained once, attacked many times."""

    train: TrainCell
    attacks: tuple[AttackCell | AdversaryCell, ...]


@dataclass(frozen=True)
class Plan:
    """All cells of a suite, in the order of its table of results."""

    blind: tuple[BlindCell, ...]
    references: tuple[ReferenceCell, ...]
    groups: tuple[Group, ...]

    def cells(self) -> Iterator[Cell]:
        """Yield all cells in the order of ``rows.csv``."""
        yield from self.references
        for group in self.groups:
            yield group.train
            yield from group.attacks
        yield from self.blind

    @cached_property
    def settings(self) -> tuple[Setting, ...]:
        """Distinct federations."""
        return tuple(dict.fromkeys(c.setting for c in self.cells()))


def plan(suite: Suite) -> Plan:
    """Expand a suite's grids into cells, each once."""
    attacks: dict[TrainCell, dict[AttackCell | AdversaryCell, None]] = {}
    blind: dict[BlindCell, None] = {}
    references: dict[ReferenceCell, None] = {}
    for grid in suite.grids:
        axes = (grid.data, grid.partitions, grid.clients, grid.protocols, suite.seeds)
        for data, partition, clients, protocol, seed in product(*axes):
            instance: Protocol = register.make("protocol", protocol)
            setting = Setting.of(data, partition, clients, seed, instance)
            references[ReferenceCell(setting, protocol)] = None
            threats = [t for t in grid.threats if fits(t, protocol)] or grid.threats
            for threat in threats:
                blind[BlindCell(setting, threat)] = None
            for defense in grid.defenses:
                attacks.setdefault(TrainCell(setting, protocol, defense), {})
                trains = {t: TrainCell(setting, protocol, defense, cheats(t, setting))
                          for t in threats}  # fmt: skip
                for threat, train in trains.items():
                    attacks.setdefault(train, {})[AdversaryCell(setting, train, threat)] = None
                for (threat, train), attack in product(trains.items(), grid.every_attack):
                    attacks[train][AttackCell(setting, train, threat, attack)] = None
    groups = tuple(Group(train, tuple(cells)) for train, cells in attacks.items())
    return Plan(tuple(blind), tuple(references), groups)


def cheats(threat: str, setting: Setting) -> tuple[tuple[str, str], ...]:
    """Return who cheats under a threat, and how."""
    return tuple(Threat.parse(threat).behaviours(dict(setting.roles)).items())


def canonical(spec: Spec) -> str:
    """Write a spec with sorted parameters: the order on the command line changes nothing."""
    return str(Spec(spec.name, dict(sorted(spec.params.items()))))


@dataclass(frozen=True)
class Provenance:
    """What else a result depends on."""

    digests: Mapping[DataRef, str]  # content digest of every dataset
    plugins: tuple[str, ...] = ()  # sha256 of every plugin file

    @property
    def stamp(self) -> dict[str, Any]:
        """Versions, source digest and plugins, as plain JSON types."""
        return {
            "fedtrees": __version__,
            "code": code_digest(),
            "python": platform.python_version(),
            "libraries": _versions(),
            "plugins": sorted(self.plugins),
        }


@cache
def _versions() -> Mapping[str, str]:
    return {name: version(name) for name in _LIBRARIES}


@lru_cache(maxsize=1)
def code_digest() -> str:
    """Return a digest of the source of everything numeric in this installation."""
    import fedtrees.attacks
    import fedtrees.defenses

    root = Path(fedtrees.__file__).parent
    packages = sorted(path.parent for path in root.glob("*/__init__.py"))
    folders = {folder.name: folder for folder in packages if folder.name not in _SHOW}
    folders["defenses"] = Path(fedtrees.defenses.__file__).parent
    folders["attacks"] = Path(fedtrees.attacks.__file__).parent
    digest = hashlib.sha256()
    for part, folder in folders.items():
        for path in sorted(folder.rglob("*.py")):
            digest.update(f"{part}/{path.relative_to(folder).as_posix()}\0".encode())
            digest.update(path.read_bytes())
    return digest.hexdigest()[:16]

"""Expand a suite into cells, the units of work.

A cell is one training, one attack on it, or one baseline. Its key is a hash of everything that can
change its result: the settings, the content of the table, the code and the versions of the
libraries. A finished cell with the same key is therefore never computed again. `plan` expands the
grids of a suite, and `fedtrees.experiments.runner` computes the cells.
"""

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
# Packages that compute no result. The source of all other packages is part of the key of each cell.
_SHOW = ("audit", "benchmarks", "cli", "cluster", "estimators", "report")


@dataclass(frozen=True)
class Setting:
    """Description of a federation: its table, and the distribution of the rows to parties.

    Attributes
    ----------
    data : DataRef
        Source of the table.
    partition : Spec
        Method that distributes the rows.
    clients : int
        Number of parties with data.
    seed : int
        Seed of the split into training and test rows, and of the training.
    roles : tuple of (str, str)
        Name and role of every party of the protocol. If the protocol releases its model, the
        public is listed as a recipient.
    holders : tuple of str
        Names of the parties with data.
    layout : str
        Layout of the table over these parties, for example ``horizontal``.
    """

    data: DataRef
    partition: Spec
    clients: int
    seed: int
    roles: tuple[tuple[str, str], ...]
    holders: tuple[str, ...]
    layout: str

    @classmethod
    def of(
        cls, data: DataRef, partition: Spec, clients: int, seed: int, protocol: Protocol
    ) -> Setting:
        """Return the federation that a protocol needs for a number of clients.

        Parameters
        ----------
        data : DataRef
            Source of the table.
        partition : Spec
            Method that distributes the rows.
        clients : int
            Number of parties with data.
        seed : int
            Seed of the federation.
        protocol : Protocol
            Determines the roles, the names of the parties and the layout.
        """
        roles = roles_of(protocol, clients)
        holders = tuple(protocol.holder_names(clients))
        return cls(data, partition, clients, seed, tuple(roles.items()), holders, protocol.layout)

    @property
    def partition_text(self) -> str:
        """The partition with its number of clients, as results contain it."""
        return str(Spec(self.partition.name, {"clients": self.clients, **self.partition.params}))


@dataclass(frozen=True)
class Cell:
    """Base of all cells.

    Attributes
    ----------
    setting : Setting
        The federation.
    stage : str
        Kind of the cell in results: ``train``, ``cheated`` (training with a cheating party),
        ``adversary``, ``attack``, ``blind`` or ``reference``.
    """

    setting: Setting
    stage = "cell"

    def describe(self) -> dict[str, Any]:
        """Return the settings that identify the cell, as plain JSON types."""
        s = self.setting
        place = {"data": s.data.name, "partition": s.partition_text, "seed": s.seed}
        return {"stage": self.stage, **place}

    @property
    def label(self) -> str:
        """Short text for progress lines and errors."""
        return " ".join(str(v) for k, v in self.describe().items() if k != "stage" and v != "")

    def key(self, provenance: Provenance) -> str:
        """Return the hash under which the result is stored, 24 hexadecimal digits."""
        digest = provenance.digests[self.setting.data]
        spread = {"roles": self.setting.roles, "layout": self.setting.layout}
        stamp = {"digest": digest, **spread, **provenance.stamp}
        text = json.dumps({**self.describe(), **stamp}, sort_keys=True)
        return hashlib.sha256(text.encode()).hexdigest()[:24]


@dataclass(frozen=True)
class BlindCell(Cell):
    """Blind baseline: the guesses of an adversary with an empty transcript."""

    threat: str
    stage = "blind"

    def describe(self) -> dict[str, Any]:
        """Add the threat."""
        return {**super().describe(), "threat": self.threat}


@dataclass(frozen=True)
class ReferenceCell(Cell):
    """Utility without a federation: each client's model of its local data, and the majority class.

    If the target is a number, its mean replaces the majority class.
    """

    protocol: Spec
    stage = "reference"

    def describe(self) -> dict[str, Any]:
        """Add the protocol whose parameters the clients use for their local models."""
        return {**super().describe(), "protocol": canonical(self.protocol)}


@dataclass(frozen=True)
class TrainCell(Cell):
    """One training run, with a composition of defenses that may be empty.

    Attributes
    ----------
    protocol : Spec
        The protocol.
    defense : Composed
        The defenses.
    behaviours : tuple of (str, str)
        Name and behaviour of each cheating party. Empty if all parties follow the protocol.
    """

    protocol: Spec
    defense: Composed
    behaviours: tuple[tuple[str, str], ...] = ()

    @property
    def stage(self) -> str:  # type: ignore[override]
        """``cheated`` if a party cheats, otherwise ``train``."""
        return "cheated" if self.behaviours else "train"

    def describe(self) -> dict[str, Any]:
        """Add the protocol, the defense and the cheating parties."""
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
        """Add the threat and the attack to the description of the training."""
        identity = {"stage": self.stage, "threat": self.threat, "attack": canonical(self.attack)}
        return {**self.train.describe(), **identity}


@dataclass(frozen=True)
class AdversaryCell(Cell):
    """Check of which attacks apply to the view of one adversary, without running them."""

    train: TrainCell
    threat: str
    stage = "adversary"

    def describe(self) -> dict[str, Any]:
        """Add the threat to the description of the training."""
        return {**self.train.describe(), "stage": self.stage, "threat": self.threat}


@dataclass(frozen=True)
class Group:
    """One training run with the attacks on it. It is trained once and attacked many times."""

    train: TrainCell
    attacks: tuple[AttackCell | AdversaryCell, ...]


@dataclass(frozen=True)
class Plan:
    """All cells of a suite."""

    blind: tuple[BlindCell, ...]
    references: tuple[ReferenceCell, ...]
    groups: tuple[Group, ...]

    def cells(self) -> Iterator[Cell]:
        """Yield all cells in the order of their rows in ``rows.csv``."""
        yield from self.references
        for group in self.groups:
            yield group.train
            yield from group.attacks
        yield from self.blind

    @cached_property
    def settings(self) -> tuple[Setting, ...]:
        """Distinct federations of all cells."""
        return tuple(dict.fromkeys(c.setting for c in self.cells()))


def plan(suite: Suite) -> Plan:
    """Expand the grids of a suite into cells, each once.

    Threats with roles that a protocol lacks are skipped for this protocol, unless this would leave
    no threat. Trainings without a cheating party are always included, because their utility is
    reported for every defense.
    """
    # Dictionaries without values are ordered sets: grids may contain the same cell.
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
    """Return name and behaviour of the parties that cheat under a threat (`Threat.behaviours`)."""
    return tuple(Threat.parse(threat).behaviours(dict(setting.roles)).items())


def canonical(spec: Spec) -> str:
    """Write a spec with sorted parameters, so that their order does not change a key."""
    return str(Spec(spec.name, dict(sorted(spec.params.items()))))


@dataclass(frozen=True)
class Provenance:
    """Contents of files that a result depends on.

    Attributes
    ----------
    digests : mapping of DataRef to str
        Digest of the content of every table.
    plugins : tuple of str
        sha256 of every plug-in file.
    """

    digests: Mapping[DataRef, str]
    plugins: tuple[str, ...] = ()

    @property
    def stamp(self) -> dict[str, Any]:
        """Versions, digest of the source, and digests of plug-ins, as plain JSON types."""
        return {
            "fedtrees": __version__,
            "code": code_digest(),
            "python": platform.python_version(),
            "libraries": _read_versions(),
            "plugins": sorted(self.plugins),
        }


@cache
def _read_versions() -> Mapping[str, str]:
    """Return the installed version of every library in `_LIBRARIES`."""
    return {name: version(name) for name in _LIBRARIES}


@lru_cache(maxsize=1)
def code_digest() -> str:
    """Return a digest of the installed source that can change a number, 16 hexadecimal digits.

    It covers the attacks, the defenses, and all packages of fedtrees except `_SHOW`.
    """
    import fedtrees.attacks
    import fedtrees.defenses

    root = Path(fedtrees.__file__).parent
    packages = sorted(path.parent for path in root.glob("*/__init__.py"))
    folders = {folder.name: folder for folder in packages if folder.name not in _SHOW}
    # Attacks and defenses may be installed in other folders.
    folders["defenses"] = Path(fedtrees.defenses.__file__).parent
    folders["attacks"] = Path(fedtrees.attacks.__file__).parent
    digest = hashlib.sha256()
    for part, folder in folders.items():
        for path in sorted(folder.rglob("*.py")):
            digest.update(f"{part}/{path.relative_to(folder).as_posix()}\0".encode())
            digest.update(path.read_bytes())
    return digest.hexdigest()[:16]

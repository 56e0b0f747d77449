"""Expand a suite into tasks, the units of work.

A task is one training, one attack on it, or one baseline. Its key is a hash of everything that can
change its result: the settings, the content of the table, the code and the versions of the
libraries. The result of a task is stored as a cell of the run folder under this key, so that it is
never computed twice. `build_plan` expands the grids of a suite, and `fedtrees.experiments.runner`
computes the tasks.
"""

from __future__ import annotations

import hashlib
import json
import platform
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from functools import cache, cached_property
from importlib.metadata import version
from itertools import product
from typing import Any, Literal

from fedtrees import __version__
from fedtrees.core.registry import register
from fedtrees.core.source import code_digest
from fedtrees.core.specs import Composed, Spec
from fedtrees.core.threat import Threat
from fedtrees.experiments.suite import DataRef, Suite, roles_of, threat_fits
from fedtrees.protocols.base import Protocol

_LIBRARIES = ("numpy", "numba", "scipy", "scikit-learn", "ortools", "imbalanced-learn")


@dataclass(frozen=True)
class FederationConfig:
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
    ) -> FederationConfig:
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

        Returns
        -------
        FederationConfig
            Description of the federation, which can be hashed.
        """
        roles = roles_of(protocol, clients)
        holders = tuple(protocol.holder_names(clients))
        return cls(data, partition, clients, seed, tuple(roles.items()), holders, protocol.layout)

    @property
    def partition_text(self) -> str:
        """The partition with its number of clients, as results contain it."""
        return str(Spec(self.partition.name, {"clients": self.clients, **self.partition.params}))


Stage = Literal["train", "cheated", "adversary", "attack", "blind", "reference"]
_UNUSED = Spec("")  # protocol or attack of a task that has none


@dataclass(frozen=True)
class Task:
    """Unit of work. Its result is one cell of the run, with one or more rows.

    Attributes
    ----------
    federation_config : FederationConfig
        The federation.
    stage : str
        - ``train``: a training in which all parties follow the protocol.
        - ``cheated``: a training with a cheating party.
        - ``adversary``: which attacks apply to the view of an adversary, without running them.
        - ``attack``: an attack on the view of an adversary.
        - ``blind``: the guesses of an adversary with an empty transcript (blind baseline).
        - ``reference``: utility without a federation, of a local model of each client and of the
          majority class. If the target is a number, its mean replaces the majority class.
    protocol : Spec
        The protocol. Of a reference, its parameters are those of the local models. A blind task has
        none.
    defense : Composed
        The defenses of the training.
    behaviours : tuple of (str, str)
        Name and behaviour of each cheating party of the training.
    threat : str
        The adversary of an attack, of its applicability, or of a blind baseline.
    attack : Spec
        The attack.
    """

    federation_config: FederationConfig
    stage: Stage
    protocol: Spec = _UNUSED
    defense: Composed = Composed()
    behaviours: tuple[tuple[str, str], ...] = ()
    threat: str = ""
    attack: Spec = _UNUSED

    @classmethod
    def for_training(
        cls,
        config: FederationConfig,
        protocol: Spec,
        defense: Composed,
        behaviours: tuple[tuple[str, str], ...] = (),
    ) -> Task:
        """Return the task of a training.

        Parameters
        ----------
        config : FederationConfig
            The federation.
        protocol : Spec
            Protocol with its parameters.
        defense : Composed
            Defenses with their parameters.
        behaviours : tuple of (str, str)
            Name and behaviour of each party that cheats.

        Returns
        -------
        Task
            Its stage is ``cheated`` if any party cheats.
        """
        stage: Stage = "cheated" if behaviours else "train"
        return cls(config, stage, protocol, defense, behaviours)

    def under(self, threat: str, attack: Spec | None = None) -> Task:
        """Return the task of an attack on this training.

        Parameters
        ----------
        threat : str
            The threat.
        attack : Spec, optional
            Attack with its parameters. By default, the task determines which attacks apply.

        Returns
        -------
        Task
            A task of the same federation, protocol and defenses.
        """
        if attack is None:
            return replace(self, stage="adversary", threat=threat, attack=_UNUSED)
        return replace(self, stage="attack", threat=threat, attack=attack)

    @property
    def is_training(self) -> bool:
        """Whether the task trains a model."""
        return self.stage in ("train", "cheated")

    @property
    def reads_view(self) -> bool:
        """Whether the task needs the view of an adversary of a training."""
        return self.stage in ("adversary", "attack")

    @property
    def training(self) -> Task:
        """The training of an attack."""
        return Task.for_training(
            self.federation_config, self.protocol, self.defense, self.behaviours
        )

    @property
    def applicability(self) -> Task:
        """The task that lists which attacks apply to the view of an attack."""
        return self.under(self.threat)

    @property
    def blind(self) -> Task:
        """The blind baseline of an attack."""
        return Task(self.federation_config, "blind", threat=self.threat)

    def describe(self) -> dict[str, Any]:
        """Return the settings that identify the task, as plain JSON types."""
        s = self.federation_config
        described: dict[str, Any] = {"stage": self.stage, "data": s.data.name}
        described |= {"partition": s.partition_text, "seed": s.seed}
        if self.protocol.name:
            described["protocol"] = canonical(self.protocol)
        if self.is_training or self.reads_view:
            described["defense"] = "+".join(map(canonical, self.defense.parts)) or "none"
        if self.behaviours:
            described["cheats"] = ":".join(map(" ".join, self.behaviours))
        if self.threat:
            described["threat"] = self.threat
        if self.attack.name:
            described["attack"] = canonical(self.attack)
        return described

    @property
    def label(self) -> str:
        """Short text for progress lines and errors."""
        return " ".join(str(v) for k, v in self.describe().items() if k != "stage" and v != "")

    def key(self, provenance: Provenance) -> str:
        """Return the hash under which the result is stored.

        Parameters
        ----------
        provenance : Provenance
            Versions, and digests of the tables.

        Returns
        -------
        str
            24 hexadecimal digits.
        """
        digest = provenance.digests[self.federation_config.data]
        spread = {"roles": self.federation_config.roles, "layout": self.federation_config.layout}
        stamp = {"digest": digest, **spread, **provenance.stamp}
        text = json.dumps({**self.describe(), **stamp}, sort_keys=True)
        return hashlib.sha256(text.encode()).hexdigest()[:24]


def identity_columns(task: Task) -> dict[str, Any]:
    """Return the columns of ``rows.csv`` that identify a task. All rows of the task share them.

    Parameters
    ----------
    task : Task
        The task.

    Returns
    -------
    dict of str to object
        Values by the name of the column. Columns that do not apply to the stage are missing.
    """
    s = task.federation_config
    columns = {"dataset": s.data.name, "partition": s.partition_text, "seed": s.seed}
    columns["stage"] = task.stage
    if task.stage == "reference":
        # The column `protocol` of its rows names the baseline.
        columns |= {"protocol_params": str(task.protocol), "defense": "none"}
    elif task.protocol.name:
        columns |= {"protocol": task.protocol.name, "protocol_params": task.protocol.inline}
        columns |= {"defense": task.defense.name, "defense_params": task.defense.inline}
    if task.stage == "cheated":
        columns["threat"] = "+".join(map(":".join, task.behaviours))
    if task.threat:
        threat = Threat.parse(task.threat)
        columns |= {"threat": task.threat, "adversary": threat.adversary, "access": threat.access}
    if task.stage == "blind":
        columns["attack"] = "blind"
    if task.attack.name:
        columns |= {"attack": task.attack.name, "attack_params": task.attack.inline}
    return columns


@dataclass(frozen=True)
class TrainingGroup:
    """One training with the attacks on it. It is trained once and attacked many times.

    Attributes
    ----------
    train : Task
        The training.
    attacks : tuple of Task
        Tasks of the stages ``adversary`` and ``attack``.
    """

    train: Task
    attacks: tuple[Task, ...]


@dataclass(frozen=True)
class Plan:
    """All tasks of a suite.

    Attributes
    ----------
    blind : tuple of Task
        Blind guesses, one for each federation and threat.
    references : tuple of Task
        Baselines, one for each federation and protocol.
    groups : tuple of TrainingGroup
        Trainings, each with its attacks.
    """

    blind: tuple[Task, ...]
    references: tuple[Task, ...]
    groups: tuple[TrainingGroup, ...]

    def tasks(self) -> Iterator[Task]:
        """Yield all tasks.

        Yields
        ------
        Task
            Tasks in the order of their rows in ``rows.csv``.
        """
        yield from self.references
        for group in self.groups:
            yield group.train
            yield from group.attacks
        yield from self.blind

    @cached_property
    def federation_configs(self) -> tuple[FederationConfig, ...]:
        """Distinct federations of all tasks."""
        return tuple(dict.fromkeys(task.federation_config for task in self.tasks()))


def build_plan(suite: Suite) -> Plan:
    """Expand the grids of a suite into tasks, each once.

    Threats with roles that a protocol lacks are skipped for this protocol, unless this would leave
    no threat. Trainings without a cheating party are always included, because their utility is
    reported for every defense.

    Parameters
    ----------
    suite : Suite
        The suite.

    Returns
    -------
    Plan
        All tasks.
    """
    # Dictionaries without values are ordered sets: grids may contain the same task.
    attacks: dict[Task, dict[Task, None]] = {}
    blind: dict[Task, None] = {}
    references: dict[Task, None] = {}
    for grid in suite.grids:
        every_attack = grid.every_attack
        axes = (grid.data, grid.partitions, grid.clients, grid.protocols, suite.seeds)
        for data, partition, clients, protocol, seed in product(*axes):
            instance: Protocol = register.make("protocol", protocol)
            config = FederationConfig.of(data, partition, clients, seed, instance)
            references[Task(config, "reference", protocol)] = None
            threats = [t for t in grid.threats if threat_fits(t, protocol)] or grid.threats
            for threat in threats:
                blind[Task(config, "blind", threat=threat)] = None
            for defense in grid.defenses:
                attacks.setdefault(Task.for_training(config, protocol, defense), {})
                trains = {t: Task.for_training(config, protocol, defense, cheats(t, config))
                          for t in threats}  # fmt: skip
                for threat, train in trains.items():
                    attacks.setdefault(train, {})[train.under(threat)] = None
                for (threat, train), attack in product(trains.items(), every_attack):
                    attacks[train][train.under(threat, attack)] = None
    groups = tuple(TrainingGroup(train, tuple(tasks)) for train, tasks in attacks.items())
    return Plan(tuple(blind), tuple(references), groups)


def cheats(threat: str, config: FederationConfig) -> tuple[tuple[str, str], ...]:
    """Return the parties that cheat under a threat (`Threat.behaviours`).

    Parameters
    ----------
    threat : str
        The threat.
    config : FederationConfig
        The federation with the roles of its parties.

    Returns
    -------
    tuple of (str, str)
        Name and behaviour of each party that cheats.
    """
    return tuple(Threat.parse(threat).behaviours(dict(config.roles)).items())


def canonical(spec: Spec) -> str:
    """Write a spec with sorted parameters, so that their order does not change a key.

    Parameters
    ----------
    spec : Spec
        Name and parameters.

    Returns
    -------
    str
        Text that `fedtrees.core.specs.parse_grid` reads.
    """
    return str(Spec(spec.name, dict(sorted(spec.params.items()))))


#: Former name, for one release. `fedtrees.report.Setting` is another class.
Setting = FederationConfig


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
    def stamp(self) -> Mapping[str, Any]:
        """Versions, digest of the source, and digests of plug-ins, as plain JSON types."""
        return _stamp(self.plugins)


@cache
def _stamp(plugins: tuple[str, ...]) -> Mapping[str, Any]:
    """Return what a result depends on besides its table: the code, versions and plug-ins."""
    return {
        "fedtrees": __version__,
        "code": code_digest(),
        "python": platform.python_version(),
        "libraries": {name: version(name) for name in _LIBRARIES},
        "plugins": sorted(plugins),
    }

"""Run a suite in a run folder: check the suite, compute the missing tasks, write the results.

A `BenchSession` expands its suite into a plan (`plan`), checks every training before the first one
starts, and hands the unfinished tasks to the processes of `executor`, which compute them with a
`Runner`. Afterwards it writes ``rows.csv`` from the cells, and ``disclosure.json`` from one short
training per protocol and defense. The functions at the end find and reopen run folders.
"""

from __future__ import annotations

import json
import os
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from itertools import count
from pathlib import Path
from typing import Any

from fedtrees.blind_baselines.matching import MOST_COLUMNS
from fedtrees.core.composition import Composition
from fedtrees.core.errors import DataError, StoreError, UsageError, many
from fedtrees.core.files import parse_json, read_listed, write_listed
from fedtrees.core.limits import TimeLimit
from fedtrees.core.local_data import rows_of
from fedtrees.core.reasons import Unfit
from fedtrees.core.registry import load_plugin, register
from fedtrees.core.specs import Spec
from fedtrees.core.threat import Threat
from fedtrees.data.downloads import sha256
from fedtrees.data.partition import splits_columns
from fedtrees.experiments.environment import environment
from fedtrees.experiments.evaluate import NOISE, parts_of
from fedtrees.experiments.executor import Engine, run_jobs
from fedtrees.experiments.explain import disclosures, preview
from fedtrees.experiments.federation import Federation, federation_of, load_dataset
from fedtrees.experiments.plan import Plan, Provenance, Task, TrainingGroup, build_plan
from fedtrees.experiments.runner import Job, Runner
from fedtrees.experiments.store import COPY, Store
from fedtrees.experiments.suite import Suite, needs_complete_rows, threat_fits
from fedtrees.protocols.base import Protocol
from fedtrees.protocols.compatibility import KnownFacts, check_fit
from fedtrees.protocols.training import Training

#: Number of non-members (test rows) at which a false positive rate of 1% is one row.
NON_MEMBERS = 100
#: A note is printed if a client has fewer training rows.
FEW_ROWS = 10


@dataclass
class BenchSession:
    """Run a suite in a run folder.

    The constructor loads the plug-ins and checks the suite, so that mistakes are reported before
    the first training.

    Attributes
    ----------
    suite : Suite
        The suite.
    folder : Path
        The run folder.
    workers : int
        Number of processes. With 1 and no memory limit, the jobs run in the calling process.
    data_dir : str or None
        Folder of the downloaded tables. None: the default folder.
    plugins : tuple of str
        Paths of plug-in files.
    memory : float
        Limit of the data segment of a worker process in GiB (`resource.RLIMIT_DATA`), 0 for no
        limit.
    plan : Plan
        All tasks of the suite.
    runner : Runner
        Computes the tasks of the plan.
    notes : tuple of str
        Sentences for the user: how columns of the user's tables were interpreted, which tables and
        clients are too small for some metrics, and which attacks are not run on which data.
    """

    suite: Suite
    folder: Path
    workers: int = 1
    data_dir: str | None = None
    plugins: tuple[str, ...] = ()
    memory: float = 0.0
    plan: Plan = field(init=False)
    runner: Runner = field(init=False)
    notes: tuple[str, ...] = field(init=False)

    def __post_init__(self) -> None:
        digests = tuple(load_plugin(p) for p in self.plugins)
        # Cheap checks come first: expanding a suite with a typing error can take minutes.
        check_names(self.suite)
        check_sizes(self.suite, self.data_dir)
        self.plan = build_plan(self.suite)
        refs = {s.data: load_dataset(s.data, self.data_dir) for s in self.plan.federation_configs}
        self.notes = tuple(note for r, d in refs.items() if r.csv for note in d.notes)
        check_trainings(self.plan, self.data_dir, self.suite.time_limit)
        self.notes += tuple(describe_small_tables(self.plan, self.data_dir))
        self.notes += tuple(describe_attack_limits(self.plan, self.data_dir))
        provenance = Provenance({ref: d.digest for ref, d in refs.items()}, digests)
        limits_of_cells = (self.suite.time_limit, self.memory)
        options = (self.data_dir, self.plugins, *limits_of_cells, register.imports.unprotected)
        self.runner = Runner(self.folder, provenance, *options)

    @property
    def store(self) -> Store:
        """Store of the run folder."""
        return Store(self.folder)

    def open(self, resume: bool) -> None:
        """Create the run folder, or reopen it if `resume` is true.

        Raises `StoreError` if the folder contains a run and `resume` is false, or if the run was
        written by another version of fedtrees.
        """
        if self.store.exists():
            if not resume:
                raise StoreError(
                    f"{self.folder} already contains a run; add --resume to finish it, or "
                    "choose another --output"
                )
            self.store.check_version()
        about = {"tables": self._digest_tables(), "noise_from": NOISE}
        self.store.create(self.suite.to_toml(), environment() | about)

    def _digest_tables(self) -> list[dict[str, str]]:
        """Return the name and the sha256 of every file of the user's tables.

        Folders are omitted, because the paths of a user are private and a run may be published.
        """
        paths = dict.fromkeys(p for s in self.plan.federation_configs for p in s.data.files)
        return [{"file": Path(path).name, "sha256": sha256(Path(path))} for path in paths]

    def remaining(self) -> tuple[list[Job], ...]:
        """Return the unfinished jobs in phases (`Runner.phases`)."""
        return self.runner.phases(self.plan)

    def run(
        self,
        done: Callable[[str, str], None] = lambda status, label: None,
        first: Callable[[], None] | None = None,
        engine: Engine | None = None,
    ) -> Counter[str]:
        """Compute the missing tasks, then write ``rows.csv`` and ``disclosure.json``.

        If the run is interrupted, the finished cells remain stored and ``rows.csv`` is written from
        them.

        Parameters
        ----------
        done : callable
            Called with the status and the label of each task after it was computed.
        first : callable, optional
            Called after the leading trainings of the first protocol and seed (`Runner.phases`), if
            this call computed any of them and later phases are not empty. The rows of the finished
            cells are written before.
        engine : Engine, optional
            Where the jobs run. None: on this machine (`run_jobs`).

        Returns
        -------
        counts : Counter of str
            Number of computed tasks by status.

        Raises
        ------
        StoreError
            If the folder cannot be written, or another process removes cells from it.
        """
        counts: Counter[str] = Counter()

        def tally(status: str, label: str) -> None:
            counts[status] += 1
            done(status, label)

        phases = self.remaining()

        def ended(phase: int) -> None:
            if first is not None and phase == 1 and phases[1] and any(phases[2:]):
                self._write_rows()
                first()

        # Rows are written in `finally`, so that an interrupted run also has a table of results.
        try:
            run_jobs(self.runner, phases, self.workers, tally, ended, engine)
        finally:
            unreadable = self._write_rows()
        if unreadable:
            total = sum(1 for _ in self.plan.tasks())
            raise StoreError(
                f"{unreadable} of {total} cells of {self.folder} were changed or removed "
                "while the run went on; run again with --resume to compute them"
            )
        self._write_disclosures()
        self.store.sweep()
        return counts

    def _write_rows(self) -> int:
        """Write ``rows.csv`` from the finished cells, and return the number of missing tasks."""
        return self.store.write_rows(self.runner.results(self.plan.tasks()))

    def _write_disclosures(self) -> None:
        """Write ``disclosure.json``: which party receives which messages, and their protection.

        The list is computed from one short training per protocol and defense (`disclosures`). A
        training that fails or exceeds the time limit is omitted. Its reason is in the rows of its
        cells.
        """
        rows: list[dict[str, Any]] = []
        # Groups are visited in reverse, so that the first group of each combination remains.
        trainings = {
            (g.train.protocol, g.train.defense): g.train for g in reversed(self.plan.groups)
        }
        kinds = dict.fromkeys((g.train.protocol, g.train.defense) for g in self.plan.groups)
        for protocol, defense in kinds:
            task = trainings[protocol, defense]
            federation = federation_of(task.federation_config, self.data_dir)
            training = _train_briefly(task, federation, self.suite.time_limit)
            if training is None:
                continue
            names = {"protocol": str(protocol), "defense": str(defense)}
            rows += [names | d for d in disclosures(training.transcript, training.defense)]
        write_listed(self.folder, "disclosure.json", json.dumps(rows, indent=1).encode())


def check_names(suite: Suite) -> None:
    """Construct every protocol, defense and attack of a suite once, to detect unknown names.

    Raises `UsageError` for an unknown name or parameter. Raises `Unfit` if all compositions of
    defenses in the suite are incompatible. If only some of them are, their tasks are skipped later.
    """
    reasons = [
        check_fit(None, parts_of(d)) for grid in suite.grids for d in grid.defenses if d.parts
    ]
    if reasons and not any(reason.ok for reason in reasons):
        raise Unfit(reasons[0])
    for grid in suite.grids:
        for protocol in grid.protocols:
            register.make("protocol", protocol)
        for attack in grid.every_attack:
            register.make("attack", attack)


def check_sizes(suite: Suite, data_dir: str | None) -> None:
    """Raise `DataError` if a suite has more clients than a table has rows, and than it has columns.

    A plan contains the name and the role of every client, so that expanding a suite with a million
    clients takes minutes. This check is therefore made before. The exact check of each partition
    follows in `check_trainings`.
    """
    for grid in suite.grids:
        for ref in grid.data:
            dataset, clients = load_dataset(ref, data_dir), max(grid.clients)
            rows, columns = dataset.table.X.shape
            if clients > max(rows, columns):
                raise DataError(
                    f"{clients} clients but only {rows} rows and {columns} columns of "
                    f"{dataset.name}; use fewer clients"
                )


def describe_small_tables(todo: Plan, data_dir: str | None) -> list[str]:
    """Return notes on the user's tables and clients that are too small for some metrics.

    Tables of the catalogue are not checked. A note is returned if there are fewer than
    `NON_MEMBERS` test rows, if a class has no test row, or if the smallest client has fewer
    than `FEW_ROWS` training rows.
    """
    # A dictionary without values: the settings of several seeds give the same note once.
    notes: dict[str, None] = {}
    for setting in (s for s in todo.federation_configs if s.data.csv):
        federation = federation_of(setting, data_dir)
        name, test = federation.dataset.name, federation.test
        if len(test) < NON_MEMBERS:
            notes[
                f"{name}: {many(len(test), 'test row')}; a false positive rate of 1% needs "
                f"{NON_MEMBERS} of them, so that the share of members that an "
                "attack recognises and the quality of the model are imprecise"
            ] = None
        classes = federation.schema.classes
        absent_classes = [c for k, c in enumerate(classes) if not (test.y == k).any()]
        if absent_classes:
            notes[f"{name}: no test row has the class {absent_classes[0]!r}; AUC is undefined"] = (
                None
            )
        sizes = {client: len(data) for client, data in federation.local_data.items()}
        smallest = min(sizes, key=sizes.__getitem__)
        if sizes[smallest] < FEW_ROWS:
            notes[
                f"{name}: {smallest} has {many(sizes[smallest], 'training row')}; with fewer than "
                f"{FEW_ROWS}, one row decides most scores: give more rows or fewer clients"
            ] = None
    return list(notes)


def check_trainings(todo: Plan, data_dir: str | None, time_limit: float = 0.0) -> None:
    """Build every federation and resolve every threat once, before the first training.

    Undefended settings with a cheating party are trained for two rounds, because only a training
    shows whether a party of the federation can execute the behaviour.

    Parameters
    ----------
    todo : Plan
        The plan.
    data_dir : str or None
        Folder of the downloaded tables.
    time_limit : float
        Seconds that one of these short trainings may take, 0 for no limit.

    Raises
    ------
    UsageError, DataError
        If there are more clients than rows, the partition is unknown, a threat leaves no victim,
        the table has more than `MOST_COLUMNS` columns, the protocol does not fit the target, or no
        party of the federation can execute the behaviour of a threat.
    """
    for group in todo.groups:
        train = group.train
        schema = federation_of(train.federation_config, data_dir).schema
        protocol: Protocol = register.make("protocol", train.protocol)
        protocol.check(schema)
        protocol.check_parties(train.federation_config.clients)
        roles = dict(train.federation_config.roles)
        _check_threats(group, roles)
        if train.behaviours and not train.defense.parts:
            _train_briefly(train, federation_of(train.federation_config, data_dir), time_limit)
        parts = parts_of(train.defense)
        if check_fit(protocol, parts).ok:
            Composition(tuple(parts)).check(roles, protocol.parameters)
    for task in todo.blind:
        federation = federation_of(task.federation_config, data_dir)
        width = len(federation.schema.features)
        if width > MOST_COLUMNS:
            raise DataError(
                f"{federation.dataset.name}: {width} columns; rows of more than {MOST_COLUMNS} "
                "cannot be scored: leave some out (--drop)"
            )
        roles = dict(task.federation_config.roles)
        principals = Threat.parse(task.threat, roles).principals(roles)
        federation.case(roles, principals, task.federation_config.seed, task.threat)


def describe_attack_limits(todo: Plan, data_dir: str | None) -> Iterator[str]:
    """Yield a note for every attack that is not run on a table, with the reason.

    For example, some attacks have a largest number of rows. Each attack and table is named once.
    """
    reported = set()
    for group in todo.groups:
        setting = group.train.federation_config
        rows = rows_of(federation_of(setting, data_dir).local_data)
        for name in sorted({c.attack.name for c in group.attacks if c.stage == "attack"}):
            reason = check_fit(attack=Spec(name), facts=KnownFacts(rows=rows))
            if not reason.ok and (setting.data, name) not in reported:
                reported.add((setting.data, name))
                yield f"{name} is not run on {setting.data.name}: {reason}"


def _check_threats(group: TrainingGroup, roles: Mapping[str, str]) -> None:
    """Raise `UsageError` for roles that the federation lacks, and for unknown behaviours.

    A protocol may have a role only if there are two or more parties. Threats with roles that the
    protocol never has are ignored here (`threat_fits`).
    """
    count, protocol = group.train.federation_config.clients, group.train.protocol
    for task in group.attacks:
        layout = register.make("protocol", protocol).layout
        if splits_columns(layout) and needs_complete_rows(Threat.parse(task.threat)):
            raise UsageError(
                f"threat {task.threat!r}: the parties of {protocol.name!r} have different columns "
                "of the same rows, and this threat needs victims with all columns; choose a "
                "horizontal protocol, or a threat with entries="
            )
        if threat_fits(task.threat, protocol):
            threat = Threat.parse(task.threat)
            absent = {*threat.roles} - {*roles.values()}
            if not absent:
                for behaviour in threat.behaviours(roles).values():
                    register.get("behaviour", behaviour)
            else:
                raise UsageError(
                    f"threat {task.threat!r}: among {count} {'party' if count == 1 else 'parties'} "
                    f"of {protocol.name!r} no party has the role {', '.join(sorted(absent))}; give "
                    "--clients 2 or more (the number of all parties with data)"
                )


def _train_briefly(task: Task, federation: Federation, time_limit: float) -> Training | None:
    """Return a training of two trees or rounds, None if it fails or exceeds the time limit.

    Raises `Unfit` if no party of the federation has the role that a behaviour requires.
    """
    try:
        return preview(task, federation, time_limit)
    except Unfit as err:
        if err.reason.code == "behaviour-unfit":
            raise
    except (Exception, TimeLimit):  # the tasks of the full training report the error
        pass
    return None


def default_workers() -> int:
    """Return the number of cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def fresh_folder(root: Path, suite: str) -> Path:
    """Return the first folder that does not exist: ``runs/quick``, ``runs/quick-2``, ..."""
    names = (f"-{n}" if n > 1 else "" for n in count(1))
    return next(path for name in names if not (path := root / f"{suite}{name}").exists())


def read_suite_of_run(folder: Path) -> Suite:
    """Return the suite of an existing run.

    If ``suite.toml`` is missing or was changed, it is restored from the copy in
    ``environment.json``.

    Raises `UsageError` if the folder contains no run, or if its suite is invalid. Raises
    `StoreError` if ``suite.toml`` cannot be read, or if it was changed and the copy is missing or
    was changed, too.
    """
    path = folder / "suite.toml"
    text: bytes | None
    try:
        text = read_listed(folder, path.name)
    except FileNotFoundError:
        text = _read_suite_copy(folder)
        if text is None:
            raise UsageError(f"{folder} contains no run to resume (no suite.toml)") from None
        write_listed(folder, path.name, text)
    except StoreError:
        text = _read_suite_copy(folder)
        if text is None:
            raise
        write_listed(folder, path.name, text)
    except OSError as err:
        raise StoreError(f"cannot read {path}: {err}; give permission, or begin a new run") from err
    try:
        return Suite.parse(text.decode(), str(path))
    except UnicodeDecodeError as err:
        raise StoreError(f"cannot read {path}: {err}; put it back, or begin a new run") from err


def _read_suite_copy(folder: Path) -> bytes | None:
    """Return the copy of the suite in ``environment.json``, None if it is missing or damaged."""
    try:
        described = parse_json(read_listed(folder, "environment.json"), "environment.json")
    except (OSError, StoreError):
        return None
    copy = described.get(COPY) if isinstance(described, dict) else None
    return copy.encode() if isinstance(copy, str) else None

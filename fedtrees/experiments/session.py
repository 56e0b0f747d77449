"""A bench from suite to report: check everything first, run what is missing, write it down."""

from __future__ import annotations

import json
import os
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from itertools import count
from pathlib import Path
from typing import Any

from fedtrees.core.composition import Composition
from fedtrees.core.errors import DataError, StoreError, UsageError, many
from fedtrees.core.files import parse_json, read_listed, write_listed
from fedtrees.core.limits import TimeLimit, limited_if_possible
from fedtrees.core.local_data import rows_of
from fedtrees.core.reasons import Unfit
from fedtrees.core.registry import load_plugin, register
from fedtrees.core.specs import Spec
from fedtrees.core.threat import Threat
from fedtrees.data.downloads import sha256
from fedtrees.experiments.disclosure import briefly, disclosures
from fedtrees.experiments.environment import environment
from fedtrees.experiments.evaluate import NOISE, parts_of, run_training
from fedtrees.experiments.executor import Engine, run_jobs
from fedtrees.experiments.federation import Federation, federation_of, load_dataset
from fedtrees.experiments.plan import AttackCell, Group, Plan, Provenance, TrainCell, plan
from fedtrees.experiments.runner import Job, Runner
from fedtrees.experiments.store import COPY, Store
from fedtrees.experiments.suite import Suite, fits, needs_complete_rows
from fedtrees.guessing.matching import MOST_COLUMNS
from fedtrees.protocols.base import Protocol
from fedtrees.protocols.compatibility import Data, fit
from fedtrees.protocols.training import Training

#: Held-out rows, the non-members of membership scores, of which 1% is one row.
NON_MEMBERS = 100
#: Training rows of a client below which a note is printed.
FEW_ROWS = 10


@dataclass
class Bench:
    """One run of a suite in one folder."""

    suite: Suite
    folder: Path
    workers: int = 1  # processes; 1 runs in this one
    data_dir: str | None = None
    plugins: tuple[str, ...] = ()
    memory: float = 0.0  # GiB of data that a job may take; 0: no limit
    plan: Plan = field(init=False)
    runner: Runner = field(init=False)
    notes: tuple[str, ...] = field(init=False)  # what was inferred of tables of one's own

    def __post_init__(self) -> None:
        digests = tuple(load_plugin(p) for p in self.plugins)
        check_names(self.suite)
        check_sizes(self.suite, self.data_dir)
        self.plan = plan(self.suite)
        refs = {s.data: load_dataset(s.data, self.data_dir) for s in self.plan.settings}
        self.notes = tuple(note for r, d in refs.items() if r.csv for note in d.notes)
        check_settings(self.plan, self.data_dir, self.suite.time_limit)
        self.notes += tuple(small_sizes(self.plan, self.data_dir))
        self.notes += tuple(limits(self.plan, self.data_dir))
        provenance = Provenance({ref: d.digest for ref, d in refs.items()}, digests)
        limits_of_cells = (self.suite.time_limit, self.memory)
        options = (self.data_dir, self.plugins, *limits_of_cells, register.unprotected)
        self.runner = Runner(self.folder, provenance, *options)

    @property
    def store(self) -> Store:
        """The run folder's store."""
        return Store(self.folder)

    def open(self, resume: bool) -> None:
        """Make or reopen the run folder.

        Raises `StoreError` if it holds a run and `resume` is false, or was written by another
        version.
        """
        if self.store.exists():
            if not resume:
                raise StoreError(
                    f"{self.folder} already holds a run; add --resume to finish it, or choose "
                    "another --out"
                )
            self.store.check_version()
        about = {"tables": self._tables(), "noise_from": NOISE}
        self.store.create(self.suite.to_toml(), environment() | about)

    def _tables(self) -> list[dict[str, str]]:
        """Return name and sha256 of every CSV file: where it lies is its owner's affair."""
        paths = dict.fromkeys(p for s in self.plan.settings for p in s.data.files)
        return [{"file": Path(path).name, "sha256": sha256(Path(path))} for path in paths]

    def remaining(self) -> tuple[list[Job], ...]:
        """Return the jobs that have not finished yet, in phases."""
        return self.runner.phases(self.plan)

    def run(
        self,
        done: Callable[[str, str], None] = lambda status, label: None,
        first: Callable[[], None] | None = None,
        engine: Engine | None = None,
    ) -> Counter[str]:
        """Run the cells that are missing, and write ``rows.csv``.

        Finished cells are kept if the run is interrupted.

        Parameters
        ----------
        done : callable
            Called with the status and the label of each cell that was computed.
        first : callable, optional
            Called after the leading trainings of the first protocol and seed (`Runner.phases`) if
            more cells remain. The rows of the finished cells are written before.
        engine : Engine, optional
            Where the jobs run. None: on this machine.

        Returns
        -------
        counts : Counter of str
            Number of computed cells by status.

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

        try:
            run_jobs(self.runner, phases, self.workers, tally, ended, engine)
        finally:
            unreadable = self._write_rows()
        if unreadable:
            total = sum(1 for _ in self.plan.cells())
            raise StoreError(
                f"{unreadable} of {total} cells of {self.folder} were changed or removed "
                "while the run went on; run again with --resume to compute them"
            )
        self._write_disclosures()
        self.store.sweep()
        return counts

    def _write_rows(self) -> int:
        """Write ``rows.csv`` from the finished cells, and return how many cells are missing."""
        return self.store.write_rows(self.runner.results(self.plan.cells()))

    def _write_disclosures(self) -> None:
        """Write who sees what, from one short run per protocol and defense.

        A run that fails or exceeds the time limit is left out; the rows of its cells have the
        reason.
        """
        rows: list[dict[str, Any]] = []
        cells = {(g.train.protocol, g.train.defense): g.train for g in reversed(self.plan.groups)}
        kinds = dict.fromkeys((g.train.protocol, g.train.defense) for g in self.plan.groups)
        for protocol, defense in kinds:
            cell = cells[protocol, defense]
            federation = federation_of(cell.setting, self.data_dir)
            training = _short_run(cell, federation, self.suite.time_limit)
            if training is None:
                continue
            named = {"protocol": str(protocol), "defense": str(defense)}
            rows += [named | d for d in disclosures(training.transcript, training.defense)]
        write_listed(self.folder, "disclosure.json", json.dumps(rows, indent=1).encode())


def check_names(suite: Suite) -> None:
    """Construct everything a suite names once, so that a typo stops it before it starts.

    Parts that may not be composed as they are written are skipped, if there is any other defense.
    """
    found = [fit(None, parts_of(d)) for grid in suite.grids for d in grid.defenses if d.parts]
    if found and not any(reason.ok for reason in found):
        raise Unfit(found[0])
    for grid in suite.grids:
        for protocol in grid.protocols:
            register.make("protocol", protocol)
        for attack in grid.every_attack:
            register.make("attack", attack)


def check_sizes(suite: Suite, data_dir: str | None) -> None:
    """Raise `DataError` if a suite has more clients than a table has rows and columns.

    A plan contains name and role of every client, so that expanding a suite of a million clients
    takes minutes. The exact check of each partition follows in `check_settings`.
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


def small_sizes(todo: Plan, data_dir: str | None) -> list[str]:
    """Return notes on users' tables and clients that are too small for the metrics of a bench."""
    notes: dict[str, None] = {}
    for setting in (s for s in todo.settings if s.data.csv):
        federation = federation_of(setting, data_dir)
        name, test = federation.dataset.name, federation.test
        if len(test) < NON_MEMBERS:
            notes[
                f"{name}: {many(len(test), 'held-out row')}; one false alarm in {NON_MEMBERS} "
                f"cannot be measured on fewer than {NON_MEMBERS}, so that members_1pct and the "
                "utility of the model are coarse"
            ] = None
        classes = federation.schema.classes
        lacking = [c for k, c in enumerate(classes) if not (test.y == k).any()]
        if lacking:
            notes[f"{name}: no held-out row has the class {lacking[0]!r}; AUC is undefined"] = None
        sizes = {client: len(data) for client, data in federation.local_data.items()}
        smallest = min(sizes, key=sizes.__getitem__)
        if sizes[smallest] < FEW_ROWS:
            notes[
                f"{name}: {smallest} has {many(sizes[smallest], 'training row')}; with fewer than "
                f"{FEW_ROWS}, one row decides most scores: give more rows or fewer clients"
            ] = None
    return list(notes)


def check_settings(todo: Plan, data_dir: str | None, time_limit: float = 0.0) -> None:
    """Build every federation and resolve every threat once.

    Parameters
    ----------
    time_limit : float
        Seconds that one training may take, 0 for no limit. Settings with a dishonest party are
        trained for two rounds.

    Raises
    ------
    UsageError, DataError
        There are more clients than rows, the partition is unknown, a threat leaves no victim, there
        are more columns than rows are matched on, the base score does not suit the target, or
        nobody of the federation can behave as a threat says.
    """
    for group in todo.groups:
        train = group.train
        schema = federation_of(train.setting, data_dir).schema
        protocol: Protocol = register.make("protocol", train.protocol)
        protocol.check(schema)
        protocol.check_parties(train.setting.clients)
        roles = dict(train.setting.roles)
        _check_threats(group, roles)
        if train.behaviours and not train.defense.parts:
            _short_run(train, federation_of(train.setting, data_dir), time_limit)
        parts = parts_of(train.defense)
        if fit(protocol, parts).ok:
            Composition(tuple(parts)).check(roles, protocol.parameters)
    for cell in todo.blind:
        federation = federation_of(cell.setting, data_dir)
        width = len(federation.schema.features)
        if width > MOST_COLUMNS:
            raise DataError(
                f"{federation.dataset.name}: {width} columns; rows of more than {MOST_COLUMNS} "
                "cannot be scored: leave some out (--drop)"
            )
        roles = dict(cell.setting.roles)
        principals = Threat.parse(cell.threat, roles).principals(roles)
        federation.case(roles, principals, cell.setting.seed, cell.threat)


def limits(todo: Plan, data_dir: str | None) -> Iterator[str]:
    """Yield which attacks are not run on which data, and why, each once."""
    said = set()
    for group in todo.groups:
        setting = group.train.setting
        rows = rows_of(federation_of(setting, data_dir).local_data)
        for name in sorted({c.attack.name for c in group.attacks if isinstance(c, AttackCell)}):
            reason = fit(attack=Spec(name), data=Data(rows=rows))
            if not reason.ok and (setting.data, name) not in said:
                said.add((setting.data, name))
                yield f"{name} is not run on {setting.data.name}: {reason}"


def _check_threats(group: Group, roles: Mapping[str, str]) -> None:
    """Refuse threats of roles that the protocol has with more parties only."""
    count, protocol = group.train.setting.clients, group.train.protocol
    for cell in group.attacks:
        vertical = register.make("protocol", protocol).layout == "vertical"
        if vertical and needs_complete_rows(Threat.parse(cell.threat)):
            raise UsageError(
                f"threat {cell.threat!r}: the parties of {protocol.name!r} have different columns "
                "of the same rows, and this threat needs victims with all columns; choose a "
                "horizontal protocol, or a threat with entries="
            )
        if fits(cell.threat, protocol):
            threat = Threat.parse(cell.threat)
            absent = {*threat.roles} - {*roles.values()}
            if not absent:
                for behaviour in threat.behaviours(roles).values():
                    register.get("behaviour", behaviour)
            else:
                raise UsageError(
                    f"threat {cell.threat!r}: among {count} {'party' if count == 1 else 'parties'} "
                    f"of {protocol.name!r} nobody is {', '.join(sorted(absent))}; give --clients 2 "
                    "or more (it counts all parties that hold data)"
                )


def _short_run(cell: TrainCell, federation: Federation, time_limit: float) -> Training | None:
    """Return a training of two rounds, None if it fails or exceeds the time limit.

    Raises
    ------
    Unfit
        If no party of the federation can take the place that a behaviour is for.
    """
    try:
        with limited_if_possible(time_limit):
            return run_training(replace(cell, protocol=briefly(cell.protocol)), federation)
    except Unfit as err:
        if err.reason.code == "behaviour-unfit":
            raise
    except (Exception, TimeLimit):  # the cells of this training report it
        pass
    return None


def default_workers() -> int:
    """Return the number of cores this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def fresh_folder(root: Path, suite: str) -> Path:
    """Return a folder name that is not taken: ``runs/quick``, ``runs/quick-2``, ..."""
    names = (f"-{n}" if n > 1 else "" for n in count(1))
    return next(path for name in names if not (path := root / f"{suite}{name}").exists())


def reopen(folder: Path) -> Suite:
    """Return the suite of an existing run; one that was changed or lost is made again.

    Raises `UsageError` if there is no run, or its suite cannot be used. Raises `StoreError` if
    neither its suite nor the copy of it is what was written.
    """
    path = folder / "suite.toml"
    try:
        text = read_listed(folder, path.name)
    except FileNotFoundError:
        text = _copy_of_suite(folder)
        if text is None:
            raise UsageError(f"{folder} holds no run to resume (no suite.toml)") from None
        write_listed(folder, path.name, text)
    except StoreError:
        text = _copy_of_suite(folder)
        if text is None:
            raise
        write_listed(folder, path.name, text)
    except OSError as err:
        raise StoreError(f"cannot read {path}: {err}; give permission, or begin a new run") from err
    try:
        return Suite.parse(text.decode(), str(path))
    except UnicodeDecodeError as err:
        raise StoreError(f"cannot read {path}: {err}; put it back, or begin a new run") from err


def _copy_of_suite(folder: Path) -> bytes | None:
    """Return the suite as the run's environment has it, None where that has none, or is damaged."""
    try:
        described = parse_json(read_listed(folder, "environment.json"), "environment.json")
    except (OSError, StoreError):
        return None
    copy = described.get(COPY) if isinstance(described, dict) else None
    return copy.encode() if isinstance(copy, str) else None

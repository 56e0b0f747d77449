"""The cells of a plan as jobs, and what a process does with one; never the same cell twice."""

from __future__ import annotations

import contextlib
import time
import traceback
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from itertools import zip_longest
from pathlib import Path
from typing import Any

from fedtrees.core.errors import FedtreesError, StoreError
from fedtrees.core.limits import TimeLimit, limited
from fedtrees.core.reasons import FITS, Reason, Unfit
from fedtrees.core.registry import load_plugin, register
from fedtrees.experiments import evaluate, training_cache
from fedtrees.experiments.evaluate import Outcome, run_training
from fedtrees.experiments.federation import Federation, federation_of
from fedtrees.experiments.plan import (
    AdversaryCell,
    AttackCell,
    BlindCell,
    Cell,
    Group,
    Plan,
    Provenance,
    ReferenceCell,
    Setting,
    TrainCell,
)
from fedtrees.experiments.store import Store, typed
from fedtrees.isolation.process import AttackError
from fedtrees.protocols.training import Training

AGAIN = ("failed", "timeout")
Result = dict[str, Any]  # of a cell, as its file contains it


@dataclass(frozen=True)
class Job:
    """What one worker does in one go: an aux cell, or a group trained once.

    `step`: One cell of a group alone, the last of `cells`: its training is read, not run again.
    """

    cells: tuple[Cell, ...]
    step: bool = False
    keep: bool = False  # another step follows that needs the training
    tried: bool = False  # the cell lost its process once already

    def turned(self) -> Job:
        """Return it with its attacks in the other order."""
        attacks = [c for c in self.cells if isinstance(c, AttackCell)]
        return replace(self, cells=(*self.cells[: len(self.cells) - len(attacks)], *attacks[::-1]))

    def steps(self) -> list[Job]:
        """Return the job cell by cell, in its order."""
        head, *attacks = self.cells
        if not isinstance(head, TrainCell):
            return [Job((head,), step=True)]
        each = [(head,), *((head, attack) for attack in attacks)]
        return [Job(cells, step=True, keep=cells is not each[-1]) for cells in each]


def leading(plan: Plan) -> set[TrainCell]:
    """Return the trainings of the first protocol that a first verdict is based on.

    For every federation of the first protocol of a plan, these are the undefended training and the
    training whose defense has the most parts.
    """
    by_setting: dict[Setting, list[TrainCell]] = {}
    for group in plan.groups:
        if group.train.protocol == plan.groups[0].train.protocol:
            by_setting.setdefault(group.train.setting, []).append(group.train)
    return {
        end(trains, key=lambda t: len(t.defense.parts))
        for trains in by_setting.values()
        for end in (min, max)
    }


@dataclass(frozen=True)
class Runner:
    """Everything a worker needs to know."""

    folder: Path  # the run folder
    provenance: Provenance
    data_dir: str | None = None
    plugins: tuple[str, ...] = ()  # plugin files to load in every worker
    time_limit: float = 0.0  # seconds per cell, 0 for none
    memory: float = 0.0  # GiB that a process may take beside what it begins with, 0 for no limit
    unprotected: bool = False  # whether attacks of plug-ins run where they cannot be restricted

    @property
    def store(self) -> Store:
        """The run folder's store."""
        return Store(self.folder)

    def missing(self, cells: Iterable[Cell]) -> list[Cell]:
        """Return the cells without a result, and those that are computed again (`_again`)."""
        read = lru_cache(64)(self._stored)  # cells of one training follow each other
        return [cell for cell in cells if not self._is_finished(cell, read)]

    def _stored(self, cell: Cell) -> Result | None:
        """Return the result in the file of a cell, None if it has none."""
        return self.store.read(cell.key(self.provenance))

    def _is_finished(self, cell: Cell, read: Callable[[Cell], Result | None]) -> bool:
        result = self._stored(cell)
        if result is not None:
            return not _again(result)
        return not self._inapplicable(cell, read).ok

    def results(self, cells: Iterable[Cell]) -> Iterator[Result | None]:
        """Yield the result of each cell, or None if it is not finished.

        A cell that does not apply has no file of its own. Its result follows from the training, if
        the defense does not fit the protocol, or from the adversary cell, which states for every
        attack whether it applies to the view. The default bench has ten times as many such cells
        as trainings and attacks that run.
        """
        read = lru_cache(64)(self._stored)
        train_columns = lru_cache(8)(evaluate.train_columns)
        for cell in cells:
            result = self._stored(cell)
            if result is None:
                reason = self._inapplicable(cell, read)
                outcome = None if reason.ok else _bare(cell, reason, train_columns)
                result = None if outcome is None else typed(self._result(cell, outcome, reason))
            yield result

    def read(self, cell: Cell) -> Result | None:
        """Return the result of one cell as `results`."""
        return next(self.results([cell]))

    def _inapplicable(self, cell: Cell, read: Callable[[Cell], Result | None]) -> Reason:
        """Return why a cell does not apply, from finished cells alone; `FITS` if none says so.

        An adversary cell states which attacks apply with their default parameters. It decides
        nothing about attacks with other parameters, or about attacks that need a parameter.
        """
        if not isinstance(cell, (AttackCell, AdversaryCell)):
            return FITS
        trained = read(cell.train)
        if trained is not None and trained["status"] == "skipped":
            return _why(trained)
        if isinstance(cell, AdversaryCell) or cell.attack.params:
            return FITS
        asked = read(AdversaryCell(cell.setting, cell.train, cell.threat))
        rows = [] if asked is None else asked["rows"]
        reasons = (_why(r) for r in rows if r.get("attack") == cell.attack.name and not r["value"])
        reason = next(reasons, FITS)
        return FITS if reason.code == "needs-parameter" else reason

    def phases(self, plan: Plan) -> tuple[list[Job], ...]:
        """Return the jobs that remain, in six phases that run one after the other.

        The first four phases belong to the first seed: blind and reference cells of the first
        protocol; its leading trainings (`leading`), after which a first verdict is printed; blind
        and reference cells of the other protocols; all other trainings. The last two are blind and
        reference cells, and trainings, of the other seeds.
        """
        seeds = list(dict.fromkeys(setting.seed for setting in plan.settings))
        baselines, groups = self.jobs(plan, seeds[:1])
        lead = leading(plan)
        settings = {train.setting for train in lead}
        return (
            [job for job in baselines if job.cells[0].setting in settings],
            [job for job in groups if job.cells[0] in lead],
            [job for job in baselines if job.cells[0].setting not in settings],
            [job for job in groups if job.cells[0] not in lead],
            *self.jobs(plan, seeds[1:]),
        )

    def jobs(self, plan: Plan, seeds: Sequence[int]) -> tuple[list[Job], list[Job]]:
        """Return what remains: first the blind baseline and references, then the groups."""
        mine = [[c for c in of if c.setting.seed in seeds] for of in (plan.blind, plan.references)]
        blind, references = ([Job((c,)) for c in self.missing(cells)] for cells in mine)
        groups: dict[str, list[Job]] = {}
        for group in (g for g in plan.groups if g.train.setting.seed in seeds):
            left = self.missing([group.train, *group.attacks])
            if left:
                job = Job((group.train, *(c for c in left if c is not group.train)))
                groups.setdefault(group.train.protocol.name, []).append(job)
        # Unlike jobs side by side: what one process compiles, the other finds in the cache.
        mixed = [j for turn in zip_longest(*groups.values()) for j in turn if j is not None]
        mixed = [job.turned() if k % 2 else job for k, job in enumerate(mixed)]
        return [*blind[:1], *references, *blind[1:]], mixed

    def work(self, job: Job) -> list[tuple[str, str]]:
        """Run a job's cells and return (status, label) of each cell it computed."""
        register.unprotected = self.unprotected
        for plugin in self.plugins:
            load_plugin(plugin)
        head = job.cells[0]
        if isinstance(head, BlindCell):
            return [self._run(head, lambda f: evaluate.evaluate_blind(head, f))]
        if isinstance(head, ReferenceCell):
            return [self._run(head, lambda f: evaluate.evaluate_reference(head, f))]
        return list(self._run_group(job, Group(head, job.cells[1:])))  # type: ignore[arg-type]

    def _run_group(self, job: Job, group: Group) -> Iterator[tuple[str, str]]:
        """Train once, then attack; what is finished already is read, not computed."""
        key, folder = group.train.key(self.provenance), self.store.cells
        kept: list[Training] = []

        def train(federation: Federation) -> Outcome:
            wall, cpu = time.perf_counter(), time.process_time()
            training = run_training(group.train, federation)
            wall, cpu = time.perf_counter() - wall, time.process_time() - cpu
            kept.append(training)
            outcome = evaluate.evaluate_training(group.train, federation, training, wall, cpu)
            if group.attacks or job.keep:  # kept with what its defenses did to predictions
                training_cache.save(training, folder, key)
            return outcome

        def trained(federation: Federation) -> Training:
            if not kept:  # an interrupted run goes on
                training = None
                with contextlib.suppress(Exception):  # if it is damaged, it can be trained again
                    training = training_cache.load(group.train, federation, folder, key)
                if training is None:
                    training = run_training(group.train, federation)
                    if not training.refused:
                        training.predict(federation.test.X)  # that may be on record, too
                kept.append(training)
            return kept[0]

        if not group.attacks if job.step else self.missing([group.train]):
            yield self._run(group.train, train)
        read = lru_cache(64)(self._stored)  # adversary cells come before their attacks
        for cell in group.attacks:
            reason = self._inapplicable(cell, read)
            if reason.ok:
                yield self._run_attack(cell, read(group.train), trained)
            else:  # `results` derives it from the same finished cells
                yield reason.status, f"{cell.stage} {cell.label}"
        if not job.keep:
            training_cache.drop(folder, key)

    def again(self, job: Job) -> list[Job]:
        """Return what to run after a job lost its process: its cells one by one."""
        if job.step:
            return [replace(job, tried=True)]
        steps = job.steps()
        last = [step.cells[-1] for step in steps]
        lost = next((i for i, cell in enumerate(last) if self.read(cell) is None), None)
        return [replace(step, tried=i == lost) for i, step in enumerate(steps)]

    def give_up(self, job: Job, reason: Reason) -> tuple[str, str]:
        """Write the cell of a step as failed."""
        cell = job.cells[-1]
        if not job.keep and isinstance(job.cells[0], TrainCell):
            training_cache.drop(self.store.cells, job.cells[0].key(self.provenance))
        return self._write(cell, _bare(cell, reason), reason)

    def _run_attack(
        self,
        cell: AttackCell | AdversaryCell,
        result: dict[str, Any] | None,
        trained: Callable[[Federation], Training],
    ) -> tuple[str, str]:
        why = _why(result) if result else Reason("failed", error="it left no result")
        if not why.ok:
            why = Reason("training-failed", error=str(why))
            return self._write(cell, _bare(cell, why), why)
        if isinstance(cell, AdversaryCell):
            return self._run(cell, lambda f: evaluate.evaluate_adversary(cell, f, trained(f)))
        blind = self.store.read(BlindCell(cell.setting, cell.threat).key(self.provenance))
        seen = blind is not None and blind["status"] == "ok"

        def attack(federation: Federation) -> Outcome:
            line = evaluate.blind_baseline(blind["rows"]) if blind and seen else None
            return evaluate.evaluate_attack(cell, federation, trained(federation), line)

        return self._run(cell, attack, seen)

    def _run(
        self, cell: Cell, compute: Callable[[Federation], Outcome], blind: bool = True
    ) -> tuple[str, str]:
        """Compute one cell and write it, whatever happens; one finished meanwhile is taken."""
        with self.store.claim(cell.key(self.provenance)):
            finished = self.read(cell)
            if finished is not None and not _again(finished):
                return finished["status"], f"{cell.stage} {cell.label}"
            return self._compute(cell, compute, blind)

    def _compute(
        self, cell: Cell, compute: Callable[[Federation], Outcome], blind: bool
    ) -> tuple[str, str]:
        detail, reason, outcome = "", FITS, None
        try:
            with limited(self.time_limit):
                federation = federation_of(cell.setting, self.data_dir)
                outcome = compute(federation)
                outcome.common["pair_id"] = federation.pair_id
        except Unfit as err:
            reason = err.reason
        except TimeLimit:
            reason = Reason("timeout", seconds=self.time_limit)
        except StoreError:
            raise
        except (Exception, SystemExit) as err:
            known = isinstance(err, FedtreesError)
            text = str(err) if known else f"{type(err).__name__}: {err}"
            where = err.traceback if isinstance(err, AttackError) else ""
            detail = where if known else traceback.format_exc()
            reason = Reason("failed", error=text)
        return self._write(cell, outcome or _bare(cell, reason), reason, detail, blind)

    def _write(
        self, cell: Cell, outcome: Outcome, reason: Reason, detail: str = "", blind: bool = True
    ) -> tuple[str, str]:
        self.store.write(self._result(cell, outcome, reason, detail, blind))
        return reason.status, f"{cell.stage} {cell.label}"

    def _result(
        self, cell: Cell, outcome: Outcome, reason: Reason, detail: str = "", blind: bool = True
    ) -> Result:
        """Return the result of a cell as the store writes it.

        `blind`: Whether the blind baseline was there, or is not needed.
        """
        return {
            "id": cell.key(self.provenance),
            "cell": cell.describe(),
            "status": reason.status,
            **reason.columns(),
            "traceback": detail,
            "blind": blind,
            "common": outcome.common,
            "rows": outcome.rows,
        }


def _why(row: Mapping[str, Any]) -> Reason:
    """Return why a row, or a result, is not ok."""
    return Reason.read(row["reason_code"], row["reason_args"], row["reason"])


def _again(result: dict[str, Any]) -> bool:
    """Tell whether a result may become another when its cell is run again."""
    return result["status"] in AGAIN or not result["blind"]


def _bare(
    cell: Cell,
    reason: Reason,
    train_columns: Callable[[TrainCell], evaluate.Row] = evaluate.train_columns,
) -> Outcome:
    """Return the row of a cell that measured nothing.

    `train_columns`: `evaluate.train_columns`, or the same with a cache.
    """
    columns = {**evaluate.setting_columns(cell.setting), "stage": cell.stage}
    with contextlib.suppress(FedtreesError):  # a defense that cannot even be constructed
        if isinstance(cell, (AttackCell, AdversaryCell)):
            columns |= train_columns(cell.train) | evaluate.threat_columns(cell.threat)
        elif isinstance(cell, TrainCell):
            columns |= train_columns(cell)
        elif isinstance(cell, ReferenceCell):
            name = register.make("protocol", cell.protocol).alone
            columns |= {"protocol": name, "protocol_params": str(cell.protocol)}
        if isinstance(cell, AttackCell):
            columns |= evaluate.name_of_attack(cell.attack)
    return Outcome([{"status": reason.status, **reason.columns()}], columns)

"""Divide the tasks of a plan into jobs, and compute the tasks of a job.

A job is one training with all attacks on it, or a single blind or reference task. A `Runner` lists
the jobs that remain, in phases, and computes a job in the process that calls `Runner.work`. Every
result is written to the store as soon as it is computed. A task that does not apply is not computed
and has no file: `Runner.results` derives its result from the results of other tasks. A task is
claimed before it is computed, so that several processes in one run folder do not compute it twice.
`executor` decides in which processes the jobs run.
"""

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

from fedtrees.core.errors import FedtreesError, StoreError, describe_error
from fedtrees.core.limits import TimeLimit, limited
from fedtrees.core.reasons import FITS, Reason, Unfit
from fedtrees.core.registry import load_plugin, register
from fedtrees.experiments import evaluate, store
from fedtrees.experiments.evaluate import TaskResult, run_training
from fedtrees.experiments.federation import Federation, federation_of
from fedtrees.experiments.plan import (
    FederationConfig,
    Plan,
    Provenance,
    Task,
    TrainingGroup,
    identity_columns,
)
from fedtrees.experiments.store import Store, typed
from fedtrees.isolation.process import AttackError
from fedtrees.protocols.training import Training

#: Statuses of results that are computed again when a run is resumed.
RETRIED_STATUSES = ("failed", "timeout")
Result = dict[str, Any]  # result of one task, as the file of the task contains it


@dataclass(frozen=True)
class Job:
    """Unit of work of one process: a blind or reference task, or a training with its attacks.

    Attributes
    ----------
    tasks : tuple of Task
        A single blind or reference task, or a training task followed by adversary and attack tasks.
    step : bool
        Whether only the last of `tasks` is computed. The training is then read from the store of
        trainings, if it is there.
    keep : bool
        Whether the stored training is kept after the job, because a later step needs it.
    was_tried : bool
        Whether a process has already died while it computed the task.
    """

    tasks: tuple[Task, ...]
    step: bool = False
    keep: bool = False
    was_tried: bool = False

    def with_reversed_attacks(self) -> Job:
        """Return the job with its attacks in reverse order, after all other tasks.

        If grids differ in their threats only, the adversary tasks lie between the attacks.
        """
        attacks = [task for task in self.tasks if task.stage == "attack"]
        remaining_tasks = [task for task in self.tasks if task.stage != "attack"]
        return replace(self, tasks=(*remaining_tasks, *attacks[::-1]))

    def steps(self) -> list[Job]:
        """Return one job (step) per task, in the order of the tasks."""
        head, *attacks = self.tasks
        if not head.is_training:
            return [Job((head,), step=True)]
        groups = [(head,), *((head, attack) for attack in attacks)]
        # The training stays stored until the last step has used it.
        return [Job(tasks, step=True, keep=tasks is not groups[-1]) for tasks in groups]


def leading_trainings(plan: Plan) -> set[Task]:
    """Return the trainings of the first protocol that a first verdict is based on.

    For every federation of the first protocol of a plan, these are the undefended training and the
    training whose defense has the most parts.
    """
    by_config: dict[FederationConfig, list[Task]] = {}
    for group in plan.groups:
        if group.train.protocol == plan.groups[0].train.protocol:
            by_config.setdefault(group.train.federation_config, []).append(group.train)
    return {
        end(trains, key=lambda t: len(t.defense.parts))
        for trains in by_config.values()
        for end in (min, max)
    }


@dataclass(frozen=True)
class Runner:
    """Compute tasks and read their results.

    A runner is sent to every worker process, and contains everything that a worker needs.

    Attributes
    ----------
    folder : Path
        The run folder.
    provenance : Provenance
        Digests of the tables and plug-ins, which are part of the key of every task.
    data_dir : str or None
        Folder of the downloaded tables.
    plugins : tuple of str
        Paths of the plug-in files that every worker loads.
    time_limit : float
        Seconds per task, 0 for no limit.
    memory : float
        Limit of the data segment of a worker process in GiB (`resource.RLIMIT_DATA`), 0 for no
        limit.
    unprotected : bool
        Whether attacks of plug-ins may run on a system that cannot restrict their process.
    """

    folder: Path
    provenance: Provenance
    data_dir: str | None = None
    plugins: tuple[str, ...] = ()
    time_limit: float = 0.0
    memory: float = 0.0
    unprotected: bool = False

    @property
    def store(self) -> Store:
        """Store of the run folder."""
        return Store(self.folder)

    def missing(self, tasks: Iterable[Task]) -> list[Task]:
        """Return the tasks that have to be computed.

        These are the tasks without a result, and those whose result may change (`_may_change`).
        Tasks that do not apply need no result (`results`).
        """
        # Tasks of one training follow each other and ask for the same two results. A small cache
        # therefore saves most readings.
        if not self.store.cells.is_dir():  # nothing was computed yet
            return list(tasks)
        read = lru_cache(64)(self._read_stored)
        return [task for task in tasks if not self._is_finished(task, read)]

    def _read_stored(self, task: Task) -> Result | None:
        """Return the result in the file of a task, None if there is no valid file."""
        return self.store.read(task.key(self.provenance))

    def _is_finished(self, task: Task, read: Callable[[Task], Result | None]) -> bool:
        """Return whether a task has a final result, or is known not to apply."""
        result = self._read_stored(task)
        if result is not None:
            return not _may_change(result)
        return not self._explain_inapplicable(task, read).ok

    def results(self, tasks: Iterable[Task]) -> Iterator[Result | None]:
        """Yield the result of each task, or None if it is not finished.

        A task that does not apply has no file. Its result is derived from the training, if the
        defense does not fit the protocol, or from the adversary task, which lists for every attack
        whether it applies to the view. Files for these tasks would be a waste: the default bench
        has ten times as many of them as trainings and attacks that run.
        """
        read = lru_cache(64)(self._read_stored)
        for task in tasks:
            result = self._read_stored(task)
            if result is None:
                reason = self._explain_inapplicable(task, read)
                outcome = None if reason.ok else _make_empty_result(task, reason)
                result = (
                    None if outcome is None else typed(self._make_result(task, outcome, reason))
                )
            yield result

    def read(self, task: Task) -> Result | None:
        """Return the result of one task, None if it is not finished (`results`)."""
        return next(self.results([task]))

    def _explain_inapplicable(self, task: Task, read: Callable[[Task], Result | None]) -> Reason:
        """Return why a task does not apply, as far as the results of other tasks decide it.

        `FITS` means that the task applies or that it is undecided. An adversary task lists which
        attacks apply with their default parameters. It decides nothing about attacks with other
        parameters, or about attacks that need a parameter.

        Parameters
        ----------
        task : Task
            The task.
        read : callable
            Returns the stored result of a task, or None.
        """
        if not task.reads_view:
            return FITS
        trained = read(task.training)
        if trained is not None and trained["status"] == "skipped":
            return _read_reason(trained)
        if task.stage == "adversary" or task.attack.params:
            return FITS
        applicability = read(task.applicability)
        rows = [] if applicability is None else applicability["rows"]
        reasons = (
            _read_reason(r) for r in rows if r.get("attack") == task.attack.name and not r["value"]
        )
        reason = next(reasons, FITS)
        return FITS if reason.code == "needs-parameter" else reason

    def phases(self, plan: Plan) -> tuple[list[Job], ...]:
        """Return the jobs that remain, in six phases that run one after the other.

        The first four phases belong to the first seed:

        1. blind and reference tasks of the federations of the first protocol,
        2. its leading trainings (`leading_trainings`), after which a first verdict is printed,
        3. blind and reference tasks of the other federations,
        4. all other trainings.

        The last two phases contain the blind and reference tasks, and then the trainings, of all
        other seeds.
        """
        seeds = list(dict.fromkeys(config.seed for config in plan.federation_configs))
        baselines, groups = self.jobs(plan, seeds[:1])
        lead = leading_trainings(plan)
        configs = {train.federation_config for train in lead}
        return (
            [job for job in baselines if job.tasks[0].federation_config in configs],
            [job for job in groups if job.tasks[0] in lead],
            [job for job in baselines if job.tasks[0].federation_config not in configs],
            [job for job in groups if job.tasks[0] not in lead],
            *self.jobs(plan, seeds[1:]),
        )

    def jobs(self, plan: Plan, seeds: Sequence[int]) -> tuple[list[Job], list[Job]]:
        """Return the remaining jobs of the given seeds.

        Parameters
        ----------
        plan : Plan
            The plan.
        seeds : sequence of int
            The seeds.

        Returns
        -------
        baselines, trainings : list of Job
            Blind and reference tasks, and the trainings with their attacks.
        """
        tasks_of_seeds = [
            [t for t in of if t.federation_config.seed in seeds]
            for of in (plan.blind, plan.references)
        ]
        blind, references = ([Job((c,)) for c in self.missing(tasks)] for tasks in tasks_of_seeds)
        groups: dict[str, list[Job]] = {}
        for group in (g for g in plan.groups if g.train.federation_config.seed in seeds):
            missing = self.missing([group.train, *group.attacks])
            if missing:
                job = Job((group.train, *(c for c in missing if c is not group.train)))
                groups.setdefault(group.train.protocol.name, []).append(job)
        # Alternate between protocols, and between the two orders of the attacks. Processes that run
        # at the same time then compile different functions, and load the remaining ones from the
        # cache of compiled functions.
        mixed = [j for turn in zip_longest(*groups.values()) for j in turn if j is not None]
        mixed = [job.with_reversed_attacks() if k % 2 else job for k, job in enumerate(mixed)]
        return [*blind[:1], *references, *blind[1:]], mixed

    def work(self, job: Job) -> list[tuple[str, str]]:
        """Compute the tasks of a job in this process.

        Returns
        -------
        results : list of (str, str)
            Status and label of each task that was computed.
        """
        register.imports.unprotected = self.unprotected
        for plugin in self.plugins:
            load_plugin(plugin)
        head = job.tasks[0]
        if head.stage == "blind":
            return [self._run(head, lambda f: evaluate.evaluate_blind(head, f))]
        if head.stage == "reference":
            return [self._run(head, lambda f: evaluate.evaluate_reference(head, f))]
        return list(self._run_group(job, TrainingGroup(head, job.tasks[1:])))

    def _run_group(self, job: Job, group: TrainingGroup) -> Iterator[tuple[str, str]]:
        """Train once, then run the attacks, and yield status and label of each computed task.

        A training that an earlier process finished and stored is loaded instead of repeated.
        """
        key, folder = group.train.key(self.provenance), self.store.cells
        trainings: list[Training] = []  # empty, or the training in memory

        def train(federation: Federation) -> TaskResult:
            wall, cpu = time.perf_counter(), time.process_time()
            training = run_training(group.train, federation)
            wall, cpu = time.perf_counter() - wall, time.process_time() - cpu
            trainings.append(training)
            outcome = evaluate.evaluate_training(group.train, federation, training, wall, cpu)
            # The training is stored after its evaluation, because the transcript then also records
            # the changes that defenses made to the predictions.
            if group.attacks or job.keep:
                store.save_training(training, folder, key)
            return outcome

        def trained(federation: Federation) -> Training:
            if not trainings:  # an earlier process computed the training task
                training = None
                with contextlib.suppress(Exception):  # a damaged file is replaced by a new training
                    training = store.load_training(group.train, federation, folder, key)
                if training is None:
                    training = run_training(group.train, federation)
                    # The transcript must contain the same predictions as after an evaluation.
                    if not training.refused:
                        training.predict(federation.test.X)
                trainings.append(training)
            return trainings[0]

        # A step computes only its last task: the training, if it has no attack.
        trains_now = not group.attacks if job.step else bool(self.missing([group.train]))
        if trains_now:
            yield self._run(group.train, train)
        # The adversary task of a threat precedes its attacks, so that its result is stored when
        # they are reached.
        read = lru_cache(64)(self._read_stored)
        for task in group.attacks:
            reason = self._explain_inapplicable(task, read)
            if reason.ok:
                yield self._run_attack(task, read(group.train), trained)
            else:  # nothing is written: `results` derives the same reason from the same tasks
                yield reason.status, f"{task.stage} {task.label}"
        if not job.keep:
            store.drop_training(folder, key)

    def retry_steps(self, job: Job) -> list[Job]:
        """Return the jobs to run after the process of a job died: one step per task.

        The first task without a result is the one during which the process died. It is marked as
        `was_tried`, so that it is given up if its process dies again.
        """
        if job.step:
            return [replace(job, was_tried=True)]
        steps = job.steps()
        targets = [step.tasks[-1] for step in steps]
        lost = next((i for i, task in enumerate(targets) if self.read(task) is None), None)
        return [replace(step, was_tried=i == lost) for i, step in enumerate(steps)]

    def write_failure(self, job: Job, reason: Reason) -> tuple[str, str]:
        """Write a result without measurements for the task of a step, with the given reason.

        The result is the status and the label of the task.
        """
        task = job.tasks[-1]
        if not job.keep and job.tasks[0].is_training:
            store.drop_training(self.store.cells, job.tasks[0].key(self.provenance))
        return self._write(task, _make_empty_result(task, reason), reason)

    def _run_attack(
        self,
        task: Task,
        result: dict[str, Any] | None,
        trained: Callable[[Federation], Training],
    ) -> tuple[str, str]:
        """Compute one adversary or attack task of a training.

        Parameters
        ----------
        task : Task
            The task.
        result : dict or None
            Result of the training task. If the training failed, so does this task.
        trained : callable
            Returns the training, given the federation.
        """
        why = _read_reason(result) if result else Reason("failed", error="it left no result")
        if not why.ok:
            why = Reason("training-failed", error=str(why))
            return self._write(task, _make_empty_result(task, why), why)
        if task.stage == "adversary":
            return self._run(task, lambda f: evaluate.evaluate_adversary(task, f, trained(f)))
        blind = self._read_stored(task.blind)
        blind_finished = blind is not None and blind["status"] == "ok"

        def attack(federation: Federation) -> TaskResult:
            baseline = evaluate.blind_baseline(blind["rows"]) if blind and blind_finished else None
            return evaluate.evaluate_attack(task, federation, trained(federation), baseline)

        return self._run(task, attack, blind_finished)

    def _run(
        self, task: Task, compute: Callable[[Federation], TaskResult], blind: bool = True
    ) -> tuple[str, str]:
        """Compute one task and write its result, unless another process finished it meanwhile.

        Parameters
        ----------
        task : Task
            The task.
        compute : callable
            Computes the task, given the federation.
        blind : bool
            Whether the blind baseline of the task exists or is not needed.
        """
        with self.store.claim(task.key(self.provenance)):
            finished = self.read(task)
            if finished is not None and not _may_change(finished):
                return finished["status"], f"{task.stage} {task.label}"
            return self._compute(task, compute, blind)

    def _compute(
        self, task: Task, compute: Callable[[Federation], TaskResult], blind: bool
    ) -> tuple[str, str]:
        """Compute one task within the time limit and write its result, also if it fails."""
        detail, reason, outcome = "", FITS, None
        try:
            with limited(self.time_limit):
                federation = federation_of(task.federation_config, self.data_dir)
                outcome = compute(federation)
                outcome.common["pair_id"] = federation.pair_id
        except Unfit as err:
            reason = err.reason
        except TimeLimit:
            reason = Reason("timeout", seconds=self.time_limit)
        except StoreError:  # nothing can be written: the run must stop
            raise
        except (Exception, SystemExit) as err:
            explained = isinstance(err, FedtreesError)
            # The traceback of an attack comes from the process of attacks.
            attack_traceback = err.traceback if isinstance(err, AttackError) else ""
            detail = attack_traceback if explained else traceback.format_exc()
            reason = Reason("failed", error=describe_error(err))
        return self._write(task, outcome or _make_empty_result(task, reason), reason, detail, blind)

    def _write(
        self, task: Task, outcome: TaskResult, reason: Reason, detail: str = "", blind: bool = True
    ) -> tuple[str, str]:
        """Write the result of a task, and return its status and label."""
        self.store.write(self._make_result(task, outcome, reason, detail, blind))
        return reason.status, f"{task.stage} {task.label}"

    def _make_result(
        self, task: Task, outcome: TaskResult, reason: Reason, detail: str = "", blind: bool = True
    ) -> Result:
        """Return the result of a task as the store writes it.

        Parameters
        ----------
        task : Task
            The task.
        outcome : TaskResult
            Its rows, and the columns that they share.
        reason : Reason
            Why the task failed or was skipped, `FITS` if it was computed.
        detail : str
            Traceback of an error, or "".
        blind : bool
            Whether the blind baseline exists or is not needed. If not, the task is computed again
            when the run is resumed (`_may_change`).
        """
        return {
            "id": task.key(self.provenance),
            "cell": task.describe(),
            "status": reason.status,
            **reason.columns(),
            "traceback": detail,
            "blind": blind,
            "common": outcome.common,
            "rows": outcome.rows,
        }


def _read_reason(row: Mapping[str, Any]) -> Reason:
    """Return the reason in a row or in a result, `FITS` if it has none."""
    return Reason.read(row["reason_code"], row["reason_args"], row["reason"])


def _may_change(result: dict[str, Any]) -> bool:
    """Return whether a result may change if its task is computed again.

    This is the case if the task failed, exceeded the time limit, or had no blind baseline.
    """
    return result["status"] in RETRIED_STATUSES or not result["blind"]


def _make_empty_result(task: Task, reason: Reason) -> TaskResult:
    """Return the result of a task without measurements: one row with the reason."""
    columns = identity_columns(task)
    # A defense that cannot be constructed claims nothing.
    with contextlib.suppress(FedtreesError):
        columns = evaluate.task_columns(task)
    if task.stage == "reference":
        columns["protocol"] = register.make("protocol", task.protocol).info.local_reference
    return TaskResult([{"status": reason.status, **reason.columns()}], columns)

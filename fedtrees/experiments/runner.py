"""Divide the cells of a plan into jobs, and compute the cells of a job.

A job is one training with all attacks on it, or a single blind or reference cell. A `Runner` lists
the jobs that remain, in phases, and computes a job in the process that calls `Runner.work`. Every
result is written to the store as soon as it is computed. A cell is claimed before it is computed,
so that several processes in one run folder do not compute it twice. `executor` decides in which
processes the jobs run.
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

AGAIN = ("failed", "timeout")  # statuses of results that are computed again when a run is resumed
Result = dict[str, Any]  # result of one cell, as the file of the cell contains it


@dataclass(frozen=True)
class Job:
    """Unit of work of one process: a blind or reference cell, or a training with its attacks.

    Attributes
    ----------
    cells : tuple of Cell
        A single blind or reference cell, or a training cell followed by adversary and attack cells.
    step : bool
        Whether only the last of `cells` is computed. The training is then read from the store of
        trainings, if it is there.
    keep : bool
        Whether the stored training is kept after the job, because a later step needs it.
    tried : bool
        Whether a process has already died while it computed the cell.
    """

    cells: tuple[Cell, ...]
    step: bool = False
    keep: bool = False
    tried: bool = False

    def turned(self) -> Job:
        """Return the job with its attacks in reverse order, after all other cells.

        If grids differ in their threats only, cells of adversaries stand between the attacks.
        """
        attacks = [c for c in self.cells if isinstance(c, AttackCell)]
        further_cells = [c for c in self.cells if not isinstance(c, AttackCell)]
        return replace(self, cells=(*further_cells, *attacks[::-1]))

    def steps(self) -> list[Job]:
        """Return one job (step) per cell, in the order of the cells."""
        head, *attacks = self.cells
        if not isinstance(head, TrainCell):
            return [Job((head,), step=True)]
        groups = [(head,), *((head, attack) for attack in attacks)]
        # The training stays stored until the last step has used it.
        return [Job(cells, step=True, keep=cells is not groups[-1]) for cells in groups]


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
    """Compute cells and read their results.

    A runner is sent to every worker process, and contains everything that a worker needs.

    Attributes
    ----------
    folder : Path
        The run folder.
    provenance : Provenance
        Digests of the tables and plug-ins, which are part of the key of every cell.
    data_dir : str or None
        Folder of the downloaded tables.
    plugins : tuple of str
        Paths of the plug-in files that every worker loads.
    time_limit : float
        Seconds per cell, 0 for no limit.
    memory : float
        Limit of the data segment of a worker process in GiB (`RLIMIT_DATA`), 0 for no limit.
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

    def missing(self, cells: Iterable[Cell]) -> list[Cell]:
        """Return the cells that have to be computed.

        These are the cells without a result, and those whose result may change (`_may_change`).
        Cells that do not apply need no result (`results`).
        """
        # Cells of one training follow each other and ask for the same two results. A small cache
        # therefore saves most readings.
        read = lru_cache(64)(self._read_stored)
        return [cell for cell in cells if not self._is_finished(cell, read)]

    def _read_stored(self, cell: Cell) -> Result | None:
        """Return the result in the file of a cell, None if there is no valid file."""
        return self.store.read(cell.key(self.provenance))

    def _is_finished(self, cell: Cell, read: Callable[[Cell], Result | None]) -> bool:
        """Return whether a cell has a final result, or is known not to apply."""
        result = self._read_stored(cell)
        if result is not None:
            return not _may_change(result)
        return not self._explain_inapplicable(cell, read).ok

    def results(self, cells: Iterable[Cell]) -> Iterator[Result | None]:
        """Yield the result of each cell, or None if it is not finished.

        A cell that does not apply has no file. Its result is derived from the training, if the
        defense does not fit the protocol, or from the adversary cell, which lists for every attack
        whether it applies to the view. Files for these cells would be a waste: the default bench
        has ten times as many of them as trainings and attacks that run.
        """
        read = lru_cache(64)(self._read_stored)
        train_columns = lru_cache(8)(evaluate.train_columns)
        for cell in cells:
            result = self._read_stored(cell)
            if result is None:
                reason = self._explain_inapplicable(cell, read)
                outcome = None if reason.ok else _make_empty_outcome(cell, reason, train_columns)
                result = (
                    None if outcome is None else typed(self._make_result(cell, outcome, reason))
                )
            yield result

    def read(self, cell: Cell) -> Result | None:
        """Return the result of one cell, None if it is not finished (`results`)."""
        return next(self.results([cell]))

    def _explain_inapplicable(self, cell: Cell, read: Callable[[Cell], Result | None]) -> Reason:
        """Return why a cell does not apply, as far as the results of other cells decide it.

        `FITS` means that the cell applies or that it is undecided. An adversary cell lists which
        attacks apply with their default parameters. It decides nothing about attacks with other
        parameters, or about attacks that need a parameter.

        Parameters
        ----------
        cell : Cell
            The cell.
        read : callable
            Returns the stored result of a cell, or None.
        """
        if not isinstance(cell, (AttackCell, AdversaryCell)):
            return FITS
        trained = read(cell.train)
        if trained is not None and trained["status"] == "skipped":
            return _read_reason(trained)
        if isinstance(cell, AdversaryCell) or cell.attack.params:
            return FITS
        applicability = read(AdversaryCell(cell.setting, cell.train, cell.threat))
        rows = [] if applicability is None else applicability["rows"]
        reasons = (
            _read_reason(r) for r in rows if r.get("attack") == cell.attack.name and not r["value"]
        )
        reason = next(reasons, FITS)
        return FITS if reason.code == "needs-parameter" else reason

    def phases(self, plan: Plan) -> tuple[list[Job], ...]:
        """Return the jobs that remain, in six phases that run one after the other.

        The first four phases belong to the first seed:

        1. blind and reference cells of the federations of the first protocol,
        2. its leading trainings (`leading`), after which a first verdict is printed,
        3. blind and reference cells of the other federations,
        4. all other trainings.

        The last two phases contain the blind and reference cells, and then the trainings, of all
        other seeds.
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
            Blind and reference cells, and the trainings with their attacks.
        """
        cells_of_seeds = [
            [c for c in of if c.setting.seed in seeds] for of in (plan.blind, plan.references)
        ]
        blind, references = ([Job((c,)) for c in self.missing(cells)] for cells in cells_of_seeds)
        groups: dict[str, list[Job]] = {}
        for group in (g for g in plan.groups if g.train.setting.seed in seeds):
            missing = self.missing([group.train, *group.attacks])
            if missing:
                job = Job((group.train, *(c for c in missing if c is not group.train)))
                groups.setdefault(group.train.protocol.name, []).append(job)
        # Alternate between protocols, and between the two orders of the attacks. Processes that run
        # at the same time then compile different functions, and load the remaining ones from the
        # cache of compiled functions.
        mixed = [j for turn in zip_longest(*groups.values()) for j in turn if j is not None]
        mixed = [job.turned() if k % 2 else job for k, job in enumerate(mixed)]
        return [*blind[:1], *references, *blind[1:]], mixed

    def work(self, job: Job) -> list[tuple[str, str]]:
        """Compute the cells of a job in this process.

        Returns
        -------
        results : list of (str, str)
            Status and label of each cell that was computed.
        """
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
        """Train once, then run the attacks, and yield status and label of each computed cell.

        A training that an earlier process finished and stored is loaded instead of repeated.
        """
        key, folder = group.train.key(self.provenance), self.store.cells
        trainings: list[Training] = []  # empty, or the training in memory

        def train(federation: Federation) -> Outcome:
            wall, cpu = time.perf_counter(), time.process_time()
            training = run_training(group.train, federation)
            wall, cpu = time.perf_counter() - wall, time.process_time() - cpu
            trainings.append(training)
            outcome = evaluate.evaluate_training(group.train, federation, training, wall, cpu)
            # The training is stored after its evaluation, because the transcript then also records
            # the changes that defenses made to the predictions.
            if group.attacks or job.keep:
                training_cache.save(training, folder, key)
            return outcome

        def trained(federation: Federation) -> Training:
            if not trainings:  # an earlier process computed the training cell
                training = None
                with contextlib.suppress(Exception):  # a damaged file is replaced by a new training
                    training = training_cache.load(group.train, federation, folder, key)
                if training is None:
                    training = run_training(group.train, federation)
                    # The transcript must contain the same predictions as after an evaluation.
                    if not training.refused:
                        training.predict(federation.test.X)
                trainings.append(training)
            return trainings[0]

        # A step computes only its last cell: the training, if it has no attack.
        if not group.attacks if job.step else self.missing([group.train]):
            yield self._run(group.train, train)
        # The adversary cell of a threat precedes its attacks, so that its result is stored when
        # they are reached.
        read = lru_cache(64)(self._read_stored)
        for cell in group.attacks:
            reason = self._explain_inapplicable(cell, read)
            if reason.ok:
                yield self._run_attack(cell, read(group.train), trained)
            else:  # nothing is written: `results` derives the same reason from the same cells
                yield reason.status, f"{cell.stage} {cell.label}"
        if not job.keep:
            training_cache.drop(folder, key)

    def again(self, job: Job) -> list[Job]:
        """Return the jobs to run after the process of a job died: one step per cell.

        The first cell without a result is the one during which the process died. It is marked as
        `tried`, so that it is given up if its process dies again.
        """
        if job.step:
            return [replace(job, tried=True)]
        steps = job.steps()
        targets = [step.cells[-1] for step in steps]
        lost = next((i for i, cell in enumerate(targets) if self.read(cell) is None), None)
        return [replace(step, tried=i == lost) for i, step in enumerate(steps)]

    def give_up(self, job: Job, reason: Reason) -> tuple[str, str]:
        """Write a result without measurements for the cell of a step, with the given reason.

        The result is the status and the label of the cell.
        """
        cell = job.cells[-1]
        if not job.keep and isinstance(job.cells[0], TrainCell):
            training_cache.drop(self.store.cells, job.cells[0].key(self.provenance))
        return self._write(cell, _make_empty_outcome(cell, reason), reason)

    def _run_attack(
        self,
        cell: AttackCell | AdversaryCell,
        result: dict[str, Any] | None,
        trained: Callable[[Federation], Training],
    ) -> tuple[str, str]:
        """Compute one adversary or attack cell of a training.

        Parameters
        ----------
        cell : AttackCell or AdversaryCell
            The cell.
        result : dict or None
            Result of the training cell. If the training failed, so does this cell.
        trained : callable
            Returns the training, given the federation.
        """
        why = _read_reason(result) if result else Reason("failed", error="it left no result")
        if not why.ok:
            why = Reason("training-failed", error=str(why))
            return self._write(cell, _make_empty_outcome(cell, why), why)
        if isinstance(cell, AdversaryCell):
            return self._run(cell, lambda f: evaluate.evaluate_adversary(cell, f, trained(f)))
        blind = self.store.read(BlindCell(cell.setting, cell.threat).key(self.provenance))
        blind_finished = blind is not None and blind["status"] == "ok"

        def attack(federation: Federation) -> Outcome:
            baseline = evaluate.blind_baseline(blind["rows"]) if blind and blind_finished else None
            return evaluate.evaluate_attack(cell, federation, trained(federation), baseline)

        return self._run(cell, attack, blind_finished)

    def _run(
        self, cell: Cell, compute: Callable[[Federation], Outcome], blind: bool = True
    ) -> tuple[str, str]:
        """Compute one cell and write its result, unless another process finished it meanwhile.

        Parameters
        ----------
        cell : Cell
            The cell.
        compute : callable
            Computes the cell, given the federation.
        blind : bool
            Whether the blind baseline of the cell exists or is not needed.
        """
        with self.store.claim(cell.key(self.provenance)):
            finished = self.read(cell)
            if finished is not None and not _may_change(finished):
                return finished["status"], f"{cell.stage} {cell.label}"
            return self._compute(cell, compute, blind)

    def _compute(
        self, cell: Cell, compute: Callable[[Federation], Outcome], blind: bool
    ) -> tuple[str, str]:
        """Compute one cell within the time limit and write its result, also if it fails."""
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
        except StoreError:  # nothing can be written: the run must stop
            raise
        except (Exception, SystemExit) as err:
            explained = isinstance(err, FedtreesError)
            text = str(err) if explained else f"{type(err).__name__}: {err}"
            # The traceback of an attack comes from the process of attacks.
            attack_traceback = err.traceback if isinstance(err, AttackError) else ""
            detail = attack_traceback if explained else traceback.format_exc()
            reason = Reason("failed", error=text)
        return self._write(
            cell, outcome or _make_empty_outcome(cell, reason), reason, detail, blind
        )

    def _write(
        self, cell: Cell, outcome: Outcome, reason: Reason, detail: str = "", blind: bool = True
    ) -> tuple[str, str]:
        """Write the result of a cell, and return its status and label."""
        self.store.write(self._make_result(cell, outcome, reason, detail, blind))
        return reason.status, f"{cell.stage} {cell.label}"

    def _make_result(
        self, cell: Cell, outcome: Outcome, reason: Reason, detail: str = "", blind: bool = True
    ) -> Result:
        """Return the result of a cell as the store writes it.

        Parameters
        ----------
        cell : Cell
            The cell.
        outcome : Outcome
            Its rows, and the columns that they share.
        reason : Reason
            Why the cell failed or was skipped, `FITS` if it was computed.
        detail : str
            Traceback of an error, or "".
        blind : bool
            Whether the blind baseline exists or is not needed. If not, the cell is computed again
            when the run is resumed (`_may_change`).
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


def _read_reason(row: Mapping[str, Any]) -> Reason:
    """Return the reason in a row or in a result, `FITS` if it has none."""
    return Reason.read(row["reason_code"], row["reason_args"], row["reason"])


def _may_change(result: dict[str, Any]) -> bool:
    """Return whether a result may change if its cell is computed again.

    This is the case if the cell failed, exceeded the time limit, or had no blind baseline.
    """
    return result["status"] in AGAIN or not result["blind"]


def _make_empty_outcome(
    cell: Cell,
    reason: Reason,
    train_columns: Callable[[TrainCell], evaluate.Row] = evaluate.train_columns,
) -> Outcome:
    """Return the outcome of a cell without measurements: one row with the reason.

    Parameters
    ----------
    cell : Cell
        The cell.
    reason : Reason
        Why nothing was measured.
    train_columns : callable
        `evaluate.train_columns`, or the same function with a cache.
    """
    columns = {**evaluate.setting_columns(cell.setting), "stage": cell.stage}
    # If a defense cannot be constructed, the columns that describe it stay empty.
    with contextlib.suppress(FedtreesError):
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

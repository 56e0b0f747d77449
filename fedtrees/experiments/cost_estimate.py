"""Estimate the duration and the memory of a run, from measured costs of each kind of task."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, replace

from fedtrees.blind_baselines.rows import row_budget
from fedtrees.core.local_data import rows_of
from fedtrees.core.registry import register
from fedtrees.core.specs import Spec
from fedtrees.core.threat import Threat
from fedtrees.experiments.federation import Federation, federation_of
from fedtrees.experiments.plan import Plan, Task
from fedtrees.isolation.kernels import cache_folders, stored_kernels
from fedtrees.protocols.compatibility import KnownFacts, check_fit


@dataclass(frozen=True)
class Law:
    """CPU seconds as a power law of the size of the table and the number of trees.

    The reference point is the breast cancer table with 303 victims' rows of 30 columns, and 10
    trees.

    Attributes
    ----------
    seconds : float
        CPU seconds at the reference point.
    cells : float
        Exponent of the number of guessed rows times columns.
    trees : float
        Exponent of the number of trees.
    """

    seconds: float
    cells: float
    trees: float = 0.0

    def of(self, cells: float, trees: float = 10) -> float:
        """Return CPU seconds for a number of guessed values and of trees."""
        return float(self.seconds * (cells / (303 * 30)) ** self.cells * (trees / 10) ** self.trees)


# Measured on that table and on 100,000 rows of 54 columns (of which 4,000 are guessed), with one
# thread. An attack that is not listed costs as much as `OTHER_ATTACK` if it has parameters. Without
# parameters it is counted as skipped, because few of the many registered attacks apply.
ATTACKS = {
    "timberstrike": Law(0.55, 0.85, 0.7),
    "joint": Law(0.35, 0.65, 0.5),
    "lattice": Law(0.15, 0.0),
    "histogram-peeling": Law(0.15, 0.3, 0.3),
    "sketch-reading": Law(0.12, 0.75),
}
OTHER_ATTACK = Law(0.3, 0.7, 0.5)
SCORING = Law(0.1, 0.75)
BLIND_WITH_ROWS, BLIND_WITHOUT = Law(2.0, 0.57), Law(0.3, 0.5)
# Constant seconds per task for a process, messages and a file. An attack that does not apply is not
# run, and its task has no file.
PER_ATTACK, PER_SKIP = 0.15, 0.002
# Seconds to load a table, and to train and evaluate a model, each with a summand per million values
# of the table.
START, PER_MILLION, TRAINING, TRAINING_PER_MILLION = 3.0, 1.0, 0.15, 0.04
# MiB: the main process, each worker with its attacks, and the number of copies of the table per
# worker. Measured in runs of 1,000 to 1,000,000 rows, see tests/bench/test_estimate.py.
OURSELVES, WORKER, COPIES = 100.0, 330.0, 17.0
# A first run compiles about so many kernels, each in so many CPU seconds. Later runs load them.
KERNELS, PER_KERNEL = 130, 0.35
#: Protocols for which the cost of training was measured. Further protocols encrypt, mask or sample,
# and take longer.
CHEAP = {"fedtree-hist", "nvflare-hist"}
SLOW_DEFENSES = {"paillier", "masking"}


@dataclass(frozen=True)
class Estimate:
    """Expected cost of a run.

    Attributes
    ----------
    cpu_seconds : float
        CPU seconds of all processes together.
    wall_seconds : float
        Seconds until the end, if each process has a core for itself.
    mebibytes : float
        Peak memory of all processes together, in MiB.
    compiling : float
        CPU seconds, among `cpu_seconds`, in which a first run compiles kernels. 0 for later runs.
    unmeasured : tuple of str
        Protocols and defenses whose cost was not measured. They may take longer.
    """

    cpu_seconds: float
    wall_seconds: float
    mebibytes: float
    compiling: float = 0.0
    unmeasured: tuple[str, ...] = ()


def estimate_cost(plan: Plan, tasks: list[Task], workers: int, data_dir: str | None) -> Estimate:
    """Estimate the cost of the tasks of a plan, with an error of about a factor of two.

    Parameters
    ----------
    plan : Plan
        The plan.
    tasks : list of Task
        The tasks that are still to be computed.
    workers : int
        Number of processes.
    data_dir : str or None
        Folder of the downloaded tables.
    """
    sizes = {s: _size(federation_of(s, data_dir)) for s in plan.federation_configs}
    seconds = sum(_seconds(task, *sizes[task.federation_config]) for task in tasks)
    values = max((rows * columns for rows, _, columns in sizes.values()), default=0)
    start = START + PER_MILLION * values / 1e6
    compiling = _compiling_seconds() if tasks else 0.0
    seconds += compiling
    processes = max(1, min(workers, len(plan.groups)))
    return Estimate(
        cpu_seconds=seconds + start * (1 + processes * (processes > 1)),
        wall_seconds=seconds / processes + start * (1 + (processes > 1)),
        mebibytes=memory(values, processes),
        compiling=compiling,
        unmeasured=tuple(sorted({name for task in tasks for name in _unmeasured_names(task)})),
    )


def _compiling_seconds() -> float:
    """Return the CPU seconds that compiling takes if most kernels of a usual run are missing."""
    missing = KERNELS - stored_kernels(cache_folders())
    return missing * PER_KERNEL if missing > KERNELS / 2 else 0.0


def memory(values: float, processes: int) -> float:
    """Return the peak memory of all processes in MiB for a table with so many values."""
    return OURSELVES + (WORKER + COPIES * 4 * values / 2**20) * processes


def _size(federation: Federation) -> tuple[int, float, int]:
    """Return the number of rows, the mean number of rows per party, and the number of columns."""
    party_sizes = [len(h) for h in federation.local_data.values()]
    return (
        rows_of(federation.local_data),
        sum(party_sizes) / len(party_sizes),
        len(federation.schema.features) + 1,
    )


def _seconds(task: Task, rows: int, rows_per_party: float, columns: int) -> float:
    """Estimate the CPU seconds of one task."""
    millions = rows * columns / 1e6
    if task.stage == "blind":
        n_colluding = _count_colluding(task.threat, task)
        law = BLIND_WITH_ROWS if n_colluding else BLIND_WITHOUT
        return law.of(row_budget(round(rows - n_colluding * rows_per_party)) * columns)
    if task.stage == "reference":
        return TRAINING + TRAINING_PER_MILLION * millions * _trees(task.protocol)
    if task.is_training:
        return TRAINING + TRAINING_PER_MILLION * millions * _trees(task.protocol) / 2
    if task.stage == "adversary":
        return PER_ATTACK
    listed = ATTACKS.get(task.attack.name)
    fits = check_fit(attack=task.attack, facts=KnownFacts(rows=rows)).ok
    if not fits or (listed is None and not task.attack.params):
        return PER_SKIP
    n_colluding, trees = _count_colluding(task.threat, task), _trees(task.protocol)
    guessed = row_budget(round(rows - n_colluding * rows_per_party)) * columns
    law = listed or OTHER_ATTACK
    # The part of the cost that grows with the table is due to local rows of the adversary.
    if not n_colluding:
        law = replace(law, cells=law.cells / 2)
    return PER_ATTACK + law.of(guessed, trees) + SCORING.of(guessed)


def _count_colluding(threat: str, task: Task) -> int:
    """Return the number of colluding parties that have data."""
    roles = dict(task.federation_config.roles)
    principals = Threat.parse(threat, roles).principals(roles)
    return len(set(principals) & set(task.federation_config.holders))


def _trees(protocol: Spec) -> float:
    """Return the number of trees of a protocol, 10 if it has no such parameter."""
    instance = register.make("protocol", protocol)
    return float(instance.parameters.get("trees", 10))


def _unmeasured_names(task: Task) -> Iterator[str]:
    """Yield the names of protocols and defenses whose cost was not measured."""
    if task.is_training:
        yield from {task.protocol.name} - CHEAP
        yield from {part.name for part in task.defense.parts} & SLOW_DEFENSES


def describe_estimate(estimate: Estimate, workers: int) -> str:
    """Write the estimate in one line."""
    many = "1 process" if workers == 1 else f"{workers} processes"
    text = (
        f"about {_duration(estimate.wall_seconds)} with {many} on idle cores "
        f"({_duration(estimate.cpu_seconds)} of CPU time), {_memory(estimate.mebibytes)}"
    )
    if estimate.compiling:
        text += f"; {_duration(estimate.compiling)} of it compile kernels, in the first run only"
    if estimate.unmeasured:
        text += f"; longer, by how much was not measured, for {', '.join(estimate.unmeasured)}"
    return text


def _duration(seconds: float) -> str:
    """Write a duration in seconds, minutes or hours."""
    if seconds < 90:
        return f"{_round(seconds)} s"
    return f"{_round(seconds / 60)} min" if seconds < 5400 else f"{_round(seconds / 3600)} h"


def _memory(mebibytes: float) -> str:
    """Write an amount of memory in MiB or GiB."""
    return f"{_round(mebibytes)} MiB" if mebibytes < 2048 else f"{_round(mebibytes / 1024)} GiB"


def _round(value: float) -> str:
    """Round a number to two significant digits."""
    digits = 1 - math.floor(math.log10(max(value, 1)))
    return f"{round(value, max(digits, 0) if value < 10 else digits):g}"

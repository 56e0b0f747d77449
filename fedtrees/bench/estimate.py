"""How long a run takes and how much memory it needs, from measured costs of its kinds of cells."""

import math
from collections.abc import Iterator
from dataclasses import dataclass, replace

from fedtrees.bench.cells import (
    AdversaryCell,
    AttackCell,
    BlindCell,
    Cell,
    Plan,
    ReferenceCell,
    TrainCell,
)
from fedtrees.bench.federation import Federation, federation_of
from fedtrees.core.local_data import rows_of
from fedtrees.core.registry import register
from fedtrees.core.specs import Spec
from fedtrees.core.threat import Threat
from fedtrees.guessing.wanted import wanted
from fedtrees.protocols.fit import Data, fit


@dataclass(frozen=True)
class Law:
    """CPU seconds as a power law around breast cancer's 303 victims' rows of 30 columns, 10 trees.

    `cells`: Exponent of guessed rows times columns. `trees`: Exponent of trees.
    """

    seconds: float
    cells: float
    trees: float = 0.0

    def of(self, cells: float, trees: float = 10) -> float:
        """Return CPU seconds."""
        return self.seconds * (cells / (303 * 30)) ** self.cells * (trees / 10) ** self.trees


# Measured on that table and on 100,000 rows of 54 columns (of which 4,000 are guessed), one thread;
# what is not here costs as much as what is like it.
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
# Per cell whatever it does: a process, messages, a file. An attack that does not apply is not run,
# and its cell has no file.
PER_ATTACK, PER_SKIP = 0.15, 0.002
# Seconds to load, to train and to measure a model, per million values of the table.
START, PER_MILLION, TRAINING, TRAINING_PER_MILLION = 3.0, 1.0, 0.15, 0.04
# MiB: one process that hands out work; every worker with its attacks; and copies of the table. Of
# runs of 1,000 to 1,000,000 rows, see tests/bench/test_estimate.py.
OURSELVES, WORKER, COPIES = 100.0, 330.0, 17.0
#: Measured laws of training hold for these; others encrypt, mask or sample, and take longer.
CHEAP = {"fedtree-hist", "nvflare-hist"}
SLOW_DEFENSES = {"paillier", "masking"}


@dataclass(frozen=True)
class Estimate:
    """What a run is expected to take."""

    cpu_seconds: float  # of all processes together
    wall_seconds: float  # with so many processes, each on a core of its own
    mebibytes: float  # of all processes together at their peak
    # protocols and defenses that no cost was measured of: they may take longer
    unmeasured: tuple[str, ...] = ()


def estimate(plan: Plan, cells: list[Cell], workers: int, data_dir: str | None) -> Estimate:
    """Return what the cells of a plan are expected to take, to a factor of about two.

    `cells`: Those that are still to be computed.
    `workers`: Processes.
    """
    sizes = {s: _size(federation_of(s, data_dir)) for s in plan.settings}
    seconds = sum(_seconds(cell, *sizes[cell.setting]) for cell in cells)
    values = max((rows * columns for rows, _, columns in sizes.values()), default=0)
    start = START + PER_MILLION * values / 1e6
    processes = max(1, min(workers, len(plan.groups)))
    return Estimate(
        cpu_seconds=seconds + start * (1 + processes * (processes > 1)),
        wall_seconds=seconds / processes + start * (1 + (processes > 1)),
        mebibytes=memory(values, processes),
        unmeasured=tuple(sorted({name for cell in cells for name in _unmeasured(cell)})),
    )


def memory(values: float, processes: int) -> float:
    """Return the MiB that processes need together for a table of so many values, at their peak."""
    return OURSELVES + (WORKER + COPIES * 4 * values / 2**20) * processes


def _size(federation: Federation) -> tuple[int, float, int]:
    """Return rows, the mean of what a holder has of them, and columns."""
    held = [len(h) for h in federation.local_data.values()]
    return (
        rows_of(federation.local_data),
        sum(held) / len(held),
        len(federation.schema.features) + 1,
    )


def _seconds(cell: Cell, rows: int, held: float, columns: int) -> float:
    millions = rows * columns / 1e6
    if isinstance(cell, BlindCell):
        own = _own(cell.threat, cell)
        law = BLIND_WITH_ROWS if own else BLIND_WITHOUT
        return law.of(wanted(round(rows - own * held)) * columns)
    if isinstance(cell, ReferenceCell):
        return TRAINING + TRAINING_PER_MILLION * millions * _trees(cell.protocol)
    if isinstance(cell, TrainCell):
        return TRAINING + TRAINING_PER_MILLION * millions * _trees(cell.protocol) / 2
    if isinstance(cell, AdversaryCell):
        return PER_ATTACK
    if not isinstance(cell, AttackCell):
        return 0.0
    law = ATTACKS.get(cell.attack.name)
    fits = fit(attack=cell.attack, data=Data(rows=rows)).ok
    if not fits or (law is None and not cell.attack.params):
        return PER_SKIP
    own, trees = _own(cell.threat, cell), _trees(cell.train.protocol)
    guessed, law = wanted(round(rows - own * held)) * columns, law or OTHER_ATTACK
    if not own:  # rows of one's own are what grows with the table
        law = replace(law, cells=law.cells / 2)
    return PER_ATTACK + law.of(guessed, trees) + SCORING.of(guessed)


def _own(threat: str, cell: Cell) -> int:
    """Return how many of those who hold rows collude."""
    roles = dict(cell.setting.roles)
    principals = Threat.parse(threat, roles).principals(roles)
    return len(set(principals) & set(cell.setting.holders))


def _trees(protocol: Spec) -> float:
    made = register.make("protocol", protocol)
    return float(made.parameters.get("trees", 10))


def _unmeasured(cell: Cell) -> Iterator[str]:
    if isinstance(cell, TrainCell):
        yield from {cell.protocol.name} - CHEAP
        yield from {part.name for part in cell.defense.parts} & SLOW_DEFENSES


def in_words(found: Estimate, workers: int) -> str:
    """Return the estimate as one line."""
    many = "1 process" if workers == 1 else f"{workers} processes"
    text = (
        f"about {_duration(found.wall_seconds)} with {many} on idle cores "
        f"({_duration(found.cpu_seconds)} of CPU time), {_memory(found.mebibytes)}"
    )
    if found.unmeasured:
        text += f"; longer, by how much was not measured, for {', '.join(found.unmeasured)}"
    return text


def _duration(seconds: float) -> str:
    if seconds < 90:
        return f"{_rounded(seconds)} s"
    return f"{_rounded(seconds / 60)} min" if seconds < 5400 else f"{_rounded(seconds / 3600)} h"


def _memory(mebibytes: float) -> str:
    return f"{_rounded(mebibytes)} MiB" if mebibytes < 2048 else f"{_rounded(mebibytes / 1024)} GiB"


def _rounded(value: float) -> str:
    digits = 1 - math.floor(math.log10(max(value, 1)))
    return f"{round(value, max(digits, 0) if value < 10 else digits):g}"

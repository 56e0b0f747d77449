"""How the cost of training and of single attacks grows with rows, up to a million."""

import multiprocessing
import resource
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from fedtrees.benchmarks.perf.measure import FULL, Line, Size, peak_mib
from fedtrees.benchmarks.perf.rivals import schema_of, table
from fedtrees.core.local_data import LocalData
from fedtrees.core.registry import register
from fedtrees.core.specs import parse_grid
from fedtrees.core.streams import Streams
from fedtrees.protocols.training import Training, train
from fedtrees.protocols.views import view_of

ROWS = (1_000, 10_000, 100_000, 1_000_000)
COLUMNS, CLIENTS, WARM_UP = 28, 3, 300
#: By protocol, who attacks: they see bins and sketches.
ADVERSARIES = {"fedtree-hist": "server", "nvflare-hist": "client-2"}
# With the steps that the default suite gives them.
ATTACKS = (
    "timberstrike", "joint[steps=100000]", "lattice[steps=500000]",
    "histogram-peeling", "sketch-reading",
)  # fmt: skip
TRAINING = "training"
#: CPU seconds after which a call is stopped.
LIMIT = 300

FORK = multiprocessing.get_context("fork")  # the call needs no copy of the table


@dataclass(frozen=True)
class Cost:
    """What a call took; `mib` is the peak of its process, which also holds table and training."""

    rows: int
    protocol: str
    what: str
    cpu_seconds: float
    mib: float


def costs(rows: Sequence[int] = ROWS, trees: int = 10) -> Iterator[Cost]:
    """Train on ever larger tables and attack, each attack in a process of its own.

    What takes more than `LIMIT` is left out, also of larger tables.
    """
    for turn, n in enumerate((WARM_UP, *rows)):  # compiled code is loaded in the first turn
        for protocol, who in ADVERSARIES.items():
            started = time.process_time()
            run, held = _trained(n, f"{protocol}[trees={trees},max_depth=4]")
            spent = time.process_time() - started
            view = view_of(run, (who,), held)
            if turn:
                yield Cost(n, protocol, TRAINING, spent, peak_mib())
            for name in ATTACKS:
                attack = register.make("attack", parse_grid(name)[0])

                def call(attack=attack, view=view) -> None:  # type: ignore[no-untyped-def]
                    attack.run(view, Streams(0).rng("attack"))

                if not turn:
                    call()
                    continue
                found = _apart(call)
                if found:
                    yield Cost(n, protocol, attack.name, *found)


def _trained(rows: int, protocol: str) -> tuple[Training, dict]:  # type: ignore[type-arg]
    data = table(rows, COLUMNS)
    made = register.make("protocol", parse_grid(protocol)[0])
    parts = np.array_split(np.arange(rows), CLIENTS)
    names = made.holder_names(CLIENTS)
    held = {name: LocalData.of(data.take(p), p) for name, p in zip(names, parts, strict=True)}
    return train(made, held, schema_of(data)), held


def _apart(call: Callable[[], object]) -> tuple[float, float] | None:
    """Return CPU seconds and peak MiB of a call in a process of its own, None past `LIMIT`."""
    ours, theirs = FORK.Pipe(duplex=False)

    def work() -> None:
        started = time.process_time()
        resource.setrlimit(resource.RLIMIT_CPU, (LIMIT, LIMIT))
        call()
        theirs.send((time.process_time() - started, peak_mib()))

    child = FORK.Process(target=work)
    child.start()
    theirs.close()
    try:
        seconds, mib = ours.recv()
        return seconds, mib
    except EOFError:
        return None
    finally:
        child.join()


def lines(size: Size = FULL) -> Iterator[Line]:
    """Train and attack on tables of `ROWS`."""
    for c in costs([size.rows(n) for n in size.cases(ROWS)], size.trees(10)):
        what = f"{c.what}, {c.protocol}, {c.rows:,} x {COLUMNS}"
        yield Line(what, f"{c.cpu_seconds:.2g} s, {c.mib:.0f} MiB")

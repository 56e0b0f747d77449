"""Measure how the cost of training and of single attacks grows with rows, up to a million."""

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
#: Adversary that sees bins and sketches, by protocol.
ADVERSARIES = {"fedtree-hist": "server", "nvflare-hist": "client-2"}
# Attacks with the number of steps in the default suite.
ATTACKS = (
    "timberstrike", "joint[steps=100000]", "lattice[steps=500000]",
    "histogram-peeling", "sketch-reading",
)  # fmt: skip
TRAINING = "training"
#: CPU seconds after which a call is stopped.
LIMIT = 300

# A forked process shares the table, so that it is not copied.
FORK = multiprocessing.get_context("fork")


@dataclass(frozen=True)
class Cost:
    """Cost of one call.

    Attributes
    ----------
    rows : int
        Rows of the table.
    protocol : str
        Protocol.
    what : str
        Name of the attack, or `TRAINING`.
    cpu_seconds : float
        CPU seconds.
    mib : float
        Peak memory of the process in MiB, including the table and the training.
    """

    rows: int
    protocol: str
    what: str
    cpu_seconds: float
    mib: float


def costs(rows: Sequence[int] = ROWS, trees: int = 10) -> Iterator[Cost]:
    """Train on tables of increasing size and run each attack in a separate process.

    Calls that exceed `LIMIT` are skipped.

    Parameters
    ----------
    rows : sequence of int
        Numbers of rows.
    trees : int
        Number of trees.
    """
    # The first turn only loads compiled code and is not measured.
    for turn, n in enumerate((WARM_UP, *rows)):
        for protocol, adversary in ADVERSARIES.items():
            started = time.process_time()
            run, local_data = _train(n, f"{protocol}[trees={trees},max_depth=4]")
            spent = time.process_time() - started
            view = view_of(run, (adversary,), local_data)
            if turn:
                yield Cost(n, protocol, TRAINING, spent, peak_mib())
            for name in ATTACKS:
                attack = register.make("attack", parse_grid(name)[0])

                # Default arguments bind the values of this iteration.
                def call(attack=attack, view=view) -> None:  # type: ignore[no-untyped-def]
                    attack.run(view, Streams(0).rng("attack"))

                if not turn:
                    call()
                    continue
                result = _apart(call)
                if result:
                    yield Cost(n, protocol, attack.name, *result)


def _train(rows: int, protocol: str) -> tuple[Training, dict]:  # type: ignore[type-arg]
    """Train a protocol on the synthetic table and return the run and the local data."""
    data = table(rows, COLUMNS)
    protocol_object = register.make("protocol", parse_grid(protocol)[0])
    parts = np.array_split(np.arange(rows), CLIENTS)
    names = protocol_object.holder_names(CLIENTS)
    local_data = {name: LocalData.of(data.take(p), p) for name, p in zip(names, parts, strict=True)}
    return train(protocol_object, local_data, schema_of(data)), local_data


def _apart(call: Callable[[], object]) -> tuple[float, float] | None:
    """Return CPU seconds and peak MiB of a call in a separate process, None beyond `LIMIT`."""
    receiver, sender = FORK.Pipe(duplex=False)

    def work() -> None:
        started = time.process_time()
        # The kernel ends the process when it exceeds the limit.
        resource.setrlimit(resource.RLIMIT_CPU, (LIMIT, LIMIT))
        call()
        sender.send((time.process_time() - started, peak_mib()))

    child = FORK.Process(target=work)
    child.start()
    sender.close()
    try:
        seconds, mib = receiver.recv()
        return seconds, mib
    except EOFError:
        return None
    finally:
        child.join()


def lines(size: Size = FULL) -> Iterator[Line]:
    """Yield the cost of training and attacks on tables of `ROWS`."""
    for c in costs([size.rows(n) for n in size.cases(ROWS)], size.trees(10)):
        what = f"{c.what}, {c.protocol}, {c.rows:,} x {COLUMNS}"
        yield Line(what, f"{c.cpu_seconds:.2g} s, {c.mib:.0f} MiB")

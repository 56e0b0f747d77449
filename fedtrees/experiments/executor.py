"""Where jobs run: in this process, in several of this machine, or elsewhere."""

from __future__ import annotations

import contextlib
import math
import os
import resource
import signal
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import FIRST_COMPLETED, BrokenExecutor, Future, wait
from dataclasses import dataclass
from functools import cache
from itertools import chain
from typing import Any, Protocol

from fedtrees.core.limits import TimeLimit, check_thread
from fedtrees.core.reasons import Reason
from fedtrees.experiments.runner import Job, Runner
from fedtrees.isolation.shield import close_memory, closed_memory

# Workers share the cores: a second thread in one of them makes every one slower.
_THREADS = (
    "OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS", "BLIS_NUM_THREADS",
    "VECLIB_MAXIMUM_THREADS", "NUMBA_NUM_THREADS", "NUMEXPR_NUM_THREADS",
)  # fmt: skip


def _work_in_pool(runner: Runner, job: Job, driver: int) -> list[tuple[str, str]]:
    """Do a job in a process of the pool, whose driver may be gone before it begins."""
    close_memory()
    _end_with(driver)
    if runner.memory:
        max_bytes = int(runner.memory * 2**30)
        resource.setrlimit(resource.RLIMIT_DATA, (max_bytes, max_bytes))
    return runner.work(job)


@cache
def _end_with(parent: int) -> None:
    """End this process soon after its parent, which a kill gives no time to end its workers."""

    def watch() -> None:
        while os.getppid() == parent:
            time.sleep(0.5)
        os._exit(1)

    threading.Thread(target=watch, daemon=True).start()


def run_jobs(
    runner: Runner,
    phases: Sequence[Sequence[Job]],
    workers: int,
    done: Callable[[str, str], None],
    ended: Callable[[int], None] = lambda phase: None,
    engine: Engine | None = None,
) -> None:
    """Run jobs in this process, or in several; `done(status, label)` follows each cell.

    `ended(k)` follows the k-th phase. `engine`: where, if not in processes of this machine.

    A worker process that is killed costs only the job that it was at: its cells are tried again
    one by one, and the one that loses its process a second time is reported as failed. Meanwhile
    no other process of this user can read the rows in these.
    """
    with closed_memory():
        max_running = min(workers, max(map(len, phases), default=0))
        if engine is None and (workers > 1 or runner.memory):
            engine = Processes(runner)
        if engine is None and runner.time_limit > 0:
            check_thread()
        try:
            for k, phase in enumerate(phases):
                if engine is not None:
                    _run_phase(runner, engine, max_running, deque(phase), done)
                else:
                    for status, label in chain.from_iterable(map(runner.work, phase)):
                        done(status, label)
                ended(k)
        finally:
            if engine is not None:
                engine.close()


@dataclass(frozen=True)
class Lost:
    """A job whose process died; `code` tells how."""

    code: str


Results = list[tuple[str, str]]  # status and label of each cell


class Engine(Protocol):
    """Where jobs run."""

    def submit(self, job: Job) -> Any:
        """Start a job and return its handle."""

    def next(self, busy: Sequence[Any]) -> tuple[Any, Results | Lost]:
        """Wait until one of the handles is done, and return it with what came of it."""

    def close(self) -> None:
        """End what runs, and all that was begun for it."""


def _run_phase(
    runner: Runner,
    engine: Engine,
    max_running: int,
    pending_jobs: deque[Job],
    done: Callable[[str, str], None],
) -> None:
    """Run jobs, so many at a time; what is left of a lost one is tried again in steps, in order."""
    running: dict[Any, deque[Job]] = {}
    while pending_jobs or running:
        while pending_jobs and len(running) < max_running:
            job = pending_jobs.popleft()
            running[engine.submit(job)] = deque([job])
        handle, results = engine.next([*running])
        left = running.pop(handle)
        job = left.popleft()
        if isinstance(results, Lost):
            if job.tried:
                results = [runner.give_up(job, Reason("killed", code=results.code))]
            else:
                left.extendleft(reversed(runner.again(job)))
                results = []
        for status, label in results:
            done(status, label)
        if left:
            running[engine.submit(left[0])] = left


class Processes:
    """Processes of this machine, one executor for each, so that its death says which job it was.

    `begin`: What a process does with a runner, a job and its parent's id. `until`: Time by
    `time.monotonic`, in seconds, at which `next` raises `TimeLimit`.
    """

    def __init__(
        self,
        runner: Runner,
        begin: Callable[[Runner, Job, int], Results] = _work_in_pool,
        until: float = math.inf,
    ) -> None:
        self._runner, self._begin, self._until = runner, begin, until
        self._idle: list[Any] = []
        self._busy: dict[Future[Results], Any] = {}

    def submit(self, job: Job) -> Future[Results]:
        """Start a job."""
        from joblib.externals.loky import ProcessPoolExecutor

        executor = self._idle.pop() if self._idle else None
        if executor is not None and executor._flags.broken:  # killed while idle
            _end(executor)
            executor = None
        if executor is None:
            executor = ProcessPoolExecutor(1, env=dict.fromkeys(_THREADS, "1"))
        future: Future[Results] = executor.submit(self._begin, self._runner, job, os.getpid())
        self._busy[future] = executor
        return future

    def next(self, busy: Sequence[Future[Results]]) -> tuple[Future[Results], Results | Lost]:
        """Wait until a job is done."""
        left = None if math.isinf(self._until) else max(0.0, self._until - time.monotonic())
        ended = wait(busy, left, FIRST_COMPLETED).done
        if not ended:
            raise TimeLimit
        future = next(iter(ended))
        executor = self._busy.pop(future)
        try:
            results: Results | Lost = future.result()
            self._idle.append(executor)
        except MemoryError:  # outside of any cell
            _end(executor)
            results = Lost("memory")
        except BrokenExecutor as err:
            _end(executor)
            results = Lost(
                str(err).rpartition("{")[2].partition("}")[0]
            )  # loky tells it no other way
        except BaseException:
            _end(executor)
            raise
        return future, results

    def close(self) -> None:
        """End the processes, whatever they are at."""
        for executor in (*self._idle, *self._busy.values()):
            _end(executor)
        self._idle, self._busy = [], {}


def _end(executor: Any) -> None:
    """End an executor and its process. What that process started ends with it (`_end_with`)."""
    for pid in [*(executor._processes or ())]:  # loky would look for descendants first
        with contextlib.suppress(OSError):
            os.kill(pid, signal.SIGKILL)
    executor.shutdown(wait=True, kill_workers=True)

"""Run the jobs of a bench in this process, in several processes, or on another engine.

`run_jobs` executes the phases of a `Runner` one after the other. An `Engine` starts jobs and waits
for them. `Processes` is the engine for one machine. `fedtrees.cluster` has an engine for a Ray
cluster. If the process of a job dies, only its tasks are computed again, one by one.
"""

from __future__ import annotations

import contextlib
import errno
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
from fedtrees.isolation.sandbox import close_memory, closed_memory

# Environment variables with the number of threads of numeric libraries. Workers share the cores, so
# that a second thread in one of them makes all of them slower.
_THREADS = (
    "OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS", "BLIS_NUM_THREADS",
    "VECLIB_MAXIMUM_THREADS", "NUMBA_NUM_THREADS", "NUMEXPR_NUM_THREADS",
)  # fmt: skip


def _work_in_pool(runner: Runner, job: Job, driver: int) -> list[tuple[str, str]]:
    """Run a job in a worker process.

    Parameters
    ----------
    runner : Runner
        Computes the tasks.
    job : Job
        The job.
    driver : int
        Id of the process that started the worker. It may have ended already, so that the worker
        cannot ask for it with `os.getppid`.

    Returns
    -------
    results : list of (str, str)
        Status and label of each computed task.
    """
    close_memory()
    _end_with(driver)
    if runner.memory:
        limit = int(runner.memory * 2**30)
        resource.setrlimit(resource.RLIMIT_DATA, (limit, limit))
    return runner.work(job)


@cache
def _end_with(parent: int) -> None:
    """End this process within half a second after its parent has ended.

    A killed parent has no time to end its workers. The function is cached, so that a worker starts
    one thread, whatever the number of its jobs.
    """

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
    """Run all jobs, phase by phase.

    If a worker process dies, the tasks of its job are computed again one by one. A task whose
    process dies a second time is recorded as failed. During the run, other processes of the same
    user cannot read the memory of these processes, which contains the ground truth.

    Parameters
    ----------
    runner : Runner
        Computes the tasks of a job.
    phases : sequence of sequences of Job
        The jobs. A phase starts when all jobs of the previous one are done.
    workers : int
        Number of jobs that run at the same time.
    done : callable
        ``done(status, label)`` is called after each task.
    ended : callable
        ``ended(k)`` is called after phase k, counted from 0.
    engine : Engine, optional
        Where the jobs run. None: in this process if `workers` is 1 and memory is not limited,
        otherwise in worker processes of this machine.

    Raises
    ------
    UsageError
        If there is a time limit, and the jobs would run in this process outside its main thread.
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
    """Result of a job whose process died.

    Attributes
    ----------
    code : str
        Cause of death, for example ``SIGKILL(-9)`` or ``memory``.
    """

    code: str


Results = list[tuple[str, str]]  # status and label of each task


class Engine(Protocol):
    """Interface of a place where jobs run, for example the processes of a machine or a cluster."""

    def submit(self, job: Job) -> Any:
        """Start a job and return a handle, which must be hashable."""

    def next(self, busy: Sequence[Any]) -> tuple[Any, Results | Lost]:
        """Wait until one of the handles is done, and return this handle and the result of its job.

        The result is `Lost` if the process of the job died.
        """

    def close(self) -> None:
        """End all running jobs, and everything that the engine started for them."""


def _run_phase(
    runner: Runner,
    engine: Engine,
    max_running: int,
    pending_jobs: deque[Job],
    done: Callable[[str, str], None],
) -> None:
    """Run the jobs of one phase, at most `max_running` at a time.

    If the process of a job dies, its tasks are run again as steps. The steps of one job run one
    after the other, because later ones use the training that the first one stores.

    Parameters
    ----------
    runner : Runner
        Divides lost jobs into steps.
    engine : Engine
        Runs the jobs.
    max_running : int
        Largest number of running jobs.
    pending_jobs : deque of Job
        The jobs. It is empty afterwards.
    done : callable
        Called with the status and the label of each task.
    """
    # For each handle the submitted job, followed by the steps that run after it.
    running: dict[Any, deque[Job]] = {}
    while pending_jobs or running:
        while pending_jobs and len(running) < max_running:
            job = pending_jobs.popleft()
            running[engine.submit(job)] = deque([job])
        handle, results = engine.next([*running])
        steps = running.pop(handle)
        job = steps.popleft()
        if isinstance(results, Lost):
            if job.was_tried:
                results = [runner.write_failure(job, Reason("killed", code=results.code))]
            else:
                steps.extendleft(reversed(runner.retry_steps(job)))
                results = []
        for status, label in results:
            done(status, label)
        if steps:
            running[engine.submit(steps[0])] = steps


class Processes:
    """Engine that runs jobs in worker processes of this machine.

    Every process has its own executor. If the process dies, its executor breaks, which identifies
    the lost job.

    Parameters
    ----------
    runner : Runner
        Computes the tasks.
    begin : callable
        Function that a worker process calls with the runner, a job and the id of its parent.
    until : float
        Time of `time.monotonic` in seconds at which `next` raises `TimeLimit`.
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
        """Start a job in an idle process, or in a new one."""
        from joblib.externals.loky import ProcessPoolExecutor

        executor = self._idle.pop() if self._idle else None
        if executor is not None and executor._flags.broken:  # its process was killed while idle
            _end_executor(executor)
            executor = None
        if executor is None:
            executor = ProcessPoolExecutor(1, env=dict.fromkeys(_THREADS, "1"))
        future: Future[Results] = executor.submit(self._begin, self._runner, job, os.getpid())
        self._busy[future] = executor
        return future

    def next(self, busy: Sequence[Future[Results]]) -> tuple[Future[Results], Results | Lost]:
        """Wait until a job is done. Raise `TimeLimit` at the time `until`."""
        left = None if math.isinf(self._until) else max(0.0, self._until - time.monotonic())
        ended = wait(busy, left, FIRST_COMPLETED).done
        if not ended:
            raise TimeLimit
        future = next(iter(ended))
        executor = self._busy.pop(future)
        try:
            results: Results | Lost = future.result()
            self._idle.append(executor)
        except BrokenExecutor as err:
            _end_executor(executor)
            # loky reports the exit code only in braces in its message, for example {SIGKILL(-9)}.
            results = Lost(str(err).rpartition("{")[2].partition("}")[0])
        except BaseException as err:
            _end_executor(executor)
            # An error in the computation of a task is in its result. Here the memory was exhausted
            # between two computations.
            if not _is_memory_error(err):
                raise
            results = Lost("memory")
        return future, results

    def close(self) -> None:
        """End all processes, also those that are running a job."""
        for executor in (*self._idle, *self._busy.values()):
            _end_executor(executor)
        self._idle, self._busy = [], {}


def _is_memory_error(err: BaseException) -> bool:
    """Return whether an allocation failed, in Python or in a call of the system."""
    return isinstance(err, MemoryError) or (isinstance(err, OSError) and err.errno == errno.ENOMEM)


def _end_executor(executor: Any) -> None:
    """End an executor and its process.

    The kernel ends the processes of attacks that it started
    (`fedtrees.isolation.sandbox.end_with_parent`).
    """
    # The process is killed here, because loky would first search for its descendants.
    for pid in [*(executor._processes or ())]:
        with contextlib.suppress(OSError):
            os.kill(pid, signal.SIGKILL)
    executor.shutdown(wait=True, kill_workers=True)

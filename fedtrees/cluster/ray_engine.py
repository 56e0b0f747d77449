"""Run the jobs of a benchmark as tasks of a Ray cluster.

A user who can connect to a node of the cluster controls this node.
"""

import math
import os
import time
from collections.abc import Sequence
from contextlib import suppress
from importlib.util import find_spec
from typing import Any

from fedtrees.cluster.bundle import Done, accept, bundle_of, tables_of, work
from fedtrees.core.errors import StoreError, UsageError
from fedtrees.experiments.executor import Lost, Results
from fedtrees.experiments.runner import Job, Runner

_BEGIN = 60.0  # seconds that a worker has to start
_LOOK = 5.0  # seconds between checks for jobs that hang
_LOOPBACK = ("127.", "localhost", "[::1]")


def address_of(text: str) -> str | None:
    """Return the address of the cluster in ``--on``, None to start one on this machine.

    Raises
    ------
    UsageError
        If the address cannot be used.
    """
    name, equals, address = text.partition("=")
    if name != "ray" or (equals and not address.rpartition(":")[2].isdigit()):
        raise UsageError(f"--on {text}: give ray, for this machine, or ray=HOST:PORT")
    if "//" in address:
        raise UsageError(f"--on {text}: Ray's client protocol is not used; run on a node of it")
    if find_spec("ray") is None:
        raise UsageError("--on ray needs Ray: pip install 'fedtrees[cluster]'")
    if address and not address.startswith(_LOOPBACK) and os.environ.get("RAY_AUTH_MODE") != "token":
        raise UsageError(
            f"--on {text}: everybody who reaches this cluster reads the rows and runs code on it; "
            "start it with RAY_AUTH_MODE=token, and set that here"
        )
    return address or None


class RayEngine:
    """Runs jobs as tasks of a cluster. Only the driver writes results.

    Parameters
    ----------
    on : str
        Value of ``--on``.
    runner : Runner
        Runner of the driver.
    settings : sequence of FederationConfig
        Settings whose tables the jobs read.
    workers : int
        Number of workers of a local cluster.
    """

    def __init__(self, on: str, runner: Runner, settings: Sequence[Any], workers: int) -> None:
        address = address_of(on)
        # With Ray's niceness of 15, a job may never start on a busy machine.
        os.environ.setdefault("RAY_worker_niceness", "0")
        import ray

        self._ray, self._runner = ray, runner
        local_options: dict[str, Any] = {"num_cpus": workers, "include_dashboard": False}
        ray.init(
            address=address or "local",
            log_to_driver=False,
            logging_level="ERROR",
            configure_logging=False,
            **({} if address else local_options),
        )
        try:
            self._tables = ray.put(tables_of(runner, settings))
            task = ray.remote(num_cpus=1, max_retries=0)(work)  # the bench itself counts lost jobs
            self._submit: Any = task.remote
        except BaseException:
            ray.shutdown()
            raise
        self._jobs: dict[Any, tuple[Job, float]] = {}  # with the time at which it is overdue

    @property
    def slots(self) -> int:
        """Number of tasks that the cluster runs at a time."""
        return max(1, int(self._ray.cluster_resources().get("CPU", 1)))

    def submit(self, job: Job) -> Any:
        """Start a job."""
        handle = self._submit(bundle_of(job, self._runner), self._tables)
        limit = (1 + len(job.tasks)) * self._runner.time_limit
        self._jobs[handle] = job, time.monotonic() + _BEGIN + limit if limit else math.inf
        return handle

    def next(self, busy: Sequence[Any]) -> tuple[Any, Results | Lost]:
        """Wait until a job is done, and store the cells that it finished.

        With a time limit, a job is abandoned if its worker exceeds the limit, for example because
        it was suspended.

        Raises
        ------
        UsageError
            If a node has other versions.
        """
        ready: list[Any] = []
        while not ready:
            ready, _ = self._ray.wait(list(busy), num_returns=1, timeout=_LOOK)
            late = [h for h in busy if time.monotonic() > self._jobs[h][1]]
            if late and not ready:
                self._ray.cancel(late[0], force=True)
                del self._jobs[late[0]]
                return late[0], Lost("hangs")
        handle = ready[0]
        job, _ = self._jobs.pop(handle)
        try:
            done: Done = self._ray.get(handle)
        except (self._ray.exceptions.RayTaskError, StoreError):
            raise
        except self._ray.exceptions.RayError as err:  # the worker or its node is lost
            return handle, Lost(type(err).__name__)
        accept(done, job, self._runner)
        if isinstance(done.results, str):
            raise UsageError(f"{done.results}: install the same there, or run without --on")
        return handle, done.results

    def close(self) -> None:
        """Cancel running jobs and disconnect."""
        for handle in self._jobs:
            with suppress(Exception):
                self._ray.cancel(handle, force=True)
        self._ray.shutdown()

"""Ray as the engine of a bench: a job is a task. Whoever reaches a node of it owns all of it."""

import math
import os
import time
from collections.abc import Sequence
from contextlib import suppress
from importlib.util import find_spec
from typing import Any

from fedtrees.bench.engine import Lost, Results
from fedtrees.bench.runner import Job, Runner
from fedtrees.cluster.bundle import Done, accept, bundle_of, tables_of, work
from fedtrees.core.errors import StoreError, UsageError

_BEGIN = 60.0  # seconds that a worker may take to begin
_LOOK = 5.0  # seconds between looks for jobs that hang
_LOOPBACK = ("127.", "localhost", "[::1]")


def address_of(text: str) -> str | None:
    """Return the address of a cluster as ``--on`` names it, None: one of this machine is started.

    Raises `UsageError` if it cannot be used.
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
    """Jobs as tasks of a cluster; the driver alone writes."""

    def __init__(self, on: str, runner: Runner, settings: Sequence[Any], workers: int) -> None:
        address = address_of(on)
        os.environ.setdefault("RAY_worker_niceness", "0")  # at Ray's 15 a busy machine never begins
        import ray

        self._ray, self._runner = ray, runner
        own: dict[str, Any] = {"num_cpus": workers, "include_dashboard": False}
        ray.init(
            address=address or "local",
            log_to_driver=False,
            logging_level="ERROR",
            configure_logging=False,
            **({} if address else own),
        )
        try:
            self._tables = ray.put(tables_of(runner, settings))
            task = ray.remote(num_cpus=1, max_retries=0)(work)  # lost jobs are the bench's to count
            self._submit: Any = task.remote
        except BaseException:
            ray.shutdown()
            raise
        self._jobs: dict[Any, tuple[Job, float]] = {}  # with when it is overdue

    @property
    def slots(self) -> int:
        """How many tasks the cluster runs at a time."""
        return max(1, int(self._ray.cluster_resources().get("CPU", 1)))

    def submit(self, job: Job) -> Any:
        """Start a job."""
        handle = self._submit(bundle_of(job, self._runner), self._tables)
        limit = (1 + len(job.cells)) * self._runner.time_limit
        self._jobs[handle] = job, time.monotonic() + _BEGIN + limit if limit else math.inf
        return handle

    def next(self, busy: Sequence[Any]) -> tuple[Any, Results | Lost]:
        """Wait until a job is done, and write what it finished.

        With a time limit, one whose worker does not keep to it (it is stopped) is given up.

        Raises `UsageError` if a node runs other versions.
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
        except self._ray.exceptions.RayError as err:  # its worker or node is gone
            return handle, Lost(type(err).__name__)
        accept(done, job, self._runner)
        if isinstance(done.results, str):
            raise UsageError(f"{done.results}: install the same there, or run without --on")
        return handle, done.results

    def close(self) -> None:
        """Cancel what runs, and leave."""
        for handle in self._jobs:
            with suppress(Exception):
                self._ray.cancel(handle, force=True)
        self._ray.shutdown()

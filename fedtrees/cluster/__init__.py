"""Run the grid of a bench on several machines of one owner with Ray. It is no security boundary."""

from __future__ import annotations

import hashlib
import math
import os
import shutil
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from fedtrees.core.errors import StoreError, UsageError
from fedtrees.core.files import write_whole
from fedtrees.data.downloads import SOURCES, data_directory
from fedtrees.experiments.executor import Lost, Processes, Results
from fedtrees.experiments.plan import (
    FederationConfig,
    Provenance,
    Task,
)
from fedtrees.experiments.runner import Job, Runner

#: Prefix of job folders in a node's temporary folder. A folder that is older than a day belongs to
#: a killed worker.
PREFIX = "fedtrees-job-"
_TABLES = "fedtrees-tables-"
_DAY = 86400.0


@dataclass(frozen=True)
class Bundle:
    """A job, the files that it reads, and the versions of the driver.

    Attributes
    ----------
    job : Job
        The job.
    runner : Runner
        Runner of the driver.
    cells : mapping of str to bytes
        Finished cells that the job reads, sealed, by id.
    stamp : mapping
        `Provenance.stamp` of the driver.
    """

    job: Job
    runner: Runner
    cells: Mapping[str, bytes]
    stamp: Mapping[str, Any]


@dataclass(frozen=True)
class Done:
    """Result of a job: its results, or why there are none, and every cell that it finished."""

    results: Results | Lost | str
    cells: Mapping[str, bytes]


def tables_of(runner: Runner, settings: Sequence[FederationConfig]) -> dict[str, bytes]:
    """Return the files that a plan reads, including plug-ins, by their path at the driver."""
    files = {path: Path(path).read_bytes() for path in runner.plugins}
    for ref in dict.fromkeys(s.data for s in settings):
        files |= {path: Path(path).read_bytes() for path in ref.files}
    folder = data_directory(runner.data_dir)
    for source in SOURCES.values():
        path = folder / source.filename
        names = {s.data.name.partition("[")[0] for s in settings if not s.data.csv}
        if names & {n for n, other in SOURCES.items() if other is source} and path.is_file():
            files[f"data/{source.filename}"] = path.read_bytes()
    return files


def reads(job: Job, provenance: Provenance) -> Iterator[str]:
    """Yield the ids of the cells that a job reads or writes."""
    yield from (task.key(provenance) for task in job.tasks)
    for task in job.tasks:
        if task.stage == "attack":
            yield task.blind.key(provenance)
            yield task.applicability.key(provenance)


def bundle_of(job: Job, runner: Runner) -> Bundle:
    """Return a job with the finished cells that it reads."""
    finished = {}
    for key in dict.fromkeys(reads(job, runner.provenance)):
        if runner.store.read(key) is not None:
            finished[key] = (runner.store.cells / f"{key}.json").read_bytes()
    return Bundle(job, runner, finished, runner.provenance.stamp)


def accept(done: Done, job: Job, runner: Runner) -> None:
    """Store the returned cells of a job. Cells that do not belong to the job are ignored.

    Parameters
    ----------
    done : Done
        Result of the job.
    job : Job
        The job.
    runner : Runner
        Runner of the driver.

    Raises
    ------
    StoreError
        If the seal of a cell is not valid.
    """
    job_cells = {task.key(runner.provenance) for task in job.tasks}
    for key, content in done.cells.items():
        if key in job_cells:
            write_whole(runner.store.cells / f"{key}.json", content, private=True)
            if runner.store.read(key) is None:
                raise StoreError(f"cell {key} came back damaged; run again with --resume")


def apart(runner: Runner, job: Job) -> Results | Lost:
    """Run a job in a separate process with its thread and resource limits."""
    processes = Processes(runner)
    try:
        return processes.next([processes.submit(job)])[1]
    finally:
        processes.close()


def work(
    bundle: Bundle,
    tables: Mapping[str, bytes],
    does: Callable[[Runner, Job], Results | Lost] = apart,
) -> Done:
    """Run a job on a node, in a folder that only this user can read.

    A node with other versions does not run it, and returns the differences.

    Parameters
    ----------
    bundle : Bundle
        The job.
    tables : mapping of str to bytes
        Files that the job reads, by their path at the driver.
    does : callable
        Runs the job, by default in a separate process.
    """
    stamp = bundle.runner.provenance.stamp
    differs = [name for name, value in bundle.stamp.items() if stamp[name] != value]
    if differs:
        differences = "; ".join(f"{n}: {stamp[n]}, not {bundle.stamp[n]}" for n in differs)
        return Done(f"a node of {os.uname().nodename} runs other versions ({differences})", {})
    _sweep()
    places = {path: _placed(path, content) for path, content in tables.items()}
    with tempfile.TemporaryDirectory(prefix=PREFIX) as temporary:
        runner, job = _here(bundle, places, Path(temporary))
        cells = runner.store.cells
        cells.mkdir(mode=0o700)
        for key, content in bundle.cells.items():
            write_whole(cells / f"{key}.json", content, private=True)
        results = does(runner, job)
        job_cells = {task.key(runner.provenance) for task in job.tasks}
        cell_files = {key: cells / f"{key}.json" for key in job_cells}
        return Done(results, {k: p.read_bytes() for k, p in cell_files.items() if p.is_file()})


def _placed(path: str, content: bytes) -> Path:
    """Write a file to this node's folder of tables, named by its digest, and return its path.

    A file whose content does not match the digest is replaced, because it may have been
    manipulated.
    """
    digest = hashlib.sha256(content).hexdigest()
    folder = Path(tempfile.gettempdir()) / f"{_TABLES}{os.getuid()}"
    folder.mkdir(mode=0o700, exist_ok=True)
    # In a shared temporary folder, another user could have created this folder or a link to it.
    if folder.stat().st_uid != os.getuid() or folder.is_symlink():
        raise StoreError(f"{folder} belongs to another user; remove it")
    folder.chmod(0o700)
    digest_folder = folder / digest
    digest_folder.mkdir(mode=0o700, exist_ok=True)
    at = digest_folder / Path(path).name
    if not at.is_file() or hashlib.sha256(at.read_bytes()).hexdigest() != digest:
        write_whole(at, content, private=True)
    return at


def _here(bundle: Bundle, places: Mapping[str, Path], folder: Path) -> tuple[Runner, Job]:
    """Return runner and job with the paths of this node."""
    old = bundle.runner
    data = folder / "data"
    data.mkdir(mode=0o700)
    for path, at in places.items():
        if path.startswith("data/"):
            (data / at.name).symlink_to(at)
    moved: dict[Any, Any] = {}
    for ref in old.provenance.digests:
        files = [str(places.get(path, path)) for path in ref.files]
        moved[ref] = replace(ref, csv=",".join(files)) if files else ref
    digests = {moved[ref]: digest for ref, digest in old.provenance.digests.items()}
    runner = replace(
        old,
        folder=folder,
        provenance=replace(old.provenance, digests=digests),
        data_dir=str(data) if any(data.iterdir()) else None,
        plugins=tuple(str(places[path]) for path in old.plugins),
    )
    return runner, replace(bundle.job, tasks=tuple(_moved(t, moved) for t in bundle.job.tasks))


def _moved(task: Task, moved: Mapping[Any, Any]) -> Task:
    """Return a task with the paths of this node."""
    return replace(
        task,
        federation_config=replace(task.federation_config, data=moved[task.federation_config.data]),
    )


def _sweep() -> None:
    """Remove folders of jobs whose worker was killed."""
    import time

    for path in Path(tempfile.gettempdir()).glob(f"{PREFIX}*"):
        try:
            if path.stat().st_uid == os.getuid() and time.time() - path.stat().st_mtime > _DAY:
                shutil.rmtree(path, ignore_errors=True)
        except OSError:
            continue


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
            f"--on {text}: each user who reaches this cluster can read the rows and run code on "
            "it; start it with RAY_AUTH_MODE=token, and set the same variable here"
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

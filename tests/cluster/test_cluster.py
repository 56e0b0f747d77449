"""A benchmark on a cluster gives the same rows as on this machine."""

import errno
import json
import os
import signal
import tempfile
from dataclasses import replace
from itertools import chain

import pandas as pd
import pytest

from fedtrees.cluster import (
    Done,
    RayEngine,
    accept,
    address_of,
    apart,
    bundle_of,
    tables_of,
    work,
)
from fedtrees.core.errors import StoreError, UsageError
from fedtrees.experiments.executor import Lost, Processes, run_jobs
from fedtrees.experiments.session import BenchSession
from fedtrees.experiments.suite import Suite
from fedtrees.report.results import read_records

SUITE = """
seeds = 1
[[grid]]
data = [{csv = "%s", target = "y"}]
protocols = ["fedtree-hist[trees=1,max_depth=2]"]
defenses = %s
threats = ["client"]
attacks = ["random-leaf"]
"""


@pytest.fixture
def make_bench(tmp_path):
    """Return a function that creates a benchmark on a user's table, in a named folder."""
    rows = "".join(f"{row % 7},{row * 37 % 101},{row % 2}\n" for row in range(120))
    table = tmp_path / "own.csv"
    table.write_text("a,b,y\n" + rows)

    def make(name, defenses=("split-only",), plugins=()):
        suite = SUITE % (table, json.dumps(defenses))
        return BenchSession(Suite.parse(suite, "grid.toml"), tmp_path / name, plugins=plugins)

    return make


def rows_of(bench):
    """Return the rows of a run without run names and times."""
    rows = read_records(bench.folder)
    is_time = rows["metric"].astype(str).str.contains("seconds")
    return rows[~is_time].drop(columns=["run", "seconds"], errors="ignore").reset_index(drop=True)


class ChildProcessEngine:
    """An engine that encodes every job and runs it in a child process."""

    def __init__(self, bench, lose=()):
        self.bench, self.lose, self.jobs = bench, set(lose), []
        self.tables = tables_of(bench.runner, bench.plan.federation_configs)

    def submit(self, job):
        self.jobs.append(job)
        return len(self.jobs) - 1

    def next(self, busy):
        handle = busy[0]
        if handle in self.lose:
            return handle, Lost("gone")
        bundle = bundle_of(self.jobs[handle], self.bench.runner)
        outcome = work(bundle, self.tables, lambda runner, job: runner.work(job))
        accept(outcome, self.jobs[handle], self.bench.runner)
        return handle, outcome.results

    def close(self):
        pass


@pytest.mark.long
def test_encoded_jobs_and_lost_jobs_leave_the_same_rows(make_bench):
    local_bench, encoded_bench = make_bench("here"), make_bench("there")
    for bench in (local_bench, encoded_bench):
        bench.open(resume=False)
    local_bench.run()
    engine = ChildProcessEngine(encoded_bench, lose=(0, 3))
    counts = encoded_bench.run(engine=engine)
    pd.testing.assert_frame_equal(rows_of(local_bench), rows_of(encoded_bench))
    assert counts.total() == sum(1 for _ in encoded_bench.plan.tasks())
    assert len(engine.jobs) > 2


def test_a_node_with_other_versions_computes_nothing(make_bench):
    bench = make_bench("run")
    bench.open(resume=False)
    job = bench.remaining()[0][0]
    bundle = bundle_of(job, bench.runner)
    changed_bundle = replace(bundle, stamp={**bundle.stamp, "python": "2.7"})
    outcome = work(changed_bundle, {})
    assert "python" in outcome.results
    assert "2.7" in outcome.results
    assert not outcome.cells


def test_a_job_on_a_node_is_private_under_a_permissive_umask(make_bench, monkeypatch, tmp_path):
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "node"))
    (tmp_path / "node").mkdir()
    bench = make_bench("driver")
    bench.open(resume=False)
    modes = {}

    def note_modes(runner, job):
        modes.update((p, p.stat().st_mode & 0o777) for p in (tmp_path / "node").rglob("*"))
        return runner.work(job)

    umask_before = os.umask(0o022)
    try:
        tables = tables_of(bench.runner, bench.plan.federation_configs)
        for job in (job for phase in bench.remaining() for job in phase):
            accept(work(bundle_of(job, bench.runner), tables, note_modes), job, bench.runner)
    finally:
        os.umask(umask_before)
    assert {path.name for path in modes} > {"own.csv"}
    # A finished cell that a job reads.
    assert any(path.suffix == ".json" for path in modes)
    assert all(mode == (0o600 if path.suffix else 0o700) for path, mode in modes.items())
    cells = [*bench.store.cells.glob("*.json")]
    assert {path.stat().st_mode & 0o777 for path in cells} == {0o600}


def test_cells_of_other_jobs_and_damaged_cells_are_refused(make_bench):
    bench = make_bench("run")
    bench.open(resume=False)
    first, second = bench.remaining()[0][:2]
    key = second.tasks[0].key(bench.runner.provenance)
    accept(Done([], {key: b"{}"}), first, bench.runner)
    assert not (bench.store.cells / f"{key}.json").exists()
    with pytest.raises(StoreError, match="damaged"):
        accept(Done([], {key: b"{}"}), second, bench.runner)


@pytest.mark.parametrize("on", ["dask", "ray=nowhere", "ray=ray://a:1", "ray="])
def test_where_to_run_is_checked(on):
    with pytest.raises(UsageError, match="--on"):
        address_of(on)


@pytest.mark.extra("ray")
def test_a_cluster_beyond_this_machine_requires_authentication(monkeypatch):
    monkeypatch.setenv("RAY_AUTH_MODE", "disabled")
    with pytest.raises(UsageError, match="RAY_AUTH_MODE=token"):
        address_of("ray=10.0.0.1:6379")
    assert address_of("ray=127.0.0.1:6379") == "127.0.0.1:6379"
    assert address_of("ray") is None


HUNGRY = """
from fedtrees.core.registry import register
from fedtrees.defenses.suppression import SplitOnly

@register.defense("hungry")
class Hungry(SplitOnly):
    def repair_model(self, model, ctx):
        bytearray(2**30)
        return model
"""


def raise_memory_error(runner, job, driver):
    raise OSError(errno.ENOMEM, "Cannot allocate memory")


def test_exceeding_the_memory_limit_fails_only_this_job(tmp_path, make_bench):
    plugin = tmp_path / "hungry.py"
    plugin.write_text(HUNGRY)
    bench = make_bench("run", defenses=("split-only", "hungry"), plugins=(str(plugin),))
    bench.open(resume=False)
    runner, reasons = replace(bench.runner, memory=0.6), {}
    for job in chain.from_iterable(bench.remaining()):
        if job.tasks[0].is_training:
            apart(runner, job)
            reasons[job.tasks[0].defense.name] = runner.read(job.tasks[0])["reason"]
    assert reasons["split-only"] == ""
    assert reasons["hungry"].startswith("MemoryError")


def test_a_failed_allocation_outside_a_task_loses_only_this_job(make_bench):
    bench = make_bench("run")
    bench.open(resume=False)
    processes = Processes(bench.runner, raise_memory_error)
    try:
        handle = processes.submit(bench.remaining()[0][0])
        assert processes.next([handle]) == (handle, Lost("memory"))
    finally:
        processes.close()


def task_processes():
    """Return the processes that work on a task, which have its name in Ray."""
    pids = []
    for pid in filter(str.isdigit, os.listdir("/proc")):
        try:
            with open(f"/proc/{pid}/cmdline", "rb") as file:
                if file.read().startswith(b"ray::work"):
                    pids.append(int(pid))
        except OSError:
            continue
    return pids


@pytest.mark.extra("ray")
def test_on_ray_no_row_is_lost_if_a_worker_is_killed(make_bench):
    import ray

    local_bench, ray_bench = make_bench("here"), make_bench("ray")
    for bench in (local_bench, ray_bench):
        bench.open(resume=False)
    local_bench.run()
    engine, killed = RayEngine("ray", ray_bench.runner, ray_bench.plan.federation_configs, 2), []

    def kill_a_worker(status, label):
        pids = [] if killed else task_processes()
        for pid in pids[:1]:
            killed.append(pid)
            os.kill(pid, signal.SIGKILL)

    run_jobs(ray_bench.runner, ray_bench.remaining(), 2, kill_a_worker, engine=engine)
    assert killed
    assert not ray.is_initialized()
    ray_bench.run()
    pd.testing.assert_frame_equal(rows_of(local_bench), rows_of(ray_bench))

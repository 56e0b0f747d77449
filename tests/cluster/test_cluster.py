"""A bench on a cluster has the rows of one on this machine."""

import os
import signal
import tempfile
from dataclasses import replace

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
from fedtrees.experiments.executor import Lost, run_jobs
from fedtrees.experiments.session import BenchSession
from fedtrees.experiments.suite import Suite
from fedtrees.report.results import read_records

SUITE = """
seeds = 1
[[grid]]
data = [{csv = "%s", target = "y"}]
protocols = ["fedtree-hist[trees=1,max_depth=2]"]
defenses = ["split-only"]
threats = ["client"]
attacks = ["random-leaf"]
"""


@pytest.fixture
def made(tmp_path):
    """Return what makes a bench on a table of one's own, in a folder."""
    rows = "".join(f"{i % 7},{i * 37 % 101},{i % 2}\n" for i in range(120))
    table = tmp_path / "own.csv"
    table.write_text("a,b,y\n" + rows)
    return lambda name: BenchSession(Suite.parse(SUITE % table, "grid.toml"), tmp_path / name)


def rows_of(bench):
    """Return the rows of a run, less what is its own."""
    rows = read_records(bench.folder)
    timed = rows["metric"].astype(str).str.contains("seconds")
    return rows[~timed].drop(columns=["run", "seconds"], errors="ignore").reset_index(drop=True)


class Far:
    """Every job as it travels, done in this process's own children."""

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
        done = work(bundle, self.tables, lambda runner, job: runner.work(job))
        accept(done, self.jobs[handle], self.bench.runner)
        return handle, done.results

    def close(self):
        pass


@pytest.mark.long
def test_jobs_that_travel_and_are_lost_leave_the_same_rows(made):
    here, there = made("here"), made("there")
    for bench in (here, there):
        bench.open(resume=False)
    here.run()
    far = Far(there, lose=(0, 3))
    counts = there.run(engine=far)
    pd.testing.assert_frame_equal(rows_of(here), rows_of(there))
    assert counts.total() == sum(1 for _ in there.plan.tasks())
    assert len(far.jobs) > 2


def test_a_node_of_other_versions_does_nothing(made):
    bench = made("run")
    bench.open(resume=False)
    job = bench.remaining()[0][0]
    bundle = bundle_of(job, bench.runner)
    other = replace(bundle, stamp={**bundle.stamp, "python": "2.7"})
    done = work(other, {})
    assert "python" in done.results
    assert "2.7" in done.results
    assert not done.cells


def test_a_job_on_a_node_is_private_under_a_permissive_umask(made, monkeypatch, tmp_path):
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "node"))
    (tmp_path / "node").mkdir()
    bench = made("driver")
    bench.open(resume=False)
    modes = {}

    def look(runner, job):
        modes.update((p, p.stat().st_mode & 0o777) for p in (tmp_path / "node").rglob("*"))
        return runner.work(job)

    before = os.umask(0o022)
    try:
        tables = tables_of(bench.runner, bench.plan.federation_configs)
        for job in (job for phase in bench.remaining() for job in phase):
            accept(work(bundle_of(job, bench.runner), tables, look), job, bench.runner)
    finally:
        os.umask(before)
    assert {path.name for path in modes} > {"own.csv"}
    assert any(path.suffix == ".json" for path in modes)  # a finished cell that a job reads
    assert all(mode == (0o600 if path.suffix else 0o700) for path, mode in modes.items())
    cells = [*bench.store.cells.glob("*.json")]
    assert {path.stat().st_mode & 0o777 for path in cells} == {0o600}


def test_cells_of_other_jobs_and_damaged_ones_are_not_taken(made):
    bench = made("run")
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
def test_nobody_unknown_is_let_on_a_cluster_beyond_this_machine(monkeypatch):
    monkeypatch.setenv("RAY_AUTH_MODE", "disabled")
    with pytest.raises(UsageError, match="RAY_AUTH_MODE=token"):
        address_of("ray=10.0.0.1:6379")
    assert address_of("ray=127.0.0.1:6379") == "127.0.0.1:6379"
    assert address_of("ray") is None


@pytest.mark.extra("ray")  # with those of the cluster: it starts a process
def test_more_memory_than_allowed_fails_the_job_and_no_other(made):
    bench = made("run")
    bench.open(resume=False)
    results = apart(replace(bench.runner, memory=0.01), bench.remaining()[0][0])
    assert isinstance(results, Lost) or {status for status, _ in results} == {"failed"}


def working():
    """Return the processes that are at a task: Ray calls them by it."""
    found = []
    for pid in filter(str.isdigit, os.listdir("/proc")):
        try:
            with open(f"/proc/{pid}/cmdline", "rb") as file:
                if file.read().startswith(b"ray::work"):
                    found.append(int(pid))
        except OSError:
            continue
    return found


@pytest.mark.extra("ray")
def test_on_ray_a_worker_is_killed_and_no_row_is_lost(made):
    import ray

    here, there = made("here"), made("ray")
    for bench in (here, there):
        bench.open(resume=False)
    here.run()
    engine, killed = RayEngine("ray", there.runner, there.plan.federation_configs, 2), []

    def done(status, label):
        pids = [] if killed else working()
        for pid in pids[:1]:
            killed.append(pid)
            os.kill(pid, signal.SIGKILL)

    run_jobs(there.runner, there.remaining(), 2, done, engine=engine)
    assert killed
    assert not ray.is_initialized()
    there.run()
    pd.testing.assert_frame_equal(rows_of(here), rows_of(there))

"""Estimates before training: the cost of a run, and tables that are too large for an attack."""

import time

import numpy as np
import pytest
from present import here
from result_rows import read_rows

from fedtrees.attacks.labels.attack import PublishedID2Graph
from fedtrees.experiments import cost_estimate
from fedtrees.experiments.cost_estimate import START, describe_estimate, estimate_cost, memory
from fedtrees.experiments.session import BenchSession
from fedtrees.experiments.suite import Suite


@pytest.fixture(scope="module")
def table(tmp_path_factory):
    rng = np.random.default_rng(0)
    X = np.round(rng.normal(size=(1200, 12)), 3)
    y = (X[:, 0] + rng.normal(size=1200) > 0).astype(int)
    path = tmp_path_factory.mktemp("table") / "table.csv"
    names = ",".join([*(f"x{i}" for i in range(12)), "y"])
    np.savetxt(path, np.column_stack([X, y]), delimiter=",", header=names, comments="", fmt="%g")
    return {"csv": str(path), "target": "y"}


def _bench(folder, **options):
    overrides = {"defenses": ["none"], "threats": ["client"], **options}
    bench = BenchSession(Suite.load("smoke").override(overrides), folder)
    bench.open(False)
    return bench


def _attack_seconds(folder):
    rows = [r for r in read_rows(folder) if r["stage"] == "attack"]
    return sum(float(r["value"]) for r in rows if r["metric"] == "cpu_seconds")


@pytest.mark.slow
@pytest.mark.parametrize("case", ["few trees", "more rows"])
def test_a_run_takes_the_estimated_time(case, table, tmp_path):
    options = {
        "few trees": {"protocols": ["fedtree-hist[trees=3,max_depth=3]"]},
        "more rows": {"protocols": ["nvflare-hist[trees=10,max_depth=4]"], "data": [table]},
    }[case]
    for name in ("to compile", "measured"):
        bench = _bench(tmp_path / name, **options, attacks=["timberstrike"])
        estimate = estimate_cost(bench.plan, list(bench.plan.tasks()), 1, None)
        start = time.process_time()
        bench.run()
    seconds = time.process_time() - start + _attack_seconds(bench.folder)
    assert estimate.unmeasured == ()
    assert seconds / 4 < estimate.cpu_seconds - estimate.compiling - START < 4 * seconds


def test_cost_grows_with_rows_and_trees_but_not_with_finished_cells(table, tmp_path):
    def cost(name, n_finished=0, **options):
        bench = _bench(tmp_path / name, data=[table], attacks=["timberstrike"], **options)
        return estimate_cost(bench.plan, list(bench.plan.tasks())[n_finished:], 1, None)

    small = cost("small", protocols=["fedtree-hist[trees=5]"])
    assert cost("deep", protocols=["fedtree-hist[trees=20]"]).cpu_seconds > small.cpu_seconds
    assert cost("done", 3, protocols=["fedtree-hist[trees=5]"]).cpu_seconds < small.cpu_seconds
    for name in here("defense", ["paillier"]):
        slow = cost("slow", protocols=["fedtree-hist[trees=5]"], defenses=[f"{name}[bits=1024]"])
        assert slow.unmeasured == (name,)


def test_the_estimate_of_a_first_run_includes_the_compilation_of_kernels(tmp_path, monkeypatch):
    def estimate(n_stored):
        monkeypatch.setattr(cost_estimate, "stored_kernels", lambda folders: n_stored)
        return estimate_cost(bench.plan, list(bench.plan.tasks()), 1, None)

    bench = _bench(tmp_path, attacks=["timberstrike"])
    first, later = estimate(0), estimate(cost_estimate.KERNELS)
    assert first.compiling == cost_estimate.KERNELS * cost_estimate.PER_KERNEL
    assert first.cpu_seconds == pytest.approx(later.cpu_seconds + first.compiling)
    assert first.wall_seconds > later.wall_seconds
    assert "46 s of it compile kernels, in the first run only" in describe_estimate(first, 1)
    assert later.compiling == estimate_cost(bench.plan, [], 1, None).compiling == 0
    assert "compile" not in describe_estimate(later, 1)


@pytest.mark.parametrize(
    ("rows", "columns", "processes", "peak"),
    # Values of docs/reference/performance.md; for two processes, their sum.
    [(569, 31, 2, 637), (1_000, 29, 1, 330), (10_000, 29, 1, 456), (100_000, 29, 1, 857),
     (100_000, 55, 2, 1511), (1_000_000, 29, 1, 2263)],
)  # fmt: skip
def test_the_memory_estimate_is_within_a_factor_of_one_and_a_half(rows, columns, processes, peak):
    assert peak / 1.5 < memory(rows * columns, processes) < 1.5 * peak


@pytest.mark.long
def test_too_many_rows_for_an_attack_are_reported_before_training(monkeypatch, tmp_path):
    monkeypatch.setattr(PublishedID2Graph, "max_training_rows", 100)
    bench = _bench(
        tmp_path / "run",
        protocols=["secureboost[trees=2]"],
        threats=["passive"],
        clients=[2],
        attacks=["id2graph-published"],
    )
    message = next(note for note in bench.notes if note.startswith("id2graph-published is not run"))
    assert "training rows, and the attack accepts 100 at most" in message
    bench.run()
    (cell,) = [task for task in bench.plan.tasks() if task.stage == "attack"]
    result = bench.runner.read(cell)
    assert result["status"] == "skipped"
    assert result["reason"] in message

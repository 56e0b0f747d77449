"""What a run is expected to cost, and what is too large for some attack, before training."""

import time

import numpy as np
import pytest
from present import here
from result_rows import read_rows

from fedtrees.attacks.labels.attack import PublishedID2Graph
from fedtrees.experiments.cost_estimate import START, estimate_cost, memory
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
    one = {"defenses": ["none"], "threats": ["client"], **options}
    bench = BenchSession(Suite.load("smoke").override(one), folder)
    bench.open(False)
    return bench


def _attack_seconds(folder):
    rows = [r for r in read_rows(folder) if r["stage"] == "attack"]
    return sum(float(r["value"]) for r in rows if r["metric"] == "cpu_seconds")


@pytest.mark.slow
@pytest.mark.parametrize("which", ["few trees", "more rows"])
def test_a_run_takes_what_was_estimated(which, table, tmp_path):
    options = {
        "few trees": {"protocols": ["fedtree-hist[trees=3,max_depth=3]"]},
        "more rows": {"protocols": ["nvflare-hist[trees=10,max_depth=4]"], "data": [table]},
    }[which]
    for name in ("to compile", "measured"):
        bench = _bench(tmp_path / name, **options, attacks=["timberstrike"])
        found = estimate_cost(bench.plan, list(bench.plan.tasks()), 1, None)
        begun = time.process_time()
        bench.run()
    seconds = time.process_time() - begun + _attack_seconds(bench.folder)
    assert found.unmeasured == ()
    assert seconds / 4 < found.cpu_seconds - START < 4 * seconds


def test_cost_grows_with_rows_trees_and_seeds_but_not_with_what_is_done(table, tmp_path):
    def cost(name, done=0, **options):
        bench = _bench(tmp_path / name, data=[table], attacks=["timberstrike"], **options)
        return estimate_cost(bench.plan, list(bench.plan.tasks())[done:], 1, None)

    small = cost("small", protocols=["fedtree-hist[trees=5]"])
    assert cost("deep", protocols=["fedtree-hist[trees=20]"]).cpu_seconds > small.cpu_seconds
    assert cost("done", 3, protocols=["fedtree-hist[trees=5]"]).cpu_seconds < small.cpu_seconds
    for name in here("defense", ["paillier"]):
        slow = cost("slow", protocols=["fedtree-hist[trees=5]"], defenses=[f"{name}[bits=1024]"])
        assert slow.unmeasured == (name,)


@pytest.mark.parametrize(
    ("rows", "columns", "processes", "peak"),
    # docs/reference/performance.md; of two processes what they need together
    [(569, 31, 2, 637), (1_000, 29, 1, 330), (10_000, 29, 1, 456), (100_000, 29, 1, 857),
     (100_000, 55, 2, 1511), (1_000_000, 29, 1, 2263)],
)  # fmt: skip
def test_memory_is_what_was_measured_to_half_as_much_again(rows, columns, processes, peak):
    assert peak / 1.5 < memory(rows * columns, processes) < 1.5 * peak


@pytest.mark.long
def test_too_many_rows_for_an_attack_are_said_before_training(monkeypatch, tmp_path):
    monkeypatch.setattr(PublishedID2Graph, "max_training_rows", 100)
    bench = _bench(
        tmp_path / "run",
        protocols=["secureboost[trees=2]"],
        threats=["passive"],
        clients=[2],
        attacks=["id2graph-published"],
    )
    said = next(note for note in bench.notes if note.startswith("id2graph-published is not run"))
    assert "training rows, and the attack accepts 100 at most" in said
    bench.run()
    (cell,) = [c for c in bench.plan.tasks() if c.stage == "attack"]
    result = bench.runner.read(cell)
    assert result["status"] == "skipped"
    assert result["reason"] in said

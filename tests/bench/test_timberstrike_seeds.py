"""The published attacks of TimberStrike on several trainings score as in a benchmark."""

from argparse import Namespace

import numpy as np
import pytest

from fedtrees.benchmarks.papers import timberstrike_seeds
from fedtrees.benchmarks.papers.comparisons import read_published
from fedtrees.benchmarks.papers.timberstrike_seeds import (
    SUITES,
    Run,
    accuracies,
    reconstruction_accuracy,
    run_study,
    runs,
)
from fedtrees.core.specs import Spec
from fedtrees.data.catalogue import load
from fedtrees.experiments.session import BenchSession
from fedtrees.experiments.suite import Suite
from fedtrees.metrics.records import score_records
from fedtrees.report.results import load_rows

PROTOCOLS = {"ra_union": "fedtree-hist", "ra_owner": "flower-bagging"}


@pytest.mark.parametrize("item", SUITES)
def test_every_published_setting_has_a_training(item):
    items = {item, SUITES[item][1]}
    published = {c.setting for c in read_published("timberstrike") if c.item in items}
    published = {s for s in published if not s.startswith("pima")}
    assert published <= set(runs(item))


@pytest.mark.parametrize("metric", PROTOCOLS)
def test_scores_equal_those_of_a_benchmark(metric, tmp_path):
    protocol = Spec(PROTOCOLS[metric], {"trees": 3, "max_depth": 2})
    suite = f"""
seeds = [1]
[[grid]]
data = ["breast-cancer"]
clients = [3]
threats = ["client[index=2]"]
protocols = ["{protocol}"]
attacks = ["timberstrike-published[random_leaf=true]"]
"""
    bench = BenchSession(Suite.parse(suite, "small"), tmp_path / "run")
    bench.open(resume=False)
    bench.run()
    rows = load_rows(tmp_path / "run")
    chosen = rows[(rows["metric"] == metric) & (rows["stage"] == "attack")]
    run = Run("breast-cancer", Spec("iid"), protocol, 3, "none")
    scores_of_study = accuracies(run, 1, None)["RA (F-TP)"]
    # The attack draws leaves from another random stream.
    assert scores_of_study == pytest.approx(100 * chosen["value"].iloc[0], abs=2.5)


def test_the_accuracy_is_that_of_all_scores_of_records():
    data = load("breast-cancer")
    truth, guess = data.table.take(np.arange(60)), data.table.take(np.arange(50, 120))
    top = data.schema.names[:3]
    scores = score_records(guess, truth, data.schema, top, limit=60)
    measured = [reconstruction_accuracy(guess, truth, data.schema, c) for c in ((), top)]
    assert measured == pytest.approx([100 * scores.ra, 100 * scores.ra_top])


def test_an_interrupted_study_continues(tmp_path, monkeypatch):
    seen = []

    def measure(run, seed, data_dir, attacks):
        seen.append((seed, *attacks))
        scores = [score + ending for score in attacks for ending in ("", "_top")]
        return dict.fromkeys(scores, 50.0 + seed)

    monkeypatch.setattr(timberstrike_seeds, "accuracies", measure)
    options = Namespace(
        out=tmp_path, item=["Table 8"], setting="*", seeds=1, strongest=False, data_dir=None
    )
    list(run_study(options))
    options.seeds = 2
    compared = list(run_study(options))
    assert seen == [(0, "RA", "RA (F-TP)")] * 18 + [(1, "RA", "RA (F-TP)")] * 18
    assert {comparison.item for comparison in compared} == {"Table 8", "Table 9"}
    assert {(comparison.measured, comparison.seeds) for comparison in compared} == {(50.5, 2)}
    options.strongest, options.setting = True, "*, depth 5, epsilon 25"
    compared = list(run_study(options))
    assert seen[36:] == [(0, "strongest"), (1, "strongest")]
    best = [comparison for comparison in compared if comparison.strongest == 50.5]
    assert [(comparison.item, comparison.score) for comparison in best] == [
        ("Table 8", "RA"),
        ("Table 9", "RA"),
    ]

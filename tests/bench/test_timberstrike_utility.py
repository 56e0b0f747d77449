"""Utility of the models of TimberStrike: each published value has a training."""

from argparse import Namespace

import numpy as np
import pytest

from fedtrees.benchmarks.papers import timberstrike_utility
from fedtrees.benchmarks.papers.comparisons import read_published
from fedtrees.benchmarks.papers.timberstrike_utility import models, run, scores_as_published


def test_every_published_utility_has_the_training_that_is_attacked():
    trainings = models()
    cells = [c for c in read_published("timberstrike") if c.score in ("AUC", "F1")]
    assert len(cells) == 156
    assert all((c.item, c.setting) in trainings for c in cells)
    noisy = trainings["Table 8", "fedtree-hist, depth 4, epsilon 25"]
    assert (noisy.data, noisy.defense) == ("pima", "laplace-gradient[epsilon=25]")
    assert noisy.protocol.params["max_depth"] == 4
    assert trainings["Table 1", "stroke, flower-cyclic, depth 8"].protocol.params["trees"] == 300


def test_scores_are_those_of_the_code_of_the_authors():
    """Each protocol averages over its parts of the test rows, or shifts the threshold of F1."""
    y = np.zeros(96, dtype=np.int64)
    y[[0, 1, 40, 41]] = 1
    p = np.where(y == 1, 0.6, 0.1)
    p[2] = 0.7
    # The last of three batches of 32 rows has no positive row, so that its AUC and F1 are 0.
    auc = (58 / 60 + 1 + 0) / 3
    assert scores_as_published("fedxgbllr", y, p) == pytest.approx(
        {"AUC": auc, "F1": (0.8 + 1 + 0) / 3}
    )
    # Three parts of the clients, which are the same rows here.
    assert scores_as_published("flower-bagging", y, p)["AUC"] == pytest.approx(auc)
    # A probability of 0.6 is a margin of 0.41, below 0.5.
    assert scores_as_published("fedtree-hist", y, p)["F1"] == 0.0
    assert scores_as_published("fedtree-hist", y, np.where(y == 1, 0.63, 0.1))["F1"] == 1.0


def test_an_interrupted_study_computes_only_missing_trainings(tmp_path, monkeypatch):
    trained = []

    def score(model, seed, data_dir):
        trained.append((model, seed))
        return {"AUC": 0.75, "F1": 0.25 + seed}

    monkeypatch.setattr(timberstrike_utility, "utility", score)
    options = Namespace(out=tmp_path, seeds=1, data_dir=None, setting="*")
    list(run(options))
    assert len(trained) == 78
    options.seeds = 2
    compared = list(run(options))
    assert [seed for _, seed in trained[78:]] == [1] * 78
    c = next(c for c in compared if c.score == "F1")
    assert (c.seeds, c.measured, c.deviation) == (2, 0.75, pytest.approx(0.5**0.5))

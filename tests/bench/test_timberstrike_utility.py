"""Utility of the models of TimberStrike: each published value has a training."""

from argparse import Namespace

import pytest

from fedtrees.benchmarks.papers import timberstrike_utility
from fedtrees.benchmarks.papers.comparisons import read_published
from fedtrees.benchmarks.papers.timberstrike_utility import Model, models, run, utility
from fedtrees.core.specs import Spec


def test_every_published_utility_has_the_training_that_is_attacked():
    trainings = models()
    cells = [c for c in read_published("timberstrike") if c.score in ("AUC", "F1")]
    assert len(cells) == 156
    assert all((c.item, c.setting) in trainings for c in cells)
    noisy = trainings["Table 8", "fedtree-hist, depth 4, epsilon 25"]
    assert (noisy.data, noisy.defense) == ("pima", "laplace-gradient[epsilon=25]")
    assert noisy.protocol.params["max_depth"] == 4
    assert trainings["Table 1", "stroke, flower-cyclic, depth 8"].protocol.params["trees"] == 300


def test_f1_is_that_of_the_positive_class():
    from sklearn.metrics import f1_score

    protocol = Spec("nvflare-hist", {"trees": 2, "max_depth": 2})
    model = Model("breast-cancer", Spec("iid"), protocol, "none")
    scores = utility(model, 0, None)
    training, federation, _ = timberstrike_utility.train_federation(
        "breast-cancer", protocol, 3, 0, None, partition=Spec("iid")
    )
    predicted = training.predict(federation.test.X) > 0.5
    y = federation.test.y
    assert scores["F1"] == f1_score(y, predicted) != f1_score(y, predicted, average="macro")


def test_an_interrupted_study_computes_only_missing_trainings(tmp_path, monkeypatch):
    trained = []

    def score(model, seed, data_dir):
        trained.append((model, seed))
        return {"AUC": 0.75, "F1": 0.25 + seed}

    monkeypatch.setattr(timberstrike_utility, "utility", score)
    options = Namespace(out=tmp_path, seeds=1, data_dir=None)
    list(run(options))
    assert len(trained) == 78
    options.seeds = 2
    compared = list(run(options))
    assert [seed for _, seed in trained[78:]] == [1] * 78
    c = next(c for c in compared if c.score == "F1")
    assert (c.seeds, c.ours, c.deviation) == (2, 0.75, pytest.approx(0.5**0.5))

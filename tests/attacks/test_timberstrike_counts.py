"""First-tree counts: exact where the arithmetic allows, best where noise does not."""

from __future__ import annotations

import guessed
import numpy as np
import pytest
from sklearn.datasets import load_breast_cancer
from timberstrike_world import world

from fedtrees.attacks.observations.boosting import (
    BoostingObservations,
    ObservedSums,
    RowCounts,
    SumVariance,
)
from fedtrees.attacks.timberstrike import Options, reconstruct
from fedtrees.core.deterministic_channels import Decimals
from fedtrees.trees.boosted.params import TreeParams

ONE_TREE = Options(max_trees=1, chains=1)


def guess_counts(w, evidence, own="own", options=ONE_TREE):
    own = w.local_rows if own == "own" else own
    guess = reconstruct(evidence, own, w.schema, options, np.random.default_rng(0))
    return guessed.counts(guess)[0]


def test_statistics_give_exact_counts_on_xgboost_json():
    """Float32 covers and leaf values of XGBoost itself are precise enough."""
    import xgboost as xgb

    from fedtrees.core.schema import Feature, Schema, Table
    from fedtrees.trees.files.xgboost import from_xgboost_json

    X, y = load_breast_cancer(return_X_y=True)
    X = X.astype(np.float32)
    own = Table(X[:100], y[:100])
    train = xgb.DMatrix(X, label=y, nthread=1)
    options = {"objective": "binary:logistic", "max_depth": 4, "tree_method": "hist", "nthread": 1}
    booster = xgb.train(options, train, 1)
    forest = from_xgboost_json(bytes(booster.save_raw("json")))
    evidence = BoostingObservations(
        forest.trees,
        forest.base_margin[0],
        TreeParams(),
        ObservedSums("statistics"),
        row_counts=RowCounts(len(y)),
    )
    schema = Schema(tuple(Feature(f"x{k}") for k in range(X.shape[1])), "y")
    counts = guessed.counts(reconstruct(evidence, own, schema, ONE_TREE, np.random.default_rng(0)))[
        0
    ]
    leaf = forest.apply(X[100:])[:, 0]
    for c, n in ((0, counts.n0), (1, counts.n1)):
        truth = [((leaf == j) & (y[100:] == c)).sum() for j in counts.leaf]
        np.testing.assert_array_equal(n, truth)


@pytest.mark.parametrize("level", ["statistics", "histograms", "values"])
@pytest.mark.parametrize("depth", [2, 5])
def test_counts_are_exact_with_label_mean_base_score(level, depth):
    X, y = load_breast_cancer(return_X_y=True)
    w = world(X, y, 120, trees=1, max_depth=depth)
    counts = guess_counts(w, w.evidence(level))
    np.testing.assert_array_equal(counts.n0, w.first_counts()[0])
    np.testing.assert_array_equal(counts.n1, w.first_counts()[1])


def test_histograms_alone_give_the_sums_of_the_leaves():
    from dataclasses import replace

    X, y = load_breast_cancer(return_X_y=True)
    w = world(X, y, 120, trees=1)
    bare = tuple(replace(t, g=None, h=None) for t in w.forest.trees)
    counts = guess_counts(w, w.evidence("histograms", trees=bare))
    np.testing.assert_array_equal(counts.n0, w.first_counts()[0])
    np.testing.assert_array_equal(counts.n1, w.first_counts()[1])


@pytest.mark.parametrize("decimals", [6, 4])
def test_values_rounded_to_some_decimals_still_give_exact_counts(decimals):
    from dataclasses import replace

    X, y = load_breast_cancer(return_X_y=True)
    w = world(X, y, 120, trees=1, max_depth=4)
    tree = w.evidence("values").trees[0]
    law = Decimals(decimals, float32=True)
    rounded = (replace(tree, value=law.send(tree.value)),)
    counts = guess_counts(w, w.evidence("values", trees=rounded, rounding=law))
    np.testing.assert_array_equal(counts.n0, w.first_counts()[0])
    np.testing.assert_array_equal(counts.n1, w.first_counts()[1])


def test_values_meet_the_declared_number_of_rows_where_they_are_ambiguous():
    """With base score 1/2 a value fixes a reduced fraction only; the total must still hold."""
    X, y = load_breast_cancer(return_X_y=True)
    w = world(X, y, 120, trees=1, max_depth=5, base_score=0.5)
    counts = guess_counts(w, w.evidence("values"))
    assert (counts.n0 + counts.n1).sum() == len(w.victims)
    exact = (counts.n0 == w.first_counts()[0]) & (counts.n1 == w.first_counts()[1])
    assert exact.mean() >= 0.7


def test_values_find_the_number_of_rows_when_it_is_not_declared():
    X, y = load_breast_cancer(return_X_y=True)
    w = world(X, y, 120, trees=1, max_depth=4)
    counts = guess_counts(w, w.evidence("values", n_rows=None))
    assert (counts.n0 + counts.n1).sum() == len(w.victims)


@pytest.mark.long
def test_known_noise_is_shrunk_not_swallowed():
    """Noise-aware counts beat rounding the noisy sums, and nearly add up to the declared total.

    Every leaf's counts are the most probable ones of this leaf, because exact leaves are scored.
    Modes of skewed distributions need not add up to the total.
    """
    from dataclasses import replace

    X, y = load_breast_cancer(return_X_y=True)
    w = world(X, y, 200, trees=1, max_depth=4)
    tree = w.forest.trees[0]
    n0, n1 = w.first_counts()
    rng = np.random.default_rng(3)
    aware, naive = 0, 0
    for _ in range(10):
        noisy = replace(
            tree,
            g=tree.g + 5 * rng.normal(size=len(tree)),
            h=tree.h + 5 * rng.normal(size=len(tree)),
        )
        variance = np.full(len(tree), 25.0)
        known = w.evidence(trees=(noisy,), noise=(SumVariance(variance, variance),))
        counts = guess_counts(w, known)
        total = (counts.n0 + counts.n1).sum()
        assert total == pytest.approx(len(w.victims), rel=0.1)
        assert counts.n0.min() >= 0
        assert counts.n1.min() >= 0
        aware += np.abs(counts.n0 - n0).sum() + np.abs(counts.n1 - n1).sum()
        counts = guess_counts(w, w.evidence(trees=(noisy,)))
        naive += np.abs(counts.n0 - n0).sum() + np.abs(counts.n1 - n1).sum()
    assert aware < 0.6 * naive

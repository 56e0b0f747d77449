"""First-tree counts are exact if sums are exact, and close under noise."""

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


def guess_counts(small_world, evidence, local_rows="own", options=ONE_TREE):
    local_rows = small_world.local_rows if local_rows == "own" else local_rows
    guess = reconstruct(evidence, local_rows, small_world.schema, options, np.random.default_rng(0))
    return guessed.counts(guess)[0]


def test_statistics_give_exact_counts_on_xgboost_json():
    """The float32 covers and leaf values of XGBoost are precise enough."""
    import xgboost as xgb

    from fedtrees.core.schema import Feature, Schema, Table
    from fedtrees.trees.files.xgboost import from_xgboost_json

    X, y = load_breast_cancer(return_X_y=True)
    X = X.astype(np.float32)
    local_rows = Table(X[:100], y[:100])
    matrix = xgb.DMatrix(X, label=y, nthread=1)
    options = {"objective": "binary:logistic", "max_depth": 4, "tree_method": "hist", "nthread": 1}
    booster = xgb.train(options, matrix, 1)
    forest = from_xgboost_json(bytes(booster.save_raw("json")))
    evidence = BoostingObservations(
        forest.trees,
        forest.base_margin[0],
        TreeParams(),
        ObservedSums("statistics"),
        row_counts=RowCounts(len(y)),
    )
    schema = Schema(tuple(Feature(f"x{k}") for k in range(X.shape[1])), "y")
    counts = guessed.counts(
        reconstruct(evidence, local_rows, schema, ONE_TREE, np.random.default_rng(0))
    )[0]
    leaf = forest.apply(X[100:])[:, 0]
    for label, claimed in ((0, counts.n0), (1, counts.n1)):
        truth = [((leaf == leaf_id) & (y[100:] == label)).sum() for leaf_id in counts.leaf]
        np.testing.assert_array_equal(claimed, truth)


@pytest.mark.parametrize("level", ["statistics", "histograms", "values"])
@pytest.mark.parametrize("depth", [2, 5])
def test_counts_are_exact_with_label_mean_base_score(level, depth):
    X, y = load_breast_cancer(return_X_y=True)
    small_world = world(X, y, 120, trees=1, max_depth=depth)
    counts = guess_counts(small_world, small_world.evidence(level))
    np.testing.assert_array_equal(counts.n0, small_world.first_counts()[0])
    np.testing.assert_array_equal(counts.n1, small_world.first_counts()[1])


def test_histograms_give_the_sums_of_the_leaves():
    from dataclasses import replace

    X, y = load_breast_cancer(return_X_y=True)
    small_world = world(X, y, 120, trees=1)
    bare = tuple(replace(t, g=None, h=None) for t in small_world.forest.trees)
    counts = guess_counts(small_world, small_world.evidence("histograms", trees=bare))
    np.testing.assert_array_equal(counts.n0, small_world.first_counts()[0])
    np.testing.assert_array_equal(counts.n1, small_world.first_counts()[1])


@pytest.mark.parametrize("decimals", [6, 4])
def test_values_rounded_to_some_decimals_still_give_exact_counts(decimals):
    from dataclasses import replace

    X, y = load_breast_cancer(return_X_y=True)
    small_world = world(X, y, 120, trees=1, max_depth=4)
    tree = small_world.evidence("values").trees[0]
    law = Decimals(decimals, float32=True)
    rounded = (replace(tree, value=law.send(tree.value)),)
    counts = guess_counts(small_world, small_world.evidence("values", trees=rounded, rounding=law))
    np.testing.assert_array_equal(counts.n0, small_world.first_counts()[0])
    np.testing.assert_array_equal(counts.n1, small_world.first_counts()[1])


def test_ambiguous_values_give_counts_with_the_declared_total():
    """With base score 1/2 a value determines only a reduced fraction, but the total must be the
    declared one.
    """
    X, y = load_breast_cancer(return_X_y=True)
    small_world = world(X, y, 120, trees=1, max_depth=5, base_score=0.5)
    counts = guess_counts(small_world, small_world.evidence("values"))
    assert (counts.n0 + counts.n1).sum() == len(small_world.victims)
    exact = (counts.n0 == small_world.first_counts()[0]) & (
        counts.n1 == small_world.first_counts()[1]
    )
    assert exact.mean() >= 0.7


def test_values_find_the_number_of_rows_when_it_is_not_declared():
    X, y = load_breast_cancer(return_X_y=True)
    small_world = world(X, y, 120, trees=1, max_depth=4)
    counts = guess_counts(small_world, small_world.evidence("values", n_rows=None))
    assert (counts.n0 + counts.n1).sum() == len(small_world.victims)


@pytest.mark.long
def test_counts_under_known_noise_are_better_than_rounded_sums():
    """Counts that consider the noise beat rounded sums, and have nearly the declared total.

    The counts of every leaf are the most probable ones of this leaf, because exact leaves are
    scored. Modes of skewed distributions need not have the declared total.
    """
    from dataclasses import replace

    X, y = load_breast_cancer(return_X_y=True)
    small_world = world(X, y, 200, trees=1, max_depth=4)
    tree = small_world.forest.trees[0]
    n0, n1 = small_world.first_counts()
    rng = np.random.default_rng(3)
    aware, naive = 0, 0
    for _ in range(10):
        noisy = replace(
            tree,
            g=tree.g + 5 * rng.normal(size=len(tree)),
            h=tree.h + 5 * rng.normal(size=len(tree)),
        )
        variance = np.full(len(tree), 25.0)
        noisy_evidence = small_world.evidence(
            trees=(noisy,), noise=(SumVariance(variance, variance),)
        )
        counts = guess_counts(small_world, noisy_evidence)
        total = (counts.n0 + counts.n1).sum()
        assert total == pytest.approx(len(small_world.victims), rel=0.1)
        assert counts.n0.min() >= 0
        assert counts.n1.min() >= 0
        aware += np.abs(counts.n0 - n0).sum() + np.abs(counts.n1 - n1).sum()
        counts = guess_counts(small_world, small_world.evidence(trees=(noisy,)))
        naive += np.abs(counts.n0 - n0).sum() + np.abs(counts.n1 - n1).sum()
    assert aware < 0.6 * naive

"""More than two classes: exact counts per class, rows in their leaves, and scores above the
blind guess.
"""

from __future__ import annotations

import importlib
from dataclasses import replace

import guessed
import numpy as np
import pytest
from federations import view_in
from sklearn.datasets import load_iris, load_wine
from timberstrike_world import accuracy, structured, world

from fedtrees.attacks.counts.leaf_sums import victim_sums
from fedtrees.attacks.joint import reconstruct as joint
from fedtrees.attacks.joint.attack import Joint
from fedtrees.attacks.timberstrike import Options, reconstruct
from fedtrees.attacks.timberstrike.attack import TimberStrike
from fedtrees.blind_baselines.guesses import blind_guesses
from fedtrees.core.claims import LeafCounts
from fedtrees.core.errors import DataError
from fedtrees.core.schema import Feature, Schema

LEVELS = ("values", "statistics", "histograms")
QUICK = Options(chains=2)


@pytest.fixture(scope="module")
def wine_world():
    X, y = load_wine(return_X_y=True)
    return world(X, y, 50, classes=3, trees=8, max_bin=64)


def run_attack(iris_world, evidence, options=QUICK, seed=0):
    return reconstruct(
        evidence, iris_world.local_rows, iris_world.schema, options, np.random.default_rng(seed)
    )


@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize("depth", [2, 5])
def test_counts_of_every_class_are_exact(level, depth):
    X, y = load_iris(return_X_y=True)
    iris_world = world(X[:140], y[:140], 40, classes=3, trees=2, max_depth=depth)
    # The option disables the comparison with the blind guess.
    guess = run_attack(iris_world, iris_world.evidence(level), Options(chains=2, points="joint"))
    assert [claim.tree for claim in guessed.counts(guess)] == [0, 1, 2]
    for t, counts in enumerate(guessed.counts(guess)):
        for claimed, truth in zip((counts.n0, counts.n1), iris_world.first_counts(t), strict=True):
            np.testing.assert_array_equal(claimed, truth)
    np.testing.assert_array_equal(
        np.bincount(guessed.rows(guess).y), np.bincount(iris_world.victims.y)
    )


@pytest.mark.parametrize("level", ["values", "statistics"])
def test_rows_lie_in_the_counted_leaves_of_their_class(wine_world, level, monkeypatch):
    """Check the reconstruction before the vote, which also considers draws of local rows."""
    module = importlib.import_module("fedtrees.attacks.timberstrike.reconstruct")
    monkeypatch.setattr(module, "vote_on_rows", lambda reconstruction, *_: (reconstruction, {}))
    records = guessed.rows(run_attack(wine_world, wine_world.evidence(level)))
    leaf = wine_world.forest.apply(records.X)
    for t in range(3):
        guessed_counts = [
            ((leaf[:, t] == leaf_id) & (records.y == t)).sum()
            for leaf_id in wine_world.forest.trees[t].leaves
        ]
        np.testing.assert_array_equal(guessed_counts, wine_world.first_counts(t)[1])


def test_histograms_give_a_higher_score_than_the_best_blind_guess(wine_world):
    blind_tables = blind_guesses(
        wine_world.local_rows, wine_world.schema, len(wine_world.victims), np.random.default_rng(0)
    )
    best_blind_score = max(
        accuracy(blind_table, wine_world.victims, wine_world.schema)
        for blind_table in blind_tables.values()
    )
    bins = guessed.rows(run_attack(wine_world, wine_world.evidence("histograms"), Options()))
    assert accuracy(bins, wine_world.victims, wine_world.schema) > best_blind_score + 0.04


def test_sums_of_later_rounds_improve_the_guess_over_random_leaves():
    """The control assigns rows to random leaves of the same trees."""
    X, _ = structured()
    noisy = X[:, 0] + 0.5 * np.random.default_rng(2).normal(size=len(X))
    small_world = world(X, np.digitize(noisy, [-0.5, 0.5]), 40, classes=3)
    options = Options(chains=1, use_prior=False, points="mid", max_trees=8)
    scores = []
    for option in (options, replace(options, random_leaf=True)):
        records = guessed.rows(run_attack(small_world, small_world.evidence(), option))
        scores.append(accuracy(records, small_world.victims, small_world.schema))
    assert scores[0] > scores[1] + 0.03


def test_sums_of_the_victims_are_those_of_their_gradients(wine_world):
    """The trees of a round are grown on the margins before it, and the sums include the local
    rows.
    """
    sums = victim_sums(wine_world.evidence(), wine_world.local_rows, len(wine_world.forest.trees))
    rows, objective = wine_world.victims, wine_world.forest.objective
    leaf = wine_world.forest.apply(rows.X)
    for t, tree in enumerate(wine_world.forest.trees):
        margin = np.ascontiguousarray(wine_world.forest.first(t // 3).margin(rows.X).T)
        g, h = objective.gradients(margin, rows.y)[t % 3].astype(np.float64).T
        for sums_of_attack, gradient in ((sums[t].g, g), (sums[t].h, h)):
            truth = np.bincount(leaf[:, t], weights=gradient, minlength=len(tree))[tree.leaves]
            np.testing.assert_allclose(sums_of_attack, truth, atol=1e-4)


def test_the_path_of_a_single_victim_satisfies_every_sum():
    X, y = load_iris(return_X_y=True)
    order = np.random.default_rng(0).permutation(150)
    iris_world = world(X, y, 149, classes=3, trees=6, order=order)
    guess = run_attack(iris_world, iris_world.evidence(), Options(chains=1))
    assert guessed.rows(guess).y[0] == iris_world.victims.y[0]
    assert guess.notes["residual_last_tree"] < 1e-3
    np.testing.assert_array_equal(
        iris_world.forest.apply(guessed.rows(guess).X),
        iris_world.forest.apply(iris_world.victims.X),
    )


def test_a_round_is_a_tree_of_every_class(wine_world):
    assert (
        run_attack(wine_world, wine_world.evidence(), Options(chains=1, max_trees=2)).notes[
            "trees_read"
        ]
        == 6
    )
    with pytest.raises(DataError, match="23 trees do not make rounds of 3"):
        wine_world.evidence(trees=wine_world.forest.trees[:-1])


def test_same_seed_same_guess(wine_world):
    first, second = (
        guessed.rows(run_attack(wine_world, wine_world.evidence(), seed=3)) for _ in range(2)
    )
    np.testing.assert_array_equal(first.X, second.X)


def test_attacks_on_several_classes_apply_to_unsampled_rounds():
    view = view_in("fedtree-hist[trees=1,max_depth=2]", "client-1", classes=3)
    assert TimberStrike().inapplicable(view) is None
    assert Joint().inapplicable(view) is None
    sampled = view_in("fedtree-hist[trees=1,max_depth=2,subsample=0.5]", "client-1", classes=3)
    assert "on a sample of the rows" in str(Joint().inapplicable(sampled))
    assert TimberStrike().inapplicable(sampled) is None


@pytest.mark.long
def test_the_joint_attack_reads_several_classes(wine_world):
    """Chains satisfy the sums of later rounds: the residual is far below the gradient of a row."""
    quick = joint.Options(chains=4, moves=400)
    rng = np.random.default_rng(0)
    guess = joint.reconstruct(
        wine_world.evidence(), wine_world.local_rows, wine_world.schema, quick, rng
    )
    counts = guess.all(LeafCounts)
    assert [claim.tree for claim in counts] == [0, 1, 2]
    for claim in counts:
        np.testing.assert_array_equal(
            claim.counts, np.stack(wine_world.first_counts(claim.tree), axis=1)
        )
    table = guessed.rows(guess)
    assert np.abs(np.bincount(table.y) - np.bincount(wine_world.victims.y)).max() <= 3
    assert guess.notes["residual_rms"] < 0.35
    assert accuracy(table, wine_world.victims, wine_world.schema) > 0.5


def test_blind_labels_of_several_classes_have_the_local_shares():
    schema = Schema((Feature("a", low=0, high=1),), "y", ("x", "y", "z"))
    small_world = world(
        np.random.default_rng(0).random((60, 1)), np.arange(60) % 3, 40, classes=3, trees=1
    )
    rng = np.random.default_rng(1)
    for name, guess in blind_guesses(small_world.local_rows, schema, 600, rng).items():
        shares = np.bincount(guess.y, minlength=3) / 600
        if name == "constant":
            assert shares.max() == 1
        else:
            np.testing.assert_allclose(
                shares, np.bincount(small_world.local_rows.y) / 40, atol=0.08
            )
    counts = np.array([40, 0, 20])
    for name, guess in blind_guesses(None, schema, 30, rng, counts=counts, draws=1).items():
        assert np.bincount(guess.y, minlength=3).tolist() == [20, 0, 10], name
    with pytest.raises(DataError, match="3 classes"):
        blind_guesses(small_world.local_rows, schema, 10, rng, counts=np.array([4, 6]))

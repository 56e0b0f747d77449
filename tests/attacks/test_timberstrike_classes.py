"""More than two classes: exact counts per class, rows in their leaves, scores above the blind."""

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
def wine():
    X, y = load_wine(return_X_y=True)
    return world(X, y, 50, classes=3, trees=8, max_bin=64)


def attack(w, evidence, options=QUICK, seed=0):
    return reconstruct(evidence, w.local_rows, w.schema, options, np.random.default_rng(seed))


@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize("depth", [2, 5])
def test_counts_of_every_class_are_exact(level, depth):
    X, y = load_iris(return_X_y=True)
    w = world(X[:140], y[:140], 40, classes=3, trees=2, max_depth=depth)
    guess = attack(w, w.evidence(level), Options(chains=2, points="joint"))  # weighs no blind guess
    assert [c.tree for c in guessed.counts(guess)] == [0, 1, 2]
    for t, counts in enumerate(guessed.counts(guess)):
        for got, truth in zip((counts.n0, counts.n1), w.first_counts(t), strict=True):
            np.testing.assert_array_equal(got, truth)
    np.testing.assert_array_equal(np.bincount(guessed.rows(guess).y), np.bincount(w.victims.y))


@pytest.mark.parametrize("level", ["values", "statistics"])
def test_rows_lie_in_the_counted_leaves_of_their_own_class(wine, level, monkeypatch):
    """As they are found: what is submitted agrees with draws of own rows, too."""
    module = importlib.import_module("fedtrees.attacks.timberstrike.reconstruct")
    monkeypatch.setattr(module, "vote_on_rows", lambda found, *_: (found, {}))
    records = guessed.rows(attack(wine, wine.evidence(level)))
    leaf = wine.forest.apply(records.X)
    for t in range(3):
        found = [((leaf[:, t] == j) & (records.y == t)).sum() for j in wine.forest.trees[t].leaves]
        np.testing.assert_array_equal(found, wine.first_counts(t)[1])


def test_bins_tell_far_more_than_the_best_blind_guess(wine):
    blind = blind_guesses(wine.local_rows, wine.schema, len(wine.victims), np.random.default_rng(0))
    best = max(accuracy(g, wine.victims, wine.schema) for g in blind.values())
    bins = guessed.rows(attack(wine, wine.evidence("histograms"), Options()))
    assert accuracy(bins, wine.victims, wine.schema) > best + 0.04


def test_sums_of_later_rounds_pull_rows_towards_the_truth():
    """The control sends rows to random leaves of the same trees."""
    X, _ = structured()
    noisy = X[:, 0] + 0.5 * np.random.default_rng(2).normal(size=len(X))
    w = world(X, np.digitize(noisy, [-0.5, 0.5]), 40, classes=3)
    options = Options(chains=1, use_prior=False, points="mid", max_trees=8)
    scores = []
    for o in (options, replace(options, random_leaf=True)):
        records = guessed.rows(attack(w, w.evidence(), o))
        scores.append(accuracy(records, w.victims, w.schema))
    assert scores[0] > scores[1] + 0.03


def test_sums_of_the_victims_are_those_of_their_gradients(wine):
    """The trees of a round are grown on the margins before it, own rows' part included."""
    sums = victim_sums(wine.evidence(), wine.local_rows, len(wine.forest.trees))
    rows, objective = wine.victims, wine.forest.objective
    leaf = wine.forest.apply(rows.X)
    for t, tree in enumerate(wine.forest.trees):
        margin = np.ascontiguousarray(wine.forest.first(t // 3).margin(rows.X).T)
        g, h = objective.gradients(margin, rows.y)[t % 3].astype(np.float64).T
        for seen, part in ((sums[t].g, g), (sums[t].h, h)):
            truth = np.bincount(leaf[:, t], weights=part, minlength=len(tree))[tree.leaves]
            np.testing.assert_allclose(seen, truth, atol=1e-4)


def test_the_only_victims_way_meets_every_sum():
    X, y = load_iris(return_X_y=True)
    order = np.random.default_rng(0).permutation(150)
    w = world(X, y, 149, classes=3, trees=6, order=order)
    guess = attack(w, w.evidence(), Options(chains=1))
    assert guessed.rows(guess).y[0] == w.victims.y[0]
    assert guess.notes["residual_last_tree"] < 1e-3
    np.testing.assert_array_equal(
        w.forest.apply(guessed.rows(guess).X), w.forest.apply(w.victims.X)
    )


def test_a_round_is_a_tree_of_every_class(wine):
    assert attack(wine, wine.evidence(), Options(chains=1, max_trees=2)).notes["trees_read"] == 6
    with pytest.raises(DataError, match="23 trees do not make rounds of 3"):
        wine.evidence(trees=wine.forest.trees[:-1])


def test_same_seed_same_guess(wine):
    first, second = (guessed.rows(attack(wine, wine.evidence(), seed=3)) for _ in range(2))
    np.testing.assert_array_equal(first.X, second.X)


def test_who_can_read_softmax_leaves():
    view = view_in("fedtree-hist[trees=1,max_depth=2]", "client-1", classes=3)
    assert TimberStrike().inapplicable(view) is None
    assert Joint().inapplicable(view) is None
    sampled = view_in("fedtree-hist[trees=1,max_depth=2,subsample=0.5]", "client-1", classes=3)
    assert "on a sample of the rows" in str(Joint().inapplicable(sampled))
    assert TimberStrike().inapplicable(sampled) is None


@pytest.mark.long
def test_all_trees_at_once_read_several_classes(wine):
    """Chains meet the sums of later rounds: what is left of them is far below a row's gradient."""
    quick = joint.Options(chains=4, moves=400)
    rng = np.random.default_rng(0)
    guess = joint.reconstruct(wine.evidence(), wine.local_rows, wine.schema, quick, rng)
    counts = guess.all(LeafCounts)
    assert [c.tree for c in counts] == [0, 1, 2]
    for c in counts:
        np.testing.assert_array_equal(c.counts, np.stack(wine.first_counts(c.tree), axis=1))
    table = guessed.rows(guess)
    assert np.abs(np.bincount(table.y) - np.bincount(wine.victims.y)).max() <= 3
    assert guess.notes["residual_rms"] < 0.35
    assert accuracy(table, wine.victims, wine.schema) > 0.5


def test_blind_labels_of_several_classes_follow_own_rows():
    schema = Schema((Feature("a", low=0, high=1),), "y", ("x", "y", "z"))
    w = world(np.random.default_rng(0).random((60, 1)), np.arange(60) % 3, 40, classes=3, trees=1)
    rng = np.random.default_rng(1)
    for name, guess in blind_guesses(w.local_rows, schema, 600, rng).items():
        shares = np.bincount(guess.y, minlength=3) / 600
        if name == "constant":
            assert shares.max() == 1
        else:
            np.testing.assert_allclose(shares, np.bincount(w.local_rows.y) / 40, atol=0.08)
    counts = np.array([40, 0, 20])
    for name, guess in blind_guesses(None, schema, 30, rng, counts=counts, draws=1).items():
        assert np.bincount(guess.y, minlength=3).tolist() == [20, 0, 10], name
    with pytest.raises(DataError, match="3 classes"):
        blind_guesses(w.local_rows, schema, 10, rng, counts=np.array([4, 6]))

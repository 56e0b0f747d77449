"""The whole TimberStrike attack recovers rows, is deterministic, and accepts unusual evidence."""

from __future__ import annotations

from dataclasses import replace

import guessed
import numpy as np
import pytest
from sklearn.datasets import load_breast_cancer
from timberstrike_world import accuracy, structured, world

from fedtrees.attacks.observations.boosting import SumVariance
from fedtrees.attacks.timberstrike import Options, reconstruct
from fedtrees.core.deterministic_channels import Rounding
from fedtrees.core.errors import UsageError
from fedtrees.core.schema import Table
from fedtrees.trees.boosted.forest import Tree

QUICK = Options(chains=2)


def run_attack(small_world, evidence, local_rows="own", options=QUICK, seed=0):
    local_rows = small_world.local_rows if isinstance(local_rows, str) else local_rows
    return reconstruct(
        evidence, local_rows, small_world.schema, options, np.random.default_rng(seed)
    )


@pytest.fixture(scope="module")
def related_features():
    """Return a world of strongly related features, whose local rows have another distribution
    than the victims' rows.
    """
    X, y = structured()
    biased_order = np.argsort(X[:, 0] + 2 * np.random.default_rng(1).normal(size=len(y)))
    return world(X, y, 40, order=biased_order, categorical={5: 3})


@pytest.mark.long
@pytest.mark.parametrize("level", ["values", "statistics", "histograms"])
def test_the_attack_beats_resampled_local_rows(related_features, level):
    guess = guessed.rows(run_attack(related_features, related_features.evidence(level)))
    assert len(guess) == len(related_features.victims)
    rng = np.random.default_rng(0)
    blind = [
        accuracy(
            related_features.local_rows.take(rng.integers(0, 40, 280)),
            related_features.victims,
            related_features.schema,
        )
        for _ in range(3)
    ]
    # The victims' labels and first leaves are exact in the guess. Local rows only estimate them.
    assert accuracy(guess, related_features.victims, related_features.schema) > max(blind) + 0.02


def patient_world(missing=0.0):
    """Return eight columns of 260 patients. Few rows share a path through many trees."""
    X, y = load_breast_cancer(return_X_y=True)
    X = X[:260, [1, 4, 5, 8, 9, 14, 17, 18]].astype(np.float32)
    X[np.random.default_rng(0).random(X.shape) < missing] = np.nan
    return world(X, y[:260], 60, trees=30, max_depth=4)


def test_histograms_reveal_most_rows_and_more_than_sums():
    small_world = patient_world()
    bins = run_attack(small_world, small_world.evidence("histograms"))
    sums = run_attack(small_world, small_world.evidence("statistics"))
    assert bins.notes["peeled_rows"] > 0.8 * len(small_world.victims)
    assert accuracy(guessed.rows(bins), small_world.victims, small_world.schema) > 0.95
    assert accuracy(guessed.rows(sums), small_world.victims, small_world.schema) < 0.95


def test_peeled_rows_are_in_the_bins_of_true_rows():
    small_world = patient_world()
    guess = run_attack(small_world, small_world.evidence("histograms"))
    peeled = guessed.rows(guess).take(np.arange(int(guess.notes["peeled_rows"])))

    def keys(table):
        codes = [
            np.searchsorted(small_world.cuts.of(f)[:-1], table.X[:, f], side="right")
            for f in range(table.X.shape[1])
        ]
        return {tuple(row) for row in np.column_stack([*codes, table.y])}

    assert len(keys(peeled) & keys(small_world.victims)) >= 0.97 * len(keys(peeled))


def test_missing_values_are_recovered_as_missing():
    small_world = patient_world(missing=0.05)
    guess = run_attack(small_world, small_world.evidence("histograms"))
    assert guess.notes["peeled_rows"] > 0.5 * len(small_world.victims)
    missing = np.isnan(guessed.rows(guess).X).sum(axis=0)
    np.testing.assert_allclose(missing, np.isnan(small_world.victims.X).sum(axis=0), atol=2)


def test_statistics_improve_the_guess_over_random_leaves(related_features):
    """The control assigns rows to random leaves, with the same points within boxes."""
    options = replace(QUICK, use_prior=False, points="mid", chains=1, max_trees=12)
    solved = guessed.rows(
        run_attack(related_features, related_features.evidence(), options=options)
    )
    control = guessed.rows(
        run_attack(
            related_features,
            related_features.evidence(),
            options=replace(options, random_leaf=True),
        )
    )
    assert (
        accuracy(solved, related_features.victims, related_features.schema)
        > accuracy(control, related_features.victims, related_features.schema) + 0.03
    )


@pytest.mark.parametrize("solver", ["max-ent", "local-search"])
@pytest.mark.parametrize("level", ["values", "statistics"])
def test_every_solver_keeps_rows_in_the_first_leaves(solver, level):
    small_world = world(*structured(160), 40, trees=3)
    options = Options(solver=solver, chains=1, points="prior")
    records = guessed.rows(run_attack(small_world, small_world.evidence(level), options=options))
    leaf = small_world.forest.apply(records.X)[:, 0]
    for label, expected in enumerate(small_world.first_counts()):
        guessed_counts = [
            ((leaf == leaf_id) & (records.y == label)).sum()
            for leaf_id in small_world.forest.trees[0].leaves
        ]
        np.testing.assert_array_equal(guessed_counts, expected)


@pytest.mark.long
@pytest.mark.parametrize("level", ["values", "statistics", "histograms"])
def test_the_guess_depends_on_evidence_and_seed_only(related_features, level):
    evidence = related_features.evidence(level)
    first, second = (run_attack(related_features, evidence, seed=4) for _ in range(2))
    np.testing.assert_array_equal(guessed.rows(first).X, guessed.rows(second).X)
    assert dict(first.notes) == dict(second.notes)
    guess_with_other_seed = run_attack(related_features, evidence, seed=5)
    if level != "histograms":
        assert not np.array_equal(guessed.rows(first).X, guessed.rows(guess_with_other_seed).X)


@pytest.mark.long
@pytest.mark.parametrize("level", ["values", "statistics", "histograms"])
def test_the_order_of_the_victims_rows_does_not_matter(level):
    small_world = world(*structured(200), 40, trees=8)
    order = np.concatenate([np.arange(40), 40 + np.random.default_rng(9).permutation(160)])
    rows = small_world.all_rows
    shuffled = Table(rows.X[order], rows.y[order])
    from fedtrees.trees.boosted.boosting import grow_forest

    shuffled_world = replace(
        small_world,
        victims=shuffled.take(np.arange(40, 200)),
        forest=grow_forest(shuffled.X, shuffled.y, small_world.cuts, small_world.params),
    )
    first, second = (
        run_attack(small_world, small_world.evidence(level)),
        run_attack(shuffled_world, shuffled_world.evidence(level)),
    )
    np.testing.assert_array_equal(guessed.rows(first).X, guessed.rows(second).X)
    np.testing.assert_array_equal(guessed.rows(first).y, guessed.rows(second).y)


def test_union_scope_guesses_all_rows_and_counts_victims_only(related_features):
    guess = run_attack(
        related_features, related_features.evidence(), options=replace(QUICK, scope="union")
    )
    assert len(guessed.rows(guess)) == len(related_features.victims) + len(
        related_features.local_rows
    )
    np.testing.assert_array_equal(guessed.counts(guess)[0].n1, related_features.first_counts()[1])


def test_without_local_rows_the_guess_contains_all_rows(related_features):
    guess = run_attack(related_features, related_features.evidence(), local_rows=None)
    assert len(guessed.rows(guess)) == len(related_features.victims) + len(
        related_features.local_rows
    )
    assert guessed.rows(guess).y.sum() == related_features.all_rows.y.sum()


LEAF = Tree(
    np.array([-1], np.int32),
    np.zeros(1, np.float32),
    np.array([-1], np.int32),
    np.array([-1], np.int32),
    np.zeros(1, bool),
    np.array([0.1], np.float32),
    np.array([-3.0]),
    np.array([10.0]),
)


def with_noise(small_world, size):
    rng = np.random.default_rng(0)
    return tuple(
        replace(
            tree,
            g=tree.g + size * rng.normal(size=len(tree)),
            h=tree.h + size * rng.normal(size=len(tree)),
        )
        for tree in small_world.forest.trees
    )


def constant_variance(small_world, size):
    return tuple(
        SumVariance(np.full(len(tree), size**2), np.full(len(tree), size**2), size**2, size**2)
        for tree in small_world.forest.trees
    )


UNUSUAL = {
    "no trees": lambda w: w.evidence(trees=(), histograms=None),
    "no trees, unknown N": lambda w: w.evidence(trees=(), n_rows=None),
    "single-leaf trees": lambda w: w.evidence(trees=(LEAF, LEAF, LEAF)),
    "single leaf first": lambda w: w.evidence(trees=(LEAF, *w.forest.trees[1:])),
    "single leaf first, values": lambda w: w.evidence("values", trees=(LEAF, w.forest.trees[1])),
    "unknown noise": lambda w: w.evidence(trees=with_noise(w, 20.0)),
    "known noise": lambda w: w.evidence(
        trees=with_noise(w, 20.0), noise=constant_variance(w, 20.0)
    ),
    "noise, unknown N": lambda w: w.evidence(
        trees=with_noise(w, 20.0), noise=constant_variance(w, 20.0), n_rows=None
    ),
    "noisy histograms": lambda w: w.evidence(
        "histograms", trees=with_noise(w, 5.0), noise=constant_variance(w, 5.0)
    ),
    "N unknown": lambda w: w.evidence(n_rows=None),
    "N unknown, values": lambda w: w.evidence("values", n_rows=None),
    "N too small": lambda w: w.evidence(n_rows=3),
    "N too small, values": lambda w: w.evidence("values", n_rows=3),
    "coarse values": lambda w: w.evidence("values", rounding=Rounding(0.5)),
    "constant hessian": lambda w: w.evidence(constant_hessian=True),
    "lambda 0, values": lambda w: w.evidence("values", reg_lambda=0.0),
    "zero sums": lambda w: w.evidence(
        trees=tuple(replace(t, g=0 * t.g, h=0 * t.h) for t in w.forest.trees)
    ),
}


@pytest.fixture(scope="module")
def missing_values():
    """Return a world with missing values and a constant column."""
    X, y = structured(120)
    X[np.random.default_rng(0).random(X.shape) < 0.1] = np.nan
    X = np.column_stack([X, np.ones(120), np.full(120, np.nan)])
    small_world = world(X[:, :-1], y, 30, trees=4)
    return small_world


@pytest.mark.parametrize("local_rows", ["own", None])
@pytest.mark.parametrize("name", UNUSUAL)
def test_unusual_evidence_gives_a_guess_of_plausible_size(missing_values, name, local_rows):
    evidence = UNUSUAL[name](missing_values)
    guess = run_attack(missing_values, evidence, local_rows=local_rows)
    records = guessed.rows(guess)
    assert records.X.shape == (len(records), 7)
    assert set(np.unique(records.y)) <= {0, 1}
    assert len(records) < 20_000
    for counts in guessed.counts(guess):
        assert counts.n0.min(initial=0) >= 0
        assert counts.n1.min(initial=0) >= 0


@pytest.mark.parametrize("points", ["auto", "prior", "mid", "joint", "published"])
def test_the_leaf_and_label_of_a_single_victim_are_recovered(points):
    X, y = structured(60)
    small_world = world(X, y, 59, trees=10)
    guess = run_attack(
        small_world, small_world.evidence(), options=Options(points=points, chains=1)
    )
    assert len(guessed.rows(guess)) == 1
    assert guessed.rows(guess).y[0] == small_world.victims.y[0]
    np.testing.assert_array_equal(
        guessed.counts(guess)[0].n0 + guessed.counts(guess)[0].n1,
        small_world.forest.trees[0].leaves == small_world.forest.apply(small_world.victims.X)[0, 0],
    )


def test_options_name_the_wrong_value():
    with pytest.raises(UsageError, match="max-ent"):
        Options(solver="max-end")
    with pytest.raises(UsageError, match="chains=0"):
        Options(chains=0)
    with pytest.raises(UsageError, match="max_trees=-1"):
        Options(max_trees=-1)

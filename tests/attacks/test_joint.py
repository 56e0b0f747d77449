"""The whole joint attack improves on its start, is deterministic, and accepts unusual evidence."""

from __future__ import annotations

import importlib
from dataclasses import replace

import guessed
import numpy as np
import pytest
from federations import view_in
from timberstrike_world import accuracy, structured, world

from fedtrees.attacks.counts.leaf_sums import Counts
from fedtrees.attacks.joint.attack import Joint
from fedtrees.attacks.joint.reconstruct import reconstruct
from fedtrees.attacks.observations.boosting import SumVariance
from fedtrees.attacks.timberstrike import Options
from fedtrees.attacks.timberstrike import reconstruct as timberstrike
from fedtrees.core.deterministic_channels import Rounding
from fedtrees.core.errors import UsageError
from fedtrees.core.schema import Table

QUICK = Joint(chains=2, moves=1000, samples=5, exact=False)


def run_joint(small_world, evidence, local_rows="own", options=QUICK, seed=0):
    local_rows = small_world.local_rows if isinstance(local_rows, str) else local_rows
    return reconstruct(
        evidence, local_rows, small_world.schema, options, np.random.default_rng(seed)
    )


@pytest.fixture(scope="module")
def many_trees():
    """Return a world of many trees on features with noise, one of which is categorical."""
    rng = np.random.default_rng(0)
    X, y = structured(200)
    X = X + rng.normal(size=X.shape).astype(np.float32) * [0.5, 0.5, 1, 0.5, 1, 0]
    return world(X, y, 50, trees=30, max_depth=5, categorical={5: 3})


def unrelated_world(n, n_local, max_depth, seed=1):
    """Return a world of unrelated features, so all knowledge about a row comes from the trees."""
    rng = np.random.default_rng(seed)
    X = rng.normal(size=(n, 6))
    y = X[:, 0] * X[:, 1] + X[:, 2] + 0.5 * rng.normal(size=n) > 0
    return world(X, y.astype(np.int64), n_local, trees=40, max_depth=max_depth)


@pytest.fixture(scope="module")
def unrelated_features():
    return unrelated_world(200, 50, max_depth=5)


@pytest.mark.long
@pytest.mark.parametrize("level", ["values", "statistics"])
def test_the_joint_attack_beats_sequential_reconstruction(level):
    """Compare one sample of one chain with one sequential reconstruction over eight tables."""
    joint, sequential = [], []
    for seed in range(8):
        small_world = unrelated_world(120, 30, 3, seed)
        evidence = small_world.evidence(level)
        once = Joint(chains=1, samples=1, moves=1000, exact=False)
        records = guessed.rows(run_joint(small_world, evidence, options=once, seed=seed))
        joint.append(accuracy(records, small_world.victims, small_world.schema))
        rng = np.random.default_rng(seed)
        records = guessed.rows(
            timberstrike(
                evidence, small_world.local_rows, small_world.schema, Options(chains=1), rng
            )
        )
        sequential.append(accuracy(records, small_world.victims, small_world.schema))
    # Measured difference: 0.009 with a standard deviation of 0.005.
    assert np.mean(joint) > np.mean(sequential)


@pytest.fixture
def without_vote(monkeypatch):
    """Submit the rows of the chains without the vote between them and a blind guess."""
    module = importlib.import_module("fedtrees.attacks.joint.reconstruct")
    monkeypatch.setattr(module, "vote_on_rows", lambda reconstruction, *_: (reconstruction, {}))


@pytest.mark.long
@pytest.mark.usefixtures("without_vote")
@pytest.mark.parametrize("level", ["values", "statistics", "histograms"])
def test_rows_stay_in_the_first_leaves(many_trees, level):
    options = replace(QUICK, chains=4, moves=300)
    guess = run_joint(many_trees, many_trees.evidence(level), options=options)
    leaf = many_trees.forest.apply(guessed.rows(guess).X)[:, 0]
    counts = guessed.counts(guess)[0]
    for label, count in ((0, counts.n0), (1, counts.n1)):
        guessed_counts = [
            ((leaf == leaf_id) & (guessed.rows(guess).y == label)).sum() for leaf_id in counts.leaf
        ]
        np.testing.assert_array_equal(guessed_counts, count)
    if level != "values":
        np.testing.assert_array_equal([counts.n0, counts.n1], many_trees.first_counts())
    assert guessed.rows(guess).X[:, 5].max() <= 2
    assert (guessed.rows(guess).X[:, 5] % 1 == 0).all()


@pytest.mark.long
def test_given_certain_counts_are_kept_under_noise(many_trees):
    """No attack may change counts that rounding leaves certain."""
    noise = tuple(
        SumVariance(np.full(len(tree), 1.0), np.full(len(tree), 1.0))
        for tree in many_trees.forest.trees
    )
    options, true_counts = replace(QUICK, chains=1, moves=10), many_trees.first_counts()
    arguments = (
        many_trees.evidence(noise=noise),
        many_trees.local_rows,
        many_trees.schema,
        options,
    )
    without_counts, with_counts = (
        guessed.counts(reconstruct(*arguments, np.random.default_rng(0), certain))[0]
        for certain in ((), (Counts(*true_counts, 0.0),))
    )
    assert not np.array_equal([without_counts.n0, without_counts.n1], true_counts)
    np.testing.assert_array_equal([with_counts.n0, with_counts.n1], true_counts)


@pytest.mark.long
def test_more_moves_lower_the_residuals(many_trees):
    options = [replace(QUICK, chains=1, moves=moves) for moves in (0, 100, 1000)]
    rms = np.mean(
        [
            [
                run_joint(many_trees, many_trees.evidence(), options=option, seed=seed).notes[
                    "residual_rms"
                ]
                for option in options
            ]
            for seed in range(4)
        ],
        axis=0,
    )
    assert rms[0] > 1.2 * rms[1]
    assert rms[1] > 1.1 * rms[2]


@pytest.mark.long
def test_the_guess_depends_on_evidence_and_seed_only(many_trees):
    first, second, guess_with_other_seed = (
        run_joint(many_trees, many_trees.evidence(), seed=seed) for seed in (4, 4, 5)
    )
    np.testing.assert_array_equal(guessed.rows(first).X, guessed.rows(second).X)
    assert dict(first.notes) == dict(second.notes)
    assert not np.array_equal(guessed.rows(first).X, guessed.rows(guess_with_other_seed).X)


@pytest.mark.long
def test_declared_noise_and_rounding_loosen_the_sums(many_trees):
    """If sums carry no information, the chains sample from the prior and do not fit the sums."""
    noise = tuple(
        SumVariance(np.full(len(tree), 1e4), np.full(len(tree), 1e4))
        for tree in many_trees.forest.trees
    )
    residual_under_noise = run_joint(many_trees, many_trees.evidence(noise=noise)).notes[
        "residual_rms"
    ]
    assert (
        residual_under_noise
        > 3 * run_joint(many_trees, many_trees.evidence()).notes["residual_rms"]
    )
    rounded = run_joint(many_trees, many_trees.evidence("values", rounding=Rounding(10.0))).notes[
        "residual_rms"
    ]
    assert rounded > 3 * run_joint(many_trees, many_trees.evidence("values")).notes["residual_rms"]


@pytest.mark.long
def test_a_time_limit_ends_the_chains(many_trees):
    guess = run_joint(
        many_trees, many_trees.evidence(), options=Joint(chains=50, time_limit=1e-6, exact=False)
    )
    assert guess.notes["chains_run"] == 1
    assert len(guessed.rows(guess)) == len(many_trees.victims)


@pytest.mark.long
def test_a_step_limit_ends_the_search_early_and_is_noted(many_trees):
    """A limit of steps, unlike one of seconds, gives the same guess on every machine."""
    limited = Joint(chains=4, moves=300, exact=False, steps=250 * len(many_trees.victims))
    guess, second_guess = (
        run_joint(many_trees, many_trees.evidence(), options=limited) for _ in range(2)
    )
    np.testing.assert_array_equal(guessed.rows(guess).X, guessed.rows(second_guess).X)
    assert guess.notes["chains_run"] == 1
    assert guess.notes["stopped_early"] == 1
    high_limit = replace(limited, steps=1200 * len(many_trees.victims))
    complete_guess = run_joint(many_trees, many_trees.evidence(), options=high_limit)
    assert (complete_guess.notes["chains_run"], complete_guess.notes["stopped_early"]) == (4, 0)
    unlimited_guess = run_joint(
        many_trees, many_trees.evidence(), options=replace(limited, steps=None)
    )
    np.testing.assert_array_equal(guessed.rows(complete_guess).X, guessed.rows(unlimited_guess).X)
    assert limited.within_steps(len(many_trees.victims)) == replace(limited, chains=1, moves=250)


@pytest.mark.long
def test_exact_sums_are_decoded_before_chains_run(unrelated_features):
    """If every row can be followed, its box is known and no chain runs."""
    guess = run_joint(unrelated_features, unrelated_features.evidence(), options=Joint())
    assert guess.notes["trees_solved"] == 40
    assert "chains_run" not in guess.notes
    guess_of_chains = run_joint(unrelated_features, unrelated_features.evidence())
    scores = [
        accuracy(guessed.rows(guess_of), unrelated_features.victims, unrelated_features.schema)
        for guess_of in (guess, guess_of_chains)
    ]
    assert scores[0] > scores[1] + 0.1
    guessed_margins, true_margins = (
        margins_after(unrelated_features, X, 40)
        for X in (guessed.rows(guess).X, unrelated_features.victims.X)
    )
    np.testing.assert_array_equal(np.sort(guessed_margins), np.sort(true_margins))


@pytest.mark.long
def test_chains_respect_the_decoded_trees(many_trees):
    """Rows are followed up to the first tree with inexact sums."""
    trees = list(many_trees.forest.trees)
    trees[4] = replace(trees[4], g=trees[4].g + 2.0**-12)
    # A consensus of several samples would mix rows.
    one_sample = replace(QUICK, exact=True, chains=1, samples=1)
    guess = run_joint(many_trees, many_trees.evidence(trees=tuple(trees)), options=one_sample)
    assert guess.notes["trees_solved"] == 4
    assert guess.notes["chains_run"] == 1
    guessed_margins, true_margins = (
        margins_after(many_trees, X, 4) for X in (guessed.rows(guess).X, many_trees.victims.X)
    )
    np.testing.assert_array_equal(np.sort(guessed_margins), np.sort(true_margins))


def margins_after(small_world, X, trees):
    """Return the margins of rows after some trees. Rows with equal margins look alike in the
    sums.
    """
    margin = np.full(len(X), small_world.forest.base_margin[0], dtype=np.float32)
    for tree, nodes in zip(
        small_world.forest.trees[:trees], small_world.forest.apply(X).T, strict=False
    ):
        margin += tree.value[nodes]
    return margin


@pytest.mark.long
@pytest.mark.parametrize("exact", [False, True])
@pytest.mark.parametrize("level", ["values", "statistics"])
def test_degenerate_input_gives_the_expected_number_of_rows(level, exact):
    def run_attack(small_world, evidence, local_rows="own"):
        local_rows = small_world.local_rows if isinstance(local_rows, str) else local_rows
        rng = np.random.default_rng(0)
        return reconstruct(
            evidence, local_rows, small_world.schema, replace(QUICK, exact=exact), rng
        )

    X, y = structured(90)
    small_world = world(X, y, 30, trees=3)
    for local_rows in (None, small_world.local_rows.take(np.zeros(0, dtype=int))):
        # Without local rows the sums are those of all rows.
        assert len(
            guessed.rows(
                run_attack(small_world, small_world.evidence(level), local_rows=local_rows)
            )
        ) >= len(small_world.victims)
    one_tree = world(X, y, 30, trees=1)
    assert len(guessed.rows(run_attack(one_tree, one_tree.evidence(level)))) == len(
        one_tree.victims
    )
    one_victim = world(X, y, len(y) - 1, trees=3)
    assert len(guessed.rows(run_attack(one_victim, one_victim.evidence(level)))) == 1
    no_victim = world(X, y, len(y), trees=3)
    assert len(guessed.rows(run_attack(no_victim, no_victim.evidence(level)))) == 0
    identical_rows = world(np.ones((60, 2)), np.arange(60) % 2, 20, trees=3)
    assert len(guessed.rows(run_attack(identical_rows, identical_rows.evidence(level)))) == 40
    unsplit = world(X, y, 30, trees=3, max_depth=3, min_child_weight=1e6)
    assert len(guessed.rows(run_attack(unsplit, unsplit.evidence(level)))) == len(unsplit.victims)
    no_trees = small_world.evidence(level, trees=())
    assert len(guessed.rows(run_attack(small_world, no_trees))) == len(small_world.victims)
    X_with_missing = X.copy()
    X_with_missing[np.random.default_rng(0).random(X.shape) < 0.3] = np.nan
    missing_values = world(X_with_missing, y, 30, trees=5)
    records = guessed.rows(run_attack(missing_values, missing_values.evidence(level)))
    assert len(records) == len(missing_values.victims)
    assert not np.isinf(records.X).any()
    assert 0.1 < np.isnan(records.X).mean() < 0.5  # The rate is that of the local rows.


@pytest.mark.parametrize(
    ("option", "value"),
    [
        ("chains", 0),
        ("samples", 0),
        ("classes", 0),
        ("moves", -1),
        ("sigma_end", 3.0),
        ("sigma_end", 0.0),
        ("base_weight", 0.0),
        ("max_trees", -1),
        ("time_limit", 0.0),
        ("steps", -1),
        ("max_level", "histograms"),
    ],
)
def test_options_are_checked(option, value):
    with pytest.raises(UsageError, match=f"{option}.*{value}|{value}.*{option}"):
        Joint(**{option: value})


def test_the_attack_explains_why_it_does_not_apply():
    options, principal = "[trees=1,max_depth=2]", "client-1"
    for spec in ("fedtree-hist", "nvflare-hist", "flower-bagging"):
        for classes in (2, 3):
            view = view_in(spec + options, principal, classes=classes)
            assert Joint().inapplicable(view) is None
    sampled_view = view_in("fedtree-hist[trees=1,max_depth=2,subsample=0.5]", principal, classes=3)
    assert "for several classes the attack needs all rows" in str(
        Joint().inapplicable(sampled_view)
    )
    forest_view = view_in("forest-hist" + options, principal)
    assert "neither leaf values nor histograms" in str(Joint().inapplicable(forest_view))
    assert "neither leaf values nor histograms" in str(Joint().inapplicable(forest_view.blinded()))


@pytest.mark.long
def test_the_number_of_trees_can_be_limited(many_trees):
    guess = run_joint(many_trees, many_trees.evidence(), options=replace(QUICK, max_trees=2))
    assert guess.notes["trees_read"] == 2
    empty = run_joint(many_trees, many_trees.evidence(), options=replace(QUICK, max_trees=0))
    assert isinstance(guessed.rows(empty), Table)
    assert len(guessed.rows(empty)) == len(many_trees.victims)

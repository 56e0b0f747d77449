"""The whole attack: it works, it is pure, and odd evidence does not stop it."""

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


def attack(w, evidence, own="own", options=QUICK, seed=0):
    own = w.local_rows if isinstance(own, str) else own
    return reconstruct(evidence, own, w.schema, options, np.random.default_rng(seed))


@pytest.fixture(scope="module")
def strong():
    """Strong structure, and an adversary whose own rows come from another mix than the rest."""
    X, y = structured()
    lucky = np.argsort(X[:, 0] + 2 * np.random.default_rng(1).normal(size=len(y)))
    return world(X, y, 40, order=lucky, categorical={5: 3})


@pytest.mark.long
@pytest.mark.parametrize("level", ["values", "statistics", "histograms"])
def test_it_beats_resampling_own_rows(strong, level):
    guess = guessed.rows(attack(strong, strong.evidence(level)))
    assert len(guess) == len(strong.victims)
    rng = np.random.default_rng(0)
    blind = [
        accuracy(strong.local_rows.take(rng.integers(0, 40, 280)), strong.victims, strong.schema)
        for _ in range(3)
    ]
    # victims' labels and first leaves are exact, which own rows can only estimate
    assert accuracy(guess, strong.victims, strong.schema) > max(blind) + 0.02


def patients(missing=0.0):
    """Eight columns of 260 patients: few rows share a path through many trees."""
    X, y = load_breast_cancer(return_X_y=True)
    X = X[:260, [1, 4, 5, 8, 9, 14, 17, 18]].astype(np.float32)
    X[np.random.default_rng(0).random(X.shape) < missing] = np.nan
    return world(X, y[:260], 60, trees=30, max_depth=4)


def test_reading_bins_recovers_most_rows_and_more_than_sums_do():
    w = patients()
    bins = attack(w, w.evidence("histograms"))
    sums = attack(w, w.evidence("statistics"))
    assert bins.notes["peeled_rows"] > 0.8 * len(w.victims)
    assert accuracy(guessed.rows(bins), w.victims, w.schema) > 0.95
    assert accuracy(guessed.rows(sums), w.victims, w.schema) < 0.95


def test_peeled_rows_are_true_rows_up_to_their_bins():
    w = patients()
    guess = attack(w, w.evidence("histograms"))
    sure = guessed.rows(guess).take(np.arange(int(guess.notes["peeled_rows"])))

    def keys(table):
        codes = [
            np.searchsorted(w.cuts.of(f)[:-1], table.X[:, f], side="right")
            for f in range(table.X.shape[1])
        ]
        return {tuple(row) for row in np.column_stack([*codes, table.y])}

    assert len(keys(sure) & keys(w.victims)) >= 0.97 * len(keys(sure))


def test_missing_values_are_read_off_as_missing():
    w = patients(missing=0.05)
    guess = attack(w, w.evidence("histograms"))
    assert guess.notes["peeled_rows"] > 0.5 * len(w.victims)
    missing = np.isnan(guessed.rows(guess).X).sum(axis=0)
    np.testing.assert_allclose(missing, np.isnan(w.victims.X).sum(axis=0), atol=2)


def test_statistics_pull_the_guess_towards_the_rows(strong):
    """The control sends rows to random leaves; sums must do better with the same points."""
    options = replace(QUICK, use_prior=False, points="mid", chains=1, max_trees=12)
    solved = guessed.rows(attack(strong, strong.evidence(), options=options))
    control = guessed.rows(
        attack(strong, strong.evidence(), options=replace(options, random_leaf=True))
    )
    assert (
        accuracy(solved, strong.victims, strong.schema)
        > accuracy(control, strong.victims, strong.schema) + 0.03
    )


@pytest.mark.parametrize("solver", ["max-ent", "local-search", "milp"])
@pytest.mark.parametrize("level", ["values", "statistics"])
def test_every_solver_keeps_rows_in_the_first_leaves(solver, level):
    w = world(*structured(160), 40, trees=3)
    options = Options(solver=solver, chains=1, time_limit=0.05, points="prior")
    records = guessed.rows(attack(w, w.evidence(level), options=options))
    leaf = w.forest.apply(records.X)[:, 0]
    for c, n in enumerate(w.first_counts()):
        found = [((leaf == j) & (records.y == c)).sum() for j in w.forest.trees[0].leaves]
        np.testing.assert_array_equal(found, n)


@pytest.mark.long
@pytest.mark.parametrize("level", ["values", "statistics", "histograms"])
def test_same_evidence_same_guess(strong, level):
    evidence = strong.evidence(level)
    first, second = (attack(strong, evidence, seed=4) for _ in range(2))
    np.testing.assert_array_equal(guessed.rows(first).X, guessed.rows(second).X)
    assert dict(first.notes) == dict(second.notes)
    other = attack(strong, evidence, seed=5)
    if level != "histograms":
        assert not np.array_equal(guessed.rows(first).X, guessed.rows(other).X)


@pytest.mark.long
@pytest.mark.parametrize("level", ["values", "statistics", "histograms"])
def test_order_of_the_victims_rows_does_not_matter(level):
    w = world(*structured(200), 40, trees=8)
    order = np.concatenate([np.arange(40), 40 + np.random.default_rng(9).permutation(160)])
    rows = w.all_rows
    shuffled = Table(rows.X[order], rows.y[order])
    from fedtrees.trees.boosted.boosting import grow_forest

    again = replace(
        w,
        victims=shuffled.take(np.arange(40, 200)),
        forest=grow_forest(shuffled.X, shuffled.y, w.cuts, w.params),
    )
    first, second = attack(w, w.evidence(level)), attack(again, again.evidence(level))
    np.testing.assert_array_equal(guessed.rows(first).X, guessed.rows(second).X)
    np.testing.assert_array_equal(guessed.rows(first).y, guessed.rows(second).y)


def test_union_scope_guesses_all_rows_and_counts_victims_only(strong):
    guess = attack(strong, strong.evidence(), options=replace(QUICK, scope="union"))
    assert len(guessed.rows(guess)) == len(strong.victims) + len(strong.local_rows)
    np.testing.assert_array_equal(guessed.counts(guess)[0].n1, strong.first_counts()[1])


def test_without_own_rows_the_sums_still_speak(strong):
    guess = attack(strong, strong.evidence(), own=None)
    assert len(guessed.rows(guess)) == len(strong.victims) + len(strong.local_rows)
    assert guessed.rows(guess).y.sum() == strong.all_rows.y.sum()


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


def _noisy(w, size):
    rng = np.random.default_rng(0)
    return tuple(
        replace(t, g=t.g + size * rng.normal(size=len(t)), h=t.h + size * rng.normal(size=len(t)))
        for t in w.forest.trees
    )


def _variance(w, size):
    return tuple(
        SumVariance(np.full(len(t), size**2), np.full(len(t), size**2), size**2, size**2)
        for t in w.forest.trees
    )


ODD = {
    "no trees": lambda w: w.evidence(trees=(), histograms=None),
    "no trees, unknown N": lambda w: w.evidence(trees=(), n_rows=None),
    "single-leaf trees": lambda w: w.evidence(trees=(LEAF, LEAF, LEAF)),
    "single leaf first": lambda w: w.evidence(trees=(LEAF, *w.forest.trees[1:])),
    "single leaf first, values": lambda w: w.evidence("values", trees=(LEAF, w.forest.trees[1])),
    "unknown noise": lambda w: w.evidence(trees=_noisy(w, 20.0)),
    "known noise": lambda w: w.evidence(trees=_noisy(w, 20.0), noise=_variance(w, 20.0)),
    "noise, unknown N": lambda w: w.evidence(
        trees=_noisy(w, 20.0), noise=_variance(w, 20.0), n_rows=None
    ),
    "noisy histograms": lambda w: w.evidence(
        "histograms", trees=_noisy(w, 5.0), noise=_variance(w, 5.0)
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
def odd():
    """Missing values, a constant column, a column missing throughout."""
    X, y = structured(120)
    X[np.random.default_rng(0).random(X.shape) < 0.1] = np.nan
    X = np.column_stack([X, np.ones(120), np.full(120, np.nan)])
    w = world(X[:, :-1], y, 30, trees=4)
    return w


@pytest.mark.parametrize("own", ["own", None])
@pytest.mark.parametrize("name", ODD)
def test_odd_evidence_gives_a_guess_of_plausible_size(odd, name, own):
    evidence = ODD[name](odd)
    guess = attack(odd, evidence, own=own)
    records = guessed.rows(guess)
    assert records.X.shape == (len(records), 7)
    assert set(np.unique(records.y)) <= {0, 1}
    assert len(records) < 20_000
    for counts in guessed.counts(guess):
        assert counts.n0.min(initial=0) >= 0
        assert counts.n1.min(initial=0) >= 0


@pytest.mark.parametrize("points", ["auto", "prior", "mid", "joint", "published"])
def test_one_victim_is_found(points):
    X, y = structured(60)
    w = world(X, y, 59, trees=10)
    guess = attack(w, w.evidence(), options=Options(points=points, chains=1))
    assert len(guessed.rows(guess)) == 1
    assert guessed.rows(guess).y[0] == w.victims.y[0]
    np.testing.assert_array_equal(
        guessed.counts(guess)[0].n0 + guessed.counts(guess)[0].n1,
        w.forest.trees[0].leaves == w.forest.apply(w.victims.X)[0, 0],
    )


def test_options_name_the_wrong_value():
    with pytest.raises(UsageError, match="max-ent"):
        Options(solver="max-end")
    with pytest.raises(UsageError, match="chains=0"):
        Options(chains=0)
    with pytest.raises(UsageError, match="max_trees=-1"):
        Options(max_trees=-1)

"""The whole attack: it improves on its start, is pure, and odd evidence does not stop it."""

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


def attack(w, evidence, own="own", options=QUICK, seed=0):
    own = w.local_rows if isinstance(own, str) else own
    return reconstruct(evidence, own, w.schema, options, np.random.default_rng(seed))


@pytest.fixture(scope="module")
def odd():
    """Many trees on features that differ, with a categorical one."""
    rng = np.random.default_rng(0)
    X, y = structured(200)
    X = X + rng.normal(size=X.shape).astype(np.float32) * [0.5, 0.5, 1, 0.5, 1, 0]
    return world(X, y, 50, trees=30, max_depth=5, categorical={5: 3})


def independent(n, n_own, max_depth, seed=1):
    """Features that say nothing about each other: what is known of a row, the trees told."""
    rng = np.random.default_rng(seed)
    X = rng.normal(size=(n, 6))
    y = X[:, 0] * X[:, 1] + X[:, 2] + 0.5 * rng.normal(size=n) > 0
    return world(X, y.astype(np.int64), n_own, trees=40, max_depth=max_depth)


@pytest.fixture(scope="module")
def loose():
    return independent(200, 50, max_depth=5)


@pytest.mark.long
@pytest.mark.parametrize("level", ["values", "statistics"])
def test_it_beats_passing_through_the_trees_once(level):
    """One sample of one chain against one sequential reconstruction, over tables."""
    joint, sequential = [], []
    for seed in range(8):
        w = independent(120, 30, 3, seed)
        evidence = w.evidence(level)
        once = Joint(chains=1, samples=1, moves=1000, exact=False)
        records = guessed.rows(attack(w, evidence, options=once, seed=seed))
        joint.append(accuracy(records, w.victims, w.schema))
        rng = np.random.default_rng(seed)
        records = guessed.rows(
            timberstrike(evidence, w.local_rows, w.schema, Options(chains=1), rng)
        )
        sequential.append(accuracy(records, w.victims, w.schema))
    assert np.mean(joint) > np.mean(sequential)  # .009 ± .005


@pytest.fixture
def as_found(monkeypatch):
    """Rows are submitted as chains found them."""
    module = importlib.import_module("fedtrees.attacks.joint.reconstruct")
    monkeypatch.setattr(module, "vote_on_rows", lambda found, *_: (found, {}))


@pytest.mark.long
@pytest.mark.usefixtures("as_found")
@pytest.mark.parametrize("level", ["values", "statistics", "histograms"])
def test_rows_stay_in_the_first_leaves(odd, level):
    options = replace(QUICK, chains=4, moves=300)
    guess = attack(odd, odd.evidence(level), options=options)
    leaf = odd.forest.apply(guessed.rows(guess).X)[:, 0]
    counts = guessed.counts(guess)[0]
    for c, n in ((0, counts.n0), (1, counts.n1)):
        found = [((leaf == j) & (guessed.rows(guess).y == c)).sum() for j in counts.leaf]
        np.testing.assert_array_equal(found, n)
    if level != "values":
        np.testing.assert_array_equal([counts.n0, counts.n1], odd.first_counts())
    assert guessed.rows(guess).X[:, 5].max() <= 2
    assert (guessed.rows(guess).X[:, 5] % 1 == 0).all()


@pytest.mark.long
def test_counts_that_are_certain_are_kept_where_noise_hides_them(odd):
    """So that no attack opens the leaves of rows that rounding leaves certain."""
    noise = tuple(SumVariance(np.full(len(t), 1.0), np.full(len(t), 1.0)) for t in odd.forest.trees)
    few, n = replace(QUICK, chains=1, moves=10), odd.first_counts()
    parts = (odd.evidence(noise=noise), odd.local_rows, odd.schema, few)
    hidden, told = (
        guessed.counts(reconstruct(*parts, np.random.default_rng(0), certain))[0]
        for certain in ((), (Counts(*n, 0.0),))
    )
    assert not np.array_equal([hidden.n0, hidden.n1], n)
    np.testing.assert_array_equal([told.n0, told.n1], n)


@pytest.mark.long
def test_chains_agree_with_the_sums_better_than_their_start(odd):
    options = [replace(QUICK, chains=1, moves=m) for m in (0, 100, 1000)]
    rms = np.mean(
        [
            [attack(odd, odd.evidence(), options=o, seed=s).notes["residual_rms"] for o in options]
            for s in range(4)
        ],
        axis=0,
    )
    assert rms[0] > 1.2 * rms[1]
    assert rms[1] > 1.1 * rms[2]


@pytest.mark.long
def test_same_evidence_same_guess(odd):
    first, second, other = (attack(odd, odd.evidence(), seed=s) for s in (4, 4, 5))
    np.testing.assert_array_equal(guessed.rows(first).X, guessed.rows(second).X)
    assert dict(first.notes) == dict(second.notes)
    assert not np.array_equal(guessed.rows(first).X, guessed.rows(other).X)


@pytest.mark.long
def test_declared_noise_and_rounding_loosen_the_sums(odd):
    """Sums worth nothing leave the prior: the chains do not chase them."""
    noise = tuple(SumVariance(np.full(len(t), 1e4), np.full(len(t), 1e4)) for t in odd.forest.trees)
    deaf = attack(odd, odd.evidence(noise=noise)).notes["residual_rms"]
    assert deaf > 3 * attack(odd, odd.evidence()).notes["residual_rms"]
    rounded = attack(odd, odd.evidence("values", rounding=Rounding(10.0))).notes["residual_rms"]
    assert rounded > 3 * attack(odd, odd.evidence("values")).notes["residual_rms"]


@pytest.mark.long
def test_a_time_limit_ends_the_chains(odd):
    guess = attack(odd, odd.evidence(), options=Joint(chains=50, time_limit=1e-6, exact=False))
    assert guess.notes["chains_run"] == 1
    assert len(guessed.rows(guess)) == len(odd.victims)


@pytest.mark.long
def test_steps_end_the_search_early_and_the_guess_says_so(odd):
    """Steps, unlike seconds, give the same guess on every machine."""
    few = Joint(chains=4, moves=300, exact=False, steps=250 * len(odd.victims))
    guess, again = (attack(odd, odd.evidence(), options=few) for _ in range(2))
    np.testing.assert_array_equal(guessed.rows(guess).X, guessed.rows(again).X)
    assert guess.notes["chains_run"] == 1
    assert guess.notes["stopped_early"] == 1
    plenty = replace(few, steps=1200 * len(odd.victims))
    whole = attack(odd, odd.evidence(), options=plenty)
    assert (whole.notes["chains_run"], whole.notes["stopped_early"]) == (4, 0)
    free = attack(odd, odd.evidence(), options=replace(few, steps=None))
    np.testing.assert_array_equal(guessed.rows(whole).X, guessed.rows(free).X)
    assert few.within_steps(len(odd.victims)) == replace(few, chains=1, moves=250)


@pytest.mark.long
def test_exact_sums_are_read_first(loose):
    """Where every row can be followed its box is known, and the chains need not run."""
    guess = attack(loose, loose.evidence(), options=Joint())
    assert guess.notes["trees_solved"] == 40
    assert "chains_run" not in guess.notes
    searched = attack(loose, loose.evidence())
    scores = [accuracy(guessed.rows(g), loose.victims, loose.schema) for g in (guess, searched)]
    assert scores[0] > scores[1] + 0.1
    mine, true = (margins(loose, X, 40) for X in (guessed.rows(guess).X, loose.victims.X))
    np.testing.assert_array_equal(np.sort(mine), np.sort(true))


@pytest.mark.long
def test_chains_keep_to_the_trees_that_are_solved(odd):
    """Rows cannot be followed where a tree's sums are off; up to there they can."""
    trees = list(odd.forest.trees)
    trees[4] = replace(trees[4], g=trees[4].g + 2.0**-12)
    one = replace(QUICK, exact=True, chains=1, samples=1)  # consensus would mix rows
    guess = attack(odd, odd.evidence(trees=tuple(trees)), options=one)
    assert guess.notes["trees_solved"] == 4
    assert guess.notes["chains_run"] == 1
    mine, true = (margins(odd, X, 4) for X in (guessed.rows(guess).X, odd.victims.X))
    np.testing.assert_array_equal(np.sort(mine), np.sort(true))


def margins(w, X, trees):
    """Log-odds of rows after some trees; those of equal ones are alike to the sums."""
    margin = np.full(len(X), w.forest.base_margin[0], dtype=np.float32)
    for tree, nodes in zip(w.forest.trees[:trees], w.forest.apply(X).T, strict=False):
        margin += tree.value[nodes]
    return margin


@pytest.mark.long
@pytest.mark.parametrize("exact", [False, True])
@pytest.mark.parametrize("level", ["values", "statistics"])
def test_bad_input(level, exact):
    def attack(w, evidence, own="own"):
        own = w.local_rows if isinstance(own, str) else own
        rng = np.random.default_rng(0)
        return reconstruct(evidence, own, w.schema, replace(QUICK, exact=exact), rng)

    X, y = structured(90)
    w = world(X, y, 30, trees=3)
    for own in (None, w.local_rows.take(np.zeros(0, dtype=int))):
        # the sums are those of everybody then
        assert len(guessed.rows(attack(w, w.evidence(level), own=own))) >= len(w.victims)
    one = world(X, y, 30, trees=1)
    assert len(guessed.rows(attack(one, one.evidence(level)))) == len(one.victims)
    single = world(X, y, len(y) - 1, trees=3)
    assert len(guessed.rows(attack(single, single.evidence(level)))) == 1
    nobody = world(X, y, len(y), trees=3)
    assert len(guessed.rows(attack(nobody, nobody.evidence(level)))) == 0
    same = world(np.ones((60, 2)), np.arange(60) % 2, 20, trees=3)
    assert len(guessed.rows(attack(same, same.evidence(level)))) == 40
    unsplit = world(X, y, 30, trees=3, max_depth=3, min_child_weight=1e6)
    assert len(guessed.rows(attack(unsplit, unsplit.evidence(level)))) == len(unsplit.victims)
    none = w.evidence(level, trees=())
    assert len(guessed.rows(attack(w, none))) == len(w.victims)
    holes = X.copy()
    holes[np.random.default_rng(0).random(X.shape) < 0.3] = np.nan
    holed = world(holes, y, 30, trees=5)
    records = guessed.rows(attack(holed, holed.evidence(level)))
    assert len(records) == len(holed.victims)
    assert not np.isinf(records.X).any()
    assert 0.1 < np.isnan(records.X).mean() < 0.5  # as own rows miss values


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


def test_it_names_what_it_cannot_read():
    small, who = "[trees=1,max_depth=2]", "client-1"
    for spec in ("fedtree-hist", "nvflare-hist", "flower-bagging"):
        for classes in (2, 3):
            view = view_in(spec + small, who, classes=classes)
            assert Joint().inapplicable(view) is None
    drawn = view_in("fedtree-hist[trees=1,max_depth=2,subsample=0.5]", who, classes=3)
    assert "for several classes the attack needs all rows" in str(Joint().inapplicable(drawn))
    forests = view_in("forest-hist" + small, who)
    assert "neither leaf values nor histograms" in str(Joint().inapplicable(forests))
    assert "neither leaf values nor histograms" in str(Joint().inapplicable(forests.blinded()))


@pytest.mark.long
def test_fewer_trees_are_read_on_request(odd):
    guess = attack(odd, odd.evidence(), options=replace(QUICK, max_trees=2))
    assert guess.notes["trees_read"] == 2
    empty = attack(odd, odd.evidence(), options=replace(QUICK, max_trees=0))
    assert isinstance(guessed.rows(empty), Table)
    assert len(guessed.rows(empty)) == len(odd.victims)

"""Randomised response among the likeliest labels, training on it, and repairs after it."""

import math
from dataclasses import replace
from fractions import Fraction
from functools import cache

import numpy as np
import pytest
from columns import dealt, run, seen_by, table_of
from hypothesis import given
from hypothesis import strategies as st
from neighbours import matrix
from sklearn.datasets import load_breast_cancer

from fedtrees.core.composition import Composition
from fedtrees.core.errors import DataError, UsageError
from fedtrees.core.guarantee import LabelDP, parse
from fedtrees.core.local_data import LocalData
from fedtrees.core.registry import register
from fedtrees.core.schema import Feature, Schema, Table
from fedtrees.core.specs import parse_grid
from fedtrees.core.view import see
from fedtrees.core.wire import encode
from fedtrees.defenses.grafting import GraftingLDP, grafted_nodes
from fedtrees.defenses.label_noise import LPMST, OneStage
from fedtrees.messages.vertical import RowsToRoute
from fedtrees.privacy.randomised_response import (
    odds_within,
    respond,
    true_shares,
)
from fedtrees.protocols.compatibility import check_fit
from fedtrees.protocols.training import train
from fedtrees.protocols.vertical.secureboost import SecureBoost
from fedtrees.trees.boosted.forest import Tree
from fedtrees.trees.partition import RowPartition

BOOSTED = "secureboost[trees=3,max_depth=3,max_bin=16]"
FOREST = "vertical-forest[trees=3,max_depth=3,max_bin=16]"
PRIORS = st.lists(st.floats(0, 1), min_size=2, max_size=8).filter(lambda p: sum(p) > 0.01)
EPSILONS = st.floats(0.01, 12)


def greatest_ratio(found):
    """Return by how much one true label makes an answer likelier than another; None: infinitely.

    Label-DP with epsilon is that it is at most ``e^epsilon``.
    """
    worst = Fraction(1)
    for answers in zip(*found, strict=True):
        if not any(answers):
            continue
        if not all(answers):
            return None
        worst = max(worst, max(answers) / min(answers))
    return worst


def below_exponential(epsilon):
    """Return a rational number below e^epsilon: its series, cut off late."""
    x, total, term = Fraction(epsilon), Fraction(1), Fraction(1)
    for i in range(1, 120 + 4 * math.ceil(epsilon)):
        term *= x / i
        total += term
    return total


@pytest.mark.parametrize("epsilon", [1e-9, 0.1, 0.5, 1, 2.0, 4, 11.5, 30, 38.7, 39.5, 700])
def test_odds_are_within_the_exponential_and_close(epsilon):
    odds = odds_within(epsilon)
    assert 1 <= odds <= below_exponential(min(epsilon, 40))
    assert odds.numerator + 99 * odds.denominator < 2**63
    if epsilon < 38:
        assert float(odds) == pytest.approx(math.exp(epsilon), rel=1e-11)


@pytest.mark.long
@given(PRIORS, EPSILONS)
def test_no_answer_is_likelier_by_more_than_the_odds_whatever_the_prior(prior, epsilon):
    odds = odds_within(epsilon)
    found = matrix(prior, odds)
    assert all(sum(row) == 1 for row in found)
    worst = greatest_ratio(found)
    assert worst is not None
    assert worst <= odds <= below_exponential(epsilon)


@given(PRIORS, EPSILONS)
def test_no_other_k_is_truer(prior, epsilon):
    odds, n = odds_within(epsilon), len(prior)
    found = matrix(prior, odds)
    truth = sum(float(found[c][c]) * prior[c] for c in range(n))
    for k in range(1, n + 1):
        top = sum(sorted(prior, reverse=True)[:k])
        assert truth >= top * float(odds / (odds + k - 1)) - 1e-12


@pytest.mark.parametrize(
    ("prior", "epsilon"),
    [((0.8, 0.2), 0.5), ((0.8, 0.2), 1.0), ((0.95, 0.05), 2.0), ((0.7, 0.1, 0.1, 0.1), 1.0)],
)
def test_the_published_rule_bounds_nothing(prior, epsilon):
    odds = odds_within(epsilon)
    assert greatest_ratio(matrix(prior, odds, published=True)) is None
    assert greatest_ratio(matrix(prior, odds)) <= odds


def test_without_a_prior_all_classes_are_answered():
    odds = odds_within(1.0)
    found = matrix([0.25] * 4, odds)
    assert found[2] == [1 / (odds + 3), 1 / (odds + 3), odds / (odds + 3), 1 / (odds + 3)]
    assert greatest_ratio(found) == odds


class Enumerating:
    """Draws every number as often as every other one."""

    def integers(self, low, high, size):
        assert size % high == 0
        return np.arange(size) % high


@pytest.mark.parametrize("published", [False, True])
@pytest.mark.parametrize("prior", [(0.2, 0.5, 0.3), (0.05, 0.9, 0.05), (1 / 3,) * 3, (0, 1, 0)])
def test_answers_have_the_probabilities_of_the_matrix_exactly(prior, published):
    odds, n = Fraction(5, 2), 5 * 7 * 9 * 2 * 3
    for true in range(3):
        y, priors = np.full(n, true), np.tile(prior, (n, 1))
        said = respond(y, priors, odds, Enumerating(), published=published)
        shares = [Fraction(int(c), n) for c in np.bincount(said, minlength=3)]
        assert shares == matrix(prior, odds, published=published)[true]


@cache
def trained(text, classes, defense, seed=1):
    return run(text, 3, classes, defense, seed)


def every_message(training):
    return [(d.sender, d.receivers, encode(d.message)) for d in training.transcript]


def repredicted(training, held, X):
    """Return the scores of rows, and what the passive parties were asked for them."""
    scores = training.predict(X)
    asked = [
        (s.message.trees.tolist(), s.message.nodes.tolist(), s.message.rows.tolist())
        for s in see(training.net.inference, ("passive-1", "passive-2"))
        if isinstance(s.message, RowsToRoute)
    ]
    return scores, asked


def same(a, b):
    pairs = zip(a.model.trees, b.model.trees, strict=True)
    return all(np.array_equal(x.feature, y.feature) for x, y in pairs)


@pytest.mark.long
def test_every_matrix_of_a_run_keeps_to_epsilon(monkeypatch):
    used, believed = [], LPMST.estimate_prior
    monkeypatch.setattr(LPMST, "estimate_prior", lambda *a: used.append(believed(*a)) or used[-1])
    run(FOREST, 2, 3, LPMST(0.8, 4))
    priors, odds = np.concatenate(used), odds_within(0.8)
    assert priors.shape == (150, 3)
    among = set()
    for prior in priors:
        found = matrix(prior, odds)
        assert greatest_ratio(found) <= odds
        among.add(sum(map(any, zip(*found, strict=True))))
    assert among == {1, 2, 3}


@pytest.mark.long
@pytest.mark.parametrize("classes", [2, 3])
@pytest.mark.parametrize("text", [BOOSTED, FOREST])
def test_training_is_that_on_the_noisy_labels_and_nothing_else(text, classes):
    """Everybody's views follow: the run is the one of a table with these labels, undefended."""
    noisy, held = trained(text, classes, LPMST(1.0))
    (table, schema), own = table_of(classes), held["active"]
    assert 0.1 < (noisy.model.y != table.y).mean() < 0.6
    swapped = {**held, "active": replace(own, y=noisy.model.y)}
    plain = train(register.make("protocol", parse_grid(text)[0]), swapped, schema, seed=1)
    assert every_message(noisy) == every_message(plain)
    np.testing.assert_array_equal(noisy.predict(table.X), plain.predict(table.X))
    np.testing.assert_array_equal(own.y, table.y)


def test_noise_is_drawn_anew_in_every_trial():
    (one, _), (same_seed, _), (other, _) = (
        run(FOREST, 2, 2, OneStage(1.0), seed) for seed in (1, 1, 2)
    )
    np.testing.assert_array_equal(one.model.y, same_seed.model.y)
    assert (one.model.y != other.model.y).mean() > 0.2


@pytest.mark.long
@pytest.mark.parametrize("stages", [2, 4])
def test_a_prior_spares_noise(stages):
    """Means of three trials: 1/(1 + e) = .269 in one stage."""
    data, target = load_breast_cancer(return_X_y=True)
    schema = Schema(tuple(Feature(f"x{i}") for i in range(30)), "y", ("0", "1"))
    held = dealt(Table(data, target), 2)
    stump = register.make("protocol", parse_grid("secureboost[trees=1,max_depth=1]")[0])
    by = Composition((LPMST(1.0, stages),))
    runs = [train(stump, held, schema, defense=by, seed=s) for s in range(3)]
    assert np.mean([(t.model.y != target).mean() for t in runs]) < 0.21


def test_noise_is_taken_out_of_shares():
    odds = Fraction(5, 2)
    true = np.array([[0.2, 0.5, 0.3], [1.0, 0.0, 0.0]])
    blurred = true @ np.array(matrix([1 / 3] * 3, odds), dtype=float)
    np.testing.assert_allclose(true_shares(blurred, odds), true, atol=1e-12)
    np.testing.assert_allclose(true_shares(np.array([[0.0, 0.4, 0.6]]), odds)[0, 0], 0)


def hand_made():
    """Return a tree of depth 2 (nodes 1 and 2 below the root, 3 to 6 below these), rows in fours.

    Leaves 3, 4, 5 and 6 hold rows 0-3, 4-7, 8-11 and 12-15.
    """
    feature = np.array([0, 0, 0, -1, -1, -1, -1], dtype=np.int32)
    left = np.array([1, 3, 5, -1, -1, -1, -1], dtype=np.int32)
    none = np.zeros(7, dtype=np.float32)
    right = np.where(left < 0, -1, left + 1).astype(np.int32)
    tree = Tree(feature, none, left, right, none.astype(bool), none)
    rows = RowPartition(16)
    for node, child in ((0, 1), (1, 3), (2, 5)):
        ((begin, end),) = rows.ranges(np.array([node]))
        goes = np.arange(end - begin) < (end - begin) // 2
        rows.move(np.array([node], np.int32), np.array([child], np.int32), goes)
    return tree, rows


@pytest.mark.parametrize(
    ("flipped", "expected"),
    [
        ([], {}),
        ([0], {}),  # three of four are left
        ([0, 1, 2], {1: 1}),
        ([8, 9, 10, 12, 13, 14], {0: 0}),  # node 2 has changed sides, the root has not
        ([0, 1, 2, 8, 9, 10], {1: 1, 2: 1}),
        ([0, 1, 2, 8, 9, 10, 12, 13, 14], {0: 0}),  # the root speaks for node 1 as well
        (list(range(16)), {0: 0}),  # no ancestor is clean: the whole tree
    ],
)
def test_grown_anew_is_the_deepest_ancestor_that_noise_did_not_turn(flipped, expected):
    tree, rows = hand_made()
    true = np.repeat([1, 1, 0, 0], 4)
    noisy = true.copy()
    noisy[flipped] = 1 - noisy[flipped]
    assert grafted_nodes(tree, rows, noisy, true) == expected


@pytest.mark.long
@pytest.mark.parametrize("classes", [2, 3])
@pytest.mark.parametrize("text", [BOOSTED, FOREST, BOOSTED.replace("[", "[multi_output=true,")])
def test_repairs_are_seen_by_nobody(text, classes):
    """Passive parties get the messages of `lp-mst`, in training and for rows to predict."""
    (noisy, held), (grafted, _) = (trained(text, classes, d(0.7)) for d in (LPMST, GraftingLDP))
    (table, _) = table_of(classes)
    assert every_message(noisy)[:-1] == every_message(grafted)[:-1]  # the last is its own note
    assert grafted.model.grafts
    (before, asked), (after, again) = (repredicted(t, held, table.X) for t in (noisy, grafted))
    assert asked == again != []
    assert not np.array_equal(before, after)


@pytest.mark.long
def test_a_graft_is_a_tree_of_the_active_party_alone_on_the_true_labels():
    """A forest's: rows of a node that is grown anew end in leaves of true shares."""
    grafted, held = trained(FOREST, 2, GraftingLDP(0.7))
    own, d = held["active"], 6
    for (t, node), graft in grafted.model.grafts.items():
        rows = grafted.model.rows[t]
        ((begin, end),) = rows.ranges(np.array([node]))
        here = rows.rows[begin:end]
        wide = np.full((len(here), d), np.nan, dtype=np.float32)
        wide[:, own.columns] = own.X[here]
        used = {int(f) for f in graft.trees[0].feature if f >= 0}
        assert used <= set(own.columns.tolist())
        leaf, said = graft.apply(wide)[:, 0], graft(wide)
        for k in np.unique(leaf):
            np.testing.assert_allclose(said[leaf == k, 1], own.y[here[leaf == k]].mean())


@pytest.mark.long
@pytest.mark.parametrize("classes", [2, 3])
@pytest.mark.parametrize("text", [BOOSTED, FOREST, BOOSTED.replace("[", "[multi_output=true,")])
def test_without_noise_there_is_nothing_to_repair(text, classes):
    (plain, _), (grafted, _) = (trained(text, classes, d) for d in (None, GraftingLDP(60)))
    X = table_of(classes)[0].X
    assert grafted.model.grafts == {}
    np.testing.assert_array_equal(plain.predict(X), grafted.predict(X))
    claimed = grafted.defense.spent(grafted.transcript)
    assert claimed == [LabelDP(60.0, "passive")]  # nothing changed, and it was drawn all the same


@pytest.mark.long
def test_what_is_claimed_and_what_was_spent():
    for defense, spent in (
        (OneStage(1.0), LabelDP(1.0)),
        (LPMST(1.0), LabelDP(1.0)),
        (LPMST(1.0, published=True), LabelDP(math.inf)),
        (GraftingLDP(1.0), LabelDP(1.0, "passive")),
        (GraftingLDP(1.0, published=True), LabelDP(math.inf, "passive")),
    ):
        training, _ = trained(FOREST, 2, defense)
        assert defense.claim().epsilon == 1
        assert training.defense.spent(training.transcript) == [spent]
        assert parse(str(spent)) == (spent,)


def test_what_makes_no_sense_is_named():
    for epsilon in (0, -1.0, float("nan"), float("inf"), True):
        with pytest.raises(UsageError, match="epsilon must be a finite number > 0"):
            OneStage(epsilon)
    for stages in (1, 0, 2.5, True):
        with pytest.raises(UsageError, match="2 or more; one stage is 'lp-1st'"):
            LPMST(1.0, stages)
    with pytest.raises(UsageError, match="published='yes': give true or false"):
        LPMST(1.0, published="yes")
    with pytest.raises(DataError, match="stages=151: 150 rows make 150 stages at most"):
        run(FOREST, 2, 2, LPMST(1.0, 151))
    for defense in (OneStage(1.0), GraftingLDP(1.0)):
        with pytest.raises(UsageError, match="the target is a number"):
            run(BOOSTED, 2, 0, defense)
    table, schema = table_of(2)
    alike = dealt(replace(table, y=np.zeros(150, dtype=int)), 2)
    with pytest.raises(DataError, match="it takes two classes"):
        train(SecureBoost(), alike, schema, defense=Composition((OneStage(1.0),)))
    ids, none = alike["active"].ids, np.zeros(0, dtype=int)
    bare = {
        "active": LocalData(ids, none, table.X[:, none], table.y),
        "passive-1": LocalData(ids, np.arange(6), table.X),
    }
    with pytest.raises(DataError, match="repairs trees with 'active''s columns, and it has none"):
        train(SecureBoost(), bare, schema, defense=Composition((GraftingLDP(1.0),)))
    train(SecureBoost(trees=1), bare, schema, defense=Composition((LPMST(1.0),)))
    with pytest.raises(UsageError, match="'lp-1st' and 'grafting-ldp' each replace the labels"):
        Composition((OneStage(1.0), GraftingLDP(1.0)))
    protocol = register.make("protocol", parse_grid("fedtree-hist")[0])
    assert "does not send" in str(check_fit(protocol, [OneStage(1.0)]))


def test_stages_of_one_row_are_enough():
    training, held = run(FOREST, 2, 2, LPMST(1.0, 30), n=30)
    assert seen_by(training, held, "passive-1").n_rows == len(training.model.y) == 30

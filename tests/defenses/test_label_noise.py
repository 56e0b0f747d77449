"""Label noise: randomised response among the likeliest labels, training on it, and repairs."""

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
from fedtrees.privacy.mechanisms import (
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


def greatest_ratio(probabilities):
    """Return the largest ratio of the probabilities of an answer under two true labels.

    None means that it is infinite. Label-DP with epsilon bounds the ratio by ``e^epsilon``.
    """
    worst = Fraction(1)
    for answers in zip(*probabilities, strict=True):
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
    probabilities = matrix(prior, odds)
    assert all(sum(row) == 1 for row in probabilities)
    worst = greatest_ratio(probabilities)
    assert worst is not None
    assert worst <= odds <= below_exponential(epsilon)


@given(PRIORS, EPSILONS)
def test_no_other_k_gives_more_true_answers(prior, epsilon):
    odds, n_classes = odds_within(epsilon), len(prior)
    probabilities = matrix(prior, odds)
    probability_of_truth = sum(float(probabilities[c][c]) * prior[c] for c in range(n_classes))
    for n_answers in range(1, n_classes + 1):
        top = sum(sorted(prior, reverse=True)[:n_answers])
        assert probability_of_truth >= top * float(odds / (odds + n_answers - 1)) - 1e-12


@pytest.mark.parametrize(
    ("prior", "epsilon"),
    [((0.8, 0.2), 0.5), ((0.8, 0.2), 1.0), ((0.95, 0.05), 2.0), ((0.7, 0.1, 0.1, 0.1), 1.0)],
)
def test_the_published_rule_bounds_nothing(prior, epsilon):
    odds = odds_within(epsilon)
    assert greatest_ratio(matrix(prior, odds, published=True)) is None
    assert greatest_ratio(matrix(prior, odds)) <= odds


def test_without_a_prior_every_class_may_be_answered():
    odds = odds_within(1.0)
    probabilities = matrix([0.25] * 4, odds)
    assert probabilities[2] == [1 / (odds + 3), 1 / (odds + 3), odds / (odds + 3), 1 / (odds + 3)]
    assert greatest_ratio(probabilities) == odds


class Enumerating:
    """Draws every number as often as every other one."""

    def integers(self, low, high, size):
        assert size % high == 0
        return np.arange(size) % high


@pytest.mark.parametrize("published", [False, True])
@pytest.mark.parametrize("prior", [(0.2, 0.5, 0.3), (0.05, 0.9, 0.05), (1 / 3,) * 3, (0, 1, 0)])
def test_answers_have_the_probabilities_of_the_matrix_exactly(prior, published):
    odds, n_rows = Fraction(5, 2), 5 * 7 * 9 * 2 * 3
    for true_label in range(3):
        y, priors = np.full(n_rows, true_label), np.tile(prior, (n_rows, 1))
        answers = respond(y, priors, odds, Enumerating(), published=published)
        shares = [Fraction(int(count), n_rows) for count in np.bincount(answers, minlength=3)]
        assert shares == matrix(prior, odds, published=published)[true_label]


@cache
def trained(text, classes, defense, seed=1):
    return run(text, 3, classes, defense, seed)


def every_message(training):
    return [(d.sender, d.receivers, encode(d.message)) for d in training.transcript]


def predict_again(training, local_data, X):
    """Return the scores of rows, and the requests that the passive parties received for them."""
    scores = training.predict(X)
    requests = [
        (item.message.trees.tolist(), item.message.nodes.tolist(), item.message.rows.tolist())
        for item in see(training.net.inference, ("passive-1", "passive-2"))
        if isinstance(item.message, RowsToRoute)
    ]
    return scores, requests


def same(a, b):
    pairs = zip(a.model.trees, b.model.trees, strict=True)
    return all(np.array_equal(x.feature, y.feature) for x, y in pairs)


@pytest.mark.long
def test_every_probability_matrix_of_a_run_respects_epsilon(monkeypatch):
    priors_used, estimate_prior = [], LPMST.estimate_prior
    monkeypatch.setattr(
        LPMST,
        "estimate_prior",
        lambda *a: priors_used.append(estimate_prior(*a)) or priors_used[-1],
    )
    run(FOREST, 2, 3, LPMST(0.8, 4))
    priors, odds = np.concatenate(priors_used), odds_within(0.8)
    assert priors.shape == (150, 3)
    n_possible_answers = set()
    for prior in priors:
        probabilities = matrix(prior, odds)
        assert greatest_ratio(probabilities) <= odds
        n_possible_answers.add(sum(map(any, zip(*probabilities, strict=True))))
    assert n_possible_answers == {1, 2, 3}


@pytest.mark.long
@pytest.mark.parametrize("classes", [2, 3])
@pytest.mark.parametrize("text", [BOOSTED, FOREST])
def test_training_on_noisy_labels_equals_undefended_training_on_a_table_with_these_labels(
    text, classes
):
    """The views of all parties are equal, too."""
    noisy, local_data = trained(text, classes, LPMST(1.0))
    (table, schema), active_data = table_of(classes), local_data["active"]
    assert 0.1 < (noisy.model.y != table.y).mean() < 0.6
    swapped = {**local_data, "active": replace(active_data, y=noisy.model.y)}
    plain = train(register.make("protocol", parse_grid(text)[0]), swapped, schema, seed=1)
    assert every_message(noisy) == every_message(plain)
    np.testing.assert_array_equal(noisy.predict(table.X), plain.predict(table.X))
    np.testing.assert_array_equal(active_data.y, table.y)


def test_noise_depends_on_the_seed():
    (first, _), (same_seed, _), (other_seed, _) = (
        run(FOREST, 2, 2, OneStage(1.0), seed) for seed in (1, 1, 2)
    )
    np.testing.assert_array_equal(first.model.y, same_seed.model.y)
    assert (first.model.y != other_seed.model.y).mean() > 0.2


@pytest.mark.long
@pytest.mark.parametrize("stages", [2, 4])
def test_a_prior_reduces_the_noise(stages):
    """The threshold holds for means of three trials; one stage would flip 1/(1 + e) = .269."""
    data, target = load_breast_cancer(return_X_y=True)
    schema = Schema(tuple(Feature(f"x{i}") for i in range(30)), "y", ("0", "1"))
    local_data = dealt(Table(data, target), 2)
    stump = register.make("protocol", parse_grid("secureboost[trees=1,max_depth=1]")[0])
    composition = Composition((LPMST(1.0, stages),))
    runs = [train(stump, local_data, schema, defense=composition, seed=seed) for seed in range(3)]
    assert np.mean([(training.model.y != target).mean() for training in runs]) < 0.21


def test_true_shares_inverts_the_noise():
    odds = Fraction(5, 2)
    expected_shares = np.array([[0.2, 0.5, 0.3], [1.0, 0.0, 0.0]])
    noisy_shares = expected_shares @ np.array(matrix([1 / 3] * 3, odds), dtype=float)
    np.testing.assert_allclose(true_shares(noisy_shares, odds), expected_shares, atol=1e-12)
    np.testing.assert_allclose(true_shares(np.array([[0.0, 0.4, 0.6]]), odds)[0, 0], 0)


def tree_of_depth_two():
    """Return a tree of depth 2 with 16 rows, four in each leaf.

    Nodes 1 and 2 are below the root, and 3 to 6 below these. Leaves 3, 4, 5 and 6 contain the rows
    0-3, 4-7, 8-11 and 12-15.
    """
    feature = np.array([0, 0, 0, -1, -1, -1, -1], dtype=np.int32)
    left = np.array([1, 3, 5, -1, -1, -1, -1], dtype=np.int32)
    zeros = np.zeros(7, dtype=np.float32)
    right = np.where(left < 0, -1, left + 1).astype(np.int32)
    tree = Tree(feature, zeros, left, right, zeros.astype(bool), zeros)
    rows = RowPartition(16)
    for node, child in ((0, 1), (1, 3), (2, 5)):
        ((begin, end),) = rows.ranges(np.array([node]))
        goes_left = np.arange(end - begin) < (end - begin) // 2
        rows.move(np.array([node], np.int32), np.array([child], np.int32), goes_left)
    return tree, rows


@pytest.mark.parametrize(
    ("flipped", "expected"),
    [
        ([], {}),
        ([0], {}),  # Three of four labels in the leaf are unchanged.
        ([0, 1, 2], {1: 1}),
        # The majority of node 2 has changed, that of the root has not.
        ([8, 9, 10, 12, 13, 14], {0: 0}),
        ([0, 1, 2, 8, 9, 10], {1: 1, 2: 1}),
        # The graft at the root includes node 1.
        ([0, 1, 2, 8, 9, 10, 12, 13, 14], {0: 0}),
        # No ancestor keeps its majority, so the complete tree is grafted.
        (list(range(16)), {0: 0}),
    ],
)
def test_the_grafted_node_is_the_deepest_ancestor_whose_majority_noise_did_not_change(
    flipped, expected
):
    tree, rows = tree_of_depth_two()
    true_labels = np.repeat([1, 1, 0, 0], 4)
    noisy_labels = true_labels.copy()
    noisy_labels[flipped] = 1 - noisy_labels[flipped]
    assert grafted_nodes(tree, rows, noisy_labels, true_labels) == expected


@pytest.mark.long
@pytest.mark.parametrize("classes", [2, 3])
@pytest.mark.parametrize("text", [BOOSTED, FOREST, BOOSTED.replace("[", "[multi_output=true,")])
def test_repairs_are_invisible_to_passive_parties(text, classes):
    """They receive the messages of `lp-mst`, both in training and in prediction."""
    (noisy, local_data), (grafted, _) = (
        trained(text, classes, defense(0.7)) for defense in (LPMST, GraftingLDP)
    )
    (table, _) = table_of(classes)
    # The last message is the active party's note to itself.
    assert every_message(noisy)[:-1] == every_message(grafted)[:-1]
    assert grafted.model.grafts
    (scores_before, requests), (scores_after, requests_of_grafted) = (
        predict_again(training, local_data, table.X) for training in (noisy, grafted)
    )
    assert requests == requests_of_grafted != []
    assert not np.array_equal(scores_before, scores_after)


@pytest.mark.long
def test_a_graft_uses_only_columns_of_the_active_party_and_true_labels():
    """In a forest, rows of a grafted node reach leaves with their true shares."""
    grafted, local_data = trained(FOREST, 2, GraftingLDP(0.7))
    active_data, n_columns = local_data["active"], 6
    for (tree_number, node), graft in grafted.model.grafts.items():
        rows = grafted.model.rows[tree_number]
        ((begin, end),) = rows.ranges(np.array([node]))
        rows_of_node = rows.rows[begin:end]
        all_columns = np.full((len(rows_of_node), n_columns), np.nan, dtype=np.float32)
        all_columns[:, active_data.columns] = active_data.X[rows_of_node]
        used_columns = {int(feature) for feature in graft.trees[0].feature if feature >= 0}
        assert used_columns <= set(active_data.columns.tolist())
        leaf, shares = graft.apply(all_columns)[:, 0], graft(all_columns)
        for leaf_id in np.unique(leaf):
            np.testing.assert_allclose(
                shares[leaf == leaf_id, 1], active_data.y[rows_of_node[leaf == leaf_id]].mean()
            )


@pytest.mark.long
@pytest.mark.parametrize("classes", [2, 3])
@pytest.mark.parametrize("text", [BOOSTED, FOREST, BOOSTED.replace("[", "[multi_output=true,")])
def test_without_noise_no_tree_is_grafted(text, classes):
    (plain, _), (grafted, _) = (
        trained(text, classes, defense) for defense in (None, GraftingLDP(60))
    )
    X = table_of(classes)[0].X
    assert grafted.model.grafts == {}
    np.testing.assert_array_equal(plain.predict(X), grafted.predict(X))
    spent = grafted.defense.spent(grafted.transcript)
    # No label changed, but the labels were drawn, so the claim applies.
    assert spent == [LabelDP(60.0, "passive")]


@pytest.mark.long
def test_claimed_and_spent_epsilon():
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


def test_invalid_parameters_and_combinations_are_refused():
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
    one_class = dealt(replace(table, y=np.zeros(150, dtype=int)), 2)
    with pytest.raises(DataError, match="it takes two classes"):
        train(SecureBoost(), one_class, schema, defense=Composition((OneStage(1.0),)))
    ids, no_columns = one_class["active"].ids, np.zeros(0, dtype=int)
    without_active_columns = {
        "active": LocalData(ids, no_columns, table.X[:, no_columns], table.y),
        "passive-1": LocalData(ids, np.arange(6), table.X),
    }
    with pytest.raises(DataError, match="repairs trees with 'active''s columns, and it has none"):
        train(
            SecureBoost(), without_active_columns, schema, defense=Composition((GraftingLDP(1.0),))
        )
    train(SecureBoost(trees=1), without_active_columns, schema, defense=Composition((LPMST(1.0),)))
    with pytest.raises(UsageError, match="'lp-1st' and 'grafting-ldp' each replace the labels"):
        Composition((OneStage(1.0), GraftingLDP(1.0)))
    protocol = register.make("protocol", parse_grid("fedtree-hist")[0])
    assert "does not send" in str(check_fit(protocol, [OneStage(1.0)]))


def test_stages_of_one_row_are_allowed():
    training, local_data = run(FOREST, 2, 2, LPMST(1.0, 30), n=30)
    assert seen_by(training, local_data, "passive-1").n_rows == len(training.model.y) == 30

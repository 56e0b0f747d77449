"""Defenses that choose the nodes visible to a passive party, and the permitted splits."""

from dataclasses import replace

import numpy as np
import pytest
from columns import dealt, run, seen_by, table_of

from fedtrees.core.composition import Composition
from fedtrees.core.defense import Defense, Requirements
from fedtrees.core.errors import DataError, UsageError
from fedtrees.core.guarantee import MutualInformation, parse
from fedtrees.core.local_data import LocalData
from fedtrees.defenses.nodes import IDLMID, ReducedLeakage
from fedtrees.experiments.epsilon_audit import largest_node
from fedtrees.messages.vertical import NodeRows, RowsToRoute, visible_leaves, visible_nodes
from fedtrees.privacy.accounting import node_information
from fedtrees.protocols.training import train
from fedtrees.protocols.vertical.secureboost import SecureBoost

BOOSTED = "secureboost[colsample_bytree=1.0,trees=3,max_depth=4,max_bin=16]"
FOREST = "vertical-forest[tree_features=none,trees=3,max_depth=4,max_bin=16]"


def information_of_visible_nodes(training, local_data, party, classes):
    """Return the information bound of every node that a party sees."""
    (table, _), bounds = table_of(classes), []
    totals = np.bincount(table.y, minlength=classes)
    for _, _, rows in visible_nodes(seen_by(training, local_data, party)):
        counts = np.bincount(table.y[rows], minlength=classes)
        bounds.append(float(node_information(counts[None], totals)[0]))
    return bounds


@pytest.mark.parametrize("parties", [2, 3, 5])
@pytest.mark.parametrize("classes", [2, 3])
@pytest.mark.parametrize("text", [BOOSTED, FOREST])
def test_no_visible_node_is_above_xi(text, classes, parties):
    for xi in (0.05, 0.3):
        training, local_data = run(text, parties, classes, IDLMID(xi))
        for party in list(local_data)[1:]:
            assert max(information_of_visible_nodes(training, local_data, party, classes)) <= xi
    plain, local_data = run(text, parties, classes)
    assert max(information_of_visible_nodes(plain, local_data, "passive-1", classes)) > 0.3


def test_the_bound_is_the_larger_divergence_inside_or_outside_the_node():
    totals = np.array([30, 10])
    counts = np.array([[0, 5], [30, 10], [0, 0], [30, 0]])
    information = node_information(counts, totals)
    outside = 30 / 35 * np.log(30 / 35 / 0.75) + 5 / 35 * np.log(5 / 35 / 0.25)
    assert information[0] == pytest.approx(max(np.log(4), outside), abs=1e-12)
    assert information[1] == information[2] == 0
    # Outside the node are ten rows of the rare class.
    assert information[3] == pytest.approx(np.log(4))


@pytest.mark.parametrize("text", [BOOSTED, FOREST])
def test_a_bound_that_is_never_reached_changes_no_tree(text):
    plain, local_data = run(text, 3)
    bounded, _ = run(text, 3, 2, IDLMID(1.0, relative=True))
    for plain_tree, bounded_tree in zip(plain.model.trees, bounded.model.trees, strict=True):
        for name in ("feature", "threshold", "left", "default_left"):
            np.testing.assert_array_equal(getattr(plain_tree, name), getattr(bounded_tree, name))
    leaves = [
        visible_leaves(seen_by(training, local_data, "passive-2")) for training in (plain, bounded)
    ]
    np.testing.assert_array_equal(*leaves)
    assert bounded.defense.spent(bounded.transcript)[0].kind == "acted-on-nothing"


def test_a_tight_bound_permits_only_splits_of_the_active_party():
    """Only roots are visible, and the trees use columns of the active party."""
    training, local_data = run(BOOSTED, 3, 2, IDLMID(1e-9))
    assert (visible_leaves(seen_by(training, local_data, "passive-1")) == 0).all()
    assert training.model.owners[3] != "active" or training.model.owners[0] != "active"
    owners_used = {
        training.model.owners[feature]
        for tree in training.model.trees
        for feature in tree.feature
        if feature >= 0
    }
    assert owners_used == {"active"}


def test_counting_classes_costs_bytes_only_in_the_answers():
    plain, _ = run(BOOSTED, 2)
    bounded, _ = run(BOOSTED, 2, 2, IDLMID(5.0))
    costs = [training.transcript.costs for training in (plain, bounded)]
    assert costs[0]["ciphertexts:RowStatistics"] == costs[1]["ciphertexts:RowStatistics"]
    assert costs[0]["ciphertexts:BinSums"] < costs[1]["ciphertexts:BinSums"]


def test_the_first_trees_are_invisible():
    training, local_data = run(BOOSTED, 3, 3, ReducedLeakage(2))
    leaves = visible_leaves(seen_by(training, local_data, "passive-1"))
    assert leaves.shape == (150, 9)  # each round has three trees
    assert (leaves[:, :6] == -1).all()
    assert (leaves[:, 6:] >= 0).all()
    owners = training.model.owners
    for number, tree in enumerate(training.model.trees):
        uses_own_columns_only = {
            owners[feature] for feature in tree.feature.tolist() if feature >= 0
        } == {"active"}
        assert uses_own_columns_only == (number < 6)


def test_defenses_that_hide_nodes_do_not_split_pure_nodes():
    text = BOOSTED.replace("secureboost[", "secureboost[pure_leaves=true,")
    training, _ = run(text, 2, 2, ReducedLeakage(3))
    (table, _), model = table_of(2), training.model
    for tree, rows in zip(model.trees, model.rows, strict=True):
        for node in np.flatnonzero(tree.feature >= 0).astype(np.int32):
            ((begin, end),) = rows.ranges(np.array([node]))
            assert len(np.unique(table.y[rows.rows[begin:end]])) == 2


class Grafted(Defense):
    """Flip the labels, and replace the left side of the first tree by the true class share."""

    name = "grafted"
    applies_to, example_stages = (NodeRows,), frozenset({"labels"})
    requirements = Requirements(reads_local_data=True)

    def transform_examples(self, stage, values, ctx):
        return 1 - values

    def repair_model(self, model, ctx):
        rows, node = model.rows[0], int(model.trees[0].left[0])
        ((begin, end),) = rows.ranges(np.array([node], dtype=np.int32))
        # The true labels of the party.
        share = ctx.local_data.y[rows.rows[begin:end]].mean()
        value = np.array([1 - share, share])
        return replace(model, grafts={(0, node): lambda X: np.tile(value, (len(X), 1))})


def test_labels_change_before_training_and_trees_after_it_with_the_same_queries():
    text = FOREST.replace("trees=3", "trees=1")
    (plain, local_data), (grafted, _), (table, _) = (
        run(text, 2),
        run(text, 2, 2, Grafted()),
        table_of(2),
    )
    tree, rows = grafted.model.trees[0], grafted.model.rows[0]
    assert grafted.transcript.acted == {0}
    for plain_tree, grafted_tree in zip(plain.model.trees, grafted.model.trees, strict=True):
        np.testing.assert_array_equal(plain_tree.feature, grafted_tree.feature)
        np.testing.assert_array_equal(plain_tree.counts, grafted_tree.counts[:, ::-1])
    node = int(tree.left[0])
    ((begin, end),) = rows.ranges(np.array([node], dtype=np.int32))
    rows_of_node = rows.rows[begin:end]
    scores, plain_scores = grafted.predict(table.X), plain.predict(table.X)
    np.testing.assert_allclose(scores[rows_of_node], table.y[rows_of_node].mean())
    other_rows = np.setdiff1d(rows.rows, rows_of_node)
    np.testing.assert_allclose(scores[other_rows], 1 - plain_scores[other_rows])
    requests = [
        [item.message.rows.tolist() for item in seen_by(training, local_data, "passive-1").seen
         if isinstance(item.message, RowsToRoute)]
        for training in (plain, grafted)
    ]  # fmt: skip
    assert requests[0] == requests[1] != []


def test_invalid_parameters_are_refused():
    for xi in (0, -1.0, float("nan")):
        with pytest.raises(UsageError, match="xi"):
            IDLMID(xi)
    with pytest.raises(UsageError, match="trees=0: give a whole number"):
        ReducedLeakage(0)
    with pytest.raises(UsageError, match="the target is a number"):
        run(BOOSTED, 2, 0, IDLMID(0.5))
    table, schema = table_of(2)
    ids, no_columns = dealt(table, 1)["active"].ids, np.zeros(0, dtype=int)
    local_data = {
        "active": LocalData(ids, no_columns, table.X[:, no_columns], table.y),
        "passive-1": LocalData(ids, np.arange(6), table.X),
    }
    with pytest.raises(DataError, match="the columns of 'active' only, which has none"):
        train(SecureBoost(), local_data, schema, defense=Composition((ReducedLeakage(),)))


def test_a_share_is_read_back_as_one():
    claim = IDLMID(0.5, relative=True).claim()
    assert str(claim) == "mutual-information[xi=0.5,unit=share]"
    assert parse(str(claim)) == (claim,)
    assert IDLMID(0.5).claim() == MutualInformation(0.5)


@pytest.mark.parametrize(("xi", "relative"), [(99, False), (21.6, False), (1.01, True)])
def test_a_bound_that_hides_nothing_in_any_table_is_refused_at_once(xi, relative):
    with pytest.raises(UsageError, match="nothing is hidden"):
        IDLMID(xi, relative=relative)
    assert IDLMID(1.0 if relative else 20.0, relative=relative)


@pytest.mark.long
@pytest.mark.parametrize("text", [BOOSTED, FOREST])
def test_the_most_informative_visible_node_is_measured(text):
    for defense in (IDLMID(0.3), IDLMID(0.5, relative=True)):
        training, local_data = run(text, 3, 3, defense)
        largest_information = max(
            max(information_of_visible_nodes(training, local_data, party, 3))
            for party in list(local_data)[1:]
        )
        unit = np.log(1 / np.bincount(table_of(3)[0].y).min() * 150) if defense.relative else 1
        measured = largest_node(training, local_data)
        assert measured.xi == pytest.approx(largest_information / unit, abs=1e-5)
        assert 0 < measured.xi <= defense.xi
    # Trees use columns of the active party only.
    training, local_data = run(text, 3, 3, IDLMID(1e-9))
    assert largest_node(training, local_data) == MutualInformation(0.0)
    assert largest_node(*run(text, 3)) is None

"""Defenses that say which nodes a passive party is shown, and which candidates may be chosen."""

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


def informed(training, held, who, classes):
    """Return the bound of every node that a party sees."""
    (table, _), found = table_of(classes), []
    totals = np.bincount(table.y, minlength=classes)
    for _, _, rows in visible_nodes(seen_by(training, held, who)):
        counts = np.bincount(table.y[rows], minlength=classes)
        found.append(float(node_information(counts[None], totals)[0]))
    return found


@pytest.mark.parametrize("parties", [2, 3, 5])
@pytest.mark.parametrize("classes", [2, 3])
@pytest.mark.parametrize("text", [BOOSTED, FOREST])
def test_no_visible_node_is_above_xi(text, classes, parties):
    for xi in (0.05, 0.3):
        training, held = run(text, parties, classes, IDLMID(xi))
        for who in list(held)[1:]:
            assert max(informed(training, held, who, classes)) <= xi
    plain, held = run(text, parties, classes)
    assert max(informed(plain, held, "passive-1", classes)) > 0.3


def test_the_bound_is_the_larger_divergence_inside_or_outside():
    totals = np.array([30, 10])
    counts = np.array([[0, 5], [30, 10], [0, 0], [30, 0]])
    found = node_information(counts, totals)
    outside = 30 / 35 * np.log(30 / 35 / 0.75) + 5 / 35 * np.log(5 / 35 / 0.25)
    assert found[0] == pytest.approx(max(np.log(4), outside), abs=1e-12)
    assert found[1] == found[2] == 0
    assert found[3] == pytest.approx(np.log(4))  # outside are ten rows of the rare class


@pytest.mark.parametrize("text", [BOOSTED, FOREST])
def test_a_bound_that_binds_nothing_changes_nothing(text):
    plain, held = run(text, 3)
    bound, _ = run(text, 3, 2, IDLMID(1.0, relative=True))
    for a, b in zip(plain.model.trees, bound.model.trees, strict=True):
        for name in ("feature", "threshold", "left", "default_left"):
            np.testing.assert_array_equal(getattr(a, name), getattr(b, name))
    leaves = [visible_leaves(seen_by(t, held, "passive-2")) for t in (plain, bound)]
    np.testing.assert_array_equal(*leaves)
    assert bound.defense.spent(bound.transcript)[0].kind == "acted-on-nothing"


def test_a_tight_bound_leaves_the_active_party_alone():
    """Nothing but a root is visible, and the trees are those of its own columns."""
    training, held = run(BOOSTED, 3, 2, IDLMID(1e-9))
    assert (visible_leaves(seen_by(training, held, "passive-1")) == 0).all()
    assert training.model.owners[3] != "active" or training.model.owners[0] != "active"
    used = {training.model.owners[f] for t in training.model.trees for f in t.feature if f >= 0}
    assert used == {"active"}


def test_counting_classes_costs_bytes_in_the_answers_alone():
    plain, _ = run(BOOSTED, 2)
    bound, _ = run(BOOSTED, 2, 2, IDLMID(5.0))
    costs = [t.transcript.costs for t in (plain, bound)]
    assert costs[0]["ciphertexts:RowStatistics"] == costs[1]["ciphertexts:RowStatistics"]
    assert costs[0]["ciphertexts:BinSums"] < costs[1]["ciphertexts:BinSums"]


def test_first_trees_are_shown_to_nobody():
    training, held = run(BOOSTED, 3, 3, ReducedLeakage(2))
    leaves = visible_leaves(seen_by(training, held, "passive-1"))
    assert leaves.shape == (150, 9)  # three trees a round
    assert (leaves[:, :6] == -1).all()
    assert (leaves[:, 6:] >= 0).all()
    owners = training.model.owners
    for t, tree in enumerate(training.model.trees):
        own = {owners[f] for f in tree.feature.tolist() if f >= 0} == {"active"}
        assert own == (t < 6)


def test_defenses_that_hide_nodes_leave_pure_nodes_leaves():
    text = BOOSTED.replace("secureboost[", "secureboost[pure_leaves=true,")
    training, _ = run(text, 2, 2, ReducedLeakage(3))
    (table, _), model = table_of(2), training.model
    for tree, rows in zip(model.trees, model.rows, strict=True):
        for node in np.flatnonzero(tree.feature >= 0).astype(np.int32):
            ((begin, end),) = rows.ranges(np.array([node]))
            assert len(np.unique(table.y[rows.rows[begin:end]])) == 2


class Grafted(Defense):
    """Flip the labels, and put the true share of a class in place of the first tree's left side."""

    name = "grafted"
    applies_to, example_stages = (NodeRows,), frozenset({"labels"})
    requirements = Requirements(reads_local_data=True)

    def transform_examples(self, stage, values, ctx):
        return 1 - values

    def repair_model(self, model, ctx):
        rows, node = model.rows[0], int(model.trees[0].left[0])
        ((begin, end),) = rows.ranges(np.array([node], dtype=np.int32))
        share = ctx.local_data.y[rows.rows[begin:end]].mean()  # its own labels, as they are
        value = np.array([1 - share, share])
        return replace(model, grafts={(0, node): lambda X: np.tile(value, (len(X), 1))})


def test_labels_are_noised_before_training_and_trees_repaired_after_it_on_the_same_queries():
    text = FOREST.replace("trees=3", "trees=1")
    (plain, held), (grafted, _), (table, _) = run(text, 2), run(text, 2, 2, Grafted()), table_of(2)
    tree, rows = grafted.model.trees[0], grafted.model.rows[0]
    assert grafted.transcript.acted == {0}
    for a, b in zip(plain.model.trees, grafted.model.trees, strict=True):
        np.testing.assert_array_equal(a.feature, b.feature)
        np.testing.assert_array_equal(a.counts, b.counts[:, ::-1])
    node = int(tree.left[0])
    ((begin, end),) = rows.ranges(np.array([node], dtype=np.int32))
    below = rows.rows[begin:end]
    found, before = grafted.predict(table.X), plain.predict(table.X)
    np.testing.assert_allclose(found[below], table.y[below].mean())
    above = np.setdiff1d(rows.rows, below)
    np.testing.assert_allclose(found[above], 1 - before[above])
    asked = [
        [s.message.rows.tolist() for s in seen_by(t, held, "passive-1").seen
         if isinstance(s.message, RowsToRoute)]
        for t in (plain, grafted)
    ]  # fmt: skip
    assert asked[0] == asked[1] != []


def test_what_makes_no_sense_is_named():
    for xi in (0, -1.0, float("nan")):
        with pytest.raises(UsageError, match="xi"):
            IDLMID(xi)
    with pytest.raises(UsageError, match="trees=0: give a whole number"):
        ReducedLeakage(0)
    with pytest.raises(UsageError, match="the target is a number"):
        run(BOOSTED, 2, 0, IDLMID(0.5))
    table, schema = table_of(2)
    ids, none = dealt(table, 1)["active"].ids, np.zeros(0, dtype=int)
    held = {
        "active": LocalData(ids, none, table.X[:, none], table.y),
        "passive-1": LocalData(ids, np.arange(6), table.X),
    }
    with pytest.raises(DataError, match="the columns of 'active' only, which has none"):
        train(SecureBoost(), held, schema, defense=Composition((ReducedLeakage(),)))


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
def test_what_the_most_telling_node_told_is_measured(text):
    for defense in (IDLMID(0.3), IDLMID(0.5, relative=True)):
        training, held = run(text, 3, 3, defense)
        told = max(max(informed(training, held, who, 3)) for who in list(held)[1:])
        most = np.log(1 / np.bincount(table_of(3)[0].y).min() * 150) if defense.relative else 1
        found = largest_node(training, held)
        assert found.xi == pytest.approx(told / most, abs=1e-5)
        assert 0 < found.xi <= defense.xi
    training, held = run(text, 3, 3, IDLMID(1e-9))  # trees of the active party alone
    assert largest_node(training, held) == MutualInformation(0.0)
    assert largest_node(*run(text, 3)) is None

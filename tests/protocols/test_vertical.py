"""Vertical parties grow the central engine's trees, and see only the messages they receive."""

from dataclasses import replace

import numpy as np
import pytest
from central_multi_output import grow_multi_output
from columns import dealt, run, seen_by, table_of
from data_dir import data_dir

from fedtrees.core.composition import Composition
from fedtrees.core.errors import DataError, ProtocolError, UsageError
from fedtrees.core.local_data import LocalData
from fedtrees.core.registry import register
from fedtrees.core.schema import Table
from fedtrees.core.specs import Spec, parse_grid
from fedtrees.core.streams import Streams
from fedtrees.data import catalogue
from fedtrees.data.partition import Partition
from fedtrees.defenses.nodes import IDLMID
from fedtrees.experiments.federation import spread
from fedtrees.messages.vertical import (
    NodeRows,
    RootRows,
    RoutedRows,
    RowsToRoute,
    visible_leaves,
    visible_nodes,
)
from fedtrees.privacy.accounting import node_information
from fedtrees.protocols.training import train
from fedtrees.protocols.vertical.local_bins import candidate_cuts
from fedtrees.protocols.vertical.secureboost import SecureBoost
from fedtrees.trees.binning import bin_rows
from fedtrees.trees.boosted.boosting import grow_forest
from fedtrees.trees.boosted.losses import objective_of
from fedtrees.trees.cut_points import quantile_cuts
from fedtrees.trees.forest.grower import draw_rows
from fedtrees.trees.forest.growth import grow_whole_tree
from fedtrees.trees.forest.random_forest import RandomForest
from fedtrees.trees.routing import Routes

WHOLE = "secureboost[colsample_bytree=1.0,trees=3,max_depth=4,max_bin=16]"
FOREST = "vertical-forest[tree_features=none,trees=3,max_depth=4,max_bin=16]"
PARTIES = (2, 3, 5)


def same_trees(model, central, cuts, fields):
    """Compare node by node; bin b of a passive party corresponds to the threshold b + 1."""
    assert len(model.trees) == len(central)
    for grown, tree in zip(model.trees, central, strict=True):
        for name in fields:
            np.testing.assert_array_equal(getattr(grown, name), getattr(tree, name), name)
        inner = np.flatnonzero(tree.feature >= 0)
        assert len(inner) > 3
        for node in inner.tolist():
            column, threshold = int(tree.feature[node]), grown.threshold[node]
            if model.owners[column] != "active":
                threshold = cuts.thresholds(column, int(threshold) - 1)
            assert threshold == tree.threshold[node]


STRUCTURE = ("feature", "left", "right", "default_left")


@pytest.mark.parametrize("parties", PARTIES)
@pytest.mark.parametrize("classes", [2, 3, 0], ids=["binary", "classes", "number"])
def test_boosting_equals_the_central_engine_node_by_node(parties, classes):
    (training, _), (table, schema) = run(WHOLE, parties, classes), table_of(classes)
    cuts = quantile_cuts(table.X, 16)
    objective = objective_of(None, schema.classes)
    central = grow_forest(table.X, table.y, cuts, training.protocol, objective)
    fields = (*STRUCTURE, "value", "g", "h", "gain")
    same_trees(training.model, central.trees, cuts, fields)
    np.testing.assert_array_equal(training.predict(table.X), central.predict(table.X))
    owners = {
        training.model.owners[feature]
        for tree in central.trees
        for feature in tree.feature
        if feature >= 0
    }
    assert len(owners) == parties  # Columns of every party are used.


@pytest.mark.long
@pytest.mark.parametrize(("name", "parties"), [("phishing", 2), ("obesity-7", 3)])
def test_on_published_tables_trees_equal_the_central_ones_and_no_node_exceeds_xi(name, parties):
    """Columns of Phishing have two or three values, so many splits have exactly equal gains."""
    data = catalogue.load(name, data_dir())
    protocol = SecureBoost(trees=2, colsample_bytree=1.0)
    party_names = protocol.holder_names(parties)
    federation = spread(data, Partition("iid"), party_names, 0, protocol.layout)
    training = train(protocol, federation.local_data, federation.schema)
    X, y = training_table(federation)
    cuts, objective = quantile_cuts(X, 32), objective_of(None, federation.schema.classes)
    central = grow_forest(X, y, cuts, protocol, objective)
    same_trees(training.model, central.trees, cuts, (*STRUCTURE, "value"))
    composition = Composition((IDLMID(0.9, relative=True),))
    bounded_run = train(protocol, federation.local_data, federation.schema, defense=composition)
    totals = np.bincount(y)
    limit = 0.9 * np.log(totals.sum() / totals.min())
    view = seen_by(bounded_run, federation.local_data, "passive-1")
    information_of_nodes = [
        node_information(np.bincount(y[rows], minlength=len(totals)), totals)
        for _, _, rows in visible_nodes(view)
    ]
    assert limit / 2 < max(information_of_nodes) <= limit


def training_table(federation):
    """Return the table of all parties' columns, and the labels."""
    local_data = federation.local_data
    X = np.empty((len(local_data["active"]), len(federation.schema.features)), dtype=np.float32)
    for data in local_data.values():
        X[:, data.columns] = data.X
    return X, local_data["active"].y


@pytest.mark.parametrize(
    "limits", ["grow_policy=lossguide,max_leaves=9", "reg_alpha=0.3,gamma=0.2,min_child_weight=1.0"]
)
def test_other_ways_to_grow_are_the_central_engines_too(limits):
    (training, _), (table, _) = run(WHOLE.replace("[", f"[{limits},"), 3), table_of(2)
    cuts = quantile_cuts(table.X, 16)
    central = grow_forest(table.X, table.y, cuts, training.protocol)
    same_trees(training.model, central.trees, cuts, (*STRUCTURE, "value", "gain"))


@pytest.mark.parametrize("parties", PARTIES)
@pytest.mark.parametrize("classes", [2, 4])
def test_a_forest_is_the_central_engines_node_by_node(parties, classes):
    (training, _), (table, _) = run(FOREST, parties, classes), table_of(classes)
    cuts, protocol = quantile_cuts(table.X, 16), training.protocol
    randomness, central = Streams(1).child("active"), []
    for t in range(3):
        weights = draw_rows(len(table), protocol, randomness.rng("rows", t))
        assert weights.sum() == 120
        key = int(randomness.rng("nodes", t).integers(0, 2**32))
        bins, every = bin_rows(table.X, cuts), np.arange(6)
        central.append(grow_whole_tree(bins, table.y, weights, cuts, classes, protocol, every, key))
    same_trees(training.model, central, cuts, (*STRUCTURE, "counts", "probability"))
    leaves = RandomForest(tuple(central)).apply(table.X).T
    total = sum(t.probability[leaf] for t, leaf in zip(central, leaves, strict=True))
    expected = total[:, 1] / 3 if classes == 2 else total / 3
    np.testing.assert_allclose(training.predict(table.X), expected, rtol=0, atol=1e-15)


def test_sampling_does_not_depend_on_the_number_of_parties():
    """Unsampled rows of a round bring zeros; each party draws its own columns."""
    text = "secureboost[subsample=0.6,colsample_bytree=1.0,trees=3]"
    (single_party, _), (three_parties, local_data) = run(text, 1), run(text, 3)
    for a, tree_of_three in zip(single_party.model.trees, three_parties.model.trees, strict=True):
        np.testing.assert_array_equal(a.value, tree_of_three.value)
    leaves = visible_leaves(seen_by(three_parties, local_data, "passive-1"))
    assert (leaves >= 0).all()  # No party learns which rows were not sampled.
    drawn, local_data = run("secureboost[colsample_bytree=0.5,trees=4,max_depth=3]", 3)
    used_columns = {"active": set(), "passive-1": set(), "passive-2": set()}
    for tree in drawn.model.trees:
        tree_columns = {feature for feature in tree.feature.tolist() if feature >= 0}
        for name in used_columns:
            party_columns = tree_columns & set(local_data[name].columns.tolist())
            assert len(party_columns) <= 1  # half of two columns
            used_columns[name] |= party_columns
    assert any(len(party_columns) == 2 for party_columns in used_columns.values())


@pytest.mark.long
@pytest.mark.parametrize("parties", PARTIES)
def test_one_tree_for_all_classes_equals_the_central_engine_node_by_node(parties):
    text = WHOLE.replace("secureboost[", "secureboost[multi_output=true,")
    (training, local_data), (table, schema) = run(text, parties, 4), table_of(4)
    cuts, objective = quantile_cuts(table.X, 16), objective_of(None, schema.classes)
    central = grow_multi_output(table.X, table.y, cuts, training.protocol, objective)
    same_trees(training.model, central.trees, cuts, (*STRUCTURE, "value", "gain"))
    np.testing.assert_array_equal(training.predict(table.X), central.predict(table.X))
    assert visible_leaves(seen_by(training, local_data, "passive-1")).shape == (150, 3)


def test_pure_nodes_are_leaves_and_no_sums_are_requested_for_them():
    text = WHOLE.replace("secureboost[", "secureboost[pure_leaves=true,")
    (single_party, _), (training, local_data), (table, _) = run(text, 1), run(text, 3), table_of(2)
    n_pure_nodes = 0
    for tree, rows, single_party_tree in zip(
        training.model.trees, training.model.rows, single_party.model.trees, strict=True
    ):
        np.testing.assert_array_equal(tree.value, single_party_tree.value)
        for node in range(len(tree)):
            ((begin, end),) = rows.ranges(np.array([node], dtype=np.int32))
            if len(np.unique(table.y[rows.rows[begin:end]])) == 1:
                assert tree.feature[node] == -1
                n_pure_nodes += 1
    assert n_pure_nodes > 5
    plain, _ = run(WHOLE, 3)
    visible = [visible_leaves(seen_by(t, local_data, "passive-1")) for t in (plain, training)]
    assert len(np.unique(visible[1][:, 0])) < len(np.unique(visible[0][:, 0]))


@pytest.mark.parametrize("classes", [2, 3])
def test_node_quantiles_do_not_depend_on_who_has_the_columns(classes):
    text = (
        "secureboost[colsample_bytree=1.0,trees=2,max_depth=4,max_bin=8,candidates=node-quantiles]"
    )
    single_party, _ = run(text, 1, classes)
    table, _ = table_of(classes)
    for parties in PARTIES:
        several_parties, _ = run(text, parties, classes)
        for a, other_tree in zip(
            single_party.model.trees, several_parties.model.trees, strict=True
        ):
            for name in (*STRUCTURE, "value", "gain"):
                np.testing.assert_array_equal(getattr(a, name), getattr(other_tree, name))
        np.testing.assert_array_equal(
            single_party.predict(table.X), several_parties.predict(table.X)
        )
    global_quantiles, _ = run(text.replace(",candidates=node-quantiles", ""), 1, classes)
    assert not np.array_equal(global_quantiles.predict(table.X), single_party.predict(table.X))
    for tree, rows in zip(single_party.model.trees, single_party.model.rows, strict=True):
        leaves = leaves_of(tree, table.X)
        for leaf in tree.leaves.tolist():  # Rows reach the same leaf in prediction as in training.
            ((begin, end),) = rows.ranges(np.array([leaf], dtype=np.int32))
            assert set(np.flatnonzero(leaves == leaf)) == set(rows.rows[begin:end])


def leaves_of(tree, X):
    return Routes.of([tree]).apply(X)[:, 0]


def test_candidates_of_a_node_equal_those_of_the_authors():
    """A small node has every value as a candidate; others have the values at n j / q - 1/2.

    If that position lies between two values, the candidate is their mean.
    """
    four_values = np.array([3, 1, 1, np.nan, 7], dtype=np.float32)
    below = np.nextafter(candidate_cuts(four_values, 4), np.float32(-np.inf))
    assert below.tolist() == [1, 3, 7]
    ten_values = np.arange(10, dtype=np.float32)
    below = np.nextafter(candidate_cuts(ten_values, 4), np.float32(-np.inf))
    assert below.tolist() == [0, 2, 4.5, 7]


# --- views of passive parties


def expected_visible_leaves(training, party, tree):
    """Return the visible leaf of every row, derived from the trees and the owners of their splits.

    A party knows the root, both children of a split that it owns, and both children of a split if
    it received a request for one of them, which happens above the last level only.
    """
    model, depth = training.model, training.protocol.max_depth
    grown, rows = model.trees[tree], model.rows[tree]
    level, visible = {0: 0}, [0]
    for node in range(len(grown)):
        if grown.feature[node] < 0 or node not in visible:
            continue
        left = int(grown.left[node])
        level[left] = level[left + 1] = level[node] + 1
        is_owner = model.owners[grown.feature[node]] == party
        if is_owner or (level[left] < depth and splits_were_searched(training, tree, left)):
            visible += [left, left + 1]
    leaf_of_row = np.full(max(rows.rows) + 1, -1)
    for node in visible:  # children overwrite their parents
        below = [node]
        for descendant in below:
            if grown.feature[descendant] >= 0:
                below += [int(grown.left[descendant]), int(grown.left[descendant]) + 1]
        for leaf in (n for n in below if grown.feature[n] < 0):
            ((begin, end),) = rows.ranges(np.array([leaf], dtype=np.int32))
            leaf_of_row[rows.rows[begin:end]] = node
    return leaf_of_row


def splits_were_searched(training, tree, left):
    """Return whether the parties searched splits for at least one of two children."""
    grown = training.model.trees[tree]
    if hasattr(grown, "value"):
        return True  # every node above the last level
    counts = grown.counts[[left, left + 1]]  # A pure node is not split further.
    return bool((counts.max(axis=1) < counts.sum(axis=1)).any())


@pytest.mark.parametrize("parties", PARTIES)
@pytest.mark.parametrize("text", [WHOLE, FOREST])
def test_visible_leaves_follow_the_rule_for_any_number_of_parties(text, parties):
    training, local_data = run(text, parties)
    for party in list(local_data)[1:]:
        leaves = visible_leaves(seen_by(training, local_data, party))
        assert leaves.shape == (150, 3)
        for tree in range(3):
            expected = np.full(150, -1)
            visible = expected_visible_leaves(training, party, tree)
            expected[: len(visible)] = visible
            np.testing.assert_array_equal(leaves[:, tree], expected)


def test_colluding_passive_parties_see_the_intersections_of_their_leaves():
    training, local_data = run(WHOLE, 3)
    joint_leaves = visible_leaves(seen_by(training, local_data, "passive-1", "passive-2"))
    leaves_1, leaves_2 = (
        visible_leaves(seen_by(training, local_data, f"passive-{i}")) for i in (1, 2)
    )
    for tree in range(3):
        pairs = {*zip(leaves_1[:, tree].tolist(), leaves_2[:, tree].tolist(), strict=True)}
        assert len(np.unique(joint_leaves[:, tree])) == len(pairs)
        assert len(pairs) > max(len(np.unique(leaves[:, tree])) for leaves in (leaves_1, leaves_2))


def test_visible_nodes_are_roots_inner_nodes_and_leaves_and_laminar():
    training, local_data = run(FOREST, 2)
    view = seen_by(training, local_data, "passive-1")
    nodes = list(visible_nodes(view))
    assert {(t, len(rows)) for t, n, rows in nodes if n == 0} == {(t, 120) for t in range(3)}
    leaves = visible_leaves(view)
    for tree, node, rows in nodes:
        assert (np.diff(rows) > 0).all()
        is_inside = np.isin(np.arange(150), rows)
        if (leaves[is_inside, tree] == node).any():
            assert (leaves[is_inside, tree] == node).all()
            assert not (leaves[~is_inside, tree] == node).any()
    assert len(nodes) > 20


def test_a_blind_view_has_no_leaves():
    training, local_data = run(WHOLE, 2)
    view = seen_by(training, local_data, "passive-1").blinded()
    assert visible_leaves(view).shape == (150, 0)
    assert list(visible_nodes(view)) == []


def test_a_party_receives_only_the_messages_that_it_needs():
    training, local_data = run(WHOLE, 3)
    received = seen_by(training, local_data, "passive-1").seen
    kinds = {type(item.message).__name__ for item in received if "passive-1" in item.receivers}
    assert kinds == {"BinCountsRequest", "RootRows", "RowStatistics", "NodeRows", "ChosenSplits"}
    routed = [item.message for item in received if isinstance(item.message, RoutedRows)]
    owned = sum(
        training.model.owners[feature] == "passive-1"
        for tree in training.model.trees
        for feature in tree.feature
        if feature >= 0
    )
    assert sum(len(m.nodes) for m in routed) == owned > 0
    node_rows = [item.message for item in received if isinstance(item.message, NodeRows)]
    for message in node_rows:  # Of two children, only the smaller one is announced.
        assert len(message.asked) == max(len(message.nodes), 1)


def test_prediction_shows_each_party_only_the_rows_that_reach_its_splits():
    training, local_data = run(WHOLE, 3)
    table, _ = table_of(2)
    training.predict(table.X[:40])
    view = seen_by(training, local_data, "passive-1")
    routing_requests = [item.message for item in view.seen if isinstance(item.message, RowsToRoute)]
    model = training.model
    for message in routing_requests:
        for tree, node in zip(message.trees.tolist(), message.nodes.tolist(), strict=True):
            assert model.owners[model.trees[tree].feature[node]] == "passive-1"
        assert message.rows.max() < 40
    assert routing_requests
    with pytest.raises(ProtocolError, match="no party has the complete model"):
        model.predict(table.X)


# --- refusals


def changed_local_data(**changes):
    table, schema = table_of(2)
    local_data = {
        **dealt(table, 2),
    }
    for name, change in changes.items():
        name = name.replace("_", "-")
        local_data[name] = change(local_data[name])
    return local_data, schema


def replace_fields(data, **changes):
    values = {field: getattr(data, field) for field in ("ids", "columns", "X", "y", "weight")}
    return LocalData(**{**values, **changes})


@pytest.mark.parametrize(
    ("changes", "error", "error_message"),
    [
        (
            {"passive_1": lambda h: replace_fields(h, ids=h.ids[::-1])},
            DataError,
            "nobody of|together|same order",
        ),
        (
            {"passive_1": lambda h: replace_fields(h, ids=h.ids[:-1], X=h.X[:-1])},
            DataError,
            "have the columns",
        ),
        (
            {"passive_1": lambda h: replace_fields(h, y=np.zeros(150))},
            DataError,
            "'passive-1' has lab",
        ),
        (
            {"active": lambda h: replace_fields(h, y=np.ones(150, int))},
            DataError,
            "it takes two classes",
        ),
        (
            {"active": lambda h: replace_fields(h, y=None)},
            DataError,
            "none of active, passive-1 has",
        ),
    ],
)
def test_local_data_that_do_not_fit_together_are_refused(changes, error, error_message):
    local_data, schema = changed_local_data(**changes)
    with pytest.raises(error, match=error_message):
        train(SecureBoost(), local_data, schema)


def test_a_passive_party_needs_a_column_and_the_active_party_does_not():
    table, schema = table_of(2)
    all_columns, no_columns = np.arange(6), np.zeros(0, dtype=int)
    active_data = dealt(table, 2)["active"]
    active = LocalData(active_data.ids, all_columns, table.X, table.y)
    empty = LocalData(active_data.ids, no_columns, table.X[:, no_columns])
    with pytest.raises(DataError, match="'passive-1' has no column; give it one, or leave it"):
        train(SecureBoost(), {"active": active, "passive-1": empty}, schema)
    labels = LocalData(active_data.ids, no_columns, table.X[:, no_columns], table.y)
    all_features = LocalData(active_data.ids, all_columns, table.X)
    two_parties = train(SecureBoost(trees=2), {"active": labels, "passive-1": all_features}, schema)
    single_party = train(SecureBoost(trees=2, colsample_bytree=1.0), {"active": active}, schema)
    assert two_parties.predict(table.X).std() > 0.1
    assert not single_party.transcript.deliveries


def test_a_constant_column_is_never_chosen():
    table, schema = table_of(2)
    X = table.X.copy()
    X[:, 4] = 2.0
    local_data = dealt(Table(X, table.y), 3)
    training = train(SecureBoost(trees=2), local_data, schema)
    assert 4 not in {feature for tree in training.model.trees for feature in tree.feature.tolist()}


@pytest.mark.parametrize(
    ("text", "error_message"),
    [
        ("secureboost[multi_output=true,max_leaves=4]", "grow level by level"),
        ("secureboost[candidates=all]", "unknown candidates 'all'"),
        ("secureboost[crypto=fake]", "unknown crypto 'fake'"),
        ("secureboost[key_bits=512]", "key_bits=512: a Paillier key has one of 1024"),
        ("secureboost[colsample_bynode=0.5]", "every party draws its columns once for each tree"),
        ("vertical-forest[max_leaf_nodes=4]", "levels are grown whole here"),
    ],
)
def test_invalid_parameters_are_refused(text, error_message):
    with pytest.raises(UsageError, match=error_message):
        register.make("protocol", parse_grid(text)[0])


def test_a_forest_takes_neither_weights_nor_numbers():
    table, schema = table_of(2)
    weighted = Table(table.X, table.y, np.ones(150))
    forest = register.make("protocol", Spec("vertical-forest"))
    with pytest.raises(DataError, match="take no sample weights"):
        train(forest, dealt(weighted, 2), schema)
    with pytest.raises(UsageError, match="random forests here classify"):
        forest.check(replace(schema, classes=()))


def test_weights_count_as_rows():
    """A row of weight 2 is two rows, for any number of parties."""
    table, schema = table_of(2)
    weight = np.arange(150) % 3
    boost = SecureBoost(trees=2, colsample_bytree=1.0)
    runs = [
        train(boost, dealt(Table(table.X, table.y, weight), parties), schema) for parties in (1, 3)
    ]
    cuts = quantile_cuts(table.X, 32)
    central = grow_forest(table.X, table.y, cuts, boost, weight=weight)
    for training in runs:
        for a, b in zip(training.model.trees, central.trees, strict=True):
            np.testing.assert_array_equal(a.value, b.value)


def test_root_rows_of_a_forest_are_the_sampled_rows():
    training, local_data = run(FOREST, 2)
    messages = seen_by(training, local_data, "passive-1").seen
    roots = [item.message for item in messages if isinstance(item.message, RootRows)]
    assert [len(message.rows) for message in roots] == [120, 120, 120]
    assert len({message.rows.tobytes() for message in roots}) == 3


def test_candidates_of_a_level_are_not_kept_for_best_node_first():
    with pytest.raises(UsageError, match="candidates=node-quantiles exist for one level"):
        SecureBoost(candidates="node-quantiles", grow_policy="lossguide")
    assert SecureBoost(grow_policy="lossguide").candidates == "global"

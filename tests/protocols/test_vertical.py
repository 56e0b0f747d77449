"""Parties with other columns of the same rows grow the central engine's trees, and see what they
were told."""

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


def same_trees(mine, central, cuts, fields):
    """Compare node by node; a passive owner's bin b reads as the threshold b + 1."""
    assert len(mine.trees) == len(central)
    for grown, tree in zip(mine.trees, central, strict=True):
        for name in fields:
            np.testing.assert_array_equal(getattr(grown, name), getattr(tree, name), name)
        inner = np.flatnonzero(tree.feature >= 0)
        assert len(inner) > 3
        for node in inner.tolist():
            column, told = int(tree.feature[node]), grown.threshold[node]
            if mine.owners[column] != "active":
                told = cuts.thresholds(column, int(told) - 1)
            assert told == tree.threshold[node]


STRUCTURE = ("feature", "left", "right", "default_left")


@pytest.mark.parametrize("parties", PARTIES)
@pytest.mark.parametrize("classes", [2, 3, 0], ids=["binary", "classes", "number"])
def test_boosting_is_the_central_engines_node_by_node(parties, classes):
    (training, _), (table, schema) = run(WHOLE, parties, classes), table_of(classes)
    cuts = quantile_cuts(table.X, 16)
    objective = objective_of(None, schema.classes)
    central = grow_forest(table.X, table.y, cuts, training.protocol, objective)
    fields = (*STRUCTURE, "value", "g", "h", "gain")
    same_trees(training.model, central.trees, cuts, fields)
    np.testing.assert_array_equal(training.predict(table.X), central.predict(table.X))
    owners = {training.model.owners[f] for t in central.trees for f in t.feature if f >= 0}
    assert len(owners) == parties  # everybody's columns are in it


@pytest.mark.long
@pytest.mark.parametrize(("name", "parties"), [("phishing", 2), ("obesity-7", 3)])
def test_on_published_tables_trees_are_the_central_engines_and_no_node_exceeds_xi(name, parties):
    """Phishing has two or three values a column: many splits gain exactly the same."""
    data = catalogue.load(name, data_dir())
    protocol = SecureBoost(trees=2, colsample_bytree=1.0)
    holders = protocol.holder_names(parties)
    federation = spread(data, Partition("iid"), holders, 0, protocol.layout)
    training = train(protocol, federation.local_data, federation.schema)
    X, y = training_table(federation)
    cuts, objective = quantile_cuts(X, 32), objective_of(None, federation.schema.classes)
    central = grow_forest(X, y, cuts, protocol, objective)
    same_trees(training.model, central.trees, cuts, (*STRUCTURE, "value"))
    by = Composition((IDLMID(0.9, relative=True),))
    bound = train(protocol, federation.local_data, federation.schema, defense=by)
    totals = np.bincount(y)
    limit = 0.9 * np.log(totals.sum() / totals.min())
    view = seen_by(bound, federation.local_data, "passive-1")
    worst = [
        node_information(np.bincount(y[rows], minlength=len(totals)), totals)
        for _, _, rows in visible_nodes(view)
    ]
    assert limit / 2 < max(worst) <= limit


def training_table(federation):
    """Put everybody's columns back together."""
    local_data = federation.local_data
    X = np.empty((len(local_data["active"]), len(federation.schema.features)), dtype=np.float32)
    for held in local_data.values():
        X[:, held.columns] = held.X
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


def test_sampling_does_not_depend_on_who_else_there_is():
    """Rows left out of a round bring zeros; each party draws its columns by its own randomness."""
    text = "secureboost[subsample=0.6,colsample_bytree=1.0,trees=3]"
    (alone, _), (many, held) = run(text, 1), run(text, 3)
    for a, b in zip(alone.model.trees, many.model.trees, strict=True):
        np.testing.assert_array_equal(a.value, b.value)
    leaves = visible_leaves(seen_by(many, held, "passive-1"))
    assert (leaves >= 0).all()  # nobody can tell who was left out
    drawn, held = run("secureboost[colsample_bytree=0.5,trees=4,max_depth=3]", 3)
    used = {"active": set(), "passive-1": set(), "passive-2": set()}
    for tree in drawn.model.trees:
        here = {f for f in tree.feature.tolist() if f >= 0}
        for name in used:
            mine = here & set(held[name].columns.tolist())
            assert len(mine) <= 1  # half of two columns
            used[name] |= mine
    assert any(len(mine) == 2 for mine in used.values())


@pytest.mark.long
@pytest.mark.parametrize("parties", PARTIES)
def test_one_tree_for_all_classes_is_the_central_engines_node_by_node(parties):
    text = WHOLE.replace("secureboost[", "secureboost[multi_output=true,")
    (training, held), (table, schema) = run(text, parties, 4), table_of(4)
    cuts, objective = quantile_cuts(table.X, 16), objective_of(None, schema.classes)
    central = grow_multi_output(table.X, table.y, cuts, training.protocol, objective)
    same_trees(training.model, central.trees, cuts, (*STRUCTURE, "value", "gain"))
    np.testing.assert_array_equal(training.predict(table.X), central.predict(table.X))
    assert visible_leaves(seen_by(training, held, "passive-1")).shape == (150, 3)


def test_pure_nodes_are_leaves_and_of_two_of_them_nobody_is_asked():
    text = WHOLE.replace("secureboost[", "secureboost[pure_leaves=true,")
    (alone, _), (training, held), (table, _) = run(text, 1), run(text, 3), table_of(2)
    met = 0
    for tree, rows, one in zip(
        training.model.trees, training.model.rows, alone.model.trees, strict=True
    ):
        np.testing.assert_array_equal(tree.value, one.value)
        for node in range(len(tree)):
            ((begin, end),) = rows.ranges(np.array([node], dtype=np.int32))
            if len(np.unique(table.y[rows.rows[begin:end]])) == 1:
                assert tree.feature[node] == -1
                met += 1
    assert met > 5
    plain, _ = run(WHOLE, 3)
    seen = [visible_leaves(seen_by(t, held, "passive-1")) for t in (plain, training)]
    assert len(np.unique(seen[1][:, 0])) < len(np.unique(seen[0][:, 0]))


@pytest.mark.parametrize("classes", [2, 3])
def test_quantiles_of_nodes_are_the_same_whoever_holds_the_columns(classes):
    text = (
        "secureboost[colsample_bytree=1.0,trees=2,max_depth=4,max_bin=8,candidates=node-quantiles]"
    )
    alone, _ = run(text, 1, classes)
    table, _ = table_of(classes)
    for parties in PARTIES:
        many, _ = run(text, parties, classes)
        for a, b in zip(alone.model.trees, many.model.trees, strict=True):
            for name in (*STRUCTURE, "value", "gain"):
                np.testing.assert_array_equal(getattr(a, name), getattr(b, name))
        np.testing.assert_array_equal(alone.predict(table.X), many.predict(table.X))
    fewer, _ = run(text.replace(",candidates=node-quantiles", ""), 1, classes)
    assert not np.array_equal(fewer.predict(table.X), alone.predict(table.X))
    for tree, rows in zip(alone.model.trees, alone.model.rows, strict=True):
        leaves = leaves_of(tree, table.X)
        for leaf in tree.leaves.tolist():  # rows to predict go where training rows went
            ((begin, end),) = rows.ranges(np.array([leaf], dtype=np.int32))
            assert set(np.flatnonzero(leaves == leaf)) == set(rows.rows[begin:end])


def leaves_of(tree, X):
    return Routes.of([tree]).apply(X)[:, 0]


def test_candidates_of_a_node_are_the_authors():
    """Every value of a small node; else values at n j / q - 1/2, in between where that falls."""
    few = np.array([3, 1, 1, np.nan, 7], dtype=np.float32)
    below = np.nextafter(candidate_cuts(few, 4), np.float32(-np.inf))
    assert below.tolist() == [1, 3, 7]
    many = np.arange(10, dtype=np.float32)
    below = np.nextafter(candidate_cuts(many, 4), np.float32(-np.inf))
    assert below.tolist() == [0, 2, 4.5, 7]


# --- what a party sees


def truly_visible(training, party, tree):
    """Return the visible leaf of every row, worked out from the trees and who owns their splits.

    A party knows the root, both children of a split that it owns, and both children of any split
    one of which it was asked about: all above the last level.
    """
    model, depth = training.model, training.protocol.max_depth
    grown, rows = model.trees[tree], model.rows[tree]
    level, known = {0: 0}, [0]
    for node in range(len(grown)):
        if grown.feature[node] < 0 or node not in known:
            continue
        left = int(grown.left[node])
        level[left] = level[left + 1] = level[node] + 1
        mine = model.owners[grown.feature[node]] == party
        if mine or (level[left] < depth and asked(training, tree, left)):
            known += [left, left + 1]
    full = np.full(max(rows.rows) + 1, -1)
    for node in known:  # children overwrite their parents
        below = [node]
        for at in below:
            if grown.feature[at] >= 0:
                below += [int(grown.left[at]), int(grown.left[at]) + 1]
        for leaf in (n for n in below if grown.feature[n] < 0):
            ((begin, end),) = rows.ranges(np.array([leaf], dtype=np.int32))
            full[rows.rows[begin:end]] = node
    return full


def asked(training, tree, left):
    """Whether splits of one of two children were looked for."""
    grown = training.model.trees[tree]
    if hasattr(grown, "value"):
        return True  # every node above the last level
    counts = grown.counts[[left, left + 1]]  # a pure node is none
    return bool((counts.max(axis=1) < counts.sum(axis=1)).any())


@pytest.mark.parametrize("parties", PARTIES)
@pytest.mark.parametrize("text", [WHOLE, FOREST])
def test_visible_leaves_are_those_of_the_rule_for_any_number_of_parties(text, parties):
    training, held = run(text, parties)
    for who in list(held)[1:]:
        leaves = visible_leaves(seen_by(training, held, who))
        assert leaves.shape == (150, 3)
        for tree in range(3):
            expected = np.full(150, -1)
            found = truly_visible(training, who, tree)
            expected[: len(found)] = found
            np.testing.assert_array_equal(leaves[:, tree], expected)


def test_colluding_passive_parties_see_the_finer_of_what_each_sees():
    training, held = run(WHOLE, 3)
    both = visible_leaves(seen_by(training, held, "passive-1", "passive-2"))
    one, two = (visible_leaves(seen_by(training, held, f"passive-{i}")) for i in (1, 2))
    for tree in range(3):
        pairs = {*zip(one[:, tree].tolist(), two[:, tree].tolist(), strict=True)}
        assert len(np.unique(both[:, tree])) == len(pairs)
        assert len(pairs) > max(len(np.unique(v[:, tree])) for v in (one, two))


def test_visible_nodes_are_roots_inner_nodes_and_leaves_and_laminar():
    training, held = run(FOREST, 2)
    view = seen_by(training, held, "passive-1")
    nodes = list(visible_nodes(view))
    assert {(t, len(rows)) for t, n, rows in nodes if n == 0} == {(t, 120) for t in range(3)}
    leaves = visible_leaves(view)
    for tree, node, rows in nodes:
        assert (np.diff(rows) > 0).all()
        inside = np.isin(np.arange(150), rows)
        if (leaves[inside, tree] == node).any():
            assert (leaves[inside, tree] == node).all()
            assert not (leaves[~inside, tree] == node).any()
    assert len(nodes) > 20


def test_a_blind_view_has_no_leaves():
    training, held = run(WHOLE, 2)
    view = seen_by(training, held, "passive-1").blinded()
    assert visible_leaves(view).shape == (150, 0)
    assert list(visible_nodes(view)) == []


def test_what_a_party_receives_is_what_it_needs():
    training, held = run(WHOLE, 3)
    seen = seen_by(training, held, "passive-1").seen
    kinds = {type(s.message).__name__ for s in seen if "passive-1" in s.receivers}
    assert kinds == {"BinCountsRequest", "RootRows", "RowStatistics", "NodeRows", "ChosenSplits"}
    split = [s.message for s in seen if isinstance(s.message, RoutedRows)]
    owned = sum(
        training.model.owners[f] == "passive-1"
        for t in training.model.trees
        for f in t.feature
        if f >= 0
    )
    assert sum(len(m.nodes) for m in split) == owned > 0
    told = [s.message for s in seen if isinstance(s.message, NodeRows)]
    for message in told:  # of two children the smaller one
        assert len(message.asked) == max(len(message.nodes), 1)


def test_predicting_shows_each_party_the_rows_that_reach_its_splits():
    training, held = run(WHOLE, 3)
    table, _ = table_of(2)
    training.predict(table.X[:40])
    view = seen_by(training, held, "passive-1")
    asked_rows = [s.message for s in view.seen if isinstance(s.message, RowsToRoute)]
    model = training.model
    for message in asked_rows:
        for tree, node in zip(message.trees.tolist(), message.nodes.tolist(), strict=True):
            assert model.owners[model.trees[tree].feature[node]] == "passive-1"
        assert message.rows.max() < 40
    assert asked_rows
    with pytest.raises(ProtocolError, match="no party has the complete model"):
        model.predict(table.X)


# --- what is refused


def spoilt(**changes):
    table, schema = table_of(2)
    held = {
        **dealt(table, 2),
    }
    for name, make in changes.items():
        name = name.replace("_", "-")
        held[name] = make(held[name])
    return held, schema


def one(held, **changes):
    values = {f: getattr(held, f) for f in ("ids", "columns", "X", "y", "weight")}
    return LocalData(**{**values, **changes})


@pytest.mark.parametrize(
    ("changes", "error", "said"),
    [
        (
            {"passive_1": lambda h: one(h, ids=h.ids[::-1])},
            DataError,
            "nobody of|together|same order",
        ),
        (
            {"passive_1": lambda h: one(h, ids=h.ids[:-1], X=h.X[:-1])},
            DataError,
            "hold the col",
        ),
        ({"passive_1": lambda h: one(h, y=np.zeros(150))}, DataError, "'passive-1' has lab"),
        ({"active": lambda h: one(h, y=np.ones(150, int))}, DataError, "it takes two classes"),
        ({"active": lambda h: one(h, y=None)}, DataError, "none of active, passive-1 has"),
    ],
)
def test_what_parties_cannot_hold_is_named(changes, error, said):
    held, schema = spoilt(**changes)
    with pytest.raises(error, match=said):
        train(SecureBoost(), held, schema)


def test_a_passive_party_needs_a_column_and_the_active_one_does_not():
    table, schema = table_of(2)
    every, none = np.arange(6), np.zeros(0, dtype=int)
    one = dealt(table, 2)["active"]
    active = LocalData(one.ids, every, table.X, table.y)
    empty = LocalData(one.ids, none, table.X[:, none])
    with pytest.raises(DataError, match="'passive-1' has no column; give it one, or leave it"):
        train(SecureBoost(), {"active": active, "passive-1": empty}, schema)
    labels = LocalData(one.ids, none, table.X[:, none], table.y)
    rest = LocalData(one.ids, every, table.X)
    both = train(SecureBoost(trees=2), {"active": labels, "passive-1": rest}, schema)
    alone = train(SecureBoost(trees=2, colsample_bytree=1.0), {"active": active}, schema)
    assert both.predict(table.X).std() > 0.1
    assert not alone.transcript.deliveries


def test_a_constant_column_is_never_chosen():
    table, schema = table_of(2)
    X = table.X.copy()
    X[:, 4] = 2.0
    held = dealt(Table(X, table.y), 3)
    training = train(SecureBoost(trees=2), held, schema)
    assert 4 not in {f for t in training.model.trees for f in t.feature.tolist()}


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("secureboost[multi_output=true,max_leaves=4]", "grow level by level"),
        ("secureboost[candidates=all]", "unknown candidates 'all'"),
        ("secureboost[crypto=fake]", "unknown crypto 'fake'"),
        ("secureboost[key_bits=512]", "key_bits=512: a Paillier key has one of 1024"),
        ("secureboost[colsample_bynode=0.5]", "every party draws its columns once for each tree"),
        ("vertical-forest[max_leaf_nodes=4]", "levels are grown whole here"),
    ],
)
def test_parameters_that_make_no_sense_are_named(text, said):
    with pytest.raises(UsageError, match=said):
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


def test_root_rows_of_a_forest_are_the_rows_it_drew():
    training, held = run(FOREST, 2)
    seen = seen_by(training, held, "passive-1").seen
    roots = [s.message for s in seen if isinstance(s.message, RootRows)]
    assert [len(m.rows) for m in roots] == [120, 120, 120]
    assert len({m.rows.tobytes() for m in roots}) == 3


def test_candidates_of_a_level_are_not_kept_for_best_node_first():
    with pytest.raises(UsageError, match="candidates=node-quantiles exist for one level"):
        SecureBoost(candidates="node-quantiles", grow_policy="lossguide")
    assert SecureBoost(grow_policy="lossguide").candidates == "global"

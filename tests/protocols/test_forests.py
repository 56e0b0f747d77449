"""forest-hist and local-forests: equality with central forests, messages, and defenses."""

from dataclasses import dataclass, replace

import numpy as np
import pytest
from sklearn.datasets import load_breast_cancer, load_wine

from fedtrees.core.composition import Composition
from fedtrees.core.defense import Defense
from fedtrees.core.errors import DataError, UnguardedMessageError, UsageError
from fedtrees.core.guarantee import Structural
from fedtrees.core.local_data import over_clients
from fedtrees.core.messages import Reveal
from fedtrees.core.registry import register
from fedtrees.core.schema import Feature, Schema, Table
from fedtrees.core.specs import Spec, parse_grid
from fedtrees.core.streams import Streams
from fedtrees.core.wire import decode
from fedtrees.experiments import store
from fedtrees.messages.forests import (
    ClassCounts,
    ClassCountsRequest,
    ClassTotals,
    ForestModel,
    LeafClasses,
    LocalForest,
    PooledForest,
)
from fedtrees.messages.horizontal import NodeSplits
from fedtrees.protocols.compatibility import check_fit
from fedtrees.protocols.training import train
from fedtrees.protocols.views import view_of
from fedtrees.trees.binning import bin_rows
from fedtrees.trees.cut_points import quantile_cuts
from fedtrees.trees.forest.grower import draw_columns, draw_rows, grow_random_forest, rows_of_tree
from fedtrees.trees.forest.growth import grow_whole_tree
from fedtrees.trees.forest.random_forest import RandomForest

PARTS = ("feature", "threshold", "left", "right", "default_left", "counts")


def clients_and_schema(load_table, count, seed=0):
    """Return the clients' tables and the schema of a scikit-learn table with missing values."""
    X, y = load_table(return_X_y=True)
    X[::17, 3] = np.nan
    features = tuple(Feature(f"f{index}", low=0, high=5000) for index in range(X.shape[1]))
    schema = Schema(features, "target", tuple(map(str, range(y.max() + 1))))
    order = np.random.default_rng(seed).permutation(len(X))
    return [Table(X[rows], y[rows]) for rows in np.array_split(order, count)], schema


def protocol(name, **params):
    return register.make("protocol", Spec(name, {"trees": 4, **params}))


def same_forest(a, b):
    return len(a) == len(b) and all(
        np.array_equal(getattr(s, part), getattr(t, part))
        and np.array_equal(s.probability[s.leaves], t.probability[t.leaves])
        for s, t in zip(a.trees, b.trees, strict=True)
        for part in PARTS
    )


@pytest.mark.parametrize("load", [load_breast_cancer, load_wine])
@pytest.mark.parametrize("count", [1, 2, 5, 20])
def test_without_row_draws_a_federation_grows_the_central_forest(load, count):
    # So few rows fit into every client's sketch as they are, so the cuts are the central ones.
    p = protocol("forest-hist", bootstrap=False, max_bin=128)
    clients, schema = clients_and_schema(load, count)
    rows = Table.concat(clients)
    central = grow_random_forest(rows.X, rows.y, quantile_cuts(rows.X, 128), p, seed=3)
    assert same_forest(train(p, over_clients(clients), schema, seed=3).model, central)


@pytest.mark.parametrize("count", [1, 5])
def test_with_row_draws_the_forest_is_the_central_one_on_the_pooled_draws(count):
    parameters = protocol("forest-hist", max_samples=0.7, min_samples_leaf=2, max_bin=128)
    clients, schema = clients_and_schema(load_breast_cancer, count)
    cuts = quantile_cuts(Table.concat(clients).X, 128)
    rows, randomness = Table.concat(clients), Streams(5)
    trees = []
    for tree_number in range(parameters.trees):
        weights = np.concatenate(
            [
                draw_rows(
                    len(client),
                    parameters,
                    randomness.child(f"client-{number}").rng("rows", tree_number),
                )
                for number, client in enumerate(clients)
            ]
        )
        drawn_columns = draw_columns(
            cuts.n_features, parameters, randomness.child("server").rng("columns", tree_number)
        )
        trees.append(
            grow_whole_tree(
                bin_rows(rows.X, cuts), rows.y, weights, cuts, 2, parameters, *drawn_columns
            )
        )
    assert same_forest(
        train(parameters, over_clients(clients), schema, seed=5).model, RandomForest(tuple(trees))
    )


@pytest.mark.parametrize("cuts", ["equal-width", "public"])
def test_cut_points_do_not_depend_on_the_clients(cuts):
    parameters = protocol("forest-hist", cuts=cuts, bootstrap=False)
    forest, forest_of_seven = (
        train(parameters, over_clients(clients), schema).model
        for clients, schema in (clients_and_schema(load_wine, n_clients) for n_clients in (1, 7))
    )
    assert same_forest(forest, forest_of_seven)


def test_local_forests_concatenate_the_forests_of_the_clients():
    parameters = protocol("local-forests")
    clients, schema = clients_and_schema(load_wine, 3)
    model = train(parameters, over_clients(clients), schema, seed=2).model
    assert len(model) == 12
    for number, table in enumerate(clients):
        randomness = Streams(2).child(f"client-{number}")
        cuts = quantile_cuts(table.X, 256)
        local_forest = grow_random_forest(
            table.X, table.y, cuts, parameters, n_classes=3, seed=randomness
        )
        assert same_forest(
            replace(model, trees=model.trees[4 * number : 4 * number + 4]), local_forest
        )


@pytest.mark.parametrize("name", ["forest-hist", "local-forests"])
def test_clients_without_rows_or_with_one_class_take_part(name):
    clients, schema = clients_and_schema(load_wine, 2)
    is_class_1 = clients[0].y == 1
    uneven_clients = [
        clients[0].take(~is_class_1),
        clients[0].take(is_class_1),
        clients[1].take(np.arange(0)),
    ]
    model = train(protocol(name), over_clients(uneven_clients), schema).model
    assert model.n_classes == 3
    assert len(model) == (4 if name == "forest-hist" else 8)
    assert (model.predict(clients[1].X).argmax(axis=1) == clients[1].y).mean() > 0.6


def test_the_server_requests_counts_of_the_drawn_features_only():
    parameters = protocol("forest-hist", max_features=3, max_depth=4)
    clients, schema = clients_and_schema(load_breast_cancer, 2)
    messages = [
        delivery.message for delivery in train(parameters, over_clients(clients), schema).transcript
    ]
    requests = [message for message in messages if isinstance(message, ClassCountsRequest)]
    widths = np.concatenate([np.diff(message.offsets) for message in requests])
    assert np.isin(
        widths, [3, 27]
    ).all()  # 27: all three drawn features were constant, so the server requests the others.
    assert np.mean(widths == 3) > 0.9
    counts = [message for message in messages if isinstance(message, ClassCounts)]
    assert (
        max(
            message.counts.shape[0] / len(message.nodes) for message in counts if len(message.nodes)
        )
        <= 27 * 32
    )


@pytest.mark.parametrize("name", ["forest-hist", "local-forests"])
def test_clients_receive_counts_only_if_leaf_counts_is_true(name):
    clients, schema = clients_and_schema(load_breast_cancer, 3)
    with_counts, without_counts = (
        train(protocol(name, leaf_counts=shared), over_clients(clients), schema)
        for shared in (True, False)
    )
    X = Table.concat(clients).X
    assert np.array_equal(with_counts.predict(X), without_counts.predict(X))
    for run, shared in ((with_counts, True), (without_counts, False)):
        assert all((t.counts is not None) == shared for t in run.model.trees)
        broadcasts = [
            delivery.message for delivery in run.transcript if delivery.sender == "server"
        ]
        final = [
            message for message in broadcasts if isinstance(message, (LeafClasses, PooledForest))
        ]
        assert final
        assert all((message.counts is not None) == shared for message in final)
        assert all((Reveal.COUNTS in message.reveals) == shared for message in final)
        assert all(
            message.reveals == {Reveal.THRESHOLDS}
            for message in broadcasts
            if isinstance(message, NodeSplits)
        )
    is_inner = with_counts.model.trees[0].feature >= 0
    tree = with_counts.model.trees[0]
    assert (
        tree.counts[is_inner]
        == tree.counts[tree.left[is_inner]] + tree.counts[tree.right[is_inner]]
    ).all()


def test_an_honest_but_curious_client_sees_no_other_clients_counts():
    clients, schema = clients_and_schema(load_breast_cancer, 3)
    view = view_of(
        train(protocol("forest-hist"), over_clients(clients), schema),
        ["client-1"],
        over_clients(clients),
    )
    kinds = {(d.sender, type(d.message)) for d in view.seen}
    assert ("client-1", ClassCounts) in kinds
    assert not {s for s, kind in kinds if kind in (ClassCounts, ClassTotals)} - {"client-1"}


def composed(spec):
    return Composition((register.make("defense", parse_grid(spec)[0]),))


@pytest.mark.parametrize(
    ("name", "spec"),
    [
        ("forest-hist", "laplace-hist[epsilon=1]"),
        ("forest-hist", "min-bin"),
        ("local-forests", "split-only"),
        ("local-forests", "secure-sum"),
    ],
)
def test_defenses_of_other_protocols_are_a_mismatch(name, spec):
    reason = str(check_fit(protocol(name), composed(spec)))
    assert "does not send" in reason
    assert repr(name) in reason
    assert check_fit(protocol(name)).ok


@pytest.mark.parametrize("bootstrap", [True, False])
def test_min_leaf_guarantees_k_distinct_rows_in_every_leaf_of_a_client(bootstrap):
    clients, schema = clients_and_schema(load_breast_cancer, 3)
    clients[2] = clients[2].take(
        slice(4)
    )  # A client with four rows, fewer than k, may not share any tree.
    forest_protocol = protocol("local-forests", trees=4, bootstrap=bootstrap)
    run = train(
        forest_protocol, over_clients(clients), schema, defense=composed("min-leaf[k=6]"), seed=3
    )
    assert len(run.model.trees) == 8
    for client in range(2):
        values, streams = clients[client].X, Streams(3).child(f"client-{client}")
        for tree_number, tree in enumerate(run.model.trees[4 * client : 4 * client + 4]):
            weights = rows_of_tree(len(values), forest_protocol, streams, tree_number)
            leaf_of_row = RandomForest((tree,)).apply(values)[:, 0]
            rows = np.bincount(leaf_of_row[weights > 0], minlength=len(tree))[tree.leaves]
            assert rows.min() >= 6
            drawn_rows = np.bincount(leaf_of_row, weights=weights, minlength=len(tree))[tree.leaves]
            assert (drawn_rows == tree.counts[tree.leaves].sum(axis=1)).all()
            assert len(tree) >= 3


def test_leaf_rounding_rounds_the_shares_of_local_forests():
    clients, schema = clients_and_schema(load_breast_cancer, 2)
    forest_protocol = protocol("local-forests", trees=2, max_depth=3, leaf_counts=False)
    run = train(
        forest_protocol, over_clients(clients), schema, defense=composed("leaf-rounding"), seed=0
    )
    undefended = train(forest_protocol, over_clients(clients), schema, seed=0)
    for tree, exact_tree in zip(run.model.trees, undefended.model.trees, strict=True):
        assert np.array_equal(tree.probability, np.round(exact_tree.probability, 3), equal_nan=True)
        assert not np.array_equal(tree.probability, exact_tree.probability, equal_nan=True)


def test_split_only_strips_counts_and_predicts_the_same():
    clients, schema = clients_and_schema(load_breast_cancer, 2)
    undefended = train(protocol("forest-hist"), over_clients(clients), schema)
    split_only = train(
        protocol("forest-hist"), over_clients(clients), schema, defense=composed("split-only")
    )
    assert all(t.counts is None for t in split_only.model.trees)
    X = clients[0].X
    np.testing.assert_array_equal(undefended.predict(X), split_only.predict(X))
    rounded = train(
        protocol("forest-hist"),
        over_clients(clients),
        schema,
        defense=composed("leaf-rounding[decimals=1]"),
    )
    tree = rounded.model.trees[0]
    shares = tree.probability[tree.leaves]
    np.testing.assert_array_equal(shares, np.round(shares, 1))


def test_a_secure_sum_hides_which_client_counted():
    clients, schema = clients_and_schema(load_breast_cancer, 2)
    undefended = train(protocol("forest-hist"), over_clients(clients), schema)
    secure = train(
        protocol("forest-hist"), over_clients(clients), schema, defense=composed("secure-sum")
    )
    np.testing.assert_array_equal(undefended.predict(clients[0].X), secure.predict(clients[0].X))
    view = view_of(secure, ["server"], over_clients(clients))
    assert {item.sender for item, _ in view.messages(ClassCounts)} == {"server"}


def test_a_defense_that_chooses_splits_is_a_mismatch():
    class OddBins(Defense):
        def allowed_splits(self, mask, tree, ctx):
            return mask

    reason = str(check_fit(protocol("forest-hist"), [OddBins()]))
    assert (
        reason
        == "'defense' acts through allowed_splits, a step that no party of 'forest-hist' executes"
    )


@dataclass(frozen=True)
class BareLeaves(Defense):
    """A defense that strips the counts of `LeafClasses`, as split-only does."""

    guarded: tuple = (LeafClasses,)

    roles = frozenset({"server"})
    protects = frozenset({Reveal.COUNTS, Reveal.LABELS})

    @property
    def handled_types(self):
        return self.guarded

    def claim(self):
        return Structural()

    def transform_message(self, message, ctx):
        return replace(message, counts=None)


def test_the_released_model_is_defended_and_unguarded_messages_are_refused():
    clients, schema = clients_and_schema(load_breast_cancer, 2)
    run = train(
        protocol("forest-hist"), over_clients(clients), schema, defense=Composition((BareLeaves(),))
    )
    assert all(tree.counts is None for tree in run.model.trees)
    unguarded = Composition((BareLeaves(guarded=()),))
    with pytest.raises(UnguardedMessageError, match="LeafClasses"):
        train(protocol("forest-hist"), over_clients(clients), schema, defense=unguarded)

    class GuardsOnlyLocalForests(BareLeaves):
        applies_to = (LocalForest,)

    with pytest.raises(UnguardedMessageError, match="PooledForest"):
        train(
            protocol("local-forests"),
            over_clients(clients),
            schema,
            defense=Composition((GuardsOnlyLocalForests(),)),
        )


def test_targets_tables_and_parameters_that_a_forest_cannot_use_are_refused():
    clients, schema = clients_and_schema(load_wine, 2)
    for name in ("forest-hist", "local-forests"):
        with pytest.raises(UsageError, match="classify"):
            train(protocol(name), over_clients(clients), replace(schema, classes=()))
        with pytest.raises(DataError, match="from 0 to 1"):
            train(protocol(name), over_clients(clients), replace(schema, classes=("0", "1")))
        heavy = replace(clients[0], weight=np.full(len(clients[0]), 2.0))
        with pytest.raises(DataError, match="weights"):
            train(protocol(name), over_clients([heavy]), schema)
    with pytest.raises(UsageError, match="max_leaf_nodes=9"):
        protocol("forest-hist", max_leaf_nodes=9)
    with pytest.raises(UsageError, match="did you mean 'sketch'"):
        protocol("forest-hist", cuts="sketsh")
    with pytest.raises(UsageError, match="leaf_counts='x'"):
        protocol("local-forests", leaf_counts="x")


@pytest.mark.parametrize("leaf_counts", [True, False])
def test_a_cached_training_is_read_back(tmp_path, leaf_counts):
    clients, schema = clients_and_schema(load_wine, 2)
    run = train(protocol("local-forests", leaf_counts=leaf_counts), over_clients(clients), schema)
    store.save_training(run, tmp_path, "key")
    _, path = store.training_files(tmp_path, "key")
    decoded = decode(path.read_bytes()).model()
    assert decoded.n_classes == 3
    X = Table.concat(clients).X
    assert np.array_equal(decoded.predict(X), run.model.predict(X))
    assert (decoded.trees[0].counts is not None) == leaf_counts


def test_a_run_sends_only_the_message_types_of_its_protocol():
    clients, schema = clients_and_schema(load_wine, 3)
    message_types = {
        name: {
            (delivery.sender == "server", type(delivery.message).__name__)
            for delivery in run.transcript
        }
        for name in ("forest-hist", "local-forests")
        for run in [train(protocol(name), over_clients(clients), schema)]
    }
    assert message_types["local-forests"] == {
        (True, "LocalForestRequest"),
        (False, LocalForest.__name__),
        (True, PooledForest.__name__),
        (True, ForestModel.__name__),  # the message for the public
    }
    assert {name for server, name in message_types["forest-hist"] if not server} == {
        "FeatureSketch",
        "ClassTotals",
        "ClassCounts",
    }

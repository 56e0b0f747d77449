"""fedtree-hist and nvflare-hist grow the central trees, however the rows are distributed."""

import numpy as np
import pytest
from sklearn.datasets import load_breast_cancer

from fedtrees.core.composition import Composition
from fedtrees.core.errors import DataError, UsageError
from fedtrees.core.local_data import over_clients
from fedtrees.core.messages import has_sealed_field
from fedtrees.core.registry import register
from fedtrees.core.schema import Feature, Schema, Table
from fedtrees.core.specs import Spec
from fedtrees.core.wire import encoded_size
from fedtrees.messages.horizontal import (
    CutsRequest,
    FeatureRanges,
    FeatureSketch,
    GlobalHistogram,
    Histogram,
    LabelSums,
    LeafValues,
    NodeSplits,
)
from fedtrees.protocols.compatibility import check_fit
from fedtrees.protocols.training import train
from fedtrees.protocols.views import view_of
from fedtrees.trees.boosted.boosting import grow_forest
from fedtrees.trees.cut_points import quantile_cuts

NAMES = ("fedtree-hist", "nvflare-hist")


@pytest.fixture(scope="module")
def table():
    X, y = load_breast_cancer(return_X_y=True)
    X[::17, 3] = np.nan
    return Table(X, y)


@pytest.fixture(scope="module")
def schema(table):
    return Schema(tuple(Feature(f"f{i}", low=0, high=5000) for i in range(30)), "malignant")


def spread(table, count, seed=0):
    order = np.random.default_rng(seed).permutation(len(table))
    return [table.take(rows) for rows in np.array_split(order, count)]


def protocol(name, **params):
    return register.make("protocol", Spec(name, {"trees": 8, "max_depth": 4, **params}))


def defense(*specs):
    return Composition(tuple(register.make("defense", s) for s in specs))


def same_forest(a, b):
    return a.base_margin == b.base_margin and all(
        np.array_equal(getattr(s, part), getattr(t, part))
        for s, t in zip(a.trees, b.trees, strict=True)
        for part in ("feature", "threshold", "left", "default_left", "value")
    )


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("count", [1, 2, 5, 20])
def test_a_federation_grows_the_trees_of_the_central_engine(name, count, table, schema):
    # 569 rows fit into every client's sketch as they are, so the cuts are the central ones.
    p = protocol(name, max_bin=256)
    central = grow_forest(table.X, table.y, quantile_cuts(table.X, 256), p)
    assert same_forest(train(p, over_clients(spread(table, count)), schema).model, central)


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("cuts", ["equal-width", "public"])
def test_cut_points_do_not_depend_on_the_clients(name, cuts, table, schema):
    parameters = protocol(name, cuts=cuts, base_score=0.5)
    single_client, seven_clients = (
        train(parameters, over_clients(spread(table, n_clients)), schema) for n_clients in (1, 7)
    )
    assert same_forest(single_client.model, seven_clients.model)
    kinds = {type(delivery.message) for delivery in seven_clients.transcript}
    assert (FeatureRanges in kinds) == (cuts == "equal-width")
    assert (CutsRequest in kinds) == (cuts == "equal-width")
    assert LabelSums not in kinds


def test_both_protocols_grow_the_same_forest(table, schema):
    clients = spread(table, 3)
    models = [train(protocol(n, max_bin=32), over_clients(clients), schema).model for n in NAMES]
    assert same_forest(*models)


def test_public_cuts_need_declared_ranges(table):
    bare = Schema(tuple(Feature(f"f{i}") for i in range(30)), "malignant")
    with pytest.raises(DataError, match="declared range"):
        train(protocol("fedtree-hist", cuts="public"), over_clients(spread(table, 2)), bare)


@pytest.mark.parametrize("name", NAMES)
def test_clients_with_one_row_or_one_class_take_part(name, table, schema):
    rows = np.argsort(table.y, kind="stable")
    clients = [table.take(rows[:1]), table.take(rows[1:150]), table.take(rows[150:])]
    model = train(protocol(name, max_bin=256), over_clients(clients), schema).model
    pooled_model = train(protocol(name, max_bin=256), over_clients([table]), schema).model
    assert same_forest(model, pooled_model)


def test_a_table_with_a_single_class_is_refused(table, schema):
    with pytest.raises(DataError, match="both classes"):
        train(protocol("fedtree-hist"), over_clients([table.take(table.y == 1)]), schema)


@pytest.mark.parametrize(
    ("params", "error_message"),
    [
        ({"cuts": "sketsch"}, "did you mean 'sketch'"),
        ({"base_score": "mean"}, "base_score"),
        ({"base_score": 1.0, "objective": "binary:logistic"}, "base_score"),
        ({"objective": "binary:logistik"}, "did you mean 'binary:logistic'"),
        ({"max_bin": 1}, "max_bin"),
        ({"trees": 0}, "trees"),
    ],
)
def test_parameters_are_checked(params, error_message):
    with pytest.raises(UsageError, match=error_message):
        register.make("protocol", Spec("fedtree-hist", params))


def test_clients_never_see_the_histogram_of_another_client(table, schema):
    clients = spread(table, 3)
    for name, expected in (("fedtree-hist", NodeSplits), ("nvflare-hist", GlobalHistogram)):
        training = train(protocol(name), over_clients(clients), schema)
        view = view_of(training, ("client-2",), over_clients(clients))
        received = [item.message for item in view.seen if "client-2" in item.receivers]
        assert any(isinstance(message, expected) for message in received)
        assert not any(isinstance(message, Histogram) for message in received)
        assert len(view.rows) == len(clients[2])
        server = view_of(training, ("server",), over_clients(clients))
        assert server.local_data == ()
        assert server.rows is None
        owners = {item.sender for item, _ in server.messages(Histogram)}
        assert owners == {"client-0", "client-1", "client-2"}
        assert sum(has_sealed_field(item.message) for item in server.seen) == 3  # label sums


def test_the_released_model_contains_what_clients_received(table, schema):
    clients = spread(table, 3)
    parameters = protocol("fedtree-hist")
    undefended = train(parameters, over_clients(clients), schema)
    assert undefended.model.trees[0].g is not None
    split_only = train(
        parameters, over_clients(clients), schema, defense=defense(Spec("split-only"))
    )
    assert all(
        tree.g is None and tree.h is None and tree.gain is None for tree in split_only.model.trees
    )


def test_split_only_predicts_the_same_bits(table, schema):
    clients = spread(table, 3)
    parameters = protocol("fedtree-hist", trees=20)
    undefended = train(parameters, over_clients(clients), schema)
    split_only = train(
        parameters, over_clients(clients), schema, defense=defense(Spec("split-only"))
    )
    assert undefended.model.margin(table.X).tobytes() == split_only.model.margin(table.X).tobytes()
    assert same_forest(undefended.model, split_only.model)
    received = [
        message
        for _, message in view_of(split_only, ("client-0",), over_clients(clients)).messages(
            NodeSplits
        )
    ]
    received += [
        message
        for _, message in view_of(split_only, ("client-0",), over_clients(clients)).messages(
            LeafValues
        )
    ]
    assert received
    assert all(message.g is None and message.h is None for message in received)


def test_every_party_predicts_with_the_rounded_leaves(table, schema):
    clients = spread(table, 3)
    rounding = defense(Spec("split-only"), Spec("leaf-rounding", {"decimals": 1}))
    model = train(protocol("fedtree-hist"), over_clients(clients), schema, defense=rounding).model
    values = np.concatenate([tree.value[tree.leaves] for tree in model.trees])
    assert np.array_equal(values, np.round(values, 1))
    assert len(np.unique(values)) > 1


def test_split_only_has_no_place_where_clients_find_the_splits():
    reason = str(check_fit(protocol("nvflare-hist"), defense(Spec("split-only"))))
    assert reason.startswith("'split-only' changes messages of the types ")
    assert {"LeafValues,", "NodeSplits,"} <= {*reason.split()}
    assert reason.endswith(", which 'nvflare-hist' does not send")


@pytest.mark.parametrize(
    ("name", "cuts", "expected"),
    [
        ("nvflare-hist", "sketch", ("client-0", "client-1", "client-2")),
        ("nvflare-hist", "equal-width", ()),
        ("nvflare-hist", "public", ()),
        ("fedtree-hist", "sketch", ()),
        ("forest-hist", "sketch", ()),
    ],
)
def test_only_nvflare_broadcasts_the_sketches_of_all_clients(name, cuts, expected, table, schema):
    local_data = over_clients(spread(table, 3))
    protocol_object = register.make(
        "protocol", Spec(name, {"trees": 1, "max_depth": 2, "cuts": cuts})
    )
    run = train(protocol_object, local_data, schema)
    client, server = (view_of(run, (party,), local_data) for party in ("client-1", "server"))
    broadcast_sketches = [
        (item, message)
        for item, message in client.messages(FeatureSketch)
        if item.sender == "server"
    ]
    assert tuple(message.owner for _, message in broadcast_sketches) == expected
    for _, message in broadcast_sketches:
        client_values = local_data[message.owner].table.X
        values = np.unique(client_values[~np.isnan(client_values[:, 4]), 4])
        assert np.array_equal(message.points[message.offsets[4] : message.offsets[5]], values)
    senders = [item.sender for item, _ in server.messages(FeatureSketch) if item.sender != "server"]
    assert senders == ([] if cuts != "sketch" else ["client-0", "client-1", "client-2"])
    bytes_to_clients = run.transcript.traffic()["down", "FeatureSketch"]
    assert bytes_to_clients == 3 * sum(encoded_size(message) for _, message in broadcast_sketches)

"""fedtree-hist and nvflare-hist: the same trees as the central engine, whoever holds the rows."""

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
    p = protocol(name, cuts=cuts, base_score=0.5)
    one, many = (train(p, over_clients(spread(table, k)), schema) for k in (1, 7))
    assert same_forest(one.model, many.model)
    kinds = {type(d.message) for d in many.transcript}
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
    whole = train(protocol(name, max_bin=256), over_clients([table]), schema).model
    assert same_forest(model, whole)


def test_one_class_alone_is_refused(table, schema):
    with pytest.raises(DataError, match="both classes"):
        train(protocol("fedtree-hist"), over_clients([table.take(table.y == 1)]), schema)


@pytest.mark.parametrize(
    ("params", "said"),
    [
        ({"cuts": "sketsch"}, "did you mean 'sketch'"),
        ({"base_score": "mean"}, "base_score"),
        ({"base_score": 1.0, "objective": "binary:logistic"}, "base_score"),
        ({"objective": "binary:logistik"}, "did you mean 'binary:logistic'"),
        ({"max_bin": 1}, "max_bin"),
        ({"trees": 0}, "trees"),
    ],
)
def test_parameters_are_checked(params, said):
    with pytest.raises(UsageError, match=said):
        register.make("protocol", Spec("fedtree-hist", params))


def test_who_sees_what(table, schema):
    clients = spread(table, 3)
    for name, expected in (("fedtree-hist", NodeSplits), ("nvflare-hist", GlobalHistogram)):
        training = train(protocol(name), over_clients(clients), schema)
        view = view_of(training, ("client-2",), over_clients(clients))
        received = [s.message for s in view.seen if "client-2" in s.receivers]
        assert any(isinstance(m, expected) for m in received)
        assert not any(isinstance(m, Histogram) for m in received)
        assert len(view.rows) == len(clients[2])
        server = view_of(training, ("server",), over_clients(clients))
        assert server.local_data == ()
        assert server.rows is None
        owners = {s.sender for s, _ in server.messages(Histogram)}
        assert owners == {"client-0", "client-1", "client-2"}
        assert sum(has_sealed_field(s.message) for s in server.seen) == 3  # label sums


def test_the_released_model_is_what_clients_were_told(table, schema):
    clients = spread(table, 3)
    p = protocol("fedtree-hist")
    plain = train(p, over_clients(clients), schema)
    assert plain.model.trees[0].g is not None
    bare = train(p, over_clients(clients), schema, defense=defense(Spec("split-only")))
    assert all(t.g is None and t.h is None and t.gain is None for t in bare.model.trees)


def test_split_only_predicts_the_same_bit_for_bit(table, schema):
    clients = spread(table, 3)
    p = protocol("fedtree-hist", trees=20)
    plain = train(p, over_clients(clients), schema)
    bare = train(p, over_clients(clients), schema, defense=defense(Spec("split-only")))
    assert plain.model.margin(table.X).tobytes() == bare.model.margin(table.X).tobytes()
    assert same_forest(plain.model, bare.model)
    told = [m for _, m in view_of(bare, ("client-0",), over_clients(clients)).messages(NodeSplits)]
    told += [m for _, m in view_of(bare, ("client-0",), over_clients(clients)).messages(LeafValues)]
    assert told
    assert all(m.g is None and m.h is None for m in told)


def test_rounded_leaves_are_what_everyone_predicts_with(table, schema):
    clients = spread(table, 3)
    rounding = defense(Spec("split-only"), Spec("leaf-rounding", {"decimals": 1}))
    model = train(protocol("fedtree-hist"), over_clients(clients), schema, defense=rounding).model
    values = np.concatenate([t.value[t.leaves] for t in model.trees])
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
def test_who_receives_everybodys_sketches(name, cuts, expected, table, schema):
    held = over_clients(spread(table, 3))
    made = register.make("protocol", Spec(name, {"trees": 1, "max_depth": 2, "cuts": cuts}))
    run = train(made, held, schema)
    client, server = (view_of(run, (who,), held) for who in ("client-1", "server"))
    told = [(s, m) for s, m in client.messages(FeatureSketch) if s.sender == "server"]
    assert tuple(m.owner for _, m in told) == expected
    for _, m in told:
        own = held[m.owner].table.X
        values = np.unique(own[~np.isnan(own[:, 4]), 4])
        assert np.array_equal(m.points[m.offsets[4] : m.offsets[5]], values)
    sent = [s.sender for s, _ in server.messages(FeatureSketch) if s.sender != "server"]
    assert sent == ([] if cuts != "sketch" else ["client-0", "client-1", "client-2"])
    down = run.transcript.traffic()["down", "FeatureSketch"]
    assert down == 3 * sum(encoded_size(m) for _, m in told)

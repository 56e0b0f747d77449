"""Federations that split by sets of categories grow the central engine's trees."""

from __future__ import annotations

import numpy as np
import pytest

from fedtrees.core.composition import Composition
from fedtrees.core.errors import DataError, UsageError
from fedtrees.core.local_data import over_clients
from fedtrees.core.messages import Reveal
from fedtrees.core.registry import register
from fedtrees.core.schema import Feature, Schema, Table
from fedtrees.core.specs import Spec
from fedtrees.core.wire import decode, encode
from fedtrees.messages.horizontal import CutPoints, NodeSplits
from fedtrees.protocols.training import train
from fedtrees.protocols.views import view_of
from fedtrees.trees.boosted.boosting import grow_forest
from fedtrees.trees.cut_points import quantile_cuts

NAMES = ("fedtree-hist", "nvflare-hist")
SIZES = (0, 3, 0, 9)
SCHEMA = Schema(
    tuple(
        Feature(f"f{k}", "categorical", categories=tuple(map(str, range(n))))
        if n
        else Feature(f"f{k}", low=-10, high=10)
        for k, n in enumerate(SIZES)
    ),
    "target",
)


@pytest.fixture(scope="module")
def table():
    rng = np.random.default_rng(2)
    X = rng.normal(size=(400, 4))
    X[:, 1], X[:, 3] = rng.integers(0, 3, 400), rng.integers(0, 8, 400)  # no row has the last code
    signal = X[:, 0] + (X[:, 1] == 1) + 2 * np.isin(X[:, 3], [1, 4, 6])
    y = (signal + rng.normal(size=400) > 1).astype(int)
    X[rng.random(X.shape) < 0.1] = np.nan
    return Table(X, y)


def protocol(name, **params):
    settings = {"trees": 6, "max_depth": 4, "max_bin": 256, "enable_categorical": True, **params}
    return register.make("protocol", Spec(name, settings))


def clients_of(table, count):
    order = np.random.default_rng(0).permutation(len(table))
    return [table.take(rows) for rows in np.array_split(order, count)]


def same_forest(a, b):
    return np.array_equal(a.base_margin, b.base_margin) and all(
        np.array_equal(getattr(s, part), getattr(t, part), equal_nan=part == "threshold")
        for s, t in zip(a.trees, b.trees, strict=True)
        for part in ("feature", "threshold", "left", "default_left", "value", "categories")
    )


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("count", [1, 2, 5])
def test_a_federation_grows_the_trees_of_the_central_engine(name, count, table):
    p = protocol(name)
    central = grow_forest(table.X, table.y, quantile_cuts(table.X, 256).with_categories(SIZES), p)
    used = {int(f) for t in central.trees for f in t.feature[np.isnan(t.threshold)]}
    assert used == {1, 3}
    assert same_forest(train(p, over_clients(clients_of(table, count)), SCHEMA).model, central)


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("cuts", ["equal-width", "public"])
def test_every_declared_category_has_a_bin_whatever_the_cuts(name, cuts, table):
    training = train(protocol(name, cuts=cuts), over_clients(clients_of(table, 3)), SCHEMA)
    (message,) = [d.message for d in training.transcript if isinstance(d.message, CutPoints)]
    assert message.categorical.tolist() == [False, True, False, True]
    assert np.diff(message.offsets)[[1, 3]].tolist() == [3, 9]


def test_categories_are_treated_as_numbers_by_default(table):
    parameters = protocol("fedtree-hist", enable_categorical=False)
    model = train(parameters, over_clients(clients_of(table, 2)), SCHEMA).model
    assert all(tree.categories is None for tree in model.trees)
    assert same_forest(
        model, grow_forest(table.X, table.y, quantile_cuts(table.X, 256), parameters)
    )


def test_split_only_reveals_the_category_sets_and_no_statistics(table):
    clients, parameters = clients_of(table, 3), protocol("fedtree-hist")
    guard = Composition((register.make("defense", Spec("split-only")),))
    undefended, split_only = (
        train(parameters, over_clients(clients), SCHEMA),
        train(parameters, over_clients(clients), SCHEMA, defense=guard),
    )
    assert same_forest(undefended.model, split_only.model)
    node_splits = [
        message
        for _, message in view_of(split_only, ("client-0",), over_clients(clients)).messages(
            NodeSplits
        )
    ]
    assert any(message.categories.any() for message in node_splits)
    assert all(
        message.g is None and message.reveals == {Reveal.THRESHOLDS} for message in node_splits
    )
    decoded = decode(encode(node_splits[0]))
    np.testing.assert_array_equal(decoded.categories, node_splits[0].categories)


def test_attacks_apply_to_thresholds_and_to_sets_of_categories(table):
    attack, local_data = (
        register.make("attack", Spec("timberstrike")),
        over_clients(clients_of(table, 2)),
    )
    for name in NAMES:
        views = (
            view_of(
                train(protocol(name, trees=1, enable_categorical=native), local_data, SCHEMA),
                ("client-1",),
                local_data,
            )
            for native in (False, True)
        )
        assert [attack.inapplicable(view) for view in views] == [None, None]


def test_categories_have_to_be_declared(table):
    bare = Schema((*SCHEMA.features[:3], Feature("colour", "categorical")), "target")
    with pytest.raises(DataError, match=r"'colour' is categorical and declares no categories"):
        train(protocol("fedtree-hist"), over_clients(clients_of(table, 2)), bare)
    with pytest.raises(UsageError, match="enable_categorical='yes': give true or false"):
        protocol("fedtree-hist", enable_categorical="yes")


def test_a_category_code_outside_the_schema_is_refused(table):
    X = table.X.copy()
    X[0, 3] = 9
    with pytest.raises(DataError, match=r"feature 3 has 9 categories and a value 9\.0"):
        train(protocol("fedtree-hist"), over_clients([Table(X, table.y)]), SCHEMA)

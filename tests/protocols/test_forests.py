"""forest-hist and local-forests: which forest, what crosses, what defenses may do."""

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
from fedtrees.experiments import training_cache
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


def made(load, count, seed=0):
    """Return the clients' tables and the schema of a scikit-learn table, some values missing."""
    X, y = load(return_X_y=True)
    X[::17, 3] = np.nan
    features = tuple(Feature(f"f{i}", low=0, high=5000) for i in range(X.shape[1]))
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
    clients, schema = made(load, count)
    rows = Table.concat(clients)
    central = grow_random_forest(rows.X, rows.y, quantile_cuts(rows.X, 128), p, seed=3)
    assert same_forest(train(p, over_clients(clients), schema, seed=3).model, central)


@pytest.mark.parametrize("count", [1, 5])
def test_with_row_draws_it_is_the_central_forest_on_the_pooled_draws(count):
    p = protocol("forest-hist", max_samples=0.7, min_samples_leaf=2, max_bin=128)
    clients, schema = made(load_breast_cancer, count)
    cuts = quantile_cuts(Table.concat(clients).X, 128)
    rows, randomness = Table.concat(clients), Streams(5)
    trees = []
    for t in range(p.trees):
        weights = np.concatenate(
            [
                draw_rows(len(c), p, randomness.child(f"client-{i}").rng("rows", t))
                for i, c in enumerate(clients)
            ]
        )
        drawn = draw_columns(cuts.n_features, p, randomness.child("server").rng("columns", t))
        trees.append(grow_whole_tree(bin_rows(rows.X, cuts), rows.y, weights, cuts, 2, p, *drawn))
    assert same_forest(
        train(p, over_clients(clients), schema, seed=5).model, RandomForest(tuple(trees))
    )


@pytest.mark.parametrize("cuts", ["equal-width", "public"])
def test_cut_points_do_not_depend_on_the_clients(cuts):
    p = protocol("forest-hist", cuts=cuts, bootstrap=False)
    one, many = (
        train(p, over_clients(clients), schema).model
        for clients, schema in (made(load_wine, k) for k in (1, 7))
    )
    assert same_forest(one, many)


def test_local_forests_are_the_clients_own_one_after_the_other():
    p = protocol("local-forests")
    clients, schema = made(load_wine, 3)
    model = train(p, over_clients(clients), schema, seed=2).model
    assert len(model) == 12
    for i, table in enumerate(clients):
        randomness = Streams(2).child(f"client-{i}")
        cuts = quantile_cuts(table.X, 256)
        own = grow_random_forest(table.X, table.y, cuts, p, n_classes=3, seed=randomness)
        assert same_forest(replace(model, trees=model.trees[4 * i : 4 * i + 4]), own)


@pytest.mark.parametrize("name", ["forest-hist", "local-forests"])
def test_clients_without_rows_or_with_one_class_take_part(name):
    clients, schema = made(load_wine, 2)
    rows = clients[0].y == 1
    some = [clients[0].take(~rows), clients[0].take(rows), clients[1].take(np.arange(0))]
    model = train(protocol(name), over_clients(some), schema).model
    assert model.n_classes == 3
    assert len(model) == (4 if name == "forest-hist" else 8)
    assert (model.predict(clients[1].X).argmax(axis=1) == clients[1].y).mean() > 0.6


def test_the_server_asks_for_the_drawn_features_only():
    p = protocol("forest-hist", max_features=3, max_depth=4)
    clients, schema = made(load_breast_cancer, 2)
    asked = [d.message for d in train(p, over_clients(clients), schema).transcript]
    requests = [m for m in asked if isinstance(m, ClassCountsRequest)]
    widths = np.concatenate([np.diff(m.offsets) for m in requests])
    assert np.isin(widths, [3, 27]).all()  # 27: all three were constant, so the rest is asked
    assert np.mean(widths == 3) > 0.9
    counts = [m for m in asked if isinstance(m, ClassCounts)]
    assert max(m.counts.shape[0] / len(m.nodes) for m in counts if len(m.nodes)) <= 27 * 32


@pytest.mark.parametrize("name", ["forest-hist", "local-forests"])
def test_counts_cross_to_clients_only_if_asked_for(name):
    clients, schema = made(load_breast_cancer, 3)
    told, bare = (
        train(protocol(name, leaf_counts=shared), over_clients(clients), schema)
        for shared in (True, False)
    )
    X = Table.concat(clients).X
    assert np.array_equal(told.predict(X), bare.predict(X))
    for run, shared in ((told, True), (bare, False)):
        assert all((t.counts is not None) == shared for t in run.model.trees)
        seen = [d.message for d in run.transcript if d.sender == "server"]
        final = [m for m in seen if isinstance(m, (LeafClasses, PooledForest))]
        assert final
        assert all((m.counts is not None) == shared for m in final)
        assert all((Reveal.COUNTS in m.reveals) == shared for m in final)
        assert all(m.reveals == {Reveal.THRESHOLDS} for m in seen if isinstance(m, NodeSplits))
    inner = told.model.trees[0].feature >= 0
    tree = told.model.trees[0]
    assert (
        tree.counts[inner] == tree.counts[tree.left[inner]] + tree.counts[tree.right[inner]]
    ).all()


def test_an_honest_but_curious_client_sees_no_other_clients_counts():
    clients, schema = made(load_breast_cancer, 3)
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
def test_min_leaf_leaves_so_many_different_rows_in_every_leaf_of_a_client(bootstrap):
    clients, schema = made(load_breast_cancer, 3)
    clients[2] = clients[2].take(slice(4))  # nothing of so few is shared
    wanted = protocol("local-forests", trees=4, bootstrap=bootstrap)
    run = train(wanted, over_clients(clients), schema, defense=composed("min-leaf[k=6]"), seed=3)
    assert len(run.model.trees) == 8
    for client in range(2):
        X, streams = clients[client].X, Streams(3).child(f"client-{client}")
        for t, tree in enumerate(run.model.trees[4 * client : 4 * client + 4]):
            weights = rows_of_tree(len(X), wanted, streams, t)
            at = RandomForest((tree,)).apply(X)[:, 0]
            rows = np.bincount(at[weights > 0], minlength=len(tree))[tree.leaves]
            assert rows.min() >= 6
            drawn = np.bincount(at, weights=weights, minlength=len(tree))[tree.leaves]
            assert (drawn == tree.counts[tree.leaves].sum(axis=1)).all()
            assert len(tree) >= 3


def test_shares_of_local_forests_are_rounded_before_they_leave():
    clients, schema = made(load_breast_cancer, 2)
    wanted = protocol("local-forests", trees=2, max_depth=3, leaf_counts=False)
    run = train(wanted, over_clients(clients), schema, defense=composed("leaf-rounding"), seed=0)
    bare = train(wanted, over_clients(clients), schema, seed=0)
    for a, b in zip(run.model.trees, bare.model.trees, strict=True):
        assert np.array_equal(a.probability, np.round(b.probability, 3), equal_nan=True)
        assert not np.array_equal(a.probability, b.probability, equal_nan=True)


def test_split_only_strips_counts_and_predicts_the_same():
    clients, schema = made(load_breast_cancer, 2)
    plain = train(protocol("forest-hist"), over_clients(clients), schema)
    bare = train(
        protocol("forest-hist"), over_clients(clients), schema, defense=composed("split-only")
    )
    assert all(t.counts is None for t in bare.model.trees)
    X = clients[0].X
    np.testing.assert_array_equal(plain.predict(X), bare.predict(X))
    rounded = train(
        protocol("forest-hist"),
        over_clients(clients),
        schema,
        defense=composed("leaf-rounding[decimals=1]"),
    )
    tree = rounded.model.trees[0]
    shares = tree.probability[tree.leaves]
    np.testing.assert_array_equal(shares, np.round(shares, 1))


def test_a_secure_sum_hides_whose_counts_they_are():
    clients, schema = made(load_breast_cancer, 2)
    plain = train(protocol("forest-hist"), over_clients(clients), schema)
    summed = train(
        protocol("forest-hist"), over_clients(clients), schema, defense=composed("secure-sum")
    )
    np.testing.assert_array_equal(plain.predict(clients[0].X), summed.predict(clients[0].X))
    view = view_of(summed, ["server"], over_clients(clients))
    assert {seen.sender for seen, _ in view.messages(ClassCounts)} == {"server"}


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
    """What split-only would have to do here: strip the counts of `LeafClasses`."""

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


def test_the_released_model_is_what_left_the_server_and_guards_fail_closed():
    clients, schema = made(load_breast_cancer, 2)
    run = train(
        protocol("forest-hist"), over_clients(clients), schema, defense=Composition((BareLeaves(),))
    )
    assert all(t.counts is None for t in run.model.trees)
    blind = Composition((BareLeaves(guarded=()),))
    with pytest.raises(UnguardedMessageError, match="LeafClasses"):
        train(protocol("forest-hist"), over_clients(clients), schema, defense=blind)

    class WhereTreesAreGrownAlone(BareLeaves):
        applies_to = (LocalForest,)

    with pytest.raises(UnguardedMessageError, match="PooledForest"):
        train(
            protocol("local-forests"),
            over_clients(clients),
            schema,
            defense=Composition((WhereTreesAreGrownAlone(),)),
        )


def test_what_a_forest_cannot_count_is_refused():
    clients, schema = made(load_wine, 2)
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
def test_a_kept_training_is_read_back(tmp_path, leaf_counts):
    clients, schema = made(load_wine, 2)
    run = train(protocol("local-forests", leaf_counts=leaf_counts), over_clients(clients), schema)
    training_cache.save(run, tmp_path, "key")
    _, path = training_cache.paths(tmp_path, "key")
    again = decode(path.read_bytes()).model()
    assert again.n_classes == 3
    X = Table.concat(clients).X
    assert np.array_equal(again.predict(X), run.model.predict(X))
    assert (again.trees[0].counts is not None) == leaf_counts


def test_messages_hold_what_the_protocol_needs_and_no_more():
    clients, schema = made(load_wine, 3)
    crossed = {
        name: {(d.sender == "server", type(d.message).__name__) for d in run.transcript}
        for name in ("forest-hist", "local-forests")
        for run in [train(protocol(name), over_clients(clients), schema)]
    }
    assert crossed["local-forests"] == {
        (True, "LocalForestRequest"),
        (False, LocalForest.__name__),
        (True, PooledForest.__name__),
        (True, ForestModel.__name__),  # to the public
    }
    assert {name for server, name in crossed["forest-hist"] if not server} == {
        "FeatureSketch",
        "ClassTotals",
        "ClassCounts",
    }

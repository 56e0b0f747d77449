"""What is stripped, masked, rounded or not grown where clients share trees."""

import numpy as np
import pytest
from federations import sample_federation

from fedtrees.core.composition import Composition
from fedtrees.core.errors import DataError, UnguardedMessageError, UsageError
from fedtrees.core.guarantee import Structural
from fedtrees.core.local_data import over_clients
from fedtrees.core.messages import Reveal
from fedtrees.core.registry import register
from fedtrees.core.schema import Table
from fedtrees.core.specs import Spec
from fedtrees.messages.horizontal import ClientTrees, SharedTrees
from fedtrees.messages.models import unpack
from fedtrees.protocols.compatibility import check_fit
from fedtrees.protocols.training import train
from fedtrees.trees.routing import Routes

PROTOCOLS = ("flower-bagging", "flower-cyclic", "local-ensembles")
STATISTICS = ("sum_hessian", "base_weights", "loss_changes")


def make(name, **params):
    return register.make("defense", Spec(name, params))


def protocol(name="flower-bagging", **params):
    return register.make("protocol", Spec(name, {"trees": 6, "max_depth": 4, **params}))


def run(*defenses, name="flower-bagging", clients=None, **params):
    rows, schema = sample_federation()
    chosen = protocol(name, **params)
    rows = rows if clients is None else clients
    return train(chosen, over_clients(rows), schema, defense=Composition(defenses), seed=3), rows


def trees_sent(training):
    return [d.message for d in training.transcript if isinstance(d.message, SharedTrees)]


@pytest.mark.parametrize("name", PROTOCOLS)
def test_split_only_sends_splits_and_values_and_predicts_the_same(name):
    plain, clients = run(name=name)
    bare, _ = run(make("split-only"), name=name)
    for told, full in zip(trees_sent(bare), trees_sent(plain), strict=True):
        assert all(getattr(told, s) is None for s in STATISTICS)
        assert Reveal.COUNTS in full.reveals
        assert Reveal.COUNTS not in told.reveals
        np.testing.assert_array_equal(told.value, full.value)
    X = Table.concat(clients).X
    np.testing.assert_array_equal(bare.predict(X), plain.predict(X))
    assert all(t.h is None and t.g is None and t.gain is None for t in bare.model.trees)


def test_split_only_stops_a_server_that_adds_what_the_clients_left_out():
    class Forgetful(type(make("split-only"))):
        handled_types = (ClientTrees,)

    with pytest.raises(UnguardedMessageError, match="'server' is about to send GlobalTrees"):
        run(Forgetful())


@pytest.mark.parametrize("name", PROTOCOLS)
def test_masked_hessians_are_1_and_all_else_is_as_it_was(name):
    plain, clients = run(name=name)
    masked, _ = run(make("mask-sum-hessian"), name=name)
    for told, full in zip(trees_sent(masked), trees_sent(plain), strict=True):
        assert (told.sum_hessian == 1).all()
        assert len(np.unique(full.sum_hessian)) > 2
        for field in ("threshold", "value", "base_weights", "loss_changes"):
            np.testing.assert_array_equal(getattr(told, field), getattr(full, field))
        assert Reveal.COUNTS in told.reveals  # weights and gains still say it
    X = Table.concat(clients).X
    np.testing.assert_array_equal(masked.predict(X), plain.predict(X))


def weights(message, eta):
    """Return every node's weight without learning rate, tree by tree."""
    leaf = message.feature < 0
    every = np.where(leaf, message.value / np.float64(eta), message.base_weights)
    return np.split(every.astype(np.float64), np.cumsum(message.sizes)[:-1])


def solved_hessians(tree, weight, reg):
    """Return the sums of hessians below every split, from weights and gains; NaN at the root.

    With x and y those of the two sides and lambda added, ``a x + b y = c (x + y - lambda)`` and
    ``a^2 x + b^2 y - c^2 (x + y - lambda) = gain``.
    """
    found = np.full(len(tree), np.nan)
    inner = np.flatnonzero(tree.feature >= 0)
    c = weight[inner]
    for side, other in ((0, 1), (1, 0)):
        a, b = weight[tree.left[inner] + side], weight[tree.left[inner] + other]
        x = (tree.gain[inner] + b * c * reg) / ((a - c) * (a - b))
        found[tree.left[inner] + side] = x - reg
    return found


def test_masked_hessians_follow_from_weights_and_gains():
    plain, masked = run()[0], run(make("mask-sum-hessian"))[0]
    eta, reg = plain.protocol.learning_rate, plain.protocol.reg_lambda
    errors = []
    for told, full in zip(trees_sent(masked), trees_sent(plain), strict=True):
        for tree, truth, weight in zip(unpack(told), unpack(full), weights(told, eta), strict=True):
            errors.append(np.abs(solved_hessians(tree, weight, reg) / truth.h - 1)[1:])
    found = np.concatenate(errors)
    assert len(found) > 300
    assert (found < 1e-3).mean() > 0.95


@pytest.mark.parametrize("depth", [3, 6])
def test_masked_first_trees_still_count_every_leaf_exactly(depth):
    masked, clients = run(make("mask-sum-hessian"), trees=1, max_depth=depth)
    for client, d in zip(
        clients, (d for d in masked.transcript if d.sender[-1] in "012"), strict=True
    ):
        (tree,), (weight,) = unpack(d.message), weights(d.message, 0.3)
        p = float(d.message.base_score[0])
        h = solved_hessians(tree, weight, 1.0)[tree.leaves]
        rows = np.rint(h / (p * (1 - p)))
        positives = np.rint(rows * p + weight[tree.leaves] * (h + 1))
        reached = Routes.of([tree]).apply(client.X)[:, 0]
        np.testing.assert_array_equal(rows, [(reached == leaf).sum() for leaf in tree.leaves])
        labels = [client.y[reached == leaf].sum() for leaf in tree.leaves]
        np.testing.assert_array_equal(positives, labels)


@pytest.mark.parametrize("name", PROTOCOLS)
def test_rounded_leaves_leave_the_client_rounded_and_are_what_all_predict_with(name):
    rounded, clients = run(make("leaf-rounding", decimals=2), name=name)
    plain, _ = run(name=name)
    for message in trees_sent(rounded):
        np.testing.assert_array_equal(message.value, np.round(message.value, 2))
    ours, theirs = (trees_sent(t)[0].value for t in (rounded, plain))  # the first to be grown
    size = min(len(ours), trees_sent(plain)[0].sizes[0])
    assert len(np.unique(ours)) > 1
    np.testing.assert_allclose(ours[:size], theirs[:size], atol=0.005 + 1e-6)
    if name == "flower-bagging":  # later trees are grown on top of what was sent
        last = [m for m in trees_sent(rounded) if type(m) is ClientTrees][-1]
        before = rounded.model.first(len(rounded.model) - 3)
        p = before.predict(clients[-1].X)
        np.testing.assert_allclose(last.sum_hessian[0], (p * (1 - p)).sum(), rtol=1e-5)


@pytest.mark.parametrize("name", PROTOCOLS)
@pytest.mark.parametrize("missing", [0.0, 0.3])
def test_no_leaf_is_below_k_rows(name, missing):
    clients = spoiled(missing)
    for k in (2, 7, 20):
        limited, _ = run(make("min-leaf", k=k), name=name, clients=clients, min_child_weight=0.0)
        assert smallest_leaf(limited, clients) >= k
    free, _ = run(name=name, clients=clients, min_child_weight=0.0)
    assert smallest_leaf(free, clients) == 1


def spoiled(missing):
    rng = np.random.default_rng(5)
    rows, _ = sample_federation()
    tables = []
    for table in rows:
        X = table.X.copy()
        X[rng.random(X.shape) < missing] = np.nan
        tables.append(Table(X, table.y))
    return tables


def smallest_leaf(training, clients):
    """Return the fewest rows of its grower in a leaf of any tree."""
    fewest = []
    for d in training.transcript:
        if type(d.message) is ClientTrees:
            trees = unpack(d.message)
            leaves = Routes.of(trees).apply(clients[int(d.sender[-1])].X)
            for tree, reached in zip(trees, leaves.T, strict=True):
                fewest.append(np.bincount(reached, minlength=len(tree))[tree.leaves].min())
    return min(fewest)


def test_without_missing_values_k_rows_are_all_that_is_asked():
    """The first split is the best of those that leave k rows: found by trying all."""
    (table,), _ = sample_federation(clients=1)
    clients = [Table(table.X, table.X[:, 0] > 1.3)]  # the best split of all leaves 22 rows
    limited, _ = run(
        make("min-leaf", k=60), clients=clients, trees=1, max_depth=1, min_child_weight=0.0
    )
    (message,) = [m for m in trees_sent(limited) if type(m) is ClientTrees]
    X, y = clients[0].X, clients[0].y
    p = y.mean()
    best = (0.0, -1, 0.0)
    for f in range(X.shape[1]):
        for cut in np.unique(X[:, f])[1:]:
            left = X[:, f] < cut
            if min(left.sum(), (~left).sum()) >= 60:
                sides = [((p - y[s]).sum(), s.sum() * p * (1 - p)) for s in (left, ~left)]
                best = max(best, (sum(g * g / (h + 1) for g, h in sides), f, cut))
    assert (message.feature[0], message.threshold[0]) == (best[1], np.float32(best[2]))
    free, _ = run(clients=clients, trees=1, max_depth=1)
    assert trees_sent(free)[0].threshold[0] > 1.3 > message.threshold[0]


def test_a_client_with_fewer_than_k_rows_shares_nothing():
    clients, _ = sample_federation()
    few = [clients[0].take(np.arange(9)), clients[1], clients[2]]
    limited, _ = run(make("min-leaf", k=10), clients=few)
    sizes = [len(d.message.sizes) for d in limited.transcript if d.sender == "client-0"]
    assert sizes == [0] * 6
    assert len(limited.model) == 12
    with pytest.raises(DataError, match=r"no client sent a tree; .*lower k"):
        run(make("min-leaf", k=100), clients=few)


def test_a_sample_of_fewer_than_k_rows_grows_nothing():
    limited, _ = run(make("min-leaf", k=40), subsample=0.25, trees=3)
    for message in trees_sent(limited):
        assert set(message.sizes.tolist()) == {1}
        assert not message.sum_hessian.any()
        assert not message.value.any()


def test_the_strictest_of_several_limits_holds():
    parts = Composition((make("min-leaf", k=3), make("min-leaf", k=9), make("split-only")))
    assert parts.requirements.min_leaf_rows == 9
    assert Composition().requirements.min_leaf_rows == 0


@pytest.mark.parametrize("name", ["split-only", "mask-sum-hessian", "min-leaf", "leaf-rounding"])
def test_their_claims_are_structural(name):
    assert make(name).claim() == Structural()


@pytest.mark.parametrize(
    ("defense", "where", "needs"),
    [
        ("mask-sum-hessian", "fedtree-hist", "ClientTrees"),
        ("min-leaf", "nvflare-hist", "min_leaf_rows"),
        ("min-leaf", "forest-hist", "min_leaf_rows"),
        ("min-bin", "flower-cyclic", "Histogram, OpenedBinSums"),
        (
            "secure-sum",
            "local-ensembles",
            "ClassCounts, ClassTotals, Histogram, LeafClassCounts, LeafSums, NetworkUpdate",
        ),
    ],
)
def test_where_they_have_no_place_they_say_why(defense, where, needs):
    known = register.make("protocol", Spec(where, {}))
    reason = str(check_fit(known, [make(defense)]))
    if needs == "min_leaf_rows":
        assert (
            reason
            == f"{defense!r} acts through {needs}, a step that no party of {where!r} executes"
        )
    else:
        assert (
            reason
            == f"{defense!r} changes messages of the types {needs}, which {where!r} does not send"
        )


@pytest.mark.parametrize("k", [1, 0, -2, 2.5, True])
def test_a_limit_below_2_rows_is_none(k):
    with pytest.raises(UsageError, match="give a whole number, 2 or more"):
        make("min-leaf", k=k)

"""Defenses of shared trees: removed statistics, masked hessians, rounded or large leaves."""

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
    stripped, _ = run(make("split-only"), name=name)
    for stripped_message, plain_message in zip(
        trees_sent(stripped), trees_sent(plain), strict=True
    ):
        assert all(getattr(stripped_message, statistic) is None for statistic in STATISTICS)
        assert Reveal.COUNTS in plain_message.reveals
        assert Reveal.COUNTS not in stripped_message.reveals
        np.testing.assert_array_equal(stripped_message.value, plain_message.value)
    X = Table.concat(clients).X
    np.testing.assert_array_equal(stripped.predict(X), plain.predict(X))
    assert all(
        tree.h is None and tree.g is None and tree.gain is None for tree in stripped.model.trees
    )


def test_split_only_refuses_a_server_that_sends_unstripped_trees():
    class Forgetful(type(make("split-only"))):
        handled_types = (ClientTrees,)

    with pytest.raises(UnguardedMessageError, match="'server' is about to send GlobalTrees"):
        run(Forgetful())


@pytest.mark.parametrize("name", PROTOCOLS)
def test_masked_hessians_are_1_and_other_fields_are_unchanged(name):
    plain, clients = run(name=name)
    masked, _ = run(make("mask-sum-hessian"), name=name)
    for masked_message, plain_message in zip(trees_sent(masked), trees_sent(plain), strict=True):
        assert (masked_message.sum_hessian == 1).all()
        assert len(np.unique(plain_message.sum_hessian)) > 2
        for field in ("threshold", "value", "base_weights", "loss_changes"):
            np.testing.assert_array_equal(
                getattr(masked_message, field), getattr(plain_message, field)
            )
        # Weights and gains still reveal the counts.
        assert Reveal.COUNTS in masked_message.reveals
    X = Table.concat(clients).X
    np.testing.assert_array_equal(masked.predict(X), plain.predict(X))


def weights(message, eta):
    """Return every node's weight without learning rate, tree by tree."""
    leaf = message.feature < 0
    every = np.where(leaf, message.value / np.float64(eta), message.base_weights)
    return np.split(every.astype(np.float64), np.cumsum(message.sizes)[:-1])


def solved_hessians(tree, weight, reg):
    """Return the sums of hessians below every split, from weights and gains; NaN at the root.

    With x and y those of the two sides plus lambda, ``a x + b y = c (x + y - lambda)`` and ``a^2 x
    + b^2 y - c^2 (x + y - lambda) = gain``.
    """
    hessians = np.full(len(tree), np.nan)
    inner = np.flatnonzero(tree.feature >= 0)
    weight_of_node = weight[inner]
    for side, other_side in ((0, 1), (1, 0)):
        weight_of_side, weight_of_other = (
            weight[tree.left[inner] + side],
            weight[tree.left[inner] + other_side],
        )
        shifted_hessian = (tree.gain[inner] + weight_of_other * weight_of_node * reg) / (
            (weight_of_side - weight_of_node) * (weight_of_side - weight_of_other)
        )
        hessians[tree.left[inner] + side] = shifted_hessian - reg
    return hessians


def test_masked_hessians_follow_from_weights_and_gains():
    plain, masked = run()[0], run(make("mask-sum-hessian"))[0]
    eta, reg = plain.protocol.learning_rate, plain.protocol.reg_lambda
    errors = []
    for masked_message, plain_message in zip(trees_sent(masked), trees_sent(plain), strict=True):
        for tree, truth, weight in zip(
            unpack(masked_message), unpack(plain_message), weights(masked_message, eta), strict=True
        ):
            errors.append(np.abs(solved_hessians(tree, weight, reg) / truth.h - 1)[1:])
    relative_errors = np.concatenate(errors)
    assert len(relative_errors) > 300
    assert (relative_errors < 1e-3).mean() > 0.95


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
def test_leaves_are_rounded_before_they_are_sent_and_all_parties_predict_with_them(name):
    rounded, clients = run(make("leaf-rounding", decimals=2), name=name)
    plain, _ = run(name=name)
    for message in trees_sent(rounded):
        np.testing.assert_array_equal(message.value, np.round(message.value, 2))
    # The values of the first tree.
    rounded_values, plain_values = (trees_sent(training)[0].value for training in (rounded, plain))
    size = min(len(rounded_values), trees_sent(plain)[0].sizes[0])
    assert len(np.unique(rounded_values)) > 1
    np.testing.assert_allclose(rounded_values[:size], plain_values[:size], atol=0.005 + 1e-6)
    if name == "flower-bagging":  # Later trees are grown on top of the rounded ones.
        last_message = [m for m in trees_sent(rounded) if type(m) is ClientTrees][-1]
        earlier_trees = rounded.model.first(len(rounded.model) - 3)
        probabilities = earlier_trees.predict(clients[-1].X)
        np.testing.assert_allclose(
            last_message.sum_hessian[0], (probabilities * (1 - probabilities)).sum(), rtol=1e-5
        )


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


def test_without_missing_values_min_leaf_only_requires_k_rows_per_side():
    """An exhaustive search gives the same best split among those with k rows on each side."""
    (table,), _ = sample_federation(clients=1)
    # The best of all splits has 22 rows on one side.
    clients = [Table(table.X, table.X[:, 0] > 1.3)]
    limited, _ = run(
        make("min-leaf", k=60), clients=clients, trees=1, max_depth=1, min_child_weight=0.0
    )
    (message,) = [m for m in trees_sent(limited) if type(m) is ClientTrees]
    X, y = clients[0].X, clients[0].y
    mean_label = y.mean()
    best_split = (0.0, -1, 0.0)
    for feature in range(X.shape[1]):
        for cut in np.unique(X[:, feature])[1:]:
            is_left = X[:, feature] < cut
            if min(is_left.sum(), (~is_left).sum()) >= 60:
                sides = [
                    ((mean_label - y[side]).sum(), side.sum() * mean_label * (1 - mean_label))
                    for side in (is_left, ~is_left)
                ]
                best_split = max(
                    best_split,
                    (
                        sum(gradient * gradient / (hessian + 1) for gradient, hessian in sides),
                        feature,
                        cut,
                    ),
                )
    assert (message.feature[0], message.threshold[0]) == (best_split[1], np.float32(best_split[2]))
    free, _ = run(clients=clients, trees=1, max_depth=1)
    assert trees_sent(free)[0].threshold[0] > 1.3 > message.threshold[0]


def test_a_client_with_fewer_than_k_rows_shares_no_tree():
    clients, _ = sample_federation()
    clients_with_few_rows = [clients[0].take(np.arange(9)), clients[1], clients[2]]
    limited, _ = run(make("min-leaf", k=10), clients=clients_with_few_rows)
    sizes = [
        len(delivery.message.sizes)
        for delivery in limited.transcript
        if delivery.sender == "client-0"
    ]
    assert sizes == [0] * 6
    assert len(limited.model) == 12
    with pytest.raises(DataError, match=r"no client sent a tree; .*lower k"):
        run(make("min-leaf", k=100), clients=clients_with_few_rows)


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
    ("defense", "name", "needs"),
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
def test_defenses_that_do_not_fit_a_protocol_state_the_reason(defense, name, needs):
    protocol = register.make("protocol", Spec(name, {}))
    reason = str(check_fit(protocol, [make(defense)]))
    if needs == "min_leaf_rows":
        assert (
            reason == f"{defense!r} acts through {needs}, a step that no party of {name!r} executes"
        )
    else:
        assert (
            reason
            == f"{defense!r} changes messages of the types {needs}, which {name!r} does not send"
        )


@pytest.mark.parametrize("k", [1, 0, -2, 2.5, True])
def test_a_limit_below_2_rows_is_none(k):
    with pytest.raises(UsageError, match="give a whole number, 2 or more"):
        make("min-leaf", k=k)

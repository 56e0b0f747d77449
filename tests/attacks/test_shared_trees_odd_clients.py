"""Shared trees of clients without rows, with one class, or with few rows: their owners and
counts.
"""

from __future__ import annotations

from types import SimpleNamespace

import guessed
import numpy as np
import pytest
from federations import clients_of, leaf_scores, victims_of_all
from sklearn.datasets import load_breast_cancer, load_iris

from fedtrees.attacks.clients.base_score import own_start
from fedtrees.attacks.clients.client_trees import blocks_of
from fedtrees.attacks.clients.masked_hessians import is_masked
from fedtrees.attacks.clients.per_client import observe_clients
from fedtrees.attacks.counts.leaf_sums import LeafSums, counts_from_sums
from fedtrees.core.local_data import over_clients
from fedtrees.core.registry import register
from fedtrees.core.schema import Feature, Schema, Table
from fedtrees.core.specs import parse_composed, parse_grid
from fedtrees.experiments.evaluate import make_defense
from fedtrees.experiments.federation import Federation
from fedtrees.protocols.training import train
from fedtrees.protocols.views import view_of
from fedtrees.trees.boosted.boosting import grow_forest
from fedtrees.trees.boosted.losses import LOGISTIC
from fedtrees.trees.boosted.params import TreeParams
from fedtrees.trees.cut_points import quantile_cuts
from fedtrees.trees.routing import Routes

ATTACK = "timberstrike[chains=2,max_trees=4]"


def make_federation(sizes, by_class=False, constant=False, classes=2):
    """Deal consecutive rows of a small table to clients of the given sizes."""
    X, y = load_iris(return_X_y=True) if classes == 3 else load_breast_cancer(return_X_y=True)
    order = np.random.default_rng(0).permutation(len(y))[: sum(sizes)]
    if by_class:
        order = order[np.argsort(y[order], kind="stable")]
    X, y = X[order, :4].astype(np.float32), y[order].astype(np.int64)
    table = Table(np.ones_like(X) if constant else X, y)
    schema = Schema(tuple(map(Feature, "abcd")), "y", tuple(map(str, range(classes))))
    ends = np.cumsum(sizes)
    parts = [table.take(np.arange(e - s, e)) for s, e in zip(sizes, ends, strict=True)]
    dataset = SimpleNamespace(schema=schema, top=())
    return Federation(dataset, over_clients(parts), parts[0], None)


def attack_training(federation_of_clients, spec, principal, defense="none"):
    composition = make_defense(parse_composed([defense])[0])
    protocol = register.make("protocol", parse_grid(spec)[0])
    training = train(
        protocol,
        federation_of_clients.local_data,
        federation_of_clients.schema,
        defense=composition,
        seed=1,
    )
    view = view_of(training, (principal,), federation_of_clients.local_data)
    guess = register.make("attack", parse_grid(ATTACK)[0]).run(view, np.random.default_rng(0))
    return view, guess, leaf_scores(guess, federation_of_clients, (principal,), training)


@pytest.mark.long
@pytest.mark.parametrize("principal", ["client-0", "client-2", "client-3", "server"])
@pytest.mark.parametrize("sizes", [(50, 0, 60, 40), (0, 50, 60, 40), (50, 60, 40, 0)])
def test_clients_without_rows_do_not_shift_the_names_in_a_cycle(sizes, principal):
    federation_of_clients = make_federation(sizes)
    view, _, _ = attack_training(
        federation_of_clients, "flower-cyclic[trees=9,max_depth=3]", principal
    )
    order = [f"client-{i % 4}" for i in range(9) if sizes[i % 4]]
    blocks = blocks_of(view).blocks
    assert len(blocks) == len(order)
    chains = [block.chain or block.sender for block in blocks]
    for i, name in enumerate(order):
        # The sender is None if several clients are possible.
        assert blocks[i].sender in (name, None)
        assert [j for j, chain in enumerate(chains) if chain == chains[i]] == [
            j for j, other in enumerate(order) if other == name
        ]
    if principal == "server":
        assert [block.sender for block in blocks] == order


def test_a_client_in_a_cycle_infers_the_client_without_rows():
    sizes = (50, 0, 60)
    view, _, _ = attack_training(
        make_federation(sizes), "flower-cyclic[trees=4,max_depth=3]", "client-2"
    )
    assert [block.sender for block in blocks_of(view).blocks] == [
        "client-0",
        "client-2",
        "client-0",
    ]


def test_certain_counts_in_a_cycle_with_a_gap_are_correct():
    federation_of_clients = make_federation((70, 0, 80))
    view, _, _ = attack_training(
        federation_of_clients, "flower-cyclic[trees=4,max_depth=3]", "server"
    )
    later_victim = next(victim for victim in observe_clients(view) if victim.late is not None)
    assert later_victim.owner == "client-2"
    assert int(later_victim.late.n[later_victim.late.certain].sum()) > 0
    nodes = Routes.of(later_victim.blocks[0].trees[:1]).apply(
        clients_of(federation_of_clients)[2].X
    )[:, 0]
    for leaf, n, n1, is_certain in zip(
        later_victim.late_leaves.leaf,
        later_victim.late.n,
        later_victim.late.n1,
        later_victim.late.certain,
        strict=True,
    ):
        in_leaf = nodes == leaf
        assert not is_certain or (n, n1) == (
            in_leaf.sum(),
            clients_of(federation_of_clients)[2].y[in_leaf].sum(),
        )


@pytest.mark.parametrize("arrival", ["client", "shuffled"])
@pytest.mark.parametrize("principal", ["client-0", "client-1", "client-2", "server"])
def test_clients_of_one_class_are_counted_in_bagging(arrival, principal):
    """Their trees are single leaves with value 0, which differ only in their sums."""
    federation_of_clients = make_federation((40, 70, 40), by_class=True)
    assert set(clients_of(federation_of_clients)[0].y) == {0}
    assert set(clients_of(federation_of_clients)[2].y) == {1}
    spec = f"flower-bagging[trees=3,local_trees=2,max_depth=3,arrival={arrival}]"
    _, guess, scores = attack_training(federation_of_clients, spec, principal)
    assert scores["leaf_counts_exact"] == 1.0
    assert len(guessed.rows(guess)) == len(victims_of_all(federation_of_clients, (principal,)))


@pytest.mark.long
@pytest.mark.parametrize("classes", [2, 3])
def test_small_clients_are_not_taken_for_larger_ones(classes):
    """A leaf has at most as many positives as rows, and only one of two solutions for p is
    possible.
    """
    federation_of_clients = make_federation((15,) * 10, classes=classes)
    for principal in ("client-0", "client-9"):
        _, guess, scores = attack_training(
            federation_of_clients, "flower-bagging[trees=1,max_depth=3]", principal
        )
        assert scores["leaf_counts_exact"] == 1.0
        assert len(guessed.rows(guess)) == 135


def test_fifteen_rows_are_not_taken_for_forty():
    """Leaves with 6 and 9 rows, 6 and 0 of them positive, have the H of 16 and 24 rows with p =
    0.9.
    """
    X = np.repeat([0.0, 1.0], [6, 9]).astype(np.float32)[:, None]
    y = np.repeat([1, 0], [6, 9])
    cuts = quantile_cuts(X, 8)
    tree = grow_forest(X, y, cuts, TreeParams(trees=1, max_depth=1), LOGISTIC).trees[0]
    assert len(tree.leaves) == 2
    inferred = own_start([tree], LOGISTIC, 135)
    assert (inferred.rows, inferred.score[0]) == (15, np.float32(0.4))


@pytest.mark.parametrize("defense", ["leaf-rounding[decimals=2]", "leaf-rounding+mask-sum-hessian"])
@pytest.mark.parametrize("protocol", ["flower-bagging", "flower-cyclic", "local-ensembles"])
def test_base_weights_contain_the_values_before_rounding(protocol, defense):
    federation_of_clients, spec = make_federation((60, 60, 60)), f"{protocol}[trees=3,max_depth=3]"
    _, _, scores = attack_training(federation_of_clients, spec, "client-2", defense)
    assert scores["leaf_counts_exact"] == 1.0


def test_a_wrong_base_score_does_not_give_millions_of_rows():
    """The base score of one row of one class has a hessian of 1e-6. It is applied to sums of
    sixty rows.
    """
    n_leaves = 4
    zero, zero_counts = np.zeros(n_leaves), np.zeros(n_leaves, dtype=np.int64)
    h = np.full(n_leaves, 3.6)
    sums = LeafSums(
        zero, h, zero, zero, zero, zero, zero_counts, zero_counts, np.zeros(0, dtype=np.int32)
    )
    assert (counts_from_sums(sums, 0.4, 0.24, None, 100).n0 == 9).all()
    counts = counts_from_sums(sums, 1 - 1e-6, 1e-6, None, 100)
    assert int((counts.n0 + counts.n1).sum()) == 100


def test_equal_sums_of_single_leaf_trees_are_not_taken_for_a_mask():
    equal_sums, ones = np.full(2, 4e-5, dtype=np.float32), np.ones(3, dtype=np.float32)
    leaves, split = np.array([1, 1]), np.array([3])
    assert not is_masked(equal_sums, leaves)
    assert is_masked(ones, split)
    assert is_masked(ones[:2], leaves)


def test_a_single_leaf_below_the_hessian_limit_reveals_no_positives():
    """Its weight is 0 for every gradient sum."""
    federation_of_clients = make_federation((50, 60, 40))
    spec = "flower-cyclic[trees=3,max_depth=3,min_child_weight=30,base_score=0.5]"
    view, _, _ = attack_training(federation_of_clients, spec, "server")
    late = [victim.late for victim in observe_clients(view) if victim.late is not None]
    assert [len(counts.n) for counts in late] == [1, 1]
    assert not any(counts.certain.any() for counts in late)


def test_single_leaf_models_are_scored_on_their_owners_rows():
    federation_of_clients = make_federation((50, 30, 41), constant=True)
    _, _, scores = attack_training(
        federation_of_clients, "local-ensembles[trees=3,max_depth=3]", "client-0"
    )
    assert scores["leaf_counts_exact"] == 1.0


def test_late_sizes_add_up_with_leaf_values_only():
    federation_of_clients = make_federation((50, 60, 40))
    _, guess, _ = attack_training(
        federation_of_clients, "flower-cyclic[trees=5,max_depth=3]", "client-2", "split-only"
    )
    assert len(guessed.rows(guess)) == 110


@pytest.mark.long
@pytest.mark.parametrize("protocol", ["flower-bagging[trees=8", "flower-cyclic[trees=12"])
def test_a_masked_single_leaf_tree_does_not_hide_other_trees(protocol):
    federation_of_clients, spec = make_federation((50, 60, 40)), f"{protocol},max_depth=3,gamma=3]"
    view, _, masked = attack_training(federation_of_clients, spec, "client-2", "mask-sum-hessian")
    sizes = [
        len(tree)
        for victim in observe_clients(view)
        for block in victim.blocks
        for tree in block.trees
    ]
    assert 1 in sizes
    assert all(victim.evidence.observed.level == "statistics" for victim in observe_clients(view))
    assert (
        masked["leaf_counts_exact"]
        == attack_training(federation_of_clients, spec, "client-2")[2]["leaf_counts_exact"]
    )

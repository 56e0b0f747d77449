"""Shared trees of clients without rows, of one class, or of few rows: who grew what, and counts."""

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


def federation(sizes, by_class=False, constant=False, classes=2):
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


def attacked(fed, spec, who, defense="none"):
    made = make_defense(parse_composed([defense])[0])
    protocol = register.make("protocol", parse_grid(spec)[0])
    done = train(protocol, fed.local_data, fed.schema, defense=made, seed=1)
    view = view_of(done, (who,), fed.local_data)
    guess = register.make("attack", parse_grid(ATTACK)[0]).run(view, np.random.default_rng(0))
    return view, guess, leaf_scores(guess, fed, (who,), done)


@pytest.mark.long
@pytest.mark.parametrize("who", ["client-0", "client-2", "client-3", "server"])
@pytest.mark.parametrize("sizes", [(50, 0, 60, 40), (0, 50, 60, 40), (50, 60, 40, 0)])
def test_a_turn_that_passes_without_trees_shifts_no_names_in_the_cycle(sizes, who):
    fed = federation(sizes)
    view, _, _ = attacked(fed, "flower-cyclic[trees=9,max_depth=3]", who)
    order = [f"client-{i % 4}" for i in range(9) if sizes[i % 4]]
    blocks = blocks_of(view).blocks
    assert len(blocks) == len(order)
    chains = [b.chain or b.sender for b in blocks]
    for i, name in enumerate(order):
        assert blocks[i].sender in (name, None)  # None: who of several it was does not show
        assert [j for j, c in enumerate(chains) if c == chains[i]] == [
            j for j, other in enumerate(order) if other == name
        ]
    if who == "server":
        assert [b.sender for b in blocks] == order


def test_a_receiver_of_the_cycle_knows_who_is_missing_where_nothing_else_fits():
    sizes = (50, 0, 60)
    view, _, _ = attacked(federation(sizes), "flower-cyclic[trees=4,max_depth=3]", "client-2")
    assert [b.sender for b in blocks_of(view).blocks] == ["client-0", "client-2", "client-0"]


def test_certain_counts_in_a_cycle_with_a_gap_are_true():
    fed = federation((70, 0, 80))
    view, _, _ = attacked(fed, "flower-cyclic[trees=4,max_depth=3]", "server")
    late = next(v for v in observe_clients(view) if v.late is not None)
    assert late.owner == "client-2"
    assert int(late.late.n[late.late.certain].sum()) > 0
    nodes = Routes.of(late.blocks[0].trees[:1]).apply(clients_of(fed)[2].X)[:, 0]
    for leaf, n, n1, sure in zip(
        late.late_leaves.leaf, late.late.n, late.late.n1, late.late.certain, strict=True
    ):
        here = nodes == leaf
        assert not sure or (n, n1) == (here.sum(), clients_of(fed)[2].y[here].sum())


@pytest.mark.parametrize("arrival", ["client", "shuffled"])
@pytest.mark.parametrize("who", ["client-0", "client-1", "client-2", "server"])
def test_clients_of_one_class_are_counted_in_bagging(arrival, who):
    """Their trees are one leaf of value 0: alike but for the sums."""
    fed = federation((40, 70, 40), by_class=True)
    assert set(clients_of(fed)[0].y) == {0}
    assert set(clients_of(fed)[2].y) == {1}
    spec = f"flower-bagging[trees=3,local_trees=2,max_depth=3,arrival={arrival}]"
    _, guess, got = attacked(fed, spec, who)
    assert got["leaf_counts_exact"] == 1.0
    assert len(guessed.rows(guess)) == len(victims_of_all(fed, (who,)))


@pytest.mark.long
@pytest.mark.parametrize("classes", [2, 3])
def test_clients_of_few_rows_are_not_taken_for_many_of_them(classes):
    """A leaf may not hold more positives than rows, nor may one of p be the other root's."""
    fed = federation((15,) * 10, classes=classes)
    for who in ("client-0", "client-9"):
        _, guess, got = attacked(fed, "flower-bagging[trees=1,max_depth=3]", who)
        assert got["leaf_counts_exact"] == 1.0
        assert len(guessed.rows(guess)) == 135


def test_fifteen_rows_are_no_forty():
    """Leaves of 6 and 9 rows with 6 and 0 positives: H is that of 16 and 24 rows of p 0.9 too."""
    X = np.repeat([0.0, 1.0], [6, 9]).astype(np.float32)[:, None]
    y = np.repeat([1, 0], [6, 9])
    cuts = quantile_cuts(X, 8)
    tree = grow_forest(X, y, cuts, TreeParams(trees=1, max_depth=1), LOGISTIC).trees[0]
    assert len(tree.leaves) == 2
    found = own_start([tree], LOGISTIC, 135)
    assert (found.rows, found.score[0]) == (15, np.float32(0.4))


@pytest.mark.parametrize("defense", ["leaf-rounding[decimals=2]", "leaf-rounding+mask-sum-hessian"])
@pytest.mark.parametrize("protocol", ["flower-bagging", "flower-cyclic", "local-ensembles"])
def test_rounded_values_stand_unrounded_among_the_weights(protocol, defense):
    fed, spec = federation((60, 60, 60)), f"{protocol}[trees=3,max_depth=3]"
    _, _, got = attacked(fed, spec, "client-2", defense)
    assert got["leaf_counts_exact"] == 1.0


def test_sums_read_with_a_wrong_start_make_no_millions_of_rows():
    """The base score of one row of one class, whose hessian is 1e-6, on sums of sixty rows."""
    n = 4
    zero, none = np.zeros(n), np.zeros(n, dtype=np.int64)
    h = np.full(n, 3.6)
    sums = LeafSums(zero, h, zero, zero, zero, zero, none, none, np.zeros(0, dtype=np.int32))
    assert (counts_from_sums(sums, 0.4, 0.24, None, 100).n0 == 9).all()
    found = counts_from_sums(sums, 1 - 1e-6, 1e-6, None, 100)
    assert int((found.n0 + found.n1).sum()) == 100


def test_equal_sums_of_trees_of_one_leaf_are_no_mask():
    same, one = np.full(2, 4e-5, dtype=np.float32), np.ones(3, dtype=np.float32)
    leaves, split = np.array([1, 1]), np.array([3])
    assert not is_masked(same, leaves)
    assert is_masked(one, split)
    assert is_masked(one[:2], leaves)


def test_a_lone_leaf_below_the_least_hessian_tells_no_positives():
    """Its weight is 0 whatever its gradient sum."""
    fed = federation((50, 60, 40))
    spec = "flower-cyclic[trees=3,max_depth=3,min_child_weight=30,base_score=0.5]"
    view, _, _ = attacked(fed, spec, "server")
    late = [v.late for v in observe_clients(view) if v.late is not None]
    assert [len(counts.n) for counts in late] == [1, 1]
    assert not any(counts.certain.any() for counts in late)


def test_single_leaf_models_are_scored_on_their_owners_rows():
    fed = federation((50, 30, 41), constant=True)
    _, _, got = attacked(fed, "local-ensembles[trees=3,max_depth=3]", "client-0")
    assert got["leaf_counts_exact"] == 1.0


def test_late_sizes_add_up_though_only_values_are_seen():
    fed = federation((50, 60, 40))
    _, guess, _ = attacked(fed, "flower-cyclic[trees=5,max_depth=3]", "client-2", "split-only")
    assert len(guessed.rows(guess)) == 110


@pytest.mark.long
@pytest.mark.parametrize("protocol", ["flower-bagging[trees=8", "flower-cyclic[trees=12"])
def test_a_masked_tree_of_one_leaf_hides_no_other_tree(protocol):
    fed, spec = federation((50, 60, 40)), f"{protocol},max_depth=3,gamma=3]"
    view, _, masked = attacked(fed, spec, "client-2", "mask-sum-hessian")
    sizes = [len(t) for v in observe_clients(view) for b in v.blocks for t in b.trees]
    assert 1 in sizes
    assert all(v.evidence.observed.level == "statistics" for v in observe_clients(view))
    assert masked["leaf_counts_exact"] == attacked(fed, spec, "client-2")[2]["leaf_counts_exact"]

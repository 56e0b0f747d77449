"""Counts of trees that were grown on others' trees: what is claimed is never wrong."""

from __future__ import annotations

import tracemalloc
from dataclasses import replace

import numpy as np
import pytest
from federations import clients_of
from hypothesis import given, settings
from hypothesis import strategies as st
from timberstrike_world import structured

from fedtrees.attacks.clients.base_score import VALUE_ERROR
from fedtrees.attacks.clients.client_sizes import late_counts
from fedtrees.attacks.clients.client_trees import blocks_of
from fedtrees.attacks.clients.margin_cells import (
    MOST_SCORES,
    Cells,
    LeafEquations,
    cells_of,
    totals_of,
)
from fedtrees.attacks.clients.per_client import observe_clients
from fedtrees.attacks.observations.boosting import gradients
from fedtrees.core.deterministic_channels import Rounding
from fedtrees.core.local_data import client_names, over_clients
from fedtrees.core.registry import register
from fedtrees.core.schema import Feature, Schema
from fedtrees.core.specs import parse_composed, parse_grid
from fedtrees.data.dataset import prepare
from fedtrees.data.partition import Partition
from fedtrees.experiments.evaluate import make_defense
from fedtrees.experiments.federation import spread
from fedtrees.protocols.training import train
from fedtrees.protocols.views import view_of

LAMBDA = 1.0


@st.composite
def leaves(draw):
    """A leaf of few rows in up to eight cells, and its sums as they are stored."""
    count = draw(st.integers(1, 8))
    seed = draw(st.integers(0, 2**32 - 1))
    rng = np.random.default_rng(seed)
    margin = np.unique(rng.normal(-0.5, 0.6, count).astype(np.float32))
    rows = rng.integers(0, 6, len(margin))
    rows[0] += 1
    positives = rng.binomial(rows, 0.4)
    g0, h = gradients(margin, np.zeros(len(margin)))
    g1 = gradients(margin, np.ones(len(margin)))[0]
    cells = Cells(g0, h, g0 - g1, rng.poisson(rows))
    total_h = float(rows @ h)
    g = float((rows - positives) @ g0 + positives @ g1)
    weight = np.float32(-g / (total_h + LAMBDA))
    value = np.float32(np.float32(0.3) * weight)
    stored = np.float32(total_h)
    leaf = LeafEquations(
        float(stored), float(np.spacing(stored)) / 2 + 1e-8, float(value) / float(np.float32(0.3)),
        VALUE_ERROR, LAMBDA,
    )  # fmt: skip
    return leaf, cells, (int(rows.sum()), int(positives.sum()))


@pytest.mark.long
@settings(max_examples=60, deadline=None)
@given(leaves())
def test_a_complete_list_of_totals_holds_the_true_ones(case):
    leaf, cells, truth = case
    found = totals_of(leaf, cells)
    assert found.complete
    assert truth in set(zip(found.n.tolist(), found.n1.tolist(), strict=True))


@pytest.mark.long
@settings(max_examples=30, deadline=None)
@given(leaves(), st.randoms())
def test_the_order_of_cells_does_not_matter(case, shuffle):
    leaf, cells, _ = case
    order = list(range(len(cells.p)))
    shuffle.shuffle(order)
    mixed = Cells(*(part[order] for part in (cells.p, cells.h, cells.step, cells.local_counts)))
    a, b = totals_of(leaf, cells), totals_of(leaf, mixed)
    assert set(zip(a.n, a.n1, strict=True)) == set(zip(b.n, b.n1, strict=True))


def test_totals_are_those_of_all_compositions():
    """Against every composition of three cells, one after the other."""
    margin = np.array([-1.0, -0.25, 0.5], dtype=np.float32)
    p, h = gradients(margin, np.zeros(3))
    cells = Cells(p, h, np.ones(3), np.zeros(3, dtype=np.int64))
    rows, positives = np.array([4, 2, 3]), 3
    value = -(rows @ p - positives) / (rows @ h + LAMBDA)
    wide = LeafEquations(float(rows @ h), 0.1, float(value), 0.3, LAMBDA)
    expected = set()
    for n in np.ndindex(12, 12, 12):
        if abs(n @ h - wide.h) > wide.h_error:
            continue
        pull = wide.slope * (n @ h + LAMBDA)
        n1 = np.rint(n @ p + pull)
        off = wide.slope_error * abs(pull) + 1e-9 * sum(n) + 1e-9
        if abs(n @ p + pull - n1) <= off and 0 <= n1 <= sum(n):
            expected.add((sum(n), int(n1)))
    found = totals_of(wide, cells)
    assert len(expected) > 3
    assert set(zip(found.n.tolist(), found.n1.tolist(), strict=True)) == expected


def test_a_leaf_of_many_rows_in_many_cells_is_given_up_within_bounded_memory():
    rng = np.random.default_rng(0)
    margin = np.unique(rng.normal(-2.0, 0.8, 1_000).astype(np.float32))
    p, h = gradients(margin, np.zeros(len(margin)))
    cells = Cells(p, h, np.ones(len(p)), rng.poisson(1.0, len(p)))
    total = float(3 * h.sum())
    assert total / h.min() * len(h) > 10 * MOST_SCORES
    tracemalloc.start()
    found = totals_of(LeafEquations(total, 1e-6, -0.1, VALUE_ERROR, LAMBDA), cells)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert not found.complete
    assert peak < 10 * 8 * MOST_SCORES


def cyclic(order=(0, 1, 2), depth=4, rows=240, defense=None):
    X, y = structured(rows)
    schema = Schema(tuple(Feature(f"x{k}") for k in range(X.shape[1])), "y")
    fed = spread(prepare("structured", schema, X, y), Partition("iid"), client_names(3), 0)
    clients = tuple(clients_of(fed)[i] for i in order)
    made = register.make("protocol", parse_grid(f"flower-cyclic[trees=3,max_depth={depth}]")[0])
    return clients, train(made, over_clients(clients), fed.schema, defense=defense, seed=1)


@pytest.mark.parametrize("name", ["none", "mask-sum-hessian"])
def test_gradient_sums_are_read_with_the_eta_that_made_the_values(name):
    """That is a float32; 0.3 is not, by more than the error assumed of values leaves room for."""
    clients, done = cyclic(defense=make_defense(parse_composed([name])[0]))
    view = view_of(done, ("server",), over_clients(clients))
    eta = float(np.float32(view.parameters["learning_rate"]))
    for block in blocks_of(view).blocks:
        for tree in block.trees:
            leaves = tree.leaves
            weight = -tree.g[leaves] / (tree.h[leaves] + view.parameters["reg_lambda"])
            np.testing.assert_allclose(weight * eta, tree.value[leaves], rtol=1e-12)


@pytest.mark.parametrize("order", [(0, 1, 2), (2, 0, 1), (1, 2, 0)])
@pytest.mark.parametrize("who", ["client-0", "client-2", "server"])
def test_what_is_certain_is_right_whoever_comes_first(order, who):
    clients, done = cyclic(order)
    claimed = 0
    for victim in observe_clients(view_of(done, (who,), over_clients(clients))):
        if victim.late is None:
            continue
        t, held = victim.blocks[0].first_tree, clients[int(victim.owner[-1])]
        at = done.model.apply(held.X)[:, t]
        for leaf, n, n1, certain in zip(
            done.model.trees[t].leaves, victim.late.n, victim.late.n1, victim.late.certain,
            strict=True,
        ):  # fmt: skip
            if certain:
                claimed += 1
                assert (n, n1) == ((at == leaf).sum(), held.y[at == leaf].sum())
    assert claimed >= 3


def test_the_margins_of_all_rows_are_among_the_cells():
    clients, done = cyclic()
    for victim in observe_clients(view_of(done, ("server",), over_clients(clients))):
        t = victim.blocks[0].first_tree
        if not t:
            continue
        held = clients[int(victim.owner[-1])]
        nodes = done.model.apply(held.X)
        margin = np.full(len(held), done.model.base_margin[0])
        for k in range(t):
            margin += done.model.trees[k].value[nodes[:, k]]
        cells = cells_of(victim.evidence, t, None, done.schema)
        for leaf, of_leaf in zip(done.model.trees[t].leaves, cells, strict=True):
            p = gradients(margin[nodes[:, t] == leaf], np.zeros((nodes[:, t] == leaf).sum()))[0]
            assert np.isin(p, of_leaf.p).all()


def test_one_leaf_that_no_rows_make_up_puts_all_in_doubt():
    clients, done = cyclic()
    view = view_of(done, ("client-2",), over_clients(clients))
    victim = next(v for v in observe_clients(view) if v.late is not None)
    evidence, t = victim.evidence, victim.blocks[0].first_tree
    tree, certain = evidence.trees[t], victim.late.certain
    assert certain.sum() > 1
    h = tree.h.copy()
    h[tree.leaves[np.flatnonzero(certain)[0]]] *= 1.01
    trees = (*evidence.trees[:t], replace(tree, h=h), *evidence.trees[t + 1 :])
    found = late_counts(evidence.change(trees=trees), view.rows, view.schema)
    assert not found.certain.any()


def test_rounded_values_are_not_counted():
    clients, done = cyclic()
    view = view_of(done, ("client-2",), over_clients(clients))
    victim = next(v for v in observe_clients(view) if v.late is not None)
    rounded = victim.evidence.change(rounding=Rounding(0.01))
    assert late_counts(rounded, view.rows, view.schema) is None

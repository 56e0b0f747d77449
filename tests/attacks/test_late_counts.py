"""Counts of trees that were grown on the trees of other clients: claimed counts are never wrong."""

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
    """Draw a leaf of few rows in up to eight cells, with its sums as they are stored."""
    count = draw(st.integers(1, 8))
    seed = draw(st.integers(0, 2**32 - 1))
    rng = np.random.default_rng(seed)
    margin = np.unique(rng.normal(-0.5, 0.6, count).astype(np.float32))
    rows = rng.integers(0, 6, len(margin))
    rows[0] += 1
    positives = rng.binomial(rows, 0.4)
    gradient_0, hessian = gradients(margin, np.zeros(len(margin)))
    gradient_1 = gradients(margin, np.ones(len(margin)))[0]
    cells = Cells(gradient_0, hessian, gradient_0 - gradient_1, rng.poisson(rows))
    total_h = float(rows @ hessian)
    g = float((rows - positives) @ gradient_0 + positives @ gradient_1)
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
def test_a_complete_list_of_totals_contains_the_true_totals(case):
    leaf, cells, truth = case
    totals = totals_of(leaf, cells)
    assert totals.complete
    assert truth in set(zip(totals.n.tolist(), totals.n1.tolist(), strict=True))


@pytest.mark.long
@settings(max_examples=30, deadline=None)
@given(leaves(), st.randoms())
def test_the_order_of_cells_does_not_matter(case, shuffle):
    leaf, cells, _ = case
    order = list(range(len(cells.p)))
    shuffle.shuffle(order)
    mixed = Cells(*(part[order] for part in (cells.p, cells.h, cells.step, cells.local_counts)))
    totals, mixed_totals = totals_of(leaf, cells), totals_of(leaf, mixed)
    assert set(zip(totals.n, totals.n1, strict=True)) == set(
        zip(mixed_totals.n, mixed_totals.n1, strict=True)
    )


def test_totals_are_those_of_all_compositions():
    """Compare with every composition of three cells."""
    margin = np.array([-1.0, -0.25, 0.5], dtype=np.float32)
    p, h = gradients(margin, np.zeros(3))
    cells = Cells(p, h, np.ones(3), np.zeros(3, dtype=np.int64))
    rows, positives = np.array([4, 2, 3]), 3
    value = -(rows @ p - positives) / (rows @ h + LAMBDA)
    equations = LeafEquations(float(rows @ h), 0.1, float(value), 0.3, LAMBDA)
    expected = set()
    for n in np.ndindex(12, 12, 12):
        if abs(n @ h - equations.h) > equations.h_error:
            continue
        pull = equations.slope * (n @ h + LAMBDA)
        n1 = np.rint(n @ p + pull)
        tolerance = equations.slope_error * abs(pull) + 1e-9 * sum(n) + 1e-9
        if abs(n @ p + pull - n1) <= tolerance and 0 <= n1 <= sum(n):
            expected.add((sum(n), int(n1)))
    totals = totals_of(equations, cells)
    assert len(expected) > 3
    assert set(zip(totals.n.tolist(), totals.n1.tolist(), strict=True)) == expected


def test_the_search_in_a_large_leaf_stops_within_bounded_memory():
    rng = np.random.default_rng(0)
    margin = np.unique(rng.normal(-2.0, 0.8, 1_000).astype(np.float32))
    p, h = gradients(margin, np.zeros(len(margin)))
    cells = Cells(p, h, np.ones(len(p)), rng.poisson(1.0, len(p)))
    total = float(3 * h.sum())
    assert total / h.min() * len(h) > 10 * MOST_SCORES
    tracemalloc.start()
    totals = totals_of(LeafEquations(total, 1e-6, -0.1, VALUE_ERROR, LAMBDA), cells)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert not totals.complete
    assert peak < 10 * 8 * MOST_SCORES


def train_cyclic(order=(0, 1, 2), depth=4, rows=240, defense=None):
    X, y = structured(rows)
    schema = Schema(tuple(Feature(f"x{k}") for k in range(X.shape[1])), "y")
    federation = spread(prepare("structured", schema, X, y), Partition("iid"), client_names(3), 0)
    clients = tuple(clients_of(federation)[i] for i in order)
    protocol = register.make("protocol", parse_grid(f"flower-cyclic[trees=3,max_depth={depth}]")[0])
    return clients, train(
        protocol, over_clients(clients), federation.schema, defense=defense, seed=1
    )


@pytest.mark.parametrize("name", ["none", "mask-sum-hessian"])
def test_gradient_sums_are_computed_with_the_float32_learning_rate(name):
    """The learning rate is a float32. The float64 number 0.3 differs by more than the assumed
    error of values.
    """
    clients, training = train_cyclic(defense=make_defense(parse_composed([name])[0]))
    view = view_of(training, ("server",), over_clients(clients))
    eta = float(np.float32(view.parameters["learning_rate"]))
    for block in blocks_of(view).blocks:
        for tree in block.trees:
            leaves = tree.leaves
            weight = -tree.g[leaves] / (tree.h[leaves] + view.parameters["reg_lambda"])
            np.testing.assert_allclose(weight * eta, tree.value[leaves], rtol=1e-12)


@pytest.mark.parametrize("order", [(0, 1, 2), (2, 0, 1), (1, 2, 0)])
@pytest.mark.parametrize("principal", ["client-0", "client-2", "server"])
def test_certain_counts_are_correct_for_every_order_of_clients(order, principal):
    clients, training = train_cyclic(order)
    n_claimed = 0
    for victim in observe_clients(view_of(training, (principal,), over_clients(clients))):
        if victim.late is None:
            continue
        t, rows = victim.blocks[0].first_tree, clients[int(victim.owner[-1])]
        leaf_of_row = training.model.apply(rows.X)[:, t]
        for leaf, n, n1, certain in zip(
            training.model.trees[t].leaves, victim.late.n, victim.late.n1, victim.late.certain,
            strict=True,
        ):  # fmt: skip
            if certain:
                n_claimed += 1
                assert (n, n1) == ((leaf_of_row == leaf).sum(), rows.y[leaf_of_row == leaf].sum())
    assert n_claimed >= 3


def test_the_margins_of_all_rows_are_among_the_cells():
    clients, training = train_cyclic()
    for victim in observe_clients(view_of(training, ("server",), over_clients(clients))):
        t = victim.blocks[0].first_tree
        if not t:
            continue
        rows = clients[int(victim.owner[-1])]
        nodes = training.model.apply(rows.X)
        margin = np.full(len(rows), training.model.base_margin[0])
        for k in range(t):
            margin += training.model.trees[k].value[nodes[:, k]]
        cells = cells_of(victim.evidence, t, None, training.schema)
        for leaf, of_leaf in zip(training.model.trees[t].leaves, cells, strict=True):
            p = gradients(margin[nodes[:, t] == leaf], np.zeros((nodes[:, t] == leaf).sum()))[0]
            assert np.isin(p, of_leaf.p).all()


def test_one_inconsistent_leaf_makes_all_counts_uncertain():
    clients, training = train_cyclic()
    view = view_of(training, ("client-2",), over_clients(clients))
    victim = next(any_victim for any_victim in observe_clients(view) if any_victim.late is not None)
    evidence, t = victim.evidence, victim.blocks[0].first_tree
    tree, certain = evidence.trees[t], victim.late.certain
    assert certain.sum() > 1
    h = tree.h.copy()
    h[tree.leaves[np.flatnonzero(certain)[0]]] *= 1.01
    trees = (*evidence.trees[:t], replace(tree, h=h), *evidence.trees[t + 1 :])
    counts = late_counts(evidence.change(trees=trees), view.rows, view.schema)
    assert not counts.certain.any()


def test_rounded_values_are_not_counted():
    clients, training = train_cyclic()
    view = view_of(training, ("client-2",), over_clients(clients))
    victim = next(any_victim for any_victim in observe_clients(view) if any_victim.late is not None)
    rounded = victim.evidence.change(rounding=Rounding(0.01))
    assert late_counts(rounded, view.rows, view.schema) is None

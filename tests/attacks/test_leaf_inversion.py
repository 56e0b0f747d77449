"""`leaf-inversion`: its derivatives, rows of single gradients, values in boxes."""

from dataclasses import replace

import numpy as np
import pytest

from fedtrees.attacks.tree_network_inversion.attack import LeafInversion, leaf_accuracy
from fedtrees.attacks.tree_network_inversion.known_rows import KnownRows
from fedtrees.attacks.tree_network_inversion.matching import models_of, seen_batches
from fedtrees.attacks.tree_network_inversion.search import Whitened
from fedtrees.core.claims import BatchRows
from fedtrees.core.local_data import over_clients
from fedtrees.core.reasons import Reason
from fedtrees.core.schema import Table
from fedtrees.core.streams import Streams
from fedtrees.experiments.federation import load_dataset
from fedtrees.experiments.suite import DataRef
from fedtrees.protocols.training import train
from fedtrees.protocols.tree_networks.fedxgbllr import FedXGBllr
from fedtrees.protocols.views import view_of


@pytest.fixture(scope="module")
def world():
    """Three clients of breast cancer, ten trees each, one gradient of one row each."""
    data = load_dataset(DataRef("breast-cancer"), None)
    clients = [data.table.take(r) for r in np.array_split(np.arange(300), 3)]
    return clients, *trained(clients, data.schema, sends="gradient")


def trained(clients, schema, **params):
    made = FedXGBllr(trees=10, max_depth=3, rounds=1, batch=1, **params)
    training = train(made, over_clients(clients), schema, seed=1)
    return training, view_of(training, ("server",), over_clients(clients))


@pytest.mark.parametrize("signs", [False, True])
def test_derivatives_are_those_of_differences(world, signs):
    view = world[2]
    matching = next(seen_batches(view)).matching(models_of(view), view)
    trees = matching.trees
    if signs:
        matching = replace(matching, width=np.full_like(matching.target, 0.01))
    rng = np.random.default_rng(0)
    V = rng.standard_normal((2, 3, trees.models, 10))
    Y = np.array([[0, 1, 1], [0, 0, 1.0]])
    _, slope = matching(V, Y)
    way = rng.standard_normal(V.shape)
    ahead, behind = matching(V + 1e-6 * way, Y)[0], matching(V - 1e-6 * way, Y)[0]
    told = (slope * way).sum(axis=(1, 2, 3))
    np.testing.assert_allclose((ahead - behind) / 2e-6, told, rtol=1e-3)
    u = rng.standard_normal((3, trees.d)).astype(np.float32)
    out, right = trees.soft(u, 0.5)
    pull = rng.standard_normal(out.shape).astype(np.float32)
    step = rng.standard_normal(u.shape).astype(np.float32)
    ends = [(trees.soft(u + s * step, 0.5)[0] * pull).sum() for s in (1e-2, -1e-2)]
    told = (trees.backpropagate(right, pull, 0.5) * step).sum()
    np.testing.assert_allclose((ends[0] - ends[1]) / 2e-2, told, rtol=1e-2)


@pytest.mark.long
def test_single_rows_are_found_leaf_by_leaf(world):
    clients, training, view = world
    assert found(clients, training, view) > 0.95


def test_single_steps_of_adam_tell_signs_and_these_most_leaves(world):
    clients, _, view = world
    training, view = trained(clients, view.schema, iterations=1)
    item = next(seen_batches(view))
    assert np.median(np.abs(item.gradient[item.gradient != 0])) == pytest.approx(1, abs=1e-3)
    assert found(clients, training, view) > 0.75  # a row drawn has half of another's leaves


def a_batch(world, rows=8, seed=0):
    """Return trees, what a gradient of some rows is compared by, these and others."""
    clients, view = world[0], world[2]
    everybody = Table.concat(clients)
    matching = next(seen_batches(view)).matching(models_of(view), view)
    trees = matching.trees
    order = np.random.default_rng(seed).permutation(len(everybody))
    batch, others = everybody.take(order[:rows]), everybody.take(order[rows:])
    gradient = matching.of_cells(trees.cells_of(batch.X), batch.y)
    return trees, replace(matching, target=gradient), batch, others


def test_coordinates_that_were_not_sent_count_for_nothing(world):
    trees, matching, batch, _ = a_batch(world)
    there = np.abs(matching.target) >= np.quantile(np.abs(matching.target), 0.9)
    few = replace(matching, target=np.where(there, matching.target, 0).astype(np.float32))
    V = trees.outputs(trees.leaves(trees.cells_of(batch.X)))[None]
    y = batch.y[None].astype(np.float32)
    assert replace(few, shown=there)(V, y)[0] < 1e-9 < 1e-2 < few(V, y)[0]


def test_directions_that_noise_drowns_count_for_less(world):
    trees, matching, batch, others = a_batch(world)
    leaves = trees.leaves(trees.cells_of(batch.X))
    rng = np.random.default_rng(0)
    noise = 0.3 * float(np.sqrt((matching.target**2).mean()))
    noisy = matching.target + noise * rng.standard_normal(matching.target.shape)
    odds = []
    for told in (0.0, noise):
        one = replace(matching, target=noisy.astype(np.float32), noise=told)
        white = Whitened.of(one, len(batch), np.random.default_rng(0))
        target, parts = one.target @ white.to * len(batch), white.of_rows(leaves, batch.y)
        wrong = white.of_rows(trees.leaves(trees.cells_of(others.X)), others.y)
        off = parts.sum(axis=0) - target
        # in place of the first row, others of its label
        tried = ((off - parts[0] + wrong[others.y == batch.y[0]]) ** 2).sum(axis=1)
        odds.append((tried < off @ off).mean())
    assert odds[1] < odds[0] - 0.02


def test_what_most_draws_of_known_rows_agree_on_is_likelier_than_a_draw(world):
    scores = []
    for seed in range(10):
        trees, _, batch, others = a_batch(world, seed=seed)
        rng, known = np.random.default_rng(seed), KnownRows(others, world[2].schema)
        guesses = known.draw(batch.y, rng), known.likely(batch.y, True, rng)
        a, b, truth = (trees.leaves(trees.cells_of(t.X)) for t in (*guesses, batch))
        scores.append((leaf_accuracy(a, truth), leaf_accuracy(b, truth)))
    one, many = np.mean(scores, axis=0)
    assert many > one + 0.03


def found(clients, training, view):
    """Return the share of leaves that are right; labels have to be."""
    guess = LeafInversion(starts="none", steps=150).run(view, np.random.default_rng(0))
    held, right = over_clients(clients), []
    for claim in guess.all(BatchRows):
        (name,) = claim.owner
        streams = Streams(1).child(name)
        used = training.protocol.training_rows(100, streams, claim.round)
        truth = held[name].table.take(np.flatnonzero(used))
        leaves = training.model.apply(claim.table.X), training.model.apply(truth.X)
        right.append(leaf_accuracy(*leaves))
        assert claim.table.y.tolist() == truth.y.tolist()
    assert len(right) == 3
    return np.mean(right)


def test_updates_of_many_steps_are_left_alone(world):
    view = world[2]
    told = {**view.parameters, "sends": "update"}
    long = type(view)(**{**vars(view), "parameters": told})
    assert LeafInversion().inapplicable(long) == Reason("several-steps", steps=100)


def test_trees_that_split_nothing_leave_nothing_to_invert(world):
    clients, _, view = world
    same = [Table(np.ones_like(c.X), c.y) for c in clients]
    _, blank = trained(same, view.schema, sends="gradient")
    assert "no tree has a split" in str(LeafInversion().inapplicable(blank))

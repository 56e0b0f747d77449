"""`leaf-inversion`: its derivatives, and the leaves of rows from gradients."""

from dataclasses import replace

import numpy as np
import pytest

from fedtrees.attacks.tree_network_inversion.attack import KnownRows, LeafInversion, leaf_accuracy
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
def single_gradients():
    """Return three clients of breast cancer, and a training of ten trees each with one gradient
    of one row per client.
    """
    data = load_dataset(DataRef("breast-cancer"), None)
    clients = [data.table.take(part) for part in np.array_split(np.arange(300), 3)]
    return clients, *train_and_view(clients, data.schema, sends="gradient")


def train_and_view(clients, schema, **params):
    protocol = FedXGBllr(trees=10, max_depth=3, rounds=1, batch=1, **params)
    training = train(protocol, over_clients(clients), schema, seed=1)
    return training, view_of(training, ("server",), over_clients(clients))


@pytest.mark.parametrize("signs", [False, True])
def test_derivatives_equal_finite_differences(single_gradients, signs):
    view = single_gradients[2]
    matching = next(seen_batches(view)).matching(models_of(view), view)
    trees = matching.trees
    if signs:
        matching = replace(matching, width=np.full_like(matching.target, 0.01))
    rng = np.random.default_rng(0)
    values = rng.standard_normal((2, 3, trees.models, 10))
    labels = np.array([[0, 1, 1], [0, 0, 1.0]])
    _, slope = matching(values, labels)
    direction = rng.standard_normal(values.shape)
    ahead, behind = (
        matching(values + 1e-6 * direction, labels)[0],
        matching(values - 1e-6 * direction, labels)[0],
    )
    expected = (slope * direction).sum(axis=(1, 2, 3))
    np.testing.assert_allclose((ahead - behind) / 2e-6, expected, rtol=1e-3)
    inputs = rng.standard_normal((3, trees.d)).astype(np.float32)
    outputs, cached = trees.soft(inputs, 0.5)
    weights = rng.standard_normal(outputs.shape).astype(np.float32)
    step = rng.standard_normal(inputs.shape).astype(np.float32)
    sums = [(trees.soft(inputs + size * step, 0.5)[0] * weights).sum() for size in (1e-2, -1e-2)]
    expected = (trees.backpropagate(cached, weights, 0.5) * step).sum()
    np.testing.assert_allclose((sums[0] - sums[1]) / 2e-2, expected, rtol=1e-2)


@pytest.mark.long
def test_gradients_of_single_rows_reveal_their_leaves(single_gradients):
    clients, training, view = single_gradients
    assert share_of_correct_leaves(clients, training, view) > 0.95


def test_signs_from_single_adam_steps_reveal_most_leaves(single_gradients):
    clients, _, view = single_gradients
    training, view = train_and_view(clients, view.schema, iterations=1)
    item = next(seen_batches(view))
    assert np.median(np.abs(item.gradient[item.gradient != 0])) == pytest.approx(1, abs=1e-3)
    # A random row shares half of its leaves with another row.
    assert share_of_correct_leaves(clients, training, view) > 0.75


def random_batch(single_gradients, rows=8, seed=0):
    """Return the trees, the matching of a gradient of some rows, these rows, and the other rows."""
    clients, view = single_gradients[0], single_gradients[2]
    all_rows = Table.concat(clients)
    matching = next(seen_batches(view)).matching(models_of(view), view)
    trees = matching.trees
    order = np.random.default_rng(seed).permutation(len(all_rows))
    batch, other_rows = all_rows.take(order[:rows]), all_rows.take(order[rows:])
    gradient = matching.of_cells(trees.cells_of(batch.X), batch.y)
    return trees, replace(matching, target=gradient), batch, other_rows


def test_coordinates_that_were_not_sent_are_ignored(single_gradients):
    trees, matching, batch, _ = random_batch(single_gradients)
    sent = np.abs(matching.target) >= np.quantile(np.abs(matching.target), 0.9)
    sparse = replace(matching, target=np.where(sent, matching.target, 0).astype(np.float32))
    values = trees.outputs(trees.leaves(trees.cells_of(batch.X)))[None]
    y = batch.y[None].astype(np.float32)
    assert replace(sparse, shown=sent)(values, y)[0] < 1e-9 < 1e-2 < sparse(values, y)[0]


def test_noisy_directions_get_a_lower_weight(single_gradients):
    trees, matching, batch, other_rows = random_batch(single_gradients)
    leaves = trees.leaves(trees.cells_of(batch.X))
    rng = np.random.default_rng(0)
    noise = 0.3 * float(np.sqrt((matching.target**2).mean()))
    noisy = matching.target + noise * rng.standard_normal(matching.target.shape)
    shares_better = []
    for declared_noise in (0.0, noise):
        noisy_matching = replace(matching, target=noisy.astype(np.float32), noise=declared_noise)
        whitened = Whitened.of(noisy_matching, len(batch), np.random.default_rng(0))
        target, parts = (
            noisy_matching.target @ whitened.to * len(batch),
            whitened.of_rows(leaves, batch.y),
        )
        other_parts = whitened.of_rows(trees.leaves(trees.cells_of(other_rows.X)), other_rows.y)
        residual = parts.sum(axis=0) - target
        # Replace the first row by each other row with its label.
        costs = ((residual - parts[0] + other_parts[other_rows.y == batch.y[0]]) ** 2).sum(axis=1)
        shares_better.append((costs < residual @ residual).mean())
    assert shares_better[1] < shares_better[0] - 0.02


def test_the_consensus_of_known_rows_is_more_accurate_than_one_draw(single_gradients):
    scores = []
    for seed in range(10):
        trees, _, batch, other_rows = random_batch(single_gradients, seed=seed)
        rng, known_rows = (
            np.random.default_rng(seed),
            KnownRows(other_rows, single_gradients[2].schema),
        )
        guesses = known_rows.draw(batch.y, rng), known_rows.likely(batch.y, True, rng)
        drawn_leaves, consensus_leaves, truth = (
            trees.leaves(trees.cells_of(table.X)) for table in (*guesses, batch)
        )
        scores.append((leaf_accuracy(drawn_leaves, truth), leaf_accuracy(consensus_leaves, truth)))
    mean_of_draws, mean_of_consensus = np.mean(scores, axis=0)
    assert mean_of_consensus > mean_of_draws + 0.03


def share_of_correct_leaves(clients, training, view):
    """Assert that the labels are correct, and return the share of correct leaves."""
    guess = LeafInversion(starts="none", steps=150).run(view, np.random.default_rng(0))
    local_data, accuracies = over_clients(clients), []
    for claim in guess.all(BatchRows):
        (name,) = claim.owner
        streams = Streams(1).child(name)
        is_used = training.protocol.training_rows(100, streams, claim.round)
        truth = local_data[name].table.take(np.flatnonzero(is_used))
        leaves = training.model.apply(claim.table.X), training.model.apply(truth.X)
        accuracies.append(leaf_accuracy(*leaves))
        assert claim.table.y.tolist() == truth.y.tolist()
    assert len(accuracies) == 3
    return np.mean(accuracies)


def test_updates_of_several_steps_are_not_attacked(single_gradients):
    view = single_gradients[2]
    parameters = {**view.parameters, "sends": "update"}
    view_of_updates = type(view)(**{**vars(view), "parameters": parameters})
    assert LeafInversion().inapplicable(view_of_updates) == Reason("several-steps", steps=100)


def test_the_attack_needs_a_tree_with_a_split(single_gradients):
    clients, _, view = single_gradients
    constant_tables = [Table(np.ones_like(client.X), client.y) for client in clients]
    _, view_without_splits = train_and_view(constant_tables, view.schema, sends="gradient")
    assert "no tree has a split" in str(LeafInversion().inapplicable(view_without_splits))

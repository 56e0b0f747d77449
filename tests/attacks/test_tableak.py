"""Tests of `tableak`: the tangent trick, batches of the published network, different
adversaries, noise, and invalid gradients.
"""

import os
import subprocess
import sys
from dataclasses import replace
from itertools import pairwise

import numpy as np
import pytest
from data_dir import data_dir
from federations import sample_federation

from fedtrees.attacks.gradients.attack import encoding_of, local_steps_of
from fedtrees.attacks.gradients.exact import exact_rows, restored_counts
from fedtrees.attacks.gradients.inversion import accuracy, invert, likely_rows
from fedtrees.attacks.gradients.observed import (
    BatchGradient,
    LocalSteps,
    accepted_errors,
    batch_gradient,
)
from fedtrees.attacks.gradients.posterior import RowGradients, explain_gradient
from fedtrees.attacks.gradients.search import Matching
from fedtrees.attacks.gradients.second_layer_solve import rows_by_units, rows_of_steps
from fedtrees.blind_baselines.consensus import matched_consensus
from fedtrees.core.claims import BatchRows
from fedtrees.core.local_data import over_clients
from fedtrees.core.registry import register
from fedtrees.core.schema import Feature, Schema, Table
from fedtrees.core.specs import Spec, parse_composed
from fedtrees.core.streams import Streams
from fedtrees.experiments.evaluate import make_defense
from fedtrees.messages.networks import NetworkUpdate, NetworkWeights
from fedtrees.neural.encoding import Encoding
from fedtrees.neural.perceptron import Layers
from fedtrees.neural.training import initial
from fedtrees.protocols.training import train
from fedtrees.protocols.views import view_of

# The schema has twelve categories and one number, so a gradient determines a batch of four rows.
SCHEMA = Schema(
    (
        Feature("a", "categorical", categories=tuple("uvwxyz")),
        Feature("b", "categorical", categories=tuple("stuvwx")),
        Feature("c", low=-3, high=3),
    ),
    "y",
)


def mixed_batch(rows=4, seed=0):
    """Return the observed gradient of a batch of mixed columns, and its rows."""
    rng = np.random.default_rng(seed)
    encoding = Encoding.of(SCHEMA)
    layers = Layers((len(encoding), 30, 30, 2))
    weights = initial(layers, rng)
    X = np.column_stack([rng.integers(0, 6, (rows, 2)), rng.normal(size=rows)]).astype(np.float32)
    y = np.arange(rows) % 2
    return observe(layers, weights, encoding, encoding.bounds(SCHEMA), Table(X, y)), Table(X, y)


def observe(layers, weights, encoding, bounds, table):
    """Return the gradient of a table as an adversary observes it."""
    gradient = batch_gradient(layers, weights, encoding.encode(table.X), table.y)
    return BatchGradient(layers, encoding, bounds, weights, gradient, len(table))


def with_noise(batch, scale, seed=1):
    """Return a copy of a batch with Gaussian noise on every coordinate of its gradient."""
    noise = np.random.default_rng(seed).standard_normal(len(batch.gradient))
    return replace(batch, gradient=(batch.gradient + scale * noise).astype(np.float32))


@pytest.mark.parametrize("sizes", [(7, 6, 5, 3), (4, 9, 2), (3, 5, 5, 5, 2)], ids=str)
@pytest.mark.extra("torch")
def test_the_tangent_trick_computes_the_derivative_of_torch(sizes):
    import torch

    rng = np.random.default_rng(len(sizes))

    def random_layers():
        return [(rng.normal(size=(b, a)), rng.normal(size=b)) for a, b in pairwise(sizes)]

    network, target = random_layers(), random_layers()
    X, y = rng.normal(size=(3, 4, sizes[0])), rng.integers(0, sizes[-1], 4)
    loss, slope, _ = Matching(network, target)(
        X, np.broadcast_to(np.eye(sizes[-1])[y], (3, 4, sizes[-1]))
    )
    for sample in range(3):
        x = torch.tensor(X[sample], requires_grad=True)
        parameters = [
            torch.tensor(array, requires_grad=True) for layer in network for array in layer
        ]
        activations = x
        for k in range(0, len(parameters), 2):
            activations = torch.nn.functional.linear(activations, parameters[k], parameters[k + 1])
            activations = torch.relu(activations) if k < len(parameters) - 2 else activations
        mean_loss = torch.nn.functional.cross_entropy(activations, torch.tensor(y))
        gradients = torch.autograd.grad(mean_loss, parameters, create_graph=True)
        target_tensors = [torch.tensor(array) for layer in target for array in layer]
        dot = sum((a * b).sum() for a, b in zip(gradients, target_tensors, strict=True))
        norms = torch.sqrt(
            sum((a * a).sum() for a in gradients) * sum((a * a).sum() for a in target_tensors)
        )
        (exact,) = torch.autograd.grad(1 - dot / norms, x)
        assert loss[sample] == pytest.approx(float(1 - dot / norms), abs=1e-9)
        assert np.abs(slope[sample] - exact.numpy()).max() < 1e-6 * np.abs(exact.numpy()).max()


def test_small_batches_are_reconstructed_with_their_labels():
    accuracies = []
    for seed in range(4):
        batch, rows = mixed_batch(seed=seed)
        guess = invert(batch, np.random.default_rng(seed), restarts=6, steps=300)
        assert sorted(guess.table.y) == sorted(rows.y)
        accuracies.append(accuracy(guess.table.X, rows.X, batch.encoding))
    assert np.mean(accuracies) > 0.95


@pytest.mark.long
@pytest.mark.parametrize("missing", [False, True])
def test_algebra_reconstructs_every_value_of_a_row(missing):
    n_certain = 0
    for seed in range(5):
        batch, rows = mixed_batch(5, seed)
        X, y = rows.X.copy(), rows.y.copy()
        X[4], y[4] = X[3], y[3]
        X[0, 0] = np.nan if missing else X[0, 0]
        # The iterative search reconstructs nothing in one step.
        batch = replace(batch, gradient=batch.of(Table(X, y)))
        guess = invert(batch, np.random.default_rng(seed), restarts=1, steps=1)
        certain = np.flatnonzero(guess.confidence.min(axis=1) == 1)
        rows, truth = (
            np.nan_to_num(np.c_[t, z], nan=-1)
            for t, z in ((guess.table.X[certain], guess.table.y[certain]), (X, y))
        )
        is_equal = (np.abs(rows[:, None] - truth[None]) < 1e-3).all(axis=2)
        assert is_equal.any(axis=1).all()
        n_certain += len(certain)
    assert n_certain >= 20


def test_algebra_finds_no_rows_in_noisy_gradients_and_large_batches():
    rng = np.random.default_rng(0)
    assert not len(exact_rows(with_noise(mixed_batch(4)[0], 1e-3), rng))
    # With as many rows as dimensions every candidate row lies in the span.
    assert not len(exact_rows(mixed_batch(16)[0], rng))


def numeric_batch(rows, inputs, seed, units=40):
    """Return the observed gradient of a network with numeric inputs only, and its rows."""
    rng = np.random.default_rng(seed)
    encoding = Encoding.of(Schema(tuple(Feature(f"x{k}") for k in range(inputs)), "y"))
    layers = Layers((inputs, units, units, 2))
    weights = initial(layers, rng)
    bounds = (np.full(inputs, -9, np.float32), np.full(inputs, 9, np.float32))
    X, y = rng.normal(size=(rows, inputs)).astype(np.float32), np.arange(rows) % 2
    return observe(layers, weights, encoding, bounds, Table(X, y)), Table(X, y)


@pytest.mark.parametrize(("rows", "inputs"), [(3, 12), (12, 4), (24, 6)])
def test_hidden_units_reconstruct_batches_with_more_rows_than_inputs(rows, inputs):
    batch, truth = numeric_batch(rows, inputs, rows)
    guess = invert(batch, np.random.default_rng(0), restarts=1, steps=1)
    guess_order, truth_order = (
        np.lexsort(np.c_[t.X, t.y].T.round(2)) for t in (guess.table, truth)
    )
    np.testing.assert_allclose(guess.table.X[guess_order], truth.X[truth_order], atol=1e-3)
    assert guess.table.y[guess_order].tolist() == truth.y[truth_order].tolist()
    assert guess.confidence.min() == 1


@pytest.mark.parametrize("epochs", [1, 2])
def test_rows_of_local_steps_are_reconstructed_step_by_step(epochs):
    n_reconstructed = 0
    for seed in range(3):
        batch, rows = numeric_batch(12, 4, seed)
        local_steps = LocalSteps(4, epochs, 0.1)
        orders = local_steps.orders(12, np.random.default_rng(seed))
        update = local_steps.update(batch.layers, batch.weights, rows.X, rows.y, orders)
        reconstructed = rows_of_steps(
            replace(batch, gradient=update), local_steps, np.random.default_rng(0)
        )
        distance = np.abs(reconstructed.X[:, None] - rows.X[None]).max(axis=2)
        assert distance.min(axis=1).max(initial=0) < 1e-2
        assert np.array_equal(reconstructed.y, rows.y[distance.argmin(axis=1)])
        n_reconstructed += len(reconstructed)
    assert n_reconstructed >= 30


@pytest.mark.parametrize(
    ("change", "certain"), [("none", True), ("noise", False), ("label", False)]
)
def test_a_row_is_certain_only_if_removing_it_lowers_the_rank(change, certain):
    batch, _ = numeric_batch(12, 4, 1)
    if change == "noise":
        batch = with_noise(batch, 1e-3)
    # If the gradient is doubled, the labels do not fit, so no row is consistent.
    batch = replace(batch, gradient=batch.gradient * np.float32(2 if change == "label" else 1))
    assert bool(len(rows_by_units(batch, np.random.default_rng(0)))) == certain


def test_noise_is_estimated_from_the_second_layer_if_the_first_has_few_inputs():
    batch, _ = numeric_batch(12, 4, 1)
    assert batch.noise < 1e-6
    assert with_noise(batch, 0.01).noise == pytest.approx(0.01, rel=0.3)


def test_coordinates_that_were_not_sent_are_ignored():
    batch, rows = mixed_batch(seed=1)
    layers, weights, encoding, gradient = (
        batch.layers, batch.weights, batch.encoding, batch.gradient
    )  # fmt: skip
    sent = np.abs(gradient) >= np.quantile(np.abs(gradient), 0.8)
    sent_gradient = layers.split(np.where(sent, gradient, 0).astype(np.float64))
    network, sent_mask = layers.split(weights.astype(np.float64)), layers.split(sent.astype(float))
    matching, one_hot = Matching(network, sent_gradient, sent_mask), np.eye(2)[rows.y][None]
    inputs = encoding.encode(rows.X)[None].astype(np.float64)
    assert (
        matching(inputs, one_hot)[0]
        < 1e-9
        < 1e-3
        < Matching(network, sent_gradient)(inputs, one_hot)[0]
    )
    rng = np.random.default_rng(0)
    point, direction = inputs + 0.3 * rng.normal(size=inputs.shape), rng.normal(size=inputs.shape)
    losses = [matching(point + step * direction, one_hot)[0] for step in (1e-6, -1e-6)]
    slope = (matching(point, one_hot)[1] * direction).sum()
    np.testing.assert_allclose((losses[0] - losses[1]) / 2e-6, slope, rtol=1e-3)
    batch = replace(batch, gradient=np.where(sent, gradient, 0))
    guesses = [
        invert(replace(batch, shown=mask), np.random.default_rng(1), restarts=4, steps=200,
               exact=False)
        for mask in (None, sent)
    ]  # fmt: skip
    before, after = (accuracy(guess.table.X, rows.X, encoding) for guess in guesses)
    assert after == 1 > before


def test_restored_label_counts_sum_to_the_batch_size():
    assert restored_counts(np.array([-0.25, 0.25]), np.array([0.5, 0.5]), 8).tolist() == [6, 2]
    assert restored_counts(np.zeros(3), np.full(3, 1 / 3), 4).sum() == 4
    assert restored_counts(np.array([-0.9, 0.9]), np.array([0.4, 0.6]), 5).tolist() == [5, 0]


def test_the_output_bias_reveals_a_batch_of_one_class():
    batch, rows = mixed_batch()
    batch = replace(batch, gradient=batch.of(Table(rows.X, np.ones(4, np.int64))))
    guess = invert(batch, np.random.default_rng(0), restarts=2, steps=20)
    assert guess.table.y.tolist() == [1, 1, 1, 1]


@pytest.mark.parametrize("rows", [4, 40])
def test_noise_is_estimated_from_the_gradient(rows):
    batch, truth = mixed_batch(rows)
    X = truth.X.copy()
    X[:, 0] = np.minimum(X[:, 0], 4)  # No row has category 5.
    batch = replace(batch, gradient=batch.of(Table(X, truth.y)))
    assert batch.noise < 1e-6
    # The smallest estimate over many columns is used, so that a signal is not mistaken for noise.
    assert 0.004 < with_noise(batch, 0.01).noise < 0.013


@pytest.fixture(scope="module")
def train_network():
    clients, schema = sample_federation(rows=60)
    local_data = over_clients(clients)

    def run(defense, **params):
        protocol = register.make(
            "protocol", Spec("fedsgd-mlp", {"batch": 4, "rounds": 2, **params})
        )
        composition = make_defense(parse_composed([defense])[0])
        return train(protocol, local_data, schema, defense=composition, seed=2), local_data

    return run


def run_attack(run, local_data, principals, **params):
    attack = register.make("attack", Spec("tableak", {"restarts": 3, "steps": 120, **params}))
    return attack.run(view_of(run, principals, local_data), np.random.default_rng(0))


@pytest.mark.extra("torch")
def test_a_server_attacks_every_client_s_batch_and_a_client_attacks_the_sum_of_the_others(
    train_network,
):
    run, local_data = train_network("none")
    batches = run_attack(run, local_data, ("server",), batches=6).all(BatchRows)
    assert {(c.owner, c.round) for c in batches} == {((n,), r) for n in local_data for r in (0, 1)}
    (claim,) = run_attack(run, local_data, ("client-2",), batches=6).all(BatchRows)
    assert (claim.owner, claim.round, len(claim.table)) == (("client-0", "client-1"), 0, 8)


@pytest.mark.extra("torch")
def test_likely_rows_are_submitted_if_noise_dominates_the_gradient(train_network):
    without_noise, local_data = train_network("none")
    with_large_noise, _ = train_network("gradient-noise[scale=1.0]")
    assert "rehearsed_0" not in run_attack(without_noise, local_data, ("server",), batches=1).notes
    assert "rehearsed_0" in run_attack(with_large_noise, local_data, ("server",), batches=1).notes
    # An adversary with local rows draws from them at every noise level.
    guess = run_attack(with_large_noise, local_data, ("server", "client-0"), batches=2)
    assert "rehearsed_0" not in guess.notes
    local_X, (claim, _) = local_data["client-0"].X, guess.all(BatchRows)
    assert all(np.isin(claim.table.X[:, k], local_X[:, k]).all() for k in (3, 4))


def public_rows(n, rng):
    """Return rows with dependent columns: b mostly equals a, and c is close to a linear function
    of a.
    """
    a = rng.integers(0, 6, n)
    b = np.where(rng.random(n) < 0.8, a, rng.integers(0, 6, n))
    X = np.column_stack([a, b, a / 2 - 1.25 + 0.3 * rng.normal(size=n)])
    return Table(X.astype(np.float32), (a > 2).astype(np.int64))


def test_inner_products_of_whitened_gradients_are_computed_from_their_factors():
    batch, rows = mixed_batch(6)
    layers, weights, y, inputs = batch.layers, batch.weights, rows.y, batch.encoding.encode(rows.X)
    space = RowGradients.of(batch, rows)
    factors, inner, square = space(inputs, y)
    row_gradients = [
        layers.split(batch_gradient(layers, weights, x[None], y[[k]])) for k, x in enumerate(inputs)
    ]
    whitened = [
        [
            d.T @ np.column_stack(layer_gradient) @ a
            for layer_gradient, (a, d) in zip(gradient, space.factors, strict=False)
        ]
        for gradient in row_gradients
    ]
    products = sum((A @ A.T) * (D @ D.T) for A, D in factors)
    for i, gradient in enumerate(whitened):
        expected = [
            sum((left * right).sum() for left, right in zip(gradient, other, strict=True))
            for other in whitened
        ]
        np.testing.assert_allclose(products[i], expected, rtol=1e-3, atol=1e-3 * square[i])
    # The gradient of the batch is the sum of the gradients of its rows.
    np.testing.assert_allclose(inner, products.sum(axis=1), rtol=1e-3, atol=1e-3 * square.max())


@pytest.mark.long
def test_likely_rows_that_explain_a_gradient_are_closer_than_other_likely_rows():
    scores = []
    for seed in range(4):
        batch, _ = mixed_batch(seed=seed)
        encoding, rng = batch.encoding, np.random.default_rng(seed)
        public, truth = public_rows(400, rng), public_rows(12, rng)
        batch = replace(batch, gradient=batch.of(truth), rows=12)
        gradient_scale = float(np.sqrt((batch.gradient**2).mean()))
        blind_guess = matched_consensus(
            [public.take(rng.integers(0, 400, 12)) for _ in range(20)], accepted_errors(encoding)
        )
        accuracies = [accuracy(blind_guess.X, truth.X, encoding)]
        for scale in (0.1 * gradient_scale, 1e4 * gradient_scale):
            explained, confidence = explain_gradient(
                with_noise(batch, scale, seed), public, np.random.default_rng(seed)
            )
            assert confidence.shape == explained.X.shape
            assert 0 <= confidence.min() <= confidence.max() <= 1
            accuracies.append(accuracy(explained.X, truth.X, encoding))
        scores.append(accuracies)
    blind_score, explained_score, noise_score = np.mean(scores, axis=0)
    assert explained_score > blind_score + 0.1
    assert abs(noise_score - blind_score) < 0.15


def test_large_batches_are_drawn_from_the_posterior_if_likely_rows_are_known(monkeypatch):
    monkeypatch.setattr("fedtrees.attacks.gradients.posterior._SWEEPS", 10)
    batch, _ = mixed_batch()
    rng = np.random.default_rng(0)
    public, truth = public_rows(300, rng), public_rows(60, rng)
    large_batch = replace(batch, gradient=batch.of(truth), rows=60)
    guess = invert(large_batch, np.random.default_rng(0), likely=public)
    posterior_rows, _ = explain_gradient(large_batch, public, np.random.default_rng(0))
    assert np.array_equal(guess.table.X, posterior_rows.X)
    # For a small batch without noise the attack draws nothing, so likely rows change nothing.
    guesses = [
        invert(batch, np.random.default_rng(0), likely=rows, restarts=2, steps=20).table.X
        for rows in (None, public)
    ]
    assert np.array_equal(*guesses)


@pytest.mark.extra("torch")
@pytest.mark.extra("dp_accounting")
def test_under_poisson_sampling_the_largest_allowed_number_of_rows_is_submitted(train_network):
    run, local_data = train_network("dp-sgd[epsilon=0.5]")
    (claim,) = run_attack(run, local_data, ("server", "client-0"), batches=1).all(BatchRows)
    assert len(claim.table) == 4 + 8


@pytest.mark.extra("torch")
@pytest.mark.parametrize("principals", [("server",), ("server", "client-0")])
def test_the_consensus_of_samples_is_more_accurate_than_one_sample(train_network, principals):
    run, local_data = train_network("none")
    view, rng = view_of(run, principals, local_data), np.random.default_rng(0)
    encoding = encoding_of(view)
    truth = np.concatenate([local_data[n].X for n in ("client-1", "client-2")])
    scores = []
    for _ in range(20):
        batch = truth[rng.choice(len(truth), 8, replace=False)]
        guesses = (likely_rows(view, encoding, 8, rng, n) for n in (1, 20))
        scores.append([accuracy(guess.X, batch, encoding) for guess in guesses])
    one_sample, consensus = np.mean(scores, axis=0)
    assert consensus > one_sample + 0.03


@pytest.mark.extra("torch")
@pytest.mark.parametrize("defense", ["secure-sum", "masking", "paillier[bits=1024]"])
def test_summed_updates_are_inverted_as_sums_under_every_secure_aggregation(train_network, defense):
    run, local_data = train_network(defense, rounds=1)
    (claim,) = run_attack(run, local_data, ("server",)).all(BatchRows)
    assert (claim.owner, len(claim.table)) == (tuple(local_data), 12)


@pytest.mark.extra("torch")
def test_simulated_local_steps_equal_the_update_of_the_protocol():
    clients, schema = sample_federation(rows=60)
    local_data = over_clients(clients)
    params = {"batch": 4, "rounds": 1, "epochs": 2, "local_rows": 10, "lr": 0.3}
    protocol = register.make("protocol", Spec("fedavg-mlp", params))
    run = train(protocol, local_data, schema, seed=2)
    view = view_of(run, ("server",), local_data)
    local_steps, layers, encoding = local_steps_of(view), protocol.layers(schema), encoding_of(view)
    (start,) = (m.weights for _, m in view.messages(NetworkWeights))
    for item, message in view.messages(NetworkUpdate):
        table, streams = local_data[item.sender].table, Streams(2).child(item.sender)
        steps = protocol.batches(len(table), streams, 0, run.defense)
        assert len(steps) == local_steps.count(10) == 6
        update = local_steps.update(layers, start, encoding.encode(table.X), table.y, steps)
        np.testing.assert_allclose(update, message.update / 10, atol=1e-6)


@pytest.mark.parametrize(("batch", "epochs"), [(4, 5), (8, 3)])
def test_a_gradient_halfway_approximates_local_steps_better_than_one_at_the_start(batch, epochs):
    distances = []
    for seed in range(5):
        observed, rows = mixed_batch(8, seed)
        layers, weights, y = observed.layers, observed.weights, rows.y
        local_steps, inputs = LocalSteps(batch, epochs, 0.1), observed.encoding.encode(rows.X)
        steps = local_steps.orders(8, np.random.default_rng(seed))
        update = local_steps.update(layers, weights, inputs, y, steps)
        halfway_weights, gradient = local_steps.as_gradient(weights, update, 8)
        distances.append(
            [
                cosine_distance(layers, point, inputs, y, gradient)
                for point in (weights, halfway_weights)
            ]
        )
    at_start, halfway = np.mean(distances, axis=0)
    assert halfway < 0.7 * at_start


def cosine_distance(layers, weights, inputs, y, observed_gradient):
    """Return 1 - cos of the angle between the gradient of rows and an observed gradient."""
    gradient = batch_gradient(layers, weights, inputs, y)
    return 1 - gradient @ observed_gradient / np.linalg.norm(gradient) / np.linalg.norm(
        observed_gradient
    )


def test_an_update_of_one_step_is_its_gradient():
    batch, rows = mixed_batch(4)
    local_steps, inputs = LocalSteps(4, 1, 0.1), batch.encoding.encode(rows.X)
    update = local_steps.update(batch.layers, batch.weights, inputs, rows.y, [np.arange(4)])
    point, gradient = local_steps.as_gradient(batch.weights, update, 4)
    assert np.array_equal(point, batch.weights)
    np.testing.assert_allclose(gradient, batch.gradient, atol=1e-5)


@pytest.mark.extra("torch")
def test_the_attack_does_not_apply_to_updates_above_the_row_limit(train_network):
    run, local_data = train_network("none")
    attack = register.make("attack", Spec("tableak", {"max_rows": 3}))
    assert "4 rows or more" in str(attack.inapplicable(view_of(run, ("server",), local_data)))


@pytest.mark.extra("torch")
@pytest.mark.parametrize("name", ["tableak-published", "cosine", "dlg"])
def test_published_attacks_are_references_and_claim_rows(train_network, name):
    run, local_data = train_network("none")
    view, options = view_of(run, ("server",), local_data), {"batches": 1, "restarts": 2, "steps": 5}
    attack, default_attack = (
        register.make("attack", Spec(attack_name, options)) for attack_name in (name, "tableak")
    )
    assert attack.is_reference
    (claim,) = attack.run(view, np.random.default_rng(0)).all(BatchRows)
    (default_claim,) = default_attack.run(view, np.random.default_rng(0)).all(BatchRows)
    assert claim.table.X.shape == (4, 5)
    # The two attacks are different algorithms.
    assert not np.array_equal(claim.table.X, default_claim.table.X)


@pytest.fixture(scope="module")
def published():
    from fedtrees.benchmarks.papers.tableak import Reference

    folder = data_dir()
    path = folder.parent / "reference" / "tableak_adult.npz"
    if not path.is_file():
        pytest.skip("needs tableak_adult.npz beside the data files")
    return Reference(np.load(path), str(folder))


@pytest.mark.long
def test_batches_of_the_published_network_are_reconstructed(published):
    assert published.score_inversion(8, 0, true=False, steps=1)[0] > 99.9
    assert published.score_inversion(32, 3, true=False, steps=1)[0] > 99.9
    for size in (8, 32, 128):
        truth, _ = published.batch(size, 0)
        assert np.array_equal(truth.y, published.arrays[f"B{size}/labels"][0])


@pytest.mark.extra("torch")
def test_gradients_of_the_published_network_are_reproduced(published):
    from fedtrees.neural.training import mean_gradient

    for size in (8, 32, 128):
        truth, gradient = published.batch(size, 0)
        inputs = published.encoding.encode(truth.X)
        recomputed = mean_gradient(published.layers, published.weights, inputs, truth.y)
        # MKL sums in another order on other processors, which changes roundings.
        assert np.allclose(recomputed, gradient, rtol=0, atol=1e-7)


@pytest.mark.long
def test_the_attack_loads_no_torch():
    code = (
        "import sys; import fedtrees.attacks.gradients.attack; "
        "import fedtrees.protocols.networks.network_training; import fedtrees.defenses.dp_sgd; "
        "print('torch' in sys.modules or 'dp_accounting' in sys.modules)"
    )
    process = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, env=os.environ
    )
    assert process.stdout.strip() == "False"

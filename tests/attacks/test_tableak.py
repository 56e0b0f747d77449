"""`tableak`: the tangent trick, batches of the published network, views, noise, bad gradients."""

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

#: Twelve categories and a number: a batch of four is small for its gradient.
SCHEMA = Schema(
    (
        Feature("a", "categorical", categories=tuple("uvwxyz")),
        Feature("b", "categorical", categories=tuple("stuvwx")),
        Feature("c", low=-3, high=3),
    ),
    "y",
)


def problem(rows=4, seed=0):
    """Return an observed gradient, and its rows."""
    rng = np.random.default_rng(seed)
    encoding = Encoding.of(SCHEMA)
    layers = Layers((len(encoding), 30, 30, 2))
    weights = initial(layers, rng)
    X = np.column_stack([rng.integers(0, 6, (rows, 2)), rng.normal(size=rows)]).astype(np.float32)
    y = np.arange(rows) % 2
    return observe(layers, weights, encoding, encoding.bounds(SCHEMA), Table(X, y)), Table(X, y)


def observe(layers, weights, encoding, bounds, table):
    """Return the gradient of rows as an adversary observes it."""
    gradient = batch_gradient(layers, weights, encoding.encode(table.X), table.y)
    return BatchGradient(layers, encoding, bounds, weights, gradient, len(table))


def noisy(batch, scale, seed=1):
    """Return a gradient with Gaussian noise on every coordinate."""
    noise = np.random.default_rng(seed).standard_normal(len(batch.gradient))
    return replace(batch, gradient=(batch.gradient + scale * noise).astype(np.float32))


@pytest.mark.parametrize("sizes", [(7, 6, 5, 3), (4, 9, 2), (3, 5, 5, 5, 2)], ids=str)
@pytest.mark.extra("torch")
def test_the_tangent_trick_is_the_derivative_that_torch_finds(sizes):
    import torch

    rng = np.random.default_rng(len(sizes))

    def drawn():
        return [(rng.normal(size=(b, a)), rng.normal(size=b)) for a, b in pairwise(sizes)]

    network, target = drawn(), drawn()
    X, y = rng.normal(size=(3, 4, sizes[0])), rng.integers(0, sizes[-1], 4)
    loss, slope, _ = Matching(network, target)(
        X, np.broadcast_to(np.eye(sizes[-1])[y], (3, 4, sizes[-1]))
    )
    for r in range(3):
        x = torch.tensor(X[r], requires_grad=True)
        held = [torch.tensor(p, requires_grad=True) for layer in network for p in layer]
        A = x
        for k in range(0, len(held), 2):
            A = torch.nn.functional.linear(A, held[k], held[k + 1])
            A = torch.relu(A) if k < len(held) - 2 else A
        rows = torch.nn.functional.cross_entropy(A, torch.tensor(y))
        g = torch.autograd.grad(rows, held, create_graph=True)
        t = [torch.tensor(p) for layer in target for p in layer]
        inner = sum((a * b).sum() for a, b in zip(g, t, strict=True))
        size = torch.sqrt(sum((a * a).sum() for a in g) * sum((a * a).sum() for a in t))
        (exact,) = torch.autograd.grad(1 - inner / size, x)
        assert loss[r] == pytest.approx(float(1 - inner / size), abs=1e-9)
        assert np.abs(slope[r] - exact.numpy()).max() < 1e-6 * np.abs(exact.numpy()).max()


def test_small_batches_are_found_whole_and_labels_are_counted():
    found = []
    for seed in range(4):
        batch, rows = problem(seed=seed)
        got = invert(batch, np.random.default_rng(seed), restarts=6, steps=300)
        assert sorted(got.table.y) == sorted(rows.y)
        found.append(accuracy(got.table.X, rows.X, batch.encoding))
    assert np.mean(found) > 0.95


@pytest.mark.long
@pytest.mark.parametrize("missing", [False, True])
def test_rows_are_told_to_the_last_value_by_algebra(missing):
    told = 0
    for seed in range(5):
        batch, rows = problem(5, seed)
        X, y = rows.X.copy(), rows.y.copy()
        X[4], y[4] = X[3], y[3]
        X[0, 0] = np.nan if missing else X[0, 0]
        # a search of one step finds nothing
        batch = replace(batch, gradient=batch.of(Table(X, y)))
        got = invert(batch, np.random.default_rng(seed), restarts=1, steps=1)
        sure = np.flatnonzero(got.confidence.min(axis=1) == 1)
        rows, truth = (np.nan_to_num(np.c_[t, z], nan=-1) for t, z in (
            (got.table.X[sure], got.table.y[sure]), (X, y)))  # fmt: skip
        near = (np.abs(rows[:, None] - truth[None]) < 1e-3).all(axis=2)
        assert near.any(axis=1).all()
        told += len(sure)
    assert told >= 20


def test_what_no_algebra_tells_is_left_to_the_search():
    rng = np.random.default_rng(0)
    assert not len(exact_rows(noisy(problem(4)[0], 1e-3), rng))
    # as many rows as dimensions: every row lies in the span
    assert not len(exact_rows(problem(16)[0], rng))


def numeric(rows, inputs, seed, units=40):
    """Return an observed gradient of a network on numbers alone, and its rows."""
    rng = np.random.default_rng(seed)
    encoding = Encoding.of(Schema(tuple(Feature(f"x{k}") for k in range(inputs)), "y"))
    layers = Layers((inputs, units, units, 2))
    weights = initial(layers, rng)
    bounds = (np.full(inputs, -9, np.float32), np.full(inputs, 9, np.float32))
    X, y = rng.normal(size=(rows, inputs)).astype(np.float32), np.arange(rows) % 2
    return observe(layers, weights, encoding, bounds, Table(X, y)), Table(X, y)


@pytest.mark.parametrize(("rows", "inputs"), [(3, 12), (12, 4), (24, 6)])
def test_batches_of_more_rows_than_inputs_are_told_by_the_hidden_units(rows, inputs):
    batch, truth = numeric(rows, inputs, rows)
    got = invert(batch, np.random.default_rng(0), restarts=1, steps=1)
    a, b = (np.lexsort(np.c_[t.X, t.y].T.round(2)) for t in (got.table, truth))
    np.testing.assert_allclose(got.table.X[a], truth.X[b], atol=1e-3)
    assert got.table.y[a].tolist() == truth.y[b].tolist()
    assert got.confidence.min() == 1


@pytest.mark.parametrize("epochs", [1, 2])
def test_rows_of_local_steps_are_told_step_by_step(epochs):
    told = 0
    for seed in range(3):
        batch, rows = numeric(12, 4, seed)
        local = LocalSteps(4, epochs, 0.1)
        orders = local.orders(12, np.random.default_rng(seed))
        update = local.update(batch.layers, batch.weights, rows.X, rows.y, orders)
        found = rows_of_steps(replace(batch, gradient=update), local, np.random.default_rng(0))
        near = np.abs(found.X[:, None] - rows.X[None]).max(axis=2)
        assert near.min(axis=1).max(initial=0) < 1e-2
        assert np.array_equal(found.y, rows.y[near.argmin(axis=1)])
        told += len(found)
    assert told >= 30


@pytest.mark.parametrize(("change", "sure"), [("none", True), ("noise", False), ("label", False)])
def test_a_row_is_sure_only_if_it_takes_a_dimension_away(change, sure):
    batch, _ = numeric(12, 4, 1)
    if change == "noise":
        batch = noisy(batch, 1e-3)
    # of gradients that are twice as large, no row brings its own
    batch = replace(batch, gradient=batch.gradient * np.float32(2 if change == "label" else 1))
    assert bool(len(rows_by_units(batch, np.random.default_rng(0)))) == sure


def test_noise_is_measured_off_the_second_layer_where_the_first_has_few_inputs():
    batch, _ = numeric(12, 4, 1)
    assert batch.noise < 1e-6
    assert noisy(batch, 0.01).noise == pytest.approx(0.01, rel=0.3)


def test_what_was_not_sent_counts_for_nothing():
    batch, rows = problem(seed=1)
    layers, weights, encoding, gradient = (
        batch.layers, batch.weights, batch.encoding, batch.gradient
    )  # fmt: skip
    sent = np.abs(gradient) >= np.quantile(np.abs(gradient), 0.8)
    few = layers.split(np.where(sent, gradient, 0).astype(np.float64))
    network, shown = layers.split(weights.astype(np.float64)), layers.split(sent.astype(float))
    matching, Y = Matching(network, few, shown), np.eye(2)[rows.y][None]
    at = encoding.encode(rows.X)[None].astype(np.float64)
    assert matching(at, Y)[0] < 1e-9 < 1e-3 < Matching(network, few)(at, Y)[0]
    rng = np.random.default_rng(0)
    there, way = at + 0.3 * rng.normal(size=at.shape), rng.normal(size=at.shape)
    ends = [matching(there + s * way, Y)[0] for s in (1e-6, -1e-6)]
    told = (matching(there, Y)[1] * way).sum()
    np.testing.assert_allclose((ends[0] - ends[1]) / 2e-6, told, rtol=1e-3)
    batch = replace(batch, gradient=np.where(sent, gradient, 0))
    found = [
        invert(replace(batch, shown=mask), np.random.default_rng(1), restarts=4, steps=200,
               exact=False)
        for mask in (None, sent)
    ]  # fmt: skip
    before, after = (accuracy(f.table.X, rows.X, encoding) for f in found)
    assert after == 1 > before


def test_counts_of_labels_add_up():
    assert restored_counts(np.array([-0.25, 0.25]), np.array([0.5, 0.5]), 8).tolist() == [6, 2]
    assert restored_counts(np.zeros(3), np.full(3, 1 / 3), 4).sum() == 4
    assert restored_counts(np.array([-0.9, 0.9]), np.array([0.4, 0.6]), 5).tolist() == [5, 0]


def test_one_class_in_a_batch_is_told_by_the_output_bias():
    batch, rows = problem()
    batch = replace(batch, gradient=batch.of(Table(rows.X, np.ones(4, np.int64))))
    got = invert(batch, np.random.default_rng(0), restarts=2, steps=20)
    assert got.table.y.tolist() == [1, 1, 1, 1]


@pytest.mark.parametrize("rows", [4, 40])
def test_noise_is_measured_off_the_gradient(rows):
    batch, truth = problem(rows)
    X = truth.X.copy()
    X[:, 0] = np.minimum(X[:, 0], 4)  # one category that no row has
    batch = replace(batch, gradient=batch.of(Table(X, truth.y)))
    assert batch.noise < 1e-6
    # the least of many columns is taken: nothing is noise that a column could say
    assert 0.004 < noisy(batch, 0.01).noise < 0.013


@pytest.fixture(scope="module")
def trained():
    clients, schema = sample_federation(rows=60)
    held = over_clients(clients)

    def run(defense, **params):
        made = register.make("protocol", Spec("fedsgd-mlp", {"batch": 4, "rounds": 2, **params}))
        by = make_defense(parse_composed([defense])[0])
        return train(made, held, schema, defense=by, seed=2), held

    return run


def claims(run, held, who, **params):
    attack = register.make("attack", Spec("tableak", {"restarts": 3, "steps": 120, **params}))
    return attack.run(view_of(run, who, held), np.random.default_rng(0))


@pytest.mark.extra("torch")
def test_a_server_finds_every_client_s_batch_and_a_client_the_sum_of_the_others(trained):
    run, held = trained("none")
    found = claims(run, held, ("server",), batches=6).all(BatchRows)
    assert {(c.owner, c.round) for c in found} == {((n,), r) for n in held for r in (0, 1)}
    (only,) = claims(run, held, ("client-2",), batches=6).all(BatchRows)
    assert (only.owner, only.round, len(only.table)) == (("client-0", "client-1"), 0, 8)


@pytest.mark.extra("torch")
def test_where_noise_drowns_the_gradient_likely_rows_are_submitted(trained):
    quiet, held = trained("none")
    loud, _ = trained("gradient-noise[scale=1.0]")
    assert "rehearsed_0" not in claims(quiet, held, ("server",), batches=1).notes
    assert "rehearsed_0" in claims(loud, held, ("server",), batches=1).notes
    # who has rows draws them, whatever the noise
    guess = claims(loud, held, ("server", "client-0"), batches=2)
    assert "rehearsed_0" not in guess.notes
    own, (claim, _) = held["client-0"].X, guess.all(BatchRows)
    assert all(np.isin(claim.table.X[:, k], own[:, k]).all() for k in (3, 4))


def public_rows(n, rng):
    """Return rows whose columns go together: b is mostly a, and c about a."""
    a = rng.integers(0, 6, n)
    b = np.where(rng.random(n) < 0.8, a, rng.integers(0, 6, n))
    X = np.column_stack([a, b, a / 2 - 1.25 + 0.3 * rng.normal(size=n)])
    return Table(X.astype(np.float32), (a > 2).astype(np.int64))


def test_products_of_whitened_gradients_are_those_of_gradients():
    batch, rows = problem(6)
    layers, weights, y, inputs = batch.layers, batch.weights, rows.y, batch.encoding.encode(rows.X)
    space = RowGradients.of(batch, rows)
    parts, inner, square = space(inputs, y)
    each = [layers.split(batch_gradient(layers, weights, x[None], y[[k]]))
            for k, x in enumerate(inputs)]  # fmt: skip
    white = [[d.T @ np.column_stack(g) @ a for g, (a, d) in zip(one, space.factors, strict=False)]
             for one in each]  # fmt: skip
    met = sum((A @ A.T) * (D @ D.T) for A, D in parts)
    for i, one in enumerate(white):
        told = [sum((g * h).sum() for g, h in zip(one, two, strict=True)) for two in white]
        np.testing.assert_allclose(met[i], told, rtol=1e-3, atol=1e-3 * square[i])
    # the batch's own gradient is what its rows explain together
    np.testing.assert_allclose(inner, met.sum(axis=1), rtol=1e-3, atol=1e-3 * square.max())


@pytest.mark.long
def test_likely_rows_that_explain_a_gradient_are_nearer_than_likely_rows():
    scores = []
    for seed in range(4):
        batch, _ = problem(seed=seed)
        encoding, rng = batch.encoding, np.random.default_rng(seed)
        public, truth = public_rows(400, rng), public_rows(12, rng)
        batch = replace(batch, gradient=batch.of(truth), rows=12)
        size = float(np.sqrt((batch.gradient**2).mean()))
        drawn = matched_consensus([public.take(rng.integers(0, 400, 12)) for _ in range(20)],
                                  accepted_errors(encoding))  # fmt: skip
        found = [accuracy(drawn.X, truth.X, encoding)]
        for scale in (0.1 * size, 1e4 * size):
            told, sure = explain_gradient(
                noisy(batch, scale, seed), public, np.random.default_rng(seed)
            )
            assert sure.shape == told.X.shape
            assert 0 <= sure.min() <= sure.max() <= 1
            found.append(accuracy(told.X, truth.X, encoding))
        scores.append(found)
    blind, told, drowned = np.mean(scores, axis=0)
    assert told > blind + 0.1
    assert abs(drowned - blind) < 0.15


def test_more_rows_than_a_search_finds_are_drawn_by_who_has_likely_ones(monkeypatch):
    monkeypatch.setattr("fedtrees.attacks.gradients.posterior._SWEEPS", 10)
    batch, _ = problem()
    rng = np.random.default_rng(0)
    public, truth = public_rows(300, rng), public_rows(60, rng)
    many = replace(batch, gradient=batch.of(truth), rows=60)
    found = invert(many, np.random.default_rng(0), likely=public)
    alone, _ = explain_gradient(many, public, np.random.default_rng(0))
    assert np.array_equal(found.table.X, alone.X)
    # beside few rows without noise nothing is drawn: own rows change nothing
    same = [invert(batch, np.random.default_rng(0), likely=rows, restarts=2, steps=20).table.X
            for rows in (None, public)]  # fmt: skip
    assert np.array_equal(*same)


@pytest.mark.extra("torch")
@pytest.mark.extra("dp_accounting")
def test_where_rows_are_drawn_by_themselves_as_many_are_submitted_as_may_be(trained):
    run, held = trained("dp-sgd[epsilon=0.5]")
    (claim,) = claims(run, held, ("server", "client-0"), batches=1).all(BatchRows)
    assert len(claim.table) == 4 + 8


@pytest.mark.extra("torch")
@pytest.mark.parametrize("who", [("server",), ("server", "client-0")])
def test_what_most_samples_agree_on_is_likelier_than_a_sample(trained, who):
    run, held = trained("none")
    view, rng = view_of(run, who, held), np.random.default_rng(0)
    encoding = encoding_of(view)
    truth = np.concatenate([held[n].X for n in ("client-1", "client-2")])
    scores = []
    for _ in range(20):
        batch = truth[rng.choice(len(truth), 8, replace=False)]
        guesses = (likely_rows(view, encoding, 8, rng, n) for n in (1, 20))
        scores.append([accuracy(guess.X, batch, encoding) for guess in guesses])
    one, many = np.mean(scores, axis=0)
    assert many > one + 0.03


@pytest.mark.extra("torch")
@pytest.mark.parametrize("sends", ["secure-sum", "masking", "paillier[bits=1024]"])
def test_sums_of_updates_are_inverted_as_sums_whatever_hides_the_parts(trained, sends):
    run, held = trained(sends, rounds=1)
    (only,) = claims(run, held, ("server",)).all(BatchRows)
    assert (only.owner, len(only.table)) == (tuple(held), 12)


@pytest.mark.extra("torch")
def test_simulated_local_steps_are_the_protocol_s_own_update():
    clients, schema = sample_federation(rows=60)
    held = over_clients(clients)
    params = {"batch": 4, "rounds": 1, "epochs": 2, "local_rows": 10, "lr": 0.3}
    made = register.make("protocol", Spec("fedavg-mlp", params))
    run = train(made, held, schema, seed=2)
    view = view_of(run, ("server",), held)
    local, layers, encoding = local_steps_of(view), made.layers(schema), encoding_of(view)
    (start,) = (m.weights for _, m in view.messages(NetworkWeights))
    for item, message in view.messages(NetworkUpdate):
        table, streams = held[item.sender].table, Streams(2).child(item.sender)
        steps = made.batches(len(table), streams, 0, run.defense)
        assert len(steps) == local.count(10) == 6
        moved = local.update(layers, start, encoding.encode(table.X), table.y, steps)
        np.testing.assert_allclose(moved, message.update / 10, atol=1e-6)


@pytest.mark.parametrize(("batch", "epochs"), [(4, 5), (8, 3)])
def test_on_the_way_one_gradient_of_all_rows_says_what_local_steps_did(batch, epochs):
    apart = []
    for seed in range(5):
        observed, rows = problem(8, seed)
        layers, weights, y = observed.layers, observed.weights, rows.y
        local, inputs = LocalSteps(batch, epochs, 0.1), observed.encoding.encode(rows.X)
        steps = local.orders(8, np.random.default_rng(seed))
        moved = local.update(layers, weights, inputs, y, steps)
        half, told = local.as_gradient(weights, moved, 8)
        apart.append([off(layers, at, inputs, y, told) for at in (weights, half)])
    at_start, on_the_way = np.mean(apart, axis=0)
    assert on_the_way < 0.7 * at_start


def off(layers, weights, inputs, y, told):
    """Return 1 - cos of the gradient of rows and one that was told."""
    g = batch_gradient(layers, weights, inputs, y)
    return 1 - g @ told / np.linalg.norm(g) / np.linalg.norm(told)


def test_an_update_of_one_step_is_its_gradient():
    batch, rows = problem(4)
    local, inputs = LocalSteps(4, 1, 0.1), batch.encoding.encode(rows.X)
    moved = local.update(batch.layers, batch.weights, inputs, rows.y, [np.arange(4)])
    at, told = local.as_gradient(batch.weights, moved, 4)
    assert np.array_equal(at, batch.weights)
    np.testing.assert_allclose(told, batch.gradient, atol=1e-5)


@pytest.mark.extra("torch")
def test_updates_of_more_rows_than_wanted_are_left_alone(trained):
    run, held = trained("none")
    attack = register.make("attack", Spec("tableak", {"most": 3}))
    assert "4 rows or more" in str(attack.inapplicable(view_of(run, ("server",), held)))


@pytest.mark.extra("torch")
@pytest.mark.parametrize("name", ["tableak-published", "cosine", "dlg"])
def test_published_attacks_are_for_comparison_and_find_rows(trained, name):
    run, held = trained("none")
    view, few = view_of(run, ("server",), held), {"batches": 1, "restarts": 2, "steps": 5}
    attack, ours = (register.make("attack", Spec(each, few)) for each in (name, "tableak"))
    assert attack.is_reference
    (claim,) = attack.run(view, np.random.default_rng(0)).all(BatchRows)
    (other,) = ours.run(view, np.random.default_rng(0)).all(BatchRows)
    assert claim.table.X.shape == (4, 5)
    assert not np.array_equal(claim.table.X, other.table.X)  # it is another algorithm


@pytest.fixture(scope="module")
def published():
    from fedtrees.benchmarks.papers.tableak import Reference

    folder = data_dir()
    path = folder.parent / "reference" / "tableak_adult.npz"
    if not path.is_file():
        pytest.skip("needs tableak_adult.npz beside the data files")
    return Reference.of(path, str(folder))


@pytest.mark.long
def test_batches_of_the_published_network_are_found(published):
    assert published.score_inversion(8, 0, true=False, steps=1)[0] > 99.9
    assert published.score_inversion(32, 3, true=False, steps=1)[0] > 99.9
    for size in (8, 32, 128):
        truth, _ = published.batch(size, 0)
        assert np.array_equal(truth.y, published.arrays[f"B{size}/labels"][0])


@pytest.mark.extra("torch")
def test_gradients_of_the_published_network_are_found(published):
    from fedtrees.neural.training import mean_gradient

    for size in (8, 32, 128):
        truth, gradient = published.batch(size, 0)
        inputs = published.encoding.encode(truth.X)
        got = mean_gradient(published.layers, published.weights, inputs, truth.y)
        # MKL rounds sums in another order on other processors
        assert np.allclose(got, gradient, rtol=0, atol=1e-7)


@pytest.mark.long
def test_the_attack_loads_no_torch():
    code = (
        "import sys; import fedtrees.attacks.gradients.attack; "
        "import fedtrees.protocols.networks.network_training; import fedtrees.defenses.dp_sgd; "
        "print('torch' in sys.modules or 'dp_accounting' in sys.modules)"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, env=os.environ
    )
    assert done.stdout.strip() == "False"

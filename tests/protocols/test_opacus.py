"""`dp-sgd[engine=opacus]` compared with our gradients, clipping, noise, sampling and epsilons."""

import json
import sys

import numpy as np
import pytest
from federations import sample_federation
from scipy import stats
from shared_trees_world import tables
from typer.testing import CliRunner

from fedtrees.cli.main import app
from fedtrees.core.claims import BatchRows
from fedtrees.core.errors import UsageError
from fedtrees.core.guarantee import join, parse
from fedtrees.core.local_data import over_clients
from fedtrees.core.reasons import FITS
from fedtrees.core.registry import register
from fedtrees.core.schema import Table
from fedtrees.core.specs import Spec, parse_composed, parse_grid
from fedtrees.core.streams import Streams
from fedtrees.defenses import dp_sgd
from fedtrees.defenses.dp_sgd import DPSGD, clipped
from fedtrees.experiments.environment import check_extras
from fedtrees.experiments.epsilon_audit import measure
from fedtrees.experiments.evaluate import make_defense
from fedtrees.messages.networks import NetworkUpdate, NetworkWeights
from fedtrees.metrics.utility import utility_scores
from fedtrees.neural.opacus_engine import noisy_sum, per_sample_gradients, poisson_batch
from fedtrees.neural.perceptron import Layers, RatesNetwork
from fedtrees.neural.training import example_gradients, initial
from fedtrees.privacy.gaussian_dp import multiplier, opacus_epsilons, sampled_epsilon
from fedtrees.protocols.compatibility import KnownFacts, check_fit
from fedtrees.protocols.training import train
from fedtrees.protocols.tree_networks.fedxgbllr import FedXGBllr, opacus_gradients
from fedtrees.protocols.views import view_of

pytestmark = [
    pytest.mark.extra("opacus"),
    pytest.mark.extra("torch"),
    pytest.mark.extra("dp_accounting"),
]
CLIENTS, SCHEMA = sample_federation(rows=90)
HELD = over_clients(CLIENTS)
ENGINES = ("torch", "opacus")


def run(
    engine,
    name="fedsgd-mlp",
    seed=1,
    epsilon=2,
    local_data=HELD,
    schema=SCHEMA,
    more_options="",
    **params,
):
    params = {"batch": 4, "rounds": 2, "units": 8, **params}
    if name == "fedxgbllr":
        del params["units"]
    protocol = register.make("protocol", Spec(name, params))
    composition = make_defense(
        parse_composed([f"dp-sgd[epsilon={epsilon},engine={engine}{more_options}]"])[0]
    )
    return train(protocol, local_data, schema, defense=composition, seed=seed)


def updates(training):
    return [d for d in training.transcript if isinstance(d.message, NetworkUpdate)]


def rng(seed=0):
    return np.random.default_rng(seed)


def gradients(n=40, size=30, seed=0):
    return rng(seed).normal(size=(n, size)).astype(np.float32)


def test_per_example_gradients_of_the_perceptron_equal_torch_func():
    layers, generator = Layers((6, 5, 4, 3)), rng()
    flat, X = initial(layers, generator), generator.normal(size=(9, 6)).astype(np.float32)
    y = generator.integers(0, 3, 9)
    expected = example_gradients(layers, flat, X, y)
    from_opacus = example_gradients(layers, flat, X, y, "opacus")
    assert from_opacus.shape == (9, layers.parameters)
    np.testing.assert_allclose(from_opacus, expected, atol=1e-6)
    assert example_gradients(layers, flat, X[:0], y[:0], "opacus").shape == (0, layers.parameters)


def test_per_sample_gradients_of_any_module_equal_those_of_single_rows():
    import torch

    torch.manual_seed(0)
    module = torch.nn.Sequential(
        torch.nn.Conv1d(1, 3, 3), torch.nn.GroupNorm(1, 3), torch.nn.Tanh(), torch.nn.Flatten(),
        torch.nn.Linear(18, 4), torch.nn.ReLU(), torch.nn.Linear(4, 2),
    )  # fmt: skip
    module[0].bias.requires_grad = False
    module.eval()
    loss = torch.nn.CrossEntropyLoss(reduction="none")
    X, y = rng().normal(size=(5, 1, 8)).astype(np.float32), np.array([0, 1, 1, 0, 1])
    state_before = {name: value.clone() for name, value in module.state_dict().items()}
    gradients = per_sample_gradients(module, loss, X, y)
    parameters = [parameter for parameter in module.parameters() if parameter.requires_grad]
    for i, row in enumerate(gradients):
        loss_of_row = loss(module(torch.tensor(X[i : i + 1])), torch.tensor(y[i : i + 1])).sum()
        parts = torch.autograd.grad(loss_of_row, parameters)
        np.testing.assert_allclose(
            row, np.concatenate([parameter.ravel() for parameter in parts]), atol=1e-6
        )
    # The module of the caller is unchanged.
    assert all(
        torch.equal(value, state_before[name]) for name, value in module.state_dict().items()
    )
    assert not any(hasattr(parameter, "grad_sample") for parameter in module.parameters())
    assert not module.training


def test_a_layer_that_mixes_rows_is_refused():
    import torch

    module = torch.nn.Sequential(torch.nn.Linear(2, 2), torch.nn.BatchNorm1d(2))
    loss = torch.nn.CrossEntropyLoss(reduction="none")
    with pytest.raises(UsageError, match="GroupNorm instead of BatchNorm"):
        per_sample_gradients(module, loss, np.zeros((3, 2), np.float32), np.zeros(3, np.int64))


@pytest.mark.parametrize("numeric", [False, True])
def test_per_example_gradients_of_fedxgbllr_equal_our_own(numeric):
    network, generator = RatesNetwork(3, 4, 5), rng()
    flat, tree_values = (
        network.initial(generator),
        generator.standard_normal((6, 3, 4)).astype(np.float32),
    )
    y = generator.integers(0, 2, 6).astype(np.float32)
    margin = network.outputs(flat, tree_values) + 0.3
    slope = 2 * (margin - y) if numeric else 1 / (1 + np.exp(-margin)) - y
    expected = network.example_gradients(flat, tree_values, slope)
    np.testing.assert_allclose(
        opacus_gradients(network, flat, tree_values, y, 0.3, numeric), expected, atol=2e-6
    )


@pytest.mark.parametrize("clip", [0.5, 5.0, 100.0])
def test_clipped_sums_equal_our_own(clip):
    values = gradients()
    expected = clipped(values, clip).sum(axis=0)
    np.testing.assert_allclose(noisy_sum(values, clip, 0.0, rng()), expected, atol=2e-5)
    for row in values:  # Rows are clipped one by one, whether they are long or short.
        clipped_row = noisy_sum(row[None], clip, 0.0, rng())
        np.testing.assert_allclose(clipped_row, clipped(row[None], clip)[0], rtol=1e-6)
        assert np.linalg.norm(clipped_row.astype(np.float64)) <= clip


def test_rows_that_are_not_finite_count_as_zero_and_no_row_gives_noise_only():
    values = gradients(3)
    bad = np.concatenate([values, np.full((1, 30), np.nan), values * np.inf]).astype(np.float32)
    expected = noisy_sum(values, 1.0, 0.0, rng())
    assert np.array_equal(noisy_sum(bad, 1.0, 0.0, rng()), expected)
    huge = np.full((1, 30), 3e38, np.float32)  # its norm is beyond single precision
    assert np.array_equal(noisy_sum(huge, 1.0, 0.0, rng()), np.zeros(30))
    assert np.array_equal(noisy_sum(values[:0], 1.0, 0.0, rng()), np.zeros(30))


def test_noise_is_torchs_normal_of_the_seed_with_the_declared_scale():
    import torch

    values, scale = gradients(size=20_000), 3.5
    noise = noisy_sum(values, 2.0, scale, rng(5)) - noisy_sum(values, 2.0, 0.0, rng(5))
    seed = int(rng(5).integers(1 << 63, dtype=np.uint64))
    generator = torch.Generator().manual_seed(seed)
    expected_noise = torch.normal(0.0, scale, (20_000,), generator=generator).numpy()
    np.testing.assert_allclose(noise, expected_noise, atol=1e-5)
    # SciPy 1.18 raises TypeError if "norm" has arguments, so the noise is divided by its scale.
    assert stats.kstest(noise / scale, "norm").pvalue > 0.01
    p_value_of_wrong_scale = stats.kstest(noise / (1.05 * scale), "norm").pvalue
    assert p_value_of_wrong_scale < 1e-4  # The test detects a scale that is wrong by five percent.
    repeated_noise = noisy_sum(values, 2.0, scale, rng(5)) - noisy_sum(values, 2.0, 0.0, rng(5))
    assert np.array_equal(noise, repeated_noise)


def test_batches_are_poisson_samples():
    n, rate, draw = 400, 0.2, rng(3)
    batches = [poisson_batch(n, rate, draw) for _ in range(2_000)]
    sizes = np.array([len(b) for b in batches])
    # Sizes are binomial: mean and variance within four standard errors.
    assert abs(sizes.mean() - n * rate) < 4 * np.sqrt(n * rate * (1 - rate) / 2_000)
    assert abs(sizes.var() / (n * rate * (1 - rate)) - 1) < 4 * np.sqrt(2 / 2_000)
    counts = np.bincount(np.concatenate(batches), minlength=n)
    expected = 2_000 * rate
    assert stats.chi2.sf(((counts - expected) ** 2 / expected / (1 - rate)).sum(), n) > 0.01
    assert all((np.diff(b) > 0).all() for b in batches)
    assert np.array_equal(poisson_batch(5, 1.0, draw), np.arange(5))
    assert len(poisson_batch(0, 0.5, draw)) == 0


def test_epsilons_of_the_three_accountants_for_one_setting():
    delta, rate, steps = 1e-5, 0.1, 100
    noise = multiplier(1.0, delta, rate, steps)
    our_epsilon = sampled_epsilon([(1 / noise, rate, steps)], {}, delta)
    opacus_result = opacus_epsilons([(noise, rate, steps)], delta)
    assert (round(our_epsilon, 4), round(opacus_result.prv, 4), round(opacus_result.rdp, 4)) == (
        0.9993,
        1.0093,
        1.0999,
    )


@pytest.mark.parametrize(
    ("rate", "steps", "epsilon"), [(0.1, 20, 4.0), (1.0, 30, 2.0), (0.3, 1, 0.5)]
)
def test_our_accountant_is_the_tightest_and_calibrates_the_noise(rate, steps, epsilon):
    noise = multiplier(epsilon, 1e-5, rate, steps)
    our_epsilon = sampled_epsilon([(1 / noise, rate, steps)], {}, 1e-5)
    opacus_result = opacus_epsilons([(noise, rate, steps)], 1e-5)
    assert our_epsilon <= epsilon
    assert our_epsilon <= opacus_result.prv <= our_epsilon + 0.02
    assert opacus_result.prv < opacus_result.rdp


@pytest.mark.parametrize(
    ("name", "settings"),
    [("fedsgd-mlp", {}), ("fedavg-mlp", {}), ("fedxgbllr", {"trees": 2, "iterations": 2})],
)
def test_both_engines_spend_the_same_and_opacus_adds_its_two_epsilons(name, settings):
    if name != "fedxgbllr":
        settings = {**settings, "statistics": "public"}
    default_run, opacus_run = (
        run(engine, name, more_options=",clip=0.5", **settings) for engine in ENGINES
    )
    noises = [
        {
            (event.scale, event.rate, event.count, event.party)
            for event in training.transcript.events
        }
        for training in (default_run, opacus_run)
    ]
    assert noises[0] == noises[1] != set()
    default_spent, opacus_spent = default_run.spent[1], opacus_run.spent[1]
    key = "updates" if name == "fedxgbllr" else "epsilon"
    assert getattr(default_spent, key) == getattr(opacus_spent, key) == pytest.approx(2, rel=0.02)
    assert default_spent.prv == default_spent.rdp == 0
    assert getattr(opacus_spent, key) <= opacus_spent.prv <= getattr(opacus_spent, key) + 0.02
    assert opacus_spent.prv < opacus_spent.rdp
    (parsed,) = parse(join([opacus_spent]))
    assert (parsed.prv, parsed.rdp) == pytest.approx((opacus_spent.prv, opacus_spent.rdp), rel=1e-4)
    assert default_run.claims[1] == opacus_run.claims[1]


@pytest.mark.parametrize("name", ["fedsgd-mlp", "fedavg-mlp"])
def test_an_update_is_the_clipped_sum_over_the_rows_that_opacus_drew(name, monkeypatch):
    monkeypatch.setattr(dp_sgd, "multiplier", lambda *_: 1e-12)
    trained = (
        run("opacus", name, more_options=",clip=0.5", epochs=1)
        if name == "fedavg-mlp"
        else run("opacus", name, more_options=",clip=0.5")
    )
    protocol_object = trained.protocol
    (start,) = {
        delivery.message.weights.tobytes(): delivery.message.weights
        for delivery in trained.transcript
        if isinstance(delivery.message, NetworkWeights) and delivery.message.round == 0
    }.values()
    layers, encoding = protocol_object.layers(SCHEMA), trained.model.encoding
    sizes = set()
    for delivery in (delivery for delivery in updates(trained) if delivery.message.round == 0):
        table, streams = HELD[delivery.sender].table, Streams(1, "seed").child(delivery.sender)
        steps = protocol_object.batches(len(table), streams, 0, trained.defense)
        is_used = protocol_object.training_rows(len(table), streams, 0, trained.defense)
        assert np.array_equal(np.flatnonzero(is_used), np.unique(np.concatenate(steps)))
        weights = start
        for rows in steps:
            sizes.add(len(rows))
            row_gradients = example_gradients(
                layers, weights, encoding.encode(table.X[rows]), table.y[rows]
            )
            mean = clipped(row_gradients, 0.5).sum(axis=0) / 4
            weights = weights - protocol_object.lr * mean if name == "fedavg-mlp" else mean
        mean_update = delivery.message.update / delivery.message.rows[0]
        expected = weights - start if name == "fedavg-mlp" else weights
        np.testing.assert_allclose(mean_update, expected, atol=2e-6)
    assert len(sizes) > 1  # Poisson batches have different sizes


@pytest.mark.parametrize("name", ["fedsgd-mlp", "fedavg-mlp", "fedxgbllr"])
def test_every_step_of_a_client_is_computed_by_opacus(name, monkeypatch):
    from opacus import GradSampleModule
    from opacus.optimizers import DPOptimizer
    from opacus.utils.uniform_sampler import UniformWithReplacementSampler

    calls = {"gradients": 0, "sums": 0, "batches": 0}

    def count_calls(class_, method, key):
        original = getattr(class_, method)

        def call(self, *arguments, **keywords):
            calls[key] += 1
            return original(self, *arguments, **keywords)

        monkeypatch.setattr(class_, method, call)

    count_calls(GradSampleModule, "forward", "gradients")
    count_calls(DPOptimizer, "pre_step", "sums")
    count_calls(UniformWithReplacementSampler, "__iter__", "batches")
    monkeypatch.setattr(dp_sgd, "multiplier", lambda *_: 1.0)
    parameters = {"trees": 2, "iterations": 2} if name == "fedxgbllr" else {}
    run("torch", name, rounds=1, batch=8, **parameters)
    assert calls == {"gradients": 0, "sums": 0, "batches": 0}
    trained = run("opacus", name, rounds=1, batch=8, **parameters)
    steps = len(trained.transcript.events)
    assert calls["sums"] == calls["batches"] == steps >= 3
    assert steps - 1 <= calls["gradients"] <= steps  # an empty batch has no gradients


def test_a_declared_number_of_rows_sets_the_rate_of_opacus():
    trained = run("opacus", "fedavg-mlp", more_options=",declared_rows=40", statistics="public")
    assert {e.rate for e in trained.transcript.events} == {0.1}
    assert trained.spent[1].unprotected == ()
    n = 20_000
    rows = trained.protocol.batches(n, Streams(0), 0, trained.defense)[0]
    assert abs(len(rows) / n - 0.1) < 0.02


def test_a_seed_repeats_the_run_and_the_engines_draw_different_noise():
    first, repeated, torch_run = run("opacus"), run("opacus"), run("torch")
    assert np.array_equal(first.model.weights, repeated.model.weights)
    assert not np.array_equal(first.model.weights, torch_run.model.weights)


@pytest.mark.long
def test_networks_of_both_engines_are_equally_good_within_their_noise():
    client_tables, schema = sample_federation(rows=1_500)
    local_data, pooled = over_clients(client_tables), Table.concat(client_tables)
    aucs = {engine: [] for engine in ENGINES}
    for engine, auc_values in aucs.items():
        for seed in range(5):
            trained = run(
                engine,
                seed=seed,
                epsilon=8,
                local_data=local_data,
                schema=schema,
                batch=64,
                rounds=30,
                units=16,
                lr=0.5,
                statistics="public",
            )
            auc_values.append(utility_scores(pooled.y, trained.predict(pooled.X))["auc"])
    spread = np.sqrt(sum(np.var(auc_values, ddof=1) for auc_values in aucs.values()) / 5)
    means = [np.mean(auc_values) for auc_values in aucs.values()]
    assert min(means) > 0.7
    assert abs(means[0] - means[1]) < 3 * spread


@pytest.mark.parametrize("engine", ENGINES)
def test_gradient_attacks_work_with_both_engines(engine, monkeypatch):
    """With almost no noise, rows of a batch are reconstructed with either engine."""
    monkeypatch.setattr(dp_sgd, "multiplier", lambda *_: 1e-9)
    trained = run(engine, more_options=",clip=1000", rounds=1, units=30, batch=3)
    attack = register.make("attack", Spec("tableak", {"restarts": 3, "steps": 120, "batches": 3}))
    view = view_of(trained, ("server",), HELD)
    assert attack.inapplicable(view) is None
    claims = attack.run(view, rng()).all(BatchRows)
    assert claims
    hits = 0
    for claim in claims:
        (name,) = claim.owner
        streams = Streams(1, "seed").child(name)
        table = HELD[name].table
        rows = table.take(trained.protocol.training_rows(len(table), streams, 0, trained.defense))
        hits += sum(
            np.isclose(rows.X, guess, atol=0.05).all(axis=1).any() for guess in claim.table.X
        )
    assert hits >= 3


@pytest.mark.parametrize("parties", [("server",), ("client-0",), ("public",)])
def test_the_same_attacks_apply_to_both_engines(parties):
    views = [view_of(run(engine, rounds=1), parties, HELD) for engine in ENGINES]
    reasons = [
        [
            check_fit(attack=Spec(name), facts=KnownFacts(view=view)).code
            for name in register.names("attack")
        ]
        for view in views
    ]
    assert reasons[0] == reasons[1]
    assert (FITS.code in reasons[0]) == (parties == ("server",))


@pytest.mark.parametrize("protocol", ["fedsgd-mlp[rounds=20]", "fedavg-mlp[rounds=5]"])
def test_an_audit_detects_too_little_noise_of_opacus_and_accepts_a_correct_claim(
    protocol, monkeypatch
):
    protocol_object = register.make("protocol", parse_grid(protocol)[0])
    composition = make_defense(parse_composed(["dp-sgd[epsilon=1,engine=opacus]"])[0])
    monkeypatch.setattr(dp_sgd, "multiplier", lambda *_: 0.3)
    assert measure(protocol_object, composition).epsilon > 1
    monkeypatch.setattr(dp_sgd, "multiplier", lambda *_: 30.0)
    assert measure(protocol_object, composition).epsilon <= 1


def test_without_opacus_the_engine_is_refused_with_the_command_that_installs_it(monkeypatch):
    monkeypatch.setitem(sys.modules, "opacus", None)
    with pytest.raises(UsageError, match=r"engine=opacus needs opacus.*fedtrees\[neural\]"):
        run("opacus")
    assert DPSGD(epsilon=1.0).extra_packages == ("dp_accounting",)
    assert DPSGD(epsilon=1.0, engine="opacus").extra_packages == (
        "dp_accounting",
        "torch",
        "opacus",
    )
    monkeypatch.setattr(
        "fedtrees.experiments.environment.find_spec",
        lambda name: None if name == "opacus" else name,
    )
    (composed,) = parse_composed(["dp-sgd[epsilon=1,engine=opacus]"])
    with pytest.raises(UsageError, match=r"dp-sgd needs opacus, not installed: pip install"):
        check_extras(None, composed)
    check_extras(None, parse_composed(["dp-sgd[epsilon=1]"])[0])
    with pytest.raises(UsageError, match="unknown engine 'opcus'; did you mean 'opacus'"):
        DPSGD(epsilon=1.0, engine="opcus")


def test_a_benchmark_with_opacus_has_a_verdict(tmp_path):
    options = [
        "bench", "-p", "fedsgd-mlp[batch=8,rounds=5,units=8]", "--data", "breast-cancer[rows=150]",
        "-d", "dp-sgd[epsilon=4,engine=opacus]", "-a", "tableak[steps=20,restarts=1,batches=1]",
        "--threat", "server", "--seeds", "1", "-j", "1", "--output", str(tmp_path / "run"),
        "--format", "json",
    ]  # fmt: skip
    result = CliRunner().invoke(app, options)
    assert result.exit_code == 0, result.output
    output = json.loads(result.stdout)
    assert output["verdict"]
    contexts = (tmp_path / "run" / "contexts.csv").read_text()
    assert "prv=" in contexts
    assert "rdp=" in contexts


def test_fedxgbllr_trains_with_opacus():
    clients, schema = tables(3)
    protocol = FedXGBllr(trees=4, max_depth=2, rounds=2, iterations=3, batch=8, channels=5)
    composition = make_defense(parse_composed(["dp-sgd[epsilon=4,engine=opacus]"])[0])
    trained = train(protocol, over_clients(clients), schema, defense=composition, seed=1)
    assert np.isfinite(trained.predict(clients[0].X)).all()
    assert trained.spent[1].updates == pytest.approx(4, rel=0.02)

"""Audits of privacy claims detect two published flaws, and report no others."""

import math

import numpy as np
import pytest
from present import here

from fedtrees.benchmarks.papers.power import audit_mechanism
from fedtrees.conformance.samples import sample_training
from fedtrees.core.guarantee import ApproximateDP
from fedtrees.core.registry import register
from fedtrees.core.specs import parse_composed, parse_grid
from fedtrees.core.transcript import Transcript
from fedtrees.defenses import dp_sgd
from fedtrees.experiments.epsilon_audit import measure
from fedtrees.experiments.evaluate import make_defense
from fedtrees.messages.horizontal import Histogram
from fedtrees.neural.perceptron import Layers
from fedtrees.neural.training import example_gradients, initial
from fedtrees.privacy_audit.bounds import noise_found
from fedtrees.privacy_audit.histograms import _estimate_sums, channels_of_sums
from fedtrees.privacy_audit.networks import _slopes
from fedtrees.protocols.horizontal import dp_gbdt

WIDE = "dp-forest[epsilon=0.1,trees=1,depth=12{}]"
BOOSTED = "fedtree-hist[trees={},max_depth=1,max_bin=8,cuts=public,base_score=0.5]"


def measured_epsilon_of(protocol, defense="none", seed=0):
    protocol_object = register.make("protocol", parse_grid(protocol)[0])
    composition = make_defense(parse_composed([defense])[0])
    return measure(protocol_object, composition, seed=seed)


def test_one_run_distinguishes_truncated_noise_from_geometric_noise():
    for seed in range(1, 4):  # one bound in twenty may exceed the truth
        cut_off = measured_epsilon_of(WIDE.format(",mechanism=published"), seed=seed).epsilon
        assert 0.1 < cut_off <= 0.1 + math.log(2)
        assert measured_epsilon_of(WIDE.format(""), seed=seed).epsilon <= 0.1


def test_a_budget_per_histogram_exceeds_itself_per_record():
    boosted = BOOSTED.format(5)
    result = measured_epsilon_of(boosted, "laplace-hist[epsilon=1]")
    assert 1 < result.epsilon <= result.most
    assert measured_epsilon_of(boosted, "laplace-hist[epsilon=1,calibrated=true]").epsilon <= 1


def test_rows_that_are_counted_exactly_are_detected():
    assert measured_epsilon_of(BOOSTED.format(2), "laplace-gradient[epsilon=0.5]").epsilon > 0.5


@pytest.mark.parametrize("noise", ["central", "distributed"])
def test_gaussian_sums_of_leaves_are_measured_below_their_claim(noise):
    measured = measured_epsilon_of(f"dp-gbdt[epsilon=8,trees=20,noise={noise}]")
    assert 0.2 < measured.epsilon <= 8
    assert measured.delta == 1e-5


def test_too_little_noise_on_leaves_is_detected(monkeypatch):
    scales = dp_gbdt.leaf_scales
    monkeypatch.setattr(
        dp_gbdt,
        "leaf_scales",
        lambda norms, **options: tuple(scale / 64 for scale in scales(norms, **options)),
    )
    assert measured_epsilon_of("dp-gbdt[epsilon=0.5,trees=20]").epsilon > 0.5


def deviation_of_discrete_laplace(scale):
    """Return the standard deviation of integer-valued Laplace noise."""
    ratio = math.exp(-1 / scale)
    return math.sqrt(2 * ratio) / (1 - ratio)


#: Leaf counts of one tree at epsilon 1 get integer-valued noise of scale 1. At half of this scale
#: more draws are zero, so that the standard deviation falls to less than half: to 0.443 of it.
HALF_OF_COUNTS = deviation_of_discrete_laplace(0.5) / deviation_of_discrete_laplace(1.0)
NOISY = [("dp-gbdt[epsilon=1]", "none", 0.5), ("dp-forest[epsilon=1]", "none", HALF_OF_COUNTS),
         ("fedtree-hist", "laplace-hist[epsilon=1,calibrated=true]", 0.5)]  # fmt: skip


@pytest.mark.long
@pytest.mark.parametrize("protocol", ["dp-gbdt[epsilon=1,noise=distributed]",
                                      "dp-forest[epsilon=1,noise=distributed]"])  # fmt: skip
def test_shared_noise_is_compared_with_the_total_of_all_clients(protocol):
    """With two clients, of which one may be dishonest, a sum has twice the claimed variance."""
    assert audit_mechanism(
        protocol, "none", 1, seed=3, fewer=16
    ).outcome.noise.share == pytest.approx(1, abs=0.08)


@pytest.mark.long
@pytest.mark.parametrize(("protocol", "defense", "expected"), NOISY)
def test_half_the_noise_is_detected_in_defended_sums(protocol, defense, expected):
    honest, weakened = (
        audit_mechanism(protocol, defense, divisor, seed=3, fewer=16).outcome.noise
        for divisor in (1, 2)
    )
    assert not honest.too_little
    assert honest.share == pytest.approx(1, abs=0.08)
    assert weakened.too_little
    assert weakened.share == pytest.approx(expected, abs=0.06)


def test_few_sums_show_nothing():
    assert noise_found(np.zeros(0)) is None
    assert not noise_found(np.full(100, 0.1)).too_little
    assert noise_found(np.full(200, 0.1)).too_little


def test_dp_sgd_declares_that_rate_and_steps_reveal_the_number_of_rows():
    defense = dp_sgd.DPSGD(epsilon=2.0)
    assert defense.claim() == ApproximateDP(2.0, 1e-5, unprotected=("rows",))
    assert defense.spent(Transcript()).unprotected == ("rows",)


@pytest.mark.parametrize("protocol", ["fedsgd-mlp[rounds=20]", "fedavg-mlp[rounds=5]"])
@pytest.mark.extra("torch")
def test_too_little_noise_on_updates_is_detected(protocol, monkeypatch):
    monkeypatch.setattr(dp_sgd, "multiplier", lambda *_: 0.3)
    assert measured_epsilon_of(protocol, "dp-sgd[epsilon=1]").epsilon > 1
    # More noise than any of these protocols needs.
    monkeypatch.setattr(dp_sgd, "multiplier", lambda *_: 30.0)
    assert measured_epsilon_of(protocol, "dp-sgd[epsilon=1]").epsilon <= 1


@pytest.mark.extra("torch")
def test_a_slope_is_the_gradient_times_the_update():
    rng, layers = np.random.default_rng(0), Layers((6, 5, 4, 2))
    weights = initial(layers, rng)
    update = rng.normal(size=layers.parameters).astype(np.float32)
    X, y = rng.normal(size=(7, 6)).astype(np.float32), rng.integers(0, 2, 7)
    expected = example_gradients(layers, weights, X, y) @ update
    assert np.allclose(_slopes(layers, weights, update, X, y), expected, atol=1e-4)


@pytest.mark.parametrize("defense", here("defense", ["secure-sum", "masking", "paillier"]))
def test_sums_are_audited_without_their_cryptography(defense):
    noisy = "dp-forest[epsilon=10,depth=8,noise=distributed]"
    assert 2 < measured_epsilon_of(noisy, defense).epsilon <= 10


@pytest.mark.parametrize(
    ("protocol", "defense"),
    [
        ("dp-forest[epsilon=inf]", "none"),
        ("dp-gbdt[epsilon=inf]", "none"),
        ("fedtree-hist", "split-only"),
        ("fedtree-hist", "dp-grid-cuts[epsilon=1]"),
        ("forest-hist", "none"),
    ],
)
def test_nothing_is_looked_for_where_no_epsilon_is_claimed(protocol, defense):
    assert measured_epsilon_of(protocol, defense) is None


def test_rounded_or_suppressed_sums_have_less_weight_in_an_audit():
    composition = make_defense(parse_composed(["hist-rounding[step=0.1]+min-bin[k=6]"])[0])
    protocol = register.make(
        "protocol", parse_grid("fedtree-hist[trees=1,max_depth=1,max_bin=8]")[0]
    )
    run, _ = sample_training(protocol, composition)
    message = next(
        delivery.message for delivery in run.transcript if type(delivery.message) is Histogram
    )
    single_channel, joint_channel, row = channels_of_sums(run)
    _, variance = _estimate_sums(single_channel, message.sums[0], message.unit_of("sums")[0])
    is_sent = (message.sums[0] != 0).any(axis=1)
    assert 0 < is_sent.mean() < 1
    assert variance[is_sent] == pytest.approx(0.1**2 / 12)
    assert np.isinf(variance[~is_sent]).all()
    assert np.isinf(
        _estimate_sums(joint_channel, message.sums[0], message.unit_of("sums")[0])[1]
    ).all()
    assert row == 0


@pytest.mark.slow
@pytest.mark.parametrize(("protocol", "defense"), [one[:2] for one in NOISY])
def test_half_the_noise_is_detected_in_99_of_100_runs_and_full_noise_never(protocol, defense):
    """Run it with `pytest -m slow tests/bench/test_measured_epsilon.py`."""

    def too_little(divisor, seeds):
        return sum(
            audit_mechanism(protocol, defense, divisor, seed, 16).outcome.noise.too_little
            for seed in range(seeds)
        )

    assert too_little(2, 100) >= 99
    assert too_little(1, 200) == 0

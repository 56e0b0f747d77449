"""The audit of claims: it finds the two published flaws, and nothing that is not there."""

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


def found(protocol, defense="none", seed=0):
    made = register.make("protocol", parse_grid(protocol)[0])
    by = make_defense(parse_composed([defense])[0])
    return measure(made, by, seed=seed)


def test_one_run_tells_cut_off_noise_from_geometric():
    for seed in range(1, 4):  # one bound in twenty may exceed the truth
        cut_off = found(WIDE.format(",mechanism=published"), seed=seed).epsilon
        assert 0.1 < cut_off <= 0.1 + math.log(2)
        assert found(WIDE.format(""), seed=seed).epsilon <= 0.1


def test_a_budget_per_histogram_is_none_per_record():
    boosted = BOOSTED.format(5)
    shown = found(boosted, "laplace-hist[epsilon=1]")
    assert 1 < shown.epsilon <= shown.most
    assert found(boosted, "laplace-hist[epsilon=1,calibrated=true]").epsilon <= 1


def test_rows_that_are_counted_exactly_are_found():
    assert found(BOOSTED.format(2), "laplace-gradient[epsilon=0.5]").epsilon > 0.5


@pytest.mark.parametrize("noise", ["central", "distributed"])
def test_gaussian_sums_of_leaves_are_measured_below_their_claim(noise):
    measured = found(f"dp-gbdt[epsilon=8,trees=20,noise={noise}]")
    assert 0.2 < measured.epsilon <= 8
    assert measured.delta == 1e-5


def test_too_little_noise_on_leaves_is_found(monkeypatch):
    scales = dp_gbdt.leaf_scales
    monkeypatch.setattr(
        dp_gbdt, "leaf_scales", lambda norms, **of: tuple(s / 64 for s in scales(norms, **of))
    )
    assert found("dp-gbdt[epsilon=0.5,trees=20]").epsilon > 0.5


def whole_deviation(scale):
    """Return the standard deviation of whole-number Laplace noise."""
    ratio = math.exp(-1 / scale)
    return math.sqrt(2 * ratio) / (1 - ratio)


#: Leaf counts of one tree at epsilon 1 get whole-number noise of scale 1. At half of this scale
#: more draws are zero, so that the standard deviation falls to less than half: to 0.443 of it.
HALF_OF_COUNTS = whole_deviation(0.5) / whole_deviation(1.0)
NOISY = [("dp-gbdt[epsilon=1]", "none", 0.5), ("dp-forest[epsilon=1]", "none", HALF_OF_COUNTS),
         ("fedtree-hist", "laplace-hist[epsilon=1,calibrated=true]", 0.5)]  # fmt: skip


@pytest.mark.long
@pytest.mark.parametrize("protocol", ["dp-gbdt[epsilon=1,noise=distributed]",
                                      "dp-forest[epsilon=1,noise=distributed]"])  # fmt: skip
def test_shared_noise_is_compared_with_what_all_clients_add_together(protocol):
    """With two clients and one of them a possible insider, a sum has twice the claimed variance."""
    assert audit_mechanism(
        protocol, "none", 1, seed=3, fewer=16
    ).outcome.noise.share == pytest.approx(1, abs=0.08)


@pytest.mark.long
@pytest.mark.parametrize(("protocol", "defense", "expected"), NOISY)
def test_half_the_noise_is_found_in_what_is_left_of_sums(protocol, defense, expected):
    honest, half = (
        audit_mechanism(protocol, defense, k, seed=3, fewer=16).outcome.noise for k in (1, 2)
    )
    assert not honest.too_little
    assert honest.share == pytest.approx(1, abs=0.08)
    assert half.too_little
    assert half.share == pytest.approx(expected, abs=0.06)


def test_few_sums_show_nothing():
    assert noise_found(np.zeros(0)) is None
    assert not noise_found(np.full(100, 0.1)).too_little
    assert noise_found(np.full(200, 0.1)).too_little


def test_dp_sgd_says_that_its_rate_and_steps_tell_how_many_rows_there_are():
    made = dp_sgd.DPSGD(epsilon=2.0)
    assert made.claim() == ApproximateDP(2.0, 1e-5, unprotected=("rows",))
    assert made.spent(Transcript()).unprotected == ("rows",)


@pytest.mark.parametrize("protocol", ["fedsgd-mlp[rounds=20]", "fedavg-mlp[rounds=5]"])
@pytest.mark.extra("torch")
def test_too_little_noise_on_updates_is_found(protocol, monkeypatch):
    monkeypatch.setattr(dp_sgd, "multiplier", lambda *_: 0.3)
    assert found(protocol, "dp-sgd[epsilon=1]").epsilon > 1
    monkeypatch.setattr(dp_sgd, "multiplier", lambda *_: 30.0)  # more than any of these needs
    assert found(protocol, "dp-sgd[epsilon=1]").epsilon <= 1


@pytest.mark.extra("torch")
def test_a_slope_is_the_gradient_times_the_update():
    rng, layers = np.random.default_rng(0), Layers((6, 5, 4, 2))
    weights = initial(layers, rng)
    update = rng.normal(size=layers.parameters).astype(np.float32)
    X, y = rng.normal(size=(7, 6)).astype(np.float32), rng.integers(0, 2, 7)
    told = example_gradients(layers, weights, X, y) @ update
    assert np.allclose(_slopes(layers, weights, update, X, y), told, atol=1e-4)


@pytest.mark.parametrize("defense", here("defense", ["secure-sum", "masking", "paillier"]))
def test_sums_are_audited_without_their_cryptography(defense):
    noisy = "dp-forest[epsilon=10,depth=8,noise=distributed]"
    assert 2 < found(noisy, defense).epsilon <= 10


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
    assert found(protocol, defense) is None


def test_what_is_rounded_or_suppressed_weighs_less_in_an_audit():
    by = make_defense(parse_composed(["hist-rounding[step=0.1]+min-bin[k=6]"])[0])
    protocol = register.make(
        "protocol", parse_grid("fedtree-hist[trees=1,max_depth=1,max_bin=8]")[0]
    )
    run, _ = sample_training(protocol, by)
    message = next(d.message for d in run.transcript if type(d.message) is Histogram)
    alone, together, row = channels_of_sums(run)
    _, variance = _estimate_sums(alone, message.sums[0], message.unit_of("sums")[0])
    sent = (message.sums[0] != 0).any(axis=1)
    assert 0 < sent.mean() < 1
    assert variance[sent] == pytest.approx(0.1**2 / 12)
    assert np.isinf(variance[~sent]).all()
    assert np.isinf(_estimate_sums(together, message.sums[0], message.unit_of("sums")[0])[1]).all()
    assert row == 0


@pytest.mark.slow
@pytest.mark.parametrize(("protocol", "defense"), [one[:2] for one in NOISY])
def test_half_the_noise_is_found_99_times_of_100_and_all_of_it_never(protocol, defense):
    """`pytest -m slow tests/bench/test_measured_epsilon.py`."""

    def too_little(k, seeds):
        return sum(
            audit_mechanism(protocol, defense, k, s, 16).outcome.noise.too_little
            for s in range(seeds)
        )

    assert too_little(2, 100) >= 99
    assert too_little(1, 200) == 0

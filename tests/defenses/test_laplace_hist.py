import math

import numpy as np
import pytest
from federations import sample_federation
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from fedtrees.core.composition import Composition
from fedtrees.core.errors import UsageError
from fedtrees.core.guarantee import PureDP, Structural, join
from fedtrees.core.local_data import over_clients
from fedtrees.core.registry import register
from fedtrees.core.specs import Spec
from fedtrees.core.transcript import BudgetEvent
from fedtrees.messages.horizontal import Histogram
from fedtrees.privacy.accounting import compose_releases, histogram_sensitivity
from fedtrees.privacy.mechanisms import discrete_laplace
from fedtrees.protocols.training import train
from fedtrees.trees.boosted.histogram import FIXED_POINT_BITS
from fedtrees.trees.boosted.losses import LOGISTIC, clipped_bounds


def laplace(**params):
    return register.make("defense", Spec("laplace-hist", params))


def run(defense=None, **params):
    clients, schema = sample_federation()
    settings = {"trees": 3, "max_depth": 3, "max_bin": 16, **params}
    protocol = register.make("protocol", Spec("fedtree-hist", settings))
    parts = () if defense is None else (defense,)
    return train(protocol, over_clients(clients), schema, defense=Composition(parts), seed=1)


def test_claimed_and_spent_epsilon():
    defense = laplace(epsilon=4)
    training = run(defense, cuts="public", base_score=0.5)
    assert str(defense.claim()) == "pure-dp[epsilon=4,unit=histogram]"
    levels = sum(
        isinstance(delivery.message, Histogram) and delivery.sender == "client-0"
        for delivery in training.transcript
    )
    assert levels == 3 * 3
    # Each tree has 3 levels of 5 features with sensitivity 1 + 1/4, and one root total. The scale
    # is 2/4.
    expected = 3 * (3 * 5 + 1) * 1.25 / 0.5
    assert defense.spent(training.transcript).epsilon == pytest.approx(expected)


def test_a_calibrated_run_spends_what_it_claims():
    assert str(laplace(epsilon=2, calibrated=True).claim()) == "pure-dp[epsilon=2]"
    for epsilon in (2, 1e6):  # whether the noise stops the trees early or not
        defense = laplace(epsilon=epsilon, calibrated=True)
        training = run(defense, cuts="public", base_score=0.5)
        assert defense.spent(training.transcript).epsilon == pytest.approx(epsilon)


def test_exact_cut_points_and_base_score_cost_infinity():
    defense = laplace(epsilon=4)
    spent = defense.spent(run(defense).transcript)
    assert spent.epsilon == math.inf
    assert spent.unprotected == ("cuts", "base-score")
    assert spent.histograms == pytest.approx((9 * 5 + 3) * 1.25 / 0.5)
    assert "epsilon=inf" in str(spent)


def test_a_very_large_epsilon_changes_almost_nothing():
    noisy = run(laplace(epsilon=1e9))
    plain = run()
    for noisy_tree, plain_tree in zip(noisy.model.trees, plain.model.trees, strict=True):
        assert np.array_equal(noisy_tree.feature, plain_tree.feature)
        assert np.allclose(noisy_tree.value, plain_tree.value, atol=1e-5)


def test_noise_has_the_declared_scale_and_is_drawn_for_each_message():
    clients, schema = sample_federation()
    defense = laplace(epsilon=0.5)
    settings = Spec(
        "fedtree-hist", {"trees": 40, "max_depth": 1, "max_bin": 16, "learning_rate": 1e-9}
    )
    protocol = register.make("protocol", settings)
    noisy = train(protocol, over_clients(clients), schema, defense=Composition((defense,)), seed=2)
    plain = train(protocol, over_clients(clients), schema, seed=2)
    noises = [
        (noisy_delivery.message.sums - plain_delivery.message.sums) / 2.0**FIXED_POINT_BITS
        for noisy_delivery, plain_delivery in zip(noisy.transcript, plain.transcript, strict=True)
        if isinstance(noisy_delivery.message, Histogram) and noisy_delivery.message.tree == 0
    ]
    assert len({noise_of_message.tobytes() for noise_of_message in noises}) == len(noises) == 3
    noise = np.concatenate([noise_of_message.ravel() for noise_of_message in noises])
    scale = 2.0 / 0.5
    assert stats.kstest(noise / scale, "laplace").pvalue > 1e-3
    channel = defense.channels(schema, protocol.parameters)[Histogram, "sums"]
    declared = channel.posterior_moments(np.zeros(1))[1][0]
    assert declared == pytest.approx(2 * scale**2)


def test_a_tight_clip_changes_the_trees_and_the_sensitivity():
    tight = laplace(epsilon=1e9, clip=0.01)
    assert clipped_bounds(LOGISTIC, tight.clip) == (0.01, 0.02)
    assert clipped_bounds(LOGISTIC, 5.0) == (1.0, 0.25)
    values = [run(laplace(epsilon=1e9, clip=c)).model.trees[0].value for c in (0.01, 1.0)]
    assert np.abs(values[0]).max() < 0.5 * np.abs(values[1]).max()


@given(st.floats(0.5, 1e6), st.integers(0, 2**31))
def test_discrete_laplace_is_symmetric_integers_of_the_right_spread(scale, seed):
    draws = discrete_laplace(scale, 4000, np.random.default_rng(seed))
    assert draws.dtype == np.int64
    q = math.exp(-1.0 / scale)  # the difference of two geometric variates
    deviation = math.sqrt(2.0 * q) / -math.expm1(-1.0 / scale)
    assert abs(draws.mean()) < 6 * deviation / math.sqrt(4000)
    # the fourth moment of a Laplace is 24 b^4: the spread of the sample variance follows
    assert abs(draws.var() / deviation**2 - 1) < 6 * math.sqrt(6 / 4000)


def test_noise_may_be_as_large_as_sums_can_represent():
    draws = discrete_laplace(2.0**46, 100_000, np.random.default_rng(0))
    assert np.abs(draws.astype(float)).std() / 2.0**46 == pytest.approx(1, abs=0.02)
    assert np.abs(draws).max() < 2**52


def test_discrete_laplace_has_exactly_the_promised_ratio():
    draws = discrete_laplace(1.0, 400_000, np.random.default_rng(0))
    for value in range(4):
        count, next_count = (draws == value).sum(), (draws == value + 1).sum()
        low = stats.beta.ppf(5e-5, count, next_count + 1)
        high = stats.beta.ppf(1 - 5e-5, count + 1, next_count)
        assert low < math.e / (1 + math.e) < high


@pytest.mark.parametrize("scale", [0, -1, float("nan"), float("inf"), 2.0**47])
def test_a_scale_out_of_range_is_refused(scale):
    with pytest.raises(UsageError, match="noise scale"):
        discrete_laplace(scale, 3, np.random.default_rng(0))


@given(
    st.lists(st.tuples(st.sampled_from("ab"), st.floats(0.01, 10), st.floats(0.01, 10)), min_size=1)
)
def test_composition_is_monotone_and_order_free(releases):
    events = [BudgetEvent(p, "laplace", l1, s, "Histogram") for p, l1, s in releases]
    total = compose_releases(events)
    assert total == pytest.approx(compose_releases(events[::-1]))
    assert compose_releases(events[:-1]) <= total + 1e-12
    unknown = [*events, BudgetEvent("a", "salt", 1.0, 1.0, "Histogram")]
    assert compose_releases(unknown) == math.inf


def test_parties_compose_in_parallel():
    events = [BudgetEvent(p, "laplace", 1.0, 2.0, "h") for p in ("a", "b", "b")]
    assert compose_releases(events) == 1.0
    assert histogram_sensitivity(10, 1.0, 0.25) == 12.5


def test_guarantees_are_written_in_the_grammar_of_specs():
    assert join([Structural(), PureDP(4.0)]) == "structural+pure-dp[epsilon=4]"
    assert join([]) == "none"
    with pytest.raises(UsageError, match="epsilon must be >= 0"):
        PureDP(-1.0)

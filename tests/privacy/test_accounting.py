"""The accountant: against sums over all outcomes, closed forms, and dp-accounting if there."""

import math
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.special import expit

from fedtrees.core.errors import UsageError
from fedtrees.core.transcript import BudgetEvent
from fedtrees.privacy import accounting
from fedtrees.privacy.accounting import compose_releases
from fedtrees.privacy.gaussian_dp import delta_of, least_epsilon, mu_of, tail
from fedtrees.privacy.mechanisms import noise_log_pmf


def epsilon_of(mu, delta):
    """Return the least epsilon, in nats, at which mu-GDP is (epsilon, delta)-DP; rounded up."""
    return least_epsilon(lambda e: float(delta_of(e, mu)), delta, tail(mu, delta))


def released(mechanism, scale=2.0, **more):
    return BudgetEvent("server", mechanism, 1.0, scale, "counts", **more)


def exact_epsilon(losses, chances, delta):
    """Return the epsilon at which all that can be lost leaves a delta, by bisection."""
    low, high = 0.0, float(losses.max())
    for _ in range(60):
        middle = (low + high) / 2
        left = chances @ -np.expm1(np.minimum(middle - losses, 0.0))
        low, high = (low, middle) if left <= delta else (middle, high)
    return high


def discrete_gaussian_losses(scale, moved, reach=12):
    """Return the losses of a vector that a row moves by whole numbers, and their chances.

    They are ``(2 S + |v|^2) / (2 scale^2)`` for S the sum of ``v_i`` times the i-th noise.
    """
    k = np.arange(-math.ceil(reach * scale), math.ceil(reach * scale) + 1)
    one = np.exp(-(k**2) / (2 * scale**2))
    sums, end = np.ones(1), 0
    for v in moved:
        spread = np.zeros(v * (len(k) - 1) + 1)
        spread[::v] = one / one.sum()
        sums, end = np.convolve(sums, spread), end + v * k[-1]
    S = np.arange(-end, end + 1)
    return (2 * S + sum(v**2 for v in moved)) / (2 * scale**2), sums


@settings(max_examples=40)
@given(
    st.floats(8, 14),
    st.lists(st.integers(1, 9), min_size=1, max_size=4),
    st.sampled_from([1e-3, 1e-5, 1e-8]),
)
def test_discrete_gaussian_noise_costs_no_less_than_it_does(scale, moved, delta):
    exact = exact_epsilon(*discrete_gaussian_losses(scale, moved), delta)
    event = released("discrete-gaussian", scale, l2=math.sqrt(sum(v**2 for v in moved)))
    assert exact <= compose_releases([event], delta) <= 1.05 * exact + 1e-6


def test_narrow_discrete_noise_is_not_known():
    assert compose_releases([released("discrete-gaussian", 7.9, l2=1.0)], 1e-5) == math.inf
    assert compose_releases([released("discrete-gaussian", 8.0, l2=1.0)], 1e-5) < 1


def test_gaussian_noise_composes_exactly():
    mu, epsilon = 0.7, np.array([0.0, 0.5, 2.0])
    x = np.linspace(-12, 12, 200_001)  # of the likelier release; the other lies mu lower
    loss = mu * x - mu**2 / 2
    p = np.exp(-((x - mu) ** 2) / 2) / math.sqrt(2 * math.pi) * (x[1] - x[0])
    summed = [(p * -np.expm1(np.minimum(e - loss, 0))).sum() for e in epsilon]
    assert delta_of(epsilon, mu) == pytest.approx(summed, rel=1e-6)
    many = [released("gaussian", 30.0, l2=3.0, count=40), released("gaussian", 5.0, l2=1.5)]
    assert compose_releases(many, 1e-5) == pytest.approx(epsilon_of(math.sqrt(0.4 + 0.09), 1e-5))
    assert compose_releases(many) == math.inf


@given(st.floats(1e-4, 1e4), st.floats(1e-12, 0.3))
def test_as_much_noise_as_a_budget_needs(epsilon, delta):
    mu = mu_of(epsilon, delta)
    assert epsilon * (1 - 1e-5) - 1e-6 <= epsilon_of(mu, delta) <= epsilon


@given(
    st.sampled_from(["laplace", "geometric", "truncated-laplace", "exponential"]),
    st.floats(0.3, 30),
    st.integers(1, 40),
    st.floats(1e-9, 0.1),
)
def test_delta_buys_epsilon_and_releases_add_up(mechanism, scale, count, delta):
    events = [released(mechanism, scale, count=count)]
    one, pure = compose_releases(events, delta), compose_releases(events)
    assert 0 <= one <= pure * (1 + 1e-9)
    slack = 1 - 1e-9
    assert one * slack <= compose_releases(events * 2, delta) <= 2 * pure * (1 + 1e-9)
    assert compose_releases(events, delta / 10) >= one * slack
    assert (
        compose_releases([*events, BudgetEvent("b", mechanism, 1.0, scale, "", count)], delta)
        == one
    )
    noisy = [*events, released("gaussian", scale, l2=1.0)]
    assert (
        one * slack <= compose_releases(noisy, delta) <= pure + epsilon_of(1 / scale, delta) + 1e-9
    )
    assert compose_releases([*events, released("salt")], delta) == math.inf


def test_cut_off_noise_costs_no_less_than_it_loses():
    k = np.arange(-300, 301)
    P, Q = (noise_log_pmf("published", 0.5, k - s) for s in (0, 1))
    once = compose_releases([released("truncated-laplace")])
    assert once == pytest.approx(max(abs(P - Q)))
    assert compose_releases([released("truncated-laplace", count=10)]) == pytest.approx(10 * once)
    for p, q in ((P, Q), (Q, P)):
        exact = exact_epsilon(p - q, np.exp(p), 0.01)
        assert exact <= compose_releases([released("truncated-laplace")], 0.01)


def test_two_randomness_compose_as_all_their_outcomes():
    e, f, delta = 0.8, 0.3, 0.02
    signs = [(1, 1), (1, -1), (-1, 1), (-1, -1)]
    losses = np.array([a * e + b * f for a, b in signs])
    chances = np.array([expit(a * e) * expit(b * f) for a, b in signs])
    events = [released("laplace", 1 / e), released("exponential", 1 / f)]
    assert compose_releases(events, delta) == pytest.approx(exact_epsilon(losses, chances, delta))


def test_very_many_releases_are_rounded_up():
    few = [released("laplace", 1000.0 + i, count=400) for i in range(2)]
    many = [released("laplace", 1000.0 + i, count=40_000) for i in range(2)]
    mu = math.sqrt(800) / 1000  # about what they are together
    assert epsilon_of(mu, 1e-5) == pytest.approx(compose_releases(few, 1e-5), rel=0.02)
    assert (
        epsilon_of(10 * mu, 1e-5) <= compose_releases(many, 1e-5) <= 1.1 * epsilon_of(10 * mu, 1e-5)
    )


def test_a_delta_that_is_none_is_refused():
    with pytest.raises(UsageError, match="delta must be a number between 0 and 1; got 1"):
        compose_releases([released("laplace")], 1)


def random_events(rng):
    """Return releases of all kinds, some of them under Gaussian noise."""
    pure = [
        released(str(rng.choice(["laplace", "geometric", "exponential"])),
                 float(1 / rng.uniform(0.02, 0.5)), count=int(rng.integers(1, 8)))
        for _ in range(rng.integers(0, 3))
    ]  # fmt: skip
    l2, scale = float(rng.uniform(0.5, 3)), float(rng.uniform(9, 60))
    mechanism = str(rng.choice(["gaussian", "discrete-gaussian"]))
    return [*pure, released(mechanism, scale, l2=l2, count=int(rng.integers(1, 200)))]


@pytest.mark.extra("dp_accounting")
def test_the_accountant_equals_dp_accounting():
    from dp_accounting.pld import privacy_loss_distribution as losses

    rng = np.random.default_rng(0)
    for _ in range(20):
        events, delta = random_events(rng), float(10 ** rng.uniform(-8, -3))
        total = losses.identity()
        for e in events:
            if e.mechanism in ("gaussian", "discrete-gaussian"):
                # all at once: rounding adds up
                one = losses.from_gaussian_mechanism(e.scale, sensitivity=e.l2 * math.sqrt(e.count))
            else:
                bound = losses.common.DifferentialPrivacyParameters(e.l1 / e.scale)
                one = losses.from_privacy_parameters(bound).self_compose(e.count)
            total = total.compose(one)
        theirs = total.get_epsilon_for_delta(delta)
        slack = 1.05 if any(e.mechanism == "discrete-gaussian" for e in events) else 1.0
        assert theirs * (1 - 1e-3) <= compose_releases(events, delta) <= theirs * slack + 1e-3


@pytest.mark.extra("dp_accounting")
def test_rows_that_are_drawn_cost_less():
    from fedtrees.privacy.gaussian_dp import multiplier

    scale = multiplier(2.0, 1e-5, 0.1, 20)
    events = [released("gaussian", 3 * scale, l2=3.0, rate=0.1) for _ in range(20)]
    assert compose_releases(events, 1e-5) == pytest.approx(2.0, rel=2e-3)
    assert compose_releases(events, 1e-5) <= 2.0
    all_rows = [released("gaussian", 3 * scale, l2=3.0, count=20)]
    assert compose_releases(all_rows, 1e-5) > 2 * compose_releases(events, 1e-5)
    assert compose_releases([*events, released("laplace", 4.0)], 1e-5) == pytest.approx(
        2.2, abs=0.2
    )
    with pytest.raises(UsageError, match="give a larger epsilon or delta"):
        multiplier(1e-9, 1e-12, 0.9, 10)


def test_drawn_rows_say_what_they_need():
    try:
        import dp_accounting  # noqa: F401
    except ImportError:
        with pytest.raises(UsageError, match=r"pip install 'fedtrees\[neural\]'"):
            compose_releases([released("gaussian", l2=1.0, rate=0.5)], 1e-5)


def test_equal_releases_of_several_parties_are_composed_once(monkeypatch):
    """Every attack on a training states its epsilon, and one composition can take a second."""
    searches = []

    def counting(left, delta, high):
        searches.append(delta)
        return least_epsilon(left, delta, high)

    monkeypatch.setattr(accounting, "least_epsilon", counting)
    accounting._of_party.cache_clear()
    one = [released("gaussian", count=3, l2=0.7), released("laplace", count=2)]
    parties = [replace(e, party=party) for party in ("client-0", "client-1") for e in one]
    first, again = compose_releases(parties, 1e-5), compose_releases(parties, 1e-5)
    assert len(searches) == 1
    assert first == again == compose_releases(one, 1e-5)
    compose_releases([*parties, released("laplace")], 1e-5)
    assert len(searches) == 2

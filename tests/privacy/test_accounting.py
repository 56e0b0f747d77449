"""The accountant is compared with sums over all outcomes, closed forms, and dp-accounting if
installed.
"""

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


def smallest_epsilon(mu, delta):
    """Return the smallest epsilon, in nats, at which mu-GDP is (epsilon, delta)-DP, rounded up."""
    return least_epsilon(lambda e: float(delta_of(e, mu)), delta, tail(mu, delta))


def release_event(mechanism, scale=2.0, **fields):
    return BudgetEvent("server", mechanism, 1.0, scale, "counts", **fields)


def exact_epsilon(losses, chances, delta):
    """Return the epsilon at which the losses leave a probability of delta, by bisection."""
    low, high = 0.0, float(losses.max())
    for _ in range(60):
        middle = (low + high) / 2
        remaining_delta = chances @ -np.expm1(np.minimum(middle - losses, 0.0))
        low, high = (low, middle) if remaining_delta <= delta else (middle, high)
    return high


def discrete_gaussian_losses(scale, changes, reach=12):
    """Return the losses of a vector that a row changes by integers, and their probabilities.

    The losses are ``(2 S + |v|^2) / (2 scale^2)``, where S is the sum of ``v_i`` times the i-th
    noise.
    """
    k = np.arange(-math.ceil(reach * scale), math.ceil(reach * scale) + 1)
    one_noise = np.exp(-(k**2) / (2 * scale**2))
    sums, end = np.ones(1), 0
    for change in changes:
        spread = np.zeros(change * (len(k) - 1) + 1)
        spread[::change] = one_noise / one_noise.sum()
        sums, end = np.convolve(sums, spread), end + change * k[-1]
    S = np.arange(-end, end + 1)
    return (2 * S + sum(change**2 for change in changes)) / (2 * scale**2), sums


@settings(max_examples=40)
@given(
    st.floats(8, 14),
    st.lists(st.integers(1, 9), min_size=1, max_size=4),
    st.sampled_from([1e-3, 1e-5, 1e-8]),
)
def test_the_epsilon_of_discrete_gaussian_noise_is_an_upper_bound(scale, changes, delta):
    exact = exact_epsilon(*discrete_gaussian_losses(scale, changes), delta)
    event = release_event(
        "discrete-gaussian", scale, l2=math.sqrt(sum(change**2 for change in changes))
    )
    assert exact <= compose_releases([event], delta) <= 1.05 * exact + 1e-6


def test_narrow_discrete_noise_is_not_known():
    assert compose_releases([release_event("discrete-gaussian", 7.9, l2=1.0)], 1e-5) == math.inf
    assert compose_releases([release_event("discrete-gaussian", 8.0, l2=1.0)], 1e-5) < 1


def test_gaussian_noise_composes_exactly():
    mu, epsilon = 0.7, np.array([0.0, 0.5, 2.0])
    # Values of the more likely release. The other distribution lies mu lower.
    x = np.linspace(-12, 12, 200_001)
    loss = mu * x - mu**2 / 2
    p = np.exp(-((x - mu) ** 2) / 2) / math.sqrt(2 * math.pi) * (x[1] - x[0])
    summed = [
        (p * -np.expm1(np.minimum(epsilon_value - loss, 0))).sum() for epsilon_value in epsilon
    ]
    assert delta_of(epsilon, mu) == pytest.approx(summed, rel=1e-6)
    releases = [
        release_event("gaussian", 30.0, l2=3.0, count=40),
        release_event("gaussian", 5.0, l2=1.5),
    ]
    assert compose_releases(releases, 1e-5) == pytest.approx(
        smallest_epsilon(math.sqrt(0.4 + 0.09), 1e-5)
    )
    assert compose_releases(releases) == math.inf


@given(st.floats(1e-4, 1e4), st.floats(1e-12, 0.3))
def test_mu_of_inverts_the_epsilon_of_gaussian_noise(epsilon, delta):
    mu = mu_of(epsilon, delta)
    assert epsilon * (1 - 1e-5) - 1e-6 <= smallest_epsilon(mu, delta) <= epsilon


@given(
    st.sampled_from(["laplace", "geometric", "truncated-laplace", "exponential"]),
    st.floats(0.3, 30),
    st.integers(1, 40),
    st.floats(1e-9, 0.1),
)
def test_a_delta_lowers_epsilon_and_releases_compose(mechanism, scale, count, delta):
    events = [release_event(mechanism, scale, count=count)]
    approximate, pure = compose_releases(events, delta), compose_releases(events)
    assert 0 <= approximate <= pure * (1 + 1e-9)
    slack = 1 - 1e-9
    assert approximate * slack <= compose_releases(events * 2, delta) <= 2 * pure * (1 + 1e-9)
    assert compose_releases(events, delta / 10) >= approximate * slack
    assert (
        compose_releases([*events, BudgetEvent("b", mechanism, 1.0, scale, "", count)], delta)
        == approximate
    )
    noisy = [*events, release_event("gaussian", scale, l2=1.0)]
    assert (
        approximate * slack
        <= compose_releases(noisy, delta)
        <= pure + smallest_epsilon(1 / scale, delta) + 1e-9
    )
    assert compose_releases([*events, release_event("salt")], delta) == math.inf


def test_the_epsilon_of_truncated_noise_is_an_upper_bound():
    k = np.arange(-300, 301)
    P, Q = (noise_log_pmf("published", 0.5, k - s) for s in (0, 1))
    once = compose_releases([release_event("truncated-laplace")])
    assert once == pytest.approx(max(abs(P - Q)))
    assert compose_releases([release_event("truncated-laplace", count=10)]) == pytest.approx(
        10 * once
    )
    for p, q in ((P, Q), (Q, P)):
        exact = exact_epsilon(p - q, np.exp(p), 0.01)
        assert exact <= compose_releases([release_event("truncated-laplace")], 0.01)


def test_two_mechanisms_compose_as_their_enumerated_outcomes():
    e, f, delta = 0.8, 0.3, 0.02
    signs = [(1, 1), (1, -1), (-1, 1), (-1, -1)]
    losses = np.array([a * e + b * f for a, b in signs])
    chances = np.array([expit(a * e) * expit(b * f) for a, b in signs])
    events = [release_event("laplace", 1 / e), release_event("exponential", 1 / f)]
    assert compose_releases(events, delta) == pytest.approx(exact_epsilon(losses, chances, delta))


def test_very_many_releases_are_rounded_up():
    few_releases = [release_event("laplace", 1000.0 + i, count=400) for i in range(2)]
    many_releases = [release_event("laplace", 1000.0 + i, count=40_000) for i in range(2)]
    mu = math.sqrt(800) / 1000  # The approximate mu of all releases together.
    assert smallest_epsilon(mu, 1e-5) == pytest.approx(
        compose_releases(few_releases, 1e-5), rel=0.02
    )
    assert (
        smallest_epsilon(10 * mu, 1e-5)
        <= compose_releases(many_releases, 1e-5)
        <= 1.1 * smallest_epsilon(10 * mu, 1e-5)
    )


def test_an_invalid_delta_is_refused():
    with pytest.raises(UsageError, match="delta must be a number between 0 and 1; got 1"):
        compose_releases([release_event("laplace")], 1)


def random_events(rng):
    """Return releases of all kinds, some of them under Gaussian noise."""
    pure = [
        release_event(str(rng.choice(["laplace", "geometric", "exponential"])),
                 float(1 / rng.uniform(0.02, 0.5)), count=int(rng.integers(1, 8)))
        for _ in range(rng.integers(0, 3))
    ]  # fmt: skip
    l2, scale = float(rng.uniform(0.5, 3)), float(rng.uniform(9, 60))
    mechanism = str(rng.choice(["gaussian", "discrete-gaussian"]))
    return [*pure, release_event(mechanism, scale, l2=l2, count=int(rng.integers(1, 200)))]


@pytest.mark.extra("dp_accounting")
def test_the_accountant_equals_dp_accounting():
    from dp_accounting.pld import privacy_loss_distribution as losses

    rng = np.random.default_rng(0)
    for _ in range(20):
        events, delta = random_events(rng), float(10 ** rng.uniform(-8, -3))
        total = losses.identity()
        for event in events:
            if event.mechanism in ("gaussian", "discrete-gaussian"):
                # All releases are composed at once, because rounding errors add up.
                loss = losses.from_gaussian_mechanism(
                    event.scale, sensitivity=event.l2 * math.sqrt(event.count)
                )
            else:
                bound = losses.common.DifferentialPrivacyParameters(event.l1 / event.scale)
                loss = losses.from_privacy_parameters(bound).self_compose(event.count)
            total = total.compose(loss)
        reference_epsilon = total.get_epsilon_for_delta(delta)
        slack = 1.05 if any(event.mechanism == "discrete-gaussian" for event in events) else 1.0
        assert (
            reference_epsilon * (1 - 1e-3)
            <= compose_releases(events, delta)
            <= reference_epsilon * slack + 1e-3
        )


@pytest.mark.extra("dp_accounting")
def test_subsampled_rows_cost_less():
    from fedtrees.privacy.gaussian_dp import multiplier

    scale = multiplier(2.0, 1e-5, 0.1, 20)
    events = [release_event("gaussian", 3 * scale, l2=3.0, rate=0.1) for _ in range(20)]
    assert compose_releases(events, 1e-5) == pytest.approx(2.0, rel=2e-3)
    assert compose_releases(events, 1e-5) <= 2.0
    all_rows = [release_event("gaussian", 3 * scale, l2=3.0, count=20)]
    assert compose_releases(all_rows, 1e-5) > 2 * compose_releases(events, 1e-5)
    assert compose_releases([*events, release_event("laplace", 4.0)], 1e-5) == pytest.approx(
        2.2, abs=0.2
    )
    with pytest.raises(UsageError, match="give a larger epsilon or delta"):
        multiplier(1e-9, 1e-12, 0.9, 10)


def test_accounting_of_subsampling_names_the_missing_package():
    try:
        import dp_accounting  # noqa: F401
    except ImportError:
        with pytest.raises(UsageError, match=r"pip install 'fedtrees\[neural\]'"):
            compose_releases([release_event("gaussian", l2=1.0, rate=0.5)], 1e-5)


def test_equal_releases_of_several_parties_are_composed_once(monkeypatch):
    """Every attack on a training computes its epsilon, and one composition can take a second."""
    searches = []

    def counting(delta_at, delta, high):
        searches.append(delta)
        return least_epsilon(delta_at, delta, high)

    monkeypatch.setattr(accounting, "least_epsilon", counting)
    accounting._of_party.cache_clear()
    releases_of_one = [
        release_event("gaussian", count=3, l2=0.7),
        release_event("laplace", count=2),
    ]
    parties = [
        replace(event, party=party)
        for party in ("client-0", "client-1")
        for event in releases_of_one
    ]
    first, second = compose_releases(parties, 1e-5), compose_releases(parties, 1e-5)
    assert len(searches) == 1
    assert first == second == compose_releases(releases_of_one, 1e-5)
    compose_releases([*parties, release_event("laplace")], 1e-5)
    assert len(searches) == 2

"""Rényi accounting: against sums over all outcomes, closed forms, and dp-accounting if there."""

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedtrees.core.errors import UsageError
from fedtrees.core.transcript import BudgetEvent
from fedtrees.privacy.accounting import compose_pure
from fedtrees.privacy.loss_distributions import loss_epsilon
from fedtrees.privacy.mechanisms import noise_log_pmf
from fedtrees.privacy.renyi import noise_multiplier, rdp, renyi_epsilon

ORDERS = np.array([1.5, 2.0, 8.0, 50.0])


def released(mechanism, scale=2.0, **more):
    return BudgetEvent("server", mechanism, 1.0, scale, "counts", **more)


def divergence(log_p, log_q):
    return [np.log(np.exp(a * log_p + (1 - a) * log_q).sum()) / (a - 1) for a in ORDERS]


@pytest.mark.parametrize("steps", [1, 3])
def test_geometric_noise_is_summed_exactly(steps):
    k = np.arange(-1500, 1501)
    P, Q = (noise_log_pmf("geometric", 0.5, k - s) for s in (0, steps))
    event = BudgetEvent("server", "geometric", steps, 2.0, "counts", count=4)
    assert np.allclose(rdp(event, ORDERS), 4 * np.array(divergence(P, Q)))


def test_cut_off_noise_costs_no_less_than_it_diverges():
    k = np.arange(-1500, 1501)
    P, Q = (noise_log_pmf("published", 0.5, k - s) for s in (0, 1))
    told = rdp(released("truncated-laplace"), ORDERS)
    assert (told >= divergence(P, Q)).all()
    assert (told >= divergence(Q, P)).all()
    assert compose_pure([released("truncated-laplace", count=10)]) == pytest.approx(
        10 * (0.5 + math.log(2))
    )


@given(
    st.sampled_from(["laplace", "geometric", "truncated-laplace", "exponential"]),
    st.floats(0.3, 30),
    st.integers(1, 40),
    st.floats(1e-9, 0.1),
)
def test_delta_buys_epsilon_and_releases_add_up(mechanism, scale, count, delta):
    events = [released(mechanism, scale, count=count)]
    one = renyi_epsilon(events, delta)
    assert 0 <= one <= compose_pure(events)
    assert one <= renyi_epsilon(events * 2, delta) <= 2 * compose_pure(events) + 1e-9
    assert renyi_epsilon(events, delta / 10) >= one
    elsewhere = [BudgetEvent("b", mechanism, 1.0, scale, "counts", count)]
    assert renyi_epsilon([*events, *elsewhere], delta) == one
    assert renyi_epsilon([*events, released("salt")], delta) == math.inf


def test_gaussian_noise_is_scaled_to_a_budget():
    scale = noise_multiplier(1.0, 1e-5, 50)
    events = [BudgetEvent("server", "discrete-gaussian", 9.0, 3 * scale, "sums", 50, l2=3.0)]
    assert renyi_epsilon(events, 1e-5) == pytest.approx(1.0, abs=1e-6)
    # zCDP of rho = 50 / (2 scale^2), which Bun and Steinke (2016) convert with some loss.
    rho = 25 / scale**2
    assert 0.75 < 1 / (rho + 2 * math.sqrt(rho * math.log(1e5))) < 1
    assert compose_pure(events) == math.inf


@pytest.mark.parametrize(("epsilon", "delta", "times"), [(1e-5, 1e-5, 200), (1e-4, 1e-9, 20000)])
def test_a_budget_that_no_noise_is_proven_to_keep_is_refused(epsilon, delta, times):
    with pytest.raises(UsageError, match="give a larger epsilon or delta"):
        noise_multiplier(epsilon, delta, times)


def test_a_delta_that_is_none_is_refused():
    with pytest.raises(UsageError, match="delta must be a number between 0 and 1; got 0"):
        renyi_epsilon([released("laplace")], 0)


@pytest.mark.extra("dp_accounting")
def test_loss_distributions_are_tighter_and_no_lower():
    for mechanism in ("laplace", "geometric", "exponential"):
        events = [released(mechanism, 10.0, count=50)]
        assert 0.85 < loss_epsilon(events, 1e-5) / renyi_epsilon(events, 1e-5) < 1
    gaussian = [released("gaussian", noise_multiplier(1.0, 1e-5, 50), count=50, l2=1.0)]
    assert 0.85 < loss_epsilon(gaussian, 1e-5) < 1


def test_loss_distributions_say_what_they_need():
    try:
        import dp_accounting  # noqa: F401
    except ImportError:
        with pytest.raises(UsageError, match=r"pip install 'fedtrees\[accounting\]'"):
            loss_epsilon([released("laplace")], 1e-5)

"""Epsilon by adversary, compared with independently computed figures and sums over all outcomes."""

import math

import numpy as np
import pytest
from scipy.stats import nbinom

from fedtrees.core.channel import Share, honest_shares
from fedtrees.core.errors import UsageError
from fedtrees.core.guarantee import ApproximateDP, PureDP
from fedtrees.core.transcript import BudgetEvent
from fedtrees.privacy.accounting import compose_releases, epsilon_by_adversary, with_adversaries
from fedtrees.privacy.gaussian_dp import least_epsilon, mu_of
from fedtrees.privacy.mechanisms import count_losses, log_probabilities, pure_loss
from fedtrees.privacy.noise import Gaussian, Laplace

DELTA = 1e-5


def leaf_sums(clients, calibrated):
    """Return the leaf sums of `dp-gbdt[epsilon=4]`, as one release."""
    return BudgetEvent(
        "a", "gaussian", 0.0, 1.0, "LeafSums", l2=mu_of(4.0, DELTA), shares=clients,
        calibrated=calibrated,
    )  # fmt: skip


def grid_counts(clients, calibrated, columns=30, rounds=2):
    """Return the counts of `dp-grid-cuts[epsilon=1]`."""
    return BudgetEvent(
        "a", "geometric", 1.0, float(rounds * columns), "GridCounts", count=rounds * columns,
        shares=clients, calibrated=calibrated,
    )  # fmt: skip


@pytest.mark.parametrize(
    ("clients", "colluders", "epsilon"), [(2, 1, 5.99), (3, 1, 5.06), (5, 1, 4.55), (5, 4, 10.42)]
)
def test_noise_for_outsiders_protects_less_against_clients_that_know_their_shares(
    clients, colluders, epsilon
):
    computed = compose_releases([leaf_sums(clients, clients)], DELTA, colluders=colluders)
    assert computed == pytest.approx(epsilon, abs=0.005)


@pytest.mark.parametrize("clients", [2, 3, 5])
def test_noise_for_one_insider_keeps_the_claim_against_every_single_client(clients):
    rows = {
        row.adversary: row for row in epsilon_by_adversary([leaf_sums(clients, clients - 1)], DELTA)
    }
    assert rows["1 client"].epsilon == pytest.approx(4.0, rel=1e-6)
    assert rows["outsider"].epsilon < 4.0
    # The rows are the outsider and coalitions of up to all other clients.
    assert len(rows) == clients


def test_a_replaced_row_costs_as_much_as_two():
    (row,) = epsilon_by_adversary([leaf_sums(0, 0)], DELTA)
    assert (row.epsilon, row.replaced) == pytest.approx((4.0, 9.08), abs=0.005)


@pytest.mark.parametrize(("clients", "pure", "epsilon"), [(2, 23.5, 3.82), (3, 9.2, 1.30)])
def test_polya_shares_that_are_known_cost_more_than_their_variance(clients, pure, epsilon):
    counts = [grid_counts(clients, clients)]
    assert compose_releases(counts, colluders=1) == pytest.approx(pure, abs=0.05)
    assert compose_releases(counts, DELTA, colluders=1) == pytest.approx(epsilon, abs=0.006)
    assert compose_releases(counts, colluders=0) == pytest.approx(1.0)
    assert math.isinf(compose_releases(counts, colluders=clients))


@pytest.mark.parametrize(("scale", "draws"), [(2.0, 0.5), (5.0, 2 / 3), (3.0, 1.5), (4.0, 1.0)])
def test_probabilities_of_shares_are_those_of_differences_of_negative_binomials(scale, draws):
    negative_binomial = nbinom.pmf(np.arange(int(90 * scale)), draws, -math.expm1(-1 / scale))
    differences = [
        negative_binomial[: len(negative_binomial) - k] @ negative_binomial[k:] for k in range(40)
    ]
    assert np.allclose(
        log_probabilities(scale, draws)[:40], np.log(differences), rtol=0, atol=1e-12
    )


@pytest.mark.parametrize("draws", [0.5, 2 / 3, 1.0, 1.5])
@pytest.mark.parametrize("counts", [1, 2, 3])
def test_losses_of_counts_are_a_close_upper_bound(draws, counts):
    """Enumerate every outcome of a small scale."""
    scale = 2.0
    log_probability = log_probabilities(scale, draws)
    k = np.arange(-70, 70)
    loss, chance = (
        log_probability[abs(k)] - log_probability[abs(k + 1)],
        np.exp(log_probability[abs(k)]),
    )
    losses, chances = loss, chance
    for _ in range(counts - 1):
        losses = np.add.outer(losses, loss).ravel()
        chances = np.multiply.outer(chances, chance).ravel()
        keep = chances > 1e-14
        losses, chances = losses[keep], chances[keep]
    grid, mass, beyond = count_losses(scale, draws, counts)
    for epsilon in (0.1, 0.4, 0.9):
        exact = float(chances @ np.maximum(-np.expm1(epsilon - losses), 0.0))
        bound = float(mass @ np.maximum(-np.expm1(epsilon - grid), 0.0)) + beyond
        assert exact - 1e-9 <= bound <= exact * 1.08 + 2e-5


def test_a_delta_lowers_the_epsilon_of_counts_to_the_exact_value():
    grid, mass, beyond = count_losses(60.0, 0.5, 60)
    left = lambda e: float(mass @ np.maximum(-np.expm1(e - grid), 0.0)) + beyond  # noqa: E731
    assert least_epsilon(left, DELTA, 60 * pure_loss(60.0, 0.5)) == pytest.approx(3.82, abs=0.005)


def test_shares_are_counted_by_clients_without_colluders():
    assert [honest_shares(m, 1) for m in (1, 2, 3, 5)] == [1, 1, 2, 4]
    assert honest_shares(5, 2, least=4) == 2
    with pytest.raises(UsageError, match="colluders=2 of 2 clients"):
        honest_shares(2, 2)
    with pytest.raises(UsageError, match="of which 1 may remain"):
        honest_shares(4, 1, least=1)


def test_the_published_law_of_a_sum_has_the_variance_of_all_shares():
    share = Share(Gaussian(2.0), colluders=1)
    assert share.law(3) == Gaussian(2.0 * math.sqrt(3 / 2))
    assert share.law(3, known_shares=1) == Gaussian(2.0)
    assert share.law(3, known_shares=3) is None
    assert Share(Laplace(3.0, integers=True), colluders=1).law(2) == Laplace(3.0, True, 2.0)


def test_a_guarantee_contains_the_epsilon_against_other_adversaries():
    approximate = with_adversaries(ApproximateDP(4.0, DELTA), [leaf_sums(3, 2)])
    assert approximate.colluders == 1
    assert approximate.outsider < approximate.epsilon < approximate.coalition < approximate.replaced
    pure = with_adversaries(PureDP(1.0), [grid_counts(3, 2)])
    assert (pure.colluders, pure.outsider) == (1, 0.0)
    assert pure.coalition == pytest.approx(60 * pure_loss(60.0, 0.5))

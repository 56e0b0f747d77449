"""Channels: bounds contain the input, probabilities sum to one, and chains and sums are right."""

import numpy as np
import pytest
from scipy import stats

from fedtrees.core.channel import Chain, Channel, Share, SumOf, chained, kinds
from fedtrees.core.deterministic_channels import (
    Decimals,
    Ends,
    LargestRemainders,
    Rounding,
    Suppression,
)
from fedtrees.core.errors import ProtocolError, UsageError
from fedtrees.core.wire import pack, unpack
from fedtrees.privacy.noise import Gaussian, Laplace, NoisyShares, Response, TruncatedLaplace

BITS = np.ldexp(1.0, (30, 30))
WHOLE = [
    Rounding((0.1, 0.25)).in_units_of(BITS),
    Rounding(0.3, random=True).in_units_of(BITS),
    Rounding(7.0, integers=True),
    Suppression(1.25).in_units_of(BITS),
    Chain((Rounding(0.5).in_units_of(BITS), Suppression(0.75).in_units_of(BITS))),
    Laplace(3.0, integers=True),
    Chain((Laplace(2.0, integers=True), Rounding(4.0, integers=True))),
]


def sums(n=2000, seed=0):
    rng = np.random.default_rng(seed)
    rows = rng.integers(0, 30, n)
    g = rng.normal(size=n) * np.sqrt(rows)
    return np.rint(np.stack([g, rows * 0.21], axis=1) * 2.0**30).astype(np.int64)


@pytest.mark.parametrize("channel", WHOLE, ids=repr)
def test_bounds_contain_every_number_that_was_sent(channel):
    numbers = sums()
    sent = channel.send(numbers, np.random.default_rng(1))
    assert sent.dtype == np.int64
    low, high = channel.bounds(sent)
    assert ((low <= numbers) & (numbers <= high)).all()
    assert np.isfinite(channel.log_likelihood(sent, numbers)).all()
    widest = channel.preimage(np.full((1, 2), -np.inf), np.full((1, 2), np.inf))
    assert (widest[0] == -np.inf).all()  # no NaN at infinite ends
    assert (widest[1] == np.inf).all()


@pytest.mark.parametrize("grid", [1, 2, 3, 107374182])
def test_the_bounds_of_a_multiple_contain_exactly_the_numbers_that_round_to_it(grid):
    channel = Rounding(float(grid), integers=True)
    for multiple in (-5 * grid, 0, 3 * grid):
        low, high = (int(end[0]) for end in channel.bounds(np.array([multiple])))
        ends = np.array([low - 1, low, high, high + 1])
        assert (channel.send(ends) == multiple).tolist() == [False, True, True, False]


@pytest.mark.parametrize("decimals", [0, 3, 6, 9])
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_bounds_of_floats_allow_for_rounding_in_the_last_place(decimals, dtype):
    rng = np.random.default_rng(decimals)
    numbers = (rng.normal(size=50_000) * rng.choice([1e-3, 1, 1e3], 50_000)).astype(dtype)
    channel = Decimals(decimals, float32=dtype is np.float32)
    sent = channel.send(numbers)
    low, high = channel.bounds(sent)
    assert ((low <= numbers) & (numbers <= high)).all()
    if dtype is np.float32 and decimals:  # Half a step is not enough.
        assert (np.abs(numbers.astype(float) - sent) > channel.step / 2).any()
    step = Rounding(10.0**-decimals)
    low, high = step.bounds(step.send(numbers))
    assert ((low <= numbers) & (numbers <= high)).all()


def test_a_suppressed_bin_bounds_only_the_hessian():
    channel = Suppression(5.0, integers=True)
    low, high = channel.bounds(np.array([[0, 0], [3, 7]]))
    assert (low.tolist(), high.tolist()) == ([[-np.inf] * 2, [3, 7]], [[np.inf, 4], [3, 7]])
    _, variance = channel.posterior_moments(np.array([[0, 0], [3, 7]]))
    assert variance.tolist() == [[np.inf] * 2, [0, 0]]
    rounded = Chain((Rounding(4.0, integers=True), channel))
    low, high = rounded.bounds(np.array([[0, 0]]))
    assert high[0, 1] == 5  # 6 is rounded to 8 and therefore visible.
    assert (rounded.send(np.array([[1, 5], [1, 6]])) == [[0, 0], [0, 8]]).all()


@pytest.mark.parametrize(
    "channel",
    [
        *(Laplace(3.0, integers=True), TruncatedLaplace(3.0, integers=True)),
        *(Gaussian(3.0, integers=True), Gaussian(0.7, integers=True)),
        *(Laplace(3.0, integers=True, draws=3), Rounding(4.0, random=True, integers=True)),
        Chain((Laplace(3.0, integers=True), Rounding(4.0, integers=True))),
    ],
    ids=repr,
)
def test_probabilities_sum_to_one_and_equal_frequencies_of_draws(channel):
    outputs, inputs = np.arange(-300, 301)[:, None], np.full((1, 1), 5)
    mass = np.exp(channel.log_likelihood(outputs, inputs))
    assert mass.sum() == pytest.approx(1, abs=1e-6)
    draws = channel.send(np.full(20_000, 5), np.random.default_rng(3))
    frequencies = np.bincount(draws + 300, minlength=601)
    for index in range(290, 321, 3):  # The tolerance is five standard errors.
        tolerance = 5 * np.sqrt(20_000 * mass[index] + 1)
        assert abs(frequencies[index] - 20_000 * mass[index]) < tolerance
    if channel.additive:
        variance = channel.posterior_moments(np.zeros(1))[1][0]
        assert (mass * (outputs[:, 0] - 5.0) ** 2).sum() == pytest.approx(variance, rel=0.01)
        mass_of_interval = np.exp(channel.log_mass([[2]], [[9]], inputs))
        assert mass_of_interval == pytest.approx(mass[302:310].sum(), rel=0.01)


def test_continuous_noise_has_densities_at_points_and_probabilities_of_intervals():
    for channel, reference in ((Laplace(2.0), stats.laplace), (Gaussian(2.0), stats.norm)):
        points = np.array([[-7.0], [-0.5], [0.0], [3.0]])
        np.testing.assert_allclose(
            channel.log_likelihood(points, 0 * points),
            reference.logpdf(points[:, 0], scale=2),
            rtol=1e-12,
        )
        expected = reference.cdf(4, scale=2) - reference.cdf(points[:, 0], scale=2)
        np.testing.assert_allclose(
            np.exp(channel.log_mass(points, 4.0, 0 * points)), expected, rtol=1e-9
        )
    clipped = Chain((Laplace(0.1), Ends(0.0, 1.0)))
    mass_below = stats.laplace.cdf(-0.2 / 0.1)
    assert np.exp(clipped.log_likelihood([[0.0]], [[0.2]])) == pytest.approx(mass_below)


def test_sums_have_bounds_but_no_likelihood_if_it_depends_on_the_split():
    part, inputs = Rounding(0.1).in_units_of(BITS), np.stack([sums(seed=seed) for seed in range(3)])
    sum_channel = SumOf(part, 3)
    sent = part.send(inputs).sum(axis=0)
    low, high = sum_channel.bounds(sent)
    assert ((low <= inputs.sum(axis=0)) & (inputs.sum(axis=0) <= high)).all()
    assert (high - low).max() <= 0.3 * 2**30 + 3
    with pytest.raises(ProtocolError, match="depends on how the sum is split over the 3 parties"):
        sum_channel.log_likelihood(sent, inputs.sum(axis=0))
    mean, variance = sum_channel.posterior_moments(sent)
    assert np.std(inputs.sum(axis=0) - mean) == pytest.approx(np.sqrt(variance[0, 0]), rel=0.1)
    assert SumOf(part, 1).log_likelihood(part.send(inputs[0]), inputs[0]).max() == 0
    noise = SumOf(Laplace(3.0, integers=True), 3)
    assert noise.log_likelihood([[2]], [[0]]) == Laplace(3.0, True, 3).log_likelihood([[2]], [[0]])
    hidden = SumOf(Suppression(5.0, integers=True), 2)
    assert [end.tolist() for end in hidden.bounds(np.array([[3, 7]]))] == [
        [[-np.inf, 7]],
        [[np.inf, 15]],
    ]
    assert np.isinf(hidden.posterior_moments(np.array([[3, 7]]))[1]).all()


def test_a_share_of_noise_has_a_distribution_only_in_the_complete_sum():
    total_noise, rounding = Laplace(3.0), Rounding(1.0)
    assert chained([]) is None
    assert chained([Share(total_noise)]) is None
    assert chained([Share(total_noise)], 3) == total_noise
    assert chained([rounding, Share(total_noise)], 3) == Chain((SumOf(rounding, 3), total_noise))
    assert chained([rounding, total_noise]) == Chain((rounding, total_noise))
    assert chained([Share(total_noise, 3)], 3) == chained([Share(total_noise, 4)], 3) == total_noise
    assert chained([Share(total_noise, 2)], 3) == Laplace(3.0, draws=1.5)
    assert chained([Share(Gaussian(2.0), 1)], 4) == Gaussian(4.0)


@pytest.mark.parametrize(("scale", "draws", "tolerance"), [(20.0, 5 / 3, 1e-3), (16.0, 2.5, 1e-3)])
def test_noise_of_a_fractional_number_of_draws_has_the_distribution_of_its_shares(
    scale, draws, tolerance
):
    share = stats.nbinom.pmf(np.arange(4096), draws, -np.expm1(-1 / scale))
    probabilities = np.correlate(share, share, "full")[4095:]
    channel, values, zeros = (
        Laplace(scale, True, draws),
        np.arange(60.0)[:, None],
        np.zeros((60, 1)),
    )
    np.testing.assert_allclose(
        np.exp(channel.log_mass(values, values, zeros)), probabilities[:60], rtol=tolerance
    )
    tail = np.cumsum(probabilities[::-1])[::-1][:60]
    np.testing.assert_allclose(
        np.exp(channel.log_mass(values, values + np.inf, zeros)), tail, rtol=tolerance
    )
    noise = channel.send(np.zeros(100_000, dtype=np.int64), np.random.default_rng(0))
    assert noise.var() == pytest.approx(channel.posterior_moments(np.zeros(1))[1][0], rel=0.03)
    log_likelihoods = [
        Laplace(2.0, draws=n_draws).log_likelihood(zeros[:1], values[9:10])
        for n_draws in (2, 2.0001)
    ]
    assert log_likelihoods[0] == pytest.approx(log_likelihoods[1], abs=1e-3)


def test_the_scores_of_a_record_are_changed_together():
    rng = np.random.default_rng(0)
    shares = rng.dirichlet([1, 2, 3], 500)
    channel = LargestRemainders(2)
    sent = channel.send(shares)
    np.testing.assert_allclose(sent.sum(axis=1), 1)
    low, high = channel.bounds(sent)
    assert ((low <= shares) & (shares <= high)).all()
    noisy = NoisyShares(0.05)
    record = np.array([0.2, 0.3, 0.5])
    answers = noisy.send(np.broadcast_to(record, (400, 3)), rng)
    other_records = np.array([[0.3, 0.2, 0.5], [0.2, 0.4, 0.4], [0.15, 0.3, 0.55]])
    log_likelihoods = [
        noisy.log_likelihood(answers, shares).sum() for shares in (record, *other_records)
    ]
    assert np.argmax(log_likelihoods) == 0
    # The density integrates to one over the simplex, apart from atoms at its border.
    n_cells = 150
    first_share, second_share = np.meshgrid(*2 * [(np.arange(n_cells) + 0.5) / n_cells])
    is_inside = first_share + second_share < 1
    grid = np.stack(
        [
            first_share[is_inside],
            second_share[is_inside],
            1 - first_share[is_inside] - second_share[is_inside],
        ],
        axis=1,
    )
    mass = np.exp(noisy.log_likelihood(grid, record)).sum() / n_cells**2
    assert mass == pytest.approx((answers > 0).all(axis=1).mean(), abs=0.03)


def test_randomised_response_has_the_declared_odds():
    channel, rng = Response(1.0, 4), np.random.default_rng(0)
    probabilities = np.exp(channel.log_likelihood(np.arange(4)[:, None], np.array([[2]])))
    assert probabilities.sum() == pytest.approx(1)
    assert probabilities[2] / probabilities[0] == pytest.approx(np.e)
    frequencies = np.bincount(channel.send(np.full(20_000, 2), rng)) / 20_000
    np.testing.assert_allclose(frequencies, probabilities, atol=0.02)


@pytest.mark.parametrize("step", [0.0, -1.0, np.inf, np.nan, (0.1, 0.0)])
def test_steps_and_scales_that_are_none_are_refused(step):
    for kind in (Rounding, Laplace, Gaussian):
        with pytest.raises(UsageError, match="must be a finite number > 0"):
            kind(step)
    with pytest.raises(UsageError, match="too coarse for any sum"):
        Rounding(1e10).in_units_of(BITS)


def test_channels_cross_as_values():
    laws = (*WHOLE, SumOf(Laplace((1.0, 2.0)), 3), Share(Gaussian(2.0)))
    assert unpack(b"".join(map(bytes, pack(laws))), kinds()) == laws
    assert not any(kind is Channel for kind in kinds())


def test_a_fraction_of_a_channel_without_a_distribution_for_it_is_refused():
    """Rounding the number of draws would declare less noise than is drawn, or none."""
    channel = TruncatedLaplace(3.0, integers=True)
    assert channel.sum_of_draws(2) == Chain((channel, channel))
    for draws in (0.25, 1.5):
        with pytest.raises(ProtocolError, match="does not state the distribution"):
            channel.sum_of_draws(draws)
    with pytest.raises(ProtocolError, match="does not state the distribution"):
        chained([Share(channel, colluders=1)], 3)


def test_a_channel_of_the_previous_release_works_with_its_former_names():
    with pytest.warns(DeprecationWarning, match="whole is now integers"):
        assert Laplace(3.0, whole=True) == Laplace(3.0, integers=True)
    with pytest.warns(DeprecationWarning, match="added is now sum_of_draws"):
        assert Laplace(3.0).added(2) == Laplace(3.0, draws=2)
    with pytest.warns(DeprecationWarning, match="Old") as warned:

        class Old(Channel):
            hides = True

            def within(self, units, in_units=True):
                return self

            def send(self, x, rng=None):
                return x

    assert {str(w.message) for w in warned} == {
        "Old.hides is now suppresses",
        "Old.within is now in_units_of",
    }
    channel = Old()
    assert channel.in_units_of(2.0) is channel
    assert channel.suppresses

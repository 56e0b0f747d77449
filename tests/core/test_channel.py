"""Channels: boxes hold what was sent, masses are probabilities, chains and sums follow."""

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


@pytest.mark.parametrize("law", WHOLE, ids=repr)
def test_boxes_hold_every_number_that_was_sent(law):
    x = sums()
    y = law.send(x, np.random.default_rng(1))
    assert y.dtype == np.int64
    low, high = law.bounds(y)
    assert ((low <= x) & (x <= high)).all()
    assert np.isfinite(law.log_likelihood(y, x)).all()
    widest = law.preimage(np.full((1, 2), -np.inf), np.full((1, 2), np.inf))
    assert (widest[0] == -np.inf).all()  # no NaN at infinite ends
    assert (widest[1] == np.inf).all()


@pytest.mark.parametrize("grid", [1, 2, 3, 107374182])
def test_the_box_of_a_multiple_is_all_that_rounds_to_it(grid):
    law = Rounding(float(grid), integers=True)
    for y in (-5 * grid, 0, 3 * grid):
        low, high = (int(end[0]) for end in law.bounds(np.array([y])))
        ends = np.array([low - 1, low, high, high + 1])
        assert (law.send(ends) == y).tolist() == [False, True, True, False]


@pytest.mark.parametrize("decimals", [0, 3, 6, 9])
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_float_boxes_have_room_for_last_places(decimals, dtype):
    rng = np.random.default_rng(decimals)
    x = (rng.normal(size=50_000) * rng.choice([1e-3, 1, 1e3], 50_000)).astype(dtype)
    law = Decimals(decimals, float32=dtype is np.float32)
    y = law.send(x)
    low, high = law.bounds(y)
    assert ((low <= x) & (x <= high)).all()
    if dtype is np.float32 and decimals:  # half a step is not enough
        assert (np.abs(x.astype(float) - y) > law.step / 2).any()
    step = Rounding(10.0**-decimals)
    low, high = step.bounds(step.send(x))
    assert ((low <= x) & (x <= high)).all()


def test_what_is_suppressed_bounds_the_hessian_alone():
    law = Suppression(5.0, integers=True)
    low, high = law.bounds(np.array([[0, 0], [3, 7]]))
    assert (low.tolist(), high.tolist()) == ([[-np.inf] * 2, [3, 7]], [[np.inf, 4], [3, 7]])
    _, variance = law.posterior_moments(np.array([[0, 0], [3, 7]]))
    assert variance.tolist() == [[np.inf] * 2, [0, 0]]
    rounded = Chain((Rounding(4.0, integers=True), law))
    low, high = rounded.bounds(np.array([[0, 0]]))
    assert high[0, 1] == 5  # 6 is rounded to 8 and shown
    assert (rounded.send(np.array([[1, 5], [1, 6]])) == [[0, 0], [0, 8]]).all()


@pytest.mark.parametrize(
    "law",
    [
        *(Laplace(3.0, integers=True), TruncatedLaplace(3.0, integers=True)),
        *(Gaussian(3.0, integers=True), Gaussian(0.7, integers=True)),
        *(Laplace(3.0, integers=True, draws=3), Rounding(4.0, random=True, integers=True)),
        Chain((Laplace(3.0, integers=True), Rounding(4.0, integers=True))),
    ],
    ids=repr,
)
def test_masses_add_up_to_one_and_are_those_of_draws(law):
    y, x = np.arange(-300, 301)[:, None], np.full((1, 1), 5)
    mass = np.exp(law.log_likelihood(y, x))
    assert mass.sum() == pytest.approx(1, abs=1e-6)
    drawn = law.send(np.full(20_000, 5), np.random.default_rng(3))
    counted = np.bincount(drawn + 300, minlength=601)
    for k in range(290, 321, 3):  # five standard errors
        off = 5 * np.sqrt(20_000 * mass[k] + 1)
        assert abs(counted[k] - 20_000 * mass[k]) < off
    if law.additive:
        variance = law.posterior_moments(np.zeros(1))[1][0]
        assert (mass * (y[:, 0] - 5.0) ** 2).sum() == pytest.approx(variance, rel=0.01)
        inside = np.exp(law.log_mass([[2]], [[9]], x))
        assert inside == pytest.approx(mass[302:310].sum(), rel=0.01)


def test_real_noise_has_densities_at_points_and_masses_between():
    for law, known in ((Laplace(2.0), stats.laplace), (Gaussian(2.0), stats.norm)):
        z = np.array([[-7.0], [-0.5], [0.0], [3.0]])
        np.testing.assert_allclose(
            law.log_likelihood(z, 0 * z), known.logpdf(z[:, 0], scale=2), rtol=1e-12
        )
        between = known.cdf(4, scale=2) - known.cdf(z[:, 0], scale=2)
        np.testing.assert_allclose(np.exp(law.log_mass(z, 4.0, 0 * z)), between, rtol=1e-9)
    cut = Chain((Laplace(0.1), Ends(0.0, 1.0)))
    below = stats.laplace.cdf(-0.2 / 0.1)
    assert np.exp(cut.log_likelihood([[0.0]], [[0.2]])) == pytest.approx(below)


def test_sums_add_up_bounds_and_refuse_a_likelihood_that_the_split_decides():
    part, x = Rounding(0.1).in_units_of(BITS), np.stack([sums(seed=s) for s in range(3)])
    law = SumOf(part, 3)
    y = part.send(x).sum(axis=0)
    low, high = law.bounds(y)
    assert ((low <= x.sum(axis=0)) & (x.sum(axis=0) <= high)).all()
    assert (high - low).max() <= 0.3 * 2**30 + 3
    with pytest.raises(ProtocolError, match="depends on how the sum is split over the 3 parties"):
        law.log_likelihood(y, x.sum(axis=0))
    mean, variance = law.posterior_moments(y)
    assert np.std(x.sum(axis=0) - mean) == pytest.approx(np.sqrt(variance[0, 0]), rel=0.1)
    assert SumOf(part, 1).log_likelihood(part.send(x[0]), x[0]).max() == 0
    noise = SumOf(Laplace(3.0, integers=True), 3)
    assert noise.log_likelihood([[2]], [[0]]) == Laplace(3.0, True, 3).log_likelihood([[2]], [[0]])
    hidden = SumOf(Suppression(5.0, integers=True), 2)
    assert [end.tolist() for end in hidden.bounds(np.array([[3, 7]]))] == [
        [[-np.inf, 7]],
        [[np.inf, 15]],
    ]
    assert np.isinf(hidden.posterior_moments(np.array([[3, 7]]))[1]).all()


def test_a_share_of_noise_has_a_law_only_in_the_whole_sum():
    whole, rounding = Laplace(3.0), Rounding(1.0)
    assert chained([]) is None
    assert chained([Share(whole)]) is None
    assert chained([Share(whole)], 3) == whole
    assert chained([rounding, Share(whole)], 3) == Chain((SumOf(rounding, 3), whole))
    assert chained([rounding, whole]) == Chain((rounding, whole))
    assert chained([Share(whole, 3)], 3) == chained([Share(whole, 4)], 3) == whole
    assert chained([Share(whole, 2)], 3) == Laplace(3.0, draws=1.5)
    assert chained([Share(Gaussian(2.0), 1)], 4) == Gaussian(4.0)


@pytest.mark.parametrize(("scale", "draws", "near"), [(20.0, 5 / 3, 1e-3), (16.0, 2.5, 1e-3)])
def test_noise_between_whole_draws_has_the_law_of_its_shares(scale, draws, near):
    share = stats.nbinom.pmf(np.arange(4096), draws, -np.expm1(-1 / scale))
    chance = np.correlate(share, share, "full")[4095:]
    law, k, x = Laplace(scale, True, draws), np.arange(60.0)[:, None], np.zeros((60, 1))
    np.testing.assert_allclose(np.exp(law.log_mass(k, k, x)), chance[:60], rtol=near)
    tail = np.cumsum(chance[::-1])[::-1][:60]
    np.testing.assert_allclose(np.exp(law.log_mass(k, k + np.inf, x)), tail, rtol=near)
    drawn = law.send(np.zeros(100_000, dtype=np.int64), np.random.default_rng(0))
    assert drawn.var() == pytest.approx(law.posterior_moments(np.zeros(1))[1][0], rel=0.03)
    between = [Laplace(2.0, draws=d).log_likelihood(x[:1], k[9:10]) for d in (2, 2.0001)]
    assert between[0] == pytest.approx(between[1], abs=1e-3)


def test_scores_of_a_record_are_changed_together():
    rng = np.random.default_rng(0)
    x = rng.dirichlet([1, 2, 3], 500)
    law = LargestRemainders(2)
    y = law.send(x)
    np.testing.assert_allclose(y.sum(axis=1), 1)
    low, high = law.bounds(y)
    assert ((low <= x) & (x <= high)).all()
    noisy = NoisyShares(0.05)
    record = np.array([0.2, 0.3, 0.5])
    answers = noisy.send(np.broadcast_to(record, (400, 3)), rng)
    others = np.array([[0.3, 0.2, 0.5], [0.2, 0.4, 0.4], [0.15, 0.3, 0.55]])
    told = [noisy.log_likelihood(answers, x).sum() for x in (record, *others)]
    assert np.argmax(told) == 0
    n = 150  # the density is one over the inside of the simplex, less atoms at its border
    a, b = np.meshgrid(*2 * [(np.arange(n) + 0.5) / n])
    inside = a + b < 1
    grid = np.stack([a[inside], b[inside], 1 - a[inside] - b[inside]], axis=1)
    mass = np.exp(noisy.log_likelihood(grid, record)).sum() / n**2
    assert mass == pytest.approx((answers > 0).all(axis=1).mean(), abs=0.03)


def test_a_response_is_answered_with_the_odds_it_states():
    law, rng = Response(1.0, 4), np.random.default_rng(0)
    chance = np.exp(law.log_likelihood(np.arange(4)[:, None], np.array([[2]])))
    assert chance.sum() == pytest.approx(1)
    assert chance[2] / chance[0] == pytest.approx(np.e)
    counted = np.bincount(law.send(np.full(20_000, 2), rng)) / 20_000
    np.testing.assert_allclose(counted, chance, atol=0.02)


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


def test_a_fraction_of_a_channel_that_states_no_law_for_it_is_refused():
    """Rounding the number of draws would state less noise than is drawn, or none."""
    law = TruncatedLaplace(3.0, integers=True)
    assert law.sum_of_draws(2) == Chain((law, law))
    for draws in (0.25, 1.5):
        with pytest.raises(ProtocolError, match="does not state the distribution"):
            law.sum_of_draws(draws)
    with pytest.raises(ProtocolError, match="does not state the distribution"):
        chained([Share(law, colluders=1)], 3)


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

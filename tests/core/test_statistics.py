"""The binomial distribution and ranks agree with scipy's, whose import takes a second."""

import numpy as np
import pytest
from scipy.stats import binom, rankdata

from fedtrees.core.statistics import binomial, binomial_quantile, middle_ranks


@pytest.mark.parametrize("p", [0.0, 1e-9, 0.3, 1.0])
@pytest.mark.parametrize("n", [0, 1, 300])
def test_the_chance_of_every_count(n, p):
    k = np.arange(-2, n + 3)
    assert binomial(k, n, p) == pytest.approx(binom.pmf(k, n, p), rel=1e-9, abs=1e-300)


def test_quantiles():
    rng = np.random.default_rng(0)
    for _ in range(300):
        q, n, p = 10.0 ** -rng.uniform(0, 9), int(rng.integers(1, 300)), rng.random()
        assert binomial_quantile(q, n, p) == binom.ppf(q, n, p)


def test_middle_ranks_of_ties():
    x = np.array([3, 1, 3, 2, 1])
    assert middle_ranks(x) == pytest.approx((rankdata(x) - 0.5) / len(x))

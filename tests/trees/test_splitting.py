from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from fedtrees.trees.binning import Cuts
from fedtrees.trees.boosted.histogram import from_fixed, to_fixed
from fedtrees.trees.boosted.params import TreeParams
from fedtrees.trees.boosted.splitting import MIN_GAIN, best_splits, leaf_values


def gain32(g, h, reg_lambda):
    reg_lambda = np.float64(np.float32(reg_lambda))
    return np.float32(g * g) / np.float32(h + reg_lambda) if h > 0 else np.float32(0)


def brute_force(hist, total, n_bins, params, mask=None):
    """Return (feature, bin, default_left, gain) of the best split, by the rule in words.

    Candidates in order: per feature, first those that send missing values right, from the first
    bin on; then, if the feature misses values, those that send them left, from the last bin down.
    The first of the largest gains wins.
    """
    best = (-1, -1, False, np.float32(0))
    start = 0
    for f, count in enumerate(n_bins):
        bins = hist[start : start + count]
        allowed = np.ones(count, bool) if mask is None else mask[start : start + count]
        present = bins.sum(axis=0)
        candidates = [(b, False, bins[: b + 1].sum(axis=0)) for b in range(count) if allowed[b]]
        if (present != total).any():
            candidates += [
                (b, True, bins[: b + 1].sum(axis=0) + total - present)
                for b in range(count - 2, -2, -1)
                if allowed[b]
            ]
        for b, default_left, left in candidates:
            (gl, hl), (gr, hr) = from_fixed(left), from_fixed(total - left)
            if hl < params.min_child_weight or hr < params.min_child_weight:
                continue
            g, h = from_fixed(total)
            sides = gain32(gl, hl, params.reg_lambda) + gain32(gr, hr, params.reg_lambda)
            change = sides - gain32(g, h, params.reg_lambda)
            if change > best[3]:
                best = (f, b, default_left, change, left)
        start += count
    useless = best[3] <= MIN_GAIN or best[3] < np.float32(params.gamma)
    if best[0] < 0 or useless or best[4][1] == 0 or (total - best[4])[1] == 0:
        return (-1, -1, False, np.float32(0))
    return best[:4]


@st.composite
def nodes(draw):
    """Small histograms with ties, empty bins and missing values; sometimes noisy."""
    rng = np.random.default_rng(draw(st.integers(0, 100_000)))
    n_bins = draw(st.lists(st.integers(1, 5), min_size=1, max_size=4))
    n_nodes = draw(st.integers(1, 3))
    lowest = draw(st.sampled_from([0, -3]))  # negative hessians: noise
    g = rng.integers(-4, 5, (n_nodes, sum(n_bins))) / 2
    h = rng.integers(lowest, 4, (n_nodes, sum(n_bins))) / 4
    hist = to_fixed(np.stack([g, h], axis=2))
    totals = hist[:, : n_bins[0]].sum(axis=1)
    if draw(st.booleans()):
        totals = totals + to_fixed(rng.integers(0, 4, (n_nodes, 2)) / 4)
    params = TreeParams(
        reg_lambda=draw(st.sampled_from([0.0, 0.3, 1.0])),
        gamma=draw(st.sampled_from([0.0, 0.8])),
        min_child_weight=draw(st.sampled_from([0.0, 0.5])),
    )
    mask = rng.random((n_nodes, sum(n_bins))) < 0.5 if draw(st.booleans()) else None
    return hist, totals, n_bins, params, mask


@given(nodes())
def test_best_split_is_the_one_of_brute_force(case):
    hist, totals, n_bins, params, mask = case
    cuts = Cuts.hidden(n_bins)
    found = best_splits(hist, totals, cuts, params, mask)
    for k in range(len(hist)):
        allowed = None if mask is None else mask[k]
        feature, bin, default_left, gain = brute_force(hist[k], totals[k], n_bins, params, allowed)
        assert (found.feature[k], found.bin[k], found.default_left[k]) == (
            feature,
            bin,
            default_left,
        )
        assert found.gain[k] == gain
        if feature < 0:
            assert not found.left_sums[k].any()
            assert not found.right_sums[k].any()
            assert found.threshold[k] == 0
            continue
        bins = hist[k, cuts.offsets[feature] : cuts.offsets[feature + 1]]
        missing = totals[k] - bins.sum(axis=0)
        left = bins[: bin + 1].sum(axis=0) + (missing if default_left else 0)
        np.testing.assert_array_equal(found.left_sums[k], left)
        np.testing.assert_array_equal(found.right_sums[k], totals[k] - left)
        assert found.threshold[k] == cuts.thresholds(feature, bin)


def test_equal_gains_go_to_the_lowest_feature_and_bin():
    pair = [[-2.0, 2.0], [0.0, 0.0], [2.0, 2.0]]
    hist = to_fixed(np.array([pair + pair]))
    found = best_splits(hist, hist[:, :3].sum(axis=1), Cuts.hidden([3, 3]), TreeParams())
    assert (found.feature[0], found.bin[0], found.default_left[0]) == (0, 0, False)


def test_a_gain_equal_to_gamma_is_kept():
    hist = to_fixed(np.array([[[-2.0, 2.0], [2.0, 2.0]]]))
    total = hist.sum(axis=1)
    free = best_splits(hist, total, Cuts.hidden([2]), TreeParams(reg_lambda=0)).gain[0]
    for gamma, feature in ((float(free), 0), (float(free) * 1.001, -1)):
        params = TreeParams(reg_lambda=0, gamma=gamma)
        assert best_splits(hist, total, Cuts.hidden([2]), params).feature[0] == feature


def test_negative_noise_never_divides_by_zero():
    rng = np.random.default_rng(0)
    hist = to_fixed(rng.normal(0, 1, (50, 20, 2)))
    totals = to_fixed(rng.normal(0, 1, (50, 2)))
    hist[0] = 0
    params = TreeParams(reg_lambda=0, min_child_weight=0)
    with np.errstate(all="raise"):
        found = best_splits(hist, totals, Cuts.hidden([20]), params)
        values = leaf_values(np.concatenate([found.left_sums, totals]), params)
    assert np.isfinite(found.gain).all()
    assert np.isfinite(values).all()


def test_leaf_values_are_shrunk_newton_steps():
    sums = to_fixed(np.array([[3.0, 2.0], [-3.0, 2.0], [1.0, 0.0], [1.0, 0.25]]))
    params = TreeParams(reg_lambda=1.0, learning_rate=0.5, min_child_weight=0.5)
    np.testing.assert_array_equal(leaf_values(sums, params), [-0.5, 0.5, 0, 0])

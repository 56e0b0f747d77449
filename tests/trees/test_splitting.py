from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from fedtrees.trees.binning import Cuts
from fedtrees.trees.boosted.histogram import from_fixed, to_fixed
from fedtrees.trees.boosted.params import TreeParams
from fedtrees.trees.boosted.splitting import MIN_GAIN, SplitFinder, leaf_values


def gain32(g, h, reg_lambda):
    reg_lambda = np.float64(np.float32(reg_lambda))
    return np.float32(g * g) / np.float32(h + reg_lambda) if h > 0 else np.float32(0)


def brute_force(hist, total, n_bins, params, mask=None):
    """Return (feature, bin, default_left, gain) of the best split according to the rule.

    Candidates are ordered as follows. For each feature, those that send missing values right come
    first, from the first bin on. If the feature has missing values, those that send them left
    follow, from the last bin down. The first of the largest gains wins.
    """
    best = (-1, -1, False, np.float32(0))
    start = 0
    for feature, count in enumerate(n_bins):
        bins = hist[start : start + count]
        allowed = np.ones(count, bool) if mask is None else mask[start : start + count]
        present = bins.sum(axis=0)
        candidates = [
            (last_bin, False, bins[: last_bin + 1].sum(axis=0))
            for last_bin in range(count)
            if allowed[last_bin]
        ]
        if (present != total).any():
            candidates += [
                (last_bin, True, bins[: last_bin + 1].sum(axis=0) + total - present)
                for last_bin in range(count - 2, -2, -1)
                if allowed[last_bin]
            ]
        for last_bin, default_left, left in candidates:
            (gl, hl), (gr, hr) = from_fixed(left), from_fixed(total - left)
            if hl < params.min_child_weight or hr < params.min_child_weight:
                continue
            g, h = from_fixed(total)
            sides = gain32(gl, hl, params.reg_lambda) + gain32(gr, hr, params.reg_lambda)
            change = sides - gain32(g, h, params.reg_lambda)
            if change > best[3]:
                best = (feature, last_bin, default_left, change, left)
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
def test_the_best_split_equals_that_of_brute_force(case):
    hist, totals, n_bins, params, mask = case
    cuts = Cuts.hidden(n_bins)
    splits = SplitFinder(cuts, params).best(hist, totals, mask)
    for node in range(len(hist)):
        allowed = None if mask is None else mask[node]
        feature, bin, default_left, gain = brute_force(
            hist[node], totals[node], n_bins, params, allowed
        )
        assert (splits.feature[node], splits.bin[node], splits.default_left[node]) == (
            feature,
            bin,
            default_left,
        )
        assert splits.gain[node] == gain
        if feature < 0:
            assert not splits.left_sums[node].any()
            assert not splits.right_sums[node].any()
            assert splits.threshold[node] == 0
            continue
        bins = hist[node, cuts.offsets[feature] : cuts.offsets[feature + 1]]
        missing = totals[node] - bins.sum(axis=0)
        left = bins[: bin + 1].sum(axis=0) + (missing if default_left else 0)
        np.testing.assert_array_equal(splits.left_sums[node], left)
        np.testing.assert_array_equal(splits.right_sums[node], totals[node] - left)
        assert splits.threshold[node] == cuts.thresholds(feature, bin)


def test_equal_gains_go_to_the_lowest_feature_and_bin():
    pair = [[-2.0, 2.0], [0.0, 0.0], [2.0, 2.0]]
    hist = to_fixed(np.array([pair + pair]))
    splits = SplitFinder(Cuts.hidden([3, 3]), TreeParams()).best(hist, hist[:, :3].sum(axis=1))
    assert (splits.feature[0], splits.bin[0], splits.default_left[0]) == (0, 0, False)


def test_a_gain_equal_to_gamma_is_kept():
    hist = to_fixed(np.array([[[-2.0, 2.0], [2.0, 2.0]]]))
    total = hist.sum(axis=1)
    free = SplitFinder(Cuts.hidden([2]), TreeParams(reg_lambda=0)).best(hist, total).gain[0]
    for gamma, feature in ((float(free), 0), (float(free) * 1.001, -1)):
        params = TreeParams(reg_lambda=0, gamma=gamma)
        assert SplitFinder(Cuts.hidden([2]), params).best(hist, total).feature[0] == feature


def test_negative_noise_never_divides_by_zero():
    rng = np.random.default_rng(0)
    hist = to_fixed(rng.normal(0, 1, (50, 20, 2)))
    totals = to_fixed(rng.normal(0, 1, (50, 2)))
    hist[0] = 0
    params = TreeParams(reg_lambda=0, min_child_weight=0)
    with np.errstate(all="raise"):
        splits = SplitFinder(Cuts.hidden([20]), params).best(hist, totals)
        values = leaf_values(np.concatenate([splits.left_sums, totals]), params)
    assert np.isfinite(splits.gain).all()
    assert np.isfinite(values).all()


def test_leaf_values_are_shrunk_newton_steps():
    sums = to_fixed(np.array([[3.0, 2.0], [-3.0, 2.0], [1.0, 0.0], [1.0, 0.25]]))
    params = TreeParams(reg_lambda=1.0, learning_rate=0.5, min_child_weight=0.5)
    np.testing.assert_array_equal(leaf_values(sums, params), [-0.5, 0.5, 0, 0])

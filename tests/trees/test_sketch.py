from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedtrees.core.errors import DataError, UsageError
from fedtrees.trees.binning import bin_rows
from fedtrees.trees.cut_points import (
    POINTS_PER_BIN,
    equal_width_cuts,
    local_sketch,
    merge_sketches,
    quantile_cuts,
)


def columns(seed, n):
    """Return 4 columns: continuous, heavy-tailed, integers, and two thirds one value."""
    rng = np.random.default_rng(seed)
    mixed = np.where(rng.random(n) < 2 / 3, 0.5, rng.random(n))
    return np.stack([rng.normal(size=n), rng.lognormal(0, 3, n), rng.poisson(40, n), mixed], axis=1)


def rows_up_to(sketch, f, x):
    span = slice(sketch.offsets[f], sketch.offsets[f + 1])
    return int(sketch.weights[span][sketch.points[span] <= x].sum())


def test_few_distinct_values_are_kept_with_their_counts():
    X = np.array([[3.0, np.nan], [1.0, -0.0], [3.0, 0.0], [np.nan, 0.0]])
    sketch = local_sketch(X, 4)
    np.testing.assert_array_equal(sketch.points, [1, 3, 0])
    np.testing.assert_array_equal(sketch.weights, [1, 2, 3])
    np.testing.assert_array_equal(sketch.offsets, [0, 2, 3])
    np.testing.assert_array_equal(sketch.low, [1, 0])


@given(st.integers(0, 1000), st.integers(1, 5000), st.integers(2, 32))
def test_a_summary_is_short_by_less_than_one_group(seed, n, max_bin):
    X = columns(seed, n).astype(np.float32)
    sketch = local_sketch(X, max_bin)
    group = -(-n // (POINTS_PER_BIN * max_bin))
    for f in range(X.shape[1]):
        assert sketch.offsets[f + 1] - sketch.offsets[f] <= POINTS_PER_BIN * max_bin
        for x in np.quantile(X[:, f], [0, 0.01, 0.3, 0.5, 0.77, 0.99, 1]).astype(np.float32):
            short = int((X[:, f] <= x).sum()) - rows_up_to(sketch, f, x)
            assert 0 <= short < group
        assert rows_up_to(sketch, f, np.inf) == n


@given(st.integers(0, 1000), st.integers(100, 8000), st.integers(2, 32), st.integers(1, 7))
def test_merged_cuts_respect_the_declared_rank_error(seed, n_rows, max_bin, clients):
    X = columns(seed, n_rows).astype(np.float32)
    owner_of_row = np.random.default_rng(seed).integers(0, clients, n_rows)
    sketches = [local_sketch(X[owner_of_row == client], max_bin) for client in range(clients)]
    cuts = merge_sketches(sketches, max_bin)
    error = sum(
        -(-int((owner_of_row == client).sum()) // (POINTS_PER_BIN * max_bin))
        for client in range(clients)
    )
    for feature in range(X.shape[1]):
        all_points = np.concatenate(
            [
                sketch.points[sketch.offsets[feature] : sketch.offsets[feature + 1]]
                for sketch in sketches
            ]
        )
        counts = np.concatenate(
            [
                sketch.weights[sketch.offsets[feature] : sketch.offsets[feature + 1]]
                for sketch in sketches
            ]
        )
        if len(np.unique(all_points)) <= max_bin:
            assert len(cuts.of(feature)) == len(np.unique(all_points))
            continue
        assert len(cuts.of(feature)) <= max_bin
        rows_below = np.array([(X[:, feature] < cut).sum() for cut in cuts.of(feature)])
        weight = max(counts[all_points == point].sum() for point in np.unique(all_points))
        targets = np.arange(1, max_bin) * n_rows / max_bin
        for target in targets[targets < rows_below[-2]] if len(rows_below) > 1 else []:
            reached = rows_below[np.searchsorted(rows_below, target)]
            assert target <= reached < target + weight + error


def test_merging_exact_sketches_equals_the_sketch_of_the_union():
    rng = np.random.default_rng(0)
    X = rng.integers(0, 50, (900, 3)).astype(np.float32)
    merged = merge_sketches([local_sketch(part, 16) for part in np.array_split(X, 7)], 16)
    of_union = quantile_cuts(X, 16)
    np.testing.assert_array_equal(merged.values, of_union.values)
    np.testing.assert_array_equal(merged.offsets, of_union.offsets)
    np.testing.assert_array_equal(merged.minimum, of_union.minimum)


def test_quantile_bins_contain_nearly_equal_shares():
    X = np.random.default_rng(0).normal(size=(64_000, 1))
    bins = bin_rows(X, quantile_cuts(X, 64))
    share = np.bincount(bins.codes[:, 0]) / len(X)
    assert len(share) == 64
    assert abs(share - 1 / 64).max() < 0.25 / 64


def test_thresholds_are_values_of_the_data():
    X = columns(0, 3000).astype(np.float32)
    cuts = quantile_cuts(X, 16)
    for f in range(X.shape[1]):
        assert np.isin(cuts.of(f)[:-1], X[:, f]).all()
        assert cuts.of(f)[-1] > X[:, f].max()
        assert cuts.minimum[f] < X[:, f].min()


def test_columns_without_values_or_without_variety_get_one_bin():
    X = np.array([[np.nan, 5.0], [np.nan, 5.0]])
    cuts = quantile_cuts(X)
    np.testing.assert_array_equal(cuts.n_bins, [1, 1])
    np.testing.assert_array_equal(bin_rows(X, cuts).codes, [[1, 0], [1, 0]])


def test_a_column_that_one_client_misses_is_cut_by_the_others():
    parts = [np.array([[np.nan], [np.nan]]), np.array([[1.0], [2.0]])]
    assert merge_sketches([local_sketch(p) for p in parts]).n_bins[0] == 2


@pytest.mark.parametrize("max_bin", [1, 0, 65535])
def test_bin_limits(max_bin):
    with pytest.raises(UsageError, match=f"max_bin={max_bin}"):
        quantile_cuts(np.zeros((3, 1)), max_bin)
    with pytest.raises(UsageError, match=f"max_bin={max_bin}"):
        equal_width_cuts([0.0], [1.0], max_bin)


def test_sketches_that_do_not_fit():
    with pytest.raises(DataError, match="merged"):
        merge_sketches([])
    with pytest.raises(DataError, match="merged"):
        merge_sketches([local_sketch(np.zeros((2, 1))), local_sketch(np.zeros((2, 2)))])


def test_equal_width_cuts_are_fedtrees():
    cuts = equal_width_cuts([0.0, -1.0], [10.0, 1.0], 5)
    np.testing.assert_array_equal(cuts.of(0)[:-1], [2, 4, 6, 8])
    np.testing.assert_allclose(cuts.of(1)[:-1], [-0.6, -0.2, 0.2, 0.6], rtol=1e-6)
    np.testing.assert_array_equal(bin_rows([[0, 0], [10, 1]], cuts).codes, [[0, 2], [4, 4]])


def test_equal_width_cuts_of_degenerate_columns():
    tiny = np.nextafter(np.float32(1), np.float32(2))
    cuts = equal_width_cuts([3.0, np.nan, 1.0], [3.0, np.nan, tiny], 256)
    np.testing.assert_array_equal(cuts.n_bins, [1, 1, 2])


@pytest.mark.parametrize(
    ("low", "high"), [([1.0], [0.0]), ([0.0], [np.inf]), ([0.0], [1.0, 2.0])], ids=str
)
def test_impossible_bounds(low, high):
    with pytest.raises(DataError):
        equal_width_cuts(low, high)

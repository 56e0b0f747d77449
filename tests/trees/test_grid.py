"""Cut points from counts on a grid."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedtrees.trees.binning import Cuts
from fedtrees.trees.cut_points import (
    count_cells,
    first_grid,
    float_rank,
    grid_cuts,
    grid_minimum,
    of_rank,
    quantile_cuts,
    refined,
)

NONE = np.zeros(1, dtype=np.int64)


def cuts_of(X, max_bin=32, ends=(np.nan, np.nan), cells=1024, rounds=2):
    is_counted = np.ones(X.shape[1], dtype=bool)
    low, high = (np.full(X.shape[1], end) for end in ends)
    grid = first_grid(low, high, cells, is_counted)
    counts = count_cells(X, grid.borders)
    for _ in range(1, rounds):
        grid = refined(grid, counts, cells, np.zeros(X.shape[1], dtype=np.int64))
        counts = count_cells(X, grid.borders)
    return Cuts.join(grid_cuts(grid, counts, max_bin), grid_minimum(grid))


@given(st.lists(st.floats(width=32, allow_nan=False, allow_infinity=False), min_size=1))
def test_ranks_of_floats_are_in_their_order_and_lead_back(values):
    x = np.array(values, dtype=np.float32)
    ranks = float_rank(x)
    np.testing.assert_array_equal(np.argsort(ranks, kind="stable"), np.argsort(x, kind="stable"))
    np.testing.assert_array_equal(of_rank(ranks), x)
    assert float_rank([-0.0, 0.0, np.nextafter(np.float32(0), np.float32(1))]).tolist() == [0, 0, 1]


@pytest.mark.parametrize("ends", [(np.nan, np.nan), (-4.0, 1e6)])
def test_counts_of_parts_add_up_and_missing_values_are_in_no_cell(ends):
    rng = np.random.default_rng(0)
    X = rng.lognormal(0, 3, (300, 2)).astype(np.float32)
    X[::7, 1] = np.nan
    grid = first_grid(*(np.full(2, end) for end in ends), 64, np.array([True, True]))
    total = count_cells(X, grid.borders)
    np.testing.assert_array_equal(
        total, count_cells(X[:90], grid.borders) + count_cells(X[90:], grid.borders)
    )
    assert total.sum() == 600 - len(X[::7])


SHAPES = {
    "uniform": lambda rng, n: rng.uniform(0, 1000, n),
    "lognormal": lambda rng, n: rng.lognormal(0, 2, n),
    "both signs": lambda rng, n: rng.normal(-2, 50, n),
    "outliers": lambda rng, n: np.where(rng.random(n) < 0.01, 9e4, rng.normal(30, 1e-2, n)),
}


@pytest.mark.parametrize(
    ("shape", "ends", "rounds"),
    [
        *((shape, (np.nan, np.nan), 2) for shape in ("uniform", "lognormal", "both signs")),
        *((shape, (-1e3, 1e4), 2) for shape in ("uniform", "lognormal", "both signs")),
        ("outliers", (np.nan, np.nan), 3),
        ("outliers", (0.0, 1e5), 3),
    ],
)
def test_a_refined_grid_is_as_good_as_a_sketch_and_a_single_grid_is_not(shape, ends, rounds):
    """No bin contains many more rows than a 32nd of them, as with exact quantiles."""
    n_rows = 4000
    X = SHAPES[shape](np.random.default_rng(1), n_rows).astype(np.float32)[:, None]

    def largest(cuts):
        inner = cuts.of(0)[:-1]
        return np.bincount(np.searchsorted(inner, X[:, 0], side="right")).max()

    exact = largest(quantile_cuts(X, 32))
    # The allowance is a third of a bin.
    assert largest(cuts_of(X, ends=ends, rounds=rounds)) <= exact + n_rows / 100
    if shape != "uniform":
        assert largest(cuts_of(X, ends=ends, rounds=1)) > 1.9 * exact


@pytest.mark.parametrize("ends", [(np.nan, np.nan), (-10.0, 10.0)], ids=["no range", "range"])
def test_few_different_values_get_a_bin_each(ends):
    values = np.array([-3, 0, 0.5, 1, 7], dtype=np.float32)
    X = np.repeat(values, [1, 50, 2, 30, 1])[:, None]
    inner = cuts_of(X, ends=ends).of(0)[:-1]
    assert np.searchsorted(inner, values, side="right").tolist() == [0, 1, 2, 3, 4]


@pytest.mark.parametrize("ends", [(np.nan, np.nan), (0.0, 5.0)], ids=["no range", "range"])
def test_constant_and_missing_columns_get_one_bin(ends):
    X = np.array([[2.0, np.nan]] * 5, dtype=np.float32)
    cuts = cuts_of(X, ends=ends)
    assert cuts.n_bins.tolist() == [1, 1]
    assert cuts.minimum[0] < 2 < cuts.of(0)[0]


def test_cells_below_the_noise_count_as_empty():
    grid = first_grid([np.nan], [np.nan], 64, np.array([True]))
    counts = np.full(64, 3)
    counts[40] = 90
    finer = refined(grid, counts, 64, np.array([10]))
    assert [finer.low[0], finer.high[0]] == grid.ends(0)[40:42].astype(np.float32).tolist()
    nothing = refined(grid, counts, 64, np.array([100]))
    assert len(nothing.borders[0]) == 0
    assert len(grid_cuts(nothing, NONE[:0], 8)[0]) == 1

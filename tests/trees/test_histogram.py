from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from fedtrees.trees.binning import Bins, bin_rows
from fedtrees.trees.boosted.grower import children_to_build, with_siblings
from fedtrees.trees.boosted.histogram import build_histogram, node_sums
from fedtrees.trees.cut_points import quantile_cuts


@st.composite
def binned(draw):
    """Bins with missing codes, gradients that overflow float64's 53 bits, rows of two nodes."""
    rng = np.random.default_rng(draw(st.integers(0, 10_000)))
    n, d = draw(st.integers(0, 60)), draw(st.integers(1, 4))
    counts = rng.integers(1, draw(st.sampled_from([3, 9, 400])), d)
    offsets = np.concatenate([[0], np.cumsum(counts)]).astype(np.int32)
    missing = int(counts.max())
    codes = rng.integers(0, counts, (n, d))
    codes[rng.random((n, d)) < 0.2] = missing
    kind = np.uint8 if missing < 256 else np.uint16
    gh = rng.integers(-(2**56), 2**56, (n, 2))
    return Bins(codes.astype(kind), missing, offsets), gh, rng.permutation(n).astype(np.int32)


def histogram_by_definition(bins, gh, rows):
    histogram = np.zeros((bins.total_bins, 2), dtype=np.int64)
    for feature, start in enumerate(bins.offsets[:-1]):
        present = rows[bins.codes[rows, feature] != bins.missing]
        # add.at sums int64 exactly; bincount would go through float64 and its 53 bits.
        np.add.at(histogram, start + bins.codes[present, feature].astype(int), gh[present])
    return histogram


@given(binned(), st.floats(0, 1))
def test_sums_are_exact(table, share):
    bins, gh, rows = table
    cut = int(share * len(rows))
    ranges = np.array([[0, cut], [cut, len(rows)], [cut, cut]])
    expected = np.array(
        [histogram_by_definition(bins, gh, rows[begin:end]) for begin, end in ranges]
    )
    np.testing.assert_array_equal(build_histogram(bins, gh, rows, ranges), expected)
    totals = [gh[rows[begin:end]].sum(axis=0) for begin, end in ranges]
    np.testing.assert_array_equal(node_sums(gh, rows, ranges), totals)


@given(binned(), st.floats(0, 1))
def test_histograms_of_halves_add_up_and_siblings_are_differences(table, share):
    bins, gh, rows = table
    cut = int(share * len(rows))
    halves = build_histogram(bins, gh, rows, np.array([[0, cut], [cut, len(rows)]]))
    of_all_rows = build_histogram(bins, gh, rows, np.array([[0, len(rows)]]))
    np.testing.assert_array_equal(halves.sum(axis=0), of_all_rows[0])
    for side in (0, 1):
        completed = with_siblings(halves[[side]], np.array([side == 0]), of_all_rows)
        np.testing.assert_array_equal(completed, halves)


def test_the_lighter_child_is_built():
    nodes = np.arange(5, 11, dtype=np.int32)
    hessians = np.array([[0, 4], [0, 3], [0, 1], [0, 2], [0, 7], [0, 7]])
    np.testing.assert_array_equal(children_to_build(nodes, hessians), [6, 7, 9])


def test_tables_longer_than_the_prefetch_distance_with_many_bins():
    """The bins do not fit into one byte."""
    rng = np.random.default_rng(0)
    X = rng.normal(size=(3000, 70)).astype(np.float32)
    bins = bin_rows(X, quantile_cuts(X, 300))
    gh = rng.integers(-(2**30), 2**30, (3000, 2))
    rows, ranges = np.arange(3000, dtype=np.int32), np.array([[0, 1000], [1000, 3000]])
    expected = [
        histogram_by_definition(bins, gh, rows[:1000]),
        histogram_by_definition(bins, gh, rows[1000:]),
    ]
    np.testing.assert_array_equal(build_histogram(bins, gh, rows, ranges), expected)


def test_gradients_in_any_memory_layout():
    rng = np.random.default_rng(0)
    X = rng.normal(size=(50, 2))
    bins, rows = bin_rows(X, quantile_cuts(X, 4)), np.arange(50, dtype=np.int32)
    gh = np.asfortranarray(rng.integers(-9, 9, (50, 2)))
    np.testing.assert_array_equal(
        build_histogram(bins, gh, rows, np.array([[0, 50]]))[0],
        histogram_by_definition(bins, gh, rows),
    )

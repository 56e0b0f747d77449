"""The restricted search finds the kernel's choice, and the best of the permitted splits."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from fedtrees.trees.forest.gini import choose_splits


def random_counts(seed, classes=3, nodes=2):
    """Return class counts of a few features at a few nodes; some bins are empty."""
    rng = np.random.default_rng(seed)
    n_bins = rng.integers(1, 6, 3 * nodes)
    starts = np.concatenate([[0], np.cumsum(n_bins)])
    offsets = np.arange(nodes + 1) * 3
    totals = rng.integers(0, 9, (nodes, classes))
    totals[:, 0] += 1
    counts = np.zeros((starts[-1], classes), dtype=np.int64)
    for pair in range(3 * nodes):
        for label, rows in enumerate(totals[pair // 3]):
            bins = rng.integers(0, n_bins[pair], rng.integers(0, rows + 1))
            np.add.at(counts[:, label], starts[pair] + bins, 1)
    return counts, starts, offsets, totals


@given(st.integers(0, 10**6), st.integers(1, 3), st.booleans(), st.integers(-4, 4))
def test_if_everything_is_permitted_the_choice_is_the_kernels(
    seed, minimum_rows, first_only, surplus
):
    """`surplus` rows change the class in the totals, so that the bins contradict them."""
    given_counts = random_counts(seed)
    given_counts[3][:, :2] += [surplus, -surplus]
    allowed = np.ones(len(given_counts[0]), dtype=bool)
    restricted = choose_splits(*given_counts, minimum_rows, first_only, allowed)
    pair, border, left, usable = choose_splits(*given_counts, minimum_rows, first_only)
    np.testing.assert_array_equal(restricted[0], pair)
    np.testing.assert_array_equal(restricted[3], usable)
    np.testing.assert_array_equal(restricted[1][pair >= 0], border[pair >= 0])
    np.testing.assert_array_equal(restricted[2][pair >= 0], left[pair >= 0])


@given(st.integers(0, 10**6))
def test_the_choice_is_the_best_of_the_permitted_splits(seed):
    counts, starts, offsets, totals = random_counts(seed)
    rng = np.random.default_rng(seed)
    allowed = rng.random(len(counts)) < 0.5
    pair, _, left, _ = choose_splits(counts, starts, offsets, totals, 1, False, allowed)
    for node in range(2):
        best = -1.0
        for p in range(offsets[node], offsets[node + 1]):
            bins = counts[starts[p] : starts[p + 1]]
            absent = totals[node] - bins.sum(axis=0)
            for b in np.flatnonzero(bins.sum(axis=1)):
                if not allowed[starts[p] + b]:
                    continue
                for side in (bins[: b + 1].sum(axis=0), bins[: b + 1].sum(axis=0) + absent):
                    other_side = totals[node] - side
                    if side.sum() and other_side.sum():
                        purity = (side**2).sum() / side.sum() + (
                            other_side**2
                        ).sum() / other_side.sum()
                        best = max(best, purity)
        assert (pair[node] >= 0) == (best >= 0)
        if pair[node] >= 0:
            other_side = totals[node] - left[node]
            n_left, n_right = left[node].sum(), other_side.sum()
            purity_of_choice = (left[node] ** 2).sum() / n_left + (other_side**2).sum() / n_right
            assert purity_of_choice == best


def test_a_class_with_more_rows_in_shown_bins_than_in_total_has_no_missing_values():
    """Class 0 has a row without a shown bin. The surplus of class 1 does not cancel it out."""
    counts, totals = np.array([[5, 0], [0, 5]]), np.array([[6, 4]])
    for allowed in (None, np.ones(2, dtype=bool)):
        pair, border, left, usable = choose_splits(
            counts, np.array([0, 2]), np.array([0, 1]), totals, 1, False, allowed
        )
        assert usable.all()
        assert pair.tolist() == [0]
        assert left.tolist() == [[6, 0]]
        assert border.tolist() == [[0, 1]]

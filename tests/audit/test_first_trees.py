"""Counts of a tree with unknown base score: found where the sums tell them, in bounded time."""

import numpy as np
import pytest

from fedtrees.model_audit import first_trees
from fedtrees.model_audit.first_trees import ROUNDING, LeafStatistics, find_first_tree


def statistics(n, n1, p):
    """What XGBoost keeps of leaves of n rows, n1 of them positive, as float32."""
    n, n1 = np.array(n, dtype=np.float64), np.array(n1, dtype=np.float64)
    h = (n * p * (1 - p)).astype(np.float32).astype(np.float64)
    g = n * p - n1
    return LeafStatistics(g, h, np.abs(g) * ROUNDING + h * ROUNDING, h * ROUNDING)


@pytest.mark.parametrize(
    ("n", "n1"),
    [
        ([12, 7, 41], [3, 7, 11]),
        ([400, 91_117, 30_011], [13, 20_005, 29_000]),
        ([20_011, 31_003, 23_017, 40_009, 51_001], [19_000, 9_001, 102, 7, 33_333]),
    ],
    ids=["tens", "thousands", "no small leaf"],
)
def test_whole_counts_are_found_without_the_base_score(n, n1):
    found = find_first_tree(statistics(n, n1, sum(n1) / sum(n)))
    assert found is not None
    assert found.n.tolist() == n
    known = found.n1 >= 0
    assert known.any()
    assert np.array_equal(found.n1[known], np.array(n1)[known])


@pytest.mark.long
@pytest.mark.parametrize("leaves", [2, 8])
@pytest.mark.parametrize("h", [250.0, 9000.0, 1e9])
def test_leaves_of_one_size_leave_too_many_choices(leaves, h, monkeypatch):
    """Any number of rows is then whole in all of them."""
    tried = []
    counts_at = first_trees.counts_at
    monkeypatch.setattr(
        first_trees, "counts_at", lambda *given: tried.append(given) or counts_at(*given)
    )
    h, g = np.full(leaves, h), np.linspace(-3, 3.3, leaves)
    assert find_first_tree(LeafStatistics(g, h, np.abs(g) * ROUNDING, h * ROUNDING)) is None
    assert len(tried) <= 20_000

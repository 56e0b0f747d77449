"""Counts of a tree with unknown base score are inferred if the sums determine them, in bounded
time.
"""

import numpy as np
import pytest

from fedtrees.model_audit import first_trees
from fedtrees.model_audit.first_trees import ROUNDING, LeafStatistics, find_first_tree


def float32_statistics(n, n1, p):
    """Return the float32 statistics that XGBoost stores for leaves of n rows, n1 of them
    positive.
    """
    n, n1 = np.array(n, dtype=np.float64), np.array(n1, dtype=np.float64)
    h = (n * p * (1 - p)).astype(np.float32).astype(np.float64)
    g = n * p - n1
    return LeafStatistics(g, h, np.abs(g) * ROUNDING + h * ROUNDING, h * ROUNDING)


@pytest.mark.parametrize(
    ("n", "n_pos"),
    [
        ([12, 7, 41], [3, 7, 11]),
        ([400, 91_117, 30_011], [13, 20_005, 29_000]),
        ([20_011, 31_003, 23_017, 40_009, 51_001], [19_000, 9_001, 102, 7, 33_333]),
    ],
    ids=["tens", "thousands", "no small leaf"],
)
def test_integer_counts_are_inferred_without_the_base_score(n, n_pos):
    first_tree = find_first_tree(float32_statistics(n, n_pos, sum(n_pos) / sum(n)))
    assert first_tree is not None
    assert first_tree.n.tolist() == n
    is_known = first_tree.n1 >= 0
    assert is_known.any()
    assert np.array_equal(first_tree.n1[is_known], np.array(n_pos)[is_known])


@pytest.mark.long
@pytest.mark.parametrize("leaves", [2, 8])
@pytest.mark.parametrize("h", [250.0, 9000.0, 1e9])
def test_leaves_of_one_size_determine_no_counts(leaves, h, monkeypatch):
    """Every number of rows gives integer counts in all leaves."""
    calls = []
    counts_at = first_trees.counts_at
    monkeypatch.setattr(
        first_trees,
        "counts_at",
        lambda *arguments: calls.append(arguments) or counts_at(*arguments),
    )
    h, g = np.full(leaves, h), np.linspace(-3, 3.3, leaves)
    assert find_first_tree(LeafStatistics(g, h, np.abs(g) * ROUNDING, h * ROUNDING)) is None
    assert len(calls) <= 20_000

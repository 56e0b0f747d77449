from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from several_owners import rows_of

from fedtrees.core.errors import DataError
from fedtrees.trees.binning import bin_rows
from fedtrees.trees.boosted.boosting import grow_tree
from fedtrees.trees.boosted.forest import Forest
from fedtrees.trees.boosted.grower import TreeBuilder, TreeGrower
from fedtrees.trees.boosted.histogram import build_histogram, to_fixed
from fedtrees.trees.boosted.params import TreeParams
from fedtrees.trees.cut_points import quantile_cuts
from fedtrees.trees.partition import Decisions, RowPartition


def decisions(nodes, feature, bin, default_left, left):
    return Decisions(
        np.array(nodes, np.int32),
        np.array(feature, np.int32),
        np.array(bin, np.int32),
        np.zeros(len(nodes), np.float32),
        np.array(default_left, bool),
        np.array(left, np.int32),
    )


@st.composite
def grown(draw):
    """A tree grown on noise, with missing values; the gradients are noise too."""
    rng = np.random.default_rng(draw(st.integers(0, 10_000)))
    n = draw(st.integers(1, 300))
    X = rng.normal(size=(n, 3)).round(1).astype(np.float32)
    X[rng.random(X.shape) < 0.2] = np.nan
    gh = to_fixed(np.stack([rng.normal(size=n), rng.random(n)], axis=1))
    params = TreeParams(max_depth=draw(st.integers(1, 5)), min_child_weight=0.1, max_bin=16)
    cuts = quantile_cuts(X, 16)
    return X, gh, *grow_tree([(bin_rows(X, cuts), gh)], cuts, params)


@given(grown())
def test_leaves_cover_every_row_once_in_stable_order(case):
    X, gh, tree, (partition,) = case
    rows = [rows_of(partition, leaf) for leaf in tree.leaves]
    np.testing.assert_array_equal(np.sort(np.concatenate(rows)), np.arange(len(X)))
    for leaf, members in zip(tree.leaves, rows, strict=True):
        assert (np.diff(members) > 0).all()
        np.testing.assert_allclose(
            [tree.g[leaf], tree.h[leaf]], gh[members].sum(axis=0) / 2**30, atol=1e-9
        )


@given(grown())
def test_bins_and_thresholds_send_rows_to_the_same_leaf(case):
    X, _, tree, (partition,) = case
    leaf_of_row = np.empty(len(X), np.int32)
    for leaf in tree.leaves:
        leaf_of_row[rows_of(partition, leaf)] = leaf
    np.testing.assert_array_equal(Forest((tree,), np.float32(0)).apply(X)[:, 0], leaf_of_row)


def test_bin_minus_one_sends_only_missing_values_left():
    X = np.array([[1.0], [np.nan], [2.0]])
    bins = bin_rows(X, quantile_cuts(X))
    partition = RowPartition(3)
    partition.split(bins, decisions([0], [0], [-1], [True], [1]))
    np.testing.assert_array_equal(rows_of(partition, 1), [1])
    np.testing.assert_array_equal(rows_of(partition, 2), [0, 2])


def test_a_party_without_the_feature_follows_the_directions_of_its_owner():
    """The owner of a column announces where rows go, and the other parties move theirs alike."""
    X = np.random.default_rng(0).normal(size=(40, 1))
    bins = bin_rows(X, quantile_cuts(X))
    owner, other_partition = RowPartition(40), RowPartition(40)
    step = decisions([0], [0], [20], [False], [1])
    directions = owner.goes_left(bins, step)
    assert directions.sum() == 21
    owner.split(bins, step)
    other_partition.move(step.nodes, step.left, directions)
    np.testing.assert_array_equal(owner.rows, other_partition.rows)


def test_a_sample_of_rows_is_partitioned():
    X = np.arange(10.0)[:, None]
    partition = RowPartition(np.array([1, 4, 9]))
    partition.split(bin_rows(X, quantile_cuts(X)), decisions([0], [0], [4], [False], [1]))
    np.testing.assert_array_equal(rows_of(partition, 1), [1, 4])
    np.testing.assert_array_equal(rows_of(partition, 2), [9])
    margin = np.zeros(10, np.float32)
    partition.add_to(margin, np.array([1, 2]), np.array([0.5, -1], np.float32))
    np.testing.assert_array_equal(margin, [0, 0.5, 0, 0, 0.5, 0, 0, 0, 0, -1])


def test_unknown_nodes_and_wrong_directions_are_refused():
    partition = RowPartition(3)
    with pytest.raises(DataError, match=r"\[7\]"):
        rows_of(partition, 7)
    with pytest.raises(DataError, match="2 directions"):
        partition.move(np.array([0]), np.array([1]), np.array([True, False]))


def test_growing_without_subtraction_requests_every_node_and_gives_the_same_tree():
    rng = np.random.default_rng(0)
    X = rng.normal(size=(300, 2))
    gh = to_fixed(np.stack([rng.normal(size=300), rng.random(300)], axis=1))
    cuts, params = quantile_cuts(X, 16), TreeParams(max_depth=4)
    bins = bin_rows(X, cuts)
    trees, n_requested = [], []
    for subtract in (True, False):
        partition = RowPartition(300)
        grower = TreeGrower(cuts, params, gh.sum(axis=0), subtract=subtract)
        n_requested.append(0)
        while len(grower.nodes):
            n_requested[-1] += len(grower.to_build)
            hist = build_histogram(bins, gh, partition.rows, partition.ranges(grower.to_build))
            partition.split(bins, grower.choose_splits(hist))
        trees.append(grower.finish())
    np.testing.assert_array_equal(trees[0].threshold, trees[1].threshold)
    np.testing.assert_array_equal(trees[0].value, trees[1].value)
    assert n_requested[1] == 2 * n_requested[0] - 1


def test_histograms_of_the_wrong_shape_are_refused():
    cuts = quantile_cuts(np.arange(5.0)[:, None])
    grower = TreeGrower(cuts, TreeParams(), np.array([0, 2**30]))
    with pytest.raises(DataError, match="expected"):
        grower.choose_splits(np.zeros((1, 4, 2), np.int64))


def test_builder_numbers_children_in_order_of_expansion():
    builder = TreeBuilder()
    np.testing.assert_array_equal(builder.expand([0], [3], [1.5], [True]), [1])
    np.testing.assert_array_equal(
        builder.expand([1, 2], [-1, 0], [0, 2.5], [False, False]), [-1, 3]
    )
    builder.set_values([1, 3, 4], [0.1, 0.2, 0.3])
    tree = builder.build()
    np.testing.assert_array_equal(tree.feature, [3, -1, 0, -1, -1])
    np.testing.assert_array_equal(tree.left, [1, -1, 3, -1, -1])
    np.testing.assert_array_equal(tree.right, [2, -1, 4, -1, -1])
    np.testing.assert_array_equal(tree.leaves, [1, 3, 4])
    assert tree.g is None
    assert tree.gain is None
    with pytest.raises(DataError, match="split before"):
        builder.expand([2], [0], [0.0], [False])
    with pytest.raises(DataError, match="split before"):
        builder.set_values([0], [1.0])
    with pytest.raises(DataError, match="does not exist"):
        builder.expand([9], [0], [0.0], [False])

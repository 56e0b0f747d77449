"""Trees with random tests that are drawn without data: the tests, and the rows of the leaves."""

import itertools

import numpy as np
import pytest

from fedtrees.core.errors import DataError
from fedtrees.core.schema import Feature, OneHot, Schema
from fedtrees.core.streams import Streams
from fedtrees.trees.forest.random_decision import (
    RandomDecisionForest,
    RandomSplits,
    draw_splits,
    public_tests,
)

BINARY = [Feature(name, "categorical", categories=("0", "1")) for name in "abcdefg"]
# abc is exactly one of three, de at most one of two; f and g are free; x is a number.
SCHEMA = Schema(
    (*BINARY, Feature("x", low=0, high=4)),
    "y",
    groups=(OneHot(("a", "b", "c")), OneHot(("d", "e"), empty=True)),
)
VALID = np.array(
    [
        [*abc, *de, f, g, x]
        for abc in np.eye(3)
        for de in ((0, 0), (1, 0), (0, 1))
        for f, g, x in itertools.product((0, 1), (0, 1), (0.5, 1.5, 2.5, 3.5))
    ],
    dtype=np.float32,
)


def drawn(depth, trees=40, schema=SCHEMA, **options):
    return draw_splits(schema, depth, lambda t: Streams(5).rng("t", t), trees, bins=4, **options)


def empty_leaves(splits):
    return (splits.count(VALID, np.zeros(len(VALID), int), 2).sum(axis=2) == 0).mean()


def test_no_test_contradicts_its_path():
    assert empty_leaves(drawn(3)) == 0
    assert empty_leaves(drawn(3, repeats=True)) > 0.2


def test_tests_are_drawn_with_equal_frequency():
    splits = drawn(1, trees=1500)
    shares = np.bincount(splits.feature[:, 0], minlength=8) / 1500
    assert np.abs(shares - 1 / 8).max() < 0.035
    thresholds_of_x = splits.threshold[splits.feature[:, 0] == 7, 0]
    assert sorted(set(thresholds_of_x.tolist())) == [1, 2, 3]


def test_trees_may_be_deeper_than_the_number_of_tests():
    splits = drawn(9, trees=2)
    assert splits.depth == 9
    counts = splits.count(VALID, np.arange(len(VALID)) % 2, 2)
    assert (counts.sum(axis=(1, 2)) == len(VALID)).all()
    assert (counts.sum(axis=1) == len(VALID) // 2).all()
    # Rows that differ are in different leaves after all tests.
    assert counts.sum(axis=2).max() == 1


def test_rows_go_right_at_the_threshold_and_left_where_they_have_no_value():
    splits = RandomSplits(np.array([[1, 0, 0]]), np.array([[1, 2, 3]], dtype=np.float32))
    X = np.array([[2, 0], [1, 0], [3, 1], [2.9, 1], [np.nan, np.nan]], dtype=np.float32)
    assert splits.apply(X)[:, 0].tolist() == [1, 0, 3, 2, 0]


def test_votes_are_means_of_shares():
    splits = RandomSplits(np.zeros((2, 1), np.int32), np.ones((2, 1), np.float32))
    counts = np.array([[[3, 1], [-2, 4]], [[-1, -3], [0, 0]]])
    forest = RandomDecisionForest(splits, counts)
    assert forest.predict(np.array([[0.0], [1.0]])).tolist() == [(0.25 + 0.5) / 2, (1 + 0.5) / 2]


def test_columns_without_possible_tests_are_refused():
    with pytest.raises(DataError, match=r"in all\) have none: declare ranges in the schema"):
        public_tests(Schema((Feature("z"),), "y"), 4)
    single_category = Schema((Feature("c", "categorical", categories=("only",)),), "y")
    with pytest.raises(DataError, match=r"no column can be split, .* declare more categories"):
        public_tests(single_category, 4)
    with pytest.raises(DataError, match="no complete trees"):
        RandomSplits(np.zeros((1, 4), np.int32), np.zeros((1, 4), np.float32))
    with pytest.raises(DataError, match="do not fit 2 trees of 4 leaves"):
        RandomDecisionForest(drawn(2, trees=2), np.zeros((2, 2, 2), np.int64))
    with pytest.raises(DataError, match="at least 8 features"):
        drawn(3).apply(VALID[:, :7])


@pytest.mark.parametrize(
    ("groups", "fault"),
    [
        ((OneHot(("a",)),), "too few columns"),
        ((OneHot(("a", "q")),), r"unknown columns \['q'\]"),
        ((OneHot(("a", "b")), OneHot(("b", "c"))), r"\['b'\] twice"),
    ],
)
def test_groups_that_make_no_sense_are_refused(groups, fault):
    with pytest.raises(DataError, match=f"has {fault}; name two or more columns"):
        Schema(SCHEMA.features, "y", groups=groups)


def test_a_group_that_loses_a_column_is_none():
    assert SCHEMA.of_columns([0, 1, 2, 3]).groups == SCHEMA.groups[:1]

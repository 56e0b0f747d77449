"""A passive party refuses every request that no honest run with the public parameters contains."""

import numpy as np
import pytest

from fedtrees.core.errors import BeyondParametersError
from fedtrees.core.messages import Sealed
from fedtrees.messages.vertical import ChosenSplits, NodeRows, RootRows, RowStatistics
from fedtrees.protocols.vertical.passive import Limits, PassiveTreeLimits

LIMITS = Limits(trees=2, depth=2, leaves=3, statistics=2, classes=3)
COLUMNS, BINS = np.array([4], np.int32), np.array([5], np.int32)


def int_array(*values):
    return np.array(values, np.int32)


def node_request(*requested, tree=0, smaller_children=(), parents=()):
    """Return a request for sums at nodes; the `smaller_children` have no rows."""
    offsets = np.zeros(len(smaller_children) + 1, np.int64)
    return NodeRows(
        tree,
        int_array(*requested),
        int_array(*smaller_children),
        int_array(*parents),
        offsets,
        int_array(),
    )


def chosen_splits(node, left, column=4, bin=1, tree=0):
    return ChosenSplits(
        tree, *(int_array(value) for value in (node, left, column, bin)), np.array([True])
    )


def brought(rows=6, width=2, terms=6, tree=0):
    return RowStatistics(tree, 1, terms, Sealed(("active",), (rows, width), "<i8", 9, None))


def begun():
    tree = PassiveTreeLimits(LIMITS).start_next(RootRows(0, np.arange(6, dtype=np.int32)), 6)
    tree.check_statistics(brought())
    tree.check_request(node_request(0))
    tree.check_splits(chosen_splits(0, 1), COLUMNS, BINS)
    tree.check_request(node_request(1, 2))
    return tree


def deliver(tree, message):
    match message:
        case RootRows():
            tree.start_next(message, 6)
        case RowStatistics():
            tree.check_statistics(message)
        case NodeRows():
            tree.check_request(message)
        case _:
            tree.check_splits(message, COLUMNS, BINS)


@pytest.mark.parametrize(
    ("message", "error_message"),
    [
        (RootRows(2, int_array(0, 1)), "tree 2 after 0; they are 2, in turn"),
        (RootRows(0, int_array(0, 1)), "tree 0 after 0; they are 2, in turn"),
        (RootRows(1, int_array(0, 6)), "its rows are none of 0 to 5"),
        (RootRows(1, int_array(1, 1)), "its rows are none of 0 to 5"),
        (RootRows(1, int_array(-1, 1)), "its rows are none of 0 to 5"),
        (brought(), "its statistics were sent before"),
        (brought(tree=1), "tree 1, while 0 is grown"),
        (node_request(1), "node 1 was requested before"),
        (node_request(0, tree=1), "tree 1, while 0 is grown"),
        (node_request(3, smaller_children=(3,), parents=(1,)), "node 3 has depth 2; max_depth=2"),
        (
            node_request(smaller_children=(3,), parents=(0,)),
            "node 0 has other children than before",
        ),
        (chosen_splits(0, 3), "node 0 was split before"),
        (
            chosen_splits(1, 2),
            "node 1 has other children than before, or the children of another node",
        ),
        (chosen_splits(7, 9), "node 7 was never announced"),
        (node_request(9), "node 9 was never announced"),
        (node_request(smaller_children=(9,), parents=(7,)), "node 7 was never announced"),
        (chosen_splits(1, 3, bin=5), "bin 5 of column 4 is no cut"),
        (chosen_splits(1, 3, column=0), "bin 1 of column 0 is no cut"),
        (chosen_splits(1, 3, bin=-2), "bin -2 of column 4 is no cut"),
        (chosen_splits(1, 3, tree=1), "tree 1, while 0 is grown"),
    ],
)
def test_messages_that_the_parameters_exclude_are_refused(message, error_message):
    with pytest.raises(BeyondParametersError, match=error_message):
        deliver(begun(), message)


@pytest.mark.parametrize(
    "message", [brought(width=1), brought(5), brought(width=6), brought(terms=7)]
)
def test_statistics_must_match_the_rows_and_the_number_of_classes(message):
    tree = PassiveTreeLimits(LIMITS).start_next(RootRows(0, np.arange(6, dtype=np.int32)), 6)
    with pytest.raises(BeyondParametersError, match="they are 6 rows, and 2 statistics"):
        tree.check_statistics(message)


def test_leaves_are_no_more_than_agreed_and_a_tree_that_a_defense_hides_is_left_out():
    tree = begun()
    tree.check_splits(chosen_splits(1, 3), COLUMNS, BINS)
    with pytest.raises(BeyondParametersError, match="3 splits of a tree; at most 2"):
        tree.check_splits(chosen_splits(2, 5), COLUMNS, BINS)
    later = PassiveTreeLimits(LIMITS).start_next(RootRows(1, np.arange(4, dtype=np.int32)), 6)
    with pytest.raises(BeyondParametersError, match="no statistics were sent to sum"):
        later.check_request(node_request(0, tree=1))
    later.check_statistics(brought(4, 5, 4, tree=1))  # with one-hot labels of three classes
    later.check_request(node_request(0, tree=1))

"""What a passive party refuses: whatever no honest run of the public parameters tells it."""

import numpy as np
import pytest

from fedtrees.core.errors import BeyondParametersError
from fedtrees.core.messages import Sealed
from fedtrees.messages.vertical import ChosenSplits, NodeRows, RootRows, RowStatistics
from fedtrees.protocols.vertical.passive import Limits, PassiveTreeLimits

LIMITS = Limits(trees=2, depth=2, leaves=3, statistics=2, classes=3)
COLUMNS, BINS = np.array([4], np.int32), np.array([5], np.int32)


def whole(*values):
    return np.array(values, np.int32)


def asked(*nodes, tree=0, told=(), parents=()):
    """A question for sums at some nodes; of each told node the rows are none."""
    offsets = np.zeros(len(told) + 1, np.int64)
    return NodeRows(tree, whole(*nodes), whole(*told), whole(*parents), offsets, whole())


def chosen(node, left, column=4, bin=1, tree=0):
    return ChosenSplits(tree, *(whole(v) for v in (node, left, column, bin)), np.array([True]))


def brought(rows=6, width=2, terms=6, tree=0):
    return RowStatistics(tree, 1, terms, Sealed(("active",), (rows, width), "<i8", 9, None))


def begun():
    tree = PassiveTreeLimits(LIMITS).start_next(RootRows(0, np.arange(6, dtype=np.int32)), 6)
    tree.check_statistics(brought())
    tree.check_request(asked(0))
    tree.check_splits(chosen(0, 1), COLUMNS, BINS)
    tree.check_request(asked(1, 2))
    return tree


def tell(tree, told):
    match told:
        case RootRows():
            tree.start_next(told, 6)
        case RowStatistics():
            tree.check_statistics(told)
        case NodeRows():
            tree.check_request(told)
        case _:
            tree.check_splits(told, COLUMNS, BINS)


@pytest.mark.parametrize(
    ("told", "refused"),
    [
        (RootRows(2, whole(0, 1)), "tree 2 after 0; they are 2, in turn"),
        (RootRows(0, whole(0, 1)), "tree 0 after 0; they are 2, in turn"),
        (RootRows(1, whole(0, 6)), "its rows are none of 0 to 5"),
        (RootRows(1, whole(1, 1)), "its rows are none of 0 to 5"),
        (RootRows(1, whole(-1, 1)), "its rows are none of 0 to 5"),
        (brought(), "its statistics were sent before"),
        (brought(tree=1), "tree 1, while 0 is grown"),
        (asked(1), "node 1 was requested before"),
        (asked(0, tree=1), "tree 1, while 0 is grown"),
        (asked(3, told=(3,), parents=(1,)), "node 3 has depth 2; max_depth=2"),
        (asked(told=(3,), parents=(0,)), "node 0 has other children than before"),
        (chosen(0, 3), "node 0 was split before"),
        (chosen(1, 2), "node 1 has other children than before, or the children of another node"),
        (chosen(7, 9), "node 7 was never announced"),
        (asked(9), "node 9 was never announced"),
        (asked(told=(9,), parents=(7,)), "node 7 was never announced"),
        (chosen(1, 3, bin=5), "bin 5 of column 4 is no cut"),
        (chosen(1, 3, column=0), "bin 1 of column 0 is no cut"),
        (chosen(1, 3, bin=-2), "bin -2 of column 4 is no cut"),
        (chosen(1, 3, tree=1), "tree 1, while 0 is grown"),
    ],
)
def test_what_the_parameters_rule_out_is_refused_by_name(told, refused):
    with pytest.raises(BeyondParametersError, match=refused):
        tell(begun(), told)


@pytest.mark.parametrize("told", [brought(width=1), brought(5), brought(width=6), brought(terms=7)])
def test_rows_bring_what_the_loss_needs_and_their_classes(told):
    tree = PassiveTreeLimits(LIMITS).start_next(RootRows(0, np.arange(6, dtype=np.int32)), 6)
    with pytest.raises(BeyondParametersError, match="they are 6 rows, and 2 statistics"):
        tree.check_statistics(told)


def test_leaves_are_no_more_than_agreed_and_a_tree_that_a_defense_hides_is_left_out():
    tree = begun()
    tree.check_splits(chosen(1, 3), COLUMNS, BINS)
    with pytest.raises(BeyondParametersError, match="3 splits of a tree; at most 2"):
        tree.check_splits(chosen(2, 5), COLUMNS, BINS)
    later = PassiveTreeLimits(LIMITS).start_next(RootRows(1, np.arange(4, dtype=np.int32)), 6)
    with pytest.raises(BeyondParametersError, match="no statistics were sent to sum"):
        later.check_request(asked(0, tree=1))
    later.check_statistics(brought(4, 5, 4, tree=1))  # with one-hot labels of three classes
    later.check_request(asked(0, tree=1))

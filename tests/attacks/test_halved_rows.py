"""Single rows in nodes: contradictory sums reveal no row."""

import numpy as np
import pytest

from fedtrees.attacks.malicious.halved import _read
from fedtrees.attacks.malicious.nodes import Nodes

OFFSETS = np.array([0, 2, 4], dtype=np.int32)


def root(*cells):
    """Return a tree of one node in which a row of class 0 is in these bins."""
    counts = np.zeros((1, 4, 2), dtype=np.int64)
    counts[0, list(cells), 0] = 1
    return Nodes(counts, np.array([[1, 0]]), {0: 0}, {})


@pytest.mark.parametrize(("second", "read"), [((0, 3), {(0, 1, 0): 1}), ((1, 2), {})])
def test_contradictory_sums_reveal_no_row(second, read):
    assert _read([root(0, 3), root(*second)], OFFSETS) == read

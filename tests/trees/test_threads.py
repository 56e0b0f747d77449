from __future__ import annotations

import threading

import numpy as np
import pytest

from fedtrees.core.errors import UsageError
from fedtrees.trees import threads
from fedtrees.trees.threads import SMALLEST_BLOCK, Workers, row_blocks


@pytest.mark.parametrize("n", [0, 1, SMALLEST_BLOCK, 2 * SMALLEST_BLOCK, 10**6 + 1])
@pytest.mark.parametrize("count", [1, 2, 3, 8])
def test_blocks_cover_every_row_once_and_none_is_small(n, count):
    blocks = row_blocks(n, count)
    every = np.concatenate([np.arange(n)[b] for b in blocks])
    np.testing.assert_array_equal(every, np.arange(n))
    sizes = [b.stop - b.start for b in blocks]
    assert len(blocks) <= count
    assert max(sizes) - min(sizes) <= 1
    assert len(blocks) == 1 or min(sizes) >= SMALLEST_BLOCK


def test_answers_come_in_the_order_of_the_questions():
    with Workers(3) as workers:
        assert workers.map(lambda a, b: a * b, range(7), range(7)) == [i * i for i in range(7)]


def test_calls_really_overlap():
    """Each call waits for the other: in turn, the barrier would break."""
    barrier = threading.Barrier(2, timeout=20)
    with Workers(2) as workers:
        assert sorted(workers.map(lambda _: barrier.wait(), range(2))) == [0, 1]


def test_one_thread_stays_on_the_calling_one():
    with Workers(1) as workers:
        found = workers.map(lambda _: threading.get_ident(), range(3))
    assert set(found) == {threading.get_ident()}


def test_an_error_in_any_thread_is_raised():
    with Workers(2) as workers, pytest.raises(ZeroDivisionError):
        workers.map(lambda x: 1 // x, [1, 0])


def test_no_thread_is_refused():
    with pytest.raises(UsageError, match="threads=0"):
        Workers(0)

from __future__ import annotations

import threading

import numpy as np
import pytest

from fedtrees.core.errors import UsageError
from fedtrees.trees.boosted import boosting
from fedtrees.trees.boosted.boosting import SMALLEST_BLOCK, Workers, grow_forest
from fedtrees.trees.boosted.losses import LOGISTIC, named_objective
from fedtrees.trees.boosted.params import TreeParams
from fedtrees.trees.cut_points import quantile_cuts


@pytest.mark.parametrize("n", [0, 1, SMALLEST_BLOCK, 2 * SMALLEST_BLOCK, 10**6 + 1])
@pytest.mark.parametrize("count", [1, 2, 3, 8])
def test_blocks_cover_every_row_once_and_none_is_small(n, count):
    with Workers(count) as workers:
        blocks = workers.blocks(n)
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


def test_a_single_worker_runs_on_the_calling_thread():
    with Workers(1) as workers:
        thread_ids = workers.map(lambda _: threading.get_ident(), range(3))
    assert set(thread_ids) == {threading.get_ident()}


def test_an_error_in_any_thread_is_raised():
    with Workers(2) as workers, pytest.raises(ZeroDivisionError):
        workers.map(lambda x: 1 // x, [1, 0])


def test_no_thread_is_refused():
    with pytest.raises(UsageError, match="threads=0"):
        Workers(0)


@pytest.mark.parametrize("count", [2, 5])
@pytest.mark.parametrize("kind", ["binary", "weighted, missing, subsampled", "classes"])
def test_any_number_of_threads_gives_the_same_forest(monkeypatch, count, kind):
    monkeypatch.setattr(boosting, "SMALLEST_BLOCK", 50)
    rng = np.random.default_rng(0)
    X = rng.normal(size=(701, 6))
    y = (X[:, 0] + X[:, 1] * X[:, 2] + rng.normal(size=701) > 0).astype(int)
    objective, weight, params = LOGISTIC, None, TreeParams(trees=4, max_depth=4)
    if kind == "classes":
        y, objective = y + (X[:, 3] > 0.5), named_objective("multi:softprob", 3)
    elif kind != "binary":
        X[rng.random(X.shape) < 0.2] = np.nan
        weight, params = rng.random(701), TreeParams(trees=4, max_depth=4, subsample=0.7)
    cuts = quantile_cuts(X, 32)
    single_thread, several_threads = (
        grow_forest(X, y, cuts, params, objective, weight=weight, threads=n) for n in (1, count)
    )
    assert len(single_thread.trees) == len(several_threads.trees)
    for tree, other_tree in zip(single_thread.trees, several_threads.trees, strict=True):
        for name in ("feature", "threshold", "left", "default_left", "value", "g", "h", "gain"):
            np.testing.assert_array_equal(getattr(tree, name), getattr(other_tree, name))

"""The row of a pool that suits a box best, against a search of all rows."""

import numpy as np
import pytest

from fedtrees.attacks.reconstruction.boxes import ANY, FeatureBoxes
from fedtrees.attacks.timberstrike.nearest_rows import nearest_rows


def _boxes(rng: np.random.Generator, n: int, d: int, cells: int) -> FeatureBoxes:
    ends = np.sort(rng.integers(0, cells + 1, (2, n, d)), axis=0).astype(np.int32)
    y, zero = rng.integers(0, 2, n), np.zeros(n)
    boxes = FeatureBoxes(ends[0], ends[1], y, zero.astype(np.float32), zero.astype(np.int64))
    boxes.missing = rng.random((n, d)) < 0.3
    few = rng.random((n, d)) < 0.3
    boxes.codes = np.where(few, rng.integers(0, 2**cells, (n, d)).astype(np.uint64), ANY)
    return boxes


def _searched(boxes, narrow, cells, y, u):
    """Look at every row of the label in turn, as the words of `nearest_rows` say."""
    uses, found = np.zeros(len(y), dtype=int), []
    for i, label in enumerate(boxes.y):
        at = [(int(u[i] * len(y)) + step) % len(y) for step in range(len(y))]
        at = [r for r in at if y[r] == label]
        c = cells[at]
        fits = (c >= boxes.lo[i]) & (c < boxes.hi[i])
        allowed = (boxes.codes[i] >> np.maximum(c, 0).astype(np.uint64)) & np.uint64(1)
        fits &= (boxes.codes[i] == ANY) | (allowed == 1)
        fits = np.where(c < 0, boxes.missing[i], fits)
        bad = (~fits & narrow[i]).sum(axis=1)
        best = min(range(len(at)), key=lambda k: (bad[k], uses[at[k]])) if at else None
        found.append(-1 if best is None else at[best])
        if best is not None:
            uses[at[best]] += 1
    return found


@pytest.mark.long
@pytest.mark.parametrize(("rows", "d"), [(3, 1), (64, 2), (130, 9)])
def test_it_is_the_row_that_a_search_of_all_rows_finds(rows, d):
    rng = np.random.default_rng(rows)
    for cells in (2, 7):
        boxes = _boxes(rng, 60, d, cells)
        pool = rng.integers(-1, cells, (rows, d)).astype(np.int32)
        y, u = rng.integers(0, 2, rows), rng.random(60)
        narrow = rng.random((60, d)) < 0.8
        got = nearest_rows(boxes, narrow, pool, y, u)
        assert got.tolist() == _searched(boxes, narrow, pool, y, u)


def test_where_no_row_has_the_label_there_is_none():
    boxes = _boxes(np.random.default_rng(0), 5, 2, 3)
    boxes.y[:] = [0, 1, 1, 0, 2]
    pool = np.zeros((4, 2), dtype=np.int32)
    got = nearest_rows(boxes, np.ones((5, 2), dtype=bool), pool, np.ones(4, int), np.zeros(5))
    assert (got >= 0).tolist() == [False, True, True, False, False]

"""The row of a pool that fits a box best equals that of an exhaustive search."""

import numpy as np
import pytest

from fedtrees.attacks.reconstruction.boxes import ANY, FeatureBoxes
from fedtrees.attacks.timberstrike.sample_from_boxes import nearest_rows


def _boxes(rng: np.random.Generator, n: int, d: int, cells: int) -> FeatureBoxes:
    ends = np.sort(rng.integers(0, cells + 1, (2, n, d)), axis=0).astype(np.int32)
    y, zero = rng.integers(0, 2, n), np.zeros(n)
    boxes = FeatureBoxes(ends[0], ends[1], y, zero.astype(np.float32), zero.astype(np.int64))
    boxes.missing = rng.random((n, d)) < 0.3
    has_set = rng.random((n, d)) < 0.3
    boxes.codes = np.where(has_set, rng.integers(0, 2**cells, (n, d)).astype(np.uint64), ANY)
    return boxes


def _search_all_rows(boxes, cells, y, u):
    """Compare every row with the label in turn, as documented in `nearest_rows`."""
    uses, nearest = np.zeros(len(y), dtype=int), []
    for i, label in enumerate(boxes.y):
        candidates = [(int(u[i] * len(y)) + step) % len(y) for step in range(len(y))]
        candidates = [row for row in candidates if y[row] == label]
        candidate_cells = cells[candidates]
        fits = (candidate_cells >= boxes.lo[i]) & (candidate_cells < boxes.hi[i])
        allowed = (boxes.codes[i] >> np.maximum(candidate_cells, 0).astype(np.uint64)) & np.uint64(
            1
        )
        fits &= (boxes.codes[i] == ANY) | (allowed == 1)
        fits = np.where(candidate_cells < 0, boxes.missing[i], fits)
        n_mismatches = (~fits).sum(axis=1)
        best = (
            min(
                range(len(candidates)),
                key=lambda position: (n_mismatches[position], uses[candidates[position]]),
            )
            if candidates
            else None
        )
        nearest.append(-1 if best is None else candidates[best])
        if best is not None:
            uses[candidates[best]] += 1
    return nearest


@pytest.mark.long
@pytest.mark.parametrize(("rows", "d"), [(3, 1), (64, 2), (130, 9)])
def test_the_nearest_row_equals_that_of_an_exhaustive_search(rows, d):
    rng = np.random.default_rng(rows)
    for cells in (2, 7):
        boxes = _boxes(rng, 60, d, cells)
        pool = rng.integers(-1, cells, (rows, d)).astype(np.int32)
        y, chance = rng.integers(0, 2, rows), rng.random(60)
        nearest = nearest_rows(boxes, pool, y, chance)
        assert nearest.tolist() == _search_all_rows(boxes, pool, y, chance)


def test_no_row_is_returned_if_no_row_has_the_label():
    boxes = _boxes(np.random.default_rng(0), 5, 2, 3)
    boxes.y[:] = [0, 1, 1, 0, 2]
    pool = np.zeros((4, 2), dtype=np.int32)
    nearest = nearest_rows(boxes, pool, np.ones(4, int), np.zeros(5))
    assert (nearest >= 0).tolist() == [False, True, True, False, False]

"""Points of boxes equal the values that a slow numpy implementation chooses."""

from types import SimpleNamespace

import numpy as np
import pytest

from fedtrees.attacks.reconstruction.prior import UNIFORM_SHARE, Prior
from fedtrees.attacks.timberstrike.sample_from_boxes import _draw, nearest_known_values
from fedtrees.core.schema import Table

N, M, D, C = 60, 40, 3, 2


def random_boxes(seed, from_sketches, rows=M):
    """Return boxes, some of which are open or contain no values, with local rows that have
    missing values and ties.
    """
    rng = np.random.default_rng(seed)
    X = np.round(rng.normal(size=(rows, D)) * 3).astype(np.float32) / [1, 2, 7]
    X[rng.random(X.shape) < 0.2] = np.nan
    local_rows = Table(X.astype(np.float32), rng.integers(0, C, rows))
    ends = np.full(D, -3.0), np.full(D, 3.0)
    cells = np.zeros((rows, D), np.int32)
    prior = Prior(
        np.zeros((C, D, 2)), np.zeros((C, D)), *ends, local_rows, cells, from_sketches=from_sketches
    )
    low, high = np.sort(rng.normal(size=(2, N, D)).astype(np.float32) * 2, axis=0)
    low[:9], high[9:18] = -np.inf, np.inf
    return SimpleNamespace(prior=prior, low=low, high=high, y=rng.integers(0, C, N))


@pytest.mark.parametrize("from_sketches", [True, False])
@pytest.mark.parametrize("rows", [M, 1, 0])
def test_values_in_a_box_are_drawn_with_their_probability(from_sketches, rows):
    boxes = random_boxes(rows, from_sketches, rows)
    for f in range(D):
        edges = boxes.low[:, f], boxes.high[:, f]
        box = tuple(np.clip(edge.astype(float), -3, 3) for edge in edges)
        points = _draw(f, boxes.y, edges, box, boxes.prior, np.random.default_rng(f))
        uniform, chance, pick = np.random.default_rng(f).random((3, N))
        uniform = box[0] + uniform * (box[1] - box[0])
        column = boxes.prior.rows.X[:, f]
        all_values = np.sort(column[~np.isnan(column)])
        for i in range(N):
            class_values = np.sort(column[~np.isnan(column) & (boxes.prior.rows.y == boxes.y[i])])
            class_values = class_values if len(class_values) else all_values
            inside, inside_all = (
                pool_values[(pool_values >= edges[0][i]) & (pool_values < edges[1][i])]
                for pool_values in (class_values, all_values)
            )
            expected, is_integer = uniform[i], len(all_values) and (all_values % 1 == 0).all()
            if from_sketches:
                pools = [inside_all, inside][: 2 if chance[i] >= UNIFORM_SHARE else 1]
                for pool in pools:
                    expected = pool[int(pick[i] * len(pool))] if len(pool) else expected
            elif len(class_values):
                if is_integer and np.floor(expected) >= box[0][i]:
                    expected = np.floor(expected)
                share = (1 - UNIFORM_SHARE) * len(inside) / len(class_values)
                spread = UNIFORM_SHARE * (box[1][i] - box[0][i]) / 6
                if chance[i] * (share + spread) < share:
                    expected = inside[int(pick[i] * len(inside))]
            assert points[i] == pytest.approx(expected, abs=1e-12)


def test_the_nearest_value_inside_a_box_is_chosen_above_before_below():
    boxes = random_boxes(0, from_sketches=True)
    X = np.random.default_rng(1).normal(size=(N, D)).astype(np.float32) * 2
    moved = nearest_known_values(X, boxes.low, boxes.high, boxes.prior)
    for i in range(N):
        for f in range(D):
            column = boxes.prior.rows.X[:, f]
            inside = column[(column >= boxes.low[i, f]) & (column < boxes.high[i, f])]
            sorted_values = np.sort(column[~np.isnan(column)])
            above, below = (
                sorted_values[sorted_values >= X[i, f]][:1],
                sorted_values[sorted_values < X[i, f]][-1:],
            )
            candidates = [value for value in (*above, *below) if value in inside]
            assert moved[i, f] == (candidates[0] if candidates else X[i, f])

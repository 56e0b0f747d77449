"""Points of boxes: values that numpy would choose."""

from types import SimpleNamespace

import numpy as np
import pytest

from fedtrees.attacks.reconstruction.prior import UNIFORM_SHARE, Prior
from fedtrees.attacks.timberstrike.sample_from_boxes import _draw, nearest_known_values
from fedtrees.core.schema import Table

N, M, D, C = 60, 40, 3, 2


def world(seed, told, rows=M):
    """Boxes of which some are open or empty of values, and own rows with gaps and ties."""
    rng = np.random.default_rng(seed)
    X = np.round(rng.normal(size=(rows, D)) * 3).astype(np.float32) / [1, 2, 7]
    X[rng.random(X.shape) < 0.2] = np.nan
    own = Table(X.astype(np.float32), rng.integers(0, C, rows))
    ends = np.full(D, -3.0), np.full(D, 3.0)
    cells = np.zeros((rows, D), np.int32)
    prior = Prior(np.zeros((C, D, 2)), np.zeros((C, D)), *ends, own, cells, from_sketches=told)
    low, high = np.sort(rng.normal(size=(2, N, D)).astype(np.float32) * 2, axis=0)
    low[:9], high[9:18] = -np.inf, np.inf
    return SimpleNamespace(prior=prior, low=low, high=high, y=rng.integers(0, C, N))


@pytest.mark.parametrize("told", [True, False])
@pytest.mark.parametrize("rows", [M, 1, 0])
def test_values_in_a_box_are_drawn_as_likely_as_they_are(told, rows):
    w = world(rows, told, rows)
    for f in range(D):
        edges = w.low[:, f], w.high[:, f]
        box = tuple(np.clip(e.astype(float), -3, 3) for e in edges)
        found = _draw(f, w.y, edges, box, w.prior, np.random.default_rng(f))
        flat, u, pick = np.random.default_rng(f).random((3, N))
        flat = box[0] + flat * (box[1] - box[0])
        column = w.prior.rows.X[:, f]
        every = np.sort(column[~np.isnan(column)])
        for i in range(N):
            mine = np.sort(column[~np.isnan(column) & (w.prior.rows.y == w.y[i])])
            mine = mine if len(mine) else every
            inside, others = (v[(v >= edges[0][i]) & (v < edges[1][i])] for v in (mine, every))
            expected, whole = flat[i], len(every) and (every % 1 == 0).all()
            if told:
                pools = [others, inside][: 2 if u[i] >= UNIFORM_SHARE else 1]
                for pool in pools:
                    expected = pool[int(pick[i] * len(pool))] if len(pool) else expected
            elif len(mine):
                if whole and np.floor(expected) >= box[0][i]:
                    expected = np.floor(expected)
                share = (1 - UNIFORM_SHARE) * len(inside) / len(mine)
                spread = UNIFORM_SHARE * (box[1][i] - box[0][i]) / 6
                if u[i] * (share + spread) < share:
                    expected = inside[int(pick[i] * len(inside))]
            assert found[i] == pytest.approx(expected, abs=1e-12)


def test_the_next_value_inside_a_box_is_taken_the_one_above_first():
    w = world(0, told=True)
    X = np.random.default_rng(1).normal(size=(N, D)).astype(np.float32) * 2
    moved = nearest_known_values(X, w.low, w.high, w.prior)
    for i in range(N):
        for f in range(D):
            column = w.prior.rows.X[:, f]
            inside = column[(column >= w.low[i, f]) & (column < w.high[i, f])]
            known = np.sort(column[~np.isnan(column)])
            above, below = known[known >= X[i, f]][:1], known[known < X[i, f]][-1:]
            near = [v for v in (*above, *below) if v in inside]
            assert moved[i, f] == (near[0] if near else X[i, f])

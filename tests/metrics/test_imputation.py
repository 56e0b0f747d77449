import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from small_tables import SCHEMA, random_table

from fedtrees.blind_baselines.imputation import DONORS, REDRAWN, ChainedEquations
from fedtrees.core.schema import Feature, Schema, Table


@settings(max_examples=20, deadline=None)
@given(own=st.integers(1, 40), n=st.integers(1, 60), seed=st.integers(0, 2**30))
def test_redrawn_cells_are_values_of_their_column(own, n, seed):
    rng = np.random.default_rng(seed)
    mine = random_table(own, rng, 0.1)
    rows = mine.take(rng.integers(0, own, n))
    before = rows.X.copy()
    redrawn = ChainedEquations(mine, SCHEMA, rng).redraw(rows, rng)
    assert np.array_equal(rows.X, before, equal_nan=True)
    assert np.array_equal(redrawn.y, rows.y)
    for k in range(mine.X.shape[1]):
        assert set(map(repr, redrawn.X[:, k])) <= set(map(repr, mine.X[:, k]))


@pytest.mark.parametrize("flipped", [False, True])
def test_a_column_that_repeats_another_one_still_nearly_does(flipped):
    """Donors are at most so many places away in the order of the predicted column."""
    rng = np.random.default_rng(0)
    x = np.sort(rng.exponential(size=200)).astype(np.float32)
    own = Table(np.column_stack([x, -x if flipped else x]), np.zeros(200, dtype=np.int64))
    schema = Schema((Feature("a"), Feature("b")), "y", ("0", "1"))
    redrawn = ChainedEquations(own, schema, rng).redraw(own, rng)
    first = np.searchsorted(x, redrawn.X[:, 0])
    second = np.searchsorted(x, -redrawn.X[:, 1] if flipped else redrawn.X[:, 1])
    inside = (np.minimum(first, second) > 2 * DONORS) & (np.maximum(first, second) < 180)
    assert inside.sum() > 100
    assert np.abs(first - second)[inside].max() <= DONORS // 2
    moved = (first != np.arange(200)).mean()
    assert 0.3 < moved < REDRAWN + 0.1


def test_a_category_that_the_others_tell_is_drawn_from_its_like():
    """A wrong one comes from the edges of the groups of equal predictions."""
    rng = np.random.default_rng(1)
    code = np.repeat(np.arange(3), 100).astype(np.float32)
    own = Table(np.column_stack([code, code]), np.zeros(300, dtype=np.int64))
    names = ("x", "y", "z")
    schema = Schema(
        tuple(Feature(k, "categorical", categories=names) for k in "ab"), "t", ("0", "1")
    )
    redrawn = ChainedEquations(own, schema, rng).redraw(own, rng)
    assert (redrawn.X[:, 0] == redrawn.X[:, 1]).mean() > 0.9

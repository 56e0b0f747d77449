import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from small_tables import SCHEMA, random_table

from fedtrees.blind_baselines.imputation import DONORS, REDRAWN, ChainedEquations
from fedtrees.core.schema import Feature, Schema, Table


@settings(max_examples=20, deadline=None)
@given(n_own_rows=st.integers(1, 40), n_rows=st.integers(1, 60), seed=st.integers(0, 2**30))
def test_redrawn_cells_are_values_of_their_column(n_own_rows, n_rows, seed):
    rng = np.random.default_rng(seed)
    own_rows = random_table(n_own_rows, rng, 0.1)
    rows = own_rows.take(rng.integers(0, n_own_rows, n_rows))
    values_before = rows.X.copy()
    redrawn = ChainedEquations(own_rows, SCHEMA, rng).redraw(rows, rng)
    assert np.array_equal(rows.X, values_before, equal_nan=True)
    assert np.array_equal(redrawn.y, rows.y)
    for column in range(own_rows.X.shape[1]):
        assert set(map(repr, redrawn.X[:, column])) <= set(map(repr, own_rows.X[:, column]))


@pytest.mark.parametrize("flipped", [False, True])
def test_a_column_that_repeats_another_one_still_almost_does(flipped):
    """Donors are only a few ranks away in the order of the predicted column."""
    rng = np.random.default_rng(0)
    values = np.sort(rng.exponential(size=200)).astype(np.float32)
    own_rows = Table(
        np.column_stack([values, -values if flipped else values]), np.zeros(200, dtype=np.int64)
    )
    schema = Schema((Feature("a"), Feature("b")), "y", ("0", "1"))
    redrawn = ChainedEquations(own_rows, schema, rng).redraw(own_rows, rng)
    ranks = np.searchsorted(values, redrawn.X[:, 0])
    ranks_of_copy = np.searchsorted(values, -redrawn.X[:, 1] if flipped else redrawn.X[:, 1])
    is_inside = (np.minimum(ranks, ranks_of_copy) > 2 * DONORS) & (
        np.maximum(ranks, ranks_of_copy) < 180
    )
    assert is_inside.sum() > 100
    assert np.abs(ranks - ranks_of_copy)[is_inside].max() <= DONORS // 2
    share_changed = (ranks != np.arange(200)).mean()
    assert 0.3 < share_changed < REDRAWN + 0.1


def test_a_category_that_the_other_column_determines_is_drawn_correctly():
    """Wrong draws come from the edges of the groups of equal predictions."""
    rng = np.random.default_rng(1)
    code = np.repeat(np.arange(3), 100).astype(np.float32)
    own_rows = Table(np.column_stack([code, code]), np.zeros(300, dtype=np.int64))
    names = ("x", "y", "z")
    schema = Schema(
        tuple(Feature(column_name, "categorical", categories=names) for column_name in "ab"),
        "t",
        ("0", "1"),
    )
    redrawn = ChainedEquations(own_rows, schema, rng).redraw(own_rows, rng)
    assert (redrawn.X[:, 0] == redrawn.X[:, 1]).mean() > 0.9

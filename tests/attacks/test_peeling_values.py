"""From a bin to a value: sketched values, integers, and the ends of bins."""

import numpy as np
import pytest
from peeling_world import SERVER, Run, patients, schema_of

from fedtrees.attacks.observations.columns import Column
from fedtrees.attacks.peeling.bin_values import owners_of, ranges_of, sketched_values, values_in
from fedtrees.attacks.reconstruction.boxes import Grid
from fedtrees.attacks.reconstruction.prior import pooled_range, value_ranges
from fedtrees.core.schema import Feature, Schema, Table
from fedtrees.protocols.horizontal.histogram_protocols import FedTreeHist
from fedtrees.trees.binning import Cuts
from fedtrees.trees.cut_points import equal_width_cuts, quantile_cuts

NO_ROWS = np.zeros((0, 1), dtype=np.float32)
RNG = np.random.default_rng(0)


def guess_values(cuts, bins, low=0.0, high=10.0, local_values=NO_ROWS, edges=None):
    """Return the guessed values of one column for some bins."""
    schema = Schema((Feature("x"),), "y")
    bin_indices = np.array(bins, dtype=np.int32)[:, None]
    ranges = np.array([low]), np.array([high])
    return values_in(cuts, schema, bin_indices, local_values, ranges, RNG, edges)[:, 0].tolist()


def exact_column(values, counts):
    return Column(np.array(values, np.float32), np.array(counts, np.int64), True)


def test_cuts_that_are_values_are_the_values_of_their_bins():
    values = np.array([[0.5], [2.25], [7.0], [9.5]], dtype=np.float32)
    cuts = quantile_cuts(values, 16)
    cuts_are_values = np.array([True])
    assert (
        guess_values(cuts, [0, 1, 2, 3], low=0.5, high=9.5, edges=cuts_are_values)
        == values[:, 0].tolist()
    )
    # A declared lower limit takes precedence in the lowest bin.
    assert guess_values(cuts, [0], low=0.25, edges=cuts_are_values) == [0.25]


@pytest.mark.parametrize("local_values", [NO_ROWS, np.array([[3.0], [8.0]], dtype=np.float32)])
def test_columns_of_integers_get_integers(local_values):
    # Bins have a width of a quarter, so one in four contains an integer.
    cuts = equal_width_cuts([0.0], [10.0], 40)
    bins = np.searchsorted(cuts.of(0), np.arange(11), side="right")
    bins = np.minimum(bins, 39)
    assert guess_values(cuts, bins, local_values=local_values) == list(range(11))


def test_other_columns_get_the_middle_of_the_bin():
    cuts = equal_width_cuts([0.0], [10.0], 40)
    assert guess_values(cuts, [0, 1, 4]) == pytest.approx([0.125, 0.375, 1.125])


def test_cut_points_reveal_the_range_of_a_column():
    cuts = equal_width_cuts([0.0, -1.0], [0.0, 2.0], 8)
    assert pooled_range(cuts, 0) == (0.0, 0.0)
    assert pooled_range(cuts, 1) == pytest.approx((-1.0, 2.0), rel=1e-5)


def test_unbounded_cut_points_reveal_no_range():
    values, minimum = [[1.0, 2.0, 2e38], [2e38]], np.array([-2e38, -2e38], dtype=np.float32)
    cuts = Cuts.join([np.array(cut_values, dtype=np.float32) for cut_values in values], minimum)
    local_values = np.array([[-7.0, 0.5], [1.0, 9.0], [np.nan, np.nan]], dtype=np.float32)
    schema = Schema((Feature("a"), Feature("b")), "y")
    local_table = Table(local_values, np.zeros(3, dtype=np.int64))
    grid = Grid.of((), 2)
    for low, high in (
        ranges_of(schema, local_values, cuts), value_ranges(schema, local_table, grid, cuts, "own"),
    ):  # fmt: skip
        assert (low[0], high[0], high[1]) == (-7, 2, 9)
    low, high = ranges_of(schema, local_values[:0], cuts)
    assert np.abs([*low, *high]).max() <= 2


def test_the_value_with_the_most_neighbours_in_a_bin_is_guessed():
    cuts = Cuts(np.array([5, 100], np.float32), np.array([0, 2]), np.array([-1], np.float32))
    sketch = exact_column([1, 2, 6, 7, 50], [1, 3, 2, 2, 1])
    bins = np.array([[0], [1], [-1]], dtype=np.int32)
    values = sketched_values(cuts, bins, [sketch], np.array([False]))[:, 0]
    assert values[:2].tolist() == [2, 6]
    assert np.isnan(values[2])
    # Of a categorical column, the most frequent category is guessed.
    assert sketched_values(cuts, bins, [sketch], np.array([True]))[0, 0] == 2


def test_owners_are_inferred_from_the_remaining_values_of_each_client():
    cuts = Cuts(
        np.array([1, 2, 3, 1, 2], np.float32), np.array([0, 3, 5]), np.array([-1, -1], np.float32)
    )
    columns = {
        "a": (exact_column([0, 1], [1, 1]), exact_column([0], [2])),
        "b": (exact_column([1, 2], [1, 1]), exact_column([0, 1], [1, 1])),
    }
    # The first row can only belong to a, and the last to b. One of the middle rows is left for
    # either.
    bins = np.array([[0, 0], [1, 0], [1, 0], [2, 1]], dtype=np.int32)
    owners = owners_of(bins, cuts, columns, 4)
    assert owners[[0, 3]].tolist() == [0, 1]
    assert sorted(owners[1:3].tolist()) == [0, 1]


def test_integers_from_equal_width_bins_are_exact():
    """The server has no local rows. An earlier version guessed the middles of bins, so no row
    was exact.
    """
    table = patients()
    table = Table(np.round(table.X / table.X.max(axis=0) * 15), table.y)
    run = Run(
        FedTreeHist(trees=25, max_depth=4, cuts="equal-width"), table, principals=SERVER,
        schema=schema_of(table),
    )  # fmt: skip
    guess = run.attack()
    X = guess.claims[0].table.X
    assert len(X) > 100
    rows = {row.tobytes() for row in table.X}
    assert np.mean([row.tobytes() in rows for row in X]) > 0.99

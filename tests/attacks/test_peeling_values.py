"""From a bin to a value: what is told, what is whole, where bins begin."""

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


def one(cuts, bins, low=0.0, high=10.0, own=NO_ROWS, edges=None):
    schema = Schema((Feature("x"),), "y")
    at = np.array(bins, dtype=np.int32)[:, None]
    ranges = np.array([low]), np.array([high])
    return values_in(cuts, schema, at, own, ranges, RNG, edges)[:, 0].tolist()


def column(values, counts):
    return Column(np.array(values, np.float32), np.array(counts, np.int64), True)


def test_cuts_that_are_values_are_the_values_of_their_bins():
    values = np.array([[0.5], [2.25], [7.0], [9.5]], dtype=np.float32)
    cuts = quantile_cuts(values, 16)
    yes = np.array([True])
    assert one(cuts, [0, 1, 2, 3], low=0.5, high=9.5, edges=yes) == values[:, 0].tolist()
    # a declared low comes first for the lowest bin
    assert one(cuts, [0], low=0.25, edges=yes) == [0.25]


@pytest.mark.parametrize("own", [NO_ROWS, np.array([[3.0], [8.0]], dtype=np.float32)])
def test_columns_of_whole_numbers_get_whole_numbers(own):
    cuts = equal_width_cuts([0.0], [10.0], 40)  # bins of a quarter: one in four has a whole number
    bins = np.searchsorted(cuts.of(0), np.arange(11), side="right")
    bins = np.minimum(bins, 39)
    assert one(cuts, bins, own=own) == list(range(11))


def test_others_get_the_middle():
    cuts = equal_width_cuts([0.0], [10.0], 40)
    assert one(cuts, [0, 1, 4]) == pytest.approx([0.125, 0.375, 1.125])


def test_constant_zeros_are_told_by_their_cuts():
    cuts = equal_width_cuts([0.0, -1.0], [0.0, 2.0], 8)
    assert pooled_range(cuts, 0) == (0.0, 0.0)
    assert pooled_range(cuts, 1) == pytest.approx((-1.0, 2.0), rel=1e-5)


def test_cut_points_without_end_tell_no_range():
    values, minimum = [[1.0, 2.0, 2e38], [2e38]], np.array([-2e38, -2e38], dtype=np.float32)
    cuts = Cuts.join([np.array(v, dtype=np.float32) for v in values], minimum)
    own = np.array([[-7.0, 0.5], [1.0, 9.0], [np.nan, np.nan]], dtype=np.float32)
    schema = Schema((Feature("a"), Feature("b")), "y")
    known = Table(own, np.zeros(3, dtype=np.int64))
    grid = Grid.of((), 2)
    for low, high in (
        ranges_of(schema, own, cuts), value_ranges(schema, known, grid, cuts, "own"),
    ):  # fmt: skip
        assert (low[0], high[0], high[1]) == (-7, 2, 9)
    low, high = ranges_of(schema, own[:0], cuts)
    assert np.abs([*low, *high]).max() <= 2


def test_of_several_values_the_one_with_most_about_it_is_told():
    cuts = Cuts(np.array([5, 100], np.float32), np.array([0, 2]), np.array([-1], np.float32))
    told = column([1, 2, 6, 7, 50], [1, 3, 2, 2, 1])
    bins = np.array([[0], [1], [-1]], dtype=np.int32)
    found = sketched_values(cuts, bins, [told], np.array([False]))[:, 0]
    assert found[:2].tolist() == [2, 6]
    assert np.isnan(found[2])
    # equal or not: of categories the most frequent one
    assert sketched_values(cuts, bins, [told], np.array([True]))[0, 0] == 2


def test_owners_follow_from_what_each_has_left():
    cuts = Cuts(
        np.array([1, 2, 3, 1, 2], np.float32), np.array([0, 3, 5]), np.array([-1, -1], np.float32)
    )
    columns = {
        "a": (column([0, 1], [1, 1]), column([0], [2])),
        "b": (column([1, 2], [1, 1]), column([0, 1], [1, 1])),
    }
    # the first can only be of a, the last of b; then one of the middle is left for either
    bins = np.array([[0, 0], [1, 0], [1, 0], [2, 1]], dtype=np.int32)
    found = owners_of(bins, cuts, columns, 4)
    assert found[[0, 3]].tolist() == [0, 1]
    assert sorted(found[1:3].tolist()) == [0, 1]


def test_whole_numbers_read_off_equal_width_bins_are_right_to_the_last_bit():
    """The server has no own rows; before, it guessed middles of bins and no row was exact."""
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

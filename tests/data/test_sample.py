"""Samples of named datasets."""

import numpy as np
import pytest

from fedtrees.core.errors import DataError, UsageError
from fedtrees.data import catalogue
from fedtrees.data.dataset import Dataset, repeated, sample, thinned
from fedtrees.experiments.federation import load_dataset
from fedtrees.experiments.suite import DataRef, Suite


def rows_of(dataset):
    return {tuple(r) for r in np.column_stack([dataset.table.X, dataset.table.y]).tolist()}


def test_a_sample_is_some_of_the_rows_and_always_the_same_ones():
    whole = catalogue.load("wine")
    part = load_dataset(DataRef("wine[rows=50]"), None)
    assert part.name == "wine[rows=50]"
    assert len(part.table) == 50
    assert rows_of(part) < rows_of(whole)
    assert part.digest == sample(whole, 50).digest


def test_fixed_test_rows_stay():
    whole = catalogue.load("wine")
    fixed = np.arange(150, 178)
    whole = Dataset("wine", whole.schema, whole.table, test_rows=fixed)
    part = sample(whole, 40)
    np.testing.assert_array_equal(part.test_rows, np.arange(40, 68))
    np.testing.assert_array_equal(part.table.X[40:], whole.table.X[150:])
    with pytest.raises(DataError, match="1 to 150"):
        sample(whole, 151)


def test_every_row_as_often_as_asked_but_fixed_test_rows():
    twice = load_dataset(DataRef("wine[rows=50,copies=2]"), None)
    once = load_dataset(DataRef("wine[rows=50]"), None)
    np.testing.assert_array_equal(twice.table.X, np.tile(once.table.X, (2, 1)))
    whole = catalogue.load("wine")
    fixed = Dataset("wine", whole.schema, whole.table, test_rows=np.arange(150, 178))
    part = repeated(fixed, 3)
    np.testing.assert_array_equal(part.test_rows, np.arange(450, 478))
    np.testing.assert_array_equal(part.table.X[450:], whole.table.X[150:])
    for copies in (1, True, 2.0, "all"):
        with pytest.raises(DataError, match="2 or more"):
            repeated(whole, copies)


@pytest.mark.parametrize("rows", [0, -1, 1.5, True, "all", 10**9])
def test_impossible_samples_are_named(rows):
    with pytest.raises(DataError, match="give 1 to"):
        sample(catalogue.load("wine"), rows)


def test_a_sample_without_a_class_is_refused():
    with pytest.raises(DataError, match="lack a class"):
        sample(catalogue.load("wine"), 1)


def test_other_parameters_are_refused():
    with pytest.raises(UsageError, match="rows"):
        load_dataset(DataRef("wine[columns=3]"), None)


def test_samples_are_a_grid_in_a_suite():
    suite = Suite.parse('[[grid]]\ndata = ["wine[rows=40,50]", "iris"]', "here")
    names = [ref.name for ref in suite.grids[0].data]
    assert names == ["wine[rows=40]", "wine[rows=50]", "iris"]
    assert Suite.parse(suite.to_toml(), "again").grids == suite.grids


def test_cells_go_missing_by_chance_and_always_the_same_ones():
    whole = catalogue.load("wine").table
    part = load_dataset(DataRef("wine[missing=0.5]"), None)
    gone = np.isnan(part.table.X)
    # 178 x 13 cells: the standard deviation of their share is one point
    assert abs(gone.mean() - 0.5) < 0.05
    np.testing.assert_array_equal(part.table.X[~gone], whole.X[~gone])
    np.testing.assert_array_equal(part.table.y, whole.y)
    assert part.digest == load_dataset(DataRef("wine[missing=0.5]"), None).digest
    assert load_dataset(DataRef("wine[rows=50,missing=0.5]"), None).name == (
        "wine[rows=50][missing=0.5]"
    )


@pytest.mark.parametrize("missing", [0, 1, -0.5, True, "half"])
def test_impossible_shares_of_missing_cells_are_named(missing):
    with pytest.raises(DataError, match="give a share above 0 and below 1"):
        thinned(catalogue.load("wine"), missing)

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


def test_a_sample_is_a_fixed_subset_of_the_rows():
    dataset = catalogue.load("wine")
    sampled = load_dataset(DataRef("wine[rows=50]"), None)
    assert sampled.name == "wine[rows=50]"
    assert len(sampled.table) == 50
    assert rows_of(sampled) < rows_of(dataset)
    assert sampled.digest == sample(dataset, 50).digest


def test_fixed_test_rows_stay():
    dataset = catalogue.load("wine")
    test_positions = np.arange(150, 178)
    dataset = Dataset("wine", dataset.schema, dataset.table, test_rows=test_positions)
    sampled = sample(dataset, 40)
    np.testing.assert_array_equal(sampled.test_rows, np.arange(40, 68))
    np.testing.assert_array_equal(sampled.table.X[40:], dataset.table.X[150:])
    with pytest.raises(DataError, match="1 to 150"):
        sample(dataset, 151)


def test_rows_are_repeated_except_for_fixed_test_rows():
    two_copies = load_dataset(DataRef("wine[rows=50,copies=2]"), None)
    one_copy = load_dataset(DataRef("wine[rows=50]"), None)
    np.testing.assert_array_equal(two_copies.table.X, np.tile(one_copy.table.X, (2, 1)))
    dataset = catalogue.load("wine")
    fixed = Dataset("wine", dataset.schema, dataset.table, test_rows=np.arange(150, 178))
    three_copies = repeated(fixed, 3)
    np.testing.assert_array_equal(three_copies.test_rows, np.arange(450, 478))
    np.testing.assert_array_equal(three_copies.table.X[450:], dataset.table.X[150:])
    for copies in (1, True, 2.0, "all"):
        with pytest.raises(DataError, match="2 or more"):
            repeated(dataset, copies)


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


def test_missing_cells_are_drawn_at_random_and_are_reproducible():
    table = catalogue.load("wine").table
    with_missing = load_dataset(DataRef("wine[missing=0.5]"), None)
    is_missing = np.isnan(with_missing.table.X)
    # 178 x 13 cells: the standard deviation of their share is one point
    assert abs(is_missing.mean() - 0.5) < 0.05
    np.testing.assert_array_equal(with_missing.table.X[~is_missing], table.X[~is_missing])
    np.testing.assert_array_equal(with_missing.table.y, table.y)
    assert with_missing.digest == load_dataset(DataRef("wine[missing=0.5]"), None).digest
    assert load_dataset(DataRef("wine[rows=50,missing=0.5]"), None).name == (
        "wine[rows=50][missing=0.5]"
    )


@pytest.mark.parametrize("missing", [0, 1, -0.5, True, "half"])
def test_impossible_shares_of_missing_cells_are_named(missing):
    with pytest.raises(DataError, match="give a share above 0 and below 1"):
        thinned(catalogue.load("wine"), missing)

"""Sketch reading: exact columns, the evidence that they are exact, and their use by other
attacks.
"""

from collections import Counter
from dataclasses import replace

import guessed
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from peeling_world import SERVER, SHARED, Run, gaussian_table, patients, schema_of

from fedtrees.attacks.observations.columns import (
    Column,
    _in_bins,
    columns_of,
    holds_all_values,
    reliability,
    replace_points,
    shortest,
)
from fedtrees.attacks.observations.rows_from_columns import likely_counts, likely_rows, pool_columns
from fedtrees.attacks.sketch_reading import SketchReading, _as_own
from fedtrees.attacks.timberstrike.attack import TimberStrike
from fedtrees.core.claims import ColumnValues, Records
from fedtrees.core.errors import ProtocolError, UsageError
from fedtrees.core.schema import Feature, Table
from fedtrees.defenses.cut_points import GridCuts, PrivateGridCuts, PrivateQuantileCuts
from fedtrees.defenses.secure_sum import SecureSum
from fedtrees.protocols.forests.forest_hist import ForestHist
from fedtrees.protocols.horizontal.histogram_protocols import FedTreeHist, NVFlareHist
from fedtrees.trees.cut_points import POINTS_PER_BIN, local_sketch


def values_and_counts(column):
    """Return the distinct values of a column that are not missing, and their counts."""
    return np.unique(column[~np.isnan(column)], return_counts=True)


def assert_columns(claims, truth):
    """Assert that every column of every victim was claimed with exact values and counts."""
    claims_by_column = {(c.owner, c.feature): c for c in claims}
    assert len(claims_by_column) == len(claims) == sum(table.X.shape[1] for table in truth.values())
    for (owner, feature), claim in claims_by_column.items():
        values, counts = values_and_counts(truth[owner].X[:, feature])
        assert claim.exact
        assert np.array_equal(claim.values, values)
        assert np.array_equal(claim.counts, counts)


@pytest.fixture(scope="module")
def shared_run():
    return Run(SHARED, patients(missing=0.1))


def test_a_client_of_nvflare_reads_every_column_of_every_other(shared_run):
    guess = SketchReading().run(shared_run.view, np.random.default_rng(0))
    assert_columns(guess.all(ColumnValues), shared_run.truth)
    assert guess.notes["columns_exact"] == guess.notes["columns_seen"] == 16
    records = guess.first(Records)
    for owner, table in shared_run.truth.items():
        is_owner = np.array(records.owner) == owner
        is_victim_value = np.isin(records.table.X[is_owner], table.X)
        assert (is_victim_value | np.isnan(records.table.X[is_owner])).all()


@pytest.mark.parametrize("parts", [[], [SecureSum()]])
@pytest.mark.parametrize("protocol", [FedTreeHist, ForestHist])
def test_the_server_reads_every_column_even_if_histograms_are_hidden(protocol, parts):
    table = gaussian_table(0, codes=1)
    run = Run(protocol(trees=1, max_depth=2), table, principals=SERVER, parts=parts)
    assert_columns(
        SketchReading().run(run.view, np.random.default_rng(0)).all(ColumnValues), run.truth
    )


@pytest.mark.parametrize("protocol", [FedTreeHist, ForestHist])
def test_other_clients_receive_no_sketch(protocol):
    run = Run(protocol(trees=1, max_depth=2), gaussian_table(0))
    assert "no sketch" in str(SketchReading().inapplicable(run.view))


def test_ranges_reveal_only_the_extremes_to_the_server():
    run = Run(FedTreeHist(trees=1, cuts="equal-width"), gaussian_table(0), principals=SERVER)
    guess = SketchReading().run(run.view, np.random.default_rng(0))
    assert guess.first(Records) is None
    for claim in guess.all(ColumnValues):
        column = run.truth[claim.owner].X[:, claim.feature]
        assert claim.values.tolist() == [column.min(), column.max()]
        assert not claim.exact


def test_likely_rows_have_the_victims_columns_and_the_local_dependence(shared_run):
    guess = likely_rows(shared_run.view, np.random.default_rng(0))
    victims = Table.concat(list(shared_run.truth.values()))
    for feature in range(guess.X.shape[1]):
        assert np.array_equal(
            np.sort(guess.X[:, feature]), np.sort(victims.X[:, feature]), equal_nan=True
        )

    # The most correlated pair of local columns must be correlated in the guess, too.
    def rank_correlation(X):
        X = X[~np.isnan(X).any(axis=1)]
        return np.corrcoef(X.argsort(axis=0).argsort(axis=0).T)

    local_correlation = rank_correlation(shared_run.view.rows.X)
    pair = np.unravel_index(
        np.abs(local_correlation - np.eye(len(local_correlation))).argmax(), local_correlation.shape
    )
    assert abs(rank_correlation(guess.X)[pair]) > 0.5 * abs(local_correlation[pair])


def test_columns_without_the_validation_rows_are_not_called_exact():
    run = Run(NVFlareHist(trees=3, max_depth=2, early_stopping_rounds=2), gaussian_table(1))
    assert not any(
        column.exact
        for client_columns in columns_of(run.view).values()
        for column in client_columns
    )


@settings(max_examples=200, deadline=None)
@given(st.integers(0, 2**32 - 1), st.integers(2, 4), st.integers(1, 120), st.integers(1, 60))
def test_weights_show_that_a_sketch_contains_all_values(seed, max_bin, n, n_values):
    """A sketch that is called exact is exact. Sketches below the limit of points are always
    called exact.
    """
    rng = np.random.default_rng(seed)
    X = rng.integers(0, n_values, n) ** int(rng.integers(1, 4))
    sketch = local_sketch(X[:, None].astype(np.float32), max_bin)
    size = POINTS_PER_BIN * max_bin
    values, counts = np.unique(X, return_counts=True)
    is_complete = len(values) == len(sketch.points) and np.array_equal(counts, sketch.weights)
    if holds_all_values(sketch.weights, size) and not sketch.low[0] < sketch.points[0]:
        assert is_complete
    if n <= size:
        assert holds_all_values(sketch.weights, size)


def test_a_sketch_of_a_long_column_contains_some_values_and_both_ends():
    X = np.random.default_rng(0).normal(size=(900, 1)).astype(np.float32)
    table = Table(np.repeat(X, 3, axis=0)[:1800], np.arange(1800) % 2)
    run = Run(FedTreeHist(trees=1, max_depth=1, max_bin=16), table, principals=SERVER)
    for owner, (column,) in columns_of(run.view).items():
        true_values = run.truth[owner].X[:, 0]
        assert not column.exact
        assert column.present == len(true_values)
        assert np.isin(column.values, true_values).all()
        assert (column.values[0], column.values[-1]) == (true_values.min(), true_values.max())


def test_columns_are_not_pooled_if_a_sketch_is_missing(shared_run):
    other_items = tuple(
        item for item in shared_run.view.seen if getattr(item.message, "owner", None) != "client-1"
    )
    assert pool_columns(shared_run.view) is not None
    assert pool_columns(replace(shared_run.view, seen=other_items)) is None


@pytest.mark.long
@pytest.mark.parametrize("attacker", ["client", "server"])
def test_peeling_with_sketches_returns_exact_rows_with_their_owner(attacker):
    """There are no more values than bins. Under secure summation the columns reveal the owner of
    a row.
    """
    table = patients()
    table = Table(np.round(table.X, 2), table.y)
    principals = SERVER if attacker == "server" else None
    parts = [SecureSum()] if attacker == "server" else []
    run = Run(
        NVFlareHist(trees=25, max_depth=4), table, principals=principals, parts=parts,
        schema=schema_of(table),
    )  # fmt: skip
    guess_without_sketches = run.attack(sketches=False)
    guess = run.attack()

    def rows_of(records):
        return [row.tobytes() for row in np.column_stack([records.X, records.y]).astype(np.float32)]

    true_rows = Counter(
        (owner, r) for owner, owner_table in run.truth.items() for r in rows_of(owner_table)
    )
    claimed_rows = Counter(zip(guessed.owner(guess), rows_of(guessed.rows(guess)), strict=True))
    share_correct = (claimed_rows & true_rows).total() / true_rows.total()
    correct_without_owner = Counter(rows_of(guessed.rows(guess_without_sketches))) & Counter(
        r for _, r in true_rows.elements()
    )
    assert share_correct > 0.9
    assert share_correct > correct_without_owner.total() / true_rows.total()


def test_timberstrike_with_sketches_returns_values_of_the_victims():
    run = Run(NVFlareHist(trees=4, max_depth=3), patients())
    options = {"max_level": "statistics", "chains": 3}
    victims = Table.concat(list(run.truth.values()))

    def share_of_victim_values(sketches):
        attack = TimberStrike(**options, sketches=sketches)
        X = guessed.rows(attack.run(run.view, np.random.default_rng(0))).X
        return np.mean(
            [np.isin(X[:, feature], victims.X[:, feature]).mean() for feature in range(X.shape[1])]
        )

    assert share_of_victim_values(True) == 1
    assert share_of_victim_values(False) < 0.8


@pytest.mark.parametrize(("epsilon", "local_rows_are_better"), [(1, True), (1000, False)])
def test_noisy_quantiles_do_not_replace_local_rows(epsilon, local_rows_are_better):
    run = Run(
        NVFlareHist(trees=1, max_depth=1), gaussian_table(0), parts=[PrivateQuantileCuts(epsilon)]
    )
    reliabilities = [
        column.reliability
        for client_columns in columns_of(run.view).values()
        for column in client_columns
    ]
    assert (max(reliabilities) < 0.1) == local_rows_are_better
    assert (likely_rows(run.view, np.random.default_rng(0)) is None) == local_rows_are_better


def test_noisy_quantiles_are_replaced_by_local_values_between_them():
    """The three noisy points make four parts of the range, one of which contains no local value."""
    local_values = np.repeat(np.arange(10, dtype=np.float32), 10)
    points_and_counts = np.array([0.5, 0.7, 8.2], np.float32), np.array([200, 0, 200])
    for trust, first_count in ((0.0, 20), (1.0, 67)):
        values, counts = _as_own(
            Column(*points_and_counts, False, reliability=trust), local_values, 200
        )
        assert np.array_equal(values, np.arange(10))
        assert counts.sum() == 200
        assert counts[0] == first_count


def test_rounded_points_are_replaced_by_the_nearest_local_values():
    local_rows = Table(
        np.array([[1.2, 7], [0.9, 7], [4.6, 8]], dtype=np.float32), np.zeros(3, dtype=int)
    )
    rounded = np.array([1, 3, 5], dtype=np.float32), np.array([4, 2, 5])
    columns = Column(*rounded, False, points=True), Column(*rounded, True)
    replaced, exact = replace_points(columns, local_rows)
    assert replaced.values.tolist() == np.array([0.9, 1.2, 3, 4.6], dtype=np.float32).tolist()
    assert replaced.counts.tolist() == [2, 2, 2, 5]
    assert exact is columns[1]


def test_bad_claims_and_options_are_refused():
    with pytest.raises(UsageError, match="draws=0"):
        SketchReading(draws=0)
    ones = np.ones(2, dtype=np.int64)
    with pytest.raises(ProtocolError, match="ascending"):
        ColumnValues("a", 0, np.array([2.0, 1.0], dtype=np.float32), ones, True)
    with pytest.raises(ProtocolError, match="outside of 1 to inf"):
        ColumnValues("a", 0, np.array([1.0, 2.0], dtype=np.float32), 0 * ones, True)
    with pytest.raises(ProtocolError, match=r"give one of shape \(n=1\)"):
        ColumnValues("a", 0, np.array([1.0], dtype=np.float32), ones, True)


def test_shortest_returns_the_shortest_decimal_number_of_an_interval():
    low, high = np.array([0.4, 12.31, 7.0, -3.2, 12.3]), np.array([2.6, 12.39, 7.0001, -2.9, 12.31])
    expected = np.array([1, 12.34, 7, -3, 12.3], dtype=np.float32)
    assert np.array_equal(shortest(low, high), expected)


@pytest.mark.parametrize("principals", [("server",), ("server", "client-0")])
def test_decrypted_sums_on_a_grid_reveal_the_pooled_columns_of_the_victims(principals):
    rng = np.random.default_rng(0)
    ages = Table(rng.integers(20, 90, (150, 4)).astype(np.float32), rng.integers(0, 2, 150))
    protocol, parts = FedTreeHist(trees=1, max_depth=2), [GridCuts()]
    run = Run(protocol, ages, principals=principals, parts=parts)
    rows = Table.concat(list(run.truth.values()))
    for column, values in zip(pool_columns(run.view), rows.X.T, strict=True):
        expected_values, counts = values_and_counts(values)  # A cell contains one integer at most.
        assert np.array_equal(column.values, expected_values)
        assert np.array_equal(column.counts, counts)
    records = SketchReading(draws=2).run(run.view, rng).first(Records)
    assert records.owner is None
    assert len(records.table) == len(rows)
    assert np.isin(records.table.X, rows.X).all()


def test_noisy_counts_are_weighted_by_their_variance():
    local_counts, noisy = np.array([8, 2, 0, 0]), np.array([10, 70, 15, 5])
    exact, trust = likely_counts(noisy, local_counts, 100, 1e-9)
    assert np.array_equal(exact, noisy)
    assert trust == pytest.approx(1.0)
    without_information, trust = likely_counts(noisy, local_counts, 100, 1e9)
    assert np.array_equal(without_information, [75, 21, 2, 2])
    assert trust < 1e-3
    mixed, trust = likely_counts(noisy - 40, local_counts, 100, 50.0)
    assert mixed.sum() == 100
    assert mixed.min() >= 0
    assert 0.3 < trust < 0.95


def test_columns_from_noisy_sums_have_the_true_number_of_values():
    """Clipping negative counts at 0 must not add rows. It once turned 300 rows of breast cancer
    into 2,600.
    """
    rng = np.random.default_rng(0)
    ages = Table(rng.integers(20, 90, (150, 4)).astype(np.float32), rng.integers(0, 2, 150))
    protocol, parts = FedTreeHist(trees=1, max_depth=2), [PrivateGridCuts(epsilon=1.0)]
    run = Run(protocol, ages, principals=("server", "client-0"), parts=parts)
    n_rows = sum(map(len, run.truth.values()))
    columns = pool_columns(run.view)
    assert [column.present for column in columns] == [n_rows] * 4
    assert reliability(columns) < 0.5
    assert likely_rows(run.view, rng) is None


def test_bins_are_replaced_by_their_categories_or_their_shortest_number():
    edges, counts = np.array([0.0, 0.3, 0.7, 1.2, 2.0]), np.array([5, 1, 7, 4])
    codes = _in_bins(edges, counts, Feature("c", kind="categorical", categories=("x", "y", "z")))
    assert dict(zip(codes.values, codes.counts, strict=True)) == {0: 5, 1: 7, 2: 4}
    codes_in_wide_bins = _in_bins(
        edges[[0, 3, 4]],
        np.array([8, 3]),
        Feature("c", kind="categorical", categories=("x", "y", "z")),
    )
    assert dict(zip(codes_in_wide_bins.values, codes_in_wide_bins.counts, strict=True)) == {
        0: 4,
        1: 4,
        2: 3,
    }
    numbers = _in_bins(edges, counts, Feature("a"))
    assert numbers.values.tolist() == np.array([0, 0.4, 1, 1.5], np.float32).tolist()
    assert not numbers.exact

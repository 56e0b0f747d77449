"""Sketches read: exact columns, how it is known that they are, and what others make of them."""

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


def present(column):
    return np.unique(column[~np.isnan(column)], return_counts=True)


def assert_columns(claims, truth):
    """Every victim's every column was claimed, value by value and count by count."""
    told = {(c.owner, c.feature): c for c in claims}
    assert len(told) == len(claims) == sum(t.X.shape[1] for t in truth.values())
    for (owner, f), claim in told.items():
        values, counts = present(truth[owner].X[:, f])
        assert claim.exact
        assert np.array_equal(claim.values, values)
        assert np.array_equal(claim.counts, counts)


@pytest.fixture(scope="module")
def shared():
    return Run(SHARED, patients(missing=0.1))


def test_a_client_of_nvflare_reads_every_column_of_every_other(shared):
    guess = SketchReading().run(shared.view, np.random.default_rng(0))
    assert_columns(guess.all(ColumnValues), shared.truth)
    assert guess.notes["columns_exact"] == guess.notes["columns_seen"] == 16
    records = guess.first(Records)
    for owner, table in shared.truth.items():
        mine = np.array(records.owner) == owner
        held = np.isin(records.table.X[mine], table.X)
        assert (held | np.isnan(records.table.X[mine])).all()


@pytest.mark.parametrize("parts", [[], [SecureSum()]])
@pytest.mark.parametrize("protocol", [FedTreeHist, ForestHist])
def test_the_server_reads_them_whatever_hides_the_histograms(protocol, parts):
    table = gaussian_table(0, codes=1)
    run = Run(protocol(trees=1, max_depth=2), table, principals=SERVER, parts=parts)
    assert_columns(
        SketchReading().run(run.view, np.random.default_rng(0)).all(ColumnValues), run.truth
    )


@pytest.mark.parametrize("protocol", [FedTreeHist, ForestHist])
def test_other_clients_are_shown_no_summary(protocol):
    run = Run(protocol(trees=1, max_depth=2), gaussian_table(0))
    assert "no sketch" in str(SketchReading().inapplicable(run.view))


def test_ranges_tell_a_server_the_extremes_alone():
    run = Run(FedTreeHist(trees=1, cuts="equal-width"), gaussian_table(0), principals=SERVER)
    guess = SketchReading().run(run.view, np.random.default_rng(0))
    assert guess.first(Records) is None
    for claim in guess.all(ColumnValues):
        column = run.truth[claim.owner].X[:, claim.feature]
        assert claim.values.tolist() == [column.min(), column.max()]
        assert not claim.exact


def test_rows_are_drawn_with_the_victims_columns_and_own_dependence(shared):
    told = likely_rows(shared.view, np.random.default_rng(0))
    victims = Table.concat(list(shared.truth.values()))
    for f in range(told.X.shape[1]):
        assert np.array_equal(np.sort(told.X[:, f]), np.sort(victims.X[:, f]), equal_nan=True)

    # columns 3 and 6 (means and errors of the same thing) go together among own rows and here
    def together(X):
        X = X[~np.isnan(X).any(axis=1)]
        return np.corrcoef(X.argsort(axis=0).argsort(axis=0).T)

    own = together(shared.view.rows.X)
    pair = np.unravel_index(np.abs(own - np.eye(len(own))).argmax(), own.shape)
    assert abs(together(told.X)[pair]) > 0.5 * abs(own[pair])


def test_what_early_stopping_holds_out_is_not_claimed_to_be_all():
    run = Run(NVFlareHist(trees=3, max_depth=2, early_stopping_rounds=2), gaussian_table(1))
    assert not any(c.exact for parts in columns_of(run.view).values() for c in parts)


@settings(max_examples=200, deadline=None)
@given(st.integers(0, 2**32 - 1), st.integers(2, 4), st.integers(1, 120), st.integers(1, 60))
def test_a_summary_that_holds_all_values_is_told_by_its_weights(seed, max_bin, n, kinds):
    """Whatever is called exact is; up to the cap of points, and where ties show it, beyond."""
    rng = np.random.default_rng(seed)
    X = rng.integers(0, kinds, n) ** int(rng.integers(1, 4))
    sketch = local_sketch(X[:, None].astype(np.float32), max_bin)
    size = POINTS_PER_BIN * max_bin
    values, counts = np.unique(X, return_counts=True)
    whole = len(values) == len(sketch.points) and np.array_equal(counts, sketch.weights)
    if holds_all_values(sketch.weights, size) and not sketch.low[0] < sketch.points[0]:
        assert whole
    if n <= size:
        assert holds_all_values(sketch.weights, size)


def test_a_long_column_is_told_in_part_with_both_ends():
    X = np.random.default_rng(0).normal(size=(900, 1)).astype(np.float32)
    table = Table(np.repeat(X, 3, axis=0)[:1800], np.arange(1800) % 2)
    run = Run(FedTreeHist(trees=1, max_depth=1, max_bin=16), table, principals=SERVER)
    for owner, (column,) in columns_of(run.view).items():
        true = run.truth[owner].X[:, 0]
        assert not column.exact
        assert column.present == len(true)
        assert np.isin(column.values, true).all()
        assert (column.values[0], column.values[-1]) == (true.min(), true.max())


def test_nobody_is_taken_for_all_where_a_sketch_is_not_seen(shared):
    kept = tuple(s for s in shared.view.seen if getattr(s.message, "owner", None) != "client-1")
    assert pool_columns(shared.view) is not None
    assert pool_columns(replace(shared.view, seen=kept)) is None


@pytest.mark.long
@pytest.mark.parametrize("who", ["client", "server"])
def test_peeling_returns_rows_to_the_last_bit_with_their_owner(who):
    """With no more values than bins, and under a sum: columns tell whose row it is."""
    table = patients()
    table = Table(np.round(table.X, 2), table.y)
    principals = SERVER if who == "server" else None
    parts = [SecureSum()] if who == "server" else []
    run = Run(
        NVFlareHist(trees=25, max_depth=4), table, principals=principals, parts=parts,
        schema=schema_of(table),
    )  # fmt: skip
    bare = run.attack(sketches=False)
    guess = run.attack()

    def rows_of(held):
        return [row.tobytes() for row in np.column_stack([held.X, held.y]).astype(np.float32)]

    true = Counter((o, r) for o, t in run.truth.items() for r in rows_of(t))
    found = Counter(zip(guessed.owner(guess), rows_of(guessed.rows(guess)), strict=True))
    right = (found & true).total() / true.total()
    without = Counter(rows_of(guessed.rows(bare))) & Counter(r for _, r in true.elements())
    assert right > 0.9
    assert right > without.total() / true.total()


def test_values_of_timberstrike_are_the_victims():
    run = Run(NVFlareHist(trees=4, max_depth=3), patients())
    options = {"max_level": "statistics", "chains": 3}
    victims = Table.concat(list(run.truth.values()))

    def theirs(sketches):
        made = TimberStrike(**options, sketches=sketches)
        X = guessed.rows(made.run(run.view, np.random.default_rng(0))).X
        return np.mean([np.isin(X[:, f], victims.X[:, f]).mean() for f in range(X.shape[1])])

    assert theirs(True) == 1
    assert theirs(False) < 0.8


@pytest.mark.parametrize(("epsilon", "own_rows_say_more"), [(1, True), (1000, False)])
def test_quantiles_that_are_noise_do_not_stand_for_own_rows(epsilon, own_rows_say_more):
    run = Run(
        NVFlareHist(trees=1, max_depth=1), gaussian_table(0), parts=[PrivateQuantileCuts(epsilon)]
    )
    told = [c.reliability for parts in columns_of(run.view).values() for c in parts]
    assert (max(told) < 0.1) == own_rows_say_more
    assert (likely_rows(run.view, np.random.default_rng(0)) is None) == own_rows_say_more


def test_values_that_were_drawn_are_claimed_as_own_ones_between_them():
    """Drawn ones lie anywhere; of the four parts that they make, one has no own value."""
    own = np.repeat(np.arange(10, dtype=np.float32), 10)
    drawn = np.array([0.5, 0.7, 8.2], np.float32), np.array([200, 0, 200])
    for trusted, first in ((0.0, 20), (1.0, 67)):
        values, counts = _as_own(Column(*drawn, False, reliability=trusted), own, 200)
        assert np.array_equal(values, np.arange(10))
        assert counts.sum() == 200
        assert counts[0] == first


def test_own_values_fill_what_stands_for_values_next_to_it():
    own = Table(np.array([[1.2, 7], [0.9, 7], [4.6, 8]], dtype=np.float32), np.zeros(3, dtype=int))
    rounded = np.array([1, 3, 5], dtype=np.float32), np.array([4, 2, 5])
    columns = Column(*rounded, False, points=True), Column(*rounded, True)
    some, exact = replace_points(columns, own)
    assert some.values.tolist() == np.array([0.9, 1.2, 3, 4.6], dtype=np.float32).tolist()
    assert some.counts.tolist() == [2, 2, 2, 5]
    assert exact is columns[1]


def test_bad_claims_and_options_are_refused():
    with pytest.raises(UsageError, match="draws=0"):
        SketchReading(draws=0)
    one = np.ones(2, dtype=np.int64)
    with pytest.raises(ProtocolError, match="ascending"):
        ColumnValues("a", 0, np.array([2.0, 1.0], dtype=np.float32), one, True)
    with pytest.raises(ProtocolError, match="outside of 1 to inf"):
        ColumnValues("a", 0, np.array([1.0, 2.0], dtype=np.float32), 0 * one, True)
    with pytest.raises(ProtocolError, match=r"give one of shape \(n=1\)"):
        ColumnValues("a", 0, np.array([1.0], dtype=np.float32), one, True)


def test_the_shortest_number_of_an_interval():
    low, high = np.array([0.4, 12.31, 7.0, -3.2, 12.3]), np.array([2.6, 12.39, 7.0001, -2.9, 12.31])
    expected = np.array([1, 12.34, 7, -3, 12.3], dtype=np.float32)
    assert np.array_equal(shortest(low, high), expected)


@pytest.mark.parametrize("principals", [("server",), ("server", "client-0")])
def test_opened_sums_on_a_grid_are_the_victims_pooled_columns(principals):
    rng = np.random.default_rng(0)
    ages = Table(rng.integers(20, 90, (150, 4)).astype(np.float32), rng.integers(0, 2, 150))
    protocol, parts = FedTreeHist(trees=1, max_depth=2), [GridCuts()]
    run = Run(protocol, ages, principals=principals, parts=parts)
    rows = Table.concat(list(run.truth.values()))
    for column, values in zip(pool_columns(run.view), rows.X.T, strict=True):
        found, counts = present(values)  # a cell holds one whole number at most
        assert np.array_equal(column.values, found)
        assert np.array_equal(column.counts, counts)
    records = SketchReading(draws=2).run(run.view, rng).first(Records)
    assert records.owner is None
    assert len(records.table) == len(rows)
    assert np.isin(records.table.X, rows.X).all()


def test_noisy_counts_are_believed_as_far_as_their_law_allows():
    own, noisy = np.array([8, 2, 0, 0]), np.array([10, 70, 15, 5])
    exact, told = likely_counts(noisy, own, 100, 1e-9)
    assert np.array_equal(exact, noisy)
    assert told == pytest.approx(1.0)
    drowned, told = likely_counts(noisy, own, 100, 1e9)
    assert np.array_equal(drowned, [75, 21, 2, 2])
    assert told < 1e-3
    between, told = likely_counts(noisy - 40, own, 100, 50.0)
    assert between.sum() == 100
    assert between.min() >= 0
    assert 0.3 < told < 0.95


def test_columns_of_noisy_sums_have_as_many_values_as_there_are_rows():
    """Counts below 0 cut off are no rows: 2,600 of them stood for 300 of breast cancer."""
    rng = np.random.default_rng(0)
    ages = Table(rng.integers(20, 90, (150, 4)).astype(np.float32), rng.integers(0, 2, 150))
    protocol, parts = FedTreeHist(trees=1, max_depth=2), [PrivateGridCuts(epsilon=1.0)]
    run = Run(protocol, ages, principals=("server", "client-0"), parts=parts)
    n = sum(map(len, run.truth.values()))
    columns = pool_columns(run.view)
    assert [c.present for c in columns] == [n] * 4
    assert reliability(columns) < 0.5
    assert likely_rows(run.view, rng) is None


def test_noisy_bins_stand_for_the_categories_in_them_or_the_shortest_number():
    edges, counts = np.array([0.0, 0.3, 0.7, 1.2, 2.0]), np.array([5, 1, 7, 4])
    codes = _in_bins(edges, counts, Feature("c", kind="categorical", categories=("x", "y", "z")))
    assert dict(zip(codes.values, codes.counts, strict=True)) == {0: 5, 1: 7, 2: 4}
    wide = _in_bins(edges[[0, 3, 4]], np.array([8, 3]),
                    Feature("c", kind="categorical", categories=("x", "y", "z")))  # fmt: skip
    assert dict(zip(wide.values, wide.counts, strict=True)) == {0: 4, 1: 4, 2: 3}
    numbers = _in_bins(edges, counts, Feature("a"))
    assert numbers.values.tolist() == np.array([0, 0.4, 1, 1.5], np.float32).tolist()
    assert not numbers.exact

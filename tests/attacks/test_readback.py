"""Counts that are read back from bounded sums: certain counts are never wrong, and determined
counts are certain.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from fedtrees.attacks.counts.count_bounds import Row, SumBounds, possible, propagate, read_counts
from fedtrees.attacks.counts.count_estimate import _weigh
from fedtrees.attacks.counts.interval_counts import first_trees, values_seen
from fedtrees.attacks.counts.rounded_leaf_values import counts_of_values
from fedtrees.attacks.counts.sum_bounds import members
from fedtrees.attacks.exact_decoding.attack import Lattice
from fedtrees.attacks.observations.reading import read_boosting
from fedtrees.core.claims import LeafCounts
from fedtrees.core.composition import Composition
from fedtrees.core.errors import DataError
from fedtrees.core.local_data import over_clients
from fedtrees.core.schema import Table
from fedtrees.data import catalogue
from fedtrees.defenses.laplace import LaplaceHistogram
from fedtrees.defenses.rounding import HistogramRounding
from fedtrees.defenses.secure_sum import SecureSum
from fedtrees.defenses.suppression import MinBin, SplitOnly
from fedtrees.protocols.horizontal.histogram_protocols import FedTreeHist, NVFlareHist
from fedtrees.protocols.training import train
from fedtrees.protocols.views import view_of
from fedtrees.trees.binning import bin_rows


@pytest.fixture(scope="module")
def clinic():
    """Return 240 rows of breast cancer with complete columns, dealt to three clients."""
    data = catalogue.load("breast-cancer")
    rows = data.table.take(np.random.default_rng(0).permutation(len(data.table))[:240])
    return data.schema, [rows.take(np.arange(k, 240, 3)) for k in range(3)]


def read_first_trees(clinic, principal, *defense, protocol=NVFlareHist, **settings):
    """Return the first trees that a party reads, its view, and the rows of others with the cut
    points.
    """
    schema, tables = clinic
    local_data = over_clients(tables)
    training_protocol = protocol(**({"trees": 1, "max_depth": 4, "max_bin": 16} | settings))
    run = train(training_protocol, local_data, schema, defense=Composition(defense), seed=1)
    view = view_of(run, (principal,), local_data)
    evidence = read_boosting(view)
    other_rows = Table.concat(
        [party.table for name, party in local_data.items() if name != principal]
    )
    return first_trees(view, evidence), view, (other_rows, evidence.observed.cuts)


def true_counts(first_tree, rows_and_cuts):
    """Return the true counts of classes 0 and 1 in each leaf, shape (leaves, 2)."""
    table, cuts = rows_and_cuts
    bins = bin_rows(table.X, cuts).codes.astype(np.int64)
    rows = dict(members(first_tree.tree, cuts, bins))
    y = [table.y[rows[int(leaf)]] for leaf in first_tree.tree.leaves]
    return np.array([[(part == 0).sum(), (part == 1).sum()] for part in y])


@pytest.mark.long
@pytest.mark.parametrize(
    ("principal", "step", "defenses"),
    [("server", 0.3, ()), ("client-0", 0.15, ()), ("server", 0.1, (SecureSum(),))],
)
def test_every_leaf_is_certain_if_rounding_stays_below_two_hessians(
    clinic, principal, step, defenses
):
    """The number of rounding parties times the step is below 0.46, which is twice the hessian of
    a row.
    """
    (first_tree,), view, others = read_first_trees(
        clinic, principal, HistogramRounding(step), *defenses
    )
    assert first_tree.certain.all()
    np.testing.assert_array_equal(first_tree.leaves[0], true_counts(first_tree, others))
    np.testing.assert_array_equal(first_tree.likely, true_counts(first_tree, others))
    claims = Lattice().run(view, np.random.default_rng(0)).all(LeafCounts)
    np.testing.assert_array_equal(claims[0].counts, true_counts(first_tree, others))


@pytest.mark.long
def test_coarse_rounding_lowers_the_number_of_certain_leaves(clinic):
    shares = []
    for step in (0.3, 0.7, 1.5):
        (first_tree,), _, others = read_first_trees(clinic, "server", HistogramRounding(step))
        lo, hi = first_tree.leaves
        expected = true_counts(first_tree, others)
        assert ((lo <= expected) & (expected <= hi)).all()
        correct = (first_tree.likely == expected).all(axis=1)
        assert (correct >= first_tree.certain).all()
        shares.append(first_tree.certain.mean())
    assert shares[0] == 1 > shares[1] > shares[2]


@pytest.mark.long
def test_columns_that_may_lack_values_lower_certainty(clinic):
    """A column that is not declared complete may lack values, so its bins sum to at most the
    rows of the node.
    """
    schema, tables = clinic
    incomplete_schema = replace(
        schema, features=tuple(replace(feature, complete=False) for feature in schema.features)
    )
    certain_if_complete = read_first_trees(clinic, "server", HistogramRounding(0.7))[0][0].certain
    certain_if_incomplete = read_first_trees(
        (incomplete_schema, tables), "server", HistogramRounding(0.7)
    )[0][0].certain
    assert certain_if_incomplete.sum() < certain_if_complete.sum()
    assert (certain_if_complete | ~certain_if_incomplete).all()


def test_a_missing_value_in_a_complete_column_is_refused(clinic):
    schema, tables = clinic
    X = tables[1].X.copy()
    X[3, 2] = np.nan
    with pytest.raises(DataError, match=r"client-1.*mean_perimeter.*complete"):
        train(
            NVFlareHist(trees=1),
            over_clients([tables[0], Table(X, tables[1].y), tables[2]]),
            schema,
        )


def test_weighted_rows_give_no_claims(clinic):
    schema, tables = clinic
    tables = [Table(table.X, table.y, np.ones(len(table), dtype=np.float32)) for table in tables]
    trees, view, _ = read_first_trees((schema, tables), "server", HistogramRounding(0.01))
    assert trees is None
    view_without_defense = read_first_trees((schema, tables), "server")[1]
    for any_view in (view, view_without_defense):
        guess = Lattice().run(any_view, np.random.default_rng(0))
        assert guess.claims == ()
        assert guess.notes["trees_certified"] == 0


@pytest.mark.long
def test_noise_leaves_no_leaf_certain_but_likely_counts_are_close(clinic):
    """Under Laplace noise only the number of rows of the whole tree is certain."""
    (first_tree,), _, others = read_first_trees(clinic, "server", LaplaceHistogram(64.0))
    assert not first_tree.certain.any()
    assert np.abs(first_tree.likely - true_counts(first_tree, others)).mean() < 2


@pytest.mark.long
def test_node_sums_are_read_within_the_rounding_of_all_their_bins(clinic):
    for step, certain in ((0.002, True), (0.5, False)):
        (first_tree,), _, others = read_first_trees(
            clinic, "client-0", HistogramRounding(step), protocol=FedTreeHist
        )
        assert bool(first_tree.certain.all()) == certain
        lo, hi = first_tree.leaves
        expected = true_counts(first_tree, others)
        assert ((lo <= expected) & (expected <= hi)).all()


def test_counts_with_suppressed_bins_are_bounded_correctly(clinic):
    (first_tree,), _, others = read_first_trees(clinic, "server", MinBin(k=2), max_bin=4)
    lo, hi = first_tree.leaves
    expected = true_counts(first_tree, others)
    assert ((lo <= expected) & (expected <= hi)).all()
    assert first_tree.certain.any()


@pytest.mark.parametrize("score", [None, 0.0])
def test_several_classes_are_read_tree_by_tree(score):
    data = catalogue.load("wine-3")
    tables = [data.table.take(np.arange(k, len(data.table), 2)) for k in range(2)]
    first_trees_by_class, view, (table, cuts) = read_first_trees(
        (data.schema, tables), "server", HistogramRounding(0.1), base_score=score, max_bin=8
    )
    assert len(first_trees_by_class) == 3
    for t, tree in enumerate(first_trees_by_class):
        rows = Table(table.X, (table.y == t).astype(np.int64))
        assert tree.certain.all()
        np.testing.assert_array_equal(tree.leaves[0], true_counts(tree, (rows, cuts)))
    assert Lattice().inapplicable(view) is None
    claims = Lattice().run(view, np.random.default_rng(0)).all(LeafCounts)
    assert [claim.tree for claim in claims] == [0, 1, 2]


def test_contradictory_sums_give_no_counts(clinic):
    (first_tree,), _, (_, cuts) = read_first_trees(
        clinic, "server", HistogramRounding(0.1), SecureSum()
    )
    space = possible(first_tree.tree, cuts, first_tree.row, 240, np.zeros(30, dtype=bool))
    sums = first_tree.sources[0].sums
    assert read_counts(space, first_tree.tree, sums, first_tree.row, (240, 240)) is not None
    assert read_counts(space, first_tree.tree, sums, first_tree.row, (239, 239)) is None
    shifted_sums = replace(sums, lo=sums.lo + 2**31, hi=sums.hi + 2**31)
    assert isinstance(shifted_sums, SumBounds)
    assert read_counts(space, first_tree.tree, shifted_sums, first_tree.row, (240, 240)) is None


def test_propagation_keeps_every_solution_of_small_systems():
    """Compare with all assignments for a node of two features with two bins each, and random
    intervals of G.
    """
    rng = np.random.default_rng(0)
    row, no_constraint = Row(600, -400, 240), np.full(1, -1, dtype=np.int32)
    # Counts n0 and n1 of two bins.
    grid = np.array(np.meshgrid(*[range(3)] * 4)).reshape(4, -1).T
    pairs = [(a, b) for a in grid for b in grid if (a[:2] + a[2:] == b[:2] + b[2:]).all()]
    solutions = np.array([np.concatenate([a, b]).reshape(4, 2) for a, b in pairs])
    forms = np.stack(
        [solutions[..., 0], solutions[..., 1], solutions.sum(axis=2), solutions @ [600, -400]], -1
    )
    for _ in range(40):
        width = rng.integers(0, 900, 4)
        solution = forms[rng.integers(len(forms))]
        low, high = solution[:, 3] - width, solution[:, 3] + width
        fits = ((forms[..., 3] >= low) & (forms[..., 3] <= high)).all(axis=1)
        lo, hi = np.zeros((1, 7, 4), dtype=np.int64), np.full((1, 7, 4), 4, dtype=np.int64)
        lo[..., 3], hi[..., 3] = -1600, 2400
        hi[0, :6, :2], hi[0, 6, 2] = 2, 8
        hi[0, [2, 5]] = lo[0, [2, 5]] = 0  # No value is missing.
        bins = [0, 1, 3, 4]
        lo[0, bins, 3], hi[0, bins, 3] = low, high
        start = np.array([0, 3, 6])
        assert propagate(lo, hi, start, no_constraint, no_constraint, row.g0, row.one, 60)
        smallest, largest = forms[fits].min(axis=0), forms[fits].max(axis=0)
        assert (lo[0, bins] <= smallest).all()
        assert (largest <= hi[0, bins]).all()


def test_bins_suppressed_by_the_server_also_lack_the_local_rows(clinic):
    """A client cannot subtract its contribution from a sum that came back as 0."""
    defenses = MinBin(k=5, by="server"), HistogramRounding(0.3)
    (first_tree,), _, others = read_first_trees(clinic, "client-0", *defenses)
    lo, hi = first_tree.leaves
    expected = true_counts(first_tree, others)
    assert ((lo <= expected) & (expected <= hi)).all()


@pytest.mark.long
@pytest.mark.parametrize(("step", "share"), [(0.02, 1.0), (0.1, 0.5)])
def test_leaf_values_of_rounded_sums_reveal_counts(step, share, clinic):
    schema, tables = clinic
    local_data = over_clients(tables)
    protocol = FedTreeHist(trees=1, max_depth=3, max_bin=16)
    defense = Composition((SplitOnly(), HistogramRounding(step)))
    run = train(protocol, local_data, schema, defense=defense, seed=1)
    view = view_of(run, ("client-0",), local_data)
    assert first_trees(view, read_boosting(view)) is None
    first_tree, rows, positives = values_seen(view)
    counts = counts_of_values(first_tree, rows, positives, np.random.default_rng(0))
    others = Table.concat(tables[1:])
    assert counts.sum() == rows == len(others)
    correct = (counts == true_counts(first_tree, (others, first_tree.cuts))).all(axis=1)
    assert correct.mean() >= share
    assert Lattice().run(view, np.random.default_rng(0)).claims == ()


@pytest.mark.parametrize("size", [1, 2, 6])
def test_expected_counts_equal_those_by_enumeration(size):
    """Compare the mean and variance of N and G over all counts. Small counts have separate
    errors.
    """
    rng = np.random.default_rng(size)
    for _ in range(40):
        n0, n1, below0, below1 = rng.integers(0, rng.choice([6, 20]), 4)
        first, last = (np.maximum(x, 0) for x in ([n0 - below0, n1 - below1], [n0 + 9, n1 + 9]))
        unit = np.array([rng.uniform(0.2, 0.8), 1.0, rng.uniform(0.1, 0.25), 1e6])
        lo, hi = (np.array([*ends, sum(ends), 0]) for ends in (first, last))
        step, error = rng.choice([0.0, 0.5], 2), rng.normal(size=(size, size, 2))
        variance = rng.choice([0.1, 1.0, 30.0], 2) * rng.uniform(0.5, 2, error.shape)
        sent = np.array([(n0 + n1) * unit[0] - n1, (n0 + n1) * unit[2]]) + rng.normal(size=2)
        prior = tuple(rng.uniform(0.02, 30, 2).tolist())
        out = np.empty(4)
        _weigh(lo, hi, unit, sent, error, variance, step, prior, out)

        x = np.array([(a, b) for a in range(lo[0], hi[0] + 1) for b in range(lo[1], hi[1] + 1)])
        n, index = x.sum(axis=1), np.where((x.max(axis=1) < size)[:, None], x, size - 1)
        value = np.stack([n * unit[0] - x[:, 1], n * unit[2]], axis=1)
        total_variance = variance[index[:, 0], index[:, 1]] + step**2 / 12
        residual = (
            sent
            - value
            - np.where((x.max(axis=1) < size)[:, None], error[index[:, 0], index[:, 1]], 0)
        )
        log = -(x * np.log1p(1 / np.array(prior))).sum(axis=1)
        log -= 0.5 * (residual**2 / total_variance + np.log(total_variance)).sum(axis=1)
        weight = np.exp(log - log.max())
        sums = np.stack([n, value[:, 0]], axis=1)
        mean = weight @ sums / weight.sum()
        square = weight @ sums**2 / weight.sum()
        np.testing.assert_allclose(out, [*mean, *(square - mean**2)], rtol=1e-6, atol=1e-6)

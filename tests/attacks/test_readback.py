"""Counts read back from bounded sums: nothing certain is wrong, and what must be certain is."""

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
    """Breast cancer: 240 rows of three clients, complete columns."""
    data = catalogue.load("breast-cancer")
    rows = data.table.take(np.random.default_rng(0).permutation(len(data.table))[:240])
    return data.schema, [rows.take(np.arange(k, 240, 3)) for k in range(3)]


def seen(clinic, who, *defense, protocol=NVFlareHist, **settings):
    """Return what a party reads of the first trees, its view, and others' rows."""
    schema, tables = clinic
    held = over_clients(tables)
    made = protocol(**({"trees": 1, "max_depth": 4, "max_bin": 16} | settings))
    run = train(made, held, schema, defense=Composition(defense), seed=1)
    view = view_of(run, (who,), held)
    evidence = read_boosting(view)
    others = Table.concat([h.table for name, h in held.items() if name != who])
    return first_trees(view, evidence), view, (others, evidence.observed.cuts)


def truth(found, others):
    table, cuts = others
    bins = bin_rows(table.X, cuts).codes.astype(np.int64)
    rows = dict(members(found.tree, cuts, bins))
    y = [table.y[rows[int(leaf)]] for leaf in found.tree.leaves]
    return np.array([[(part == 0).sum(), (part == 1).sum()] for part in y])


@pytest.mark.long
@pytest.mark.parametrize(
    ("who", "step", "more"),
    [("server", 0.3, ()), ("client-0", 0.15, ()), ("server", 0.1, (SecureSum(),))],
)
def test_every_leaf_is_certain_up_to_two_hessians_of_rounding(clinic, who, step, more):
    """Parties times step is below .46, twice a row's hessian."""
    (found,), view, others = seen(clinic, who, HistogramRounding(step), *more)
    assert found.certain.all()
    np.testing.assert_array_equal(found.leaves[0], truth(found, others))
    np.testing.assert_array_equal(found.likely, truth(found, others))
    claims = Lattice().run(view, np.random.default_rng(0)).all(LeafCounts)
    np.testing.assert_array_equal(claims[0].counts, truth(found, others))


@pytest.mark.long
def test_coarse_rounding_leaves_more_open_and_likely_counts_are_no_worse_than_certain(clinic):
    shares = []
    for step in (0.3, 0.7, 1.5):
        (found,), _, others = seen(clinic, "server", HistogramRounding(step))
        lo, hi = found.leaves
        true = truth(found, others)
        assert ((lo <= true) & (true <= hi)).all()
        right = (found.likely == true).all(axis=1)
        assert (right >= found.certain).all()
        shares.append(found.certain.mean())
    assert shares[0] == 1 > shares[1] > shares[2]


@pytest.mark.long
def test_missing_values_that_are_not_ruled_out_cost_certainty(clinic):
    """A column that is not declared complete may lack values: its bins are no more than a node."""
    schema, tables = clinic
    unsure = replace(schema, features=tuple(replace(f, complete=False) for f in schema.features))
    sure = seen(clinic, "server", HistogramRounding(0.7))[0][0].certain
    less = seen((unsure, tables), "server", HistogramRounding(0.7))[0][0].certain
    assert less.sum() < sure.sum()
    assert (sure | ~less).all()


def test_a_column_declared_complete_may_not_miss_a_value(clinic):
    schema, tables = clinic
    X = tables[1].X.copy()
    X[3, 2] = np.nan
    with pytest.raises(DataError, match=r"client-1.*mean_perimeter.*complete"):
        train(
            NVFlareHist(trees=1),
            over_clients([tables[0], Table(X, tables[1].y), tables[2]]),
            schema,
        )


def test_rows_of_unequal_weight_leave_all_open(clinic):
    schema, tables = clinic
    tables = [Table(t.X, t.y, np.ones(len(t), dtype=np.float32)) for t in tables]
    found, view, _ = seen((schema, tables), "server", HistogramRounding(0.01))
    assert found is None
    exact = seen((schema, tables), "server")[1]
    for each in (view, exact):
        guess = Lattice().run(each, np.random.default_rng(0))
        assert guess.claims == ()
        assert guess.notes["trees_certified"] == 0


@pytest.mark.long
def test_noise_bounds_nothing_and_leaves_likely_counts(clinic):
    """Of Laplace noise the rows of the whole tree alone are certain; likely counts are near."""
    (found,), _, others = seen(clinic, "server", LaplaceHistogram(64.0))
    assert not found.certain.any()
    assert np.abs(found.likely - truth(found, others)).mean() < 2


@pytest.mark.long
def test_node_sums_alone_are_read_within_the_rounding_of_all_their_bins(clinic):
    for step, certain in ((0.002, True), (0.5, False)):
        (found,), _, others = seen(
            clinic, "client-0", HistogramRounding(step), protocol=FedTreeHist
        )
        assert bool(found.certain.all()) == certain
        lo, hi = found.leaves
        true = truth(found, others)
        assert ((lo <= true) & (true <= hi)).all()


def test_suppressed_bins_hold_few_rows(clinic):
    (found,), _, others = seen(clinic, "server", MinBin(k=2), max_bin=4)
    lo, hi = found.leaves
    true = truth(found, others)
    assert ((lo <= true) & (true <= hi)).all()
    assert found.certain.any()


@pytest.mark.parametrize("score", [None, 0.0])
def test_several_classes_are_read_tree_by_tree(score):
    data = catalogue.load("wine-3")
    tables = [data.table.take(np.arange(k, len(data.table), 2)) for k in range(2)]
    found, view, (table, cuts) = seen(
        (data.schema, tables), "server", HistogramRounding(0.1), base_score=score, max_bin=8
    )
    assert len(found) == 3
    for t, tree in enumerate(found):
        rows = Table(table.X, (table.y == t).astype(np.int64))
        assert tree.certain.all()
        np.testing.assert_array_equal(tree.leaves[0], truth(tree, (rows, cuts)))
    assert Lattice().inapplicable(view) is None
    claims = Lattice().run(view, np.random.default_rng(0)).all(LeafCounts)
    assert [claim.tree for claim in claims] == [0, 1, 2]


def test_contradicting_sums_leave_all_open(clinic):
    (found,), _, (_, cuts) = seen(clinic, "server", HistogramRounding(0.1), SecureSum())
    space = possible(found.tree, cuts, found.row, 240, np.zeros(30, dtype=bool))
    sums = found.sources[0].sums
    assert read_counts(space, found.tree, sums, found.row, (240, 240)) is not None
    assert read_counts(space, found.tree, sums, found.row, (239, 239)) is None
    more = replace(sums, lo=sums.lo + 2**31, hi=sums.hi + 2**31)
    assert isinstance(more, SumBounds)
    assert read_counts(space, found.tree, more, found.row, (240, 240)) is None


def test_propagation_keeps_every_solution_of_small_systems():
    """Against all assignments: a node of two features, two bins each, and random boxes of G."""
    rng = np.random.default_rng(0)
    row, none = Row(600, -400, 240), np.full(1, -1, dtype=np.int32)
    grid = np.array(np.meshgrid(*[range(3)] * 4)).reshape(4, -1).T  # n0, n1 of two bins
    pairs = [(a, b) for a in grid for b in grid if (a[:2] + a[2:] == b[:2] + b[2:]).all()]
    solutions = np.array([np.concatenate([a, b]).reshape(4, 2) for a, b in pairs])
    forms = np.stack(
        [solutions[..., 0], solutions[..., 1], solutions.sum(axis=2), solutions @ [600, -400]], -1
    )
    for _ in range(40):
        width = rng.integers(0, 900, 4)
        true = forms[rng.integers(len(forms))]
        low, high = true[:, 3] - width, true[:, 3] + width
        fits = ((forms[..., 3] >= low) & (forms[..., 3] <= high)).all(axis=1)
        lo, hi = np.zeros((1, 7, 4), dtype=np.int64), np.full((1, 7, 4), 4, dtype=np.int64)
        lo[..., 3], hi[..., 3] = -1600, 2400
        hi[0, :6, :2], hi[0, 6, 2] = 2, 8
        hi[0, [2, 5]] = lo[0, [2, 5]] = 0  # nothing is missing
        at = [0, 1, 3, 4]
        lo[0, at, 3], hi[0, at, 3] = low, high
        start = np.array([0, 3, 6])
        assert propagate(lo, hi, start, none, none, row.g0, row.one, 60)
        best, most = forms[fits].min(axis=0), forms[fits].max(axis=0)
        assert (lo[0, at] <= best).all()
        assert (most <= hi[0, at]).all()


def test_bins_that_the_server_hides_miss_own_rows_too(clinic):
    """What a client sent cannot be taken off a sum that came back as 0."""
    hidden = MinBin(k=5, by="server"), HistogramRounding(0.3)
    (found,), _, others = seen(clinic, "client-0", *hidden)
    lo, hi = found.leaves
    true = truth(found, others)
    assert ((lo <= true) & (true <= hi)).all()


@pytest.mark.long
@pytest.mark.parametrize(("step", "share"), [(0.02, 1.0), (0.1, 0.5)])
def test_leaf_values_alone_tell_counts_where_the_sums_behind_them_were_rounded(step, share, clinic):
    schema, tables = clinic
    held = over_clients(tables)
    made = FedTreeHist(trees=1, max_depth=3, max_bin=16)
    defense = Composition((SplitOnly(), HistogramRounding(step)))
    run = train(made, held, schema, defense=defense, seed=1)
    view = view_of(run, ("client-0",), held)
    assert first_trees(view, read_boosting(view)) is None
    shown, rows, positives = values_seen(view)
    counts = counts_of_values(shown, rows, positives, np.random.default_rng(0))
    others = Table.concat(tables[1:])
    assert counts.sum() == rows == len(others)
    right = (counts == truth(shown, (others, shown.cuts))).all(axis=1)
    assert right.mean() >= share
    assert Lattice().run(view, np.random.default_rng(0)).claims == ()


@pytest.mark.parametrize("size", [1, 2, 6])
def test_counts_are_weighed_as_by_enumeration(size):
    """The mean and variance of N and G over all counts, few rows erring in a way of their own."""
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
        n, at = x.sum(axis=1), np.where((x.max(axis=1) < size)[:, None], x, size - 1)
        value = np.stack([n * unit[0] - x[:, 1], n * unit[2]], axis=1)
        v = variance[at[:, 0], at[:, 1]] + step**2 / 12
        off = sent - value - np.where((x.max(axis=1) < size)[:, None], error[at[:, 0], at[:, 1]], 0)
        log = -(x * np.log1p(1 / np.array(prior))).sum(axis=1)
        log -= 0.5 * (off**2 / v + np.log(v)).sum(axis=1)
        weight = np.exp(log - log.max())
        told = np.stack([n, value[:, 0]], axis=1)
        mean = weight @ told / weight.sum()
        square = weight @ told**2 / weight.sum()
        np.testing.assert_allclose(out, [*mean, *(square - mean**2)], rtol=1e-6, atol=1e-6)

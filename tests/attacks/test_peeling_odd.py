"""Histogram peeling of unusual input gives correct rows or none, never invented rows."""

from __future__ import annotations

from dataclasses import replace

import guessed
import numpy as np
import pytest
from peeling_world import SERVER, SHARED, Run, patients, schema_of

from fedtrees.attacks.peeling.attack import HistogramPeeling
from fedtrees.attacks.peeling.rows import ANYTHING, take_out
from fedtrees.attacks.peeling.sources import sources_of
from fedtrees.core.reasons import Reason
from fedtrees.core.schema import Table
from fedtrees.defenses.laplace import LaplaceHistogram
from fedtrees.defenses.rounding import HistogramRounding
from fedtrees.defenses.suppression import MinBin
from fedtrees.messages.horizontal import BaseScore
from fedtrees.protocols.horizontal.histogram_protocols import NVFlareHist
from fedtrees.trees.binning import MOST_BINS


@pytest.fixture(scope="module")
def shared_run():
    return Run(SHARED, patients(120))


def with_column(table, column):
    return Table(np.column_stack([table.X, np.full(len(table), column)]), table.y)


def same_people(n):
    return Table(np.tile([[1.0, 2.0]], (n, 1)), np.arange(n) % 2)


def twice_each(n):
    """Return every row twice in a row, so that two clients have it."""
    return patients(n).take(np.repeat(np.arange(n), 2))


def without_feature_at_one_client(table):
    """Remove all values of one feature at one client."""
    X = table.X.copy()
    X[1::3, 2] = np.nan
    return Table(X, table.y)


def many_values(n):
    """Return a table with more distinct values than bins. The rows beyond the first n belong to
    the adversary.
    """
    rng = np.random.default_rng(0)
    X = rng.permutation(n)[:, None].astype(np.float32)
    X = np.column_stack([X, rng.normal(size=n)])
    return Table(X, (X[:, 1] + rng.normal(size=n) > 0).astype(np.int64))


def few_victims():
    """Return a run with the largest number of bins. The adversary has most of the rows, the
    victims few.
    """
    table = many_values(66_000)
    clients = [table.take(np.arange(40)), table.take(np.arange(40, len(table)))]
    protocol = NVFlareHist(trees=3, max_depth=3, max_bin=MOST_BINS)
    return Run(protocol, table, clients)


UNUSUAL = {
    "one bin": lambda: Run(SHARED, with_column(patients(90), 1.0)),
    "nothing but one bin": lambda: Run(SHARED, Table(np.ones((30, 3)), np.arange(30) % 2)),
    "a feature missing everywhere": lambda: Run(SHARED, with_column(patients(90), np.nan)),
    "a feature missing at one client": lambda: Run(
        SHARED, without_feature_at_one_client(patients(120))
    ),
    "a bin per value": lambda: Run(
        NVFlareHist(trees=8, max_depth=3, max_bin=MOST_BINS), patients(90)
    ),
    "as many bins as there may be": few_victims,
    "a single victim": lambda: Run(SHARED, patients(60), 2, ("server", "client-0")),
    "all rows identical": lambda: Run(SHARED, same_people(60)),
    "everybody twice": lambda: Run(SHARED, twice_each(60)),
    "everybody twice, seen by the server": lambda: Run(SHARED, twice_each(60), principals=SERVER),
    "no splits": lambda: Run(NVFlareHist(trees=5, gamma=1e9), patients(60)),
    "one tree": lambda: Run(NVFlareHist(trees=1), patients(60)),
    "many missing": lambda: Run(SHARED, patients(150, missing=0.7)),
    "many missing, noise": lambda: Run(
        SHARED, patients(150, missing=0.7), parts=[LaplaceHistogram(epsilon=2e7)]
    ),
    "best node first": lambda: Run(
        NVFlareHist(trees=20, grow_policy="lossguide", max_leaves=9), patients(150)
    ),
    "columns drawn": lambda: Run(
        NVFlareHist(trees=20, max_depth=4, colsample_bynode=0.5), patients(150)
    ),
}


@pytest.mark.long
@pytest.mark.parametrize("name", UNUSUAL)
def test_unusual_input_gives_no_wrong_rows(name):
    run = UNUSUAL[name]()
    guess = run.attack()
    assert guess.notes["readable"] == 1
    assert not run.wrong(guess).any()


def test_identical_rows_give_no_wrong_rows():
    run = Run(SHARED, same_people(60), principals=SERVER)
    assert set(run.keys(guessed.rows(run.attack()))) <= set(run.counts())


def test_a_single_victim_is_recovered():
    table = patients(80)
    run = Run(SHARED, table, [table.take(np.arange(79)), table.take(np.array([79]))], ("client-0",))
    guess = run.attack()
    assert len(guessed.rows(guess)) == 1
    assert not run.wrong(guess).any()


def test_splits_by_categories_are_followed():
    rng = np.random.default_rng(0)
    plain = patients(180)
    codes = rng.integers(0, 3, (180, 2))
    y = np.where(rng.random(180) < 0.8, codes[:, 0] == 1, plain.y == 1).astype(np.int64)
    table = Table(np.column_stack([plain.X, codes]), y)
    protocol = NVFlareHist(trees=25, max_depth=4, max_bin=32, enable_categorical=True)
    run = Run(protocol, table, schema=schema_of(table, codes=2))
    assert any(t.categories is not None and t.categories.any() for t in run.training.model.trees)
    guess = run.attack()
    assert not run.wrong(guess).any()
    assert len(guessed.rows(guess)) >= 0.8 * run.counts().total()


@pytest.mark.long
def test_bins_suppressed_by_the_server_are_hidden_only_from_clients():
    table = patients(120)
    server = Run(SHARED, table, principals=SERVER, parts=[MinBin(k=3, by="server")])
    guess = server.attack()
    assert len(guessed.rows(guess)) >= 0.8 * server.counts().total()
    assert not server.wrong(guess).any()
    for principals, suppressed_by in ((None, "server"), (SERVER, "client"), (None, "client")):
        run = Run(SHARED, table, principals=principals, parts=[MinBin(k=3, by=suppressed_by)])
        guess = run.attack(confidence=0.5)
        assert guess.notes["readable"] == 1
        assert not run.wrong(guess).any()


def true_sums(run, sources, owner):
    """Return the sums of the rows of one client, or of all victims, per bin of terminal nodes."""
    forest, remaining = sources.forest, sources.parts[owner]
    table = run.truth.get(owner) or Table.concat(list(run.truth.values()))
    empty = replace(
        remaining, sums=np.zeros_like(remaining.sums), totals=np.zeros_like(remaining.totals)
    )
    take_out(forest, empty, run.bins(table), table.y)
    return -empty.sums[:, : int(forest.offsets[-1])]


@pytest.mark.parametrize("principals", [None, SERVER])
@pytest.mark.parametrize(
    "parts",
    [
        [HistogramRounding(step=0.05)],
        [HistogramRounding(step=0.05, random=True)],
        [MinBin(k=2)],
        [MinBin(k=2, by="server")],
        [MinBin(k=2), HistogramRounding(step=0.05)],
        [LaplaceHistogram(epsilon=1e12, clip=0.3)],
    ],
)
def test_errors_of_sums_stay_within_the_bounds_of_the_channel(principals, parts):
    protocol = NVFlareHist(trees=5, max_depth=3, max_bin=8)
    run = Run(protocol, patients(), principals=principals, parts=parts)
    sources = sources_of(run.view)
    for owner, part in sources.parts.items():
        observed_sums = part.sums[:, : int(sources.forest.offsets[-1])]
        is_bounded = observed_sums[..., 1] < ANYTHING // 2
        errors = np.abs(observed_sums - true_sums(run, sources, owner)).max(axis=-1)
        assert (errors <= part.slack[:, None])[is_bounded].all()
        # Bins that two clients may have suppressed have no bound.
        assert is_bounded.mean() > 0.05 or (principals is None and isinstance(parts[0], MinBin))


def without_base_score(view):
    return replace(
        view, seen=tuple(item for item in view.seen if not isinstance(item.message, BaseScore))
    )


DECLINED = {
    "nothing was seen": lambda v: v.blinded(),
    "base score unknown": without_base_score,
    "another loss": lambda v: replace(v, parameters={**v.parameters, "objective": "count:poisson"}),
    "three classes": lambda v: replace(v, schema=replace(v.schema, classes=("a", "b", "c"))),
}


@pytest.mark.parametrize("name", DECLINED)
def test_unreadable_histograms_give_a_reason(shared_run, name):
    view = DECLINED[name](shared_run.view)
    guess = HistogramPeeling().run(view, np.random.default_rng(0))
    assert guess.reason == Reason("histograms-unreadable")
    assert guess.notes["readable"] == 0


def test_rows_of_unknown_weight_are_not_invented():
    table = patients(150)
    weight = np.random.default_rng(0).uniform(0.5, 2, len(table)).astype(np.float32)
    run = Run(SHARED, Table(table.X, table.y, weight))
    assert not run.wrong(run.attack()).any()

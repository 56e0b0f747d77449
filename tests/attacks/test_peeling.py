"""Histogram peeling: what it returns is true, whatever it is shown."""

from __future__ import annotations

from collections import Counter

import guessed
import numpy as np
import pytest
from federations import view_in
from peeling_world import SERVER, SHARED, Run, gaussian_table, patients, schema_of

from fedtrees.attacks.peeling.attack import HistogramPeeling
from fedtrees.attacks.peeling.peel import confidence_of
from fedtrees.attacks.peeling.rows import log_chance
from fedtrees.attacks.peeling.sources import sources_of
from fedtrees.core.claims import Records
from fedtrees.core.errors import ProtocolError, UsageError
from fedtrees.core.schema import Table
from fedtrees.defenses.laplace import LaplaceHistogram
from fedtrees.defenses.rounding import HistogramRounding
from fedtrees.defenses.secure_sum import SecureSum
from fedtrees.protocols.horizontal.histogram_protocols import FedTreeHist, NVFlareHist


@pytest.fixture(scope="module")
def shared():
    return Run(SHARED, patients())


@pytest.mark.long
def test_a_client_reads_nearly_all_rows_off_the_sums_and_none_wrong(shared):
    guess = shared.attack()
    found = Counter(shared.keys(guessed.rows(guess)))
    assert not found - shared.counts()
    assert found.total() >= 0.95 * shared.counts().total()
    assert (guessed.confidence(guess) >= 0.8).all()


@pytest.mark.parametrize("protocol", [SHARED, FedTreeHist(trees=25, max_depth=4)])
def test_the_server_names_the_owner_of_every_row(protocol):
    run = Run(protocol, patients(), principals=SERVER)
    guess = run.attack()
    found = Counter(zip(guessed.owner(guess), run.keys(guessed.rows(guess)), strict=True))
    held = Counter((n, k) for n, t in run.truth.items() for k in run.keys(t))
    assert not found - held
    assert found.total() >= 0.95 * held.total()


def test_a_colluding_client_is_no_victim_of_the_server():
    run = Run(SHARED, patients(), principals=("server", "client-1"))
    assert set(guessed.owner(run.attack())) == {"client-0", "client-2"}


@pytest.mark.long
@pytest.mark.parametrize("principals", [SERVER, ("server", "client-0")])
def test_a_secure_sum_hides_owners_only(principals):
    run = Run(
        FedTreeHist(trees=25, max_depth=4), patients(), principals=principals, parts=[SecureSum()]
    )
    guess = run.attack()
    found = Counter(run.keys(guessed.rows(guess)))
    assert not found - run.counts()
    assert found.total() >= 0.9 * run.counts().total()
    assert guessed.owner(run.attack(sketches=False)) is None


@pytest.mark.parametrize(
    "seed", [0, 1, *(pytest.param(seed, marks=pytest.mark.slow) for seed in range(2, 6))]
)
@pytest.mark.parametrize("depth", [2, 3, 5])
def test_what_is_returned_is_part_of_the_truth(seed, depth):
    """Nodes of many rows and few trees: what cannot be told must not be returned."""
    run = Run(NVFlareHist(trees=12, max_depth=depth, max_bin=16), gaussian_table(seed))
    guess = run.attack()
    wrong = (Counter(run.keys(guessed.rows(guess))) - run.counts()).total()
    assert wrong <= 1.5 + 2 * (1 - guessed.confidence(guess)).sum()


@pytest.mark.long
@pytest.mark.parametrize("clients", [2, 3, 10])
def test_missing_values_and_categories_are_read_off(clients):
    table = gaussian_table(3, n=200, codes=2)
    X = table.X.copy()
    X[np.random.default_rng(1).random(X.shape) < 0.1] = np.nan
    table = Table(X, table.y)
    for who in (SERVER, None):
        run = Run(SHARED, table, clients, who, schema_of(table, codes=2))
        found = Counter(run.keys(guessed.rows(run.attack())))
        assert not found - run.counts()
        assert found.total() > 0.3 * run.counts().total()
        assert any(-1 in key for key in found)


def test_rows_get_to_the_margins_they_were_recognised_by(shared):
    forest = sources_of(shared.view).forest
    guess = shared.attack()
    cell, margin = forest.route(shared.bins(guessed.rows(guess)))
    for t in (0, 7, 24):
        model = shared.training.model.first(t) if t else None
        expected = model.margin(guessed.rows(guess).X) if model else forest.base_margin
        np.testing.assert_array_equal(margin[:, t], expected)
    np.testing.assert_array_equal(forest.tree_of[cell], np.tile(np.arange(25), (len(cell), 1)))


def test_copies_of_a_row_are_returned_as_often_as_they_are_there():
    table = patients(150)
    copies = table.take(np.repeat([5, 8], [4, 7]))  # dealt out to all clients
    run = Run(SHARED, Table.concat([table, copies]))
    guess = run.attack()
    found, truth = Counter(run.keys(guessed.rows(guess))), run.counts()
    assert not found - truth
    key = max(truth, key=truth.get)
    assert truth[key] >= 4
    assert found[key] in (0, truth[key])


@pytest.mark.long
@pytest.mark.parametrize(
    ("part", "least"),
    [
        (HistogramRounding(step=1e-6), 0.8),
        (HistogramRounding(step=1e-2), 0.0),
        (LaplaceHistogram(epsilon=2e7), 0.8),
        (LaplaceHistogram(epsilon=2e4), 0.0),
        (LaplaceHistogram(epsilon=10.0), 0.0),
    ],
)
def test_declared_noise_costs_rows_but_not_truth(part, least):
    run = Run(SHARED, patients(), parts=[part])
    found = Counter(run.keys(guessed.rows(run.attack())))
    wrong = (found - run.counts()).total()
    assert wrong <= 0.03 * found.total()
    assert found.total() - wrong >= least * run.counts().total()


def test_more_noise_never_makes_a_row_more_certain():
    slack = [0.0, 1.0, 100.0, 1e5, 1e7, 1e9]
    for other in (0, 1, 2, 5):
        for checks in (0, 1, 3, 20):
            odds = np.array([checks * log_chance(s) for s in slack])
            sure = confidence_of(np.full(len(slack), other), odds, 1000)
            assert (np.diff(sure) <= 0).all()
    assert confidence_of(np.array([0]), np.array([3 * log_chance(1e9)]), 1000)[0] < 0.01


def test_a_bound_on_work_gives_a_partial_result(shared):
    whole, part = shared.attack(), shared.attack(work=1.0)
    assert whole.notes["finished"] == 1
    assert part.notes["finished"] == 0
    assert 0 < len(guessed.rows(part)) < len(guessed.rows(whole))
    assert not Counter(shared.keys(guessed.rows(part))) - shared.counts()


def test_it_says_where_it_does_not_apply():
    attack = HistogramPeeling()
    small = "[trees=1,max_depth=2]"
    assert attack.inapplicable(view_in("fedtree-hist" + small, "server")) is None
    summed = view_in("fedtree-hist" + small, "server", defense="secure-sum")
    assert attack.inapplicable(summed) is None
    client = view_in("fedtree-hist" + small, "client-1")
    assert "neither gradient histograms" in str(attack.inapplicable(client))
    assert attack.inapplicable(view_in("nvflare-hist" + small, "client-1")) is None
    for odd in ("subsample=0.5", "early_stopping_rounds=1", "reg_alpha=1.0"):
        run = view_in(f"fedtree-hist[trees=1,max_depth=2,{odd}]", "server")
        assert attack.inapplicable(run) is None
    with pytest.raises(UsageError, match="work"):
        HistogramPeeling(work=0)
    with pytest.raises(UsageError, match="confidence"):
        HistogramPeeling(confidence=1.5)


def test_a_guess_has_one_probability_and_one_owner_per_row():
    rows = patients(2)
    Records(rows, confidence=np.array([0.5, 1.0]), owner=("a", "b"))
    with pytest.raises(ProtocolError, match=r"give one of shape \(m=2\)"):
        Records(rows, confidence=np.array([0.5]))
    with pytest.raises(ProtocolError, match="outside of 0 to 1"):
        Records(rows, confidence=np.array([0.5, 1.5]))
    with pytest.raises(ProtocolError, match="one party name per row"):
        Records(rows, owner=("a",))

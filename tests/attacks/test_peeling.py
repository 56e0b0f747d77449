"""Histogram peeling returns correct rows for every kind of histograms."""

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
def shared_run():
    return Run(SHARED, patients())


@pytest.mark.long
def test_a_client_recovers_nearly_all_rows_without_an_error(shared_run):
    guess = shared_run.attack()
    guessed_rows = Counter(shared_run.keys(guessed.rows(guess)))
    assert not guessed_rows - shared_run.counts()
    assert guessed_rows.total() >= 0.95 * shared_run.counts().total()
    assert (guessed.confidence(guess) >= 0.8).all()


@pytest.mark.parametrize("protocol", [SHARED, FedTreeHist(trees=25, max_depth=4)])
def test_the_server_names_the_owner_of_every_row(protocol):
    run = Run(protocol, patients(), principals=SERVER)
    guess = run.attack()
    guessed_rows = Counter(zip(guessed.owner(guess), run.keys(guessed.rows(guess)), strict=True))
    true_rows = Counter((name, key) for name, table in run.truth.items() for key in run.keys(table))
    assert not guessed_rows - true_rows
    assert guessed_rows.total() >= 0.95 * true_rows.total()


def test_a_colluding_client_is_not_attacked_by_the_server():
    run = Run(SHARED, patients(), principals=("server", "client-1"))
    assert set(guessed.owner(run.attack())) == {"client-0", "client-2"}


@pytest.mark.long
@pytest.mark.parametrize("principals", [SERVER, ("server", "client-0")])
def test_a_secure_sum_hides_owners_only(principals):
    run = Run(
        FedTreeHist(trees=25, max_depth=4), patients(), principals=principals, parts=[SecureSum()]
    )
    guess = run.attack()
    guessed_rows = Counter(run.keys(guessed.rows(guess)))
    assert not guessed_rows - run.counts()
    assert guessed_rows.total() >= 0.9 * run.counts().total()
    assert guessed.owner(run.attack(sketches=False)) is None


@pytest.mark.parametrize(
    "seed", [0, 1, *(pytest.param(seed, marks=pytest.mark.slow) for seed in range(2, 6))]
)
@pytest.mark.parametrize("depth", [2, 3, 5])
def test_wrong_rows_are_as_rare_as_their_confidence_implies(seed, depth):
    """Few trees with many rows per node determine few rows. Undetermined rows must not be
    returned.
    """
    run = Run(NVFlareHist(trees=12, max_depth=depth, max_bin=16), gaussian_table(seed))
    guess = run.attack()
    n_wrong = (Counter(run.keys(guessed.rows(guess))) - run.counts()).total()
    assert n_wrong <= 1.5 + 2 * (1 - guessed.confidence(guess)).sum()


@pytest.mark.long
@pytest.mark.parametrize("clients", [2, 3, 10])
def test_missing_values_and_categories_are_recovered(clients):
    table = gaussian_table(3, n=200, codes=2)
    X = table.X.copy()
    X[np.random.default_rng(1).random(X.shape) < 0.1] = np.nan
    table = Table(X, table.y)
    for principals in (SERVER, None):
        run = Run(SHARED, table, clients, principals, schema_of(table, codes=2))
        guessed_rows = Counter(run.keys(guessed.rows(run.attack())))
        assert not guessed_rows - run.counts()
        assert guessed_rows.total() > 0.3 * run.counts().total()
        assert any(-1 in key for key in guessed_rows)


def test_guessed_rows_have_the_margins_of_the_model(shared_run):
    forest = sources_of(shared_run.view).forest
    guess = shared_run.attack()
    cell, margin = forest.route(shared_run.bins(guessed.rows(guess)))
    for t in (0, 7, 24):
        model = shared_run.training.model.first(t) if t else None
        expected = model.margin(guessed.rows(guess).X) if model else forest.base_margin
        np.testing.assert_array_equal(margin[:, t], expected)
    np.testing.assert_array_equal(forest.tree_of[cell], np.tile(np.arange(25), (len(cell), 1)))


def test_copies_of_a_row_are_returned_with_their_multiplicity():
    table = patients(150)
    copies = table.take(np.repeat([5, 8], [4, 7]))  # The copies are dealt to all clients.
    run = Run(SHARED, Table.concat([table, copies]))
    guess = run.attack()
    guessed_rows, truth = Counter(run.keys(guessed.rows(guess))), run.counts()
    assert not guessed_rows - truth
    key = max(truth, key=truth.get)
    assert truth[key] >= 4
    assert guessed_rows[key] in (0, truth[key])


@pytest.mark.long
@pytest.mark.parametrize(
    ("defense", "least_share"),
    [
        (HistogramRounding(step=1e-6), 0.8),
        (HistogramRounding(step=1e-2), 0.0),
        (LaplaceHistogram(epsilon=2e7), 0.8),
        (LaplaceHistogram(epsilon=2e4), 0.0),
        (LaplaceHistogram(epsilon=10.0), 0.0),
    ],
)
def test_declared_noise_lowers_the_number_of_rows_but_not_their_accuracy(defense, least_share):
    run = Run(SHARED, patients(), parts=[defense])
    guessed_rows = Counter(run.keys(guessed.rows(run.attack())))
    n_wrong = (guessed_rows - run.counts()).total()
    assert n_wrong <= 0.03 * guessed_rows.total()
    assert guessed_rows.total() - n_wrong >= least_share * run.counts().total()


def test_more_noise_never_makes_a_row_more_certain():
    slack = [0.0, 1.0, 100.0, 1e5, 1e7, 1e9]
    for n_others in (0, 1, 2, 5):
        for checks in (0, 1, 3, 20):
            odds = np.array([checks * log_chance(width) for width in slack])
            confidence = confidence_of(np.full(len(slack), n_others), odds, 1000)
            assert (np.diff(confidence) <= 0).all()
    assert confidence_of(np.array([0]), np.array([3 * log_chance(1e9)]), 1000)[0] < 0.01


def test_a_limit_on_work_gives_a_partial_result(shared_run):
    complete_guess, partial_guess = shared_run.attack(), shared_run.attack(work=1.0)
    assert complete_guess.notes["finished"] == 1
    assert partial_guess.notes["finished"] == 0
    assert 0 < len(guessed.rows(partial_guess)) < len(guessed.rows(complete_guess))
    assert not Counter(shared_run.keys(guessed.rows(partial_guess))) - shared_run.counts()


def test_the_attack_explains_why_it_does_not_apply():
    attack = HistogramPeeling()
    options = "[trees=1,max_depth=2]"
    assert attack.inapplicable(view_in("fedtree-hist" + options, "server")) is None
    summed = view_in("fedtree-hist" + options, "server", defense="secure-sum")
    assert attack.inapplicable(summed) is None
    client = view_in("fedtree-hist" + options, "client-1")
    assert "neither gradient histograms" in str(attack.inapplicable(client))
    assert attack.inapplicable(view_in("nvflare-hist" + options, "client-1")) is None
    for option in ("subsample=0.5", "early_stopping_rounds=1", "reg_alpha=1.0"):
        run = view_in(f"fedtree-hist[trees=1,max_depth=2,{option}]", "server")
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

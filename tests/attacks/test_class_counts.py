"""Rows from class histograms and from the leaves of plain forests."""

from __future__ import annotations

import numpy as np
import pytest
from counted_world import odd_run
from peeling_world import SERVER, Run, gaussian_table
from scipy.stats import poisson

from fedtrees.attacks.forest_gibbs.attack import ForestBoxes
from fedtrees.attacks.forest_gibbs.gibbs import (
    FlatForest,
    Numbers,
    State,
    TargetForest,
    advance,
    likelihood,
    read_target_forests,
    start,
)
from fedtrees.attacks.peeling.annealing import LIKELY
from fedtrees.attacks.peeling.row_support import SURE, least_support
from fedtrees.blind_baselines.recipes import agreement
from fedtrees.blind_baselines.rows import Tolerance
from fedtrees.core.errors import UsageError
from fedtrees.core.reasons import Reason
from fedtrees.crypto.primitives import ExposureError, TooFewPartiesError
from fedtrees.defenses.rounding import LeafRounding
from fedtrees.defenses.secure_sum import SecureSum
from fedtrees.defenses.suppression import SplitOnly
from fedtrees.protocols.forests.forest_hist import ForestHist
from fedtrees.protocols.forests.local_forests import LocalForests
from fedtrees.trees.forest.random_forest import ClassTree, shares

TABLE = gaussian_table(0, 90)


@pytest.mark.long
@pytest.mark.parametrize("parts", [(), (SecureSum(),)])
def test_class_histograms_of_complete_tables_reveal_rows(parts):
    run = Run(ForestHist(trees=15, max_bin=16, bootstrap=False), TABLE, 3, SERVER, parts=parts)
    guess = run.attack()
    assert not run.wrong(guess).any()
    assert len(guess.claims[0].table) > 0.85 * len(TABLE)


@pytest.mark.long
def test_bootstrapped_rows_are_recovered_and_uncertain_ones_are_called_likely():
    run = Run(ForestHist(trees=80, max_bin=16), TABLE, 3, SERVER)
    guess = run.attack()
    claim = guess.claims[0]
    is_wrong, certain = run.wrong(guess), claim.confidence >= SURE
    assert not is_wrong[certain].any()
    assert certain.sum() > 0.4 * len(TABLE)
    assert (~is_wrong).sum() > 0.9 * len(TABLE)
    assert (claim.confidence[~certain] == LIKELY).all()
    for name, table in run.truth.items():
        claimed_rows = claim.table.take(np.flatnonzero((np.array(claim.owner) == name) & ~is_wrong))
        assert set(run.keys(claimed_rows)) <= set(run.keys(table))


@pytest.mark.long
def test_certain_rows_are_correct_for_random_forests():
    returned = 0
    for seed in range(25):
        try:
            run = odd_run(seed)
        except (UsageError, ExposureError, TooFewPartiesError):
            continue  # The run was refused, or too many clients dropped out.
        guess = run.attack(confidence=SURE)
        if guess.reason == Reason("histograms-unreadable"):
            continue
        returned += len(guess.claims[0].table)
        assert not run.wrong(guess).any(), (seed, run.protocol)
    assert returned > 100


@pytest.mark.long
def test_few_rows_are_wrong_if_all_counts_are_explained():
    n_returned = n_wrong = 0
    for seed in range(3):
        run = Run(ForestHist(trees=30, max_bin=8), gaussian_table(seed, 40), 2, SERVER)
        guess = run.attack()
        n_returned += len(guess.claims[0].table)
        n_wrong += run.wrong(guess).sum()
    assert n_returned > 60
    assert n_wrong < 0.1 * n_returned


def test_the_support_of_a_row_is_below_the_bound_only_with_the_stated_probability():
    supports = np.random.default_rng(0).binomial(40, 0.7, 200_000)
    assert 0 < least_support(40, 0.7, 1) < supports.min() + 2
    assert least_support(40, 1.0, 5) == 40
    assert least_support(3, 0.6, 5) == 0


@pytest.mark.long
def test_a_chain_reaches_nearly_the_likelihood_of_the_true_table():
    run = Run(LocalForests(trees=10, max_depth=6), TABLE, principals=SERVER)
    source = read_target_forests(run.view)[0]
    boxes, rng = FlatForest.of(source.trees, 4), np.random.default_rng(0)
    truth = run.clients[0]
    true_likelihood = likelihood(boxes, State.of(boxes, boxes.level(truth.X), truth.y, len(truth)))
    state = State.of(boxes, start(boxes, truth.y, rng), truth.y, len(truth))
    before = likelihood(boxes, state)
    for beta in np.geomspace(0.05, 1.0, 10):
        bits = rng.integers(0, 1 << 63, 1).astype(np.uint64)
        advance(boxes, state, beta, 500, bits)
    assert likelihood(boxes, state) > true_likelihood - 0.15 * (true_likelihood - before)
    recomputed = State.of(boxes, state.level.copy(), state.y, state.free)
    assert (recomputed.occupancy == state.occupancy).all()
    assert (recomputed.leaf == state.leaf).all()


@pytest.mark.long
def test_leaf_counts_of_complete_tables_reveal_rows():
    run = Run(LocalForests(trees=30, bootstrap=False), TABLE, principals=SERVER)
    records = ForestBoxes(work=0.5).run(run.view, np.random.default_rng(0)).claims[0]
    for name, truth in run.truth.items():
        claimed_rows = records.table.take(np.flatnonzero(np.array(records.owner) == name))
        assert (np.sort(claimed_rows.y) == np.sort(truth.y)).all()
        width = Tolerance.of(truth, run.schema).width
        assert agreement(claimed_rows, truth, width) > 0.7


@pytest.mark.long
def test_the_forest_read_from_messages_is_the_released_forest():
    run = Run(ForestHist(trees=4), gaussian_table(0, 60))
    released = run.training.model.trees
    for read_tree, released_tree in zip(
        read_target_forests(run.view)[0].trees, released, strict=True
    ):
        assert (read_tree.feature == released_tree.feature).all()
        assert (read_tree.threshold == released_tree.threshold).all()
        assert (read_tree.counts == released_tree.counts).all()


@pytest.mark.long
@pytest.mark.parametrize(
    ("protocol", "parts", "step"),
    [
        (ForestHist(trees=3, leaf_counts=False), (), 0.0),
        (LocalForests(trees=3, leaf_counts=False), (LeafRounding(1),), 0.1),
        (ForestHist(trees=3), (SplitOnly(), LeafRounding(2)), 0.01),
    ],
)
def test_sampled_counts_have_the_released_shares(protocol, parts, step):
    run = Run(protocol, TABLE, parts=parts)
    for source in read_target_forests(run.view):
        assert source.step == pytest.approx(step, rel=1e-9)
        assert all(t.counts is None for t in source.trees)
        boxes, rng = FlatForest.of(source.trees, 4), np.random.default_rng(0)
        numbers = Numbers.of(boxes, source)
        y = np.arange(source.rows) % 2
        state = State.of(boxes, start(boxes, y, rng), y, len(y))
        numbers.draw(boxes, state, 1.0, rng.integers(0, 1 << 63, 1).astype(np.uint64))
        leaves = np.flatnonzero(boxes.nodes[:, 0] < 0)
        assert (boxes.counts[leaves].sum(axis=1) >= 1).all()
        difference = np.abs(shares(boxes.counts[leaves]) - boxes.share[leaves])
        assert difference.max() <= step / 2 + 1e-9


@pytest.mark.long
def test_sampled_row_numbers_have_the_posterior_probability_of_a_leaf():
    tree = ClassTree(
        np.array([-1], np.int32), np.zeros(1, np.float32), np.array([-1], np.int32),
        np.array([-1], np.int32), np.zeros(1, bool), np.array([[1 / 3, 2 / 3]]),
    )  # fmt: skip
    source = TargetForest((tree,), 12, None, drawn=True, step=0.0)
    boxes = FlatForest.of(source.trees, 1)
    numbers = Numbers.of(boxes, source)
    y = np.repeat([0, 1], [5, 7])
    state = State.of(boxes, np.zeros((12, 1), np.int32), y, 12)
    bits, visits = np.ones(1, np.uint64), np.zeros(13)
    for _ in range(4000):
        numbers.draw(boxes, state, 1.0, bits)
        visits[boxes.counts[0].sum()] += 1
    posterior = np.array(
        [poisson.pmf(multiple, 5) * poisson.pmf(2 * multiple, 7) for multiple in range(1, 5)]
    )
    assert np.abs(visits[3::3] / 4000 - posterior / posterior.sum()).max() < 0.03
    assert visits[3::3].sum() == 4000


@pytest.mark.long
def test_shares_of_pure_leaves_improve_the_reconstruction():
    run = Run(LocalForests(trees=30, leaf_counts=False, bootstrap=False), TABLE, 3, SERVER)

    def mean_agreement(work):
        records = ForestBoxes(work=work).run(run.view, np.random.default_rng(0)).claims[0]
        scores = []
        for name, truth in run.truth.items():
            claimed_rows = records.table.take(np.flatnonzero(np.array(records.owner) == name))
            # The number of leaves determines the approximate number of rows.
            assert abs(len(claimed_rows) - len(truth)) < 6
            scores.append(agreement(claimed_rows, truth, Tolerance.of(truth, run.schema).width))
        return np.mean(scores)

    assert mean_agreement(0.5) > mean_agreement(0.0005) + 0.03


@pytest.mark.long
@pytest.mark.parametrize(("trees", "depth", "blind"), [(1, 1, 1.0), (30, 10, 0.0)])
def test_the_blind_guess_is_submitted_for_counts_of_few_leaves(trees, depth, blind):
    run = Run(ForestHist(trees=trees, max_depth=depth, bootstrap=False), TABLE)
    notes = ForestBoxes(work=0.5).run(run.view, np.random.default_rng(0)).notes
    assert notes["submits_blind"] == blind

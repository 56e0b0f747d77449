"""Rows from class histograms and from the leaves of plain forests."""

from __future__ import annotations

import numpy as np
import pytest
from counted_world import odd_run
from peeling_world import SERVER, Run, made_up

from fedtrees.attacks.leaves.attack import ForestBoxes
from fedtrees.attacks.leaves.chain import State, advance, likelihood, start
from fedtrees.attacks.leaves.forests import Boxes, sources_of
from fedtrees.attacks.peeling.annealing import LIKELY
from fedtrees.attacks.peeling.supports import SURE, least_support
from fedtrees.core.errors import UsageError
from fedtrees.crypto.errors import ExposureError, TooFewPartiesError
from fedtrees.defenses.secure_sum import SecureSum
from fedtrees.defenses.split_only import SplitOnly
from fedtrees.guessing.recipes import agreement
from fedtrees.guessing.tolerance import Tolerance
from fedtrees.protocols.horizontal.forest_hist import ForestHist
from fedtrees.protocols.horizontal.local_forests import LocalForests

TABLE = made_up(0, 90)


@pytest.mark.parametrize("parts", [(), (SecureSum(),)])
def test_rows_of_whole_tables_are_read_off_class_histograms(parts):
    run = Run(ForestHist(trees=15, max_bin=16, bootstrap=False), TABLE, 3, SERVER, parts=parts)
    guess = run.attack()
    assert not run.wrong(guess).any()
    assert len(guess.claims[0].table) > 0.85 * len(TABLE)


def test_drawn_rows_are_read_and_those_that_coins_leave_in_doubt_are_only_likely():
    run = Run(ForestHist(trees=80, max_bin=16), TABLE, 3, SERVER)
    guess = run.attack()
    found = guess.claims[0]
    wrong, sure = run.wrong(guess), found.confidence >= SURE
    assert not wrong[sure].any()
    assert sure.sum() > 0.4 * len(TABLE)
    assert (~wrong).sum() > 0.9 * len(TABLE)
    assert (found.confidence[~sure] == LIKELY).all()
    for name, table in run.truth.items():
        mine = found.table.take(np.flatnonzero((np.array(found.owner) == name) & ~wrong))
        assert set(run.keys(mine)) <= set(run.keys(table))


def test_no_sure_row_is_wrong_whatever_the_forest():
    returned = 0
    for seed in range(25):
        try:
            run = odd_run(seed)
        except (UsageError, ExposureError, TooFewPartiesError):
            continue  # refused, or too many clients dropped out
        guess = run.attack(confidence=SURE)
        returned += len(guess.claims[0].table)
        assert not run.wrong(guess).any(), (seed, run.protocol)
    assert returned > 100


def test_rows_are_likely_where_all_counts_are_explained():
    returned = wrong = 0
    for seed in range(3):
        run = Run(ForestHist(trees=30, max_bin=8), made_up(seed, 40), 2, SERVER)
        guess = run.attack()
        returned += len(guess.claims[0].table)
        wrong += run.wrong(guess).sum()
    assert returned > 60
    assert wrong < 0.1 * returned


def test_a_row_has_the_least_support_but_for_the_chance_that_is_said():
    drawn = np.random.default_rng(0).binomial(40, 0.7, 200_000)
    assert 0 < least_support(40, 0.7, 1) < drawn.min() + 2
    assert least_support(40, 1.0, 5) == 40
    assert least_support(3, 0.6, 5) == 0


def test_a_chain_finds_tables_as_likely_as_the_truth():
    run = Run(LocalForests(trees=10, max_depth=6), TABLE, principals=SERVER)
    source = sources_of(run.view)[0]
    boxes, rng = Boxes.of(source.trees, 4), np.random.default_rng(0)
    truth = run.clients[0]
    wanted = likelihood(boxes, State.of(boxes, boxes.level(truth.X), truth.y, len(truth)))
    state = State.of(boxes, start(boxes, truth.y, rng), truth.y, len(truth))
    before = likelihood(boxes, state)
    for beta in np.geomspace(0.05, 1.0, 10):
        bits = rng.integers(0, 1 << 63, 1).astype(np.uint64)
        advance(boxes, state, beta, 500, bits)
    assert likelihood(boxes, state) > wanted - 0.15 * (wanted - before)
    again = State.of(boxes, state.level.copy(), state.y, state.free)
    assert (again.held == state.held).all()
    assert (again.leaf == state.leaf).all()


def test_leaf_counts_of_whole_tables_tell_rows():
    run = Run(LocalForests(trees=30, bootstrap=False), TABLE, principals=SERVER)
    records = ForestBoxes(work=0.5).run(run.view, np.random.default_rng(0)).claims[0]
    for name, truth in run.truth.items():
        mine = records.table.take(np.flatnonzero(np.array(records.owner) == name))
        assert (np.sort(mine.y) == np.sort(truth.y)).all()
        width = Tolerance.of(truth, run.schema).width
        assert agreement(mine, truth, width) > 0.7


def test_splits_and_leaves_on_the_way_are_the_released_forest():
    run = Run(ForestHist(trees=4), made_up(0, 60))
    released = run.training.model.trees
    for ours, theirs in zip(sources_of(run.view)[0].trees, released, strict=True):
        assert (ours.feature == theirs.feature).all()
        assert (ours.threshold == theirs.threshold).all()
        assert (ours.counts == theirs.counts).all()


@pytest.mark.parametrize(
    ("protocol", "parts"),
    [
        (ForestHist(trees=3, leaf_counts=False), ()),
        (LocalForests(trees=3, leaf_counts=False), ()),
        (ForestHist(trees=3), (SplitOnly(),)),
    ],
)
def test_shares_alone_are_declined(protocol, parts):
    run = Run(protocol, TABLE, parts=parts)
    assert "counts" in ForestBoxes().inapplicable(run.view)

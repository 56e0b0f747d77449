"""Properties of histogram peeling over generated tables, made to mislead it."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

import guessed
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from peeling_world import misleading_run

from fedtrees.attacks.peeling.sources import sources_of
from fedtrees.core.composition import Composition
from fedtrees.defenses.rounding import HistogramRounding
from fedtrees.trees.boosted.losses import logistic_gradients

EXAMPLES = 10
CERTAIN = 0.99  # rows with nothing in doubt

tables = given(seed=st.integers(0, 2**32 - 1))
# no shrinking towards small seeds, which mean nothing; the same tables in every run
short = settings(max_examples=EXAMPLES, deadline=None, derandomize=True, database=None)


def hessians(run, forest, table):
    """Sums of h by tree, cell and column over rows, from the model that was trained."""
    bins = run.bins(table)
    cell, margin = forest.route(bins)
    columns = forest.columns(bins)
    sums = np.zeros((len(forest.tree_of), forest.offsets[-1] + bins.shape[1]))
    for t in range(forest.trees):
        model = run.training.model.first(t) if t else None
        expected = model.margin(table.X) if model else np.float32(forest.base_margin)
        np.testing.assert_array_equal(margin[:, t], expected)
        _, h = logistic_gradients(margin[:, t], table.y).T
        np.add.at(sums, (cell[:, t, None], columns), h[:, None])
    return sums


@pytest.mark.long
@short
@tables
def test_returned_rows_come_to_the_margins_they_claim_and_the_histograms_hold_them_all(seed):
    run = misleading_run(seed)
    forest = sources_of(run.view).forest
    guess = run.attack()
    rows = guessed.rows(guess)
    # of rows read off a sum the owner is a guess, by who has their values
    named = guessed.owner(guess) if run.principals == ("server",) else None
    owners = named or [None] * len(rows)
    for owner in set(owners):
        mine = np.array([o == owner for o in owners])
        held = [t for name, t in run.truth.items() if owner in (None, name)]
        there = sum(hessians(run, forest, t) for t in held)
        assert (hessians(run, forest, rows.take(mine)) <= there + 1e-5).all()


@pytest.mark.long
@short
@tables
def test_what_is_certain_is_part_of_the_truth(seed):
    run = misleading_run(seed)
    guess = run.attack()
    assert not run.wrong(guess)[guessed.confidence(guess) >= CERTAIN].any()


@pytest.mark.long
def test_of_all_that_is_returned_little_is_wrong():
    returned, wrong = 0, 0
    for seed in range(20):
        run = misleading_run(seed)
        bad = run.wrong(run.attack())
        returned, wrong = returned + len(bad), wrong + int(bad.sum())
    assert returned > 150
    assert wrong <= 0.03 * returned


@pytest.mark.long
@short
@tables
def test_permuting_the_victims_changes_nothing(seed):
    run = misleading_run(seed)
    rng = np.random.default_rng(seed)
    names = list(run.truth)
    clients = [t.take(rng.permutation(len(t))) for t in run.clients]
    if run.principals == ("server",):
        new = clients
    else:  # only sums are seen: who holds what changes nothing either
        victims = run.truth[names[0]].concat(clients[: len(names)])
        order = rng.permutation(len(victims))
        dealt = [victims.take(p) for p in np.array_split(order, len(names))]
        new = [*dealt, run.clients[-1]]
    other = run.with_clients(new)
    first, second = run.attack(), other.attack()
    named = run.principals == ("server",)  # else by whose sketch has the values
    whose = [guessed.owner(g) if named else [""] * len(guessed.rows(g)) for g in (first, second)]
    assert Counter(
        zip(run.keys(guessed.rows(first)), guessed.confidence(first), whose[0], strict=True)
    ) == Counter(
        zip(other.keys(guessed.rows(second)), guessed.confidence(second), whose[1], strict=True)
    )


@pytest.mark.long
@short
@tables
def test_more_noise_never_makes_a_wrong_row_more_certain(seed):
    run = misleading_run(seed)
    before = None
    for step in (None, 1e-9, 1e-7, 1e-5, 1e-3):
        declared = () if step is None else (HistogramRounding(step=step),)
        run.view = replace(run.view, defense=Composition(declared))
        guess = run.attack()
        bad = run.wrong(guess)
        keys = [k for k, b in zip(run.keys(guessed.rows(guess)), bad, strict=True) if b]
        sure = dict(zip(keys, guessed.confidence(guess)[bad], strict=True))
        if before is not None:
            assert all(c <= before.get(key, 0) for key, c in sure.items())
        before = sure

"""Properties of histogram peeling over generated tables that provoke wrong claims."""

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
CERTAIN = 0.99  # Rows above this confidence have no open question.

tables = given(seed=st.integers(0, 2**32 - 1))
# Smaller seeds are not simpler, so there is no shrinking. Every run uses the same tables.
short = settings(max_examples=EXAMPLES, deadline=None, derandomize=True, database=None)


def hessian_sums(run, forest, table):
    """Return the sums of h by tree, cell and column over rows, computed by the trained model."""
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
def test_histograms_contain_all_returned_rows(seed):
    run = misleading_run(seed)
    forest = sources_of(run.view).forest
    guess = run.attack()
    rows = guessed.rows(guess)
    # The owner of a row that was read from a total is a guess based on the values of each client.
    claimed_owners = guessed.owner(guess) if run.principals == ("server",) else None
    owners = claimed_owners or [None] * len(rows)
    for owner in set(owners):
        is_owner = np.array([row_owner == owner for row_owner in owners])
        owner_tables = [table for name, table in run.truth.items() if owner in (None, name)]
        true_sums = sum(hessian_sums(run, forest, table) for table in owner_tables)
        assert (hessian_sums(run, forest, rows.take(is_owner)) <= true_sums + 1e-5).all()


@pytest.mark.long
@short
@tables
def test_certain_rows_are_correct(seed):
    run = misleading_run(seed)
    guess = run.attack()
    assert not run.wrong(guess)[guessed.confidence(guess) >= CERTAIN].any()


@pytest.mark.long
def test_few_returned_rows_are_wrong():
    n_returned, n_wrong = 0, 0
    for seed in range(20):
        run = misleading_run(seed)
        is_wrong = run.wrong(run.attack())
        n_returned, n_wrong = n_returned + len(is_wrong), n_wrong + int(is_wrong.sum())
    assert n_returned > 150
    assert n_wrong <= 0.03 * n_returned


@pytest.mark.long
@short
@tables
def test_permuting_the_victims_changes_nothing(seed):
    run = misleading_run(seed)
    rng = np.random.default_rng(seed)
    names = list(run.truth)
    clients = [table.take(rng.permutation(len(table))) for table in run.clients]
    if run.principals == ("server",):
        permuted_clients = clients
    # Only totals are visible, so the assignment of rows to clients does not matter, either.
    else:
        victims = run.truth[names[0]].concat(clients[: len(names)])
        order = rng.permutation(len(victims))
        parts = [victims.take(rows_of_part) for rows_of_part in np.array_split(order, len(names))]
        permuted_clients = [*parts, run.clients[-1]]
    other = run.with_clients(permuted_clients)
    first, second = run.attack(), other.attack()
    owners_are_certain = run.principals == ("server",)  # Otherwise owners follow from the sketches.
    row_owners = [
        guessed.owner(guess) if owners_are_certain else [""] * len(guessed.rows(guess))
        for guess in (first, second)
    ]
    assert Counter(
        zip(run.keys(guessed.rows(first)), guessed.confidence(first), row_owners[0], strict=True)
    ) == Counter(
        zip(
            other.keys(guessed.rows(second)), guessed.confidence(second), row_owners[1], strict=True
        )
    )


@pytest.mark.long
@short
@tables
def test_more_noise_never_makes_a_wrong_row_more_certain(seed):
    run = misleading_run(seed)
    previous_confidence = None
    for step in (None, 1e-9, 1e-7, 1e-5, 1e-3):
        declared = () if step is None else (HistogramRounding(step=step),)
        run.view = replace(run.view, defense=Composition(declared))
        guess = run.attack()
        is_wrong = run.wrong(guess)
        keys = [
            row_key
            for row_key, row_is_wrong in zip(run.keys(guessed.rows(guess)), is_wrong, strict=True)
            if row_is_wrong
        ]
        confidence = dict(zip(keys, guessed.confidence(guess)[is_wrong], strict=True))
        if previous_confidence is not None:
            assert all(
                new_confidence <= previous_confidence.get(key, 0)
                for key, new_confidence in confidence.items()
            )
        previous_confidence = confidence

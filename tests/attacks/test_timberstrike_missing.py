"""Missing values: boxes follow them through the trees, and guesses have as many as there are."""

from __future__ import annotations

from dataclasses import replace

import guessed
import numpy as np
import pytest
from timberstrike_world import accuracy, structured, world

from fedtrees.attacks.reconstruction.boxes import open_boxes
from fedtrees.attacks.reconstruction.context import ReconstructionContext
from fedtrees.attacks.reconstruction.prior import reach
from fedtrees.attacks.timberstrike import Options, reconstruct
from fedtrees.attacks.timberstrike.sample_from_boxes import points


def damaged(share, seed=0):
    """Return the structured world, its last column a category, with so many cells missing."""
    X, y = structured()
    X[np.random.default_rng(seed).random(X.shape) < share] = np.nan
    return world(X, y, 80, categorical={5: 3})


@pytest.fixture(scope="module")
def half():
    return damaged(0.5)


def basis_of(w):
    return ReconstructionContext.of(w.evidence(), w.local_rows, w.schema).with_missing_values()


def test_of_all_leaves_a_rows_own_is_the_one_that_takes_its_values(half):
    """The way a missing value takes is the forest's, which routes rows on its own."""
    grid, table = basis_of(half).grid, half.all_rows
    cells = grid.cells(table.X)
    for tree, leaf in zip(half.forest.trees, half.forest.apply(table.X).T, strict=True):
        leaves = grid.leaves(tree)
        fits = np.ones((len(table), len(leaves)), dtype=bool)
        for j in range(len(leaves)):
            for k in range(leaves.offsets[j], leaves.offsets[j + 1]):
                cell = cells[:, leaves.feature[k]]
                there = (leaves.lo[k] <= cell) & (cell < leaves.hi[k])
                fits[:, j] &= np.where(cell < 0, leaves.missing[k], there)
        np.testing.assert_array_equal(fits, leaves.node == leaf[:, None])


def test_the_leaves_share_out_all_of_every_box(half):
    """Half of the boxes are open, the rest must have one value missing."""
    basis = basis_of(half)
    boxes = open_boxes((40, 40), basis.grid, half.evidence())
    boxes.hi[::2, 1] = boxes.lo[::2, 1]
    for tree in half.forest.trees:
        boxed = boxes.lo, boxes.hi, boxes.y
        options = reach(basis.grid.leaves(tree), boxed, basis.prior, boxes.missing)
        total = np.add.reduceat(np.exp(options.log_prior), options.offsets[:-1])
        np.testing.assert_allclose(total, 1.0)


def guessed_missing(w, basis, boxes, rule):
    rng = np.random.default_rng(0)
    return np.isnan(points(rule, boxes, basis.grid, basis.prior, w.schema, rng).X)


@pytest.mark.parametrize("rule", ["prior", "joint"])
def test_a_value_is_missing_where_it_must_be_and_not_where_it_cannot_be(half, rule):
    basis = basis_of(half)
    boxes = open_boxes((50, 50), basis.grid, half.evidence())
    boxes.missing[:, 1] = False
    boxes.hi[:, 2] = boxes.lo[:, 2]
    missing = guessed_missing(half, basis, boxes, rule)
    assert not missing[:, 1].any()
    assert missing[:, 2].all()
    assert 0 < missing[:, [0, 3, 4, 5]].mean() < 1


def test_in_open_boxes_values_are_missing_as_often_as_own_ones_of_the_label(half):
    basis = basis_of(half)
    boxes = open_boxes((1000, 1000), basis.grid, half.evidence())
    missing = guessed_missing(half, basis, boxes, "prior")
    for c in (0, 1):
        own = np.isnan(half.local_rows.X[half.local_rows.y == c]).mean(axis=0)
        np.testing.assert_allclose(missing[boxes.y == c].mean(axis=0), own, atol=0.07)


@pytest.mark.long
@pytest.mark.parametrize("share", [0.1, 0.5])
@pytest.mark.parametrize("level", ["values", "statistics"])
def test_a_guess_has_as_many_missing_values_and_beats_own_rows_drawn_again(share, level):
    w = damaged(share)
    rng = np.random.default_rng(0)
    told = (
        reconstruct(w.evidence(level), w.local_rows, w.schema, Options(chains=5), rng) for _ in "ab"
    )
    guesses = [guessed.rows(guess) for guess in told]
    drawn = [w.local_rows.take(rng.integers(0, 80, len(w.victims))) for _ in range(3)]
    for guess in guesses:
        assert abs(np.isnan(guess.X).mean() - np.isnan(w.victims.X).mean()) < 0.1
    ours, blind = (
        np.mean([accuracy(table, w.victims, w.schema) for table in tables])
        for tables in (guesses, drawn)
    )
    assert ours > blind


@pytest.mark.parametrize("level", ["values", "statistics"])
def test_where_nothing_is_missing_the_way_of_missing_values_changes_nothing(level):
    w = damaged(0.0)
    evidence = w.evidence(level)
    turned = tuple(replace(t, default_left=~t.default_left) for t in evidence.trees)
    a, b = (
        guessed.rows(
            reconstruct(e, w.local_rows, w.schema, Options(chains=2), np.random.default_rng(0))
        )
        for e in (evidence, evidence.change(trees=turned))
    )
    np.testing.assert_array_equal(a.X, b.X)


def test_without_own_rows_as_knowledge_no_value_is_guessed_missing(half):
    options = Options(chains=1, use_prior=False)
    rng = np.random.default_rng(0)
    guess = guessed.rows(reconstruct(half.evidence(), half.local_rows, half.schema, options, rng))
    assert not np.isnan(guess.X).any()

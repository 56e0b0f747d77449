"""Missing values: boxes follow them through the trees, and guesses have the true missing rate."""

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


def missing_values_world(share, seed=0):
    """Return a world of related features with a categorical last column and some missing cells."""
    X, y = structured()
    X[np.random.default_rng(seed).random(X.shape) < share] = np.nan
    return world(X, y, 80, categorical={5: 3})


@pytest.fixture(scope="module")
def half_missing():
    return missing_values_world(0.5)


def context_of(world_with_missing):
    return ReconstructionContext.of(
        world_with_missing.evidence(), world_with_missing.local_rows, world_with_missing.schema
    ).with_missing_values()


def test_exactly_one_leaf_accepts_the_values_of_each_row(half_missing):
    """The forest routes rows with missing values by its default directions."""
    grid, table = context_of(half_missing).grid, half_missing.all_rows
    cells = grid.cells(table.X)
    for tree, leaf in zip(
        half_missing.forest.trees, half_missing.forest.apply(table.X).T, strict=True
    ):
        leaves = grid.leaves(tree)
        fits = np.ones((len(table), len(leaves)), dtype=bool)
        for j in range(len(leaves)):
            for k in range(leaves.offsets[j], leaves.offsets[j + 1]):
                cell = cells[:, leaves.feature[k]]
                inside_box = (leaves.lo[k] <= cell) & (cell < leaves.hi[k])
                fits[:, j] &= np.where(cell < 0, leaves.missing[k], inside_box)
        np.testing.assert_array_equal(fits, leaves.node == leaf[:, None])


def test_the_leaves_cover_every_box_exactly_once(half_missing):
    """Half of the boxes are open. In the others one value must be missing."""
    context = context_of(half_missing)
    boxes = open_boxes((40, 40), context.grid, half_missing.evidence())
    boxes.hi[::2, 1] = boxes.lo[::2, 1]
    for tree in half_missing.forest.trees:
        boxed = boxes.lo, boxes.hi, boxes.y
        options = reach(context.grid.leaves(tree), boxed, context.prior, boxes.missing)
        total = np.add.reduceat(np.exp(options.log_prior), options.offsets[:-1])
        np.testing.assert_allclose(total, 1.0)


def guessed_missing(world_with_missing, basis, boxes, rule):
    rng = np.random.default_rng(0)
    return np.isnan(points(rule, boxes, basis.grid, basis.prior, world_with_missing.schema, rng).X)


@pytest.mark.parametrize("rule", ["prior", "joint"])
def test_guessed_values_are_missing_exactly_where_the_boxes_require_it(half_missing, rule):
    basis = context_of(half_missing)
    boxes = open_boxes((50, 50), basis.grid, half_missing.evidence())
    boxes.missing[:, 1] = False
    boxes.hi[:, 2] = boxes.lo[:, 2]
    missing = guessed_missing(half_missing, basis, boxes, rule)
    assert not missing[:, 1].any()
    assert missing[:, 2].all()
    assert 0 < missing[:, [0, 3, 4, 5]].mean() < 1


def test_missing_rates_in_open_boxes_equal_the_local_rates_of_the_label(half_missing):
    context = context_of(half_missing)
    boxes = open_boxes((1000, 1000), context.grid, half_missing.evidence())
    missing = guessed_missing(half_missing, context, boxes, "prior")
    for label in (0, 1):
        local_rates = np.isnan(half_missing.local_rows.X[half_missing.local_rows.y == label]).mean(
            axis=0
        )
        np.testing.assert_allclose(missing[boxes.y == label].mean(axis=0), local_rates, atol=0.07)


@pytest.mark.long
@pytest.mark.parametrize("share", [0.1, 0.5])
@pytest.mark.parametrize("level", ["values", "statistics"])
def test_a_guess_has_the_true_missing_rate_and_beats_resampled_local_rows(share, level):
    world_with_missing = missing_values_world(share)
    rng = np.random.default_rng(0)
    reconstructions = (
        reconstruct(
            world_with_missing.evidence(level),
            world_with_missing.local_rows,
            world_with_missing.schema,
            Options(chains=5),
            rng,
        )
        for _ in "ab"
    )
    guesses = [guessed.rows(guess) for guess in reconstructions]
    resampled = [
        world_with_missing.local_rows.take(rng.integers(0, 80, len(world_with_missing.victims)))
        for _ in range(3)
    ]
    for guess in guesses:
        assert abs(np.isnan(guess.X).mean() - np.isnan(world_with_missing.victims.X).mean()) < 0.1
    attack_score, blind_score = (
        np.mean(
            [
                accuracy(table, world_with_missing.victims, world_with_missing.schema)
                for table in tables
            ]
        )
        for tables in (guesses, resampled)
    )
    assert attack_score > blind_score


@pytest.mark.parametrize("level", ["values", "statistics"])
def test_without_missing_values_the_default_direction_does_not_matter(level):
    world_with_missing = missing_values_world(0.0)
    evidence = world_with_missing.evidence(level)
    turned = tuple(replace(t, default_left=~t.default_left) for t in evidence.trees)
    a, b = (
        guessed.rows(
            reconstruct(
                e,
                world_with_missing.local_rows,
                world_with_missing.schema,
                Options(chains=2),
                np.random.default_rng(0),
            )
        )
        for e in (evidence, evidence.change(trees=turned))
    )
    np.testing.assert_array_equal(a.X, b.X)


def test_without_a_prior_from_local_rows_no_value_is_guessed_missing(half_missing):
    options = Options(chains=1, use_prior=False)
    rng = np.random.default_rng(0)
    guess = guessed.rows(
        reconstruct(
            half_missing.evidence(), half_missing.local_rows, half_missing.schema, options, rng
        )
    )
    assert not np.isnan(guess.X).any()

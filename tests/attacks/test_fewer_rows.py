"""For a large table, a sample of its rows is reconstructed."""

import guessed
import numpy as np
import pytest
from timberstrike_world import accuracy, structured, world

from fedtrees.attacks.counts.leaf_sums import Counts
from fedtrees.attacks.joint import reconstruct as joint
from fedtrees.attacks.reconstruction.context import (
    ReconstructionContext,
    _counts,
    equations,
    share_of,
    with_fewer_rows,
)
from fedtrees.attacks.timberstrike import Options, reconstruct
from fedtrees.core.claims import LeafCounts


@pytest.fixture(scope="module")
def related_features():
    """Return a world of related features, whose local rows have another distribution than the
    victims' rows.
    """
    X, y = structured()
    biased_order = np.argsort(X[:, 0] + 2 * np.random.default_rng(1).normal(size=len(y)))
    return world(X, y, 40, order=biased_order)


@pytest.mark.parametrize("level", ["values", "statistics"])
def test_the_equations_of_a_quarter_of_the_rows_are_scaled_by_a_quarter(related_features, level):
    evidence = related_features.evidence(level).change(reg_alpha=0.1)
    context = ReconstructionContext.of(
        evidence, related_features.local_rows, related_features.schema
    )
    scaled_evidence, sums, _ = with_fewer_rows(evidence, context.sums, (), 0.25)
    for t, tree in enumerate(evidence.trees):
        leaves = context.grid.leaves(tree)
        full, _ = equations(evidence, t, context.sums[t], leaves)
        scaled, _ = equations(scaled_evidence, t, sums[t], leaves)
        np.testing.assert_allclose(scaled, 0.25 * full, rtol=1e-12, atol=1e-12)


def test_counts_of_every_class_agree_over_its_trees():
    rng = np.random.default_rng(0)
    y = rng.integers(0, 3, 900)
    counts = []
    for k in range(3):
        leaf = rng.integers(0, 4, len(y))
        n0, n1 = (np.bincount(leaf[mask], minlength=4) for mask in (y != k, y == k))
        counts.append(Counts(n0, n1, 0.0))
    scaled_counts = _counts(counts, 1 / 3)
    assert {int((tree_counts.n0 + tree_counts.n1).sum()) for tree_counts in scaled_counts} == {300}
    assert sum(int(tree_counts.n1.sum()) for tree_counts in scaled_counts) == 300
    (single_tree,) = _counts(counts[:1], 1 / 3)
    assert np.abs(single_tree.n1 - counts[0].n1 / 3).max() < 1


@pytest.mark.long
@pytest.mark.parametrize("level", ["values", "statistics", "histograms"])
def test_a_smaller_reconstruction_beats_local_rows(related_features, level, monkeypatch):
    monkeypatch.setattr("fedtrees.blind_baselines.rows.MOST_ROWS", 200)
    monkeypatch.setattr("fedtrees.blind_baselines.rows.GUESSED", 140)
    assert share_of(len(related_features.victims)) == 0.5
    rng = np.random.default_rng(0)
    evidence = related_features.evidence(level)
    guess = reconstruct(
        evidence, related_features.local_rows, related_features.schema, Options(chains=2), rng
    )
    rows = guessed.rows(guess)
    assert len(rows) < 0.6 * len(related_features.victims) or level == "histograms"
    (table,) = guess.all(LeafCounts)  # The leaf counts still include all rows.
    assert table.counts.sum() == pytest.approx(len(related_features.victims), abs=3)
    some_victims = related_features.victims.take(
        rng.permutation(len(related_features.victims))[: len(rows)]
    )
    resampled = related_features.local_rows.take(rng.integers(0, 40, len(rows)))
    assert (
        accuracy(rows, some_victims, related_features.schema)
        > accuracy(resampled, some_victims, related_features.schema) + 0.02
    )


@pytest.mark.long
def test_the_joint_attack_reconstructs_the_limited_number_of_rows(related_features, monkeypatch):
    monkeypatch.setattr("fedtrees.blind_baselines.rows.MOST_ROWS", 200)
    monkeypatch.setattr("fedtrees.blind_baselines.rows.GUESSED", 140)
    options = joint.Options(chains=1, moves=20, samples=2)
    rng = np.random.default_rng(0)
    guess = joint.reconstruct(
        related_features.evidence(),
        related_features.local_rows,
        related_features.schema,
        options,
        rng,
    )
    assert len(guessed.rows(guess)) == 140
    (table,) = guess.all(LeafCounts)
    assert table.counts.sum() == len(related_features.victims)

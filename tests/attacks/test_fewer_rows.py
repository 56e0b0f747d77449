"""Of a large table some rows are reconstructed, which stand for all."""

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
def strong():
    X, y = structured()
    lucky = np.argsort(X[:, 0] + 2 * np.random.default_rng(1).normal(size=len(y)))
    return world(X, y, 40, order=lucky)


@pytest.mark.parametrize("level", ["values", "statistics"])
def test_the_equations_of_a_share_are_that_share_of_all(strong, level):
    evidence = strong.evidence(level).change(reg_alpha=0.1)
    basis = ReconstructionContext.of(evidence, strong.local_rows, strong.schema)
    few, sums, _ = with_fewer_rows(evidence, basis.sums, (), 0.25)
    for t, tree in enumerate(evidence.trees):
        leaves = basis.grid.leaves(tree)
        whole, _ = equations(evidence, t, basis.sums[t], leaves)
        part, _ = equations(few, t, sums[t], leaves)
        np.testing.assert_allclose(part, 0.25 * whole, rtol=1e-12, atol=1e-12)


def test_counts_of_every_class_agree_over_its_trees():
    rng = np.random.default_rng(0)
    y = rng.integers(0, 3, 900)
    counts = []
    for k in range(3):
        leaf = rng.integers(0, 4, len(y))
        n0, n1 = (np.bincount(leaf[of], minlength=4) for of in (y != k, y == k))
        counts.append(Counts(n0, n1, 0.0))
    found = _counts(counts, 1 / 3)
    assert {int((c.n0 + c.n1).sum()) for c in found} == {300}
    assert sum(int(c.n1.sum()) for c in found) == 300
    (one,) = _counts(counts[:1], 1 / 3)
    assert np.abs(one.n1 - counts[0].n1 / 3).max() < 1


@pytest.mark.long
@pytest.mark.parametrize("level", ["values", "statistics", "histograms"])
def test_fewer_rows_are_as_good_as_that_many_can_be(strong, level, monkeypatch):
    monkeypatch.setattr("fedtrees.blind_baselines.rows.MOST_ROWS", 200)
    monkeypatch.setattr("fedtrees.blind_baselines.rows.GUESSED", 140)
    assert share_of(len(strong.victims)) == 0.5
    rng = np.random.default_rng(0)
    evidence = strong.evidence(level)
    found = reconstruct(evidence, strong.local_rows, strong.schema, Options(chains=2), rng)
    rows = guessed.rows(found)
    assert len(rows) < 0.6 * len(strong.victims) or level == "histograms"
    (table,) = found.all(LeafCounts)  # still of all
    assert table.counts.sum() == pytest.approx(len(strong.victims), abs=3)
    seen = strong.victims.take(rng.permutation(len(strong.victims))[: len(rows)])
    own = strong.local_rows.take(rng.integers(0, 40, len(rows)))
    assert accuracy(rows, seen, strong.schema) > accuracy(own, seen, strong.schema) + 0.02


@pytest.mark.long
def test_joint_reconstructs_as_many(strong, monkeypatch):
    monkeypatch.setattr("fedtrees.blind_baselines.rows.MOST_ROWS", 200)
    monkeypatch.setattr("fedtrees.blind_baselines.rows.GUESSED", 140)
    options = joint.Options(chains=1, moves=20, samples=2)
    rng = np.random.default_rng(0)
    found = joint.reconstruct(strong.evidence(), strong.local_rows, strong.schema, options, rng)
    assert len(guessed.rows(found)) == 140
    (table,) = found.all(LeafCounts)
    assert table.counts.sum() == len(strong.victims)

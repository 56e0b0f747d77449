"""The network that guesses a missing row learns to read leaves; it needs torch."""

import numpy as np
import pytest

from fedtrees.attacks.forests.structure import NoisyForest, Variables
from fedtrees.benchmarks.papers import draft_dp_forests
from fedtrees.core.schema import Table


@pytest.mark.extra("torch")
def test_a_network_reads_a_row_where_noise_is_small_and_not_where_it_is_large(monkeypatch):
    monkeypatch.setattr(draft_dp_forests, "HIDDEN", (64, 32))
    rng = np.random.default_rng(0)
    X = rng.integers(0, 2, (400, 6)).astype(np.float32)
    rows = Table(X, (X[:, 0] > 0).astype(np.int64))
    feature = rng.integers(0, 6, (12, 7))
    forest = NoisyForest.of(Variables.binary(6), feature, np.zeros((12, 8, 2), dtype=int))
    mine = np.stack(
        [forest.counts(x[None].astype(int), [y]) for x, y in zip(X, rows.y, strict=True)]
    )
    wrong = {}
    for epsilon in (120.0, 0.1):
        read = draft_dp_forests.train_network(forest, rows, epsilon, 0)
        wrong[epsilon] = (read(mine) != X).mean()
        assert np.array_equal(
            read(mine), draft_dp_forests.train_network(forest, rows, epsilon, 0)(mine)
        )
    assert wrong[120.0] < 0.1
    assert wrong[0.1] > 0.3

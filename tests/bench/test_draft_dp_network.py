"""The network that guesses a missing row learns to read leaf counts (needs torch)."""

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
    counts_of_rows = np.stack(
        [
            forest.counts(row[None].astype(int), [label])
            for row, label in zip(X, rows.y, strict=True)
        ]
    )
    error_rates = {}
    for epsilon in (120.0, 0.1):
        predict = draft_dp_forests.train_network(forest, rows, epsilon, 0)
        error_rates[epsilon] = (predict(counts_of_rows) != X).mean()
        assert np.array_equal(
            predict(counts_of_rows),
            draft_dp_forests.train_network(forest, rows, epsilon, 0)(counts_of_rows),
        )
    assert error_rates[120.0] < 0.1
    assert error_rates[0.1] > 0.3

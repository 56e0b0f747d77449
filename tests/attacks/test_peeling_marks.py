"""Noise on the gradients of rows that is equal in the bins of all features distinguishes rows."""

from __future__ import annotations

from collections import Counter

import guessed
import numpy as np
import pytest
from peeling_world import SERVER, Run, gaussian_table, misleading_table, patients, schema_of

from fedtrees.attacks.observations.replay import law_of_rows
from fedtrees.attacks.peeling.fingerprints import marked_rows
from fedtrees.attacks.peeling.sources import sources_of
from fedtrees.attacks.timberstrike.attack import TimberStrike
from fedtrees.core.schema import Table
from fedtrees.defenses.laplace import LaplaceGradient
from fedtrees.defenses.secure_sum import SecureSum
from fedtrees.protocols.horizontal.histogram_protocols import NVFlareHist

FINE = NVFlareHist(trees=4, max_depth=4, max_bin=64)


def read_marked_rows(run):
    """Return the marked rows by source, as bins, and the true rows of each client and of all."""
    sources, noise_law = sources_of(run.view), law_of_rows(run.view)
    marked = {
        owner: marked_rows(sources.forest, part, noise_law) for owner, part in sources.parts.items()
    }
    truth = {
        owner: Counter(map(tuple, run.bins(table).tolist())) for owner, table in run.truth.items()
    }
    return marked, truth, sum(truth.values(), Counter())


@pytest.mark.long
@pytest.mark.parametrize(
    ("principals", "parts", "least_share"),
    [(SERVER, [], 0.95), (None, [], 0.9), (SERVER, [SecureSum()], 0.8)],
)
def test_equal_noise_in_the_bins_of_all_features_reveals_rows(principals, parts, least_share):
    run = Run(
        FINE, patients(120), principals=principals, parts=[*parts, LaplaceGradient(epsilon=0.1)]
    )
    marked, truth, all_rows = read_marked_rows(run)
    for owner, rows in marked.items():
        assert not Counter(map(tuple, rows.bins.tolist())) - truth.get(owner, all_rows)
    assert sum(len(rows.y) for rows in marked.values()) >= least_share * all_rows.total()


@pytest.mark.long
def test_the_confidence_of_labels_reflects_the_noise():
    run = Run(FINE, patients(120), principals=SERVER, parts=[LaplaceGradient(epsilon=1e3)])
    guess = run.attack()
    assert not run.wrong(guess).any()
    assert len(guessed.rows(guess)) >= 0.95 * run.counts().total()
    run = Run(FINE, patients(120), principals=SERVER, parts=[LaplaceGradient(epsilon=1.0)])
    assert not len(guessed.rows(run.attack()))
    guess = run.attack(confidence=0.5)
    share_correct = 1 - run.wrong(guess).mean()
    assert abs(share_correct - guessed.confidence(guess).mean()) < 0.2


@pytest.mark.long
@pytest.mark.parametrize("seed", range(8))
def test_marked_rows_of_small_coarse_tables_are_correct(seed):
    table, codes = misleading_table(np.random.default_rng(seed))
    table = Table.concat([table, table.take(np.arange(len(table) // 3))])
    protocol = NVFlareHist(trees=5, max_depth=3, max_bin=8)
    run_options = {"schema": schema_of(table, codes), "parts": [LaplaceGradient(epsilon=2.0)]}
    marked, truth, all_rows = read_marked_rows(
        Run(protocol, table, 2, SERVER if seed % 2 else None, **run_options)
    )
    for owner, rows in marked.items():
        assert not Counter(map(tuple, rows.bins.tolist())) - truth.get(owner, all_rows)


@pytest.mark.long
def test_timberstrike_uses_marked_rows_and_guesses_the_others():
    run = Run(FINE, gaussian_table(0, 150), principals=SERVER, parts=[LaplaceGradient(epsilon=1.0)])
    guess = TimberStrike(chains=2).run(run.view, np.random.default_rng(0))
    assert guess.notes["marked_rows"] >= 45
    assert len(guessed.rows(guess)) == 150
    guessed_rows = Counter(map(tuple, run.bins(guessed.rows(guess)).tolist()))
    all_rows = Counter(map(tuple, run.bins(Table.concat(list(run.truth.values()))).tolist()))
    assert (guessed_rows & all_rows).total() >= 120

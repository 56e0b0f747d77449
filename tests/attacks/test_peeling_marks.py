"""Noise on rows' gradients, the same in the bins of all features, tells rows apart."""

from __future__ import annotations

from collections import Counter

import guessed
import numpy as np
import pytest
from peeling_world import SERVER, Run, gaussian_table, misleading_table, patients, schema_of

from fedtrees.attacks.observations.noise_channels import law_of_rows
from fedtrees.attacks.peeling.noise_fingerprints import marked_rows
from fedtrees.attacks.peeling.sources import sources_of
from fedtrees.attacks.timberstrike.attack import TimberStrike
from fedtrees.core.schema import Table
from fedtrees.defenses.laplace import LaplaceGradient
from fedtrees.defenses.secure_sum import SecureSum
from fedtrees.protocols.horizontal.histogram_protocols import NVFlareHist

FINE = NVFlareHist(trees=4, max_depth=4, max_bin=64)


def read(run):
    """Return rows read, as bins, by source, and those of the truth, of each client and of all."""
    sources, law = sources_of(run.view), law_of_rows(run.view)
    found = {o: marked_rows(sources.forest, left, law) for o, left in sources.parts.items()}
    truth = {o: Counter(map(tuple, run.bins(t).tolist())) for o, t in run.truth.items()}
    return found, truth, sum(truth.values(), Counter())


@pytest.mark.long
@pytest.mark.parametrize(
    ("who", "parts", "least"), [(SERVER, [], 0.95), (None, [], 0.9), (SERVER, [SecureSum()], 0.8)]
)
def test_whoever_sees_bins_reads_rows_however_much_noise_is_on_them(who, parts, least):
    run = Run(FINE, patients(120), principals=who, parts=[*parts, LaplaceGradient(epsilon=0.1)])
    found, truth, every = read(run)
    for owner, rows in found.items():
        assert not Counter(map(tuple, rows.bins.tolist())) - truth.get(owner, every)
    assert sum(len(rows.y) for rows in found.values()) >= least * every.total()


@pytest.mark.long
def test_labels_are_as_sure_as_the_noise_leaves_them():
    run = Run(FINE, patients(120), principals=SERVER, parts=[LaplaceGradient(epsilon=1e3)])
    guess = run.attack()
    assert not run.wrong(guess).any()
    assert len(guessed.rows(guess)) >= 0.95 * run.counts().total()
    run = Run(FINE, patients(120), principals=SERVER, parts=[LaplaceGradient(epsilon=1.0)])
    assert not len(guessed.rows(run.attack()))
    guess = run.attack(confidence=0.5)
    right = 1 - run.wrong(guess).mean()
    assert abs(right - guessed.confidence(guess).mean()) < 0.2


@pytest.mark.long
@pytest.mark.parametrize("seed", range(8))
def test_what_is_read_of_few_coarse_rows_is_true(seed):
    table, codes = misleading_table(np.random.default_rng(seed))
    table = Table.concat([table, table.take(np.arange(len(table) // 3))])
    protocol = NVFlareHist(trees=5, max_depth=3, max_bin=8)
    made = {"schema": schema_of(table, codes), "parts": [LaplaceGradient(epsilon=2.0)]}
    found, truth, every = read(Run(protocol, table, 2, SERVER if seed % 2 else None, **made))
    for owner, rows in found.items():
        assert not Counter(map(tuple, rows.bins.tolist())) - truth.get(owner, every)


@pytest.mark.long
def test_timberstrike_takes_rows_that_were_read_and_guesses_the_others():
    run = Run(FINE, gaussian_table(0, 150), principals=SERVER, parts=[LaplaceGradient(epsilon=1.0)])
    guess = TimberStrike(chains=2).run(run.view, np.random.default_rng(0))
    assert guess.notes["marked_rows"] >= 45
    assert len(guessed.rows(guess)) == 150
    read = Counter(map(tuple, run.bins(guessed.rows(guess)).tolist()))
    every = Counter(map(tuple, run.bins(Table.concat(list(run.truth.values()))).tolist()))
    assert (read & every).total() >= 120

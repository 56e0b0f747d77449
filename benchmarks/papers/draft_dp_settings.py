"""Compare the default settings of `draft-dp`'s Markov chains with the first ones.

The rows are different from those by which either setting was chosen.
"""

from collections.abc import Iterator
from statistics import mean

import numpy as np
from numpy.typing import NDArray

from fedtrees.attacks.forests.chain import advance
from fedtrees.attacks.forests.posterior import Answer, Question, posterior, weights
from fedtrees.benchmarks.papers.draft_dp_study import TABLES, Part, Study, own_run
from fedtrees.guessing.matching import assign

#: Number of chains, moves per row in burn-in and in sampling, and samples per chain. These settings
#: were fixed before any published instance was examined. They use a majority vote.
FIRST_SETTINGS = (2, 6_000, 12_000, 60)


def settings(study: Study) -> Iterator[Part]:
    """Yield the errors on forests and rows drawn here, by settings of the chains."""
    lines = []
    for name in TABLES:
        for epsilon in (1.0, 5.0, 20.0):
            results = [
                [own_run(study, name, 10, 5, epsilon, seed, solve) for seed in range(study.seeds)]
                for solve in (first_settings, posterior)
            ]
            gain = [a.error - b.error for a, b in zip(*results, strict=True)]
            errors = [
                f"{mean(r.error for r in runs_of_setting):.3f}" for runs_of_setting in results
            ]
            wins = f"{sum(g > 0 for g in gain)} of {len(gain)}"
            spent = [
                f"{mean(r.seconds for r in runs_of_setting):.2f}" for runs_of_setting in results
            ]
            lines.append([name, f"{epsilon:g}", *errors, wins, *spent])
    header = ("table", "epsilon", "first settings", "default", "better", "CPU s", "CPU s")
    yield "Other rows", header, lines


def first_settings(question: Question, rng: np.random.Generator) -> Answer:
    """Sample and vote with the first settings."""
    chains, burn_in, sampling, n_samples = FIRST_SETTINGS
    n, steps = question.n, 50
    world, noisy = question.world()
    samples: list[NDArray[np.int16]] = []
    for _ in range(chains):
        state = question.start(world, noisy, rng)
        bits = rng.integers(0, 1 << 63, 1).astype(np.uint64)
        for beta in np.geomspace(0.2, 1.0, steps).tolist():
            advance(world, state, n, beta, burn_in * n // steps, bits)
        for _ in range(n_samples):
            advance(world, state, n, 1.0, sampling * n // n_samples, bits)
            samples.append(state.value[:n].copy())
    consensus = samples[-1]
    one = np.eye(int(question.sizes.max()), dtype=np.int64)
    # Alternate between matching the rows of samples to the consensus and voting, until it is
    # stable.
    for _ in range(8):
        votes = np.zeros((*consensus.shape, len(one)), dtype=np.int64)
        for sample in samples:
            differ = (consensus[:, None] != sample[None]) * weights(question.forest.variables)
            votes += one[sample[assign(differ.sum(axis=2, dtype=np.uint8))]]
        fresh = votes.argmax(axis=2).astype(np.int16)
        if (fresh == consensus).all():
            break
        consensus = fresh
    return Answer(consensus, votes / len(samples), 0.0, 0.0)

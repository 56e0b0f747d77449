"""The settings of `draft-dp`'s chains against those before, on rows that chose neither."""

from collections.abc import Iterator
from statistics import mean

import numpy as np
from numpy.typing import NDArray

from fedtrees.attacks.forests.chain import advance
from fedtrees.attacks.forests.posterior import Answer, Question, posterior, weights
from fedtrees.benchmarks.papers.draft_dp_study import TABLES, Part, Study, own_run
from fedtrees.guessing.matching import assign

#: Chains, moves of each per row before and while samples are taken, and samples of each: what was
#: fixed before any of the published instances was looked at, with a vote by majority.
FIRST_SETTINGS = (2, 6_000, 12_000, 60)


def settings(study: Study) -> Iterator[Part]:
    """Yield errors on forests and rows drawn here, by the settings of the chains."""
    lines = []
    for name in TABLES:
        for epsilon in (1.0, 5.0, 20.0):
            by = [
                [own_run(study, name, 10, 5, epsilon, seed, solve) for seed in range(study.seeds)]
                for solve in (first_settings, posterior)
            ]
            gain = [a.error - b.error for a, b in zip(*by, strict=True)]
            errors = [f"{mean(r.error for r in found):.3f}" for found in by]
            wins = f"{sum(g > 0 for g in gain)} of {len(gain)}"
            spent = [f"{mean(r.seconds for r in found):.2f}" for found in by]
            lines.append([name, f"{epsilon:g}", *errors, wins, *spent])
    header = ("table", "epsilon", "first settings", "default", "better", "CPU s", "CPU s")
    yield "Other rows", header, lines


def first_settings(question: Question, rng: np.random.Generator) -> Answer:
    """Sample and vote with the settings that were fixed before."""
    chains, burn_in, sampling, wanted = FIRST_SETTINGS
    n, steps = question.n, 50
    world, noisy = question.world()
    kept: list[NDArray[np.int16]] = []
    for _ in range(chains):
        state = question.start(world, noisy, rng)
        bits = rng.integers(0, 1 << 63, 1).astype(np.uint64)
        for beta in np.geomspace(0.2, 1.0, steps).tolist():
            advance(world, state, n, beta, burn_in * n // steps, bits)
        for _ in range(wanted):
            advance(world, state, n, 1.0, sampling * n // wanted, bits)
            kept.append(state.value[:n].copy())
    held = kept[-1]
    one = np.eye(int(question.sizes.max()), dtype=np.int64)
    for _ in range(8):
        votes = np.zeros((*held.shape, len(one)), dtype=np.int64)
        for sample in kept:
            differ = (held[:, None] != sample[None]) * weights(question.forest.variables)
            votes += one[sample[assign(differ.sum(axis=2, dtype=np.uint8))]]
        fresh = votes.argmax(axis=2).astype(np.int16)
        if (fresh == held).all():
            break
        held = fresh
    return Answer(held, votes / len(kept), 0.0, 0.0)

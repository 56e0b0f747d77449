"""Forests with Laplace and with Gaussian noise: Appendix C-B of Gorgé et al. (2026).

The appendix argues that Gaussian noise harms a forest more than Laplace noise, under basic and
under advanced composition over its trees. The study states the noise of one count, and measures the
accuracy of the forests and the error of `draft-dp`.
"""

from collections.abc import Iterator
from dataclasses import replace
from math import exp, log, sqrt
from statistics import mean
from typing import NamedTuple

import numpy as np

from fedtrees.attacks.forests.posterior import Question
from fedtrees.attacks.forests.structure import Noise
from fedtrees.benchmarks.papers.draft_dp_forests import (
    TABLES,
    PublishedForests,
    draw_counts,
    reconstruct,
    variables,
)
from fedtrees.benchmarks.papers.tables import Table


class CountNoise(NamedTuple):
    """Noise of one count: its privacy parameters and its law."""

    epsilon: float
    delta: float
    noise: Noise


def count_noise(epsilon: float, delta: float, trees: int) -> dict[str, CountNoise]:
    """Return the noise of one count by mechanism, for a forest of the given privacy parameters.

    The classical bound of the Gaussian mechanism is used for every epsilon, as in the paper. With
    advanced composition, one half of delta is delta', and the trees share the other half.
    """
    from scipy.optimize import brentq

    def gaussian(e: float, d: float) -> CountNoise:
        return CountNoise(e, d, Noise("gaussian", sqrt(2 * log(1.25 / d)) / e))

    def excess(e: float) -> float:
        return sqrt(2 * trees * log(2 / delta)) * e + trees * e * (exp(e) - 1) - epsilon

    laplace = Noise.of("truncated-laplace", epsilon, trees)
    return {
        "Laplace": CountNoise(epsilon / trees, 0.0, laplace),
        "Gaussian, basic": gaussian(epsilon / trees, delta / trees),
        "Gaussian, advanced": gaussian(brentq(excess, 0, epsilon), delta / (2 * trees)),
    }


def mechanisms(published: PublishedForests) -> Iterator[Table]:
    """Yield noise, accuracy and error by mechanism, for the parameters of Figure 6.

    There are 10 trees of depth 5 and 100 rows. Epsilon is 10, and delta is 1e-4.
    """
    lines = []
    for name in TABLES:
        table, schema = published.table(name)
        truth, rest = table.take(np.arange(100)), table.take(np.arange(100, len(table)))
        coded = variables(schema).encode(truth.X)
        for mechanism, law in count_noise(10.0, 1e-4, 10).items():
            noise, errors, accuracies = law.noise, [], []
            for seed in range(published.seeds):
                rng = np.random.default_rng([seed, 10, 5])
                model, forest = draw_counts(truth, schema, (10, 5, 10.0), seed, rng)
                if noise.kind == "gaussian":
                    draws = np.trunc(rng.normal(0.0, noise.scale, forest.noisy.shape))
                    noisy = forest.counts(coded, truth.y) + draws.astype(np.int64)
                    forest, model = replace(forest, noisy=noisy), replace(model, counts=noisy)
                errors.append(reconstruct(Question(forest, noise, 100), truth, seed).error)
                accuracies.append(
                    [((model.predict(r.X) >= 0.5) == r.y).mean() for r in (truth, rest)]
                )
            deviation = noise.scale * (1.0 if noise.kind == "gaussian" else sqrt(2))
            scores = (*np.mean(accuracies, axis=0), mean(errors))
            texts = (f"{x:.3g}" for x in (law.epsilon, law.delta, deviation))
            lines.append([name, mechanism, *texts, *(f"{x:.3f}" for x in scores)])
    header = ("table", "mechanism", "epsilon of a count", "delta of a count", "deviation",
              "accuracy, training", "accuracy, test", "error")  # fmt: skip
    yield Table("Noise of the counts, epsilon 10, delta 1e-4", header, lines)

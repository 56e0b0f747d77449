"""Reconstruct one unknown row of 2,000 by enumeration, compared with a neural network."""

from collections.abc import Iterator
from importlib.util import find_spec
from statistics import mean
from time import process_time

import numpy as np
from numpy.typing import NDArray

from fedtrees.attacks.forests.informed import Enumeration
from fedtrees.attacks.forests.likelihoods import Noise
from fedtrees.attacks.forests.structure import NoisyForest
from fedtrees.benchmarks.papers.draft_dp_network import train_network
from fedtrees.benchmarks.papers.draft_dp_study import TABLES, Part, Study, own_forest
from fedtrees.core.schema import Table

#: Number of target rows per forest. Each of them is unknown in turn.
TARGETS = 100


def informed_errors(study: Study) -> Iterator[Part]:
    """Yield the errors of the unknown row, with 100 targets per seed."""
    lines = []
    for name in TABLES:
        for epsilon in ("1", "5", "10", "20"):
            errors, majority, expected, network, spent = [], [], [], list[float](), 0.0
            for seed in range(study.seeds):
                truth, rest, forest = own_forest(study, name, 10, 5, float(epsilon), 2000, seed)
                wrong, common, posterior_errors, seconds = _missing(truth, forest, float(epsilon))
                errors, majority, spent = errors + wrong, majority + common, spent + seconds
                expected += posterior_errors
                if find_spec("torch"):
                    network += _by_network(truth, rest, forest, float(epsilon), seed)
            milliseconds = 1000 * spent / len(errors)
            lines.append(
                [name, epsilon, f"{mean(errors):.3f}", f"{mean(expected):.3f}",
                 f"{mean(e == 0 for e in errors):.2f}", f"{mean(majority):.3f}",
                 *(f"{study.published('informed', name, 2000, epsilon, method=m):.3f}"
                   for m in ("cp", "reconn")),
                 f"{mean(network):.3f}" if network else "–", f"{milliseconds:.2f}"]
            )  # fmt: skip
    header = (
        "table", "epsilon", "error", "expected", "exact", "majority row", "published",
        "network, published", "network", "CPU ms a target",
    )  # fmt: skip
    yield "All rows but one known", header, lines


def _by_network(
    truth: Table, rest: Table, forest: NoisyForest, epsilon: float, seed: int
) -> list[float]:
    """Return the errors of a network that is trained on shadow forests (`draft_dp_network`)."""
    coded, X = forest.variables.encode(truth.X), truth.X[:TARGETS]
    counts = forest.counts(coded, truth.y)
    target_counts = [forest.counts(coded[i : i + 1], truth.y[i : i + 1]) for i in range(TARGETS)]
    residual_counts = forest.noisy - counts + np.stack(target_counts)
    return [
        float(e)
        for e in (train_network(forest, rest, epsilon, seed)(residual_counts) != X).mean(axis=1)
    ]


def _missing(
    truth: Table, forest: NoisyForest, epsilon: float
) -> tuple[list[float], list[float], list[float], float]:
    """Return the errors of the enumeration, of the majority row, and the expected errors.

    The last element is the time in CPU seconds.
    """
    coded = forest.variables.encode(truth.X)
    rows = np.column_stack([coded, truth.y]).astype(np.int16)
    enumeration, noise = Enumeration.of(forest), Noise.of("truncated-laplace", epsilon, 10)
    counts = forest.counts(coded, truth.y)
    majority_codes = np.array([[np.bincount(column).argmax() for column in coded.T]])
    common = forest.variables.decode(majority_codes)[0]
    valid = forest.variables.decode(enumeration.value)
    wrong, blind, expected_errors, spent = list[float](), list[float](), list[float](), 0.0
    for i in range(TARGETS):
        rest, target_counts = (
            np.delete(rows, i, axis=0),
            forest.counts(coded[i : i + 1], truth.y[i : i + 1]),
        )
        begin = process_time()
        row, chance = enumeration.missing_row(noise, rest, counts - target_counts)
        spent += process_time() - begin
        X: NDArray[np.float32] = forest.variables.decode(row[None, :-1])[0]
        wrong.append(float((truth.X[i] != X).mean()))
        blind.append(float((common != truth.X[i]).mean()))
        expected_errors.append(float((chance.sum(axis=1) * (valid != X).mean(axis=1)).sum()))
    return wrong, blind, expected_errors, spent

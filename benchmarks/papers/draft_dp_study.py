"""What Gorgé et al. (2025) published: forests, noise and errors; and reconstructions scored so."""

import csv
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import mean
from time import process_time

import numpy as np

from fedtrees.attacks.forests.likelihoods import Noise
from fedtrees.attacks.forests.posterior import Answer, Question, posterior
from fedtrees.attacks.forests.structure import NoisyForest, Variables
from fedtrees.core.schema import Schema, Table
from fedtrees.data.catalogue import load
from fedtrees.metrics.rows import row_errors
from fedtrees.privacy.mechanisms import truncated_laplace
from fedtrees.trees.forest.random_decision import draw_splits

TABLES = ("compas", "adult")
#: Title, header, lines.
Part = tuple[str, tuple[str, ...], list[list[str]]]


@dataclass(frozen=True, eq=False)
class Study:
    """The published forests and errors.

    `seeds`: How many of the five.
    """

    folder: Path
    data_dir: str | None
    seeds: int

    def table(self, name: str) -> tuple[Table, Schema]:
        """Return all rows, and the schema with the one-hot groups that the study knows.

        It knows of Adult's columns that exactly one of the education ones is 1, and nothing of
        those of which all may be 0.
        """
        data = load(f"{name}-binary", self.data_dir)
        groups = tuple(g for g in data.schema.groups if not g.empty)
        return data.table, replace(data.schema, groups=groups)

    def forest(self, name: str, n: int, epsilon: str, seed: int) -> NoisyForest:
        """Return a published forest."""
        key = f"{name}|{n}|10|5|{epsilon}|{seed}"
        with np.load(self.folder / "dp_forests.npz") as arrays:
            feature, noisy = arrays[f"{key}|feature"], arrays[f"{key}|noisy"]
        return NoisyForest.of(variables(self.table(name)[1]), feature, noisy)

    def published(
        self, file: str, name: str, n: int, epsilon: str, trees: int = 10, depth: int = 5,
        score: str = "error", **only: str,
    ) -> float:  # fmt: skip
        """Return their mean error, NaN where there is none; `only` of lines with such cells."""
        wanted = {"dataset": name, "n": str(n), "n_trees": str(trees), "depth": str(depth), **only}
        with (self.folder / f"draftdp_{file}.csv").open(newline="") as lines:
            found = [
                float(line[score])
                for line in csv.DictReader(lines)
                if all(line[k] == v for k, v in wanted.items())
                and float(line["eps"]) == float(epsilon)
                and line[score]
            ]
        return mean(found) if found else float("nan")


def variables(schema: Schema) -> Variables:
    """Return the variables of binary columns."""
    return Variables.of_schema(schema, [np.array([1.0])] * len(schema.features))


@dataclass(frozen=True)
class Run:
    """One reconstruction: its error, share of exact rows, worst row and CPU seconds."""

    error: float
    right: float
    worst: float
    seconds: float


Solve = Callable[[Question, np.random.Generator], Answer]


def run(
    question: Question, truth: Table, seed: int, solve: Solve = posterior, told: Sequence[int] = ()
) -> Run:
    """Reconstruct, and score as the study does, but for columns that were told."""
    begin = process_time()
    answer = solve(question, np.random.default_rng(seed))
    spent = process_time() - begin
    rows = question.forest.variables.decode(answer.value[:, :-1])
    guess = _resized(Table(rows, answer.value[:, -1].astype(np.int64)), len(truth), seed)
    scores = row_errors(guess, truth, np.ones(len(truth), dtype=bool), told)
    return Run(scores.mean, scores.right, scores.worst, spent)


def _resized(guess: Table, n: int, seed: int) -> Table:
    """Return a guess of n rows: some of its own, or some of them twice, as the study does."""
    rng = np.random.default_rng(seed)
    if len(guess) >= n:
        return guess.take(np.sort(rng.permutation(len(guess))[:n]))
    return guess.take(
        np.concatenate([np.arange(len(guess)), rng.integers(0, len(guess), n - len(guess))])
    )


def runs(
    study: Study, name: str, n: int, epsilon: str, solve: Solve = posterior, known: bool = True
) -> list[Run]:
    """Reconstruct from the published forests of one setting."""
    truth = study.table(name)[0].take(np.arange(n))
    found = []
    for seed in range(study.seeds):
        forest = study.forest(name, n, epsilon, seed)
        noise = Noise.of("truncated-laplace", float(epsilon), 10)
        rows = n if known else min(400, forest.estimated_rows(20))
        found.append(run(Question(forest, noise, rows), truth, seed, solve))
    return found


def line_of(found: list[Run], *labels: str) -> list[str]:
    scores = [f"{mean(getattr(r, k) for r in found):.3f}" for k in ("error", "right", "worst")]
    return [*labels, *scores, f"{mean(r.seconds for r in found):.2f}"]


SCORES = ("error", "exact rows", "worst row", "CPU s")


def own_forest(
    study: Study, name: str, trees: int, depth: int, epsilon: float, n: int, seed: int
) -> tuple[Table, Table, NoisyForest]:
    """Return rows drawn at random, the others, and a forest of the former.

    It is drawn and made noisy as the study does.
    """
    table, schema = study.table(name)
    rng = np.random.default_rng([seed, trees, depth])
    drawn = rng.choice(len(table), n, replace=False)
    truth, rest = table.take(drawn), table.take(np.setdiff1d(np.arange(len(table)), drawn))
    draws = [np.random.default_rng([seed, tree]) for tree in range(trees)]
    tests = draw_splits(schema, depth, draws.__getitem__, trees, repeats=True)
    counts = tests.count(truth.X, truth.y, 2)
    noisy = counts + truncated_laplace(trees / epsilon, counts.shape, rng)
    return truth, rest, NoisyForest.of(variables(schema), tests.feature, noisy, tests.threshold)


def own_run(
    study: Study, name: str, trees: int, depth: int, epsilon: float, seed: int,
    solve: Solve = posterior,
) -> Run:  # fmt: skip
    """Reconstruct 100 rows from a forest drawn here."""
    truth, _, forest = own_forest(study, name, trees, depth, epsilon, 100, seed)
    noise = Noise.of("truncated-laplace", epsilon, trees)
    return run(Question(forest, noise, 100), truth, seed, solve)

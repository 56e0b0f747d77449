"""Load the forests and errors of Gorgé et al. (2026), and score reconstructions like the paper."""

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
#: A table: title, header and lines.
Part = tuple[str, tuple[str, ...], list[list[str]]]


@dataclass(frozen=True, eq=False)
class Study:
    """The published forests and errors.

    Attributes
    ----------
    folder : Path
        Folder of the published files.
    data_dir : str or None
        Folder of the data sets.
    seeds : int
        Number of seeds that are used, of five.
    """

    folder: Path
    data_dir: str | None
    seeds: int

    def table(self, name: str) -> tuple[Table, Schema]:
        """Return all rows, and the schema with the one-hot groups that the paper uses.

        For Adult, these are groups of which exactly one column is 1. The paper does not use groups
        in which all columns may be 0.
        """
        data = load(f"{name}-binary", self.data_dir)
        groups = tuple(g for g in data.schema.groups if not g.empty)
        return data.table, replace(data.schema, groups=groups)

    def forest(self, name: str, n: int, epsilon: str, seed: int) -> NoisyForest:
        """Return a published forest.

        Parameters
        ----------
        name : str
            Data set.
        n : int
            Number of rows.
        epsilon : str
            Privacy budget.
        seed : int
            Seed of the forest.
        """
        key = f"{name}|{n}|10|5|{epsilon}|{seed}"
        with np.load(self.folder / "dp_forests.npz") as arrays:
            feature, noisy = arrays[f"{key}|feature"], arrays[f"{key}|noisy"]
        return NoisyForest.of(variables(self.table(name)[1]), feature, noisy)

    def published(
        self, file: str, name: str, n: int, epsilon: str, trees: int = 10, depth: int = 5,
        score: str = "error", **only: str,
    ) -> float:  # fmt: skip
        """Return the published mean error, NaN if there is none.

        Parameters
        ----------
        file : str
            Suffix of the file name.
        name : str
            Data set.
        n : int
            Number of rows.
        epsilon : str
            Privacy budget.
        trees, depth : int
            Size of the forest.
        score : str
            Column of the file.
        **only : str
            Further columns and the values that a line must have.
        """
        required = {
            "dataset": name,
            "n": str(n),
            "n_trees": str(trees),
            "depth": str(depth),
            **only,
        }
        with (self.folder / f"draftdp_{file}.csv").open(newline="") as lines:
            scores = [
                float(line[score])
                for line in csv.DictReader(lines)
                if all(line[k] == v for k, v in required.items())
                and float(line["eps"]) == float(epsilon)
                and line[score]
            ]
        return mean(scores) if scores else float("nan")


def variables(schema: Schema) -> Variables:
    """Return the variables of binary columns."""
    return Variables.of_schema(schema, [np.array([1.0])] * len(schema.features))


@dataclass(frozen=True)
class Run:
    """Result of one reconstruction.

    Attributes
    ----------
    error : float
        Mean share of wrong attributes.
    right : float
        Share of rows that are exact.
    worst : float
        Error of the worst row.
    seconds : float
        CPU seconds.
    """

    error: float
    right: float
    worst: float
    seconds: float


Solve = Callable[[Question, np.random.Generator], Answer]


def run(
    question: Question,
    truth: Table,
    seed: int,
    solve: Solve = posterior,
    known_columns: Sequence[int] = (),
) -> Run:
    """Reconstruct rows and score them as the paper does, except for known columns.

    Parameters
    ----------
    question : Question
        The forest and the adversary's knowledge about it.
    truth : Table
        True rows.
    seed : int
        Seed of the reconstruction.
    solve : callable
        Algorithm.
    known_columns : sequence of int
        Columns that are known and not scored.
    """
    begin = process_time()
    answer = solve(question, np.random.default_rng(seed))
    spent = process_time() - begin
    rows = question.forest.variables.decode(answer.value[:, :-1])
    guess = _resize(Table(rows, answer.value[:, -1].astype(np.int64)), len(truth), seed)
    scores = row_errors(guess, truth, np.ones(len(truth), dtype=bool), known_columns)
    return Run(scores.mean, scores.right, scores.worst, spent)


def _resize(guess: Table, n: int, seed: int) -> Table:
    """Return n rows: a subset of the guess, or the guess with repeated rows, as in the paper."""
    rng = np.random.default_rng(seed)
    if len(guess) >= n:
        return guess.take(np.sort(rng.permutation(len(guess))[:n]))
    return guess.take(
        np.concatenate([np.arange(len(guess)), rng.integers(0, len(guess), n - len(guess))])
    )


def runs(
    study: Study,
    name: str,
    n: int,
    epsilon: str,
    solve: Solve = posterior,
    row_count_known: bool = True,
) -> list[Run]:
    """Reconstruct rows from the published forests of one setting.

    Parameters
    ----------
    study : Study
        Published forests.
    name : str
        Data set.
    n : int
        Number of rows.
    epsilon : str
        Privacy budget.
    solve : callable
        Algorithm.
    row_count_known : bool
        Whether the number of rows is known. If not, it is estimated.
    """
    truth = study.table(name)[0].take(np.arange(n))
    results = []
    for seed in range(study.seeds):
        forest = study.forest(name, n, epsilon, seed)
        noise = Noise.of("truncated-laplace", float(epsilon), 10)
        rows = n if row_count_known else min(400, forest.estimated_rows(20))
        results.append(run(Question(forest, noise, rows), truth, seed, solve))
    return results


def line_of(results: list[Run], *labels: str) -> list[str]:
    """Return a line of a table with the mean scores of some runs."""
    scores = [f"{mean(getattr(r, k) for r in results):.3f}" for k in ("error", "right", "worst")]
    return [*labels, *scores, f"{mean(r.seconds for r in results):.2f}"]


SCORES = ("error", "exact rows", "worst row", "CPU s")


def own_forest(
    study: Study, name: str, trees: int, depth: int, epsilon: float, n: int, seed: int
) -> tuple[Table, Table, NoisyForest]:
    """Return random rows, the remaining rows, and a noisy forest of the former, as in the paper.

    Parameters
    ----------
    study : Study
        Provides the tables.
    name : str
        Data set.
    trees, depth : int
        Size of the forest.
    epsilon : float
        Privacy budget.
    n : int
        Number of rows.
    seed : int
        Seed of the rows and the noise.
    """
    table, schema = study.table(name)
    rng = np.random.default_rng([seed, trees, depth])
    drawn = rng.choice(len(table), n, replace=False)
    truth, rest = table.take(drawn), table.take(np.setdiff1d(np.arange(len(table)), drawn))
    # Each tree has a separate random stream.
    draws = [np.random.default_rng([seed, tree]) for tree in range(trees)]
    tests = draw_splits(schema, depth, draws.__getitem__, trees, repeats=True)
    counts = tests.count(truth.X, truth.y, 2)
    noisy = counts + truncated_laplace(trees / epsilon, counts.shape, rng)
    return truth, rest, NoisyForest.of(variables(schema), tests.feature, noisy, tests.threshold)


def own_run(
    study: Study, name: str, trees: int, depth: int, epsilon: float, seed: int,
    solve: Solve = posterior,
) -> Run:  # fmt: skip
    """Reconstruct 100 rows from a forest drawn here.

    Parameters
    ----------
    study : Study
        Provides the tables.
    name : str
        Data set.
    trees, depth : int
        Size of the forest.
    epsilon : float
        Privacy budget.
    seed : int
        Seed of the rows and the noise.
    solve : callable
        Algorithm.
    """
    truth, _, forest = own_forest(study, name, trees, depth, epsilon, 100, seed)
    noise = Noise.of("truncated-laplace", epsilon, trees)
    return run(Question(forest, noise, 100), truth, seed, solve)

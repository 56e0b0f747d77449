"""Forests and errors of DRAFT-DP (Gorgé et al. 2026), and reconstructions scored like theirs.

The reconstructor network (RecoNN) of Balle, Cherubin and Hayes (2022) is compared with `draft-dp`,
as Gorgé et al. (Appendix G) fit it to noisy forests. It requires torch, the extra ``neural``.
"""

import csv
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cache
from itertools import pairwise
from pathlib import Path
from statistics import mean
from time import process_time

import numpy as np
from numpy.typing import NDArray

from fedtrees.attacks.forests.posterior import Answer, Question, posterior
from fedtrees.attacks.forests.structure import Noise, NoisyForest, Variables
from fedtrees.core.schema import Schema, Table
from fedtrees.data.catalogue import load
from fedtrees.metrics.records import row_errors
from fedtrees.neural.torch_module import torch_module
from fedtrees.privacy.mechanisms import truncated_laplace
from fedtrees.trees.forest.random_decision import RandomDecisionForest, draw_splits

TABLES = ("compas", "adult")
#: Columns of `score_line`.
SCORES = ("error", "exact rows", "worst row", "CPU s")


@dataclass(frozen=True, eq=False)
class PublishedForests:
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
        return _load_binary(name, self.data_dir)

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

    def error(
        self, file: str, name: str, n: int, epsilon: str, trees: int = 10, depth: int = 5,
        score: str = "error", **only: str,
    ) -> str:  # fmt: skip
        """Return the published mean error with three decimal places, ``nan`` if there is none.

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
        return f"{mean(scores):.3f}" if scores else "nan"


@cache
def _load_binary(name: str, data_dir: str | None) -> tuple[Table, Schema]:
    data = load(f"{name}-binary", data_dir)
    groups = tuple(g for g in data.schema.groups if not g.empty)
    return data.table, replace(data.schema, groups=groups)


def variables(schema: Schema) -> Variables:
    """Return the variables of binary columns."""
    return Variables.of_schema(schema, [np.array([1.0])] * len(schema.features))


@dataclass(frozen=True)
class Reconstruction:
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


def reconstruct(
    question: Question,
    truth: Table,
    seed: int,
    solve: Solve = posterior,
    known_columns: Sequence[int] = (),
) -> Reconstruction:
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
    guess = resize(Table(rows, answer.value[:, -1].astype(np.int64)), len(truth), seed)
    scores = row_errors(guess, truth, np.ones(len(truth), dtype=bool), known_columns)
    return Reconstruction(scores["row_error"], scores["right_rows"], scores["worst_row"], spent)


def resize(guess: Table, n: int, seed: int) -> Table:
    """Return n rows: a subset of the guess, or the guess with repeated rows, as in the paper."""
    rng = np.random.default_rng(seed)
    if len(guess) >= n:
        return guess.take(np.sort(rng.permutation(len(guess))[:n]))
    return guess.take(
        np.concatenate([np.arange(len(guess)), rng.integers(0, len(guess), n - len(guess))])
    )


def reconstruct_published(
    published: PublishedForests,
    name: str,
    n: int,
    epsilon: str,
    solve: Solve = posterior,
) -> list[Reconstruction]:
    """Reconstruct rows from the published forests of one setting.

    Parameters
    ----------
    published : PublishedForests
        Published forests.
    name : str
        Data set.
    n : int
        Number of rows.
    epsilon : str
        Privacy budget.
    solve : callable
        Algorithm.
    """
    truth = published.table(name)[0].take(np.arange(n))
    results = []
    for seed in range(published.seeds):
        forest = published.forest(name, n, epsilon, seed)
        noise = Noise.of("truncated-laplace", float(epsilon), 10)
        results.append(reconstruct(Question(forest, noise, n), truth, seed, solve))
    return results


def score_line(results: list[Reconstruction], *labels: str) -> list[str]:
    """Return a line of a table with the mean scores of some runs."""
    scores = [f"{mean(getattr(r, k) for r in results):.3f}" for k in ("error", "right", "worst")]
    return [*labels, *scores, f"{mean(r.seconds for r in results):.2f}"]


def draw_forest(
    published: PublishedForests,
    name: str,
    trees: int,
    depth: int,
    epsilon: float,
    n: int,
    seed: int,
) -> tuple[Table, Table, NoisyForest]:
    """Return random rows, the remaining rows, and a noisy forest of the former, as in the paper.

    Parameters
    ----------
    published : PublishedForests
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
    table, schema = published.table(name)
    rng = np.random.default_rng([seed, trees, depth])
    drawn = rng.choice(len(table), n, replace=False)
    truth, rest = table.take(drawn), table.take(np.setdiff1d(np.arange(len(table)), drawn))
    return truth, rest, draw_counts(truth, schema, (trees, depth, epsilon), seed, rng)[1]


def draw_counts(
    rows: Table, schema: Schema, sizes: tuple[int, int, float], seed: int, rng: np.random.Generator
) -> tuple[RandomDecisionForest, NoisyForest]:
    """Return a noisy forest of some rows as a model, and as the attacks observe it.

    Parameters
    ----------
    rows : Table
        Training rows.
    schema : Schema
        Their columns.
    sizes : tuple
        Trees, depth and epsilon.
    seed : int
        Seed of the splits.
    rng : numpy.random.Generator
        Randomness of the noise.
    """
    trees, depth, epsilon = sizes
    # Each tree has a separate random stream.
    draws = [np.random.default_rng([seed, tree]) for tree in range(trees)]
    splits = draw_splits(schema, depth, draws.__getitem__, trees, repeats=True)
    counts = splits.count(rows.X, rows.y, 2)
    noisy = counts + truncated_laplace(trees / epsilon, counts.shape, rng)
    observed = NoisyForest.of(variables(schema), splits.feature, noisy, splits.threshold)
    return RandomDecisionForest(splits, noisy, len(rows)), observed


def guess_errors(published: PublishedForests, name: str) -> dict[str, float]:
    """Return the errors of guesses without a forest. All but the first know the distribution."""
    table, schema = published.table(name)
    truth, rest = table.take(np.arange(100)), table.take(np.arange(100, len(table)))
    coded = variables(schema)
    parts: dict[str, list[float]] = {}
    for seed in range(20):
        rng = np.random.default_rng(seed)
        uniform = np.stack([rng.integers(0, r, 100) for r in coded.sizes], axis=1)
        codes = coded.encode(truth.X)
        marginal = np.stack([rng.choice(column, 100) for column in codes.T], axis=1)
        fresh = rest.X[rng.choice(len(rest), 100, replace=False)]
        common = [np.bincount(column).argmax() for column in codes.T]
        majority = coded.decode(np.repeat(np.array([common]), 100, axis=0))
        for guess_name, X in (
            ("random", coded.decode(uniform)), ("fresh sample", fresh),
            ("marginals", coded.decode(marginal)), ("majority row", majority),
        ):  # fmt: skip
            guess = Table(X, np.zeros(100, dtype=np.int64))
            scored = row_errors(guess, truth, np.ones(100, dtype=bool))
            parts.setdefault(guess_name, []).append(scored["row_error"])
    return {guess_name: mean(errors) for guess_name, errors in parts.items()}


#: Number of shadow forests, epochs, batch size and widths of hidden layers, as in the paper.
SHADOWS, EPOCHS, BATCH, HIDDEN = 1600, 5, 32, (1024, 512, 256)
#: Learning rate and weight decay of AdamW, as in the paper.
RATE, DECAY = 1e-3, 1e-4

Reader = Callable[[NDArray[np.int64]], NDArray[np.float32]]


def train_network(forest: NoisyForest, shadow: Table, epsilon: float, seed: int) -> Reader:
    """Train a network on shadow forests.

    A shadow forest has the splits of the attacked one and contains the known rows. After these are
    subtracted, its counts are those of one fresh row with fresh noise.

    Parameters
    ----------
    forest : NoisyForest
        The attacked forest.
    shadow : Table
        Binary rows on which no forest was trained.
    epsilon : float
        Privacy budget of the forest.
    seed : int
        Seed of the training.

    Returns
    -------
    read : callable
        Maps counts without those of known rows to binary rows.

    Raises
    ------
    UsageError
        If torch is not installed.

    Notes
    -----
    Counts below 0 are replaced by 0, as in the paper.
    """
    torch, rng = torch_module(), np.random.default_rng(seed)
    rows = shadow.take(rng.integers(0, len(shadow), SHADOWS))
    leaf, trees = forest.route(forest.variables.encode(rows.X)), len(forest.noisy)
    noisy_counts = truncated_laplace(trees / epsilon, (SHADOWS, *forest.noisy.shape), rng)
    forest_number, tree = np.arange(SHADOWS)[:, None], np.arange(trees)[None, :]
    # Add the one fresh row to the leaf that it reaches in every tree.
    noisy_counts[forest_number, tree, leaf, rows.y[:, None]] += 1

    def inputs(counts: NDArray[np.int64]) -> NDArray[np.float32]:
        return np.maximum(counts, 0).reshape(len(counts), -1).astype(np.float32)

    X, y = torch.from_numpy(inputs(noisy_counts)), torch.from_numpy(rows.X.copy())
    # The global random state of torch is restored afterwards.
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        layers = []
        for a, b in pairwise((X.shape[1], *HIDDEN)):
            layers += [torch.nn.Linear(a, b), torch.nn.LayerNorm(b), torch.nn.ReLU()]
        network = torch.nn.Sequential(*layers, torch.nn.Linear(HIDDEN[-1], y.shape[1]))
    optimiser = torch.optim.AdamW(network.parameters(), lr=RATE, weight_decay=DECAY)
    loss = torch.nn.BCEWithLogitsLoss()
    for _ in range(EPOCHS):
        for batch in np.array_split(rng.permutation(SHADOWS), SHADOWS // BATCH):
            optimiser.zero_grad()
            loss(network(X[batch]), y[batch]).backward()
            optimiser.step()

    def read(counts: NDArray[np.int64]) -> NDArray[np.float32]:
        with torch.no_grad():
            bits = network(torch.from_numpy(inputs(counts))) > 0
        return np.asarray(bits.numpy(), dtype=np.float32)

    return read

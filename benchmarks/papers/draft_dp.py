"""`python -m fedtrees.benchmarks.papers.draft_dp --reference FOLDER`: beside the published errors.

The folder holds ``dp_forests.npz``, the forests of Gorgé et al. (2025) rebuilt from their seeds,
and ``draftdp_*.csv``, their errors. Rows are the first N of COMPAS and Adult, as theirs; noise is
theirs too. ``--table`` takes one of the tables alone, ``--figure FILE`` draws error against time.
"""

from __future__ import annotations

import argparse
import csv
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import mean
from time import process_time
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from fedtrees.attacks.forests.chain import advance
from fedtrees.attacks.forests.consensus import weights
from fedtrees.attacks.forests.informed import Enumeration
from fedtrees.attacks.forests.noise import Noise
from fedtrees.attacks.forests.posterior import Answer, Question, annealed, posterior
from fedtrees.attacks.forests.structure import NoisyForest
from fedtrees.attacks.forests.variables import Variables
from fedtrees.benchmarks.papers.study import markdown
from fedtrees.core.schema import Schema, Table
from fedtrees.data.catalogue import load
from fedtrees.guessing.matching import assign
from fedtrees.metrics.row_errors import row_errors
from fedtrees.privacy.mechanisms import truncated_laplace
from fedtrees.report import paper, style
from fedtrees.trees.forest.random_decision import draw_splits

if TYPE_CHECKING:
    from matplotlib.figure import Figure

TABLES = ("compas", "adult")
EPSILONS = ("1", "5", "10", "20", "30")
#: Shares of the usual moves of the anytime table.
EFFORTS = (0.02, 0.05, 0.1, 0.25, 0.5, 1.0)
#: When the published errors of that table were noted, wall seconds on 16 threads.
THEIR_SECONDS = ("60", "120", "600", "7200")
#: Trees and depths whose leaks are compared, each on forests and rows drawn here.
SHAPES = tuple((trees, depth) for trees in (1, 5, 10, 30) for depth in (5, 7))
#: Chains, moves of each per row before and while samples are taken, and samples of each: what was
#: fixed before any of the published instances was looked at, with a vote by majority.
FIRST_SETTINGS = (2, 6_000, 12_000, 60)


@dataclass(frozen=True, eq=False)
class Study:
    """The published forests and errors.

    Attributes
    ----------
    folder : Path
    data_dir : str or None
    seeds : int
        How many of the five.
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
        score: str = "error",
    ) -> float:  # fmt: skip
        """Return their mean error, NaN where there is none."""
        wanted = {"dataset": name, "n": str(n), "n_trees": str(trees), "depth": str(depth)}
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


def run(question: Question, truth: Table, seed: int, solve: Solve = posterior) -> Run:
    """Reconstruct, and score as the study does."""
    begin = process_time()
    answer = solve(question, np.random.default_rng(seed))
    spent = process_time() - begin
    rows = question.forest.variables.decode(answer.value[:, :-1])
    guess = _resized(Table(rows, answer.value[:, -1].astype(np.int64)), len(truth), seed)
    scores = row_errors(guess, truth, np.ones(len(truth), dtype=bool))
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


def _line(found: list[Run], *labels: str) -> list[str]:
    scores = [f"{mean(getattr(r, k) for r in found):.3f}" for k in ("error", "right", "worst")]
    return [*labels, *scores, f"{mean(r.seconds for r in found):.2f}"]


_SCORES = ("error", "exact rows", "worst row", "CPU s")


def targets(study: Study) -> Iterator[tuple[str, tuple[str, ...], list[list[str]]]]:
    """Yield the errors of 100 rows."""
    lines = []
    for name in TABLES:
        for epsilon in EPSILONS:
            theirs = f"{study.published('reference', name, 100, epsilon):.3f}"
            lines.append(_line(runs(study, name, 100, epsilon), name, epsilon, theirs))
    yield "Posterior", ("table", "epsilon", "published", *_SCORES), lines


def many_rows(study: Study) -> Iterator[tuple[str, tuple[str, ...], list[list[str]]]]:
    """Yield the errors of 500 rows."""
    lines = [
        _line(
            runs(study, name, 500, "5"), name,
            f"{study.published('scalability', name, 500, '5'):.3f}",
        )
        for name in TABLES
    ]  # fmt: skip
    yield "500 rows, epsilon 5", ("table", "published", *_SCORES), lines


def most_likely(study: Study) -> Iterator[tuple[str, tuple[str, ...], list[list[str]]]]:
    """Yield errors of the most likely table, annealed, by their objective."""

    def l1(question: Question, rng: np.random.Generator) -> Answer:
        return annealed(replace(question, noise=Noise("geometric", question.noise.scale)), rng)

    lines = [
        _line(
            runs(study, name, 100, epsilon, l1), name, epsilon,
            f"{study.published('reference', name, 100, epsilon):.3f}",
        )
        for name in TABLES for epsilon in EPSILONS
    ]  # fmt: skip
    yield "Most likely table", ("table", "epsilon", "published", *_SCORES), lines


def unknown_rows(study: Study) -> Iterator[tuple[str, tuple[str, ...], list[list[str]]]]:
    """Yield errors where the number of rows is not told."""
    lines = [
        _line(
            runs(study, name, 100, epsilon, known=False), name, epsilon,
            f"{study.published('unknownN', name, 100, epsilon):.3f}",
        )
        for name in TABLES for epsilon in ("1", "5", "20")
    ]  # fmt: skip
    yield "N unknown", ("table", "epsilon", "published", *_SCORES), lines


def anytime(study: Study) -> Iterator[tuple[str, tuple[str, ...], list[list[str]]]]:
    """Yield errors against CPU seconds, each effort a run of its own."""
    lines = []
    for name in TABLES:
        for effort in EFFORTS:

            def some(
                question: Question, rng: np.random.Generator, effort: float = effort
            ) -> Answer:
                return posterior(question, rng, effort)

            lines.append(_line(runs(study, name, 100, "5", some), name))
    yield "Error against time, epsilon 5", ("table", *_SCORES), lines
    seconds = THEIR_SECONDS
    theirs = [
        [
            name,
            *(
                f"{study.published('individual', name, 100, '5', score=f'err_at_{s}s'):.3f}"
                for s in seconds
            ),
        ]
        for name in TABLES
    ]
    yield "Published, 16 threads", ("table", *(f"{s} s" for s in seconds)), theirs


def draw(ours: list[list[str]], theirs: list[list[str]]) -> Figure:
    """Draw the tables of `anytime`: error against seconds, a panel per table."""
    import matplotlib
    from matplotlib.figure import Figure

    with matplotlib.rc_context(paper.RC):
        figure = Figure(figsize=(paper.PAGE, 2.2), layout="constrained")
        axes = figure.subplots(1, len(TABLES), sharey=True)
        for ax, name in zip(axes, TABLES, strict=True):
            points = [(float(line[4]), float(line[1])) for line in ours if line[0] == name]
            ax.plot(
                *zip(*points, strict=True),
                "o-",
                color=style.COLOURS[0],
                label="draft-dp, CPU seconds",
            )
            for line in theirs:
                if line[0] == name:
                    at = [float(s) for s in THEIR_SECONDS]
                    ax.plot(at, [float(e) for e in line[1:]], "s-", color=style.COLOURS[1],
                            label="published, wall seconds on 16 threads")  # fmt: skip
            ax.set_xscale("log")
            ax.set_title(f"{name}, epsilon 5, 100 rows", loc="left", fontsize=7)
            ax.set_xlabel("seconds")
        axes[0].set_ylabel("matched Hamming error")
        axes[0].set_ylim(bottom=0)
        handles, names = axes[0].get_legend_handles_labels()
        figure.legend(handles, names, loc="outside lower center", ncols=2, frameon=False)
    return figure


def references(study: Study) -> Iterator[tuple[str, tuple[str, ...], list[list[str]]]]:
    """Yield what is guessed without any forest; all but the first know the distribution."""
    lines = []
    for name in TABLES:
        table, schema = study.table(name)
        truth, rest = table.take(np.arange(100)), table.take(np.arange(100, len(table)))
        coded = variables(schema)
        parts: dict[str, list[float]] = {}
        for seed in range(20):
            rng = np.random.default_rng(seed)
            uniform = np.stack([rng.integers(0, r, 100) for r in coded.sizes], axis=1)
            held = coded.encode(truth.X)
            marginal = np.stack([rng.choice(column, 100) for column in held.T], axis=1)
            fresh = rest.X[rng.choice(len(rest), 100, replace=False)]
            common = [np.bincount(column).argmax() for column in held.T]
            majority = coded.decode(np.repeat(np.array([common]), 100, axis=0))
            for what, X in (
                ("random", coded.decode(uniform)), ("fresh sample", fresh),
                ("marginals", coded.decode(marginal)), ("majority row", majority),
            ):  # fmt: skip
                guess = Table(X, np.zeros(100, dtype=np.int64))
                scored = row_errors(guess, truth, np.ones(100, dtype=bool))
                parts.setdefault(what, []).append(scored.mean)
        lines.append([name, *(f"{mean(values):.3f}" for values in parts.values())])
    yield "Without a forest", ("table", *parts), lines


def shapes(study: Study) -> Iterator[tuple[str, tuple[str, ...], list[list[str]]]]:
    """Yield errors by trees and depth at equal epsilon, on forests and rows drawn here."""
    lines = []
    for epsilon in ("5", "30"):
        for name in TABLES:
            for trees, depth in SHAPES:
                found = [
                    own_run(study, name, trees, depth, float(epsilon), seed)
                    for seed in range(study.seeds)
                ]
                theirs = f"{study.published('reference', name, 100, epsilon, trees, depth):.3f}"
                lines.append(_line(found, name, epsilon, str(trees), str(depth), theirs))
    yield "Trees and depth", ("table", "epsilon", "trees", "depth", "published", *_SCORES), lines


def own_run(
    study: Study, name: str, trees: int, depth: int, epsilon: float, seed: int,
    solve: Solve = posterior,
) -> Run:  # fmt: skip
    """Reconstruct 100 rows from a forest drawn here."""
    truth, forest = own_forest(study, name, trees, depth, epsilon, 100, seed)
    noise = Noise.of("truncated-laplace", epsilon, trees)
    return run(Question(forest, noise, 100), truth, seed, solve)


def settings(study: Study) -> Iterator[tuple[str, tuple[str, ...], list[list[str]]]]:
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


def own_forest(
    study: Study, name: str, trees: int, depth: int, epsilon: float, n: int, seed: int
) -> tuple[Table, NoisyForest]:
    """Return rows drawn at random, and a forest of them drawn and made noisy as the study does."""
    table, schema = study.table(name)
    rng = np.random.default_rng([seed, trees, depth])
    truth = table.take(rng.choice(len(table), n, replace=False))
    draws = [np.random.default_rng([seed, tree]) for tree in range(trees)]
    tests = draw_splits(schema, depth, draws.__getitem__, trees, repeats=True)
    counts = tests.count(truth.X, truth.y, 2)
    noisy = counts + truncated_laplace(trees / epsilon, counts.shape, rng)
    return truth, NoisyForest.of(variables(schema), tests.feature, noisy, tests.threshold)


def informed(study: Study) -> Iterator[tuple[str, tuple[str, ...], list[list[str]]]]:
    """Yield errors of the one row that is not known, of 2,000: 100 targets a seed."""
    lines = []
    for name in TABLES:
        for epsilon in ("1", "5", "10", "20"):
            errors, majority, expected, spent = [], [], [], 0.0
            for seed in range(study.seeds):
                truth, forest = own_forest(study, name, 10, 5, float(epsilon), 2000, seed)
                wrong, common, awaited, seconds = _missing(truth, forest, float(epsilon))
                errors, majority, spent = errors + wrong, majority + common, spent + seconds
                expected += awaited
            per = 1000 * spent / len(errors)
            lines.append(
                [name, epsilon, f"{mean(errors):.3f}", f"{mean(expected):.3f}",
                 f"{mean(e == 0 for e in errors):.2f}", f"{mean(majority):.3f}", f"{per:.2f}"]
            )  # fmt: skip
    header = ("table", "epsilon", "error", "expected", "exact", "majority row", "CPU ms a target")
    yield "All rows but one known", header, lines


def _missing(
    truth: Table, forest: NoisyForest, epsilon: float
) -> tuple[list[float], list[float], list[float], float]:
    """Return errors, those of the majority row, those that the posterior expects, CPU seconds."""
    coded = forest.variables.encode(truth.X)
    rows = np.column_stack([coded, truth.y]).astype(np.int16)
    every, noise = Enumeration.of(forest), Noise.of("truncated-laplace", epsilon, 10)
    counts = forest.counts(coded, truth.y)
    most = np.array([[np.bincount(column).argmax() for column in coded.T]])
    common = forest.variables.decode(most)[0]
    valid = forest.variables.decode(every.value)
    wrong, blind, awaited, spent = list[float](), list[float](), list[float](), 0.0
    for i in range(100):
        rest, mine = np.delete(rows, i, axis=0), forest.counts(coded[i : i + 1], truth.y[i : i + 1])
        begin = process_time()
        row, chance = every.missing_row(noise, rest, counts - mine)
        spent += process_time() - begin
        X: NDArray[np.float32] = forest.variables.decode(row[None, :-1])[0]
        wrong.append(float((truth.X[i] != X).mean()))
        blind.append(float((common != truth.X[i]).mean()))
        awaited.append(float((chance.sum(axis=1) * (valid != X).mean(axis=1)).sum()))
    return wrong, blind, awaited, spent


PARTS = {
    "targets": targets, "many": many_rows, "map": most_likely, "unknown": unknown_rows,
    "anytime": anytime, "references": references, "shapes": shapes, "informed": informed,
    "settings": settings,
}  # fmt: skip


def main() -> None:
    """Print the tables."""
    parser = argparse.ArgumentParser(prog="python -m fedtrees.benchmarks.papers.draft_dp")
    parser.add_argument("--data-dir", default=None)
    parser.add_argument("--reference", type=Path, required=True)
    parser.add_argument("--table", choices=PARTS, action="append")
    parser.add_argument("--fast", action="store_true", help="one seed of five")
    parser.add_argument("--figure", type=Path, help="draw the anytime table")
    options = parser.parse_args()
    study = Study(options.reference, options.data_dir, 1 if options.fast else 5)
    for part in options.table or PARTS:
        found = []
        for title, header, lines in PARTS[part](study):
            print(f"{title}\n\n{markdown(header, lines)}\n", flush=True)
            found.append(lines)
        if part == "anytime" and options.figure:
            draw(*found).savefig(options.figure)


if __name__ == "__main__":
    main()

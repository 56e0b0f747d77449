"""Compare attacks on noisy forests with the errors of Gorgé et al. (2026).

``python -m fedtrees.benchmarks.papers.draft_dp --reference FOLDER`` prints all tables. The folder
contains ``dp_forests.npz``, the forests of the paper rebuilt from their seeds, and
``draftdp_*.csv`` with the published errors. Rows are the first N of COMPAS and Adult, and the noise
is also that of the paper. ``--table`` selects one table, and ``--figure FILE`` draws the error
against time.
"""

import argparse
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from statistics import mean

import numpy as np
from numpy.typing import NDArray

from fedtrees.attacks.forests.likelihoods import Noise
from fedtrees.attacks.forests.posterior import Answer, Question, anneal
from fedtrees.benchmarks.papers.draft_dp_anytime import anytime, draw
from fedtrees.benchmarks.papers.draft_dp_informed import informed_errors
from fedtrees.benchmarks.papers.draft_dp_settings import settings
from fedtrees.benchmarks.papers.draft_dp_study import (
    SCORES,
    TABLES,
    Part,
    Study,
    line_of,
    own_run,
    run,
    runs,
    variables,
)
from fedtrees.benchmarks.papers.study import markdown
from fedtrees.core.schema import Table
from fedtrees.guessing.conditional import nearest_guesses
from fedtrees.metrics.rows import row_errors

EPSILONS = ("1", "5", "10", "20", "30")
#: Numbers of trees and depths that are compared, on forests and rows drawn here.
SHAPES = tuple((trees, depth) for trees in (1, 5, 10, 30) for depth in (5, 7))
#: Number of known attributes by table. COMPAS has 7 attributes and Adult 14, if each one-hot group
#: is counted once.
TOLD = {"compas": (0, 2, 4, 6), "adult": (0, 4, 8, 12)}


def targets(study: Study) -> Iterator[Part]:
    """Yield the errors for 100 rows."""
    lines = []
    for name in TABLES:
        for epsilon in EPSILONS:
            published_error = f"{study.published('reference', name, 100, epsilon):.3f}"
            lines.append(line_of(runs(study, name, 100, epsilon), name, epsilon, published_error))
    yield "Posterior", ("table", "epsilon", "published", *SCORES), lines


def many_rows(study: Study) -> Iterator[Part]:
    """Yield the errors for 500 rows."""
    lines = [
        line_of(
            runs(study, name, 500, "5"), name,
            f"{study.published('scalability', name, 500, '5'):.3f}",
        )
        for name in TABLES
    ]  # fmt: skip
    yield "500 rows, epsilon 5", ("table", "published", *SCORES), lines


def most_likely(study: Study) -> Iterator[Part]:
    """Yield the errors of the most probable table, found by annealing, for an L1 objective."""

    def l1(question: Question, rng: np.random.Generator) -> Answer:
        return anneal(replace(question, noise=Noise("geometric", question.noise.scale)), rng)

    lines = [
        line_of(
            runs(study, name, 100, epsilon, l1), name, epsilon,
            f"{study.published('reference', name, 100, epsilon):.3f}",
        )
        for name in TABLES for epsilon in EPSILONS
    ]  # fmt: skip
    yield "Most likely table", ("table", "epsilon", "published", *SCORES), lines


def unknown_rows(study: Study) -> Iterator[Part]:
    """Yield the errors if the number of rows is not known."""
    lines = [
        line_of(
            runs(study, name, 100, epsilon, row_count_known=False), name, epsilon,
            f"{study.published('unknownN', name, 100, epsilon):.3f}",
        )
        for name in TABLES for epsilon in ("1", "5", "20")
    ]  # fmt: skip
    yield "N unknown", ("table", "epsilon", "published", *SCORES), lines


def attributes(study: Study) -> Iterator[Part]:
    """Yield the errors of unknown attributes, by the number of known ones."""
    lines = []
    for name in TABLES:
        truth, coded = study.table(name)[0].take(np.arange(100)), variables(study.table(name)[1])
        rows = coded.encode(truth.X)
        for count in TOLD[name]:
            results, blind = [], []
            for seed in range(study.seeds):
                known_groups = np.random.default_rng(seed).permutation(len(coded))[:count].tolist()
                question = Question(
                    study.forest(name, 100, "5", seed), Noise.of("truncated-laplace", 5.0, 10), 100,
                    known_levels={g: rows[:, g] for g in known_groups},
                )  # fmt: skip
                known_columns = np.sort([c for g in known_groups for c in coded.columns[g]]).astype(
                    np.int64
                )
                results.append(run(question, truth, seed, known_columns=known_columns.tolist()))
                blind.append(_by_other_rows(study, name, truth, known_columns, seed))
            published_error = study.published(
                "partial", name, 100, "5", known_attributes=str(count)
            )
            labels = (name, str(count), f"{published_error:.3f}", f"{mean(blind):.3f}")
            lines.append(line_of(results, *labels))
    header = ("table", "told", "published", "by other rows", *SCORES)
    yield "Attributes told, epsilon 5", header, lines


def _by_other_rows(
    study: Study, name: str, truth: Table, known_columns: NDArray[np.int64], seed: int
) -> float:
    """Return the error without a forest, if other rows of the table are known."""
    (table, schema), rng = study.table(name), np.random.default_rng(seed)
    rest = table.take(np.arange(len(truth), len(table)))
    exact, all_rows = np.zeros(truth.X.shape[1] + 1), np.ones(len(truth), dtype=bool)
    guesses = nearest_guesses(
        rest, schema, known_columns, truth.X[:, known_columns], exact, rng
    ).values()
    return min(row_errors(guess, truth, all_rows, known_columns.tolist()).mean for guess in guesses)


def references(study: Study) -> Iterator[Part]:
    """Yield the errors of guesses without a forest. All but the first know the distribution."""
    lines = []
    for name in TABLES:
        table, schema = study.table(name)
        truth, rest = table.take(np.arange(100)), table.take(np.arange(100, len(table)))
        coded = variables(schema)
        parts: dict[str, list[float]] = {}
        for seed in range(20):
            rng = np.random.default_rng(seed)
            # Guesses without a forest. All but the uniform one use the distribution of the rows.
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
                parts.setdefault(guess_name, []).append(scored.mean)
        lines.append([name, *(f"{mean(values):.3f}" for values in parts.values())])
    yield "Without a forest", ("table", *parts), lines


def shapes(study: Study) -> Iterator[Part]:
    """Yield the errors by number of trees and depth at equal epsilon, on forests drawn here."""
    lines = []
    for epsilon in ("5", "30"):
        for name in TABLES:
            for trees, depth in SHAPES:
                results = [
                    own_run(study, name, trees, depth, float(epsilon), seed)
                    for seed in range(study.seeds)
                ]
                published_error = (
                    f"{study.published('reference', name, 100, epsilon, trees, depth):.3f}"
                )
                lines.append(
                    line_of(results, name, epsilon, str(trees), str(depth), published_error)
                )
    yield "Trees and depth", ("table", "epsilon", "trees", "depth", "published", *SCORES), lines


PARTS = {
    "targets": targets, "many": many_rows, "map": most_likely, "unknown": unknown_rows,
    "anytime": anytime, "references": references, "shapes": shapes, "informed": informed_errors,
    "settings": settings, "attributes": attributes,
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
        tables = []
        for title, header, lines in PARTS[part](study):
            print(f"{title}\n\n{markdown(header, lines)}\n", flush=True)
            tables.append(lines)
        if part == "anytime" and options.figure:
            draw(*tables).savefig(options.figure)


if __name__ == "__main__":
    main()

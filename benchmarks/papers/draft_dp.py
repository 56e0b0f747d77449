"""Compare attacks on noisy forests with the errors of DRAFT-DP (Gorgé et al. 2026).

``python -m fedtrees.benchmarks.papers draft_dp --reference FOLDER`` prints all tables. The folder
contains ``dp_forests.npz``, the forests of the paper rebuilt from their seeds, and
``draftdp_*.csv`` with the published errors. Rows are the first N of COMPAS and Adult, and the noise
is also that of the paper. ``--table`` selects one table, and ``--figure FILE`` draws the error
against time.
"""

from __future__ import annotations

from argparse import Namespace
from collections.abc import Iterator
from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path
from statistics import mean
from time import process_time
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from fedtrees.attacks.forests.posterior import Answer, Question, anneal, posterior
from fedtrees.attacks.forests.solvers import Enumeration
from fedtrees.attacks.forests.structure import Noise, NoisyForest
from fedtrees.benchmarks.papers.draft_dp_forests import (
    SCORES,
    TABLES,
    PublishedForests,
    Solve,
    draw_forest,
    guess_errors,
    reconstruct,
    reconstruct_published,
    score_line,
    train_network,
    variables,
)
from fedtrees.benchmarks.papers.draft_dp_tables import WORK, compare_tables
from fedtrees.benchmarks.papers.study import SETTING, Output, Study
from fedtrees.benchmarks.papers.tables import Table
from fedtrees.blind_baselines.conditional import nearest_guesses
from fedtrees.core.schema import Table as Rows
from fedtrees.metrics.records import row_errors
from fedtrees.report.figures import model, static

if TYPE_CHECKING:
    from matplotlib.figure import Figure

EPSILONS = ("1", "5", "10", "20", "30")
#: Published tables of the part ``forests``.
ITEMS = tuple(f"Table {n}" for n in ("I", "II", "III", "IV", "V", "VI", "VII"))
#: Number of known attributes by table. COMPAS has 7 attributes and Adult 14, if each one-hot group
#: is counted once.
KNOWN_COUNTS = {"compas": (0, 2, 4, 6), "adult": (0, 4, 8, 12)}


def published_table(published: PublishedForests, title: str, solve: Solve = posterior) -> Table:
    """Return the errors on the published forests of 100 rows next to the published errors.

    Parameters
    ----------
    published : PublishedForests
        The published forests and errors.
    title : str
        Title of the table.
    solve : callable
        Algorithm.
    """
    lines = [
        score_line(
            reconstruct_published(published, name, 100, epsilon, solve), name, epsilon,
            published.error("reference", name, 100, epsilon),
        )
        for name in TABLES for epsilon in EPSILONS
    ]  # fmt: skip
    return Table(title, ("table", "epsilon", "published", *SCORES), lines)


def targets(published: PublishedForests) -> Iterator[Table]:
    """Yield the errors for 100 rows."""
    yield published_table(published, "Posterior")


def most_likely(published: PublishedForests) -> Iterator[Table]:
    """Yield the errors of the most probable table, found by annealing, for an L1 objective."""

    def l1(question: Question, rng: np.random.Generator) -> Answer:
        return anneal(replace(question, noise=Noise("geometric", question.noise.scale)), rng)

    yield published_table(published, "Most likely table", l1)


def attributes(published: PublishedForests) -> Iterator[Table]:
    """Yield the errors of unknown attributes, by the number of known ones."""
    lines = []
    for name in TABLES:
        table, schema = published.table(name)
        truth, coded = table.take(np.arange(100)), variables(schema)
        rows = coded.encode(truth.X)
        for count in KNOWN_COUNTS[name]:
            results, blind = [], []
            for seed in range(published.seeds):
                known_groups = np.random.default_rng(seed).permutation(len(coded))[:count].tolist()
                question = Question(
                    published.forest(name, 100, "5", seed), Noise.of("truncated-laplace", 5.0, 10),
                    100,
                    known_levels={g: rows[:, g] for g in known_groups},
                )  # fmt: skip
                columns = [c for g in known_groups for c in coded.columns[g]]
                known_columns = np.sort(columns).astype(np.int64)
                result = reconstruct(question, truth, seed, known_columns=known_columns.tolist())
                results.append(result)
                blind.append(_by_other_rows(published, name, truth, known_columns, seed))
            options = {"known_attributes": str(count)}
            published_error = published.error("partial", name, 100, "5", **options)
            labels = (name, str(count), published_error, f"{mean(blind):.3f}")
            lines.append(score_line(results, *labels))
    header = ("table", "known", "published", "by other rows", *SCORES)
    yield Table("Some attributes known, epsilon 5", header, lines)


def _by_other_rows(
    published: PublishedForests, name: str, truth: Rows, known_columns: NDArray[np.int64], seed: int
) -> float:
    """Return the error without a forest, if other rows of the table are known."""
    (table, schema), rng = published.table(name), np.random.default_rng(seed)
    rest = table.take(np.arange(len(truth), len(table)))
    exact, all_rows = np.zeros(truth.X.shape[1] + 1), np.ones(len(truth), dtype=bool)
    known_values = truth.X[:, known_columns]
    guesses = nearest_guesses(rest, schema, known_columns, known_values, exact, rng).values()
    known_list = known_columns.tolist()
    return min(row_errors(guess, truth, all_rows, known_list)["row_error"] for guess in guesses)


def references(published: PublishedForests) -> Iterator[Table]:
    """Yield the errors of guesses without a forest."""
    errors = {name: guess_errors(published, name) for name in TABLES}
    lines = [[name, *(f"{e:.3f}" for e in by_guess.values())] for name, by_guess in errors.items()]
    yield Table("Without a forest", ("table", *errors[TABLES[0]]), lines)


#: Shares of the default number of moves in the anytime table.
EFFORTS = (0.02, 0.05, 0.1, 0.25, 0.5, 1.0)
#: Wall-clock seconds on 16 threads at which the published errors were recorded.
THEIR_SECONDS = ("60", "120", "600", "7200")


def anytime(published: PublishedForests) -> Iterator[Table]:
    """Yield the errors over CPU seconds. Each effort is a separate run."""
    lines = []
    for name in TABLES:
        for effort in EFFORTS:

            def some(
                question: Question, rng: np.random.Generator, effort: float = effort
            ) -> Answer:
                return posterior(question, rng, effort)

            lines.append(score_line(reconstruct_published(published, name, 100, "5", some), name))
    yield Table("Error against time, epsilon 5", ("table", *SCORES), lines)
    seconds = THEIR_SECONDS
    published_lines = [
        [
            name,
            *(published.error("individual", name, 100, "5", score=f"err_at_{s}s") for s in seconds),
        ]
        for name in TABLES
    ]
    yield Table("Published, 16 threads", ("table", *(f"{s} s" for s in seconds)), published_lines)


def draw(our_lines: list[list[str]], published_lines: list[list[str]]) -> Figure:
    """Draw the tables of `anytime`: error over seconds, with one panel per table."""
    import matplotlib
    from matplotlib.figure import Figure

    with matplotlib.rc_context(static.RC):
        figure = Figure(figsize=(static.PAGE, 2.2), layout="constrained")
        axes = figure.subplots(1, len(TABLES), sharey=True)
        for ax, name in zip(axes, TABLES, strict=True):
            points = [(float(line[4]), float(line[1])) for line in our_lines if line[0] == name]
            ax.plot(
                *zip(*points, strict=True),
                "o-",
                color=model.COLOURS[0],
                label="draft-dp, CPU seconds",
            )
            for line in published_lines:
                if line[0] == name:
                    at = [float(s) for s in THEIR_SECONDS]
                    ax.plot(at, [float(e) for e in line[1:]], "s-", color=model.COLOURS[1],
                            label="published, wall seconds on 16 threads")  # fmt: skip
            ax.set_xscale("log")
            ax.set_title(f"{name}, epsilon 5, 100 rows", loc="left", fontsize=7)
            ax.set_xlabel("seconds")
        axes[0].set_ylabel("matched Hamming error")
        axes[0].set_ylim(bottom=0)
        handles, names = axes[0].get_legend_handles_labels()
        figure.legend(handles, names, loc="outside lower center", ncols=2, frameon=False)
    return figure


#: Number of target rows per forest. Each of them is unknown in turn.
TARGETS = 100


def informed_errors(published: PublishedForests) -> Iterator[Table]:
    """Yield the errors of the unknown row, with 100 targets per seed."""
    lines = []
    for name in TABLES:
        for epsilon in ("1", "5", "10", "20"):
            errors, majority, expected, network, spent = [], [], [], list[float](), 0.0
            for seed in range(published.seeds):
                truth, rest, forest = draw_forest(
                    published, name, 10, 5, float(epsilon), 2000, seed
                )
                wrong, common, posterior_errors, seconds = _missing(truth, forest, float(epsilon))
                errors, majority, spent = errors + wrong, majority + common, spent + seconds
                expected += posterior_errors
                if find_spec("torch"):
                    network += _by_network(truth, rest, forest, float(epsilon), seed)
            milliseconds = 1000 * spent / len(errors)
            lines.append(
                [name, epsilon, f"{mean(errors):.3f}", f"{mean(expected):.3f}",
                 f"{mean(e == 0 for e in errors):.2f}", f"{mean(majority):.3f}",
                 *(published.error('informed', name, 2000, epsilon, method=m)
                   for m in ("cp", "reconn")),
                 f"{mean(network):.3f}" if network else "–", f"{milliseconds:.2f}"]
            )  # fmt: skip
    header = (
        "table", "epsilon", "error", "expected", "exact", "majority row", "published",
        "network, published", "network", "CPU ms a target",
    )  # fmt: skip
    yield Table("All rows but one known", header, lines)


def _by_network(
    truth: Rows, rest: Rows, forest: NoisyForest, epsilon: float, seed: int
) -> list[float]:
    """Return the errors of a network that is trained on shadow forests."""
    coded, X = forest.variables.encode(truth.X), truth.X[:TARGETS]
    counts = forest.counts(coded, truth.y)
    target_counts = [forest.counts(coded[i : i + 1], truth.y[i : i + 1]) for i in range(TARGETS)]
    residual_counts = forest.noisy - counts + np.stack(target_counts)
    return [
        float(e)
        for e in (train_network(forest, rest, epsilon, seed)(residual_counts) != X).mean(axis=1)
    ]


def _missing(
    truth: Rows, forest: NoisyForest, epsilon: float
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


PARTS = {
    "targets": targets, "map": most_likely,
    "anytime": anytime, "references": references, "informed": informed_errors,
    "attributes": attributes,
}  # fmt: skip


def run(options: Namespace) -> Iterator[Output]:
    """Yield the selected tables."""
    published = PublishedForests(options.reference, options.data_dir, options.seeds)
    for part in options.table or ("forests", *PARTS):
        if part == "forests":
            options.out.mkdir(parents=True, exist_ok=True)
            items, path = options.item or ITEMS, options.out / "forests.csv"
            yield from compare_tables(published, items, options.work, path, options.setting)
            continue
        tables = list(PARTS[part](published))
        yield from tables
        if part == "anytime" and options.figure:
            draw(*(table.lines for table in tables)).savefig(options.figure)


STUDIES = {
    "draft_dp": Study(
        "Rows reconstructed from noisy forests, with the errors of Gorgé et al. (2026).",
        run,
        {
            "--reference": {
                "type": Path,
                "default": Path("reference"),
                "help": "folder of the published forests and errors (not used by --table forests)",
            },
            "--out": {"type": Path, "default": Path("runs/draft_dp"), "help": "folder of results"},
            **SETTING,
            "--table": {
                "choices": ("forests", *PARTS),
                "action": "append",
                "help": "print only this table",
            },
            "--item": {
                "choices": ITEMS,
                "action": "append",
                "help": "compute only this published table (--table forests)",
            },
            "--seeds": {
                "type": int,
                "choices": range(1, 6),
                "default": 5,
                "help": "number of seeds, at most five",
            },
            "--work": {
                "type": float,
                "default": WORK,
                "help": "moves of the attack, as a share of its default (--table forests)",
            },
            "--figure": {"type": Path, "help": "file for the figure of the table anytime"},
        },
    )
}

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
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from fedtrees.attacks.forests.posterior import Answer, Question, anneal, posterior
from fedtrees.attacks.forests.structure import Noise
from fedtrees.benchmarks.papers.draft_dp_figures import compare_figures
from fedtrees.benchmarks.papers.draft_dp_forests import (
    SCORES,
    TABLES,
    PublishedForests,
    Solve,
    guess_errors,
    reconstruct_published,
    score_line,
)
from fedtrees.benchmarks.papers.draft_dp_mechanisms import mechanisms
from fedtrees.benchmarks.papers.draft_dp_tables import WORK, compare_tables
from fedtrees.benchmarks.papers.study import SETTING, Output, Study
from fedtrees.benchmarks.papers.tables import Table
from fedtrees.report.figures import model, static

if TYPE_CHECKING:
    from matplotlib.figure import Figure

EPSILONS = ("1", "5", "10", "20", "30")
#: Published tables of the part ``forests``.
ITEMS = tuple(f"Table {n}" for n in ("I", "II", "III", "IV", "V", "VI", "VII"))


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


PARTS = {
    "targets": targets, "map": most_likely, "anytime": anytime, "references": references,
    "mechanisms": mechanisms,
}  # fmt: skip
#: Parts whose values are compared with those of a figure.
FIGURES = {"attributes": "Figure 12", "informed": "Figure 13"}


def run(options: Namespace) -> Iterator[Output]:
    """Yield the selected tables."""
    published = PublishedForests(options.reference, options.data_dir, options.seeds)
    options.out.mkdir(parents=True, exist_ok=True)
    for part in options.table or ("forests", *FIGURES, *PARTS):
        if part == "forests":
            items, path = options.item or ITEMS, options.out / "forests.csv"
            yield from compare_tables(published, items, options.work, path, options.setting)
            continue
        if part in FIGURES:
            arguments = (FIGURES[part], options.work, options.out, options.setting)
            yield from compare_figures(published, *arguments)
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
                "help": "folder of the published forests and errors (targets, map and anytime)",
            },
            "--out": {"type": Path, "default": Path("runs/draft_dp"), "help": "folder of results"},
            **SETTING,
            "--table": {
                "choices": ("forests", *FIGURES, *PARTS),
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
                "help": "moves of the attack, as a share of its default (forests and attributes)",
            },
            "--figure": {"type": Path, "help": "file for the figure of the table anytime"},
        },
    )
}

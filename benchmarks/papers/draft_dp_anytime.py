"""Error of `draft-dp` over time, compared with the published solver: a table and its figure."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import numpy as np

from fedtrees.attacks.forests.posterior import Answer, Question, posterior
from fedtrees.benchmarks.papers.draft_dp_study import SCORES, TABLES, Part, Study, line_of, runs
from fedtrees.report import static_figure, style

if TYPE_CHECKING:
    from matplotlib.figure import Figure

#: Shares of the default number of moves in the anytime table.
EFFORTS = (0.02, 0.05, 0.1, 0.25, 0.5, 1.0)
#: Wall-clock seconds on 16 threads at which the published errors were recorded.
THEIR_SECONDS = ("60", "120", "600", "7200")


def anytime(study: Study) -> Iterator[Part]:
    """Yield the errors over CPU seconds. Each effort is a separate run."""
    lines = []
    for name in TABLES:
        for effort in EFFORTS:

            def some(
                question: Question, rng: np.random.Generator, effort: float = effort
            ) -> Answer:
                return posterior(question, rng, effort)

            lines.append(line_of(runs(study, name, 100, "5", some), name))
    yield "Error against time, epsilon 5", ("table", *SCORES), lines
    seconds = THEIR_SECONDS
    published_lines = [
        [
            name,
            *(
                f"{study.published('individual', name, 100, '5', score=f'err_at_{s}s'):.3f}"
                for s in seconds
            ),
        ]
        for name in TABLES
    ]
    yield "Published, 16 threads", ("table", *(f"{s} s" for s in seconds)), published_lines


def draw(our_lines: list[list[str]], published_lines: list[list[str]]) -> Figure:
    """Draw the tables of `anytime`: error over seconds, with one panel per table."""
    import matplotlib
    from matplotlib.figure import Figure

    with matplotlib.rc_context(static_figure.RC):
        figure = Figure(figsize=(static_figure.PAGE, 2.2), layout="constrained")
        axes = figure.subplots(1, len(TABLES), sharey=True)
        for ax, name in zip(axes, TABLES, strict=True):
            points = [(float(line[4]), float(line[1])) for line in our_lines if line[0] == name]
            ax.plot(
                *zip(*points, strict=True),
                "o-",
                color=style.COLOURS[0],
                label="draft-dp, CPU seconds",
            )
            for line in published_lines:
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

"""Replicate the inversion of logistic and linear regression of Li et al. (2022).

``python -m fedtrees.benchmarks.papers regression`` runs the suite, prints the tables, and draws the
frontier of precision to `RUN/precision.svg`.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fedtrees.benchmarks.papers.study import suite_study
from fedtrees.benchmarks.papers.suite_tables import suite_tables
from fedtrees.benchmarks.papers.tables import Table, read_published
from fedtrees.report.figures import model, static


@dataclass(frozen=True)
class Rate:
    """A printed known data ratio, and the result of the formula."""

    table: int
    data: str
    shape: str
    error: float
    printed: float
    formula: float


def printed_rates() -> list[Rate]:
    """Return all 27 ratios: (n - 1)(n - 2) / (2 m n) for columns and (m - 1) / (2 n) for rows.

    In Tables 2 and 3, m is the number of rows and n that of the victim's columns. One row that
    Table 3 lists under residential building belongs to iris (1 + 3 columns). In Table 4, m and n
    are the numbers of the victim's rows and of columns.
    """
    rates = []
    for r in read_published("regression").itertuples():
        if r.table == 4:
            shape = f"{r.size}, {r.victim_size}, {r.attacker_size}"
            formula = (r.victim_size - 1) / (2 * r.size)
        else:
            n = r.victim_size
            shape = f"{r.attacker_size}+{r.fake_columns}, {n}, {r.size}"
            formula = (n - 1) * (n - 2) / (2 * r.size * n)
        rates.append(Rate(r.table, r.data, shape, r.error, r.known, formula))
    return rates


def rate_table() -> Table:
    """Return one line per printed ratio."""
    header = ("table", "data", "shape", "error, printed", "known, printed", "by formula")
    lines = [
        [str(r.table), r.data, r.shape, f"{r.error:.1e}", f"{r.printed:.3f}", f"{r.formula:.3f}"]
        for r in printed_rates()
    ]
    return Table("Li et al. 2022, Tables 2 to 4.", header, lines)


def tables(rows: Any) -> Iterator[Table]:
    """Yield the published ratios, and our results."""
    yield rate_table()
    yield from suite_tables("regression", rows)


def draw(rows: Any, path: Path) -> Path:
    """Draw the inferred values over the precision of opened gradients, as means over seeds."""
    import matplotlib
    from matplotlib.figure import Figure

    done = rows[(rows["stage"] == "attack") & (rows["defense"] == "decrypted-precision")]
    lines = (
        ("within a millionth", "entries", "value", model.COLOURS[0], "-"),
        ("close", "entries_close", "value", model.COLOURS[1], "-"),
        ("close, blind", "entries_close", "blind", model.COLOURS[1], "--"),
    )
    with matplotlib.rc_context(static.RC):
        figure = Figure(figsize=(static.COLUMN, 2.2), layout="constrained")
        ax = figure.subplots()
        for name, metric, column, colour, dash in lines:
            part = done[done["metric"] == metric]
            places = part["defense_params"].str.removeprefix("bits=").astype(int)
            statistics = 100 * part.groupby(places)[column].agg(["mean", "std"])
            spread = (
                {"yerr": statistics["std"], "marker": "o", "ms": 2.6} if column == "value" else {}
            )
            ax.errorbar(
                statistics.index,
                statistics["mean"],
                color=colour,
                ls=dash,
                lw=0.9,
                label=name,
                **spread,
            )
        ax.set_xlabel("binary places of opened gradients")
        ax.set_ylabel("others' values read, percent")
        ax.set_xticks(sorted(set(places)))
        ax.set_ylim(0, 104)
        ax.spines[["top", "right"]].set_visible(False)
        ax.legend(frameon=False, loc="center left")
    return static.save(figure, path)


STUDIES = {"regression": suite_study("regression", tables, figures={"precision.svg": draw})}

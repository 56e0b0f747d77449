"""Replicate Li et al. (2022): the inversion of regressions, and threshold queries to SecureBoost.

``python -m fedtrees.benchmarks.papers regression`` runs the suite, prints the tables, and draws the
frontier of precision to `RUN/precision.svg`. ``secureboost_queries`` is the study of the queries.
"""

import math
import re
from collections.abc import Iterator
from dataclasses import replace
from itertools import chain
from pathlib import Path
from typing import Any

from fedtrees.benchmarks.papers.comparisons import Comparison, read_published
from fedtrees.benchmarks.papers.study import suite_study
from fedtrees.benchmarks.papers.tables import suite_tables
from fedtrees.core.errors import UsageError
from fedtrees.report.figures import model, static


def known_data_ratios() -> Iterator[Comparison]:
    """Yield all 27 printed known data ratios next to the result of the formula.

    The formula is (n - 1)(n - 2) / (2 m n) for columns and (m - 1) / (2 n) for rows. In Tables 2
    and 3, m is the number of rows and n that of the victim's columns. One row that Table 3 lists
    under residential building belongs to iris (1 + 3 columns). In Table 4, m and n are the numbers
    of the victim's rows and of columns.
    """
    for c in read_published("regression"):
        if c.score == "known data ratio":
            sizes = [int(size) for size in re.findall(r"\d+", c.setting)]
            if c.item == "Table 4":
                ratio = (sizes[1] - 1) / (2 * sizes[0])
            else:
                n, m = sizes[2:]
                ratio = (n - 1) * (n - 2) / (2 * m * n)
            yield replace(c, measured=ratio, seeds=1)


def published_queries(low: float, high: float, epsilon: float, m: int) -> int:
    """Return how many requests of m records one threshold takes (Li et al. 2022, Sec. 5.2).

    Parameters
    ----------
    low, high : float
        Range of the column.
    epsilon : float
        Width of the interval at which the search ends.
    m : int
        Number of records per request, which divide the range into m - 1 parts.

    Raises
    ------
    UsageError
        If the range is empty, epsilon is not positive, or m is below 3.
    """
    if not low < high or not epsilon > 0 or m < 3:
        raise UsageError(
            f"range [{low}, {high}], epsilon={epsilon}, m={m}: give a range with low < high, "
            "epsilon > 0 and m >= 3"
        )
    # Rounding makes logarithms of powers of m - 1 slightly too large.
    return max(math.ceil(math.log((high - low) / epsilon, m - 1) - 1e-9), 0)


def query_counts() -> Iterator[Comparison]:
    """Yield the published numbers of queries next to those of the formula."""
    for c in read_published("regression"):
        if c.score == "queries":
            numbers = re.findall(r"-?\d[\d.e-]*", c.setting)
            nodes, low, high, records, epsilon = map(float, numbers)
            our_queries = nodes * published_queries(low, high, epsilon, int(records))
            yield replace(c, measured=our_queries, seeds=1)


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


STUDIES = {
    "regression": suite_study(
        "regression",
        lambda rows: chain(known_data_ratios(), suite_tables("regression", rows)),
        figures={"precision.svg": draw},
    ),
    "secureboost_queries": suite_study(
        "secureboost_queries",
        lambda rows: chain(query_counts(), suite_tables("secureboost_queries", rows)),
    ),
}

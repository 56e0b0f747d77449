"""Replicate the threshold queries of Li et al. (2022) against SecureBoost.

``python -m fedtrees.benchmarks.papers secureboost_queries`` runs the suite and prints the tables.
"""

import math
from collections.abc import Iterator
from typing import Any

from fedtrees.benchmarks.papers.study import suite_study
from fedtrees.benchmarks.papers.suite_tables import suite_tables
from fedtrees.benchmarks.papers.tables import Table, read_published
from fedtrees.core.errors import UsageError


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


def formula_table() -> Table:
    """Return the published numbers of requests, those of the formula, and numbers of records."""
    lines = []
    for r in read_published("secureboost_queries").itertuples():
        n_requests = r.splits * published_queries(r.low, r.high, r.epsilon, r.m)
        # The sides of both ends are known, so that a request with m = 3 contains one new record.
        least = r.splits * published_queries(r.low, r.high, r.epsilon, 3)
        cells = (r.requests, n_requests, n_requests * r.m, least)
        lines.append([r.data, str(r.m), f"{r.epsilon:g}", *map(str, cells)])
    header = ("table", "m", "epsilon", "requests, published", "by formula", "records", "at m = 3")
    return Table("Li et al. 2022, Tables 5 and 6.", header, lines)


def tables(rows: Any) -> Iterator[Table]:
    """Yield the published numbers of requests, and our results."""
    yield formula_table()
    yield from suite_tables("secureboost_queries", rows)


STUDIES = {"secureboost_queries": suite_study("secureboost_queries", tables)}

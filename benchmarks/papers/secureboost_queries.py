"""Replicate the threshold queries of Li et al. (2022) against SecureBoost.

``python -m fedtrees.benchmarks.papers secureboost_queries`` runs the suite and prints the tables.
"""

import math
import re
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

from fedtrees.benchmarks.papers.comparisons import Comparison, read_published
from fedtrees.benchmarks.papers.study import Output, suite_study
from fedtrees.benchmarks.papers.suite_tables import suite_tables
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


def query_counts() -> Iterator[Comparison]:
    """Yield the published numbers of queries next to those of the formula."""
    for c in read_published("regression"):
        if c.score == "queries":
            numbers = re.findall(r"-?\d[\d.e-]*", c.setting)
            nodes, low, high, records, epsilon = map(float, numbers)
            ours = nodes * published_queries(low, high, epsilon, int(records))
            yield replace(c, ours=ours, seeds=1)


def tables(rows: Any) -> Iterator[Output]:
    """Yield the published numbers of queries, and our results."""
    yield from query_counts()
    yield from suite_tables("secureboost_queries", rows)


STUDIES = {"secureboost_queries": suite_study("secureboost_queries", tables)}

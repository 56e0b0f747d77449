"""How the cost grows with rows, features, bins, depth and clients."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from fedtrees.benchmarks.perf import federations, rivals
from fedtrees.benchmarks.perf.measure import Line, medians, ratio
from fedtrees.benchmarks.perf.rivals import Work, table

TREES = 10


def _step(what: str, rows: int = 100_000, columns: int = 28, **work: Any) -> Line:
    """Compare one setting, rows binned before."""
    data = table(rows, columns)
    task = Work(TREES, **work)
    calls = {
        "ours": rivals.ours(data, task, binned=True),
        "theirs": rivals.xgboost(data, task, binned=True),
    }
    seconds = medians(calls)
    return ratio(what, seconds["ours"], seconds["theirs"], "XGBoost")


def by_rows() -> Iterator[Line]:
    """Grow with the number of rows."""
    for rows in (1_000, 10_000, 100_000, 300_000, 1_000_000):
        yield _step(f"{rows:,} rows", rows=rows)


def by_features() -> Iterator[Line]:
    """Grow with the number of features."""
    for columns in (5, 28, 100, 300):
        yield _step(f"{columns} features", columns=columns)


def by_bins() -> Iterator[Line]:
    """Grow with the number of bins."""
    for bins in (16, 64, 256, 1024):
        yield _step(f"{bins} bins", bins=bins)


def by_depth() -> Iterator[Line]:
    """Grow with depth."""
    for depth in (2, 4, 6, 8, 10):
        yield _step(f"depth {depth}", depth=depth)


def by_clients() -> Iterator[Line]:
    """Grow with the number of clients."""
    for clients in (1, 2, 5, 10, 20, 50):
        yield from federations.lines(clients)

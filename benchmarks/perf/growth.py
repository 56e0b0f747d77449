"""How the cost grows with rows, features, bins, depth and clients."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from fedtrees.benchmarks.perf import federations, rivals
from fedtrees.benchmarks.perf.measure import FULL, Line, Size, medians, ratio
from fedtrees.benchmarks.perf.rivals import Work, table

TREES = 10


def _step(size: Size, what: str, rows: int = 100_000, columns: int = 28, **work: Any) -> Line:
    """Compare one setting, rows binned before."""
    data = table(size.rows(rows), columns)
    task = Work(size.trees(TREES), **work)
    calls = {
        "ours": rivals.ours(data, task, binned=True),
        "theirs": rivals.xgboost(data, task, binned=True),
    }
    seconds = medians(calls, size.repeats)
    return ratio(what, seconds["ours"], seconds["theirs"], "XGBoost")


def by_rows(size: Size = FULL) -> Iterator[Line]:
    """Grow with the number of rows."""
    for rows in size.cases((1_000, 10_000, 100_000, 300_000, 1_000_000)):
        yield _step(size, f"{rows:,} rows", rows=rows)


def by_features(size: Size = FULL) -> Iterator[Line]:
    """Grow with the number of features."""
    for columns in size.cases((5, 28, 100, 300)):
        yield _step(size, f"{columns} features", columns=columns)


def by_bins(size: Size = FULL) -> Iterator[Line]:
    """Grow with the number of bins."""
    for bins in size.cases((16, 64, 256, 1024)):
        yield _step(size, f"{bins} bins", bins=bins)


def by_depth(size: Size = FULL) -> Iterator[Line]:
    """Grow with depth."""
    for depth in size.cases((2, 4, 6, 8, 10)):
        yield _step(size, f"depth {depth}", depth=depth)


def by_clients(size: Size = FULL) -> Iterator[Line]:
    """Grow with the number of clients."""
    for clients in size.cases((1, 2, 5, 10, 20, 50)):
        yield from federations.lines(clients, size=size)

"""Compare two threads with one.

``python -m fedtrees.benchmarks.perf.two_threads ROWS TREES REPEATS`` measures one size and prints
JSON.
"""

import json
import sys
import time
from collections.abc import Iterator

from fedtrees.benchmarks.perf import rivals
from fedtrees.benchmarks.perf.measure import FULL, Line, Size, in_fresh_process
from fedtrees.benchmarks.perf.rivals import Work, table

_MODULE = "fedtrees.benchmarks.perf.two_threads"


def seconds(rows: int, trees: int, repeats: int) -> dict[str, float]:
    """Return the smallest wall-clock seconds by engine and number of threads, rows binned before.

    The minimum is used instead of the median, because any other busy process takes a core from the
    second thread.

    Parameters
    ----------
    rows : int
        Rows of the table.
    trees : int
        Number of trees.
    repeats : int
        Number of measurements.
    """
    data = table(rows)
    calls = {
        f"{name}-{threads}": call(data, Work(trees, threads=threads), binned=True)
        for threads in (1, 2)
        for name, call in (("ours", rivals.ours), ("xgboost", rivals.xgboost))
    }
    spent: dict[str, list[float]] = {name: [] for name in calls}
    for turn in range(repeats + 1):
        # The order alternates, because a call after XGBoost's threads has to wait for a core.
        for name, call in list(calls.items())[:: 1 if turn % 2 else -1]:
            started = time.perf_counter()
            call()
            spent[name].append(time.perf_counter() - started)
    return {name: min(times[1:]) for name, times in spent.items()}


def lines(size: Size = FULL) -> Iterator[Line]:
    """Compare several sizes in a process that may use both cores."""
    cases = ((10_000, 50, 1.0), (100_000, 30, 1.0), (1_000_000, 10, 1.6))
    for full_rows, full_trees, target in size.cases(cases):
        rows, trees = size.rows(full_rows), size.trees(full_trees)
        measured = in_fresh_process(
            _MODULE, str(rows), str(trees), str(size.repeats + 2), threads=2
        )
        single, double = measured["ours-1"], measured["ours-2"]
        xgboost_speedup = measured["xgboost-1"] / measured["xgboost-2"]
        yield Line(
            f"two threads, {rows:,} x 28, {trees} trees depth 6, wall",
            f"{single:.2f} s to {double:.2f} s, **{single / double:.2f}x faster**",
            f"XGBoost {xgboost_speedup:.2f}x faster",
            f">= {target}x",
            single / double >= target * 0.97,  # tolerance of 3%
        )


if __name__ == "__main__":
    print(json.dumps(seconds(*map(int, sys.argv[1:]))))

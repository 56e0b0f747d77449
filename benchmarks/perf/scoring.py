"""Measure matching and scoring of thousands of rows.

``python -m fedtrees.benchmarks.perf.scoring N`` measures one size and prints JSON.
"""

import json
import sys
import time
from collections.abc import Iterator

import numpy as np

from fedtrees.benchmarks.perf.measure import FULL, Line, Size, in_fresh_process, peak_mib
from fedtrees.core.schema import Feature, Schema, Table
from fedtrees.metrics.records import score_records


def mixed_table(rows: int, seed: int) -> Table:
    """Generate rows like Stroke's: three continuous and seven categorical columns, a rare label."""
    rng = np.random.default_rng(seed)
    numbers = rng.gamma(2.0, 20.0, size=(rows, 3))
    codes = np.stack([rng.integers(0, k, rows) for k in (2, 2, 2, 2, 5, 2, 4)], axis=1)
    return Table(np.column_stack([numbers, codes]), (rng.random(rows) < 0.1).astype(np.int64))


def score(rows: int) -> dict[str, float]:
    """Score one guess of `rows` rows against as many true ones with all record metrics."""
    kinds = ["continuous"] * 3 + ["categorical"] * 7
    schema = Schema(tuple(Feature(f"f{i}", kind=k) for i, k in enumerate(kinds)), "y")  # type: ignore[arg-type]
    # Load libraries and compile kernels before the measurement.
    small = [mixed_table(50, s) for s in (0, 1)]
    score_records(small[0], small[1], schema)
    guess, truth = mixed_table(rows, 0), mixed_table(rows, 1)
    started = time.process_time()
    scores = score_records(guess, truth, schema, ("f0", "f4"))
    return {"seconds": time.process_time() - started, "ra": scores.ra, "mib": peak_mib()}


def lines(size: Size = FULL) -> Iterator[Line]:
    """Compare the scoring with its targets."""
    rows = size.rows(6000)
    measured = in_fresh_process("fedtrees.benchmarks.perf.scoring", str(rows))
    what = f"scoring {rows:,} x {rows:,} rows, all record metrics"
    yield Line(what, f"{measured['seconds']:.1f} s", "", "<= 30 s", measured["seconds"] <= 30)
    yield Line(
        "its peak memory", f"{measured['mib']:.0f} MiB", "", "<= 1536 MiB", measured["mib"] <= 1536
    )


if __name__ == "__main__":
    print(json.dumps(score(int(sys.argv[1]))))

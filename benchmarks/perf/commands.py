"""Commands that answer at once, or should: an audit of a large model, and help."""

from __future__ import annotations

import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

from fedtrees.audit import audit, read_model
from fedtrees.benchmarks.perf.measure import FULL, Line, Size
from fedtrees.benchmarks.perf.rivals import Work, table


def lines(size: Size = FULL) -> Iterator[Line]:
    """Audit files of many trees, and ask for help; CPU seconds."""
    import xgboost

    data = table(size.rows(5_000))
    for trees, depth in size.cases(((500, 6), (10_000, 3))):
        work = Work(size.trees(trees), depth)
        matrix = xgboost.QuantileDMatrix(data.X, data.y, nthread=1)
        with tempfile.TemporaryDirectory() as folder:
            file = Path(folder) / "model.json"
            params = {**work.xgboost, "eta": 0.05}
            xgboost.train(params, matrix, work.trees).save_model(file)
            started = time.process_time()
            audit(read_model(file))
        spent = time.process_time() - started
        what = f"audit of a file, {work.trees:,} trees depth {depth}"
        yield Line(what, f"{spent:.1f} s", "", "<= 60 s", spent <= 60)
    before = _children()
    command = [sys.executable, "-m", "fedtrees.cli.main", "--help"]
    subprocess.run(command, check=True, capture_output=True)
    spent = _children() - before
    yield Line("`fedtrees --help`", f"{spent:.1f} s", "", "<= 5 s", spent <= 5)


def _children() -> float:
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime

"""Measure commands as users run them: an audit of a large model, the help, the default bench."""

import resource
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

from fedtrees.audit import audit, read_model
from fedtrees.benchmarks.perf.measure import FULL, Line, Size, children_seconds, command
from fedtrees.benchmarks.perf.rivals import Work, table


def lines(size: Size = FULL) -> Iterator[Line]:
    """Audit files with many trees, and print the help. Both in CPU seconds."""
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
    before = children_seconds()
    command("--help")
    spent = children_seconds() - before
    yield Line("`fedtrees --help`", f"{spent:.1f} s", "", "<= 5 s", spent <= 5)


# A bench with cells of every stage, but few of them and on a small table, in one process.
SMALL = ["--suite", "smoke", "--data", "wine", "-p", "fedtree-hist[trees=2]", "-a", "random-leaf"]
SMALL += ["-j", "1"]


def bench(size: Size = FULL) -> Iterator[Line]:
    """Time the default bench on two processes with compiled kernels."""
    less = ["-j", "2"] if size.scale >= 1 else SMALL
    with tempfile.TemporaryDirectory() as folder:
        started = time.perf_counter()
        command("bench", "--out", str(Path(folder) / "run"), *less)
        wall = time.perf_counter() - started
    # Memory of the largest child process. Its workers need about as much each.
    mib = resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss / 1024
    yield Line("`fedtrees bench`, two processes, wall", f"{wall:.0f} s", "", "<= 90 s", wall <= 90)
    yield Line("its largest process", f"{mib:.0f} MiB", "", "<= 2048 MiB together", 3 * mib <= 2048)

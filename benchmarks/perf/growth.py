"""How the cost grows with rows, features, bins, depth and clients."""

from collections.abc import Iterator

from fedtrees.benchmarks.perf import federations, rivals
from fedtrees.benchmarks.perf.measure import FULL, Line, Size, medians, ratio
from fedtrees.benchmarks.perf.rivals import Work, table

TREES = 10
STEPS = {
    "rows": (1_000, 10_000, 100_000, 300_000, 1_000_000),
    "columns": (5, 28, 100, 300),
    "bins": (16, 64, 256, 1024),
    "depth": (2, 4, 6, 8, 10),
}


def by(name: str, size: Size = FULL) -> Iterator[Line]:
    """Grow one of `STEPS`, the others as usual; rows are binned before."""
    for step in size.cases(STEPS[name]):
        shape = {"rows": 100_000, "columns": 28}
        work = {} if name in shape else {name: step}
        shape |= {name: step} if name in shape else {}
        data = table(size.rows(shape["rows"]), shape["columns"])
        task = Work(size.trees(TREES), **work)
        calls = {
            "ours": rivals.ours(data, task, binned=True),
            "theirs": rivals.xgboost(data, task, binned=True),
        }
        seconds = medians(calls, size.repeats)
        comma = "," if name == "rows" else ""
        what = {"columns": f"{step} features", "depth": f"depth {step}"}.get(name)
        yield ratio(what or f"{step:{comma}} {name}", seconds["ours"], seconds["theirs"], "XGBoost")


def by_clients(size: Size = FULL) -> Iterator[Line]:
    """Grow with the number of clients."""
    for clients in size.cases((1, 2, 5, 10, 20, 50)):
        yield from federations.lines(clients, size=size)

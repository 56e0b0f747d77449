"""Compare the central engines with XGBoost, LightGBM and scikit-learn: time, memory and threads."""

from __future__ import annotations

import time
from collections.abc import Iterator

from sklearn.ensemble import RandomForestClassifier

from fedtrees.benchmarks.perf import rivals
from fedtrees.benchmarks.perf.measure import (
    FULL,
    Line,
    Size,
    high_water_mib,
    in_fresh_process,
    medians,
    ratio,
)
from fedtrees.benchmarks.perf.rivals import Work, accuracy, table
from fedtrees.trees.cut_points import quantile_cuts
from fedtrees.trees.forest.grower import grow_random_forest
from fedtrees.trees.forest.params import ForestParams

FOREST_ROWS, FOREST_TREES = 20_000, 50
# Values of the growth measurements. All parameters but one have their usual value.
STEPS = {
    "rows": (1_000, 10_000, 100_000, 300_000, 1_000_000),
    "columns": (5, 28, 100, 300),
    "bins": (16, 64, 256, 1024),
    "depth": (2, 4, 6, 8, 10),
}


def compare_boosting(
    rows: int, trees: int, target: float | None, size: Size, classes: int = 2
) -> Iterator[Line]:
    """Compare boosting with and without binning on one thread.

    Parameters
    ----------
    rows : int
        Rows of the table.
    trees : int
        Number of rounds.
    target : float or None
        Upper limit of the ratio to XGBoost.
    size : Size
        Scale of the measurement.
    classes : int
        Number of classes. Several classes are compared with binning only.
    """
    rows = size.rows(rows)
    data, work = table(rows, classes=classes), Work(size.trees(trees), classes=classes)
    for binned in (True, False) if classes == 2 else (True,):
        calls = {
            "ours": rivals.ours(data, work, binned=binned),
            "XGBoost": rivals.xgboost(data, work, binned=binned),
        }
        lightgbm_call = rivals.lightgbm(data, work, binned=binned)
        if lightgbm_call is not None:
            calls["LightGBM"] = lightgbm_call
        if not binned:
            calls["scikit-learn HGB"] = rivals.sklearn_hist(data, work)
        seconds = medians(calls, size.repeats)
        how = "binned before" if binned else "binning included"
        what = f"{rows:,} x 28, {work.trees} trees depth 6, 256 bins, {how}"
        if classes > 2:
            what = f"softmax, {rows:,} x 28, {classes} classes, {work.trees} rounds depth 6"
        for name in list(seconds)[1:]:
            goal = target if name == "XGBoost" else None
            yield ratio(what, seconds["ours"], seconds[name], name, goal)
        if lightgbm_call is None:
            yield Line(what, "not compared", rivals.NO_LIGHTGBM)


def small(size: Size = FULL) -> Iterator[Line]:
    """Compare at 100,000 rows."""
    yield from compare_boosting(100_000, trees=100, target=1.0, size=size)


def large(size: Size = FULL) -> Iterator[Line]:
    """Compare at a million rows, with fewer trees because each tree costs the same."""
    yield from compare_boosting(1_000_000, trees=10, target=1.5, size=size)


def multiclass(size: Size = FULL) -> Iterator[Line]:
    """Compare with ten classes, which need ten trees per round."""
    yield from compare_boosting(50_000, trees=10, target=None, size=size, classes=10)


def by(name: str, size: Size = FULL) -> Iterator[Line]:
    """Vary one parameter of `STEPS`. Rows are binned before."""
    for step in size.cases(STEPS[name]):
        shape = {"rows": 100_000, "columns": 28}
        work = {} if name in shape else {name: step}
        shape |= {name: step} if name in shape else {}
        data = table(size.rows(shape["rows"]), shape["columns"])
        task = Work(size.trees(10), **work)
        calls = {
            "ours": rivals.ours(data, task, binned=True),
            "theirs": rivals.xgboost(data, task, binned=True),
        }
        seconds = medians(calls, size.repeats)
        comma = "," if name == "rows" else ""
        what = {"columns": f"{step} features", "depth": f"depth {step}"}.get(name)
        yield ratio(what or f"{step:{comma}} {name}", seconds["ours"], seconds["theirs"], "XGBoost")


def forests(size: Size = FULL) -> Iterator[Line]:
    """Compare random forests, fully grown and limited in depth, binning included."""
    rows, trees = size.rows(FOREST_ROWS), size.trees(FOREST_TREES)
    all_rows = table(2 * rows)
    X, y = all_rows.X[:rows], all_rows.y[:rows]
    for depth in (None, 8):
        params = ForestParams(trees=trees, max_depth=depth)
        model = RandomForestClassifier(trees, max_depth=depth, random_state=0, n_jobs=1)
        grown = []

        def ours(params: ForestParams = params, grown: list = grown) -> None:  # type: ignore[type-arg]
            grown.append(grow_random_forest(X, y, quantile_cuts(X, params.max_bin), params))

        calls = {"ours": ours, "theirs": lambda model=model: model.fit(X, y)}
        seconds = medians(calls, size.repeats)
        unseen = all_rows.X[rows:]
        scores = [
            accuracy(all_rows.y[rows:], predictions)
            for predictions in (grown[-1].predict(unseen), model.predict_proba(unseen))
        ]
        what = f"random forest, {rows:,} x 28, {trees} trees, "
        what += "fully grown" if depth is None else f"depth {depth}"
        what += f" (accuracy {scores[0]:.3f}, theirs {scores[1]:.3f})"
        yield ratio(what, seconds["ours"], seconds["theirs"], "scikit-learn", 1.5)


ROWS = 1_000_000


def memory_growth(who: str, rows: int) -> dict[str, float]:
    """Return by how many MiB binning and training raise the peak memory."""
    call = {"ours": rivals.ours, "xgboost": rivals.xgboost}[who]
    call(table(1000), Work(trees=1))()  # load libraries and kernels
    data = table(rows)
    with open("/proc/self/clear_refs", "w") as kernel:
        kernel.write("5")  # reset the peak (Linux)
    before = high_water_mib()
    call(data, Work(trees=3))()
    return {"before": before, "mib": high_water_mib() - before}


def peak_memory(size: Size = FULL) -> Iterator[Line]:
    """Compare the peaks."""
    rows = size.rows(ROWS)
    our_mib, xgboost_mib = (
        in_fresh_process(memory_growth, who, rows)["mib"] for who in ("ours", "xgboost")
    )
    table_mib = rows * 28 * 4 / 2**20
    what = f"memory for binning and training, {rows:,} x 28 (the table itself: {table_mib:.0f} MiB)"
    yield ratio(what, our_mib, xgboost_mib, "XGBoost", 2.0, unit="MiB")


def seconds_by_threads(rows: int, trees: int, repeats: int) -> dict[str, float]:
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


def two_threads(size: Size = FULL) -> Iterator[Line]:
    """Compare several sizes in a process that may use both cores."""
    cases = ((10_000, 50, 1.0), (100_000, 30, 1.0), (1_000_000, 10, 1.6))
    for full_rows, full_trees, target in size.cases(cases):
        rows, trees = size.rows(full_rows), size.trees(full_trees)
        measured = in_fresh_process(seconds_by_threads, rows, trees, size.repeats + 2, threads=2)
        single, double = measured["ours-1"], measured["ours-2"]
        xgboost_speedup = measured["xgboost-1"] / measured["xgboost-2"]
        yield Line(
            f"two threads, {rows:,} x 28, {trees} trees depth 6, wall",
            f"{single:.2f} s to {double:.2f} s, **{single / double:.2f}x faster**",
            f"XGBoost {xgboost_speedup:.2f}x faster",
            f">= {target}x",
            single / double >= target * 0.97,  # tolerance of 3%
        )

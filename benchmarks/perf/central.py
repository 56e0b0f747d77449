"""The central engine beside XGBoost, LightGBM and scikit-learn."""

from collections.abc import Iterator

from fedtrees.benchmarks.perf import rivals
from fedtrees.benchmarks.perf.measure import FULL, Line, Size, medians, ratio
from fedtrees.benchmarks.perf.rivals import Work, table


def lines(
    rows: int, trees: int, target: float | None, size: Size, classes: int = 2
) -> Iterator[Line]:
    """Compare with and without binning, one thread; several classes with it only."""
    rows = size.rows(rows)
    data, work = table(rows, classes=classes), Work(size.trees(trees), classes=classes)
    for binned in (True, False) if classes == 2 else (True,):
        calls = {
            "ours": rivals.ours(data, work, binned=binned),
            "XGBoost": rivals.xgboost(data, work, binned=binned),
        }
        other = rivals.lightgbm(data, work, binned=binned)
        if other is not None:
            calls["LightGBM"] = other
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
        if other is None:
            yield Line(what, "not compared", rivals.NO_LIGHTGBM)


def small(size: Size = FULL) -> Iterator[Line]:
    """Compare at 100,000 rows."""
    yield from lines(100_000, trees=100, target=1.0, size=size)


def large(size: Size = FULL) -> Iterator[Line]:
    """Compare at a million rows; fewer trees, which cost the same each."""
    yield from lines(1_000_000, trees=10, target=1.5, size=size)


def multiclass(size: Size = FULL) -> Iterator[Line]:
    """Compare ten classes: one tree per class and round."""
    yield from lines(50_000, trees=10, target=None, size=size, classes=10)

"""Boosting ten classes: one tree per class and round."""

from __future__ import annotations

from collections.abc import Iterator

from fedtrees.benchmarks.perf import rivals
from fedtrees.benchmarks.perf.measure import FULL, Line, Size, medians, ratio
from fedtrees.benchmarks.perf.rivals import Work, table

CLASSES = 10


def multiclass(size: Size = FULL) -> Iterator[Line]:
    """Compare softmax with XGBoost and LightGBM, rows binned before."""
    rows = size.rows(50_000)
    data, work = table(rows, classes=CLASSES), Work(size.trees(10), classes=CLASSES)
    calls = {
        "ours": rivals.ours(data, work, binned=True),
        "XGBoost": rivals.xgboost(data, work, binned=True),
    }
    other = rivals.lightgbm(data, work, binned=True)
    if other is not None:
        calls["LightGBM"] = other
    seconds = medians(calls, size.repeats)
    what = f"softmax, {rows:,} x 28, {CLASSES} classes, {work.trees} rounds depth 6"
    for name in list(seconds)[1:]:
        yield ratio(what, seconds["ours"], seconds[name], name)
    if other is None:
        yield Line(what, "not compared", rivals.NO_LIGHTGBM)

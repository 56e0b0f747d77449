"""Boosting ten classes: one tree per class and round."""

from __future__ import annotations

from collections.abc import Iterator

from fedtrees.benchmarks.perf import rivals
from fedtrees.benchmarks.perf.measure import Line, medians, ratio
from fedtrees.benchmarks.perf.rivals import Work, table

CLASSES = 10


def multiclass() -> Iterator[Line]:
    """Compare softmax with XGBoost and LightGBM, rows binned before."""
    data, work = table(50_000, classes=CLASSES), Work(trees=10, classes=CLASSES)
    calls = {
        "ours": rivals.ours(data, work, binned=True),
        "XGBoost": rivals.xgboost(data, work, binned=True),
    }
    other = rivals.lightgbm(data, work, binned=True)
    if other is not None:
        calls["LightGBM"] = other
    seconds = medians(calls)
    what = f"softmax, 50,000 x 28, {CLASSES} classes, 10 rounds depth 6"
    for name in list(seconds)[1:]:
        yield ratio(what, seconds["ours"], seconds[name], name)
    if other is None:
        yield Line(what, "not compared", rivals.NO_LIGHTGBM)

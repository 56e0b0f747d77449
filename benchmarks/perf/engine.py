"""The engine and the protocols beside XGBoost."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np

from fedtrees.benchmarks.perf.measure import Line, side_by_side
from fedtrees.core.registry import register
from fedtrees.core.schema import Feature, Schema, Table
from fedtrees.core.specs import Spec
from fedtrees.protocols.base import train
from fedtrees.trees.grower import grow_forest
from fedtrees.trees.params import TreeParams
from fedtrees.trees.sketch import quantile_cuts


def table(rows: int, columns: int = 28) -> Table:
    """Make a table with informative, noisy and skewed columns."""
    rng = np.random.default_rng(0)
    X = rng.normal(size=(rows, columns)).astype(np.float32)
    X[:, ::3] = np.exp(X[:, ::3])
    margin = X[:, 1] + X[:, 2] * X[:, 4] - 0.5 * X[:, 0] + rng.normal(size=rows)
    return Table(X, (margin > np.median(margin)).astype(np.int64))


def xgboost_run(data: Table, trees: int, depth: int, bins: int) -> Any:
    """Return a call that trains XGBoost `hist` on one thread, binning included."""
    import xgboost

    params = {
        "objective": "binary:logistic",
        "tree_method": "hist",
        "max_depth": depth,
        "max_bin": bins,
        "eta": 0.3,
        "nthread": 1,
    }

    def run() -> Any:
        return xgboost.train(
            params, xgboost.QuantileDMatrix(data.X, data.y, max_bin=bins, nthread=1), trees
        )

    return run


def central(rows: int, target: float, trees: int = 10, repeats: int = 3) -> Iterator[Line]:
    """Compare the central engine, binning included."""
    data = table(rows)
    params = TreeParams(trees=trees, max_depth=6)

    def ours() -> Any:
        return grow_forest(data.X, data.y, quantile_cuts(data.X, 256), params)

    a, b = side_by_side(ours, xgboost_run(data, trees, 6, 256), repeats)
    yield Line(
        f"central engine, {rows:,} x 28, {trees} trees depth 6, 256 bins, binning included",
        f"{a:.2f} s, {a / b:.2f}x",
        f"XGBoost {b:.2f} s",
        f"<= {target}x",
        a / b <= target,
    )


def federated(clients: int, target: float | None) -> Iterator[Line]:
    """Compare whole federations with all their messages: 50k x 28, 10 trees of depth 6."""
    data = table(50_000)
    schema = Schema(tuple(Feature(f"f{i}") for i in range(28)), "y")
    parts = [data.take(rows) for rows in np.array_split(np.arange(len(data)), clients)]
    for name in ("fedtree-hist", "nvflare-hist"):
        spec = Spec(name, {"trees": 10, "max_depth": 6, "max_bin": 256})
        protocol = register.make("protocol", spec)
        a, b = side_by_side(
            lambda protocol=protocol: train(protocol, parts, schema),
            xgboost_run(data, 10, 6, 256),
        )
        yield Line(
            f"{name}, {clients} clients with all messages, 50,000 x 28, 10 trees depth 6",
            f"{a:.2f} s, {a / b:.2f}x",
            f"XGBoost central {b:.2f} s",
            f"<= {target}x" if target else "",
            a / b <= target if target else None,
        )

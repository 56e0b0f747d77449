"""Boosting with this engine, XGBoost, LightGBM and scikit-learn, as calls to be timed."""

from collections.abc import Callable
from dataclasses import dataclass
from importlib.util import find_spec
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedtrees.core.schema import Feature, Schema, Table
from fedtrees.trees.binning import bin_rows
from fedtrees.trees.boosted.boosting import grow_forest
from fedtrees.trees.boosted.losses import named_objective
from fedtrees.trees.boosted.params import TreeParams
from fedtrees.trees.cut_points import quantile_cuts

Call = Callable[[], Any]

NO_LIGHTGBM = "LightGBM is not installed: pip install 'fedtrees[perf]'"


def table(rows: int, columns: int = 28, classes: int = 2) -> Table:
    """Generate a table with informative, noisy and skewed columns and classes of equal size.

    Parameters
    ----------
    rows, columns : int
        Shape.
    classes : int
        Number of classes.
    """
    rng = np.random.default_rng(0)
    X = rng.normal(size=(rows, columns)).astype(np.float32)
    X[:, ::3] = np.exp(X[:, ::3])
    margin = X[:, 1] + X[:, 2] * X[:, 4] - 0.5 * X[:, 0] + rng.normal(size=rows)
    borders = np.quantile(margin, np.arange(1, classes) / classes)
    return Table(X, np.searchsorted(borders, margin).astype(np.int64))


def schema_of(data: Table, classes: int = 2) -> Schema:
    """Return the schema of such a table."""
    features = tuple(Feature(f"f{i}") for i in range(data.X.shape[1]))
    return Schema(features, "y", tuple(map(str, range(classes))))


@dataclass(frozen=True)
class Work:
    """Parameters of boosting with learning rate 0.3 and lambda 1."""

    trees: int
    depth: int = 6
    bins: int = 256
    classes: int = 2
    threads: int = 1

    @property
    def xgboost(self) -> dict[str, Any]:
        """Parameters of ``xgboost.train``."""
        classes = {} if self.classes == 2 else {"num_class": self.classes}
        return {
            "objective": "multi:softprob" if classes else "binary:logistic",
            "tree_method": "hist",
            "max_depth": self.depth,
            "max_bin": self.bins,
            "eta": 0.3,
            "nthread": self.threads,
            **classes,
        }


def ours(data: Table, work: Work, *, binned: bool = False) -> Call:
    """Return a call of this engine.

    Parameters
    ----------
    data : Table
        Rows.
    work : Work
        Parameters.
    binned : bool
        Whether rows are binned before the call instead of in it.
    """
    params = TreeParams(trees=work.trees, max_depth=work.depth, max_bin=work.bins)
    objective = named_objective(work.xgboost["objective"], work.classes)
    extra: dict[str, Any] = {} if work.threads == 1 else {"threads": work.threads}

    def run(X: Any, cuts: Any) -> Any:
        return grow_forest(X, data.y, cuts, params, objective, **extra)

    if not binned:
        return lambda: run(data.X, quantile_cuts(data.X, work.bins))
    cuts = quantile_cuts(data.X, work.bins)
    bins = bin_rows(data.X, cuts)
    return lambda: run(bins, cuts)


def xgboost(data: Table, work: Work, *, binned: bool = False) -> Call:
    """Return a call of XGBoost `hist`.

    Parameters
    ----------
    data : Table
        Rows.
    work : Work
        Parameters.
    binned : bool
        Whether rows are binned before the call instead of in it.
    """
    import xgboost

    def matrix() -> Any:
        return xgboost.QuantileDMatrix(data.X, data.y, max_bin=work.bins, nthread=work.threads)

    if not binned:
        return lambda: xgboost.train(work.xgboost, matrix(), work.trees)
    done = matrix()
    return lambda: xgboost.train(work.xgboost, done, work.trees)


def lightgbm(data: Table, work: Work, *, binned: bool = False) -> Call | None:
    """Return a call of LightGBM with at most ``2^depth`` leaves, None if it is not installed.

    Parameters
    ----------
    data : Table
        Rows.
    work : Work
        Parameters.
    binned : bool
        Whether rows are binned before the call instead of in it.
    """
    if find_spec("lightgbm") is None:
        return None
    import lightgbm

    params = {
        "objective": "binary" if work.classes == 2 else "multiclass",
        "num_class": 1 if work.classes == 2 else work.classes,
        "learning_rate": 0.3,
        "max_depth": work.depth,
        "num_leaves": 2**work.depth,
        "max_bin": work.bins,
        "lambda_l2": 1.0,
        "min_child_weight": 1.0,
        "min_data_in_leaf": 0,
        "num_threads": work.threads,
        "verbose": -1,
    }

    def dataset() -> Any:
        return lightgbm.Dataset(data.X, data.y, params=dict(params)).construct()

    if not binned:
        return lambda: lightgbm.train(params, dataset(), work.trees)
    done = dataset()
    return lambda: lightgbm.train(params, done, work.trees)


def sklearn_hist(data: Table, work: Work) -> Call:
    """Return a call of scikit-learn's HistGradientBoostingClassifier, which always bins."""
    from sklearn.ensemble import HistGradientBoostingClassifier

    model = HistGradientBoostingClassifier(
        learning_rate=0.3,
        max_iter=work.trees,
        max_depth=work.depth,
        max_leaf_nodes=None,
        min_samples_leaf=1,
        l2_regularization=1.0,
        max_bins=min(work.bins, 255),  # limit of scikit-learn
        early_stopping=False,
    )
    return lambda: model.fit(data.X, data.y)


def accuracy(labels: NDArray[Any], scores: NDArray[Any]) -> float:
    """Return the share of rows whose most probable class is correct, for scores (n,) or (n, K)."""
    chosen = scores > 0.5 if scores.ndim == 1 else scores.argmax(axis=1)
    return float(np.mean(chosen == labels))

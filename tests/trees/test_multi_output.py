"""Trees with one value per class: equal to XGBoost's, and to ordinary trees for one output."""

import numpy as np
import pytest
import xgboost
from central_multi_output import grow_multi_output

from fedtrees.trees.boosted.boosting import grow_forest
from fedtrees.trees.boosted.losses import LOGISTIC, Softmax
from fedtrees.trees.boosted.params import TreeParams
from fedtrees.trees.cut_points import quantile_cuts


def rows(classes, n=200, missing=0.1, seed=0):
    rng = np.random.default_rng(seed)
    X = np.round(rng.normal(size=(n, 4)), 1).astype(np.float32)
    score = X[:, 0] - X[:, 2] + rng.normal(0, 0.3, n)
    y = np.digitize(score, np.quantile(score, np.arange(1, classes) / classes))
    X[rng.random(X.shape) < missing] = np.nan
    return X, y


@pytest.mark.parametrize("missing", [0, 0.2])
def test_with_one_output_it_is_the_ordinary_tree(missing):
    X, y = rows(2, missing=missing)
    cuts, params = quantile_cuts(X, 16), TreeParams(trees=3, max_depth=4, gamma=0.1)
    ordinary, multi_output = (
        grow(X, y, cuts, params, LOGISTIC) for grow in (grow_forest, grow_multi_output)
    )
    for tree, multi_tree in zip(ordinary.trees, multi_output.trees, strict=True):
        for name in ("feature", "threshold", "left", "default_left", "gain"):
            np.testing.assert_array_equal(getattr(tree, name), getattr(multi_tree, name))
        np.testing.assert_array_equal(tree.value, multi_tree.value[:, 0])
    np.testing.assert_array_equal(ordinary.predict(X), multi_output.predict(X))


def test_with_several_classes_it_predicts_as_xgboosts_multi_output_trees():
    X, y = rows(3, missing=0)
    cuts = quantile_cuts(X, 256)
    params = TreeParams(trees=4, max_depth=3, base_score=0.5, min_child_weight=0.0)
    predictions = grow_multi_output(X, y, cuts, params, Softmax(3)).predict(X)
    data = xgboost.QuantileDMatrix(X, y, max_bin=256)
    settings = {
        "objective": "multi:softprob", "num_class": 3, "multi_strategy": "multi_output_tree",
        "tree_method": "hist", "max_depth": 3, "base_score": 0.5, "min_child_weight": 0,
        "nthread": 1,
    }  # fmt: skip
    reference = xgboost.train(settings, data, 4).predict(data)
    assert np.abs(predictions - reference).max() < 1e-5

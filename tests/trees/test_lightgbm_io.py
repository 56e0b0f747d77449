from __future__ import annotations

import numpy as np
import pytest
import saved_models
from hypothesis import given
from hypothesis import strategies as st

from fedtrees.core.errors import DataError
from fedtrees.trees.boosted.losses import LOGISTIC, SQUARED_ERROR, Softmax
from fedtrees.trees.files.lightgbm import from_lightgbm_text
from fedtrees.trees.files.models import load_model

NONE, ZERO, NAN = 0, 1, 2
EDGES = [0.0, 1e-35, 1.0000000180025095e-35, 1e-40, 0.1, 1.5, 3e38, 1e300, np.inf]


@pytest.fixture(scope="module")
def lgb():
    return pytest.importorskip("lightgbm", reason="lightgbm is not installed: no reference")


def text_of(name):
    return (saved_models.FOLDER / name).read_text()


def read(text):
    return from_lightgbm_text(text.encode())


@pytest.mark.parametrize("name", saved_models.names("lightgbm"))
def test_models_of_all_versions_predict_as_they_did(name):
    forest = load_model(saved_models.FOLDER / name)
    # LightGBM adds up float64, we float32: half a digit of the largest sum per tree.
    np.testing.assert_allclose(
        forest.margin(saved_models.ROWS), saved_models.MARGINS[name], rtol=3e-7, atol=5e-7
    )


def one_split(threshold, missing, default_left):
    decision = missing << 2 | default_left << 1
    return f"""tree
num_tree_per_iteration=1
max_feature_idx=0
objective=regression
tree_sizes=1

Tree=0
num_leaves=2
num_cat=0
split_feature=0
split_gain=1
threshold={threshold!r}
decision_type={decision}
left_child=-1
right_child=-2
leaf_value=1 2

end of trees
"""


def goes_left(x, threshold, missing, default_left):
    """LightGBM's NumericalDecision, in float64."""
    x = float(x)
    if np.isnan(x) and missing != NAN:
        x = 0.0
    if (missing == ZERO and abs(x) <= float(np.float32(1e-35))) or np.isnan(x):
        return default_left
    return x <= threshold


numbers = st.floats(allow_nan=False, allow_infinity=False) | st.sampled_from(
    [sign * edge for edge in EDGES for sign in (1, -1)]
)


@given(numbers, st.lists(st.floats(width=32, allow_infinity=False)), st.booleans(), st.data())
def test_a_float32_row_goes_to_the_side_to_which_lightgbm_sends_it(
    threshold, values, default_left, data
):
    missing = data.draw(st.sampled_from([NONE, ZERO, NAN]))
    with np.errstate(over="ignore"):
        rounded_threshold = np.float32(threshold)
    zero = np.float32(1e-35)
    special = [
        rounded_threshold,
        np.nextafter(rounded_threshold, np.float32(9)),
        np.nextafter(rounded_threshold, np.float32(-9)),
    ]
    special += [
        sign * np.nextafter(zero, z) for sign in (1, -1) for z in (np.float32(0), np.float32(1))
    ]
    x = np.array([*values, *special, np.nan, 0.0, zero, -zero], dtype=np.float32)
    x = x[~np.isinf(x)]
    expected = [goes_left(value, threshold, missing, default_left) for value in x]
    try:
        forest = read(one_split(threshold, missing, default_left))
    except DataError:
        # The reader refuses only if zeros go to another side than both neighbours, which no
        # threshold can express.
        sides_of_neighbours = [
            goes_left(sign * 1e-34, threshold, ZERO, default_left) for sign in (1, -1)
        ]
        assert missing == ZERO
        assert sides_of_neighbours == [not default_left] * 2
        return
    np.testing.assert_array_equal(forest.margin(x[:, None]) == 1, expected)


def test_zeros_that_no_threshold_can_send_are_refused():
    for threshold, default_left in ((0.5, False), (-0.5, True)):
        with pytest.raises(DataError, match=r"^model takes zeros as missing \(zero_as_missing"):
            read(one_split(threshold, ZERO, default_left))
        read(one_split(threshold, ZERO, not default_left))


CASES = {
    "binary": ({"objective": "binary"}, LOGISTIC),
    "multiclass": ({"objective": "multiclass", "num_class": 3}, Softmax(3)),
    "regression": ({"objective": "regression"}, SQUARED_ERROR),
    "dart": ({"objective": "binary", "boosting": "dart", "drop_rate": 0.5}, LOGISTIC),
    "rf": (
        {"objective": "binary", "boosting": "rf", "bagging_fraction": 0.5, "bagging_freq": 1},
        LOGISTIC,
    ),
    "missing is zero": ({"objective": "binary", "use_missing": False}, LOGISTIC),
}


@pytest.fixture(scope="module")
def table():
    """3000 rows of 6 features: ties, zeros, holes, and numbers on thresholds."""
    rng = np.random.default_rng(11)
    X = rng.normal(size=(3000, 6)).astype(np.float32)
    X[:, 1] = np.round(X[:, 1], 1)
    X[:, 2] = np.maximum(X[:, 2], 0)
    X[:, 3] = rng.integers(-2, 3, len(X))
    y = (X[:, 0] > 0).astype(int) + (X[:, 1] * X[:, 3] > 0.2)
    X[rng.random(X.shape) < 0.1] = np.nan
    X[:, 5] = rng.normal(size=len(X))  # never missing
    return X, y


@pytest.mark.parametrize("case", CASES)
def test_forests_predict_as_lightgbm(lgb, table, case):
    (X, y), (settings, objective) = table, CASES[case]
    target = y if case == "multiclass" else y + X[:, 5] if case == "regression" else y > 0
    common = {"verbose": -1, "num_threads": 1, "deterministic": True, "num_leaves": 15}
    booster = lgb.train({**common, **settings}, lgb.Dataset(X, target), 20)
    forest = read(booster.model_to_string())
    assert forest.objective == objective
    # Values next to every threshold, on its other side.
    unseen = np.nextafter(X, np.float32(np.inf))
    unseen[::5, 5] = np.nan  # Training had no missing values in this column.
    for rows in (X, unseen):
        raw = booster.predict(rows, raw_score=True)
        if case == "rf":  # raw scores are the sum, predictions use the mean
            raw = raw / 20
        # 20 float32 additions and roundings of numbers of this size
        bound = 40 * np.finfo(np.float32).eps * max(1, np.abs(raw).max())
        np.testing.assert_allclose(forest.margin(rows), raw, atol=bound, rtol=0)
        np.testing.assert_allclose(forest.predict(rows), booster.predict(rows), atol=bound, rtol=0)
        leaves, reference_leaves = forest.apply(rows), booster.predict(rows, pred_leaf=True)
        for number in range(len(forest)):
            pairs = np.unique(np.stack([leaves[:, number], reference_leaves[:, number]]), axis=1)
            assert pairs.shape[1] == len(np.unique(pairs[0])) == len(np.unique(pairs[1]))


def test_hessian_sums_and_gains_are_kept(lgb, table):
    X, y = table
    settings = {"objective": "regression", "verbose": -1, "num_threads": 1, "num_leaves": 7}
    booster = lgb.train(settings, lgb.Dataset(X, y), 3)
    forest = read(booster.model_to_string())
    leaves = forest.apply(X)
    for t, tree in enumerate(forest.trees):
        at_leaf = np.bincount(leaves[:, t], minlength=len(tree))  # h of a squared error is 1
        np.testing.assert_allclose(tree.h[tree.leaves], at_leaf[tree.leaves], rtol=1e-9)
        assert tree.h[0] == pytest.approx(len(X), rel=1e-9)
        assert tree.g is None
        assert (tree.gain[tree.feature >= 0] > 0).all()
    gain = sum(float(np.sum(t.gain[t.feature >= 0], dtype=np.float64)) for t in forest.trees)
    assert gain == pytest.approx(booster.feature_importance("gain").sum(), rel=1e-4)


def test_nodes_are_numbered_level_by_level():
    tree = load_model(saved_models.FOLDER / "lightgbm-4.7.0-forest.txt").trees[0]
    inner = np.flatnonzero(tree.feature >= 0)
    np.testing.assert_array_equal(tree.left[inner], 1 + 2 * np.arange(len(inner)))
    np.testing.assert_array_equal(tree.right[inner], tree.left[inner] + 1)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"objective": "regression_l1"}, "regression_l1.*read are binary"),
        ({"objective": "regression", "reg_sqrt": True}, "regression sqrt"),
        ({"objective": "binary", "sigmoid": 0.5}, "sigmoid:0.5"),
        ({"objective": "multiclassova", "num_class": 3}, "multiclassova"),
        ({"objective": "cross_entropy"}, "cross_entropy"),
        ({"objective": "regression", "linear_tree": True}, "linear"),
        ({"objective": "binary"}, "^model has categorical"),
        ({"objective": "binary", "zero_as_missing": True}, "^model takes zeros as missing"),
    ],
)
def test_other_models_are_refused(lgb, table, settings, message):
    X, y = table
    X = X.copy()
    X[:, 3] = np.abs(np.nan_to_num(X[:, 3])) * 50 // 7
    y = y if "num_class" in settings else y > 0
    data = lgb.Dataset(X, y)
    if "categorical" in message:
        data = lgb.Dataset(X, X[:, 3] % 2, categorical_feature=[3])
    booster = lgb.train({"verbose": -1, "num_threads": 1, **settings}, data, 3)
    with pytest.raises(DataError, match=message):
        read(booster.model_to_string())


@pytest.mark.parametrize("name", ["lightgbm-4.7.0-multiclass.txt", "lightgbm-2.3.1-stump.txt"])
def test_truncated_models_are_refused(name):
    text = text_of(name)
    for cut in range(0, text.index("end of trees") + 5, 7):
        with pytest.raises(DataError):
            read(text[:cut])


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("tree\n", "forest\n", "first line"),
        ("Tree=1", "Tree=2", "tree '2' follows 1"),
        ("tree_sizes=", "tree_sizes=7 ", "has 2 trees and announces 3"),
        ("num_leaves=4", "num_leaves=5", "entries"),
        ("num_leaves=4", "num_leaves=1000000000000", "entries"),
        ("num_leaves=4", "num_leaves=0", "entries"),
        ("num_leaves=4", "num_leaves=four", "ValueError"),
        ("num_leaves=4", "leaves=4", "num_leaves"),
        ("left_child=", "left_child=7 ", "entries"),
        ("left_child=1", "left_child=0", "form a tree"),
        ("left_child=1", "left_child=9", "form a tree"),
        ("left_child=1", "left_child=99999999999999999999", "not a complete"),
        ("split_feature=", "split_feature=9 #", "not a complete"),
        ("max_feature_idx=2", "max_feature_idx=0", "none of its 1"),
        ("threshold=0", "threshold=nan #0", "not a complete"),
        ("shrinkage=1", "leaf_value=1 inf 2 3", "leaf value not finite"),
        ("shrinkage=1", "threshold=1 nan 2", "threshold is NaN"),
        ("decision_type=", "decision_type=1", "decision_type"),
        ("num_tree_per_iteration=1", "num_tree_per_iteration=2", "rounds of 1"),
        ("objective=binary", "objective=multiclass", "1 trees a round"),
        ("objective=", "goal=", "'none'"),
    ],
)
def test_damaged_models_are_refused(old, new, message):
    text = text_of("lightgbm-4.7.0-binary.txt")
    assert old in text
    with pytest.raises(DataError, match=message):
        read(text.replace(old, new, 1))


def test_an_absurd_number_of_classes_is_refused():
    text = text_of("lightgbm-4.7.0-multiclass.txt")
    text = text.replace("num_tree_per_iteration=3", "num_tree_per_iteration=1000000000")
    with pytest.raises(DataError, match="1000000000 trees a round"):
        read(text)


def test_windows_line_ends_are_read():
    text = text_of("lightgbm-4.7.0-binary.txt")
    forest = read(text.replace("\n", "\r\n"))
    np.testing.assert_array_equal(
        forest.margin(saved_models.ROWS), read(text).margin(saved_models.ROWS)
    )

"""Counts of rows and labels are those of the training table, or are not named."""

import re

import lightgbm as lgb
import numpy as np
import pytest
import trained_models as trained
import xgboost as xgb
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn.datasets import load_wine

from fedtrees.model_audit import Known, audit, read_model
from fedtrees.model_audit.audit import ONCE
from fedtrees.model_audit.exposure import UNKNOWN
from fedtrees.model_audit.first_trees import LeafStatistics, counts_at, find_first_tree
from fedtrees.model_audit.model import without_statistics
from fedtrees.model_audit.page import render
from fedtrees.model_audit.verdict import to_json, verdict


def agrees(made, exposure, k=1):
    n, n_pos = made.true_counts(exposure.index, exposure.leaf, k)
    return np.array_equal(exposure.n, n) and np.array_equal(exposure.n_pos, n_pos)


@pytest.mark.parametrize("depth", [1, 3, 8])
@pytest.mark.parametrize("masked", [False, True], ids=["whole", "masked"])
def test_first_tree_counts_of_a_central_model_are_exact(tmp_path, depth, masked):
    made = trained.central(tmp_path / "m.json", max_depth=depth)
    known, path = None, made.path
    if masked:
        path = trained.edited(path, tmp_path / "masked.json", trained.mask)
        known = Known(learning_rate=0.3, reg_lambda=1.0)  # do not follow from stumps
    found = audit(read_model(path), known)
    assert found.rows.n == len(made.y)
    if masked and depth == 1:  # nor does what an L1 penalty would have moved labels by
        assert np.array_equal(found.trees[0].n, made.true_counts(0, found.trees[0].leaf)[0])
        assert not found.summary.exact
        return
    assert agrees(made, found.trees[0])
    assert found.rows.n_pos == made.y.sum()
    assert found.restored == masked
    assert not any(t.exact.any() for t in found.trees[1:])


@pytest.mark.long
@pytest.mark.parametrize("params", [{}, {"base_score": 0.5}, {"max_depth": 2, "eta": 0.1}])
def test_every_client_of_a_bagging_model_is_found_with_its_own_base_score(tmp_path, params):
    made = trained.bagging(tmp_path / "m.json", **params)
    found = audit(read_model(made.path))
    for t in range(3):
        y = made.y[made.parts[made.grown_by[t]]]
        assert agrees(made, found.trees[t])
        assert found.trees[t].base_score == pytest.approx(
            params.get("base_score", y.mean()), abs=1e-6
        )
    assert found.rows.n == len(made.y)
    assert not any(t.exact.any() for t in found.trees[3:])


@pytest.mark.long
def test_masking_a_bagging_model_hides_no_client(tmp_path):
    made = trained.bagging(tmp_path / "m.json")
    path = trained.edited(made.path, tmp_path / "masked.json", trained.mask)
    found = audit(read_model(path))
    assert found.restored
    assert all(agrees(made, found.trees[t]) for t in range(3))


def test_a_cyclic_model_tells_its_first_client(tmp_path):
    made = trained.cyclic(tmp_path / "m.json")
    found = audit(read_model(made.path))
    assert agrees(made, found.trees[0])
    assert found.rows.n == len(made.parts[0])
    assert not any(t.exact.any() for t in found.trees[1:])


@pytest.mark.parametrize("known", [Known(reg_lambda=1.0), Known(rows=569)], ids=["lambda", "rows"])
def test_leaf_values_give_the_first_tree_to_who_knows_lambda_or_the_rows(tmp_path, known):
    """No statistics: the rest follows from eight leaf values."""
    made = trained.central(tmp_path / "m.json")
    path = trained.edited(made.path, tmp_path / "bare.json", trained.strip)
    found = audit(read_model(path), known)
    assert agrees(made, found.trees[0])
    assert found.rows.n == 569
    assert (found.settings.learning_rate, found.settings.reg_lambda) == (0.3, 1.0)


def test_leaf_values_alone_count_nothing_and_say_what_would(tmp_path):
    """All counts and lambda times one factor give the same values."""
    made = trained.central(tmp_path / "m.json")
    model = without_statistics(read_model(made.path))
    found = audit(model)
    assert found.summary.counted == 0
    assert (found.rows.n, found.settings, found.assumes) == (None, None, ())
    said = re.search(
        r"a table of (\d+) rows .* --reg-lambda (\d+), the audit counts", verdict(found)[0]
    )
    assert said.groups() == ("569", "1")
    assert audit(model, Known(reg_lambda=0.0)).summary.counted == 0


def test_declared_rows_that_contradict_the_base_score_count_nothing(tmp_path):
    model = without_statistics(read_model(trained.central(tmp_path / "m.json").path))
    for rows in (500, 600):
        found = audit(model, Known(rows=rows, learning_rate=0.3, reg_lambda=1.0))
        assert found.summary.counted == 0
        assert f"a multiple of 569 rows, and {rows} were declared" in verdict(found)[0]


def test_counts_from_leaf_values_say_what_they_rest_on(tmp_path):
    model = without_statistics(read_model(trained.central(tmp_path / "m.json").path))
    found = audit(model, Known(rows=569, learning_rate=0.3, reg_lambda=1.0))
    said = to_json(found)
    assert said["assumes"] == list(found.assumes)
    for condition in ("all of the 569 rows that were declared", "no L1 penalty", "eta was 0.3"):
        assert any(condition in line for line in said["assumes"])
        assert condition in said["verdict"][1]
        assert condition in render(found, None)
    assert said["verdict"][0].startswith("Under the conditions below")
    assert "for certain" not in " ".join(said["verdict"])
    assert "no L1 penalty and no sampling" in said["trees"][0]["how"]
    assert audit(read_model(tmp_path / "m.json")).assumes == (ONCE,)  # whatever eta and lambda are


def test_values_that_two_learning_rates_explain_count_nothing(tmp_path):
    """Eta 1 explains these leaves too, and less by chance; only who is told eta knows it."""
    n, n1 = np.array([186, 108]), np.array([178, 4])
    X = np.repeat([0.0, 1.0], n).reshape(-1, 1)
    y = np.concatenate([np.arange(rows) < positives for rows, positives in zip(n, n1, strict=True)])
    trained.central(tmp_path / "m.json", 1, X, y.astype(int), reg_lambda=2.0)
    model = without_statistics(read_model(tmp_path / "m.json"))
    assert audit(model, Known(reg_lambda=2.0)).summary.counted == 0
    told = audit(model, Known(reg_lambda=2.0, learning_rate=0.3)).trees[0]
    assert np.array_equal(told.n, n)
    assert np.array_equal(told.n_pos, n1)


@pytest.mark.parametrize("seed", range(3))
def test_leaf_values_alone_give_every_client_s_first_tree(tmp_path, seed):
    made = trained.bagging(tmp_path / "m.json", rounds=3, seed=seed)
    bare = trained.edited(made.path, tmp_path / "bare.json", trained.strip)
    found = audit(read_model(bare), Known(reg_lambda=1.0))
    assert all(agrees(made, found.trees[t]) for t in range(3))
    assert not any(t.exact.any() for t in found.trees[3:])
    assert (found.sources.kind, found.sources.clients) == ("bagging", 3)
    assert (found.rows.n, found.rows.n_pos, found.rows.complete) == (569, 357, False)


def test_a_base_score_that_somebody_chose_is_no_label_mean(tmp_path):
    """Leaf values from 0.3 fit some table of 30% positives by chance; it is not the true one."""
    made = trained.bagging(tmp_path / "m.json", rounds=2, clients=5, base_score=0.3)
    path = trained.edited(made.path, tmp_path / "bare.json", trained.strip)
    for known in (None, Known(learning_rate=0.3, reg_lambda=1.0)):
        found = audit(read_model(path), known)
        assert found.summary.counted == 0
        assert found.rows.n is None


def test_leaf_values_from_one_half_leave_counts_open(tmp_path):
    made = trained.central(tmp_path / "m.json", base_score=0.5)
    path = trained.edited(made.path, tmp_path / "bare.json", trained.strip)
    found = audit(read_model(path), Known(rows=569, learning_rate=0.3, reg_lambda=1.0))
    first, (n, n_pos) = found.trees[0], made.true_counts(0, found.trees[0].leaf)
    certain = first.n != UNKNOWN
    assert certain.sum() < len(certain)
    assert np.array_equal(first.n[certain], n[certain])
    assert np.array_equal(first.n_pos[first.exact], n_pos[first.exact])


def test_rows_of_later_trees_lie_within_their_bounds(tmp_path):
    made = trained.central(tmp_path / "m.json", max_depth=5, min_child_weight=0)
    found = audit(read_model(made.path))
    bounded, met = 0, 0
    for t in found.trees:
        n, _ = made.true_counts(t.index, t.leaf)
        assert (t.at_least <= n).all()
        limited = t.at_most != UNKNOWN
        assert (n[limited] <= t.at_most[limited]).all()
        bounded += int(limited.sum())
        certain = t.n != UNKNOWN
        assert np.array_equal(t.n[certain], n[certain])
        met += int(certain.sum()) if t.index else 0
    assert bounded > 50
    assert met > 0


def test_rows_of_class_1_that_counted_three_times_are_counted_once(tmp_path):
    made = trained.central(tmp_path / "m.json", scale_pos_weight=3)
    assert agrees(made, audit(read_model(made.path)).trees[0])


def test_without_eta_rows_are_known_and_labels_are_not(tmp_path):
    made = trained.central(tmp_path / "m.json", reg_alpha=0.3)
    first = audit(read_model(made.path)).trees[0]
    assert np.array_equal(first.n, made.true_counts(0, first.leaf)[0])
    assert (first.n_pos == UNKNOWN).all()


def test_without_eta_rows_of_class_1_that_counted_three_times_are_not_counted(tmp_path):
    """Their sums of hessians are whole, too: those of N0 + 3 N1 rows."""
    made = trained.central(tmp_path / "m.json", reg_alpha=0.3, scale_pos_weight=3, max_depth=1)
    assert audit(read_model(made.path)).summary.counted == 0


def test_weighted_rows_are_not_counted(tmp_path):
    X, y = trained.table()
    weight = np.random.default_rng(0).uniform(0.5, 2, len(y))
    data = xgb.DMatrix(X, y, weight=weight)
    xgb.train(trained.PARAMS, data, 5).save_model(tmp_path / "m.json")
    found = audit(read_model(tmp_path / "m.json"))
    assert found.summary.counted == 0
    assert all((t.at_least == UNKNOWN).all() for t in found.trees)  # they would not hold


def test_the_first_round_of_a_multiclass_model_is_counted_class_by_class(tmp_path):
    X, y = load_wine(return_X_y=True)
    params = {"objective": "multi:softprob", "num_class": 3}
    made = trained.central(tmp_path / "m.json", 4, X.astype(np.float32), y, **params)
    made = trained.Trained(made.path, made.X, made.y, made.parts, [0] * 12)
    found = audit(read_model(made.path))
    assert all(agrees(made, found.trees[k], k) for k in range(3))
    assert not any(t.exact.any() for t in found.trees[3:])
    assert found.rows.n == 178


def test_squared_error_tells_the_rows_of_every_leaf_of_every_tree(tmp_path):
    X, y = trained.table()
    target = X[:, 0] + y
    made = trained.central(tmp_path / "m.json", 10, X, target, objective="reg:squarederror")
    for t in audit(read_model(made.path)).trees:
        assert np.array_equal(t.n, made.true_counts(t.index, t.leaf)[0])


def test_rows_of_a_regression_s_first_client_are_not_taken_for_the_table(tmp_path):
    made = trained.bagging(tmp_path / "m.json", rounds=3, objective="reg:squarederror")
    found = audit(read_model(made.path))
    assert found.rows.n == len(made.parts[made.grown_by[0]])
    assert not found.rows.complete
    central = trained.central(tmp_path / "c.json", 3, objective="reg:squarederror")
    assert audit(read_model(central.path)).rows.complete


@pytest.mark.parametrize("params", [{}, {"lambda_l2": 2.0}, {"boost_from_average": False}])
def test_lightgbm_counts_rows_in_every_tree_and_labels_in_the_first(tmp_path, params):
    X, y = trained.table()
    common = {"objective": "binary", "num_leaves": 12, "num_threads": 1, "verbose": -1}
    booster = lgb.train(common | params, lgb.Dataset(X, y), 10)
    booster.save_model(tmp_path / "m.txt")
    model = read_model(tmp_path / "m.txt")
    found = audit(model)
    nodes = model.forest.apply(X)
    for t in found.trees:
        assert np.array_equal(t.n, [(nodes[:, t.index] == leaf).sum() for leaf in t.leaf])
    first = found.trees[0]
    assert np.array_equal(first.n_pos, [y[nodes[:, 0] == leaf].sum() for leaf in first.leaf])
    assert not any(t.exact.any() for t in found.trees[1:])


@settings(max_examples=60, deadline=None)
@given(
    st.lists(st.tuples(st.integers(1, 400), st.floats(0, 1)), min_size=4, max_size=12),
    st.floats(0.02, 0.98),
    st.data(),
)
def test_sums_of_one_base_score_are_counted_and_others_are_not(leaves, p, data):
    n = np.array([size for size, _ in leaves])
    n1 = np.array([round(size * share) for size, share in leaves])
    h, g = n * p * (1 - p), n * p - n1
    exact = LeafStatistics(g, h, 1e-7 * np.abs(g), 1e-7 * h)
    fit = counts_at(exact, p)
    assert np.array_equal(fit.n, n)
    assert np.array_equal(fit.n1, n1)
    found = find_first_tree(exact)
    if found is not None:  # None where several base scores explain the sums
        assert np.array_equal(found.n, n)
        assert np.array_equal(found.n1, n1)
    j = data.draw(st.integers(0, len(n) - 1))
    h[j] *= 1 + 0.3 / n[j]
    assert counts_at(LeafStatistics(g, h, 1e-7 * np.abs(g), 1e-7 * h), p) is None


@pytest.mark.parametrize("bootstrap", ["true", "false"])
def test_a_random_forest_that_keeps_its_counts_tells_them(tmp_path, bootstrap):
    """Of rows that may be drawn twice it tells no more than bounds, which seldom meet."""
    from fedtrees.cli.main import main

    out, made = tmp_path / "f.npz", f"forest-hist[trees=3,max_depth=3,bootstrap={bootstrap}]"
    with pytest.raises(SystemExit):
        main(["model", "train", "-p", made, "--output", str(out)])
    found = audit(read_model(out))
    once = bootstrap == "false"
    assert all(t.exact.all() == once for t in found.trees)
    assert (found.summary.counted == found.summary.leaves) == once
    assert all((t.at_least <= t.at_most).all() for t in found.trees)

"""Counts of rows and labels in the report are those of the training table, or are not given."""

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


def counts_are_exact(model_file, exposure, k=1):
    """Return whether the counts of a tree equal the true counts of rows and of class `k`."""
    n, n_pos = model_file.true_counts(exposure.index, exposure.leaf, k)
    return np.array_equal(exposure.n, n) and np.array_equal(exposure.n_pos, n_pos)


@pytest.mark.parametrize("depth", [1, 3, 8])
@pytest.mark.parametrize("masked", [False, True], ids=["whole", "masked"])
def test_first_tree_counts_of_a_central_model_are_exact(tmp_path, depth, masked):
    model_file = trained.central(tmp_path / "m.json", max_depth=depth)
    declared, path = None, model_file.path
    if masked:
        path = trained.edit_trees(path, tmp_path / "masked.json", trained.mask)
        # Stumps do not determine these settings.
        declared = Known(learning_rate=0.3, reg_lambda=1.0)
    report = audit(read_model(path), declared)
    assert report.rows.n == len(model_file.y)
    # Nor do stumps determine a shift of labels by an L1 penalty.
    if masked and depth == 1:
        assert np.array_equal(report.trees[0].n, model_file.true_counts(0, report.trees[0].leaf)[0])
        assert not report.summary.exact
        return
    assert counts_are_exact(model_file, report.trees[0])
    assert report.rows.n_pos == model_file.y.sum()
    assert report.restored == masked
    assert not any(t.exact.any() for t in report.trees[1:])


@pytest.mark.long
@pytest.mark.parametrize("params", [{}, {"base_score": 0.5}, {"max_depth": 2, "eta": 0.1}])
def test_every_client_of_a_bagging_model_is_counted_with_its_base_score(tmp_path, params):
    model_file = trained.bagging(tmp_path / "m.json", **params)
    report = audit(read_model(model_file.path))
    for t in range(3):
        y = model_file.y[model_file.parts[model_file.grown_by[t]]]
        assert counts_are_exact(model_file, report.trees[t])
        assert report.trees[t].base_score == pytest.approx(
            params.get("base_score", y.mean()), abs=1e-6
        )
    assert report.rows.n == len(model_file.y)
    assert not any(t.exact.any() for t in report.trees[3:])


@pytest.mark.long
def test_masking_a_bagging_model_hides_no_client(tmp_path):
    model_file = trained.bagging(tmp_path / "m.json")
    path = trained.edit_trees(model_file.path, tmp_path / "masked.json", trained.mask)
    report = audit(read_model(path))
    assert report.restored
    assert all(counts_are_exact(model_file, report.trees[t]) for t in range(3))


def test_a_cyclic_model_reveals_the_counts_of_its_first_client(tmp_path):
    model_file = trained.cyclic(tmp_path / "m.json")
    report = audit(read_model(model_file.path))
    assert counts_are_exact(model_file, report.trees[0])
    assert report.rows.n == len(model_file.parts[0])
    assert not any(t.exact.any() for t in report.trees[1:])


@pytest.mark.parametrize(
    "declared", [Known(reg_lambda=1.0), Known(rows=569)], ids=["lambda", "rows"]
)
def test_leaf_values_reveal_the_first_tree_if_lambda_or_the_rows_are_known(tmp_path, declared):
    """Without statistics, eight leaf values determine the other settings."""
    model_file = trained.central(tmp_path / "m.json")
    path = trained.edit_trees(model_file.path, tmp_path / "bare.json", trained.strip)
    report = audit(read_model(path), declared)
    assert counts_are_exact(model_file, report.trees[0])
    assert report.rows.n == 569
    assert (report.settings.learning_rate, report.settings.reg_lambda) == (0.3, 1.0)


def test_leaf_values_without_settings_count_nothing_and_the_verdict_names_missing_settings(
    tmp_path,
):
    """Scaling all counts and lambda by one factor leaves the leaf values unchanged."""
    model_file = trained.central(tmp_path / "m.json")
    model = without_statistics(read_model(model_file.path))
    report = audit(model)
    assert report.summary.counted == 0
    assert (report.rows.n, report.settings, report.assumes) == (None, None, ())
    match = re.search(
        r"a table of (\d+) rows .* --reg-lambda (\d+), the audit counts", verdict(report)[0]
    )
    assert match.groups() == ("569", "1")
    assert audit(model, Known(reg_lambda=0.0)).summary.counted == 0


def test_declared_rows_that_contradict_the_base_score_count_nothing(tmp_path):
    model = without_statistics(read_model(trained.central(tmp_path / "m.json").path))
    for rows in (500, 600):
        report = audit(model, Known(rows=rows, learning_rate=0.3, reg_lambda=1.0))
        assert report.summary.counted == 0
        assert f"a multiple of 569 rows, and {rows} were declared" in verdict(report)[0]


def test_counts_from_leaf_values_state_their_assumptions(tmp_path):
    model = without_statistics(read_model(trained.central(tmp_path / "m.json").path))
    report = audit(model, Known(rows=569, learning_rate=0.3, reg_lambda=1.0))
    exported = to_json(report)
    assert exported["assumes"] == list(report.assumes)
    for condition in ("all of the 569 rows that were declared", "no L1 penalty", "eta was 0.3"):
        assert any(condition in line for line in exported["assumes"])
        assert condition in exported["verdict"][1]
        assert condition in render(report, None)
    assert exported["verdict"][0].startswith("Under the conditions below")
    assert "for certain" not in " ".join(exported["verdict"])
    assert "no L1 penalty and no sampling" in exported["trees"][0]["how"]
    # These counts do not depend on eta and lambda.
    assert audit(read_model(tmp_path / "m.json")).assumes == (ONCE,)


def test_values_that_two_learning_rates_explain_count_nothing(tmp_path):
    """A learning rate of 1 explains these leaf values, too, so counts require the true learning
    rate.
    """
    n, n_pos = np.array([186, 108]), np.array([178, 4])
    X = np.repeat([0.0, 1.0], n).reshape(-1, 1)
    y = np.concatenate(
        [np.arange(rows) < positives for rows, positives in zip(n, n_pos, strict=True)]
    )
    trained.central(tmp_path / "m.json", 1, X, y.astype(int), reg_lambda=2.0)
    model = without_statistics(read_model(tmp_path / "m.json"))
    assert audit(model, Known(reg_lambda=2.0)).summary.counted == 0
    tree = audit(model, Known(reg_lambda=2.0, learning_rate=0.3)).trees[0]
    assert np.array_equal(tree.n, n)
    assert np.array_equal(tree.n_pos, n_pos)


@pytest.mark.parametrize("seed", range(3))
def test_leaf_values_reveal_the_first_tree_of_every_client(tmp_path, seed):
    model_file = trained.bagging(tmp_path / "m.json", rounds=3, seed=seed)
    bare = trained.edit_trees(model_file.path, tmp_path / "bare.json", trained.strip)
    report = audit(read_model(bare), Known(reg_lambda=1.0))
    assert all(counts_are_exact(model_file, report.trees[t]) for t in range(3))
    assert not any(t.exact.any() for t in report.trees[3:])
    assert (report.sources.kind, report.sources.clients) == ("bagging", 3)
    assert (report.rows.n, report.rows.n_pos, report.rows.complete) == (569, 357, False)


def test_a_chosen_base_score_is_not_taken_for_the_label_mean(tmp_path):
    """Leaf values from base score 0.3 happen to fit some table with 30% positives, which is not
    the true table.
    """
    model_file = trained.bagging(tmp_path / "m.json", rounds=2, clients=5, base_score=0.3)
    path = trained.edit_trees(model_file.path, tmp_path / "bare.json", trained.strip)
    for declared in (None, Known(learning_rate=0.3, reg_lambda=1.0)):
        report = audit(read_model(path), declared)
        assert report.summary.counted == 0
        assert report.rows.n is None


def test_leaf_values_with_base_score_one_half_determine_some_counts(tmp_path):
    model_file = trained.central(tmp_path / "m.json", base_score=0.5)
    path = trained.edit_trees(model_file.path, tmp_path / "bare.json", trained.strip)
    report = audit(read_model(path), Known(rows=569, learning_rate=0.3, reg_lambda=1.0))
    first, (n, n_pos) = report.trees[0], model_file.true_counts(0, report.trees[0].leaf)
    certain = first.n != UNKNOWN
    assert certain.sum() < len(certain)
    assert np.array_equal(first.n[certain], n[certain])
    assert np.array_equal(first.n_pos[first.exact], n_pos[first.exact])


def test_rows_of_later_trees_lie_within_their_bounds(tmp_path):
    model_file = trained.central(tmp_path / "m.json", max_depth=5, min_child_weight=0)
    report = audit(read_model(model_file.path))
    n_bounded, n_certain = 0, 0
    for tree in report.trees:
        n, _ = model_file.true_counts(tree.index, tree.leaf)
        assert (tree.at_least <= n).all()
        limited = tree.at_most != UNKNOWN
        assert (n[limited] <= tree.at_most[limited]).all()
        n_bounded += int(limited.sum())
        certain = tree.n != UNKNOWN
        assert np.array_equal(tree.n[certain], n[certain])
        n_certain += int(certain.sum()) if tree.index else 0
    assert n_bounded > 50
    assert n_certain > 0


def test_rows_with_scale_pos_weight_3_are_counted_once(tmp_path):
    model_file = trained.central(tmp_path / "m.json", scale_pos_weight=3)
    assert counts_are_exact(model_file, audit(read_model(model_file.path)).trees[0])


def test_without_eta_rows_are_known_and_labels_are_not(tmp_path):
    model_file = trained.central(tmp_path / "m.json", reg_alpha=0.3)
    first = audit(read_model(model_file.path)).trees[0]
    assert np.array_equal(first.n, model_file.true_counts(0, first.leaf)[0])
    assert (first.n_pos == UNKNOWN).all()


def test_without_eta_rows_with_scale_pos_weight_3_are_not_counted(tmp_path):
    """Their sums of hessians are integers, too: those of N0 + 3 N1 rows."""
    model_file = trained.central(
        tmp_path / "m.json", reg_alpha=0.3, scale_pos_weight=3, max_depth=1
    )
    assert audit(read_model(model_file.path)).summary.counted == 0


def test_weighted_rows_are_not_counted(tmp_path):
    X, y = trained.table()
    weight = np.random.default_rng(0).uniform(0.5, 2, len(y))
    data = xgb.DMatrix(X, y, weight=weight)
    xgb.train(trained.PARAMS, data, 5).save_model(tmp_path / "m.json")
    report = audit(read_model(tmp_path / "m.json"))
    assert report.summary.counted == 0
    # Bounds would be wrong.
    assert all((tree.at_least == UNKNOWN).all() for tree in report.trees)


def test_the_first_round_of_a_multiclass_model_is_counted_class_by_class(tmp_path):
    X, y = load_wine(return_X_y=True)
    params = {"objective": "multi:softprob", "num_class": 3}
    model_file = trained.central(tmp_path / "m.json", 4, X.astype(np.float32), y, **params)
    model_file = trained.Trained(
        model_file.path, model_file.X, model_file.y, model_file.parts, [0] * 12
    )
    report = audit(read_model(model_file.path))
    assert all(counts_are_exact(model_file, report.trees[k], k) for k in range(3))
    assert not any(t.exact.any() for t in report.trees[3:])
    assert report.rows.n == 178


def test_squared_error_reveals_the_rows_of_every_leaf_of_every_tree(tmp_path):
    X, y = trained.table()
    target = X[:, 0] + y
    model_file = trained.central(tmp_path / "m.json", 10, X, target, objective="reg:squarederror")
    for tree in audit(read_model(model_file.path)).trees:
        assert np.array_equal(tree.n, model_file.true_counts(tree.index, tree.leaf)[0])


def test_rows_of_a_regression_s_first_client_are_not_taken_for_the_table(tmp_path):
    model_file = trained.bagging(tmp_path / "m.json", rounds=3, objective="reg:squarederror")
    report = audit(read_model(model_file.path))
    assert report.rows.n == len(model_file.parts[model_file.grown_by[0]])
    assert not report.rows.complete
    central = trained.central(tmp_path / "c.json", 3, objective="reg:squarederror")
    assert audit(read_model(central.path)).rows.complete


@pytest.mark.parametrize("params", [{}, {"lambda_l2": 2.0}, {"boost_from_average": False}])
def test_lightgbm_counts_rows_in_every_tree_and_labels_in_the_first(tmp_path, params):
    X, y = trained.table()
    common = {"objective": "binary", "num_leaves": 12, "num_threads": 1, "verbose": -1}
    booster = lgb.train(common | params, lgb.Dataset(X, y), 10)
    booster.save_model(tmp_path / "m.txt")
    model = read_model(tmp_path / "m.txt")
    report = audit(model)
    nodes = model.forest.apply(X)
    for tree in report.trees:
        assert np.array_equal(tree.n, [(nodes[:, tree.index] == leaf).sum() for leaf in tree.leaf])
    first = report.trees[0]
    assert np.array_equal(first.n_pos, [y[nodes[:, 0] == leaf].sum() for leaf in first.leaf])
    assert not any(tree.exact.any() for tree in report.trees[1:])


@settings(max_examples=60, deadline=None)
@given(
    st.lists(st.tuples(st.integers(1, 400), st.floats(0, 1)), min_size=4, max_size=12),
    st.floats(0.02, 0.98),
    st.data(),
)
def test_sums_of_one_base_score_are_counted_and_changed_sums_are_not(leaves, p, data):
    n = np.array([size for size, _ in leaves])
    n_pos = np.array([round(size * share) for size, share in leaves])
    h, g = n * p * (1 - p), n * p - n_pos
    exact = LeafStatistics(g, h, 1e-7 * np.abs(g), 1e-7 * h)
    fit = counts_at(exact, p)
    assert np.array_equal(fit.n, n)
    assert np.array_equal(fit.n1, n_pos)
    first_tree = find_first_tree(exact)
    if first_tree is not None:  # None if several base scores explain the sums.
        assert np.array_equal(first_tree.n, n)
        assert np.array_equal(first_tree.n1, n_pos)
    j = data.draw(st.integers(0, len(n) - 1))
    h[j] *= 1 + 0.3 / n[j]
    assert counts_at(LeafStatistics(g, h, 1e-7 * np.abs(g), 1e-7 * h), p) is None


@pytest.mark.parametrize("bootstrap", ["true", "false"])
def test_counts_of_a_random_forest_are_exact_without_bootstrap(tmp_path, bootstrap):
    """For bootstrap samples there are only bounds, which are rarely equal."""
    from fedtrees.cli.main import main

    path, spec = tmp_path / "f.npz", f"forest-hist[trees=3,max_depth=3,bootstrap={bootstrap}]"
    with pytest.raises(SystemExit):
        main(["model", "train", "-p", spec, "--output", str(path)])
    report = audit(read_model(path))
    is_exact = bootstrap == "false"
    assert all(tree.exact.all() == is_exact for tree in report.trees)
    assert (report.summary.counted == report.summary.leaves) == is_exact
    assert all((tree.at_least <= tree.at_most).all() for tree in report.trees)

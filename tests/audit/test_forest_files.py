"""Files of forests: their audit, attacks on them, and forests of scikit-learn."""

from pathlib import Path

import numpy as np
import pytest
from sklearn.datasets import load_wine
from sklearn.ensemble import (
    AdaBoostClassifier,
    BaggingClassifier,
    ExtraTreesClassifier,
    RandomForestClassifier,
)

from fedtrees.attacks.forests.structure import Variables
from fedtrees.core.errors import DataError
from fedtrees.core.schema import Feature, OneHot, Schema, Table
from fedtrees.data.dataset import Dataset
from fedtrees.model_audit import audit, read_model
from fedtrees.model_audit.attack import attack, trees_of_a_client, with_groups
from fedtrees.model_audit.verdict import verdict
from fedtrees.trees.files.forests import (
    from_sklearn,
    save_random_decision_forest,
    save_random_forest,
)
from fedtrees.trees.forest.random_decision import RandomDecisionForest, draw_splits
from fedtrees.trees.forest.random_forest import RandomForest


@pytest.mark.parametrize("kind", [RandomForestClassifier, ExtraTreesClassifier])
def test_a_forest_of_scikit_learn_predicts_the_same_and_counts_its_rows(kind):
    X, y = load_wine(return_X_y=True)
    X = X.astype(np.float32)
    sklearn_forest = kind(n_estimators=5, random_state=0).fit(X, y)
    converted = from_sklearn(sklearn_forest)
    np.testing.assert_allclose(
        converted.predict(X), sklearn_forest.predict_proba(X), rtol=0, atol=1e-12
    )
    for converted_tree, sklearn_tree in zip(
        converted.trees, sklearn_forest.estimators_, strict=True
    ):
        assert converted_tree.counts[0].sum() == len(X)
        assert (
            converted_tree.counts[converted_tree.left[converted_tree.left >= 0]]
            + converted_tree.counts[converted_tree.right[converted_tree.right >= 0]]
            == converted_tree.counts[converted_tree.left >= 0]
        ).all()
        assert len(converted_tree.leaves) == sklearn_tree.get_n_leaves()


def test_an_unfitted_classifier_is_refused():
    with pytest.raises(DataError, match="no fitted classifier of trees"):
        from_sklearn(RandomForestClassifier())


@pytest.mark.long
def test_a_forest_file_is_attacked_by_forest_boxes(tmp_path: Path):
    X, y = load_wine(return_X_y=True)
    X, y = X[:, :4].astype(np.float32), (y > 0).astype(np.int64)
    forest = from_sklearn(RandomForestClassifier(30, bootstrap=False, random_state=0).fit(X, y))
    save_random_forest(forest, tmp_path / "m.npz")
    schema = Schema(tuple(Feature(f"c{k}") for k in range(4)), "y")
    result = attack(audit(read_model(tmp_path / "m.npz")), None, Dataset("t", schema, Table(X, y)))
    assert (result.name, result.reason) == ("forest-boxes", None)
    ra = next(score for score in result.scores if score.metric == "ra")
    assert ra.advantage > 0.1


@pytest.mark.long
@pytest.mark.parametrize(("epsilon", "expected_counts"), [(np.inf, 12), (60.0, 0)])
def test_a_private_forest_is_read_with_its_claim(tmp_path: Path, epsilon, expected_counts):
    rng = np.random.default_rng(0)
    X, y = rng.integers(0, 2, (60, 5)).astype(np.float32), rng.integers(0, 2, 60)
    features = tuple(Feature(f"c{k}", "categorical", categories=("0", "1")) for k in range(5))
    splits = draw_splits(Schema(features, "y"), 2, lambda t: np.random.default_rng(t), 3)
    forest = RandomDecisionForest(splits, splits.count(X, y, 2), 60)
    save_random_decision_forest(forest, tmp_path / "m.npz", "published", epsilon)
    report = audit(read_model(tmp_path / "m.npz"))
    assert report.summary.counted == expected_counts
    sentence = verdict(report)[1]
    assert (
        ("true epsilon is 62.1" in sentence)
        if expected_counts == 0
        else ("without noise" in sentence)
    )
    assert (report.model.forest.predict(X) == forest.predict(X)).all()
    schema = Schema(tuple(Feature(f"c{k}") for k in range(5)), "y")
    result = attack(report, None, Dataset("t", schema, Table(X, y)))
    assert (result.name, result.reason) == ("draft-dp", None)


@pytest.mark.parametrize(("sizes", "trees"), [((40, 40, 40), 20), ((60, 30, 30), 20), ((120,), 60)])
@pytest.mark.parametrize("bootstrap", [True, False])
def test_thresholds_distinguish_clients_of_one_size(sizes, trees, bootstrap):
    X, y = load_wine(return_X_y=True)
    rng = np.random.default_rng(1)
    order = rng.permutation(len(X))
    X, y, all_trees = X[order].astype(np.float32), (y[order] > 0).astype(np.int64), []
    for rows in np.split(np.arange(sum(sizes)), np.cumsum(sizes)[:-1]):
        fitted = RandomForestClassifier(trees, bootstrap=bootstrap, random_state=0)
        all_trees += from_sklearn(fitted.fit(X[rows], y[rows])).trees
    assert trees_of_a_client(RandomForest(tuple(all_trees)), rng) == trees
    shuffled = rng.permutation(len(all_trees))
    trees_per_client = trees_of_a_client(RandomForest(tuple(all_trees[t] for t in shuffled)), rng)
    assert trees_per_client == len(all_trees)


@pytest.mark.long
def test_a_private_forest_leaks_in_every_kind_of_column(tmp_path: Path):
    rng = np.random.default_rng(0)
    category, number = rng.integers(0, 4, 150), rng.integers(1, 60, 150)
    X = np.column_stack([np.eye(4)[category], category > 1, number]).astype(np.float32)
    y = (rng.random(150) < 0.2 + 0.6 * (category > 1)).astype(np.int64)
    names = ("kind_a", "kind_b", "kind_c", "kind_d", "late", "size")
    ranges = [{}] * 5 + [{"low": 0.0, "high": 60.0}]
    features = tuple(
        Feature(
            name,
            categories=() if range_of else ("0", "1"),
            kind="continuous" if range_of else "categorical",
            **range_of,
        )
        for name, range_of in zip(names, ranges, strict=True)
    )
    splits = draw_splits(
        Schema(features, "y", groups=(OneHot(names[:4]),)),
        4,
        lambda t: np.random.default_rng(t),
        10,
        bins=6,
    )
    forest = RandomDecisionForest(splits, splits.count(X, y, 2), 150)
    save_random_decision_forest(forest, tmp_path / "m.npz", "geometric", np.inf)
    schema = Schema(tuple(map(Feature, names)), "y")
    result = attack(audit(read_model(tmp_path / "m.npz")), None, Dataset("t", schema, Table(X, y)))
    assert next(score for score in result.scores if score.metric == "ra").advantage > 0.3
    local_table = Table(X, y)
    assert with_groups(schema, local_table).groups == (OneHot(names[:4]),)
    assert not with_groups(schema, local_table.take(slice(5))).groups
    variables = Variables.of_schema(schema, [np.zeros(0)] * 5 + [np.array([10.0, 40.0])], X[:90])
    parts = np.split(np.sort(number[:90]), np.searchsorted(np.sort(number[:90]), [10, 40]))
    assert variables.levels[5][:, 0].tolist() == [part[(len(part) - 1) // 2] for part in parts]


@pytest.mark.parametrize("ensemble", [AdaBoostClassifier(), BaggingClassifier(max_features=3)])
def test_ensembles_with_weighted_trees_or_column_subsets_are_refused(ensemble):
    X, y = load_wine(return_X_y=True)
    with pytest.raises(DataError, match="whose trees have weights or different columns"):
        from_sklearn(ensemble.fit(X, y))


@pytest.mark.parametrize("name", ["counts", "probability"])
def test_inconsistent_numbers_of_a_forest_are_refused(name, tmp_path):
    X, y = load_wine(return_X_y=True)
    forest = from_sklearn(RandomForestClassifier(3, random_state=0).fit(X, y))
    arrays = forest.to_arrays()
    arrays[name][-1] += 1
    np.savez(tmp_path / "odd.npz", **arrays)
    with pytest.raises(DataError, match="no complete random forest \\(class"):
        read_model(tmp_path / "odd.npz")

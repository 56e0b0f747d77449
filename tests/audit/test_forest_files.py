"""Files of forests: what they say, how they are attacked, and forests of scikit-learn."""

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
from fedtrees.trees.files.forests import save_random_decision_forest, save_random_forest
from fedtrees.trees.files.sklearn_forest import from_sklearn
from fedtrees.trees.forest.random_decision import RandomDecisionForest, draw_splits
from fedtrees.trees.forest.random_forest import RandomForest


@pytest.mark.parametrize("kind", [RandomForestClassifier, ExtraTreesClassifier])
def test_a_forest_of_scikit_learn_predicts_the_same_and_counts_its_rows(kind):
    X, y = load_wine(return_X_y=True)
    X = X.astype(np.float32)
    theirs = kind(n_estimators=5, random_state=0).fit(X, y)
    ours = from_sklearn(theirs)
    np.testing.assert_allclose(ours.predict(X), theirs.predict_proba(X), rtol=0, atol=1e-12)
    for a, b in zip(ours.trees, theirs.estimators_, strict=True):
        assert a.counts[0].sum() == len(X)
        assert (a.counts[a.left[a.left >= 0]] + a.counts[a.right[a.right >= 0]]
                == a.counts[a.left >= 0]).all()  # fmt: skip
        assert len(a.leaves) == b.get_n_leaves()


def test_what_is_no_fitted_classifier_of_trees_is_refused():
    with pytest.raises(DataError, match="no fitted classifier of trees"):
        from_sklearn(RandomForestClassifier())


@pytest.mark.long
def test_a_forest_file_is_attacked_by_forest_boxes(tmp_path: Path):
    X, y = load_wine(return_X_y=True)
    X, y = X[:, :4].astype(np.float32), (y > 0).astype(np.int64)
    forest = from_sklearn(RandomForestClassifier(30, bootstrap=False, random_state=0).fit(X, y))
    save_random_forest(forest, tmp_path / "m.npz")
    schema = Schema(tuple(Feature(f"c{k}") for k in range(4)), "y")
    found = attack(audit(read_model(tmp_path / "m.npz")), None, Dataset("t", schema, Table(X, y)))
    assert (found.name, found.reason) == ("forest-boxes", None)
    ra = next(s for s in found.scores if s.metric == "ra")
    assert ra.advantage > 0.1


@pytest.mark.long
@pytest.mark.parametrize(("epsilon", "counted"), [(np.inf, 12), (60.0, 0)])
def test_a_private_forest_is_read_with_its_claim(tmp_path: Path, epsilon, counted):
    rng = np.random.default_rng(0)
    X, y = rng.integers(0, 2, (60, 5)).astype(np.float32), rng.integers(0, 2, 60)
    given = tuple(Feature(f"c{k}", "categorical", categories=("0", "1")) for k in range(5))
    splits = draw_splits(Schema(given, "y"), 2, lambda t: np.random.default_rng(t), 3)
    forest = RandomDecisionForest(splits, splits.count(X, y, 2), 60)
    save_random_decision_forest(forest, tmp_path / "m.npz", "published", epsilon)
    found = audit(read_model(tmp_path / "m.npz"))
    assert found.summary.counted == counted
    said = verdict(found)[1]
    assert ("true epsilon is 62.1" in said) if counted == 0 else ("without noise" in said)
    assert (found.model.forest.predict(X) == forest.predict(X)).all()
    schema = Schema(tuple(Feature(f"c{k}") for k in range(5)), "y")
    result = attack(found, None, Dataset("t", schema, Table(X, y)))
    assert (result.name, result.reason) == ("draft-dp", None)


@pytest.mark.parametrize(("sizes", "trees"), [((40, 40, 40), 20), ((60, 30, 30), 20), ((120,), 60)])
@pytest.mark.parametrize("bootstrap", [True, False])
def test_clients_of_one_size_are_told_apart_by_their_thresholds(sizes, trees, bootstrap):
    X, y = load_wine(return_X_y=True)
    rng = np.random.default_rng(1)
    order = rng.permutation(len(X))
    X, y, grown = X[order].astype(np.float32), (y[order] > 0).astype(np.int64), []
    for rows in np.split(np.arange(sum(sizes)), np.cumsum(sizes)[:-1]):
        fitted = RandomForestClassifier(trees, bootstrap=bootstrap, random_state=0)
        grown += from_sklearn(fitted.fit(X[rows], y[rows])).trees
    assert trees_of_a_client(RandomForest(tuple(grown)), rng) == trees
    shuffled = rng.permutation(len(grown))
    apart = trees_of_a_client(RandomForest(tuple(grown[t] for t in shuffled)), rng)
    assert apart == len(grown)


@pytest.mark.long
def test_a_private_forest_tells_more_than_own_rows_in_every_kind_of_column(tmp_path: Path):
    rng = np.random.default_rng(0)
    hot, number = rng.integers(0, 4, 150), rng.integers(1, 60, 150)
    X = np.column_stack([np.eye(4)[hot], hot > 1, number]).astype(np.float32)
    y = (rng.random(150) < 0.2 + 0.6 * (hot > 1)).astype(np.int64)
    names = ("kind_a", "kind_b", "kind_c", "kind_d", "late", "size")
    ends = [{}] * 5 + [{"low": 0.0, "high": 60.0}]
    told = tuple(
        Feature(
            n, categories=() if e else ("0", "1"), kind="continuous" if e else "categorical", **e
        )
        for n, e in zip(names, ends, strict=True)
    )
    splits = draw_splits(
        Schema(told, "y", groups=(OneHot(names[:4]),)),
        4,
        lambda t: np.random.default_rng(t),
        10,
        bins=6,
    )
    forest = RandomDecisionForest(splits, splits.count(X, y, 2), 150)
    save_random_decision_forest(forest, tmp_path / "m.npz", "geometric", np.inf)
    schema = Schema(tuple(map(Feature, names)), "y")
    found = attack(audit(read_model(tmp_path / "m.npz")), None, Dataset("t", schema, Table(X, y)))
    assert next(s for s in found.scores if s.metric == "ra").advantage > 0.3
    held = Table(X, y)
    assert with_groups(schema, held).groups == (OneHot(names[:4]),)
    assert not with_groups(schema, held.take(slice(5))).groups
    near = Variables.of_schema(schema, [np.zeros(0)] * 5 + [np.array([10.0, 40.0])], X[:90])
    parts = np.split(np.sort(number[:90]), np.searchsorted(np.sort(number[:90]), [10, 40]))
    assert near.levels[5][:, 0].tolist() == [p[(len(p) - 1) // 2] for p in parts]


@pytest.mark.parametrize("odd", [AdaBoostClassifier(), BaggingClassifier(max_features=3)])
def test_trees_that_predict_otherwise_in_their_ensemble_are_not_taken(odd):
    X, y = load_wine(return_X_y=True)
    with pytest.raises(DataError, match="whose trees have weights or different columns"):
        from_sklearn(odd.fit(X, y))


@pytest.mark.parametrize("name", ["counts", "probability"])
def test_numbers_that_no_forest_has_are_refused(name, tmp_path):
    X, y = load_wine(return_X_y=True)
    forest = from_sklearn(RandomForestClassifier(3, random_state=0).fit(X, y))
    arrays = forest.to_arrays()
    arrays[name][-1] += 1
    np.savez(tmp_path / "odd.npz", **arrays)
    with pytest.raises(DataError, match="no complete random forest \\(class"):
        read_model(tmp_path / "odd.npz")

"""With XGBoost's cut points, estimators predict what XGBoost predicts; files are exchangeable."""

import numpy as np
import pytest
import xgboost
from packaging.version import Version
from sklearn.datasets import load_breast_cancer, load_diabetes, load_iris

import fedtrees
from fedtrees import FederatedGBDTClassifier, FederatedGBDTRegressor
from fedtrees.messages.horizontal import CutsRequest
from fedtrees.trees.binning import Cuts

BINARY = (FederatedGBDTClassifier, load_breast_cancer, {"objective": "binary:logistic"})
CLASSES = (FederatedGBDTClassifier, load_iris, {"objective": "multi:softprob", "num_class": 3})
NUMBER = (FederatedGBDTRegressor, load_diabetes, {"objective": "reg:squarederror"})
ROUNDS = 8
#: XGBoost 3.0 starts all classes at 0.5, later versions at one value per class.
EQUAL_STARTS = Version(xgboost.__version__) < Version("3.1")


def predictions(model, X):
    if isinstance(model, FederatedGBDTRegressor):
        return model.predict(X)
    probability = model.predict_proba(X)
    return probability[:, 1] if probability.shape[1] == 2 else probability


def table(loader, holes=True):
    X, y = loader(return_X_y=True)
    X = X.astype(np.float32)
    if holes:
        X[np.random.default_rng(0).random(X.shape) < 0.05] = np.nan
    return X, y


def trained(X, y, settings, weight=None):
    matrix = xgboost.QuantileDMatrix(X, label=y, weight=weight, max_bin=32, nthread=1)
    settings = {"tree_method": "hist", "max_bin": 32, "nthread": 1, "max_depth": 4, **settings}
    return xgboost.train(settings, matrix, ROUNDS), matrix.get_quantile_cut()


@pytest.mark.parametrize("protocol", ["fedtree-hist", "nvflare-hist"])
@pytest.mark.parametrize("clients", [1, 4])
@pytest.mark.parametrize(("kind", "loader", "settings"), [BINARY, CLASSES, NUMBER])
def test_predictions_are_those_of_xgboost(kind, loader, settings, clients, protocol):
    X, y = table(loader)
    booster, cuts = trained(X, y, settings)
    model = kind(
        n_estimators=ROUNDS, max_depth=4, cuts=cuts, n_clients=clients, protocol=protocol
    ).fit(X, y)
    expected = booster.predict(xgboost.DMatrix(X))
    if settings is CLASSES[2] and EQUAL_STARTS:  # the same shift of all margins rounds otherwise
        np.testing.assert_allclose(predictions(model, X), expected, rtol=1e-6)
    else:
        assert np.array_equal(predictions(model, X), expected)
    assert not list(model.view("server").messages(CutsRequest)), "given cuts cost no message"


def test_weights_and_penalties_reach_the_trees():
    X, y = table(load_breast_cancer)
    weight = np.random.default_rng(1).integers(1, 4, len(y)).astype(np.float32)
    penalties = {"reg_lambda": 2.5, "reg_alpha": 0.5, "gamma": 0.1, "min_child_weight": 3}
    other_parameters = {
        "learning_rate": 0.2,
        "grow_policy": "lossguide",
        "max_leaves": 6,
        "base_score": 0.4,
    }
    booster, cuts = trained(X, y, {**BINARY[2], **penalties, **other_parameters}, weight)
    model = FederatedGBDTClassifier(
        n_estimators=ROUNDS,
        max_depth=4,
        cuts=Cuts.from_xgboost(*cuts),
        **penalties,
        **other_parameters,
    ).fit(X, y, sample_weight=weight)
    # XGBoost rounds weight times gradient to float32; here a row of weight 3 is three rows.
    expected = booster.predict(xgboost.DMatrix(X))
    np.testing.assert_allclose(predictions(model, X), expected, rtol=5e-7)


@pytest.mark.long
@pytest.mark.parametrize(("kind", "loader", "settings"), [BINARY, CLASSES, NUMBER])
def test_a_saved_model_predicts_the_same_in_xgboost_and_loaded_again(
    kind, loader, settings, tmp_path
):
    X, y = table(loader)
    model = kind(n_estimators=ROUNDS, random_state=0).fit(X, y)
    model.save_model(tmp_path / "m.json")
    booster = xgboost.Booster(model_file=tmp_path / "m.json")
    assert np.array_equal(booster.predict(xgboost.DMatrix(X)), predictions(model, X))
    loaded = fedtrees.load_model(tmp_path / "m.json")
    assert np.array_equal(loaded.predict(X), predictions(model, X))


@pytest.mark.parametrize(("kind", "loader", "settings"), [BINARY, CLASSES, NUMBER])
def test_a_model_of_xgboost_predicts_the_same_here(kind, loader, settings, tmp_path):
    X, y = table(loader)
    booster, _ = trained(X, y, settings)
    booster.save_model(tmp_path / "m.json")
    forest = fedtrees.load_model(tmp_path / "m.json")
    assert np.array_equal(forest.predict(X), booster.predict(xgboost.DMatrix(X)))


def test_a_saved_model_works_in_xgboosts_estimator(tmp_path):
    X, y = load_breast_cancer(return_X_y=True, as_frame=True)
    model = FederatedGBDTClassifier(n_estimators=ROUNDS, random_state=0).fit(X, y)
    model.save_model(tmp_path / "m.json")
    xgboost_model = xgboost.XGBClassifier()
    xgboost_model.load_model(tmp_path / "m.json")
    assert np.array_equal(xgboost_model.predict(X), model.predict(X))
    assert xgboost_model.get_booster().feature_names == list(X.columns)
    our_importances, xgboost_importances = (
        model.feature_importances_,
        xgboost_model.feature_importances_,
    )
    np.testing.assert_allclose(our_importances, xgboost_importances, rtol=1e-5)
    assert our_importances.sum() == pytest.approx(1, abs=1e-5)


def test_names_that_xgboost_refuses_are_left_out(tmp_path):
    X, y = load_breast_cancer(return_X_y=True, as_frame=True)
    X = X.rename(columns={"mean radius": "mean radius [mm]"})
    model = FederatedGBDTClassifier(n_estimators=2, random_state=0).fit(X, y)
    with pytest.warns(UserWarning, match=r"mean radius \[mm\]"):
        model.save_model(tmp_path / "m.json")
    booster = xgboost.Booster(model_file=tmp_path / "m.json")
    matrix = xgboost.DMatrix(X.to_numpy())
    assert np.array_equal(booster.predict(matrix), predictions(model, X))


def test_category_columns_are_split_by_categories_as_xgboost_does():
    import pandas as pd

    rng = np.random.default_rng(4)
    frame = pd.DataFrame(
        {
            "town": pd.Categorical(rng.choice(list("abcdefgh"), 600)),
            "sex": pd.Categorical(rng.choice(["f", "m"], 600)),
            "age": rng.integers(18, 90, 600).astype(np.float32),
        }
    )
    y = (frame["town"].isin(list("bdg")) ^ (frame["age"] > 50)).astype(int).to_numpy()
    settings = {"n_estimators": 10, "max_depth": 4, "enable_categorical": True}
    xgboost_model = xgboost.XGBClassifier(**settings, n_jobs=1).fit(frame, y)
    our_model = FederatedGBDTClassifier(**settings, n_clients=3).fit(frame, y)
    np.testing.assert_allclose(
        our_model.predict_proba(frame), xgboost_model.predict_proba(frame), rtol=1e-5, atol=1e-6
    )
    ordinal = FederatedGBDTClassifier(n_estimators=10, max_depth=4).fit(frame, y)
    assert not np.array_equal(our_model.predict_proba(frame), ordinal.predict_proba(frame))

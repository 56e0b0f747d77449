"""Leakage as a score in scikit-learn's searches, and losses on rows that are not trained on."""

import numpy as np
import pytest
import xgboost
from sklearn.datasets import load_iris, load_wine
from sklearn.metrics import log_loss
from sklearn.model_selection import GridSearchCV

import fedtrees
from fedtrees.core.errors import DataError, UsageError

SMALL = {"n_estimators": 3, "max_depth": 2, "random_state": 0}


@pytest.fixture(scope="module")
def wine():
    X, y = load_wine(return_X_y=True)
    return X, y == 1


@pytest.mark.long
def test_a_search_selects_the_defense_with_the_smaller_leak(wine):
    model = fedtrees.FederatedGBDTClassifier(**SMALL)
    leak = fedtrees.leakage(attack="timberstrike", threat="server")
    scoring = {"auc": "roc_auc", "leak": leak}
    grid = {"defense": [None, "laplace-hist[epsilon=0.01]"]}
    search = GridSearchCV(model, grid, scoring=scoring, refit="leak", cv=2).fit(*wine)
    undefended, defended = search.cv_results_["mean_test_leak"]
    assert undefended < -0.5  # The score is minus the advantage.
    assert undefended + 0.03 < defended < 0
    assert search.best_params_ == {"defense": "laplace-hist[epsilon=0.01]"}


@pytest.mark.long
def test_an_attack_that_has_nothing_to_read_scores_zero(wine):
    model = fedtrees.FederatedGBDTClassifier(defense="secure-sum", **SMALL).fit(*wine)
    assert fedtrees.leakage("histogram-peeling", "server")(model) == 0.0


def test_a_scorer_refuses_unknown_attacks_and_other_estimators(wine):
    with pytest.raises(UsageError, match=r"unknown attack 'timberstrik'; did you mean"):
        fedtrees.leakage("timberstrik")
    with pytest.raises(UsageError, match="XGBClassifier is not a federated estimator"):
        fedtrees.leakage()(xgboost.XGBClassifier(n_estimators=1).fit(*wine))


def test_losses_of_an_evaluation_set_are_those_of_the_models_of_fewer_rounds(wine):
    X, y = wine
    model = fedtrees.FederatedGBDTClassifier(**SMALL)
    model.fit(X[::2], y[::2], eval_set=[(X[1::2], y[1::2]), (X[::2], y[::2])])
    losses = model.evals_result_["validation_0"]["logloss"]
    expected = [
        log_loss(y[1::2], model.model_.first(k).predict(X[1::2].astype(np.float32)))
        for k in (1, 2, 3)
    ]
    assert losses == pytest.approx(expected, rel=1e-6)
    assert set(model.evals_result_) == {"validation_0", "validation_1"}


def test_losses_have_xgboosts_names_and_numbers_for_classes_and_numbers():
    X, y = load_iris(return_X_y=True)
    model = fedtrees.FederatedGBDTClassifier(**SMALL).fit(X, y, eval_set=[(X, y)])
    last = model.evals_result_["validation_0"]["mlogloss"][-1]
    assert last == pytest.approx(-np.log(model.predict_proba(X)[range(150), y]).mean(), rel=1e-5)
    values = fedtrees.FederatedGBDTRegressor(**SMALL).fit(X, X[:, 0], eval_set=[(X, X[:, 0])])
    rmse = values.evals_result_["validation_0"]["rmse"][-1]
    assert rmse == pytest.approx(np.sqrt(np.mean((values.predict(X) - X[:, 0]) ** 2)), rel=1e-5)


def test_an_evaluation_set_that_does_not_fit_is_refused(wine):
    X, y = wine
    model = fedtrees.FederatedGBDTClassifier(**SMALL)
    with pytest.raises(UsageError, match=r"eval_set: give a list of pairs"):
        model.fit(X, y, eval_set=[X])
    with pytest.raises(DataError, match="eval_set has the class 2; trained on False, True"):
        model.fit(X, y, eval_set=[(X, np.full(len(X), 2))])

"""The method `attack` of estimators, the vertical estimator, and errors about protocols."""

import numpy as np
import pytest
from sklearn.base import clone
from sklearn.datasets import load_breast_cancer, load_wine

import fedtrees
from fedtrees import DataError, FederatedGBDTClassifier, FederatedVerticalGBDTClassifier, UsageError

SMALL = {"n_estimators": 2, "max_depth": 3, "random_state": 0}


@pytest.fixture(scope="module")
def table():
    X, y = load_breast_cancer(return_X_y=True, as_frame=True)
    return X.iloc[:200], y.iloc[:200]


@pytest.fixture(scope="module")
def model(table):
    return FederatedGBDTClassifier(**SMALL).fit(*table)


@pytest.fixture(scope="module")
def vertical(table):
    X, y = table
    columns = [X.columns[:10], [*X.columns[20:], *X.columns[10:20]]]
    return FederatedVerticalGBDTClassifier(**SMALL).fit(X, y, columns=columns)


def test_the_name_of_a_party_means_the_same_as_its_index(model):
    by_name = model.attack("timberstrike", threat="client-1")
    assert by_name.threat == "client[index=1]"
    assert by_name == model.attack("timberstrike", threat="client[index=1]")
    assert by_name != model.attack("timberstrike", threat="client-2")


def test_an_attack_returns_scores_next_to_blind_ones_and_a_scorer_the_same_advantage(model):
    result = model.attack("timberstrike", threat="client")
    assert result["leaf_counts_exact"].score == 1.0
    assert all(score.blind is not None for score in result.scores)
    scorer = fedtrees.leakage("timberstrike", threat="client", metric="leaf_counts_exact")
    assert -scorer(model) == result["leaf_counts_exact"].advantage
    assert repr(result).startswith("<timberstrike by client: reconstruction accuracy ")
    assert len(repr(result)) < 150
    with pytest.raises(UsageError, match="is not scored by 'leaf_count_exact'; did you mean"):
        _ = result["leaf_count_exact"]


def test_an_attack_that_a_defense_prevents_has_no_scores_and_a_reason():
    X, y = load_wine(return_X_y=True)
    small = {"n_estimators": 3, "max_depth": 2, "random_state": 0}
    defended = FederatedGBDTClassifier(defense="secure-sum", **small).fit(X, y == 1)
    result = defended.attack("histogram-peeling", threat="server")
    assert (result.scores, result.advantage) == ((), 0.0)
    assert result.reason in repr(result)
    assert result.reason


@pytest.mark.parametrize(
    ("attack", "threat", "text"),
    [
        ("timberstrik", "client", "did you mean 'timberstrike'"),
        ("timberstrike", "client-9", "the roles of this protocol are server, client, public"),
        ("id2graph", "client", "does not apply"),
    ],
)
def test_an_impossible_attack_is_refused_with_the_remedy(model, attack, threat, text):
    with pytest.raises(UsageError, match=text):
        model.attack(attack, threat=threat)


def test_parties_of_the_vertical_estimator_have_their_columns_and_the_first_one_the_labels(
    vertical,
):
    assert list(vertical.local_data_) == ["active", "passive-1"]
    active, passive = vertical.local_data_.values()
    assert active.columns.tolist() == list(range(10))
    assert passive.columns.tolist() == list(range(10, 30))
    assert active.y is not None
    assert passive.y is None


def test_the_vertical_estimator_predicts_attacks_and_clones(vertical, table):
    X, y = table
    assert vertical.score(X, y) > 0.9
    assert vertical.apply(X).shape == (200, 2)
    assert vertical.attack("id2graph", threat="passive-1").threat == "passive"
    refitted = clone(vertical).fit(X, y, columns=[range(10), range(10, 30)])
    assert np.array_equal(refitted.predict_proba(X), vertical.predict_proba(X))


def test_the_vertical_estimator_spreads_columns_if_none_are_named(table):
    X, y = table
    spread = FederatedVerticalGBDTClassifier(n_parties=3, **SMALL).fit(X.to_numpy(), y)
    assert sorted(c for part in spread.columns_.values() for c in part) == list(range(30))
    assert len(spread.columns_) == 3


@pytest.mark.parametrize(
    ("columns", "text"),
    [
        ([["mean radius"], ["mean area"]], "give every column to exactly one party"),
        ([["mean radios"], range(1, 30)], "no column 'mean radios'; did you mean 'mean radius'"),
        ([range(20), range(10, 30)], "give every column to exactly one party"),
    ],
)
def test_columns_that_make_up_no_table_are_refused(table, columns, text):
    with pytest.raises(UsageError, match=text):
        FederatedVerticalGBDTClassifier(**SMALL).fit(*table, columns=columns)


@pytest.mark.parametrize(
    ("estimator", "protocol", "reason"),
    [
        (FederatedGBDTClassifier, "secureboost", "parties have different columns of the table"),
        (FederatedGBDTClassifier, "forest-hist", "trains another kind of model"),
        (FederatedVerticalGBDTClassifier, "fedtree-hist", "parties have different rows"),
        (FederatedVerticalGBDTClassifier, "vertical-forest", "trains another kind of model"),
    ],
)
def test_an_unsuitable_protocol_is_refused_with_the_suitable_ones(
    table, estimator, protocol, reason
):
    with pytest.raises(UsageError) as error_info:
        estimator(protocol=protocol).fit(*table)
    assert reason in str(error_info.value)
    assert f"fedtrees model train -p {protocol}" in str(error_info.value)
    suggested = str(error_info.value).partition("Use one of ")[2].partition(", or")[0].split(", ")
    assert len(suggested) >= 3
    assert protocol not in suggested


def test_wrong_rows_are_refused_as_by_the_other_estimators(table):
    with pytest.raises(DataError):
        FederatedVerticalGBDTClassifier().fit(table[0], np.zeros(200))

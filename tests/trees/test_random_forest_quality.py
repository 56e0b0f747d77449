"""Forests are as good as scikit-learn's, compared on the same train and test rows."""

import csv
import sys
from pathlib import Path

import numpy as np
import pytest
from sklearn.datasets import load_breast_cancer, load_digits, load_wine
from sklearn.ensemble import RandomForestClassifier
from sklearn.metrics import roc_auc_score
from sklearn.model_selection import train_test_split

from fedtrees.trees.cut_points import quantile_cuts
from fedtrees.trees.forest.grower import grow_random_forest
from fedtrees.trees.forest.params import ForestParams

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
from data_dir import data_dir


def from_file(name):
    with (data_dir() / f"{name}.csv").open() as file:
        rows = list(csv.reader(file))[1:]
    table = np.array(rows, dtype=np.float32)
    return table[:, :-1], (table[:, -1] > 0).astype(int)


TABLES = {
    "breast-cancer": lambda: load_breast_cancer(return_X_y=True),
    "wine": lambda: load_wine(return_X_y=True),
    "digits": lambda: load_digits(return_X_y=True),
    "pima": lambda: from_file("pima"),
    "phishing": lambda: from_file("phishing"),
}


def scores(y, probabilities):
    two = probabilities.shape[1] == 2
    ranked = probabilities[:, 1] if two else probabilities
    auc = roc_auc_score(y, ranked) if two else roc_auc_score(y, ranked, multi_class="ovr")
    return np.mean(probabilities.argmax(axis=1) == y), auc


def differences(name, trees, seeds):
    """Return our scores minus scikit-learn's, shape (seeds, 2): accuracy and AUC on a third."""
    X, y = TABLES[name]()
    X, score_differences = X.astype(np.float32), []
    for seed in range(seeds):
        train_X, test_X, train_y, test_y = train_test_split(
            X, y, test_size=0.3, random_state=seed, stratify=y
        )
        our_forest = grow_random_forest(
            train_X, train_y, quantile_cuts(train_X), ForestParams(trees=trees), seed=seed
        )
        sklearn_forest = RandomForestClassifier(trees, random_state=seed).fit(train_X, train_y)
        our_scores, sklearn_scores = (
            scores(test_y, our_forest.probabilities(test_X)),
            scores(test_y, sklearn_forest.predict_proba(test_X)),
        )
        score_differences.append(np.subtract(our_scores, sklearn_scores))
    return np.array(score_differences)


def assert_within_noise(score_differences, slack):
    """Check that we lose less than `slack` plus three standard errors of the differences."""
    error = score_differences.std(axis=0, ddof=1) / np.sqrt(len(score_differences))
    assert (score_differences.mean(axis=0) > -slack - 3 * error).all(), (
        score_differences.mean(axis=0),
        error,
    )


@pytest.mark.long
@pytest.mark.parametrize("name", ["breast-cancer", "wine", "digits", "pima"])
def test_a_forest_is_as_good_as_scikit_learns(name):
    assert_within_noise(differences(name, trees=40, seeds=4), slack=0.005)


@pytest.mark.slow
@pytest.mark.parametrize("name", TABLES)
def test_a_forest_is_as_good_as_scikit_learns_over_ten_seeds(name):
    score_differences = differences(name, trees=100, seeds=10)
    mean, error = (
        score_differences.mean(axis=0),
        score_differences.std(axis=0, ddof=1) / np.sqrt(10),
    )
    print(
        f"\n{name}: accuracy {mean[0]:+.4f} ± {error[0]:.4f}, AUC {mean[1]:+.5f} ± {error[1]:.5f}"
    )
    assert_within_noise(score_differences, slack=0.001)

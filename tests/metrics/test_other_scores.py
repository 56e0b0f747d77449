import numpy as np
import pytest

from fedtrees.core.claims import BinClassCounts
from fedtrees.core.errors import DataError
from fedtrees.metrics.bins import BinCountsMetric, VictimsCounts, thirds_of_columns
from fedtrees.metrics.metric import advantage
from fedtrees.metrics.utility import regression_scores, utility_scores


def test_advantage_of_shares_and_of_errors():
    assert advantage(0.85, 0.7) == pytest.approx(0.5)
    assert advantage(0.6, 0.7) == pytest.approx(-1 / 3)
    assert advantage(0.05, 0.2, best=0) == pytest.approx(0.75)
    assert advantage(0.3, 0.2, best=0) == pytest.approx(-0.5)


@pytest.mark.parametrize("case", [(1.0, 1.0, 1.0), (0.0, 0.0, 0.0), (None, 0.5, 1.0), (1, None, 1)])
def test_undefined_advantages_are_none(case):
    assert advantage(case[0], case[1], best=case[2]) is None


def test_utility_by_hand():
    y = np.array([0, 0, 1, 1])
    scores = utility_scores(y, np.array([0.1, 0.6, 0.4, 0.9]))
    assert scores["auc"] == 0.75
    assert scores["accuracy"] == 0.5
    assert scores["f1"] == 0.5
    assert scores["log_loss"] == pytest.approx(-np.log([0.9, 0.4, 0.4, 0.9]).mean())


def test_f1_is_the_mean_over_both_classes():
    y = np.array([0] * 9 + [1])
    assert utility_scores(y, np.zeros(10))["f1"] == pytest.approx(18 / 19 / 2)


def test_three_classes():
    y = np.array([0, 1, 2])
    scores = utility_scores(y, np.eye(3))
    assert (scores["auc"], scores["f1"], scores["accuracy"]) == (1, 1, 1)
    assert scores["log_loss"] == 0


def test_auc_is_undefined_with_one_class():
    assert utility_scores(np.zeros(3), np.full(3, 0.2))["auc"] is None


@pytest.mark.parametrize("p", [[0.5, 2.0], [0.5, np.nan], [0.5]])
def test_bad_probabilities_are_refused(p):
    with pytest.raises(DataError):
        utility_scores(np.array([0, 1]), np.array(p))


def test_regression():
    assert regression_scores([1, 2, 3], [1, 2, 3]) == {"r2": 1.0, "rmse": 0.0}
    assert regression_scores([1, 2, 3], [2, 2, 2])["r2"] == 0
    assert regression_scores([2, 2], [1, 3]) == {"r2": None, "rmse": 1.0}


def test_class_counts_are_claimed_blindly_by_thirds_of_a_column():
    counts = np.repeat([[4, 0], [2, 2], [0, 4]], 3, axis=0)
    truth = VictimsCounts({"client-0": counts}, thirds_of_columns(np.array([0, 9])))
    (score,) = BinCountsMetric().score([BinClassCounts("client-0", counts * 0)], truth)
    assert (score.value, score.blind) == (0, 1)
    assert thirds_of_columns(np.array([0, 3, 4, 10])).tolist() == [0, 1, 2, 0, 0, 0, 1, 1, 2, 2]

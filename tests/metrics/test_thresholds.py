"""Claimed thresholds are right if they differ from their split by less than a tolerance."""

from dataclasses import replace

import numpy as np
import pytest
from columns import dealt, table_of

from fedtrees.attacks.queries.attack import ThresholdQueries
from fedtrees.blind_baselines.rows import decimal_step
from fedtrees.core.claims import Thresholds
from fedtrees.core.errors import ProtocolError
from fedtrees.core.local_data import LocalData
from fedtrees.core.schema import Feature, Schema
from fedtrees.core.streams import Streams
from fedtrees.metrics.metric import Case
from fedtrees.metrics.thresholds import ThresholdsMetric, TrueSplit, VictimsSplits
from fedtrees.protocols.training import train
from fedtrees.protocols.vertical.secureboost import SecureBoost
from fedtrees.protocols.views import view_of


@pytest.fixture(scope="module")
def world():
    """Train two parties whose columns have declared ranges."""
    rows, schema = table_of(2, missing=0)
    features = tuple(Feature(feature.name, low=-8, high=8) for feature in schema.features)
    local_data = dealt(rows, 2)
    schema = replace(schema, features=features)
    training = train(SecureBoost(trees=3, max_depth=3, colsample_bytree=1.0), local_data, schema)
    roles, model = training.transcript.roles, training.model
    case = Case(local_data, roles, ("active",), schema, None, model=model, splits=training.splits)
    return training, local_data, case


def claims(truth, shift=0.0, width=0.0, column=0):
    rows = [
        (
            *node,
            split.feature + column,
            split.threshold + shift,
            split.threshold - width,
            split.threshold + width,
        )
        for node, split in truth.splits.items()
    ]
    return [Thresholds(*map(np.array, zip(*rows, strict=True)))]


def scores(claimed, truth):
    return {s.name: s.value for s in ThresholdsMetric().score(claimed, truth)}


def test_thresholds_that_are_close_narrow_and_of_the_right_column_count(world):
    _, _, case = world
    truth = ThresholdsMetric().truth(case)
    assert set(truth.splits) == set(case.splits)
    small_shift = 0.9 * min(truth.tolerance.values())
    perfect = scores(claims(truth, small_shift, 0.8), truth)
    assert (perfect["thresholds"], perfect["ranges_covered"]) == (1, 1)
    assert perfect["threshold_width"] == pytest.approx(1.6 / 16)
    assert scores(claims(truth, 1.2 * max(truth.tolerance.values())), truth)["thresholds"] == 0
    scores_of_wrong_column = scores(claims(truth, column=100), truth)
    assert scores_of_wrong_column == {"thresholds": 0, "threshold_width": 1, "ranges_covered": 0}
    assert scores([], truth) == scores_of_wrong_column


@pytest.mark.parametrize(
    ("offset", "guess"), [(0.0, "rounded-quantiles"), (0.5, "halved-quantiles")]
)
def test_quantiles_at_the_precision_of_the_column_are_part_of_the_baseline(offset, guess):
    """Integers from 0 to 40 are split at integers, or in the middle between two of them."""
    rng = np.random.default_rng(0)
    X = rng.integers(0, 41, size=(200, 1)).astype(np.float32)
    local_data = {"passive": LocalData(np.arange(200), np.array([0]), X, None)}
    metric, feature = ThresholdsMetric(), Feature("whole", low=0, high=40)
    splits = {(0, number): TrueSplit(0, 4.0 * number + 2 + offset, 10) for number in range(10)}
    truth = VictimsSplits(
        splits, {0: 1e-4}, {0: 40.0}, {0: decimal_step(X[:, 0])}, Schema((feature,), "y")
    )
    case = Case(local_data, {"passive": "passive"}, (), truth.schema, Streams(0))
    guesses = metric.blind(case, truth)
    assert {"even-quantiles", "rounded-quantiles", "halved-quantiles"} <= set(guesses)
    baseline = metric.line(case, truth, {})["thresholds"]
    assert (
        baseline
        == {score.name: score.value for score in metric.score(guesses[guess], truth)}["thresholds"]
    )
    assert baseline == 1
    if offset:
        assert metric.score(guesses["even-quantiles"], truth)[0].value == 0


def test_ranges_are_weighted_by_the_rows_that_reach_the_split(world):
    _, _, case = world
    truth = ThresholdsMetric().truth(case)
    root = max(truth.splits, key=lambda node: truth.splits[node].rows)
    (all_claims,) = claims(truth)
    positions = [
        position
        for position, node in enumerate(zip(all_claims.tree, all_claims.node, strict=True))
        if node == root
    ]
    claim_of_root = Thresholds(*(getattr(all_claims, name)[positions] for name in vars(all_claims)))
    share = truth.splits[root].rows / sum(split.rows for split in truth.splits.values())
    scores_of_root = scores([claim_of_root], truth)
    assert scores_of_root["ranges_covered"] == pytest.approx(share)
    assert 0 < scores_of_root["thresholds"] < share


def test_the_blind_baseline_is_even_quantiles_in_the_order_of_the_thresholds(world):
    _, _, case = world
    metric = ThresholdsMetric()
    truth = metric.truth(case)
    (blind,) = metric.blind(case, truth)["even-quantiles"]
    for feature in set(blind.feature.tolist()):
        is_feature = blind.feature == feature
        true_thresholds = [
            truth.splits[tree, node].threshold
            for tree, node in zip(blind.tree, blind.node, strict=True)
        ]
        n_thresholds = len(set(np.array(true_thresholds)[is_feature].tolist()))
        expected = -8 + 16 * (np.arange(n_thresholds) + 0.5) / n_thresholds
        np.testing.assert_allclose(np.unique(blind.value[is_feature]), expected)
        assert (
            np.corrcoef(blind.value[is_feature], np.array(true_thresholds)[is_feature])[0, 1] > 0
            or n_thresholds == 1
        )
    assert scores([blind], truth)["threshold_width"] == 1


def test_declared_ranges_and_a_width_shorten_the_search(world):
    training, local_data, case = world
    truth = ThresholdsMetric().truth(case)
    records = {}
    for epsilon in (0.0, 1e-3):
        view = view_of(training, ("active",), local_data, 2000, "leaf-ids")
        attack = ThresholdQueries(m=3, epsilon=epsilon)
        guess = attack.run(view, np.random.default_rng(0))
        scores_of_guess = scores(guess.claims, truth)
        assert scores_of_guess["threshold_width"] <= epsilon + 1e-6
        assert (scores_of_guess["thresholds"] == 1) == (epsilon == 0)
        records[epsilon] = guess.notes["records"]
    assert records[1e-3] < 0.7 * records[0.0]


def test_claims_that_cannot_be_are_refused(world):
    _, _, case = world
    metric = ThresholdsMetric()
    truth = metric.truth(case)
    (every,) = claims(truth)
    assert metric.refuses([every], case) is None
    assert "more than once" in metric.refuses([every, every], case)
    assert "no party owns them" in metric.refuses([replace(every, tree=every.tree + 99)], case)
    with pytest.raises(ProtocolError, match="low end is above its high end"):
        replace(every, low=every.high + 1)
    with pytest.raises(ProtocolError, match="give one of shape"):
        replace(every, low=every.low[:1])

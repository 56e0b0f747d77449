"""Claimed thresholds are right within a tolerance of their column, at the splits they are of."""

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
    """Two parties whose columns have declared ranges."""
    rows, schema = table_of(2, missing=0)
    features = tuple(Feature(f.name, low=-8, high=8) for f in schema.features)
    held = dealt(rows, 2)
    schema = replace(schema, features=features)
    training = train(SecureBoost(trees=3, max_depth=3, colsample_bytree=1.0), held, schema)
    roles, model = training.transcript.roles, training.model
    case = Case(held, roles, ("active",), schema, None, model=model, splits=training.splits)
    return training, held, case


def claims(truth, shift=0.0, width=0.0, column=0):
    rows = [
        (*at, s.feature + column, s.threshold + shift, s.threshold - width, s.threshold + width)
        for at, s in truth.splits.items()
    ]
    return [Thresholds(*map(np.array, zip(*rows, strict=True)))]


def scores(claimed, truth):
    return {s.name: s.value for s in ThresholdsMetric().score(claimed, truth)}


def test_what_is_close_narrow_and_of_the_right_column_counts(world):
    _, _, case = world
    truth = ThresholdsMetric().truth(case)
    assert set(truth.splits) == set(case.splits)
    close = 0.9 * min(truth.tolerance.values())
    perfect = scores(claims(truth, close, 0.8), truth)
    assert (perfect["thresholds"], perfect["ranges_covered"]) == (1, 1)
    assert perfect["threshold_width"] == pytest.approx(1.6 / 16)
    assert scores(claims(truth, 1.2 * max(truth.tolerance.values())), truth)["thresholds"] == 0
    elsewhere = scores(claims(truth, column=100), truth)
    assert elsewhere == {"thresholds": 0, "threshold_width": 1, "ranges_covered": 0}
    assert scores([], truth) == elsewhere


@pytest.mark.parametrize(("off", "guess"), [(0.0, "rounded-quantiles"), (0.5, "halved-quantiles")])
def test_quantiles_at_the_precision_of_the_column_are_part_of_the_baseline(off, guess):
    """Whole numbers from 0 to 40 are split at whole numbers, or in the middle between two."""
    rng = np.random.default_rng(0)
    X = rng.integers(0, 41, size=(200, 1)).astype(np.float32)
    held = {"passive": LocalData(np.arange(200), np.array([0]), X, None)}
    metric, feature = ThresholdsMetric(), Feature("whole", low=0, high=40)
    splits = {(0, k): TrueSplit(0, 4.0 * k + 2 + off, 10) for k in range(10)}
    truth = VictimsSplits(
        splits, {0: 1e-4}, {0: 40.0}, {0: decimal_step(X[:, 0])}, Schema((feature,), "y")
    )
    case = Case(held, {"passive": "passive"}, (), truth.schema, Streams(0))
    made = metric.blind(case, truth)
    assert {"even-quantiles", "rounded-quantiles", "halved-quantiles"} <= set(made)
    best = metric.line(case, truth, {})["thresholds"]
    assert best == {s.name: s.value for s in metric.score(made[guess], truth)}["thresholds"]
    assert best == 1
    if off:
        assert metric.score(made["even-quantiles"], truth)[0].value == 0


def test_ranges_are_weighted_by_the_rows_that_came_by(world):
    _, _, case = world
    truth = ThresholdsMetric().truth(case)
    root = max(truth.splits, key=lambda at: truth.splits[at].rows)
    (every,) = claims(truth)
    one = [i for i, at in enumerate(zip(every.tree, every.node, strict=True)) if at == root]
    only = Thresholds(*(getattr(every, name)[one] for name in vars(every)))
    share = truth.splits[root].rows / sum(s.rows for s in truth.splits.values())
    found = scores([only], truth)
    assert found["ranges_covered"] == pytest.approx(share)
    assert 0 < found["thresholds"] < share


def test_the_blind_baseline_is_even_quantiles_in_the_order_of_the_thresholds(world):
    _, _, case = world
    metric = ThresholdsMetric()
    truth = metric.truth(case)
    (blind,) = metric.blind(case, truth)["even-quantiles"]
    for feature in set(blind.feature.tolist()):
        mine = blind.feature == feature
        true = [truth.splits[t, n].threshold for t, n in zip(blind.tree, blind.node, strict=True)]
        k = len(set(np.array(true)[mine].tolist()))
        expected = -8 + 16 * (np.arange(k) + 0.5) / k
        np.testing.assert_allclose(np.unique(blind.value[mine]), expected)
        assert np.corrcoef(blind.value[mine], np.array(true)[mine])[0, 1] > 0 or k == 1
    assert scores([blind], truth)["threshold_width"] == 1


def test_a_declared_range_and_a_width_make_the_search_shorter(world):
    training, held, case = world
    truth = ThresholdsMetric().truth(case)
    records = {}
    for epsilon in (0.0, 1e-3):
        view = view_of(training, ("active",), held, 2000, "leaf-ids")
        attack = ThresholdQueries(m=3, epsilon=epsilon)
        guess = attack.run(view, np.random.default_rng(0))
        found = scores(guess.claims, truth)
        assert found["threshold_width"] <= epsilon + 1e-6
        assert (found["thresholds"] == 1) == (epsilon == 0)
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

"""Values of other parties' columns from splits that are sent in plain text."""

import numpy as np
from columns import run, seen_by

from fedtrees.attacks.plaintext import SplitValues, decimals, spread
from fedtrees.metrics.column_values import ColumnValuesMetric
from fedtrees.metrics.metric import Case

ANYWHERE = np.full(8, -np.inf, np.float32), np.full(8, np.inf, np.float32)


def test_the_number_of_decimals_suffices_for_all_values():
    assert decimals(np.array([1, 30], np.float32)) == 0
    assert decimals(np.array([1.5, 0.25], np.float32)) == 2
    assert decimals(np.array([1 / 3], np.float32)) is None


def test_rows_are_distributed_over_the_grid_of_the_observed_values():
    observed = np.array([2, 6], np.float32)
    values, counts = spread(observed, *ANYWHERE, (0.0, 8.0))
    assert counts.sum() == 8
    assert set(observed) <= set(values) <= set(range(9))
    low, high = np.full(8, 2, np.float32), np.full(8, 6, np.float32)
    values, counts = spread(observed, low, high, (0.0, 8.0))
    assert counts[values == 6].sum() == 1
    assert values.min() >= 2
    assert values.max() == 6
    thirds = np.array([1 / 3, 2 / 3], np.float32)
    assert spread(thirds, *ANYWHERE, (0.0, 1.0))[1].tolist() == [1, 1]


def test_more_values_than_the_thresholds_are_recovered():
    training, local_data = run("xgboost-vertical[trees=2,max_depth=3,max_bin=16]", 2, missing=0)
    view = seen_by(training, local_data, "active")
    case = Case(local_data, training.transcript.roles, ("active",), training.schema, None)
    metric, claims = ColumnValuesMetric(), SplitValues().run(view, np.random.default_rng(0)).claims
    assert any(claim.counts.sum() >= view.n_rows for claim in claims)
    scores = {score.name: score.value for score in metric.score(claims, metric.truth(case))}
    assert scores["column_values"] > 0.1

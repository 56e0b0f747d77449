"""Blind guesses of single values."""

import numpy as np
from regression_runs import by_columns, table

from fedtrees.core.schema import Table
from fedtrees.core.streams import Streams
from fedtrees.core.threat import Threat
from fedtrees.metrics.entries import EntriesMetric
from fedtrees.metrics.metric import Case


def test_the_blind_regression_uses_the_dependence_between_columns():
    rows, schema = table(40, 12, 0)
    rng = np.random.default_rng(0)
    factor = rng.normal(size=(40, 1))
    X = (factor + 0.1 * rng.normal(size=(40, 12))).astype(np.float32)
    local_data = by_columns(Table(X, rows.y), 6)
    roles = {"active": "active", "passive-1": "passive", "arbiter": "arbiter"}
    threat = "active[entries=12]"
    principals = Threat.parse(threat).principals(roles)
    case, metric = Case(local_data, roles, principals, schema, Streams(0), threat), EntriesMetric()
    truth = metric.truth(case)
    shares_close = {
        name: next(
            score.value for score in metric.score(guess, truth) if score.name == "entries_close"
        )
        for name, guess in metric.blind(case, truth).items()
    }
    assert shares_close["regressed-together"] > 0.85
    assert shares_close["regressed-together"] > shares_close["regressed"] + 0.03
    assert shares_close["means"] < 0.5

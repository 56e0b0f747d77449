"""Blind lines of single values."""

import numpy as np
from regression_runs import by_columns, table

from fedtrees.core.schema import Table
from fedtrees.core.streams import Streams
from fedtrees.core.threat import Threat
from fedtrees.metrics.entries import EntriesMetric
from fedtrees.metrics.metric import Case


def test_columns_of_a_table_go_along_with_each_other_without_looking():
    rows, schema = table(40, 12, 0)
    rng = np.random.default_rng(0)
    factor = rng.normal(size=(40, 1))
    X = (factor + 0.1 * rng.normal(size=(40, 12))).astype(np.float32)
    held = by_columns(Table(X, rows.y), 6)
    roles = {"active": "active", "passive-1": "passive", "arbiter": "arbiter"}
    threat = "active[entries=12]"
    who = Threat.parse(threat).principals(roles)
    case, metric = Case(held, roles, who, schema, Streams(0), threat), EntriesMetric()
    truth = metric.truth(case)
    close = {
        name: next(s.value for s in metric.score(guess, truth) if s.name == "entries_close")
        for name, guess in metric.blind(case, truth).items()
    }
    assert close["regressed-together"] > 0.85
    assert close["regressed-together"] > close["regressed"] + 0.03
    assert close["means"] < 0.5

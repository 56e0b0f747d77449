"""What the published figures are compared by: their scale, their victim, and open boxes."""

from __future__ import annotations

import numpy as np
import pytest

from fedtrees.attacks.reconstruction.boxes import Grid
from fedtrees.attacks.reconstruction.prior import value_ranges
from fedtrees.benchmarks.papers.timberstrike import over_real_columns
from fedtrees.core.claims import EveryRecord, Guess
from fedtrees.core.local_data import LocalData, over_clients
from fedtrees.core.schema import Feature, Schema, Table
from fedtrees.core.streams import Streams
from fedtrees.data.dataset import prepare
from fedtrees.experiments.evaluate import score_guess
from fedtrees.experiments.federation import Federation
from fedtrees.metrics.metric import Case
from fedtrees.metrics.victims_rows import EveryRecordMetric
from fedtrees.trees.cut_points import equal_width_cuts, quantile_cuts

SCHEMA = Schema((Feature("a"), Feature("b", low=-500.0, high=500.0)), "y", ("no", "yes"))


def table(n, seed=0):
    rng = np.random.default_rng(seed)
    X = np.column_stack([rng.integers(-30, -2, n), rng.integers(3, 90, n)]).astype(np.float32)
    return Table(X, rng.integers(0, 2, n))


@pytest.mark.parametrize("wrong", range(10))
def test_a_printed_score_of_pima_is_over_ten_columns_of_which_one_is_never_wrong(wrong):
    printed = 100 * (1 - wrong / 10)
    assert over_real_columns("table6", printed) == pytest.approx(100 * (1 - wrong / 9))
    assert over_real_columns("table4", printed) == printed


@pytest.mark.parametrize("how", ["sketch", "equal-width"])
@pytest.mark.parametrize("ranges", ["own", "schema"])
def test_the_extremes_of_all_clients_are_read_off_their_cut_points(how, ranges):
    everyone = table(400)
    X, own = everyone.X, everyone.take(np.arange(5))
    cuts = quantile_cuts(X, 16) if how == "sketch" else equal_width_cuts(X.min(0), X.max(0), 16)
    grid = Grid.of((), 2)
    low, high = value_ranges(SCHEMA, own, grid, cuts, ranges)
    # the smallest value is told where it is negative, the largest where it is positive
    assert low[0] == pytest.approx(X[:, 0].min())
    assert high[1] == pytest.approx(X[:, 1].max())
    assert own.X[:, 0].min() > low[0]
    assert own.X[:, 1].max() < high[1]
    told = cuts.of(0)[:-1].max()
    assert high[0] == max(told, own.X[:, 0].max())
    assert low[1] == (-500 if ranges == "schema" else min(cuts.of(1)[0], own.X[:, 1].min()))


def test_rows_with_owners_are_scored_on_the_largest_owner():
    clients = tuple(table(n, n) for n in (20, 60, 40))
    dataset = prepare("small", SCHEMA, *_arrays(clients))
    federation = Federation(dataset, over_clients(clients), clients[0], None)
    owner = ("client-0",) * 20 + ("client-1",) * 60
    guess = EveryRecord(Table.concat([clients[0], clients[1]]), owner=owner)
    worse = EveryRecord(Table.concat([clients[0], table(60, 5)]), owner=owner)
    case = federation.case(dict.fromkeys(federation.local_data, "client"), ("client-2",), 0)
    (right,) = score_guess("right", Guess((guess,)), case, None)
    (wrong,) = score_guess("wrong", Guess((worse,)), case, None)
    assert (right["metric"], right["value"]) == ("ra_owner", 1.0)
    assert wrong["value"] < 1.0
    assert 0 < wrong["blind"] < 1
    assert wrong["blind"] == right["blind"]


def test_rows_of_all_parties_are_scored_although_a_principal_has_no_labels():
    clients = over_clients((table(20, 0), table(30, 1)))
    nothing = np.zeros((0, 2), dtype=np.float32)
    clients["client-2"] = LocalData(np.zeros(0, dtype=np.int64), np.arange(2), nothing)
    case = Case(clients, dict.fromkeys(clients, "client"), ("client-0", "client-2"), SCHEMA,
                Streams(0))  # fmt: skip
    metric = EveryRecordMetric()
    truth = metric.truth(case)
    everyone = Table.concat([clients["client-0"].table, clients["client-1"].table])
    (score,) = metric.score([EveryRecord(everyone)], truth)
    assert score.value == 1
    assert metric.line(case, truth, {"ra": 0.5}) == {"ra_union": pytest.approx(0.4 + 0.6 * 0.5)}


def _arrays(clients):
    everyone = Table.concat(list(clients))
    return everyone.X, everyone.y

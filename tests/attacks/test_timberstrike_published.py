"""The published figures: their scale, their victim, and open boxes."""

from __future__ import annotations

import csv
from importlib import resources

import numpy as np
import pytest

from fedtrees.attacks.reconstruction.boxes import Grid
from fedtrees.attacks.reconstruction.prior import value_ranges
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


@pytest.mark.parametrize(
    ("items", "columns"), [(("Table 6", "Table 8"), 9), (("Table 7", "Table 9"), 5)]
)
def test_printed_scores_of_pima_count_one_column_that_is_never_wrong(items, columns):
    path = resources.files("fedtrees.benchmarks.papers") / "published" / "timberstrike.csv"
    lines = [
        row for row in csv.DictReader(path.read_text("utf-8").splitlines()) if row["item"] in items
    ]
    scores = [row for row in lines if row["score"].startswith("RA")]
    assert len(scores) in (96, 60 + 36)
    for line in scores:
        n_wrong_columns = (100 - float(line["published"])) * columns
        assert float(line["printed"]) == pytest.approx(
            100 - n_wrong_columns / (columns + 1), abs=0.01
        )


@pytest.mark.parametrize("cut_method", ["sketch", "equal-width"])
@pytest.mark.parametrize("ranges", ["own", "schema"])
def test_cut_points_reveal_the_extremes_of_all_clients(cut_method, ranges):
    all_rows = table(400)
    X, local_rows = all_rows.X, all_rows.take(np.arange(5))
    cuts = (
        quantile_cuts(X, 16) if cut_method == "sketch" else equal_width_cuts(X.min(0), X.max(0), 16)
    )
    grid = Grid.of((), 2)
    low, high = value_ranges(SCHEMA, local_rows, grid, cuts, ranges)
    # Cut points reveal the smallest value if it is negative, and the largest if it is positive.
    assert low[0] == pytest.approx(X[:, 0].min())
    assert high[1] == pytest.approx(X[:, 1].max())
    assert local_rows.X[:, 0].min() > low[0]
    assert local_rows.X[:, 1].max() < high[1]
    largest_cut = cuts.of(0)[:-1].max()
    assert high[0] == max(largest_cut, local_rows.X[:, 0].max())
    assert low[1] == (-500 if ranges == "schema" else min(cuts.of(1)[0], local_rows.X[:, 1].min()))


def test_rows_with_owners_are_scored_on_the_largest_owner():
    clients = tuple(table(n, n) for n in (20, 60, 40))
    dataset = prepare("small", SCHEMA, *_arrays(clients))
    federation = Federation(dataset, over_clients(clients), clients[0], None)
    owner = ("client-0",) * 20 + ("client-1",) * 60
    guess = EveryRecord(Table.concat([clients[0], clients[1]]), owner=owner)
    worse = EveryRecord(Table.concat([clients[0], table(60, 5)]), owner=owner)
    case = federation.case(dict.fromkeys(federation.local_data, "client"), ("client-2",), 0)
    (exact_score,) = score_guess("right", Guess((guess,)), case, None)
    (worse_score,) = score_guess("wrong", Guess((worse,)), case, None)
    assert (exact_score["metric"], exact_score["value"]) == ("ra_owner", 1.0)
    assert worse_score["value"] < 1.0
    assert 0 < worse_score["blind"] < 1
    assert worse_score["blind"] == exact_score["blind"]


def test_rows_of_all_parties_are_scored_although_a_principal_has_no_labels():
    clients = over_clients((table(20, 0), table(30, 1)))
    no_rows = np.zeros((0, 2), dtype=np.float32)
    clients["client-2"] = LocalData(np.zeros(0, dtype=np.int64), np.arange(2), no_rows)
    case = Case(clients, dict.fromkeys(clients, "client"), ("client-0", "client-2"), SCHEMA,
                Streams(0))  # fmt: skip
    metric = EveryRecordMetric()
    truth = metric.truth(case)
    all_rows = Table.concat([clients["client-0"].table, clients["client-1"].table])
    (score,) = metric.score([EveryRecord(all_rows)], truth)
    assert score.value == 1
    assert metric.line(case, truth, {"ra": 0.5}) == {"ra_union": pytest.approx(0.4 + 0.6 * 0.5)}


def test_the_most_important_columns_are_matched_without_the_others():
    clients = (table(20, 0), table(30, 1))
    case = Case(over_clients(clients), {}, ("client-0",), SCHEMA, Streams(0), top=("a",))
    all_rows = Table.concat(list(clients))
    shuffled = all_rows.X.copy()
    shuffled[:, 1] = 500.0
    metric, truth = EveryRecordMetric(), EveryRecordMetric().truth(case)
    scores = {
        s.key: s.value for s in metric.score([EveryRecord(Table(shuffled, all_rows.y))], truth)
    }
    assert scores == {"ra_union": pytest.approx(2 / 3), "ra_union_top": 1.0}
    blind = metric.line(case, truth, {"ra": 0.5, "ra_top": 0.75})
    assert blind == {
        "ra_union": pytest.approx(0.4 + 0.6 * 0.5),
        "ra_union_top": pytest.approx(0.85),
    }
    owned = EveryRecord(clients[1], owner=("client-1",) * 30)
    keys = [score.key for score in metric.score([owned], truth)]
    assert keys == ["ra_owner", "ra_owner_top"]


def _arrays(clients):
    all_rows = Table.concat(list(clients))
    return all_rows.X, all_rows.y

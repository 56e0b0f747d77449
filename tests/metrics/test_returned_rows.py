"""Rows returned as certain are matched one to one by bins and label."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest

from fedtrees.core.claims import Records
from fedtrees.core.errors import DataError
from fedtrees.core.local_data import over_clients
from fedtrees.core.schema import Feature, Schema, Table
from fedtrees.core.streams import Streams
from fedtrees.messages.horizontal import CutPoints
from fedtrees.metrics.bins import BinCountsMetric
from fedtrees.metrics.metric import Case
from fedtrees.metrics.records import score_returned_rows
from fedtrees.metrics.victims_rows import BinnedVictims, ReturnedRowsMetric
from fedtrees.trees.binning import Cuts

SCHEMA = Schema((Feature("a"),), "y", ("no", "yes"))
CUTS = Cuts.join([np.array([1, 2, 3], np.float32)], np.array([-1], np.float32))


def rows(*pairs):
    return Table(np.array([[x] for x, _ in pairs], np.float32), np.array([y for _, y in pairs]))


TRUTH = {"a": rows((0.5, 0), (0.7, 0)), "b": rows((1.5, 1), (np.nan, 1))}


def test_values_count_as_right_within_their_bin():
    scores = score_returned_rows(rows((0.9, 0), (np.nan, 1)), TRUTH, CUTS)
    assert scores == {"returned_rows": 2, "returned_right": 0.5, "returned_wrong": 0.0,
                      "returned_owned": None}  # fmt: skip


def test_a_true_row_pays_once():
    scores = score_returned_rows(rows((1.2, 1), (1.3, 1), (1.2, 0)), TRUTH, CUTS)
    assert scores["returned_right"] == 0.25
    assert scores["returned_wrong"] == pytest.approx(2 / 3)


def test_copies_count_as_often_as_they_are_there():
    assert (
        score_returned_rows(rows((0.1, 0), (0.2, 0), (0.3, 0)), TRUTH, CUTS)["returned_right"]
        == 0.5
    )


def test_owners_count_where_they_are_named():
    scores = score_returned_rows(rows((0.9, 0), (1.5, 1)), TRUTH, CUTS, ("b", "b"))
    assert (scores["returned_right"], scores["returned_owned"]) == (0.5, 0.25)


def test_rows_are_not_scored_by_bins_if_cut_points_differ_between_trees():
    local_data = over_clients(tuple(TRUTH.values()))
    shifted_cuts = replace(CUTS, values=CUTS.values + np.float32(0.25))
    for announced, is_scored in (([CUTS, CUTS], True), ([CUTS, shifted_cuts], False), ([], False)):
        sent = [SimpleNamespace(message=CutPoints(cuts.values, cuts.offsets, cuts.minimum))
                for cuts in announced]  # fmt: skip
        case = Case(
            local_data, dict.fromkeys(local_data, "client"), (), SCHEMA, Streams(0), transcript=sent
        )
        for metric in (ReturnedRowsMetric(), BinCountsMetric()):
            assert (metric.truth(case) is not None) is is_scored


def test_returning_no_rows_is_not_wrong():
    scores = score_returned_rows(rows((0, 0)).take(np.array([], int)), TRUTH, CUTS)
    claim = Records(rows((0, 0)).take(np.array([], int)), confidence=np.zeros(0))
    metric_scores = ReturnedRowsMetric().score([claim], BinnedVictims(TRUTH, CUTS))
    assert (
        scores
        == {score.name: score.value for score in metric_scores}
        == {
            "returned_right": 0.0,
            "returned_wrong": None,
            "returned_owned": None,
            "returned_rows": 0.0,
        }
    )


def test_bad_input_is_refused():
    with pytest.raises(DataError, match="no true rows"):
        score_returned_rows(rows((0, 0)), {}, CUTS)
    with pytest.raises(DataError, match="2 owners for 1"):
        score_returned_rows(rows((0, 0)), TRUTH, CUTS, ("a", "b"))

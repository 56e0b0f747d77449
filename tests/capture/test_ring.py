"""Recorded runs of XGBoost's collective are decoded to the last byte and read without error."""

from collections import Counter

import numpy as np
import pytest
from captures import capture, count_facts, decoded, rows

from fedtrees.attacks.observations.lightgbm import counts
from fedtrees.capture.formats import Decoded
from fedtrees.capture.readings import readings
from fedtrees.capture.records import Capture, Run, Writer
from fedtrees.core.errors import DataError
from fedtrees.messages.captured import GradientTotals, HistogramSegment, RankedSketch

RUNS = ["ring2", "ring3"]


@pytest.mark.parametrize("name", RUNS)
def test_every_byte_between_workers_is_decoded(name, tmp_path):
    records, ended = decoded(name, tmp_path)
    assert ended.left == 0
    kinds = Counter(type(r.message).__name__ for r in records)
    w = len(rows(name))
    assert kinds["RankedSketch"] == kinds["LabelShare"] == w
    # two trees of depth 2: a root's and one level's histogram each, w (w - 1) hops and w sums
    assert kinds["HistogramSegment"] == 2 * 2 * w * w
    assert kinds["GradientTotals"] == 2 * w


def test_an_evaluation_is_not_mistaken_for_a_level(tmp_path):
    """Without the mean label the number of rows is unknown; trees have depths 3 and 2."""
    records, ended = decoded("watched2", tmp_path)
    assert ended.left == 0
    levels = {(record.message.tree, record.message.level) for record in records
             if isinstance(record.message, HistogramSegment)}  # fmt: skip
    assert levels == {(0, 0), (0, 1), (0, 2), (1, 0), (1, 1)}


@pytest.mark.parametrize("name", RUNS)
def test_sketches_are_the_columns(name, tmp_path):
    for record in decoded(name, tmp_path)[0]:
        sketch = record.message
        if isinstance(sketch, RankedSketch):
            assert sketch.whole.all()
            for f, column in enumerate(rows(name)[record.sender].X.T):
                part = slice(sketch.offsets[f], sketch.offsets[f + 1])
                values, times = np.unique(column, return_counts=True)
                assert sketch.points[part].tolist() == values.tolist()
                assert sketch.weights[part].tolist() == times.tolist()


def test_sums_over_a_root_are_those_of_the_rows(tmp_path):
    records, _ = decoded("ring3", tmp_path)
    tables = rows("ring3")
    start = np.mean([t.y.mean() for t in tables.values()])
    for r in records:
        if isinstance(r.message, GradientTotals) and r.message.tree == 0:
            y = tables[r.sender].y
            expected = [(start - y).sum(), len(y) * start * (1 - start)]
            assert r.message.sums == pytest.approx(expected, abs=1e-5)


def test_a_partial_histogram_belongs_to_the_parties_that_it_names(tmp_path):
    """The first hop of the first column's bins contains the rows of its sender only."""
    tables = rows("ring3")
    values = np.unique(np.concatenate([table.X[:, 0] for table in tables.values()]))
    start = np.mean([table.y.mean() for table in tables.values()])
    for record in decoded("ring3", tmp_path)[0]:
        segment = record.message
        if isinstance(segment, HistogramSegment) and (
            segment.tree,
            segment.level,
            segment.first,
        ) == (0, 0, 0):
            y = np.concatenate([tables[party].y for party in segment.parties.split(",")])
            x = np.concatenate([tables[party].X[:, 0] for party in segment.parties.split(",")])
            n_values = len(segment.sums) // 2
            sender_sums = [(start - y[x == value]).sum() for value in values[:n_values]]
            assert segment.sums[0 : 2 * len(sender_sums) : 2] == pytest.approx(
                sender_sums, abs=1e-5
            )


@pytest.mark.parametrize("name", RUNS)
@pytest.mark.parametrize("reader", ["worker-0", "worker-1", "third"])
def test_no_certain_reading_is_wrong(name, reader, tmp_path):
    records, _ = decoded(name, tmp_path)
    visible_records = [
        r for r in records if reader == "third" or reader in (r.sender, *r.receivers)
    ]
    truth, all_readings = rows(name), readings(visible_records, (reader,))
    assert sum(r.wrong(truth[r.owner]) for r in all_readings) == 0
    facts = count_facts(all_readings)
    for victim in set(truth) - {reader}:
        distinct = sum(len(np.unique(column)) for column in truth[victim].X.T)
        assert facts["number of positives", victim] == 1
        assert facts["values of a column, each with its rows", victim] == distinct
        n_labelled = facts["values with the labels of their rows", victim]
        # All hops are seen, or the remainder belongs to the only other worker.
        if reader == "third" or name == "ring2":
            # A border between segments may cut a bin in two.
            assert n_labelled >= distinct - 2
        else:  # about a third of the values of each other worker
            assert 0 < n_labelled < distinct / 2
        reversed_table = truth[victim].take(np.arange(len(truth[victim]))[::-1])
        swapped = type(reversed_table)(reversed_table.X, 1 - reversed_table.y)
        assert sum(r.wrong(swapped) for r in all_readings if r.owner == victim) > 0


def test_sums_that_were_garbled_are_no_numbers_of_rows():
    garbled = np.array([1e308, 1.7e308, np.nan, 1.0, -1e308, 1e300, np.inf, np.inf])
    assert counts(garbled, 1e-3).tolist() == [[-1, -1]] * 4


def test_a_truncated_run_is_read_up_to_its_end(tmp_path):
    path = capture("ring2", tmp_path)
    blob = path.read_bytes()
    path.write_bytes(blob[: len(blob) * 3 // 4])
    decoded_capture = Decoded(Capture(path))
    records = list(decoded_capture)
    assert any(isinstance(record.message, RankedSketch) for record in records)
    assert decoded_capture.ended.left > 0
    assert decoded_capture.ended.why == "an operation that is not known, or was cut off"


def test_other_bytes_are_refused(tmp_path):
    path = tmp_path / "other.capture"
    with Writer(path, Run("xgboost", "3.2.0", "rabit")):
        pass
    with pytest.raises(DataError, match="before all workers are connected"):
        list(Decoded(Capture(path)))
    other_path = tmp_path / "new.capture"
    with Writer(other_path, Run("catboost", "1", "catboost-wire")):
        pass
    with pytest.raises(DataError, match="'catboost-wire'; this release decodes rabit"):
        Decoded(Capture(other_path))

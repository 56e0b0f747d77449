"""XGBoost's own collective: recorded runs are decoded to the last byte, and read without error."""

from collections import Counter

import numpy as np
import pytest
from captures import capture, decoded, rows, told_of

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


def test_an_evaluation_is_not_taken_for_a_level(tmp_path):
    """Without label means the number of rows is not known; trees of depth 3 and 2, AUC."""
    records, ended = decoded("watched2", tmp_path)
    assert ended.left == 0
    found = {(r.message.tree, r.message.level) for r in records
             if isinstance(r.message, HistogramSegment)}  # fmt: skip
    assert found == {(0, 0), (0, 1), (0, 2), (1, 0), (1, 1)}


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


def test_a_histogram_on_its_way_is_of_whom_it_says(tmp_path):
    """The first hop of the first column's bins is of the rows of its sender alone."""
    tables = rows("ring3")
    values = np.unique(np.concatenate([t.X[:, 0] for t in tables.values()]))
    start = np.mean([t.y.mean() for t in tables.values()])
    for r in decoded("ring3", tmp_path)[0]:
        m = r.message
        if isinstance(m, HistogramSegment) and (m.tree, m.level, m.first) == (0, 0, 0):
            y = np.concatenate([tables[p].y for p in m.parties.split(",")])
            x = np.concatenate([tables[p].X[:, 0] for p in m.parties.split(",")])
            k = len(m.sums) // 2
            own = [(start - y[x == v]).sum() for v in values[:k]]
            assert m.sums[0 : 2 * len(own) : 2] == pytest.approx(own, abs=1e-5)


@pytest.mark.parametrize("name", RUNS)
@pytest.mark.parametrize("who", ["worker-0", "worker-1", "third"])
def test_nothing_that_is_certain_is_wrong(name, who, tmp_path):
    records, _ = decoded(name, tmp_path)
    seen = [r for r in records if who == "third" or who in (r.sender, *r.receivers)]
    truth, found = rows(name), readings(seen, (who,))
    assert sum(r.wrong(truth[r.owner]) for r in found) == 0
    told = told_of(found)
    for victim in set(truth) - {who}:
        distinct = sum(len(np.unique(c)) for c in truth[victim].X.T)
        assert told["number of positives", victim] == 1
        assert told["values of a column, each with its rows", victim] == distinct
        labelled = told["values with the labels of their rows", victim]
        if who == "third" or name == "ring2":  # all hops are seen, or the other is what is left
            assert labelled >= distinct - 2  # a bin may be cut in two by a border of segments
        else:  # of each other worker about a third
            assert 0 < labelled < distinct / 2
        wrong = truth[victim].take(np.arange(len(truth[victim]))[::-1])
        swapped = type(wrong)(wrong.X, 1 - wrong.y)
        assert sum(r.wrong(swapped) for r in found if r.owner == victim) > 0


def test_sums_that_were_garbled_are_no_numbers_of_rows():
    garbled = np.array([1e308, 1.7e308, np.nan, 1.0, -1e308, 1e300, np.inf, np.inf])
    assert counts(garbled, 1e-3).tolist() == [[-1, -1]] * 4


def test_a_run_that_was_cut_off_is_read_as_far_as_it_goes(tmp_path):
    path = capture("ring2", tmp_path)
    blob = path.read_bytes()
    path.write_bytes(blob[: len(blob) * 3 // 4])
    found = Decoded(Capture(path))
    records = list(found)
    assert any(isinstance(r.message, RankedSketch) for r in records)
    assert found.ended.left > 0
    assert found.ended.why == "an operation that is not known, or was cut off"


def test_bytes_of_something_else_are_refused(tmp_path):
    path = tmp_path / "other.capture"
    with Writer(path, Run("xgboost", "3.2.0", "rabit")):
        pass
    with pytest.raises(DataError, match="before all workers are connected"):
        list(Decoded(Capture(path)))
    other = tmp_path / "new.capture"
    with Writer(other, Run("catboost", "1", "catboost-wire")):
        pass
    with pytest.raises(DataError, match="'catboost-wire'; this release decodes rabit"):
        Decoded(Capture(other))

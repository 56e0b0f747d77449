"""LightGBM's machines: recorded runs are decoded to the last byte, and read without error."""

from collections import Counter

import numpy as np
import pytest
from captures import capture, decoded, rows, told_of

from fedtrees.capture.formats import Decoded
from fedtrees.capture.readings import machine_readings
from fedtrees.capture.records import Capture, Run, Writer
from fedtrees.core.errors import DataError
from fedtrees.messages.captured import HistogramSegment, WireBytes
from fedtrees.messages.lightgbm import BinMappers, ClassRows, RootSums
from fedtrees.protocols.peers.collectives import gathering, scattering
from fedtrees.trees.lightgbm.bins import values_between

RUNS = ["machines2", "machines3"]


@pytest.mark.parametrize("name", RUNS)
def test_every_byte_between_machines_is_decoded(name, tmp_path):
    records, ended = decoded(name, tmp_path)
    assert ended.left == 0
    kinds, w = Counter(type(r.message).__name__ for r in records), len(rows(name))
    assert kinds["BinMappers"] == kinds["ClassRows"] == kinds["OwnStart"] == w
    assert kinds["RootSums"] == 2 * w  # two trees of two splits
    assert kinds["FoundSplits"] == 2 * 2 * w
    assert kinds["HistogramSegment"] == 2 * 2 * len(list(scattering(w)))


@pytest.mark.parametrize("name", RUNS)
def test_bins_are_cut_midway_between_values_of_one_machine(name, tmp_path):
    truth = rows(name)
    for r in decoded(name, tmp_path)[0]:
        if isinstance(r.message, BinMappers):
            for k in range(len(r.message.low)):
                values = np.unique(truth[r.sender].X[:, r.message.first + k]).astype(float)
                cuts = (values[1:] + values[:-1]) / 2
                assert r.message.bins(k)[1:-1] == pytest.approx(cuts)
                assert (r.message.low[k], r.message.high[k]) == (values[0], values[-1])


@pytest.mark.parametrize("name", RUNS)
def test_sums_are_those_of_the_rows(name, tmp_path):
    truth = rows(name)
    start = np.concatenate([t.y for t in truth.values()]).mean()
    for r in decoded(name, tmp_path)[0]:
        y = truth[r.sender].y
        if isinstance(r.message, ClassRows):
            assert (r.message.positives, r.message.negatives) == (y.sum(), (1 - y).sum())
        if isinstance(r.message, RootSums) and r.message.tree == 0:
            assert r.message.rows == len(y)
            assert r.message.gradient == pytest.approx((start - y).sum(), abs=1e-5)
        if isinstance(r.message, HistogramSegment) and r.message.tree == r.message.level == 0:
            held = np.concatenate([truth[p].y for p in r.message.parties.split(",")])
            whole = r.message.sums.reshape(-1, 2).sum(axis=0)
            assert whole[1] <= len(held) * start * (1 - start) * 3 + 1e-5  # three columns


@pytest.mark.parametrize("name", RUNS)
@pytest.mark.parametrize("who", ["worker-0", "worker-1", "third"])
def test_nothing_that_is_certain_is_wrong(name, who, tmp_path):
    records, _ = decoded(name, tmp_path)
    seen = [r for r in records if who == "third" or who in (r.sender, *r.receivers)]
    truth, found = rows(name), list(machine_readings(seen, (who,)))
    assert sum(r.wrong(truth[r.owner]) for r in found) == 0
    told = told_of(found)
    for victim in set(truth) - {who}:
        assert told["number of positives", victim] == 1
        labelled = told["values with the labels of their rows", victim]
        # the odd machine hands its leader all it has; over two, each sees what the other has
        leader = (who, victim) in {("worker-1", "worker-2"), ("third", "worker-2")}
        if leader or (name == "machines2" and who != "third"):
            assert labelled == len(np.unique(truth[victim].X[:, 2 if leader else 0]))
        elif who == "worker-0":
            assert not labelled
        wrong = type(truth[victim])(truth[victim].X, 1 - truth[victim].y)
        assert sum(r.wrong(wrong) for r in found if r.owner == victim) > labelled // 2


@pytest.mark.parametrize("world", range(2, 10))
@pytest.mark.parametrize("size", [0, 1 << 30])
def test_steps_bring_every_machine_what_it_wants(world, size):
    has = [{rank} for rank in range(world)]
    for step in gathering(world, size):
        assert set(step.blocks) <= has[step.sender]
        has[step.receiver] |= set(step.blocks)
    assert all(h == set(range(world)) for h in has)
    summed = [[{rank} for _ in range(world)] for rank in range(world)]
    final = {}
    for step in scattering(world, size):
        for block in step.blocks:
            part = set(step.members)
            assert summed[step.sender][block] == part
            if part == set(range(world)):
                final[step.receiver] = part
            else:
                assert not part & summed[step.receiver][block]
                summed[step.receiver][block] |= part
    for rank in range(world):
        assert (final.get(rank) or summed[rank][rank]) == set(range(world))


def test_a_value_is_certain_only_where_no_other_would_do():
    """Bins of several rows may hold several values, that cancel out."""
    values = np.array([1.0, 2.0, 5.0, 9.0])
    cuts = (values[1:] + values[:-1]) / 2
    found, certain = values_between(1.0, 9.0, cuts, np.ones(4, bool))
    assert found.tolist() == values.tolist()
    assert certain.all()
    # 1 | 3 to 4 | 10 | 18 to 19 | 30: after the first pair, all are off by one, until the second
    cuts = np.array([2.0, 7.0, 14.0, 24.5])
    found, certain = values_between(1.0, 30.0, cuts, np.array([True, False, True, False, True]))
    assert found.tolist() == [1.0, 3.0, 11.0, 17.0, 32.0][: len(found)]
    assert not certain[2:].any()
    assert not len(values_between(1.0, 9.0, np.array([1.2, 5.0]), np.ones(3, bool))[0])


def test_bytes_of_something_else_are_refused(tmp_path):
    def written(*chunks):
        path = tmp_path / f"{len(list(tmp_path.iterdir()))}.capture"
        with Writer(path, Run("lightgbm", "4.7.0", "lightgbm")) as writer:
            for link, door, opener, data in chunks:
                writer.write(WireBytes(link, door, opener, np.frombuffer(data, np.uint8)))
        return Decoded(Capture(path))

    with pytest.raises(DataError, match="before all machines are connected"):
        list(written((0, "machine:1/3", True, bytes(4))))
    with pytest.raises(DataError, match="called by one of rank 7"):
        list(written((0, "machine:1/2", True, bytes([7, 0, 0, 0]))))
    found = written((0, "machine:1/2", True, bytes(8)), (0, "machine:1/2", False, bytes(4)))
    assert list(found) == []
    assert found.ended.left == 8
    assert "0 columns" in found.ended.why


def test_a_run_that_was_cut_off_is_read_as_far_as_it_goes(tmp_path):
    path = capture("machines3", tmp_path)
    blob = path.read_bytes()
    path.write_bytes(blob[: len(blob) * 3 // 4])
    found = Decoded(Capture(path))
    assert any(isinstance(r.message, BinMappers) for r in list(found))
    assert found.ended.left > 0

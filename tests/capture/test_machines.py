"""Recorded runs of LightGBM's machines are decoded to the last byte and read without error."""

from collections import Counter

import numpy as np
import pytest
from captures import capture, count_facts, decoded, rows

from fedtrees.capture.formats import Decoded
from fedtrees.capture.readings import machine_readings
from fedtrees.capture.records import Capture, Run, Writer
from fedtrees.core.errors import DataError
from fedtrees.messages.captured import HistogramSegment, WireBytes
from fedtrees.messages.lightgbm import BinMappers, ClassRows, RootSums
from fedtrees.protocols.peers.lightgbm_data import gathering, scattering
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
def test_decoded_sums_equal_those_of_the_rows(name, tmp_path):
    truth = rows(name)
    start = np.concatenate([table.y for table in truth.values()]).mean()
    for record in decoded(name, tmp_path)[0]:
        y = truth[record.sender].y
        if isinstance(record.message, ClassRows):
            assert (record.message.positives, record.message.negatives) == (y.sum(), (1 - y).sum())
        if isinstance(record.message, RootSums) and record.message.tree == 0:
            assert record.message.rows == len(y)
            assert record.message.gradient == pytest.approx((start - y).sum(), abs=1e-5)
        if (
            isinstance(record.message, HistogramSegment)
            and record.message.tree == record.message.level == 0
        ):
            labels = np.concatenate([truth[party].y for party in record.message.parties.split(",")])
            totals = record.message.sums.reshape(-1, 2).sum(axis=0)
            assert totals[1] <= len(labels) * start * (1 - start) * 3 + 1e-5  # three columns


@pytest.mark.parametrize("name", RUNS)
@pytest.mark.parametrize("reader", ["worker-0", "worker-1", "third"])
def test_no_certain_reading_is_wrong(name, reader, tmp_path):
    records, _ = decoded(name, tmp_path)
    visible_records = [
        r for r in records if reader == "third" or reader in (r.sender, *r.receivers)
    ]
    truth, all_readings = rows(name), list(machine_readings(visible_records, (reader,)))
    assert sum(r.wrong(truth[r.owner]) for r in all_readings) == 0
    facts = count_facts(all_readings)
    for victim in set(truth) - {reader}:
        assert facts["number of positives", victim] == 1
        n_labelled = facts["values with the labels of their rows", victim]
        # The odd machine sends its leader everything. With two machines, each sees all of the
        # other's.
        leader = (reader, victim) in {("worker-1", "worker-2"), ("third", "worker-2")}
        if leader or (name == "machines2" and reader != "third"):
            assert n_labelled == len(np.unique(truth[victim].X[:, 2 if leader else 0]))
        elif reader == "worker-0":
            assert not n_labelled
        wrong_table = type(truth[victim])(truth[victim].X, 1 - truth[victim].y)
        assert (
            sum(r.wrong(wrong_table) for r in all_readings if r.owner == victim) > n_labelled // 2
        )


@pytest.mark.parametrize("world", range(2, 10))
@pytest.mark.parametrize("size", [0, 1 << 30])
def test_steps_bring_every_machine_the_complete_data(world, size):
    received = [{rank} for rank in range(world)]
    for step in gathering(world, size):
        assert set(step.blocks) <= received[step.sender]
        received[step.receiver] |= set(step.blocks)
    assert all(blocks == set(range(world)) for blocks in received)
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


def test_a_value_is_certain_only_if_no_other_value_fits():
    """Bins of several rows may contain several values, whose errors cancel out."""
    values = np.array([1.0, 2.0, 5.0, 9.0])
    cuts = (values[1:] + values[:-1]) / 2
    values_found, certain = values_between(1.0, 9.0, cuts, np.ones(4, bool))
    assert values_found.tolist() == values.tolist()
    assert certain.all()
    # 1 | 3 to 4 | 10 | 18 to 19 | 30: after the first pair, all values are wrong by one until the
    # second pair.
    cuts = np.array([2.0, 7.0, 14.0, 24.5])
    values_found, certain = values_between(
        1.0, 30.0, cuts, np.array([True, False, True, False, True])
    )
    assert values_found.tolist() == [1.0, 3.0, 11.0, 17.0, 32.0][: len(values_found)]
    assert not certain[2:].any()
    assert not len(values_between(1.0, 9.0, np.array([1.2, 5.0]), np.ones(3, bool))[0])


def test_other_bytes_are_refused(tmp_path):
    def capture_of(*chunks):
        path = tmp_path / f"{len(list(tmp_path.iterdir()))}.capture"
        with Writer(path, Run("lightgbm", "4.7.0", "lightgbm")) as writer:
            for link, door, opener, data in chunks:
                writer.write(WireBytes(link, door, opener, np.frombuffer(data, np.uint8)))
        return Decoded(Capture(path))

    with pytest.raises(DataError, match="before all machines are connected"):
        list(capture_of((0, "machine:1/3", True, bytes(4))))
    with pytest.raises(DataError, match="called by one of rank 7"):
        list(capture_of((0, "machine:1/2", True, bytes([7, 0, 0, 0]))))
    decoded_capture = capture_of(
        (0, "machine:1/2", True, bytes(8)), (0, "machine:1/2", False, bytes(4))
    )
    assert list(decoded_capture) == []
    assert decoded_capture.ended.left == 8
    assert "0 columns" in decoded_capture.ended.why


def test_a_truncated_run_is_read_up_to_its_end(tmp_path):
    path = capture("machines3", tmp_path)
    blob = path.read_bytes()
    path.write_bytes(blob[: len(blob) * 3 // 4])
    decoded_capture = Decoded(Capture(path))
    assert any(isinstance(record.message, BinMappers) for record in list(decoded_capture))
    assert decoded_capture.ended.left > 0

"""A recorded run of XGBoost's federated server equals the simulation, and readings are right."""

from collections import Counter

import numpy as np
import pytest
from captures import count_facts, decoded, rows

from fedtrees.capture.readings import readings
from fedtrees.capture.xgboost_server import Calls, fields_of
from fedtrees.core.errors import DataError
from fedtrees.core.local_data import LocalData
from fedtrees.core.schema import Feature, Schema
from fedtrees.messages.captured import HistogramSegment, LabelShare, RankedSketch, WireBytes
from fedtrees.messages.horizontal import FeatureSketch, GlobalHistogram, Histogram
from fedtrees.protocols.horizontal.histogram_protocols import NVFlareHist
from fedtrees.protocols.training import train


@pytest.fixture(scope="module")
def records(tmp_path_factory):
    records, ended = decoded("server3", tmp_path_factory.mktemp("server"))
    assert ended.left == 0
    return records


def test_every_call_is_decoded(records):
    kinds = Counter((type(r.message).__name__, r.sender == "server") for r in records)
    assert kinds == {
        ("RowCount", False): 3,
        ("LabelShare", False): 3,
        ("Intercept", False): 1,
        ("Intercept", True): 1,
        ("ColumnSizes", False): 3,
        ("RankedSketch", False): 3,
        ("RankedSketch", True): 3,  # passed on to the others
        ("HistogramSegment", False): 2 * 2 * 3,
        ("HistogramSegment", True): 2 * 2,
        ("GradientTotals", False): 2 * 3,
        ("GradientTotals", True): 2,
    }


@pytest.fixture(scope="module")
def simulated():
    """Return the messages of `nvflare-hist` on the same rows, by captured names of parties."""
    tables = rows("server3")
    names = NVFlareHist().holder_names(3)
    local_data = {
        name: LocalData.of(table, np.arange(9 * number, 9 * number + 9))
        for number, (name, table) in enumerate(zip(names, tables.values(), strict=True))
    }
    schema = Schema((Feature("f0"), Feature("f1")), "label")
    protocol = NVFlareHist(trees=2, max_depth=2, learning_rate=0.3)
    captured_names = dict(zip(names, tables, strict=True))
    return [
        (captured_names.get(delivery.sender, "server"), delivery)
        for delivery in train(protocol, local_data, schema).transcript
    ]


def test_sketches_equal_those_of_the_simulation(records, simulated):
    captured = {
        record.sender: record.message
        for record in records
        if isinstance(record.message, RankedSketch)
    }
    simulated_sketches = {
        party_name: delivery.message
        for party_name, delivery in simulated
        if isinstance(delivery.message, FeatureSketch)
    }
    for party in rows("server3"):
        for field in ("points", "weights", "offsets", "low"):
            simulated_values, captured_values = (
                getattr(simulated_sketches[party], field),
                getattr(captured[party], field),
            )
            assert simulated_values.tolist() == captured_values.tolist()


@pytest.mark.parametrize(("tree", "level"), [(0, 0), (0, 1), (1, 0), (1, 1)])
def test_histograms_equal_those_of_the_simulation(records, simulated, tree, level):
    """This holds for histograms of clients and for their sums.

    XGBoost starts at the mean of label means, and so do parts of equal size.
    """
    for message_type in (Histogram, GlobalHistogram):
        sums = Counter()
        for sender, delivery in simulated:
            message = delivery.message
            if (
                type(message) is message_type
                and message.tree == tree
                and (message.nodes[0] > 0) == bool(level)
            ):
                sums[sender] = message.sums / np.ldexp(1.0, message.bits)
        captured = {
            record.sender: record.message.sums
            for record in records
            if isinstance(record.message, HistogramSegment)
            and (record.message.tree, record.message.level) == (tree, level)
            and (record.sender == "server") == (message_type is GlobalHistogram)
        }
        assert set(sums) == set(captured)
        for party, numbers in captured.items():
            assert numbers == pytest.approx(sums[party].ravel(), abs=2e-5)


def test_label_shares_are_those_of_the_rows(records):
    for r in records:
        if isinstance(r.message, LabelShare):
            y = rows("server3")[r.sender].y
            share = pytest.approx(y.sum() / 27, abs=1e-6)
            assert (r.message.rows, r.message.share) == (len(y), share)


@pytest.mark.parametrize("reader", ["server", "worker-1", "third"])
def test_no_certain_reading_is_wrong(records, reader):
    truth = rows("server3")
    all_readings = readings(
        [r for r in records if reader in ("third", r.sender, *r.receivers)], (reader,)
    )
    assert sum(r.wrong(truth[r.owner]) for r in all_readings) == 0
    facts = count_facts(all_readings)
    for victim in set(truth) - {reader}:
        distinct = sum(len(np.unique(column)) for column in truth[victim].X.T)
        assert facts["values of a column, each with its rows", victim] == distinct
        # Worker-1 sees only sums over the two other workers.
        n_labelled = distinct if reader != "worker-1" else 0
        assert facts["values with the labels of their rows", victim] == n_labelled
        assert facts["number of positives", victim] == (reader != "worker-1")


def test_bytes_that_are_no_call_are_refused():
    hello = np.frombuffer(b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03", np.uint8)
    with pytest.raises(DataError, match="with TLS, nothing can be recorded"):
        Calls().feed(WireBytes(0, "federated", True, hello))
    with pytest.raises(DataError, match="cut off"):
        fields_of(b"\x1a\x08\x02")
    with pytest.raises(DataError, match="field of type 5"):
        fields_of(b"\x0d\x02\x00")

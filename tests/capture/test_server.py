"""XGBoost's federated server: a recorded run is what the bench simulates; certain facts hold."""

from collections import Counter

import numpy as np
import pytest
from captures import decoded, rows, told_of

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
    """Return the transcript of `nvflare-hist` on the same rows, by captured names of parties."""
    tables = rows("server3")
    names = NVFlareHist().holder_names(3)
    held = {
        name: LocalData.of(t, np.arange(9 * k, 9 * k + 9))
        for k, (name, t) in enumerate(zip(names, tables.values(), strict=True))
    }
    schema = Schema((Feature("f0"), Feature("f1")), "label")
    protocol = NVFlareHist(trees=2, max_depth=2, learning_rate=0.3)
    back = dict(zip(names, tables, strict=True))
    return [(back.get(d.sender, "server"), d) for d in train(protocol, held, schema).transcript]


def test_sketches_are_those_of_the_simulation(records, simulated):
    captured = {r.sender: r.message for r in records if isinstance(r.message, RankedSketch)}
    made = {s: d.message for s, d in simulated if isinstance(d.message, FeatureSketch)}
    for party in rows("server3"):
        for field in ("points", "weights", "offsets", "low"):
            ours, theirs = getattr(made[party], field), getattr(captured[party], field)
            assert ours.tolist() == theirs.tolist()


@pytest.mark.parametrize(("tree", "level"), [(0, 0), (0, 1), (1, 0), (1, 1)])
def test_histograms_are_those_of_the_simulation(records, simulated, tree, level):
    """Clients' own and their sums; XGBoost starts at the mean of label means, so do equal parts."""
    for kind in (Histogram, GlobalHistogram):
        sums = Counter()
        for sender, d in simulated:
            m = d.message
            if type(m) is kind and m.tree == tree and (m.nodes[0] > 0) == bool(level):
                sums[sender] = m.sums / np.ldexp(1.0, m.bits)
        captured = {
            r.sender: r.message.sums
            for r in records
            if isinstance(r.message, HistogramSegment)
            and (r.message.tree, r.message.level) == (tree, level)
            and (r.sender == "server") == (kind is GlobalHistogram)
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


@pytest.mark.parametrize("who", ["server", "worker-1", "third"])
def test_nothing_that_is_certain_is_wrong(records, who):
    truth = rows("server3")
    found = readings([r for r in records if who in ("third", r.sender, *r.receivers)], (who,))
    assert sum(r.wrong(truth[r.owner]) for r in found) == 0
    told = told_of(found)
    for victim in set(truth) - {who}:
        distinct = sum(len(np.unique(c)) for c in truth[victim].X.T)
        assert told["values of a column, each with its rows", victim] == distinct
        every = distinct if who != "worker-1" else 0  # of others, it sees sums over two
        assert told["values with the labels of their rows", victim] == every
        assert told["number of positives", victim] == (who != "worker-1")


def test_what_is_no_call_is_refused():
    hello = np.frombuffer(b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03", np.uint8)
    with pytest.raises(DataError, match="with TLS, nothing can be recorded"):
        Calls().feed(WireBytes(0, "federated", True, hello))
    with pytest.raises(DataError, match="cut off"):
        fields_of(b"\x1a\x08\x02")
    with pytest.raises(DataError, match="field of type 5"):
        fields_of(b"\x0d\x02\x00")

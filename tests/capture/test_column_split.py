"""XGBoost's federated server over columns: labels of all rows, and values that are in no model."""

import numpy as np
import pytest
from captures import decoded, rows

from fedtrees.capture.collective import OtherOperation
from fedtrees.capture.readings import readings
from fedtrees.capture.xgboost_server import Call, messages
from fedtrees.messages.captured import BestSplits, RowGradients


@pytest.fixture(scope="module")
def records(tmp_path_factory):
    records, ended = decoded("columns3", tmp_path_factory.mktemp("columns"))
    assert ended.left == 0
    return records


def test_gradients_are_those_of_the_labels(records):
    sent = [r.message for r in records if isinstance(r.message, RowGradients)]
    y = rows("columns3")["worker-0"].y
    assert [m.round for m in sent] == [0, 0, 1, 1]  # to the server, and on to the others
    assert sent[0].g == pytest.approx(y.mean() - y, abs=1e-6)
    assert sent[0].h == pytest.approx(y.mean() * (1 - y.mean()), abs=1e-6)


def test_every_party_tells_its_own_best_split_of_every_node(records):
    roots = [
        r for r in records
        if isinstance(r.message, BestSplits) and r.message.node.tolist() == [0]
        and r.message.round == 0 and r.receivers == ("server",)
    ]  # fmt: skip
    assert [r.sender for r in roots] == [r.message.owner for r in roots] == [*rows("columns3")]
    y = rows("columns3")["worker-0"].y
    for m in (r.message for r in roots):
        x = rows("columns3")[m.owner].X[:, m.feature[0] - m.first]
        left = x < m.threshold[0]
        for side, sums in ((left, m.left[0]), (~left, m.right[0])):
            expected = (y.mean() - y)[side].sum(), side.sum() * y.mean() * (1 - y.mean())
            assert sums == pytest.approx(expected, abs=1e-4)


@pytest.mark.parametrize("who", ["server", "worker-1", "third"])
def test_all_labels_are_read_and_thresholds_are_values(records, who):
    truth = rows("columns3")
    found = readings([r for r in records if who in ("third", r.sender, *r.receivers)], (who,))
    assert all(r.wrong(truth[r.owner]) == 0 for r in found)
    (labels,) = (r for r in found if r.certain)
    assert (labels.owner, labels.labels) == ("worker-0", tuple(truth["worker-0"].y))
    others = {r.owner for r in found if not r.certain}
    assert others == set(truth) - {who}
    turned = {name: type(t)(np.nextafter(t.X, np.inf), 1 - t.y) for name, t in truth.items()}
    assert all(r.wrong(turned[r.owner]) == len(r.facts) for r in found)


def test_who_has_the_labels_reads_none(records):
    seen = [r for r in records if "worker-0" in (r.sender, *r.receivers)]
    assert not any(r.certain for r in readings(seen, ("worker-0",)))


def test_calls_of_something_else_are_told():
    with pytest.raises(OtherOperation, match="do not begin with their numbers"):
        list(messages(iter([Call({0: b"abc", 1: b"abc"}, answer=b"abcabc")]), 2))

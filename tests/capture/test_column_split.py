"""XGBoost's federated server over columns reveals all labels, and values that are in no model."""

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


def test_gradients_are_computed_from_the_labels(records):
    sent = [record.message for record in records if isinstance(record.message, RowGradients)]
    y = rows("columns3")["worker-0"].y
    # To the server, and from it to the other workers.
    assert [gradients.round for gradients in sent] == [0, 0, 1, 1]
    assert sent[0].g == pytest.approx(y.mean() - y, abs=1e-6)
    assert sent[0].h == pytest.approx(y.mean() * (1 - y.mean()), abs=1e-6)


def test_every_party_sends_its_own_best_split_of_every_node(records):
    roots = [
        record for record in records
        if isinstance(record.message, BestSplits) and record.message.node.tolist() == [0]
        and record.message.round == 0 and record.receivers == ("server",)
    ]  # fmt: skip
    assert (
        [record.sender for record in roots]
        == [record.message.owner for record in roots]
        == [*rows("columns3")]
    )
    y = rows("columns3")["worker-0"].y
    for splits in (record.message for record in roots):
        x = rows("columns3")[splits.owner].X[:, splits.feature[0] - splits.first]
        is_left = x < splits.threshold[0]
        for is_on_side, sums in ((is_left, splits.left[0]), (~is_left, splits.right[0])):
            expected = (
                (y.mean() - y)[is_on_side].sum(),
                is_on_side.sum() * y.mean() * (1 - y.mean()),
            )
            assert sums == pytest.approx(expected, abs=1e-4)


@pytest.mark.parametrize("reader", ["server", "worker-1", "third"])
def test_all_labels_are_read_and_thresholds_are_values(records, reader):
    truth = rows("columns3")
    all_readings = readings(
        [r for r in records if reader in ("third", r.sender, *r.receivers)], (reader,)
    )
    assert all(r.wrong(truth[r.owner]) == 0 for r in all_readings)
    (labels,) = (r for r in all_readings if r.certain)
    assert (labels.owner, labels.labels) == ("worker-0", tuple(truth["worker-0"].y))
    others = {r.owner for r in all_readings if not r.certain}
    assert others == set(truth) - {reader}
    changed_truth = {
        name: type(table)(np.nextafter(table.X, np.inf), 1 - table.y)
        for name, table in truth.items()
    }
    assert all(r.wrong(changed_truth[r.owner]) == len(r.facts) for r in all_readings)


def test_the_party_with_the_labels_reads_no_labels(records):
    visible_records = [r for r in records if "worker-0" in (r.sender, *r.receivers)]
    assert not any(r.certain for r in readings(visible_records, ("worker-0",)))


def test_calls_of_another_operation_are_reported():
    with pytest.raises(OtherOperation, match="do not begin with their numbers"):
        list(messages(iter([Call({0: b"abc", 1: b"abc"}, answer=b"abcabc")]), 2))

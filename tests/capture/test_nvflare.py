"""NVFlare's histograms as its own controller recorded them, and jobs changed to record."""

import json
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest
from captures import capture, rows

from fedtrees.capture.attack import main_scores, replayed_view, report
from fedtrees.capture.differences import BESIDES, from_protocol
from fedtrees.capture.formats import Decoded
from fedtrees.capture.jobs import recorded_job
from fedtrees.capture.records import Capture
from fedtrees.capture.replay import Replay
from fedtrees.core.errors import DataError, UsageError
from fedtrees.core.specs import Spec
from fedtrees.isolation.process import attack_process
from fedtrees.messages.captured import CollectiveCall

EXAMPLES = Path(__file__).parents[2] / "docs" / "examples" / "capture"
FED = "nvflare.app_opt.xgboost.histogram_based_v2.fed_controller.XGBFedController"


@pytest.fixture(scope="module")
def path(tmp_path_factory):
    return capture("nvflare3", tmp_path_factory.mktemp("nvflare"))


def test_calls_recorded_by_a_controller_are_decoded_like_those_of_a_server(path):
    decoded_capture = Decoded(Capture(path))
    records = list(decoded_capture)
    assert not decoded_capture.ended.left
    kinds = Counter(
        type(record.message).__name__ for record in records if record.sender != "server"
    )
    assert kinds["LabelShare"] == kinds["RankedSketch"] == kinds["ColumnSizes"] == 3
    assert kinds["GradientTotals"] == 3 * 2  # two trees
    assert {record.sender for record in records} == {"server", "worker-0", "worker-1", "worker-2"}


def test_an_attack_scores_the_same_on_the_capture_and_in_simulation(path):
    truth = rows("nvflare3")
    result = report(str(path), "server", truth, named=("sketch-reading",))
    assert not any(row["wrong"] for row in result["readings"])
    (attack,) = result["attacks"]
    replay = Replay.of(Decoded(Capture(path)))
    view, case = replayed_view(replay, "server", truth, simulated=True)
    guess = attack_process().run(Spec("sketch-reading"), view).guess
    assert attack["scores"] == main_scores("sketch-reading", guess, case)
    value, blind = attack["scores"]["column_values"]
    assert value == 1.0 > blind


def test_secure_training_without_encryption_is_reported_first(tmp_path):
    path, truth = capture("secure3", tmp_path), rows("secure3")
    result = report(str(path), "worker-1", truth)
    calls = [
        record.message for record in Capture(path) if isinstance(record.message, CollectiveCall)
    ]
    assert result["promises"][0] == (
        f"secure training encrypts: 0 of {len(calls)} messages are encrypted"
    )
    (labels,) = (row for row in result["readings"] if row["reading"].startswith("labels of rows"))
    assert (labels["read"], labels["wrong"]) == (len(truth["worker-0"]), 0)


def test_a_job_determines_its_protocol_and_every_message_equals_the_simulation(path):
    protocol_text = "nvflare-hist[trees=2,max_depth=3,learning_rate=0.3]"
    assert Replay.of(Decoded(Capture(path))).protocol.max_depth == 3
    comparison = from_protocol(str(path), None, protocol_text, rows("nvflare3"))
    differences = {row["message"]: row["apart"] for row in comparison["kinds"]}
    assert comparison["same"], differences
    assert {message_type for message_type, reason in differences.items() if reason} == {*BESIDES}
    equal_counts = {row["message"]: row["count"] for row in comparison["kinds"] if not row["apart"]}
    assert equal_counts["Histogram"] == [n := equal_counts["GlobalHistogram"][0], n]
    other_comparison = from_protocol(
        str(path), None, protocol_text.replace("0.3", "0.1"), rows("nvflare3")
    )
    assert not other_comparison["same"]


def test_a_protocol_of_another_shape_is_no_replay(path):
    with pytest.raises(DataError, match="but the protocol expects"):
        from_protocol(str(path), None, "nvflare-hist[trees=2,max_depth=5]", rows("nvflare3"))
    with pytest.raises(UsageError, match="no capture is replayed as secureboost"):
        from_protocol(str(path), None, "secureboost", rows("nvflare3"))
    with pytest.raises(UsageError, match="lacks"):
        from_protocol(str(path), None, "nvflare-hist", {})


@pytest.mark.parametrize(
    ("config", "path"),
    [
        ({"workflows": [{"path": FED, "args": {"num_rounds": 2}}], "components": []}, "workflows"),
        (
            {
                "workflows": [{"path": "nvflare.app_common.workflows.cyclic_ctl.CyclicController"}],
                "components": [{"path": "nvflare.app_opt.xgboost.tree_based.model_persistor.X"}],
            },
            "components",
        ),
    ],
)
def test_a_job_is_copied_and_its_server_configured_to_record(config, path, tmp_path):
    config_path = tmp_path / "job" / "app_server" / "config" / "config_fed_server.json"
    config_path.parent.mkdir(parents=True)
    config_path.write_text(json.dumps(config))
    copy = recorded_job(tmp_path / "job", tmp_path / "run.capture")
    assert json.loads(config_path.read_text()) == config
    app = copy / "app_server"
    changed = json.loads((app / "config" / config_path.name).read_text())[path][-1]
    assert changed["path"].startswith("fedtrees_capture.Record")
    assert changed["args"]["capture"] == str(tmp_path / "run.capture")
    assert (app / "custom" / "fedtrees_capture.py").exists()
    with pytest.raises(UsageError, match="is there already"):
        recorded_job(tmp_path / "job", tmp_path / "run.capture")


@pytest.mark.parametrize(
    "text", ["{", "[]", '{"workflows": 1}', '{"workflows": [], "components": []}']
)
def test_a_folder_that_is_no_xgboost_job_is_refused_without_a_copy(text, tmp_path):
    config_path = tmp_path / "job" / "app" / "config" / "config_fed_server.json"
    config_path.parent.mkdir(parents=True)
    config_path.write_text(text)
    with pytest.raises((DataError, UsageError), match="job"):
        recorded_job(tmp_path / "job", tmp_path / "run.capture")
    assert [path.name for path in tmp_path.iterdir()] == ["job"]


@pytest.mark.extra("nvflare")
@pytest.mark.parametrize("kind", ["histogram", "bagging"])
def test_messages_of_the_installed_nvflare_are_captured_and_read(kind, tmp_path):
    command = [sys.executable, str(EXAMPLES / "nvflare_loopback.py"), kind, "--rows", "90"]
    subprocess.run([*command, "--out", str(tmp_path)], check=True, timeout=900)
    name = "worker-{}" if kind == "histogram" else "site-{}"
    truth = {
        name.format(number + (kind != "histogram")): table
        for number, table in enumerate(rows(tmp_path).values())
    }
    result = report(str(tmp_path / "run.capture"), "server", truth, named=("sketch-reading",))
    assert result["readings"]
    assert not any(row.get("wrong") for row in result["readings"] if row["certain"] == "yes")

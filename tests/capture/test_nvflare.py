"""NVFlare's histograms, recorded by its own controller; jobs that are changed to record; anew."""

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


def test_calls_that_a_controller_answered_are_decoded_as_those_of_a_server(path):
    found = Decoded(Capture(path))
    records = list(found)
    assert not found.ended.left
    kinds = Counter(type(r.message).__name__ for r in records if r.sender != "server")
    assert kinds["LabelShare"] == kinds["RankedSketch"] == kinds["ColumnSizes"] == 3
    assert kinds["GradientTotals"] == 3 * 2  # two trees
    assert {r.sender for r in records} == {"server", "worker-0", "worker-1", "worker-2"}


def test_an_attack_reaches_on_the_capture_what_it_reaches_in_simulation(path):
    truth = rows("nvflare3")
    told = report(str(path), "server", truth, named=("sketch-reading",))
    assert not any(row["wrong"] for row in told["readings"])
    (attack,) = told["attacks"]
    again = Replay.of(Decoded(Capture(path)))
    view, case = replayed_view(again, "server", truth, simulated=True)
    guess = attack_process().run(Spec("sketch-reading"), view).guess
    assert attack["scores"] == main_scores("sketch-reading", guess, case)
    value, blind = attack["scores"]["column_values"]
    assert value == 1.0 > blind


def test_secure_training_that_encrypts_nothing_is_said_first(tmp_path):
    path, truth = capture("secure3", tmp_path), rows("secure3")
    told = report(str(path), "worker-1", truth)
    calls = [r.message for r in Capture(path) if isinstance(r.message, CollectiveCall)]
    assert told["promises"][0] == (
        f"secure training encrypts: 0 of {len(calls)} messages are encrypted"
    )
    (labels,) = (row for row in told["readings"] if row["reading"].startswith("labels of rows"))
    assert (labels["read"], labels["wrong"]) == (len(truth["worker-0"]), 0)


def test_a_job_tells_its_protocol_and_every_message_is_the_simulation_s(path):
    named = "nvflare-hist[trees=2,max_depth=3,learning_rate=0.3]"
    assert Replay.of(Decoded(Capture(path))).protocol.max_depth == 3
    told = from_protocol(str(path), None, named, rows("nvflare3"))
    apart = {row["message"]: row["apart"] for row in told["kinds"]}
    assert told["same"], apart
    assert {m for m, why in apart.items() if why} == {*BESIDES}
    same = {row["message"]: row["count"] for row in told["kinds"] if not row["apart"]}
    assert same["Histogram"] == [n := same["GlobalHistogram"][0], n]
    other = from_protocol(str(path), None, named.replace("0.3", "0.1"), rows("nvflare3"))
    assert not other["same"]


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
def test_a_job_is_copied_and_its_server_told_to_record(config, path, tmp_path):
    where = tmp_path / "job" / "app_server" / "config" / "config_fed_server.json"
    where.parent.mkdir(parents=True)
    where.write_text(json.dumps(config))
    copy = recorded_job(tmp_path / "job", tmp_path / "run.capture")
    assert json.loads(where.read_text()) == config
    app = copy / "app_server"
    changed = json.loads((app / "config" / where.name).read_text())[path][-1]
    assert changed["path"].startswith("fedtrees_capture.Record")
    assert changed["args"]["capture"] == str(tmp_path / "run.capture")
    assert (app / "custom" / "fedtrees_capture.py").exists()
    with pytest.raises(UsageError, match="is there already"):
        recorded_job(tmp_path / "job", tmp_path / "run.capture")


@pytest.mark.parametrize(
    "text", ["{", "[]", '{"workflows": 1}', '{"workflows": [], "components": []}']
)
def test_what_is_no_job_of_xgboost_is_refused_and_nothing_left(text, tmp_path):
    where = tmp_path / "job" / "app" / "config" / "config_fed_server.json"
    where.parent.mkdir(parents=True)
    where.write_text(text)
    with pytest.raises((DataError, UsageError), match="job"):
        recorded_job(tmp_path / "job", tmp_path / "run.capture")
    assert [p.name for p in tmp_path.iterdir()] == ["job"]


@pytest.mark.extra("nvflare")
@pytest.mark.parametrize("kind", ["histogram", "bagging"])
def test_what_nvflare_sends_today_is_captured_and_read(kind, tmp_path):
    command = [sys.executable, str(EXAMPLES / "nvflare_loopback.py"), kind, "--rows", "90"]
    subprocess.run([*command, "--out", str(tmp_path)], check=True, timeout=900)
    name = "worker-{}" if kind == "histogram" else "site-{}"
    truth = {
        name.format(k + (kind != "histogram")): table
        for k, table in enumerate(rows(tmp_path).values())
    }
    told = report(str(tmp_path / "run.capture"), "server", truth, named=("sketch-reading",))
    assert told["readings"]
    assert not any(row.get("wrong") for row in told["readings"] if row["certain"] == "yes")

"""Models that sites boosted by themselves: NVFlare's bagging, recorded, and Flower's of today."""

import json
import sys
from collections import Counter
from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path

import numpy as np
import pytest
import xgboost as xgb
from captures import capture, rows

from fedtrees.capture.attack import report
from fedtrees.capture.formats import Decoded
from fedtrees.capture.readings import audited, model_readings
from fedtrees.capture.records import Capture, Run, Writer
from fedtrees.capture.replay import Replay
from fedtrees.core.schema import Table
from fedtrees.messages.captured import Intercept, ModelBytes
from fedtrees.messages.horizontal import ClientTrees, GlobalTrees, GrowRequest

EXAMPLES = Path(__file__).parents[2] / "docs" / "examples" / "capture"


@pytest.fixture(scope="module")
def path(tmp_path_factory):
    return capture("trees3", tmp_path_factory.mktemp("trees"))


def found(path, who):
    shared, told = audited(Capture(path), who)
    return shared, list(model_readings(shared, told, who))


def test_two_rounds_of_three_sites_are_told_in_the_bench_s_messages(path):
    decoder = Decoded(Capture(path))
    records = list(decoder)
    assert not decoder.ended.left
    kinds = Counter((type(r.message), r.sender == "server") for r in records)
    assert kinds == {
        (ClientTrees, False): 6,
        (GlobalTrees, True): 3,
        (Intercept, True): 9,  # every site is told where each of them started
        (GrowRequest, True): 6,
    }
    rounds = [(r.message.round, r.sender) for r in records if isinstance(r.message, ClientTrees)]
    assert sorted(rounds) == [(k, f"site-{s}") for k in (0, 1) for s in (1, 2, 3)]
    told = [r.message for r in records if isinstance(r.message, GlobalTrees)]
    assert {(m.round, m.first, len(m.sizes)) for m in told} == {(0, 0, 3)}


def test_the_server_counts_every_leaf_of_first_trees_though_sums_are_masked(path):
    truth = rows("trees3")
    shared, told = found(path, "server")
    assert all((np.concatenate([s.ravel()]) == 1).all() for s in shared.model.raw["sum_hessian"])
    counted = [r for r in told if not r.what.startswith("thresholds")]
    assert sum(r.wrong(truth[r.owner]) for r in counted) == 0
    # The trees do not show whether every row was used once and with weight 1.
    assert {r.what for r in told if r.certain} == {"mean label"}
    for site, table in truth.items():
        facts = {(r.what, r.owner): r.facts for r in counted}
        assert facts["number of rows", site] == ((None, None, len(table), None),)
        assert facts["number of positives", site] == ((None, None, None, int(table.y.sum())),)
        assert facts["mean label", site][0][1] == pytest.approx(table.y.mean(), abs=1e-7)
        leaves = facts["leaves with their rows and positives", site]
        assert sum(f[2] for f in leaves) == len(table)
        assert sum(f[3] for f in leaves) == table.y.sum()
    cuts = [r for r in told if r.what.startswith("thresholds")]
    assert sum(r.wrong(truth[r.owner]) for r in cuts) == 0
    assert {r.owner for r in cuts} == {*truth}


def test_a_site_counts_the_leaves_of_the_others(path):
    truth = rows("trees3")
    shared, told = found(path, "site-1")
    assert Counter(shared.owners) == {"site-1": 1, "one of the other parties": 2}
    (leaves,) = (r for r in told if r.what.startswith("leaves"))
    others = [truth[s] for s in ("site-2", "site-3")]
    assert leaves.wrong_of_all(others) == 0
    assert min(leaves.wrong(other) for other in others) > 0


def test_what_was_promised_comes_first_and_masks_are_named(path):
    told = report(str(path), "server", rows("trees3"), named=("sketch-reading",))
    assert ["sums of hessians are masked" in line for line in told["promises"]] == [True]
    assert not any(row.get("wrong") for row in told["readings"])


def test_a_run_is_replayed_as_the_protocol_that_it_is(path):
    """Trees that the bench's sites grow on the same rows are those that were captured."""
    again = Replay.of(Decoded(Capture(path)))
    assert again.protocol.learning_rate == pytest.approx(0.1 / 3)  # NVFlare's, over three sites
    assert (again.protocol.trees, again.protocol.max_depth) == (2, 2)
    tables = rows("trees3")
    assert again.rows == {site: len(table) for site, table in tables.items()}
    again = replace(again, protocol=replace(again.protocol, max_depth=3))
    replayed, simulated = (
        {(d.sender, d.message.round): d.message for d in run.transcript
         if isinstance(d.message, ClientTrees)}
        for run in (again.run(), again.run(tables))
    )  # fmt: skip
    assert replayed.keys() == simulated.keys()
    assert len(replayed) == 6
    for key, one in replayed.items():
        for name in ("feature", "threshold", "left"):
            assert getattr(one, name).tolist() == getattr(simulated[key], name).tolist()
        assert one.value == pytest.approx(simulated[key].value, abs=1e-6)


def test_damaged_models_and_lost_parts_end_the_decoding_and_say_why(tmp_path):
    path = tmp_path / "run.capture"
    with Writer(path, Run("nvflare", wire="nvflare-trees")) as writer:
        writer.write(ModelBytes(np.zeros(0, np.uint8)), "server", ("site-1",))
        writer.write(ModelBytes(np.frombuffer(b'{"learner": 1}', np.uint8)), "site-1", ("server",))
        writer.write(ModelBytes(np.zeros(0, np.uint8), 1, 3), "server", ("site-2",))
    decoder = Decoded(Capture(path))
    assert [type(r.message) for r in decoder] == [GrowRequest]
    assert decoder.ended.left == 14
    assert "what 'site-1' sent: not an XGBoost model" in decoder.ended.why


def test_a_first_tree_is_counted_by_the_base_score_that_came_with_it(tmp_path):
    """Two leaves of 14 and 16 rows: their sums alone also fit 7 and 8 of another base score."""
    rng = np.random.default_rng(0)
    parts = [np.repeat([[0.0, 0.0], [1.0, 0.0]], [14, 16], axis=0), 2 * rng.random((30, 2))]
    labels = [(rng.random(30) < 0.2 + 0.6 * part[:, 0]).astype(int) for part in parts]
    params = {"objective": "binary:logistic", "max_depth": 3, "nthread": 1}
    path, model = tmp_path / "run.capture", b""
    with Writer(path, Run("flwr", wire="flower")) as writer:
        for site, part, y in zip(("site-1", "site-2"), parts, labels, strict=True):
            writer.write(ModelBytes(np.frombuffer(model, np.uint8)), "server", (site,))
            rows, before = xgb.DMatrix(part, y), xgb.Booster() if model else None
            if before is not None:
                before.load_model(bytearray(model))
            model = bytes(xgb.train(params, rows, 1, xgb_model=before).save_raw("json"))
            writer.write(ModelBytes(np.frombuffer(model, np.uint8)), site, ("server",))
    for who in ("server", "third"):
        _, told = found(path, who)
        counted = {r.what: r for r in told if r.owner == "site-1"}
        assert counted["number of rows"].facts == ((None, None, 30, None),)
        assert counted["mean label"].certain
        truth = Table(parts[0].astype(np.float32), labels[0])
        assert [r.wrong(truth) for r in counted.values()] == [0] * 5
        assert not {r.what for r in told if r.owner == "site-2"} & {"number of rows", "mean label"}


@pytest.mark.skipif(
    find_spec("flwr") is None,
    reason="needs flwr, which installs beside older versions of typer alone: no extra",
)
@pytest.mark.parametrize(
    ("kind", "seed"), [("bagging", 0), ("cyclic", 0), ("cyclic", 1), ("cyclic", 2)]
)
def test_what_flower_s_strategies_send_today_is_read(kind, seed, tmp_path, monkeypatch):
    monkeypatch.syspath_prepend(str(EXAMPLES))
    command = ["flower_here.py", kind, "--rows", "90", "--seed", str(seed)]
    monkeypatch.setattr(sys, "argv", [*command, "--out", str(tmp_path)])
    __import__("flower_here").main()
    path = tmp_path / "run.capture"
    truth = {f"node-{k}": t for k, t in enumerate(rows(tmp_path).values(), start=1)}
    told = report(str(path), "server", truth, named=("sketch-reading",))
    answers = [r.sender for r in Capture(path) if r.sender != "server"]
    # Flower draws the order; who continues a model shows neither its rows nor its label mean
    began = sorted(truth) if kind == "bagging" else answers[:1]
    for reading in ("number of rows", "number of positives", "mean label"):
        found = [row for row in told["readings"] if row["reading"] == reading]
        assert sorted(row["of"] for row in found) == began
        # The trees do not show whether every row was used once and with weight 1.
        certain = "yes" if reading == "mean label" else "no"
        assert {(row["certain"], row["wrong"]) for row in found} == {(certain, 0)}
    assert not any(row["wrong"] for row in told["readings"])
    assert json.dumps(told)

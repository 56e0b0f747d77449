"""Models that sites boosted locally: recorded bagging of NVFlare, and Flower as installed."""

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


def read_models(path, reader):
    shared, trees_of_parties = audited(Capture(path), reader)
    return shared, list(model_readings(shared, trees_of_parties, reader))


def test_two_rounds_of_three_sites_are_decoded_as_messages_of_the_benchmark(path):
    decoder = Decoded(Capture(path))
    records = list(decoder)
    assert not decoder.ended.left
    kinds = Counter((type(record.message), record.sender == "server") for record in records)
    assert kinds == {
        (ClientTrees, False): 6,
        (GlobalTrees, True): 3,
        (Intercept, True): 9,  # Every site receives the intercept of each site.
        (GrowRequest, True): 6,
    }
    rounds = [
        (record.message.round, record.sender)
        for record in records
        if isinstance(record.message, ClientTrees)
    ]
    assert sorted(rounds) == [
        (round_number, f"site-{site}") for round_number in (0, 1) for site in (1, 2, 3)
    ]
    global_trees = [record.message for record in records if isinstance(record.message, GlobalTrees)]
    assert {(message.round, message.first, len(message.sizes)) for message in global_trees} == {
        (0, 0, 3)
    }


def test_the_server_counts_every_leaf_of_first_trees_though_sums_are_masked(path):
    truth = rows("trees3")
    shared, readings = read_models(path, "server")
    assert all(
        (np.concatenate([sums.ravel()]) == 1).all() for sums in shared.model.raw["sum_hessian"]
    )
    counts = [reading for reading in readings if not reading.what.startswith("thresholds")]
    assert sum(reading.wrong(truth[reading.owner]) for reading in counts) == 0
    # The trees do not show whether every row was used once and with weight 1.
    assert {reading.what for reading in readings if reading.certain} == {"mean label"}
    for site, table in truth.items():
        facts = {(reading.what, reading.owner): reading.facts for reading in counts}
        assert facts["number of rows", site] == ((None, None, len(table), None),)
        assert facts["number of positives", site] == ((None, None, None, int(table.y.sum())),)
        assert facts["mean label", site][0][1] == pytest.approx(table.y.mean(), abs=1e-7)
        leaves = facts["leaves with their rows and positives", site]
        assert sum(leaf[2] for leaf in leaves) == len(table)
        assert sum(leaf[3] for leaf in leaves) == table.y.sum()
    thresholds = [reading for reading in readings if reading.what.startswith("thresholds")]
    assert sum(reading.wrong(truth[reading.owner]) for reading in thresholds) == 0
    assert {reading.owner for reading in thresholds} == {*truth}


def test_a_site_counts_the_leaves_of_the_others(path):
    truth = rows("trees3")
    shared, readings = read_models(path, "site-1")
    assert Counter(shared.owners) == {"site-1": 1, "one of the other parties": 2}
    (leaves,) = (reading for reading in readings if reading.what.startswith("leaves"))
    others = [truth[site] for site in ("site-2", "site-3")]
    assert leaves.wrong_of_all(others) == 0
    assert min(leaves.wrong(other) for other in others) > 0


def test_broken_promises_come_first_and_masks_are_named(path):
    result = report(str(path), "server", rows("trees3"), named=("sketch-reading",))
    assert ["sums of hessians are masked" in line for line in result["promises"]] == [True]
    assert not any(row.get("wrong") for row in result["readings"])


def test_a_run_is_replayed_with_its_own_protocol(path):
    """Trees that the benchmark's sites grow on the same rows equal the captured ones."""
    replay = Replay.of(Decoded(Capture(path)))
    # NVFlare divides the learning rate by the number of sites.
    assert replay.protocol.learning_rate == pytest.approx(0.1 / 3)
    assert (replay.protocol.trees, replay.protocol.max_depth) == (2, 2)
    tables = rows("trees3")
    assert replay.rows == {site: len(table) for site, table in tables.items()}
    replay = replace(replay, protocol=replace(replay.protocol, max_depth=3))
    replayed, simulated = (
        {(delivery.sender, delivery.message.round): delivery.message for delivery in run.transcript
         if isinstance(delivery.message, ClientTrees)}
        for run in (replay.run(), replay.run(tables))
    )  # fmt: skip
    assert replayed.keys() == simulated.keys()
    assert len(replayed) == 6
    for key, message in replayed.items():
        for name in ("feature", "threshold", "left"):
            assert getattr(message, name).tolist() == getattr(simulated[key], name).tolist()
        assert message.value == pytest.approx(simulated[key].value, abs=1e-6)


def test_damaged_models_and_lost_parts_end_the_decoding_with_a_reason(tmp_path):
    path = tmp_path / "run.capture"
    with Writer(path, Run("nvflare", wire="nvflare-trees")) as writer:
        writer.write(ModelBytes(np.zeros(0, np.uint8)), "server", ("site-1",))
        writer.write(ModelBytes(np.frombuffer(b'{"learner": 1}', np.uint8)), "site-1", ("server",))
        writer.write(ModelBytes(np.zeros(0, np.uint8), 1, 3), "server", ("site-2",))
    decoder = Decoded(Capture(path))
    assert [type(record.message) for record in decoder] == [GrowRequest]
    assert decoder.ended.left == 14
    assert "what 'site-1' sent: not an XGBoost model" in decoder.ended.why


def test_a_first_tree_is_counted_with_the_base_score_that_came_with_it(tmp_path):
    """Without it, sums of leaves of 14 and 16 rows also fit 7 and 8 rows and another score."""
    rng = np.random.default_rng(0)
    parts = [np.repeat([[0.0, 0.0], [1.0, 0.0]], [14, 16], axis=0), 2 * rng.random((30, 2))]
    labels = [(rng.random(30) < 0.2 + 0.6 * part[:, 0]).astype(int) for part in parts]
    params = {"objective": "binary:logistic", "max_depth": 3, "nthread": 1}
    path, model = tmp_path / "run.capture", b""
    with Writer(path, Run("flwr", wire="flower")) as writer:
        for site, part, y in zip(("site-1", "site-2"), parts, labels, strict=True):
            writer.write(ModelBytes(np.frombuffer(model, np.uint8)), "server", (site,))
            rows, previous = xgb.DMatrix(part, y), xgb.Booster() if model else None
            if previous is not None:
                previous.load_model(bytearray(model))
            model = bytes(xgb.train(params, rows, 1, xgb_model=previous).save_raw("json"))
            writer.write(ModelBytes(np.frombuffer(model, np.uint8)), site, ("server",))
    for reader in ("server", "third"):
        _, readings = read_models(path, reader)
        by_kind = {reading.what: reading for reading in readings if reading.owner == "site-1"}
        assert by_kind["number of rows"].facts == ((None, None, 30, None),)
        assert by_kind["mean label"].certain
        truth = Table(parts[0].astype(np.float32), labels[0])
        assert [reading.wrong(truth) for reading in by_kind.values()] == [0] * 5
        assert not {reading.what for reading in readings if reading.owner == "site-2"} & {
            "number of rows",
            "mean label",
        }


@pytest.mark.skipif(
    find_spec("flwr") is None,
    reason="needs flwr, which installs beside older versions of typer alone: no extra",
)
@pytest.mark.parametrize(
    ("kind", "seed"), [("bagging", 0), ("cyclic", 0), ("cyclic", 1), ("cyclic", 2)]
)
def test_messages_of_the_installed_flower_strategies_are_read(kind, seed, tmp_path, monkeypatch):
    monkeypatch.syspath_prepend(str(EXAMPLES))
    command = ["flower_here.py", kind, "--rows", "90", "--seed", str(seed)]
    monkeypatch.setattr(sys, "argv", [*command, "--out", str(tmp_path)])
    __import__("flower_here").main()
    path = tmp_path / "run.capture"
    truth = {
        f"node-{number}": table for number, table in enumerate(rows(tmp_path).values(), start=1)
    }
    result = report(str(path), "server", truth, named=("sketch-reading",))
    answers = [record.sender for record in Capture(path) if record.sender != "server"]
    # Flower draws the order. A site that continues a model shows neither its rows nor its label
    # mean.
    first_senders = sorted(truth) if kind == "bagging" else answers[:1]
    for reading in ("number of rows", "number of positives", "mean label"):
        rows_of_reading = [row for row in result["readings"] if row["reading"] == reading]
        assert sorted(row["of"] for row in rows_of_reading) == first_senders
        # The trees do not show whether every row was used once and with weight 1.
        certain = "yes" if reading == "mean label" else "no"
        assert {(row["certain"], row["wrong"]) for row in rows_of_reading} == {(certain, 0)}
    assert not any(row["wrong"] for row in result["readings"])
    assert json.dumps(result)

"""One table of what is measured: every key is in it, and nobody else knows a key by heart."""

import ast
import csv
import io
from pathlib import Path

import pytest
from result_rows import read_rows

from fedtrees.conformance.samples import trainable
from fedtrees.core import results
from fedtrees.core.claims import Claim
from fedtrees.core.errors import StoreError, UsageError
from fedtrees.core.registry import register
from fedtrees.core.results import COLUMNS, Measure
from fedtrees.core.specs import Composed, Spec
from fedtrees.experiments.evaluate import evaluate_adversary, evaluate_training, run_training
from fedtrees.experiments.federation import federation_of
from fedtrees.experiments.plan import FederationConfig, Task
from fedtrees.experiments.preview import BRIEF, limit_size
from fedtrees.experiments.suite import DataRef
from fedtrees.metrics.metric import Metric, Score, headlines

SHOWN = [Path(__file__).parents[2] / "fedtrees" / room for room in ("report", "cli", "audit")]
#: Words that are keys, and mean something else where they stand: axes, marks of a page, fields of
#: JSON, columns of every row, what a threat tells. And what an option of `advise` is a wish of.
OTHER = {
    "exact_rows": {"advice.py"},
    "members_1pct": {"advice.py"},
    "bytes": {
        "capture.py",
        "explain.py",
        "json_export.py",
        "page.py",
        "page_tables.py",
        "submissions.py",
        "train.py",
    },
    "bytes_up": {"cost.py", "submissions.py", "train.py"},
    "bytes_down": {"cost.py", "submissions.py", "train.py"},
    "note": {"page.py", "page_tables.py", "tables.py"},
    "applies": {"explain.py"},
    "entries": {"explain.py"},
    "queries": {"adversaries.py"},
    "thresholds": {"membership.py"},
}


@pytest.mark.parametrize("name", trainable())
def test_every_key_of_every_protocol_is_in_the_table(name):
    spec = limit_size(Spec(name), BRIEF)
    protocol = register.make("protocol", spec)
    setting = FederationConfig.of(
        DataRef(protocol.info.example_dataset), Spec("iid"), 3, 0, protocol
    )
    cell, federation = Task.for_training(setting, spec, Composed()), federation_of(setting, None)
    training = run_training(cell, federation)
    threat = next(iter(protocol.info.adversaries))
    rows = evaluate_training(cell, federation, training, 1.0, 1.0).rows
    rows += evaluate_adversary(cell.under(threat), federation, training).rows
    known = results.measures()
    for row in rows:
        measure = known[row["metric"]]
        assert row["unit"] == measure.unit
        assert row["measure_class"] == measure.klass
        assert bool(measure.part) == bool(row.get("part"))


def test_no_page_command_or_audit_knows_a_key_by_heart():
    keys = results.measures()
    for path in (path for room in SHOWN for path in room.rglob("*.py")):
        words = {n.value for n in ast.walk(ast.parse(path.read_text())) if type(n) is ast.Constant}
        found = {w for w in words if isinstance(w, str) and w in keys}
        assert not {w for w in found if path.name not in OTHER.get(w, ())}, path


def test_every_leak_has_its_words_and_no_two_the_same():
    found = results.measures().values()
    assert len({m.name for m in found}) == len(found)
    said = [m for m in found if m.phrase]
    assert len({m.severity for m in said}) == len({m.phrase for m in said}) == len(said)
    assert {m.key for m in said} == {*headlines()}
    for m in said:
        assert m.klass in ("person", "guess", "group")
        assert m.phrase.count("{}") == 1
        assert len(m.short) <= 26  # letters that the height of a figure's panel holds
        assert {*m.covered_by} <= {other.key for other in said}


def test_what_has_no_perfect_value_is_neither_better_nor_worse():
    of = results.measures()
    for key in ("returned_rows", "scored_rows", "batches", "note"):
        assert (of[key].best, of[key].better) == (None, "")
    assert (of["specificity_z"].better, of["specificity_z"].best) == ("higher", float("inf"))
    assert [of[k].sign for k in ("auc", "log_loss", "rmse", "r2", "gower")] == [1, -1, -1, 1, -1]
    units = ("v_measure", "ami", "rank_correlation", "label_auc", "returned_wrong")
    assert "share" not in {of[k].unit for k in units}


def test_a_results_file_is_described_beside_it():
    lines = list(csv.DictReader(io.StringIO(results.described())))
    described = [r["column"] for r in lines if not r["metric"]]
    assert described == ["context", *(c.name for c in COLUMNS)]
    keys = {r["metric"]: r for r in lines if r["metric"]}
    assert keys.keys() == results.measures().keys()
    assert all(r["meaning"] for r in lines)
    assert (keys["ra"]["unit"], keys["ra"]["best"], keys["log_loss"]["best"]) == (
        "share of cells", "1", "0",
    )  # fmt: skip


def test_what_a_run_s_file_says_of_a_plugin_s_measure_is_read(monkeypatch):
    mine = Measure("mine", "my share", "rows", best=None, klass="person", head="Mine",
                   counted_by="rows", phrase="{}", covered_by=("ra", "rows"),
                   severity=3)  # fmt: skip
    monkeypatch.setattr(results, "_read", {})
    with monkeypatch.context() as patch:
        patch.setattr(results, "_measures", lambda names: {"mine": mine})
        text = results.described()
    assert results.measure("mine") == Measure("mine", "mine", decimals=2)
    results.read_described(text)
    assert results.measure("mine") == mine
    results.read_described(text.replace("metric,ra", "metric,other"))
    assert results.measure("ra").unit == "share of cells"  # what is here is not of a file


def metric_of(*measures, main=()):
    return type("Made", (Metric,), {
        "of": Claim, "measures": measures, "main": main, "name": "made",
        "truth": lambda self, case: None, "score": lambda self, claims, truth: [],
    })  # fmt: skip


def test_a_score_that_is_not_declared_is_refused():
    made = metric_of(Measure("a", "b"), Measure("c_of", "d", part="column"))()
    assert made.measure(Score("a", 0.5)).name == "b"
    for score in (Score("x", 0.5), Score("a", 0.5, part="p"), Score("c_of", 0.5)):
        with pytest.raises(UsageError, match="declare a Measure in its `measures`"):
            made.measure(score)
    with pytest.raises(UsageError, match="`main` names"):
        metric_of(Measure("a", "b"), main=("x",))
    with pytest.raises(UsageError, match="a key is one word"):
        Measure("ra:age", "age")


def test_two_metrics_do_not_measure_under_one_key(monkeypatch):
    twice = {"one": metric_of(Measure("same", "a")), "two": metric_of(Measure("same", "b"))}
    monkeypatch.setattr(register, "get", lambda kind, name: twice[name])
    with pytest.raises(UsageError, match="metric 'two' measures 'same', as another does"):
        results._measures.__wrapped__(("one", "two"))


def test_the_files_of_a_run_are_smaller_than_one_table_and_lose_nothing(tmp_path):
    shared = {"dataset": "wine", "protocol_params": "trees=10,max_depth=4", "stage": "attack"}
    rows = [
        {**shared, "attack": f"attack-{k % 3}", "seed": k % 2, "metric": "ra", "value": k / 7,
         "unit": "share of cells", "measure_class": "guess", "status": "ok"}
        for k in range(60)
    ]  # fmt: skip
    for name, text in results.write_tables(rows).items():
        (tmp_path / name).write_text(text)
    assert read_rows(tmp_path) == list(csv.DictReader(io.StringIO(results.write(rows))))
    assert len((tmp_path / "contexts.csv").read_text().splitlines()) == 3
    sizes = [(tmp_path / name).stat().st_size for name in ("rows.csv", "contexts.csv")]
    assert sum(sizes) < 0.7 * len(results.write(rows))


def test_a_unit_that_no_key_declares_is_stored_with_its_row(tmp_path):
    rows = [{"metric": "ra", "value": 1.0, "unit": "bits", "measure_class": "guess"}]
    for name, text in results.write_tables(rows).items():
        (tmp_path / name).write_text(text)
    assert "unit" in (tmp_path / "rows.csv").read_text().splitlines()[0].split(",")
    assert read_rows(tmp_path)[0]["unit"] == "bits"


def test_rows_of_another_write_than_their_contexts_are_refused(tmp_path):
    row = {"metric": "ra", "value": 1.0, "unit": "share of cells", "measure_class": "guess"}
    for name, text in results.write_tables([{**row, "dataset": "wine"}]).items():
        (tmp_path / name).write_text(text)
    other = results.write_tables([{**row, "dataset": "iris"}])["contexts.csv"]
    (tmp_path / "contexts.csv").write_text(other)
    with pytest.raises(StoreError, match="does not belong to"):
        read_rows(tmp_path)

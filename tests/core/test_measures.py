"""One table describes every measured quantity, and no other code repeats its keys."""

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
from fedtrees.experiments.explain import BRIEF, limit_size
from fedtrees.experiments.federation import federation_of
from fedtrees.experiments.plan import FederationConfig, Task
from fedtrees.experiments.suite import DataRef
from fedtrees.metrics.metric import Metric, Score, headlines

SHOWN = [Path(__file__).parents[2] / "fedtrees" / room for room in ("report", "cli", "audit")]
# Words that are keys but have another meaning there: axes, marks of a page, fields of JSON, columns
# of every row, knowledge of a threat, and wishes of an option of `advise`.
OTHER = {
    "r2": {"findings.py"},
    "rmse": {"findings.py"},
    # The limits of `fedtrees recommend`, and the kinds of objections against a recipe.
    "exact_rows": {"advice.py", "limits.py"},
    "members_1pct": {"limits.py"},
    "members_auc": {"limits.py"},
    "auc": {"advice.py", "limits.py"},
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
    measures = results.measures()
    for row in rows:
        measure = measures[row["metric"]]
        assert row["unit"] == measure.unit
        assert row["measure_class"] == measure.klass
        assert bool(measure.part) == bool(row.get("part"))


def test_no_page_command_or_audit_contains_a_key():
    keys = results.measures()
    for path in (path for folder in SHOWN for path in folder.rglob("*.py")):
        words = {
            constant.value
            for constant in ast.walk(ast.parse(path.read_text()))
            if type(constant) is ast.Constant
        }
        keys_in_file = {word for word in words if isinstance(word, str) and word in keys}
        assert not {word for word in keys_in_file if path.name not in OTHER.get(word, ())}, path


def test_every_leak_has_its_own_phrase():
    all_measures = results.measures().values()
    assert len({measure.name for measure in all_measures}) == len(all_measures)
    with_phrase = [measure for measure in all_measures if measure.phrase]
    assert (
        len({measure.severity for measure in with_phrase})
        == len({measure.phrase for measure in with_phrase})
        == len(with_phrase)
    )
    assert {measure.key for measure in with_phrase} == {*headlines()}
    for measure in with_phrase:
        assert measure.klass in ("person", "guess", "group")
        assert measure.phrase.count("{}") == 1
        # More letters do not fit the height of a figure's panel.
        assert len(measure.short) <= 26
        assert {*measure.covered_by} <= {other.key for other in with_phrase}


def test_a_measure_without_a_best_value_is_neither_better_nor_worse():
    measures = results.measures()
    for key in ("returned_rows", "scored_rows", "batches", "note"):
        assert (measures[key].best, measures[key].better) == (None, "")
    assert (measures["specificity_z"].better, measures["specificity_z"].best) == (
        "higher",
        float("inf"),
    )
    assert [measures[name].sign for name in ("auc", "log_loss", "rmse", "r2", "gower")] == [
        1,
        -1,
        -1,
        1,
        -1,
    ]
    units = ("v_measure", "ami", "rank_correlation", "label_auc", "returned_wrong")
    assert "share" not in {measures[name].unit for name in units}


def test_a_results_file_is_described_by_a_second_file():
    lines = list(csv.DictReader(io.StringIO(results.described())))
    described = [row["column"] for row in lines if not row["metric"]]
    assert described == ["context", *(column.name for column in COLUMNS)]
    keys = {row["metric"]: row for row in lines if row["metric"]}
    assert keys.keys() == results.measures().keys()
    assert all(row["meaning"] for row in lines)
    assert (keys["ra"]["unit"], keys["ra"]["best"], keys["log_loss"]["best"]) == (
        "share of cells", "1", "0",
    )  # fmt: skip


def test_a_plugins_measure_is_read_from_the_description_in_the_run(monkeypatch):
    plugin_measure = Measure(
        "mine",
        "my share",
        "rows",
        best=None,
        klass="person",
        head="Mine",
        counted_by="rows",
        phrase="{}",
        covered_by=("ra", "rows"),
        severity=3,
    )
    monkeypatch.setattr(results, "_read", {})
    with monkeypatch.context() as patch:
        patch.setattr(results, "_measures", lambda names: {"mine": plugin_measure})
        text = results.described()
    assert results.measure("mine") == Measure("mine", "mine", unit="", decimals=2)
    results.read_described(text)
    assert results.measure("mine") == plugin_measure
    results.read_described(text.replace("metric,ra", "metric,other"))
    # The description in the run does not replace built-in measures.
    assert results.measure("ra").unit == "share of cells"


def metric_of(*measures, main=()):
    return type("Made", (Metric,), {
        "of": Claim, "measures": measures, "main": main, "name": "made",
        "truth": lambda self, case: None, "score": lambda self, claims, truth: [],
    })  # fmt: skip


def test_an_undeclared_score_is_refused():
    metric = metric_of(Measure("a", "b"), Measure("c_of", "d", part="column"))()
    assert metric.measure(Score("a", 0.5)).name == "b"
    for score in (Score("x", 0.5), Score("a", 0.5, part="p"), Score("c_of", 0.5)):
        with pytest.raises(UsageError, match="declare a Measure in its `measures`"):
            metric.measure(score)
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


def test_rows_that_do_not_belong_to_their_contexts_are_refused(tmp_path):
    row = {"metric": "ra", "value": 1.0, "unit": "share of cells", "measure_class": "guess"}
    for name, text in results.write_tables([{**row, "dataset": "wine"}]).items():
        (tmp_path / name).write_text(text)
    other_contexts = results.write_tables([{**row, "dataset": "iris"}])["contexts.csv"]
    (tmp_path / "contexts.csv").write_text(other_contexts)
    with pytest.raises(StoreError, match="does not belong to"):
        read_rows(tmp_path)

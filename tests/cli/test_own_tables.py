"""Tables of users on the command line: suggested commands, unusual names, and file formats."""

import gzip
import json
import pickle
import shlex
import zipfile

import numpy as np
import pandas as pd
import pytest
import result_rows
import xgboost

from fedtrees.cli.main import corrected, main
from fedtrees.core.errors import Problem
from fedtrees.core.specs import joined_names, split_names
from fedtrees.data.csv_file import Reading
from fedtrees.experiments.suite import Suite
from fedtrees.federation.site import Settings
from fedtrees.model_audit.readers import read_model
from fedtrees.model_audit.rows import Columns, read_rows

N = 60
ILL = ["yes" if i % 3 else "no" for i in range(N)]
AGES = [20 + 7 * i % 50 + i / 10 for i in range(N)]
SMALL = ["-p", "fedtree-hist[trees=1,max_depth=2]"]


@pytest.fixture
def call(capsys):
    """Run a command in this process; return exit code, stdout, stderr."""

    def run(*arguments):
        with pytest.raises(SystemExit) as exit_info:
            main([str(argument) for argument in arguments])
        output, errors = capsys.readouterr()
        return exit_info.value.code or 0, output, errors

    return run


def saved(path, columns, **options):
    pd.DataFrame(columns).to_csv(path, index=False, **options)
    return path


@pytest.mark.parametrize(
    ("columns", "options", "hint"),
    [
        ({"dose": [f"{1 + i % 9}.{i:03d}" for i in range(N)]}, [], "--decimal ."),
        ({"severity": [("None", "Mild", "Severe")[i % 3] for i in range(N)]}, [], "--missing nan"),
        ({"Age, years": AGES}, ["--drop", "Age, years"], "--drop '\"Age, years\"'"),
        ({"share": [f"{i}%" if i % 2 else f"{i}" for i in range(N)]}, [], "--drop share"),
    ],
)
def test_hints_work_when_they_are_pasted(columns, options, hint, call, tmp_path):
    table = {**columns, "age": [20 + 7 * i % 50 for i in range(N)], "ill": ILL}
    path = saved(tmp_path / "table.csv", table, sep=";")
    target = "severity" if "severity" in columns else "ill"
    begin = ["train", *SMALL, "--csv", path, "--target", target, *options]
    code, _, err = call(*begin)
    assert code == 5
    (tried,) = [line for line in err.splitlines() if line.startswith("try: fedtrees ")]
    assert tried.endswith(hint)
    code, _, err = call(*shlex.split(tried.removeprefix("try: fedtrees ")))
    assert (code, "try: " in err) == (0, False), err


def test_no_suggestion_repeats_the_failed_command():
    arguments = ["bench", "--csv", "t.csv", "--drop", "a"]
    assert corrected(arguments, [Problem("no", "drop", "a")]) == ""
    assert corrected(arguments, [Problem("no", "drop", "b")]) == "bench --csv t.csv --drop b"


def test_names_with_commas_and_quotes_are_quoted_as_in_a_csv_file():
    names = ["Age, years", 'say "hi"', "plain", "50%"]
    assert split_names([joined_names(names)]) == names
    assert split_names(["a,b", '"c, d"']) == ["a", "b", "c, d"]


def test_dry_run_warns_about_tables_that_are_too_small(call, tmp_path):
    path = saved(tmp_path / "t.csv", {"age": AGES[:6], "bmi": AGES[6:12], "ill": ILL[:6]})
    code, _, errors = call("bench", *SMALL, "--csv", path, "--target", "ill", "--dry-run",
                        "--clients", 2, "--seeds", 1, "--output", tmp_path / "run")  # fmt: skip
    assert code == 0
    warnings = " ".join(errors.split())
    assert "t: 1 test row; a false positive rate of 1% needs 100" in warnings
    assert "no test row has the class 'no'; AUC is undefined" in warnings
    assert "client-1 has 2 training rows; with fewer than 10" in warnings


def test_inspect_warns_about_mixed_columns_and_numbers_that_may_mark_missing_cells(call, tmp_path):
    mixed = ["unknown" if i % 2 == 0 else i % 7 for i in range(N)]
    marked = [-99.0 if i % 4 == 0 else age for i, age in enumerate(AGES)]
    _, _, errors = call("data", "inspect", saved(tmp_path / "t.csv", {"a": mixed, "b": marked}))
    text = " ".join(errors.split())
    assert "a: read as categories, because of 30 cells that are no numbers ('unknown'; " in text
    assert "b: -99.0 is read as a number, but looks like a mark of missing values" in text


def test_two_files_of_one_name_have_two_names_in_the_results_of_a_suite(tmp_path):
    data = ", ".join(f'{{csv="{tmp_path}/s{k}/train.csv", target="ill"}}' for k in (1, 2))
    suite = Suite.parse(f"[[grid]]\ndata = [{data}]\n", "two.toml")
    assert [ref.name for ref in suite.grids[0].data] == ["s1/train", "s2/train"]
    data = ", ".join(f'{{csv="a.csv", target="{target}"}}' for target in ("ill", "old"))
    suite = Suite.parse(f"[[grid]]\ndata = [{data}]\n", "two.toml")
    assert [ref.name for ref in suite.grids[0].data] == ["a-1", "a-2"]
    assert Suite.parse(suite.to_toml(), "again.toml").grids == suite.grids


# --- files of other kinds


def test_tables_of_other_kinds_get_a_message_with_the_remedy(call, tmp_path):
    text = saved(tmp_path / "t.csv", {"age": AGES, "ill": ILL}).read_bytes()
    (tmp_path / "t.csv.gz").write_bytes(gzip.compress(text))
    with zipfile.ZipFile(tmp_path / "t.zip", "w") as archive:
        archive.writestr("t.csv", text)
    (tmp_path / "t.pkl").write_bytes(pickle.dumps({}))
    (tmp_path / "t.parquet").write_bytes(text)
    messages = {
        tmp_path / "t.csv.gz": "is compressed with gzip: decompress it first (gunzip)",
        tmp_path / "t.zip": "is a ZIP archive: unpack it first",
        tmp_path / "t.pkl": "is a Python pickle, which can run code when it is opened: save the",
        tmp_path / "t.parquet": "cannot be read as .parquet: its content is of another format",
        "https://example.org/t.csv": "addresses are not read: download the file first",
        "-": "standard input is not read: save it to a file first",
    }
    for file, message in messages.items():
        code, _, err = call("data", "inspect", file)
        assert (code, message in err) == (5, True), err
    for file in ("-", "https://example.org/t.csv"):
        code, _, err = call("bench", "--csv", file, "--target", "ill", "--dry-run")
        assert (code, messages[file] in err) == (2, True), err


def test_feather_and_parquet_are_recognised_by_their_content(call, tmp_path):
    frame = pd.DataFrame({"age": AGES, "ill": ILL})
    frame.to_feather(tmp_path / "t.feather")
    frame.to_parquet(tmp_path / "t.pq")
    frame.to_parquet(tmp_path / "t.data")
    for name in ("t.feather", "t.pq", "t.data"):
        code, output, _ = call("data", "inspect", tmp_path / name, "--format", "json")
        assert code == 0
        assert [column["kind"] for column in json.loads(output)["columns"]] == ["number", "yes/no"]


def test_models_of_other_kinds_get_a_message_with_the_remedy(call, tmp_path):
    data = xgboost.DMatrix(np.array([AGES]).T, [ill == "yes" for ill in ILL])
    booster = xgboost.train({"objective": "binary:logistic"}, data, 2)
    booster.save_model(tmp_path / "m.json")
    text = (tmp_path / "m.json").read_bytes()
    (tmp_path / "bom.json").write_bytes(b"\xef\xbb\xbf" + text)
    assert read_model(tmp_path / "bom.json").forest.rounds == 2
    with zipfile.ZipFile(tmp_path / "m.zip", "w") as archive:
        archive.writestr("m.json", text)
    (tmp_path / "m.pkl").write_bytes(pickle.dumps({}))
    messages = {
        "m.zip": "is a ZIP archive: unpack it first",
        "m.pkl": "is a Python pickle, which can run code when it is opened: save the model with",
    }
    for name, message in messages.items():
        code, _, err = call("model", "audit", tmp_path / name)
        assert (code, message in err) == (5, True), err


# --- names of columns

ODD = [
    "Age, years", 'say "hi"', "Unnamed: 0", "index", "Target", "lower", "Lower", "größe", "年齢",
    "50% & more_$", "#{}~^\\", "a=b", "-x", "label;2",
]  # fmt: skip


def odd_table(path, names):
    rng = np.random.default_rng(0)
    frame = pd.DataFrame(rng.normal(size=(N, len(names))).round(3), columns=names)
    frame["target"] = (frame.iloc[:, 0] + frame.iloc[:, 1] > 0).astype(int)
    frame.to_csv(path, index=False)
    return frame


def test_odd_column_names_survive_training_and_audit(call, tmp_path):
    path, model, drop = tmp_path / "odd.csv", tmp_path / "m.json", [*ODD[2:4], *ODD[7:9]]
    frame = odd_table(path, ODD)
    code, _, err = call("model", "train", *SMALL, "--csv", path, "--target", "target",
                        "--output", model, "--drop", joined_names(drop))  # fmt: skip
    assert code == 0, err
    names = [name for name in ODD if name not in drop]
    booster = xgboost.Booster(model_file=model)
    assert booster.feature_names == names
    predicted = booster.predict(xgboost.DMatrix(frame[names]))
    assert len(np.unique(predicted)) > 1
    (rows,), notes = read_rows(read_model(model), [str(path)], Columns(target="target"))
    np.testing.assert_array_equal(rows.table.X, frame[names].to_numpy(np.float32))
    listed = ", ".join(drop)
    assert notes == [f"{path}: columns the model does not know were left out: {listed}"]


@pytest.mark.parametrize("lightgbm", [False, True])
def test_white_space_in_names_of_a_model_is_no_other_column(lightgbm, tmp_path):
    path = tmp_path / "t.csv"
    names = [" mean  radius", "area ", "a b"]
    frame = odd_table(path, names)
    if lightgbm:
        lgb = pytest.importorskip("lightgbm")
        data = lgb.Dataset(frame[names], frame["target"])
        model = tmp_path / "m.txt"
        lgb.train({"objective": "binary", "verbose": -1}, data, 2).save_model(model)
    else:
        model = tmp_path / "m.json"
        data = xgboost.DMatrix(frame[names], frame["target"])
        xgboost.train({"objective": "binary:logistic"}, data, 2).save_model(model)
    (rows,), notes = read_rows(read_model(model), [str(path)], Columns(target="target"))
    np.testing.assert_array_equal(rows.table.X, frame[names].to_numpy(np.float32))
    assert notes == []


@pytest.mark.long
def test_odd_column_names_survive_a_bench_its_report_and_a_paper_table(call, tmp_path):
    path, run = tmp_path / "odd.csv", tmp_path / "run"
    odd_table(path, [*ODD, "a[b]", "x<1", "two  spaces"])
    code, _, err = call("bench", *SMALL, "--csv", path, "--target", "target", "-a", "timberstrike",
                        "-d", "split-only", "--seeds", 1, "--jobs", 1, "--output", run)  # fmt: skip
    assert code == 0, err
    assert {row["dataset"] for row in result_rows.read_rows(run)} == {"odd"}
    tex = tmp_path / "paper.tex"
    for command in (["report", run], ["table", run, "-o", tex], ["show", run]):
        code, _, err = call(*command)
        assert code == 0, (command, err)
    assert tex.read_text().count("{") == tex.read_text().count("}")


def test_a_site_declares_how_its_file_is_read(call, tmp_path):
    path = saved(tmp_path / "t.csv", {"age": AGES, "ill": ILL})
    begin = ["site", "--to", tmp_path / "s.toml", "--csv", path, "--output", tmp_path]
    declared = ["--decimal", ",", "--missing", "", "--sheet", 2, "--sep", "tab"]
    code, _, err = call(*begin, *declared)
    assert code == 0, err
    reading = Settings.load(tmp_path / "s.toml").reading
    assert reading == Reading(separator="\t", decimal=",", missing=("",), sheet="2")
    code, _, err = call(*begin, "--decimal", ";")
    assert (code, "decimal ';': give a point or a comma" in err) == (2, True)

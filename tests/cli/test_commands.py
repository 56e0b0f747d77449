"""The command line from a user's point of view: results, errors of one line, exit codes."""

import json
import re
import shlex
import subprocess
import sys
from inspect import signature
from pathlib import Path

import numpy as np
import pytest
from present import CRYPTO, here

from fedtrees.cli import commands
from fedtrees.cli.main import main
from fedtrees.core.guarantee import PureDP, epsilon_in_words
from fedtrees.experiments.table_spec import TABLE_OPTIONS


def call(capsys, *arguments):
    """Run a command in this process; return exit code, stdout, stderr."""
    with pytest.raises(SystemExit) as exit_info:
        main(arguments)
    output, errors = capsys.readouterr()
    return exit_info.value.code or 0, output, errors


def error_of(capsys, code, *arguments):
    """Run a command that must fail with this exit code; return its error message of one line."""
    exit_code, output, errors = call(capsys, *arguments)
    assert exit_code == code, errors
    assert output == ""
    assert errors.startswith("fedtrees: ")
    assert errors.count("\n") == 1, "one clear line"
    return errors


TINY = ("-p", "fedtree-hist[trees=1,max_depth=2]", "--data", "wine", "--seeds", "1", "-j", "1")


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    folder = tmp_path_factory.mktemp("cli") / "run"
    with pytest.raises(SystemExit) as stopped:
        main(["bench", *TINY, "-d", "split-only", "-a", "random-leaf", "--output", str(folder)])
    assert not stopped.value.code
    return folder


def test_a_bench_leaves_a_table_rows_and_a_report(run):
    for name in ("suite.toml", "environment.json", "rows.csv", "report.html", "disclosure.json"):
        assert (run / name).stat().st_size > 0
    text = (run / "report.html").read_text()
    assert "split-only" in text
    assert str(run.parent) not in text  # no path of this machine


@pytest.mark.long
def test_show_plot_and_report(run, capsys, tmp_path):
    code, output, _ = call(capsys, "show", str(run), "--format", "json")
    board = json.loads(output)["leaderboards"][0]
    assert code == 0
    assert {entry["defense"] for entry in board["defenses"]} == {"none", "split-only"}
    code, output, _ = call(capsys, "show", str(run))
    assert "split-only" in output
    for suffix, magic in (("svg", b"<?xml"), ("png", b"\x89PNG"), ("pdf", b"%PDF")):
        target = tmp_path / f"f.{suffix}"
        selection = ("--data", "wine", "--threat", "client", "-p", "fedtree-hist")
        appearance = ("--width", "column", "--label", "split-only=Splits", "--label", "auc=area")
        code, output, _ = call(capsys, "plot", str(run), "-o", str(target), *selection, *appearance)
        assert code == 0
        assert target.read_bytes().startswith(magic)
    assert "Splits" in (tmp_path / "f.svg").read_text()
    code, output, _ = call(capsys, "report", str(run), "--format", "json")
    assert json.loads(output)["file"].endswith("report.html")


@pytest.mark.long
def test_show_states_why_attacks_did_not_run_and_explain_refuses_other_names(capsys, tmp_path):
    folder = str(tmp_path / "run")
    _, _, errors = call(capsys, "bench", *TINY, "-a", "random-leaf", "-a", "cl", "--output", folder)
    assert f"`fedtrees show {folder} --skipped` states the reasons" in errors
    _, output, _ = call(capsys, "show", folder)
    assert "skipped: cl" not in " ".join(output.split())
    assert "entries with reasons" in " ".join(output.split())
    _, output, _ = call(capsys, "show", folder, "--skipped")
    assert "skipped: cl" in " ".join(output.split())
    error_message = error_of(capsys, 2, "explain", "histogram-peeling")
    assert (
        "is no protocol but an attack: fedtrees explain lists where each applies" in error_message
    )
    assert "--defense min-bin" in error_of(capsys, 2, "explain", "min-bin")


@pytest.mark.long
def test_a_table_is_printed_or_written(run, capsys, tmp_path):
    code, output, _ = call(capsys, "results", "table", str(run), "--label", "wine=Wine")
    assert code == 0
    assert "| split-only |" in output
    assert "| defense | AUC |" in output
    code, output, _ = call(capsys, "results", "table", str(run), "--format", "json")
    assert {row["defense"] for row in json.loads(output)} == {"none", "split-only"}
    for suffix in ("tex", "csv", "md"):
        target = tmp_path / f"t.{suffix}"
        code, output, _ = call(capsys, "results", "table", str(run), "-o", str(target))
        assert code == 0
        assert "split-only" in target.read_text()
    refused = ("results", "table", str(run), "-o", str(tmp_path / "t.docx"))
    assert "warning" not in error_of(capsys, 2, *refused)
    assert "'AFTER...'" in error_of(capsys, 2, "results", "compare", str(run))
    error_of(capsys, 2, "results", "table", str(run), "--label", "wine")


def test_the_check_of_a_plugin_has_one_line_per_rule_and_ends_with_a_summary():
    from fedtrees.cli.registry import _describe_checks

    def result(rule, kept, detail=""):
        return {"kind": "defense", "name": "d", "rule": rule, "kept": kept, "detail": detail}

    rules = ["it is plain", "dp-gbdt: it acts", "fedtree-hist: it acts"]
    kept = [result(rule, True) for rule in rules]
    assert [*_describe_checks(kept)] == [
        "ok   defense d: it is plain",
        "ok   defense d: it acts, with dp-gbdt and fedtree-hist",
        "\ndefense d: 2 of 2 rules kept, tested with dp-gbdt and fedtree-hist",
    ]
    failed = [result("fedtree-hist: it acts", False, "why"), *kept[:2]]
    assert [*_describe_checks(failed)][2:] == [
        "FAIL defense d: it acts, with fedtree-hist  (why)",
        "\ndefense d: 1 of 2 rules kept, tested with fedtree-hist and dp-gbdt",
        "To correct it, read the lines FAIL: the text in brackets states the reason.",
    ]


FORMER = "note: attack 'timberstrike': the parameter 'most' is called 'max_level'"


def test_a_former_name_of_a_parameter_is_one_note_without_a_source_path(capsys, tmp_path):
    attacks = ("-a", "timberstrike[most=values]", "-a", "timberstrike[most=values,chains=2]")
    folder = str(tmp_path / "run")
    code, _, errors = call(capsys, "bench", *TINY, *attacks, "--dry-run", "--output", folder)
    assert code == 0
    assert " ".join(errors.split()).count(FORMER) == 1
    assert "FormerNameWarning" not in errors
    assert "registry.py" not in errors
    assert "register.make" not in errors


@pytest.mark.long
def test_processes_of_attacks_do_not_repeat_the_note_about_a_former_name(tmp_path):
    options = ("-d", "split-only", "--threat", "server", "-a", "timberstrike[most=values]")
    command = (
        sys.executable,
        "-m",
        "fedtrees.cli.main",
        "bench",
        *TINY,
        *options,
        "--output",
        "run",
    )
    process = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert process.returncode == 0, process.stderr
    assert " ".join(process.stderr.split()).count(FORMER) == 1
    assert process.stderr.count("'most' is called") == 1
    assert "FormerNameWarning" not in process.stderr


def test_without_a_terminal_log_lines_name_the_cell_and_use_the_singular(capsys):
    from fedtrees.cli.bench import Log

    log_of_two = Log(2, every=1000)
    log_of_two("ok", "train a")
    log_of_two("failed", "train b")
    log_of_one = Log(1)
    log_of_one("ok", "train c")
    lines = capsys.readouterr().err.splitlines()
    assert lines == [
        "failed: train b", "2 of 2 cells, 0 s, last: train b", "1 of 1 cell, 0 s, last: train c"
    ]  # fmt: skip


@pytest.mark.long
def test_results_are_printed_after_the_first_seed_and_a_stopped_run_names_the_command_to_show_them(
    capsys, monkeypatch, tmp_path
):
    tiny = [*TINY[:5], "2", *TINY[6:], "-d", "split-only", "-a", "random-leaf"]
    code, output, errors = call(capsys, "bench", *tiny, "--output", str(tmp_path / "whole"))
    before_first_seed, after_first_seed = errors.split(
        "after 1 of 2 seeds, 1 of 1 protocol, 1 of 1 defense; the run continues: "
    )
    assert code == 0
    assert "LEAK" in after_first_seed
    assert "LEAK" not in before_first_seed
    assert "LEAK" in output

    labels = []

    def stop(self, status, label):
        labels.append(label)
        if label.startswith("attack"):
            raise KeyboardInterrupt

    monkeypatch.setattr("fedtrees.cli.bench.Log.__call__", stop)
    folder = tmp_path / "part"
    code, output, errors = call(capsys, "bench", *tiny, "--output", str(folder))
    assert code == 130
    assert output == ""
    assert f"fedtrees show {folder} prints the results so far" in errors
    # Writing the report would take seconds.
    assert not (folder / "report.html").exists()
    assert all(" 0 " in label for label in labels)  # Only cells of the first seed ran.


def test_an_error_of_a_plug_in_is_not_called_a_bug(capsys, tmp_path):
    file = tmp_path / "failing.py"
    file.write_text(
        "from dataclasses import dataclass\n"
        "from fedtrees import register\n"
        "from fedtrees.protocols.horizontal.histogram_protocols import FedTreeHist\n"
        "@register.protocol('failing-parties')\n"
        "@dataclass(frozen=True, kw_only=True)\n"
        "class Failing(FedTreeHist):\n"
        "    def create_party(self, seat):\n"
        "        return {}['party']\n"
    )
    with pytest.raises(SystemExit):
        main(["explain", "failing-parties", "--plugin", str(file)])
    (error,) = capsys.readouterr().err.splitlines()
    assert error == (
        "fedtrees: error in a plug-in: KeyError: 'party' (failing.py, line 8: return {}['party'])"
    )


def test_an_existing_run_needs_resume(run, capsys):
    errors = error_of(capsys, 7, "bench", *TINY, "--output", str(run))
    assert "--resume" in errors
    code, output, _ = call(capsys, "bench", "--output", str(run), "--resume", "--format", "json")
    assert code == 0
    assert json.loads(output)["computed"] == {}


def test_resume_accepts_no_other_options(run, capsys):
    files_before = (run / "suite.toml").read_text(), (run / "rows.csv").read_text()
    errors = error_of(capsys, 2, "bench", "--output", str(run), "--resume", "--seeds", "2")
    assert "with the options of its first start" in errors
    assert ((run / "suite.toml").read_text(), (run / "rows.csv").read_text()) == files_before


def test_no_arguments_show_the_help(capsys):
    code, output, errors = call(capsys)
    assert (code, errors) == (0, "")
    assert "bench" in output


def test_a_plugin_that_exits_does_not_pass(capsys, tmp_path):
    file = tmp_path / "leaving.py"
    file.write_text("import sys\nsys.exit(0)\n")
    assert "SystemExit" in error_of(capsys, 2, "plugin", "check", str(file))


def test_a_dry_run_lists_the_attacks_that_apply_and_counts_the_others(capsys, tmp_path):
    arguments = ("bench", *TINY, "-d", "split-only", "--dry-run", "--output", str(tmp_path / "x"))
    facts = json.loads(call(capsys, *arguments, "--format", "json")[1])
    applicable, inapplicable = facts["attacks"], facts["inapplicable_attacks"]
    assert "timberstrike" in applicable
    assert inapplicable["leaf-inversion"] == "no network over the outputs of trees is trained"
    assert not {*applicable} & {*inapplicable}
    assert {cell["attack"] for cell in facts["cells"] if cell["stage"] == "attack"} == {
        *applicable, *inapplicable
    }  # fmt: skip
    lines = call(capsys, *arguments)[1].splitlines()
    (at,) = (k for k, line in enumerate(lines) if line.startswith("attacks "))
    assert lines[at].split(maxsplit=1)[1].split(", ") == applicable
    assert lines[at + 1].startswith(f"          {len(inapplicable)} further attacks do not apply (")


def test_dry_run_computes_nothing(capsys, tmp_path):
    code, output, _ = call(capsys, "bench", *TINY, "--dry-run", "--output", str(tmp_path / "x"))
    assert code == 0
    assert "cells" in output
    assert "\ndefenses  none, split-only," in output
    assert len(output.splitlines()) < 20
    assert re.search(r"about [\d.]+ s with \d process", output)
    assert "MiB" in output
    assert not (tmp_path / "x").exists()


COLUMNS = ("bench", "-p", "secureboost", "--data", "breast-cancer", "--clients", "2")


@pytest.mark.parametrize(
    ("arguments", "error_message"),
    [
        (("bench", "-d", "split-onyl"), "did you mean 'split-only'"),
        (("bench", "-p", "fedtree"), "did you mean 'fedtree-hist'"),
        (("bench", "-a", "timberstike"), "did you mean 'timberstrike'"),
        (("bench", "--data", "brest-cancer"), "did you mean 'breast-cancer'"),
        (("bench", "--suite", "quik"), "did you mean 'quick'"),
        (("bench", "--threat", "clients"), "did you mean 'client'"),
        (("bench", "--partition", "idd"), "did you mean 'iid'"),
        (("bench", "-d", "laplace-hist[epsilon=0]"), "epsilon must be a finite number > 0; got 0"),
        (("bench", "-d", "laplace-hist[epsilon=-3]"), "got -3"),
        (("bench", "--partition", "label-skew[alpha=abc]"), "finite number > 0; got 'abc'"),
        (("bench", "--seeds", "1000000000"), "at most 1000"),
        (("bench", "--time-limit", "nan"), "--time-limit nan"),
        (("bench", "--memory", "0.1"), "--memory 0.1: give at least 0.5 GiB"),
        (("bench", "--memory", "nan"), "--memory nan"),
        (("bench", "--threat", "client[index=true]"), "not a valid number"),
        (("bench", "--threat", "client[index=1,count=2]"), "not both"),
        (("bench", "-d", "laplace-hist[eps=1]"), "did you mean 'epsilon'"),
        (("bench", "-d", "split-only["), "unbalanced"),
        (("bench", "-p", "fedtree-hist[trees=0]"), "trees"),
        (("bench", "--seeds", "none"), "seeds"),
        (("bench", "--clients", "0"), "clients"),
        (("bench", "-j", "0"), "--jobs 0"),
        *[(("bench", "-d", "masking[threshold=99]", "--dry-run"), "a threshold of 99 of 3 parties")]
        * CRYPTO,
        ((*COLUMNS, "-d", "reduced-leakage[trees=9]", "--dry-run"), "trees=9] of 5 trees"),
        ((*COLUMNS, "--threat", "passive[labels=456]", "--dry-run"), "there are 456 training rows"),
        (
            ("bench", "-p", "secureboost", "--clients", "1", "--dry-run"),
            "no party has the role passive; give",
        ),
        (("bench", "--threat", "server:isolatign"), "did you mean 'isolating'"),
        (
            ("bench", "--threat", "client:isolating"),
            "'isolating' replaces the behaviour of a Deciding",
        ),
        (("bench", "-p", "dp-gbdt", "--threat", "server:isolating"), "server is a RandomTree"),
        (
            ("bench", "-d", "id-lmid", "--threat", "server:halving"),
            "'id-lmid' changes messages of the types NodeRows",
        ),
        (("bench", "--resume"), "--output"),
        (("bench", "--target", "x"), "--csv"),
        (("bench", "--csv", "x.csv"), "--target"),
        (
            ("bench", "--data", "wine", "--client-column", "x"),
            "--client-column: this option describes a table of your own",
        ),
        (
            ("bench", "--csv", "a.csv,", "--target", "y", "--id", "i"),
            "'a.csv,' lacks the name of a",
        ),
        (("bench", "--csv", "", "--target", "y"), "'' lacks the name of a file"),
        (("bench", "--csv", "a.csv,b.csv", "--target", "i", "--id", "i"), "are both 'i'"),
        (("inspect", "a.csv,b.csv"), "'a.csv,b.csv' is no file; to inspect several, name one"),
        (("bench", "--partition", "by-file"), "give one file per party, --csv a.csv,b.csv"),
        (("bench", "--plugin", "absent.py"), "is not a file"),
        (("bench", "--frmat", "json"), "No such option"),
        (("explain", "fedtree-hits"), "did you mean 'fedtree-hist'"),
        (("explain", "--threat", "client"), "--threat needs a protocol"),
        (("explain", "--clients", "2"), "--clients needs a protocol"),
        (("explain", "--data", "wine"), "--data needs a protocol"),
        (("explain", "-d", "split-only"), "--defense needs a protocol"),
        (("explain", "fedtree-hist", "--clients", "-1"), "--clients -1: a federation needs"),
        (("explain", "fedtree-hist[trees=0]"), "trees=0: give a whole number from 1"),
        (
            ("explain", "secureboost", "--clients", "1"),
            "a single party without another one to train with; give 2",
        ),
        (("explain", "secureboost", "--threat", "client"), "this protocol are active, passive"),
        (("explain", "nvflare-hist", "-d", "split-only"), "'nvflare-hist' does not send"),
        (("list", "defences"), "did you mean 'defenses'"),
        (("check", "timberstrik"), "did you mean 'timberstrike'"),
        (("plot", "nowhere", "-o", "x.gif"), "end the name in"),
        (("--completion", "tcsh"), "unknown shell 'tcsh'"),
    ],
)
def test_usage_errors_have_one_line_and_exit_code_2(arguments, error_message, capsys, monkeypatch):
    monkeypatch.delenv("FEDTREES_DATA", raising=False)
    assert error_message in error_of(capsys, 2, *arguments)


def test_runs_that_are_not_there_exit_7(capsys, tmp_path):
    assert "rows.csv" in error_of(capsys, 7, "show", str(tmp_path))
    assert "rows.csv" in error_of(capsys, 7, "report", str(tmp_path / "none"))


def csv(tmp_path, text):
    path = tmp_path / "t.csv"
    path.write_text(text)
    return ("bench", "--csv", str(path), "--target", "y", "--output", str(tmp_path / "run"))


ROWS = [f"{i},{i % 7},{i % 2}" for i in range(40)]


@pytest.mark.parametrize(
    ("text", "error_message"),
    [
        ("a,b,y\n" + "\n".join(r[:-1] + "1" for r in ROWS), "one class"),
        ("a,b,y\n", "rows"),
        ("", "empty"),
        ("a,b,y\n1,2,0\n3,4\n", "line 3"),
    ],
)
def test_data_errors_have_one_line_and_exit_code_5(text, error_message, capsys, tmp_path):
    assert error_message in error_of(capsys, 5, *csv(tmp_path, text))
    assert not (tmp_path / "run").exists()


def test_every_problem_of_a_table_has_a_line_and_the_last_line_is_a_corrected_command(
    capsys, tmp_path
):
    command = csv(tmp_path, "age,bmi,ill\n" + "\n".join(ROWS))
    code, output, errors = call(capsys, *command, "--drop=agee", "--keep", "bmi")
    assert (code, output) == (5, "")
    *problems, suggestion = errors.splitlines()
    assert problems == [
        f"fedtrees: {tmp_path}/t.csv: no column 'y'; known: age, bmi, ill",
        f"fedtrees: {tmp_path}/t.csv: drop: no column 'agee'; did you mean 'age'?",
    ]
    table, folder = (shlex.quote(f"{tmp_path}/{name}") for name in ("t.csv", "run"))
    other_options = f"--output {folder} --keep bmi --target COLUMN --drop age"
    assert suggestion == f"try: fedtrees bench --csv {table} {other_options}"
    assert "the columns are age, bmi, ill" in error_of(capsys, 2, *command[:3])


def test_inspect_shows_the_inferred_kinds_of_columns(capsys, tmp_path, monkeypatch):
    monkeypatch.setenv("COLUMNS", "80")
    monkeypatch.chdir(tmp_path)
    path = Path("t.csv")
    rows = [
        f"{9000 + row};{'?' if row % 4 == 0 else row % 3};{row},5;2021-02-{1 + row % 28}"
        for row in range(40)
    ]
    path.write_text("nr;grade;dose;day\n" + "\n".join(rows))
    code, output, errors = call(capsys, "data", "inspect", str(path))
    assert code == 0
    assert max(map(len, output.splitlines())) <= 80
    # Long cells continue on the next line.
    words = [line.split()[:2] for line in output.splitlines()]
    for name_and_kind in (["nr", "id"], ["grade", "category"], ["dose", "number"], ["day", "date"]):
        assert name_and_kind in words
    assert " 25% " in output
    assert "separated by semicolons" in errors
    assert "--keep nr,day" in errors
    result = json.loads(call(capsys, "data", "inspect", str(path), "--format", "json")[1])
    assert [column["used"] for column in result["columns"]] == [False, True, True, False]
    assert [column["near_unique"] for column in result["columns"]] == [True, False, True, False]


@pytest.fixture
def visits(tmp_path):
    """Table with an id, the hospital of each row, a number, a date and a label."""
    path = tmp_path / "visits.csv"
    rows = [
        f"{1000 + i},{('north', 'south')[i % 2]},{20 + i % 60},2021-01-{1 + i % 28:02d},"
        f"{('yes', 'no')[i % 3 == 0]}"
        for i in range(90)
    ]
    path.write_text("\n".join(["patient_no,hospital,age,visit,ill", *rows]))
    return path


def test_inspect_takes_every_option_that_describes_a_table():
    command = next(c for c in commands.COMMANDS if c.name == "data inspect")
    assert {*TABLE_OPTIONS} - {"csv"} <= {*signature(command.function).parameters}


def test_inspect_interprets_a_table_as_the_benchmark_does(capsys, visits):
    options = ["--target", "ill", "--client-column", "hospital", "--drop", "age", "--keep", "visit"]
    code, output, _ = call(capsys, "data", "inspect", str(visits), *options, "--format", "json")
    facts = json.loads(output)
    assert code == 0
    assert {column["column"]: column["why"] for column in facts["columns"]} == {
        "patient_no": "near-unique, and its name contains id",
        "hospital": "client of each row",
        "age": "as declared",
        "visit": "",
        "ill": "target",
    }
    assert "clients: north (45), south (45)" in facts["notes"]
    assert "target: ill, yes against no" in facts["notes"]


def test_inspect_corrects_a_misspelled_column_of_each_option(capsys, visits):
    options = ["--target", "il", "--client-column", "hospita"]
    code, _, errors = call(capsys, "data", "inspect", str(visits), *options)
    *lines, suggestion = errors.splitlines()
    assert code == 5
    assert lines == [
        f"fedtrees: {visits}: no column 'il'; did you mean 'ill'?",
        f"fedtrees: {visits}: no column 'hospita'; did you mean 'hospital'?",
    ]
    assert suggestion.endswith("--target ill --client-column hospital")


def test_more_clients_than_rows_exit_5(capsys, tmp_path):
    text = "a,b,y\n" + "\n".join(ROWS)
    err = error_of(capsys, 5, *csv(tmp_path, text), "--clients", "99")
    assert "99 clients" in err


@pytest.mark.long
def test_a_csv_with_missing_constant_and_duplicated_columns_runs(capsys, tmp_path):
    rng = np.random.default_rng(0)
    lines = ["a,b,const,copy,colour,y"]
    for i in range(90):
        value = "" if i % 9 == 0 else f"{rng.normal():.2f}"
        lines.append(
            f"{value},{i % 5},3,{i % 5},{'red' if i % 3 else 'blue'},{'yes' if i % 2 else 'no'}"
        )
    arguments = [*csv(tmp_path, "\n".join(lines)), "--categorical", "colour", "--positive", "yes"]
    arguments += ["-p", "fedtree-hist[trees=2,max_depth=2]", "-d", "none", "-j", "1"]
    arguments += ["-a", "timberstrike", "--seeds", "1", "--format", "json"]
    code, output, errors = call(capsys, *arguments)
    assert code == 0, errors
    # Train and reference, and three times three other cells.
    assert json.loads(output)["computed"] == {"ok": 11}


def test_a_plugin_that_does_not_import_exits_2(capsys, tmp_path):
    file = tmp_path / "broken.py"
    file.write_text("import nothing_of_that_name\n")
    assert "nothing_of_that_name" in error_of(capsys, 2, "bench", "--plugin", str(file))


def test_a_base_score_that_does_not_fit_the_target_stops_a_benchmark_at_the_start(capsys, tmp_path):
    arguments = ("bench", "--data", "wine", "-p", "nvflare-hist[base_score=1.0]")
    error_message = error_of(capsys, 2, *arguments, "--output", str(tmp_path / "run"))
    assert "base_score=1.0" in error_message
    assert not (tmp_path / "run" / "rows.csv").exists()


@pytest.mark.long
def test_failed_cells_exit_with_code_3_and_are_named(capsys, tmp_path):
    protocol = "fedtree-hist[trees=1,cuts=public]"
    arguments = ("bench", "--data", "diabetes", "--seeds", "1", "-j", "1")
    arguments += ("-p", protocol, "-d", "none")
    code, output, errors = call(capsys, *arguments, "--output", str(tmp_path / "run"))
    assert code == 3
    assert "declared range" in " ".join(output.split())
    assert "cells failed" in errors


def test_explain_shows_that_sums_no_longer_reach_clients_under_split_only(capsys):
    def carried_fields(*defense):
        code, output, _ = call(capsys, "explain", "fedtree-hist", *defense, "--format", "json")
        assert code == 0
        from_server = [
            row for row in json.loads(output)["sees"]["client"] if row["from"] == "server"
        ]
        return {(row["type"], name) for row in from_server for name in row["carries"]}

    sums = {("NodeSplits", "g"), ("NodeSplits", "h"), ("LeafValues", "g"), ("LeafValues", "h")}
    assert sums <= carried_fields()
    assert not sums & carried_fields("--defense", "split-only")
    code, output, _ = call(capsys, "explain", "fedtree-hist", "--defense", "split-only")
    assert code == 0
    assert "timberstrike" in output


def test_explain_prints_brackets_and_the_parties_that_can_open_sealed_messages(capsys):
    arguments = ("explain", "secureboost[max_depth=2]", "--clients", "2")
    code, summary, _ = call(capsys, *arguments)
    assert code == 0
    assert "secureboost[max_depth=2]" in summary
    assert "RowStatistics (active), BinSums (active)" in " ".join(summary.split())
    _, output, _ = call(capsys, *arguments, "--details")
    assert "passive[labels=20]" in "".join(output.split()).replace("│", "")
    assert summary.count("\n") < output.count("\n") / 2


def test_explain_names_attacks_on_the_messages_of_predictions(capsys):
    code, output, _ = call(capsys, "explain", "secureboost", "--format", "json")
    assert code == 0
    by_attack = {row["attack"]: row for row in json.loads(output)["attacks"]}
    assert by_attack["routed-labels"]["passive"]["applies"]
    assert by_attack["path-restriction"]["active"]["applies"]


@pytest.mark.long
def test_explain_without_a_protocol_lists_the_attacks_for_every_threat(capsys):
    code, output, _ = call(capsys, "explain", "--format", "json")
    assert code == 0
    attacks = {(row["protocol"], row["threat"]): row["attacks"] for row in json.loads(output)}
    assert "histogram-peeling" in attacks["fedtree-hist", "server"]
    assert "histogram-peeling" not in attacks["fedtree-hist", "client"]
    assert "histogram-peeling" in attacks["nvflare-hist", "client"]


def test_explain_shows_the_views_of_colluding_parties_and_background_knowledge(capsys):
    threats = "active[queries=9],passive[labels=20]"
    code, output, _ = call(
        capsys, "explain", "secureboost", "--threat", threats, "--format", "json"
    )
    assert code == 0
    by_attack = {row["attack"]: row for row in json.loads(output)["attacks"]}
    assert by_attack["threshold-queries"]["active[queries=9]"]["applies"]
    assert by_attack["few-shot"]["passive[labels=20]"]["applies"]
    code, output, _ = call(capsys, "explain", "secureboost", "--clients", "4", "--format", "json")
    facts = json.loads(output)
    assert list(facts["sees"]) == ["active", "passive", "passive[count=3]"]
    assert {"NodeRows", "RoutedRows"} <= {r["type"] for r in facts["sees"]["passive[count=3]"]}
    assert {r["attack"]: r["passive[count=3]"] for r in facts["attacks"]}["spectral"]["applies"]


def test_a_benchmark_in_which_no_attack_ran_says_so_and_exits_with_3(capsys, tmp_path):
    arguments = ("bench", "-p", "secureboost[trees=1]", "-d", "none", "--data", "wine", "--seeds")
    more_arguments = (
        "1",
        "-j",
        "1",
        "--clients",
        "2",
        "--threat",
        "active",
        "-a",
        "threshold-queries",
    )
    reason = "there is no inference endpoint that could be queried; use the threat queries=1000"
    code, _, errors = call(capsys, *arguments, *more_arguments, "--dry-run")
    assert (code, errors.strip()) == (2, f"fedtrees: threshold-queries does not apply: {reason}")
    suite = tmp_path / "s.toml"
    suite.write_text(
        "seeds = [0]\n[[grid]]\ndata = ['wine']\nclients = [2]\nthreats = ['active']\n"
        "protocols = ['secureboost[trees=1]']\nattacks = ['threshold-queries']\n"
    )
    run = ("bench", "--suite", str(suite), "-j", "1", "--output", str(tmp_path / "run"))
    code, output, errors = call(capsys, *run)
    assert code == 3
    assert "no attack ran" in errors
    cells = "5 to compute (1 training, 1 attack to try where it applies, 3 others)"
    assert f"cells: {cells}, 1 process, into" in errors
    assert "1 of 5 cells did not apply" in errors
    assert reason in " ".join(output.split())
    assert "No attack that ran applies" in output


def test_list_and_doctor(capsys):
    code, output, _ = call(capsys, "list", "--format", "json")
    names = {
        kind: {entry["name"] for entry in entries} for kind, entries in json.loads(output).items()
    }
    assert {"fedtree-hist", "nvflare-hist"} <= names["protocols"]
    assert {"smoke", "quick", "full"} <= names["suites"]
    verticals = ["federboost-v", "secureboost", "vertical-forest", "vertical-regression"]
    verticals = here("protocol", [*verticals, "xgboost-vertical"])
    arbiters = {"arbiter"} if "vertical-regression" in verticals else set()
    assert names["threats"] == {"server", "client", "public", "active", "passive", *arbiters}
    assert {"iid", "label-skew", "shares", "named", "by-file"} <= names["partitions"]
    threats = {entry["name"]: entry for entry in json.loads(output)["threats"]}
    assert "count" in threats["passive"]["parameters"]
    assert "count" not in threats["active"]["parameters"]
    assert threats["passive"]["about"] == f"in {', '.join(verticals)}"
    code, output, _ = call(capsys, "doctor", "--format", "json")
    assert code == 0
    facts = json.loads(output)
    assert facts["kernels"] == "ok"
    assert len(facts["attacks_cannot"] + facts["attacks_can"]) > 20
    if facts["landlock"] != "none":
        assert facts["attacks_can"] == []


def test_help_imports_no_large_library():
    code = (
        "import sys, fedtrees.cli.main\n"
        "heavy = {'numpy', 'numba', 'pandas', 'plotly', 'xgboost', 'ortools', 'torch', 'sklearn',"
        " 'ray', 'nvflare'}\n"
        "print(sorted(heavy & set(sys.modules)))"
    )
    process = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True
    )
    assert process.stdout.strip() == "[]"
    helped = subprocess.run(
        [sys.executable, "-m", "fedtrees.cli.main", "--help"],
        capture_output=True,
        text=True,
        check=True,
    )
    assert "bench" in helped.stdout


def test_no_word_of_a_table_is_broken_in_a_narrow_terminal(capsys, monkeypatch, tmp_path):
    table = tmp_path / "t.csv"
    table.write_text(
        "number_of_people;born\n" + "".join(f"{k};0{k}.02.2001\n" for k in range(1, 9))
    )
    monkeypatch.setenv("COLUMNS", "60")
    with pytest.raises(SystemExit):
        main(["data", "inspect", str(table)])
    words = set(capsys.readouterr().out.split())
    assert {"number_of_people", "different", "missing", "type", "feature"} <= words


@pytest.mark.parametrize(
    "arguments",
    [
        ("bench", "-p", "dp-ebm"),
        ("train", "-p", "dp-ebm"),
        ("measure", "dp-ebm"),
        ("explain", "dp-ebm"),
        ("bound", "dp-ebm"),
        ("check", "dp-ebm"),
    ],
)
def test_every_command_names_the_extra_that_a_protocol_needs(arguments, capsys, monkeypatch):
    monkeypatch.setattr("fedtrees.experiments.environment.find_spec", lambda name: None)
    err = error_of(capsys, 2, *arguments)
    assert "dp-ebm needs interpret, not installed: pip install 'fedtrees[ebm]'" in err


def test_a_defense_that_lacks_its_extra_is_named_before_anything_is_trained(capsys, monkeypatch):
    monkeypatch.setattr("fedtrees.experiments.environment.find_spec", lambda name: None)
    for arguments in (
        ("check", "dp-sgd[epsilon=1]"),
        ("measure", "fedtree-hist", "-d", "dp-sgd[epsilon=1]"),
    ):
        err = error_of(capsys, 2, *arguments)
        assert "dp-sgd needs dp_accounting, not installed: pip install 'fedtrees[neural]'" in err


def test_explain_shows_a_run_that_ended_before_it_spent_an_epsilon(capsys):
    # The clients refuse the changed number of the first request: no sketch and no leaf is sent.
    protocol, defense = "dp-gbdt[epsilon=1,noise=distributed]", "dp-grid-cuts[epsilon=1]"
    options = ("--threat", "server:lying-count", "--data", "breast-cancer[rows=60]")
    code, output, errors = call(
        capsys, "explain", protocol, "-d", defense, *options, "--format", "json"
    )
    assert code == 0, errors
    facts = json.loads(output)
    assert facts["cheats"][0]["refused"].startswith("GridRequest.round=1")
    assert facts["spent"].startswith("approximate-dp[epsilon=0,")
    assert [row["from"] for row in facts["crossings"]] == ["server"]


def test_the_meaning_of_two_epsilons_names_the_one_that_covers_only_cut_points():
    of_rows, of_cuts = PureDP(2.0), PureDP(1.0, unit="cuts")
    assert "cut points" not in epsilon_in_words(of_rows)
    assert epsilon_in_words(of_cuts).startswith("epsilon of the cut points only: 1 for one row")


def test_explain_does_not_answer_about_a_file_from_its_cache(capsys, tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    arguments = ("explain", "fedtree-hist", "--data", "breast-cancer", "--format", "json")
    assert call(capsys, *arguments)[0] == 0
    assert not list((tmp_path / "cache").glob("**/*.json"))

"""The command line as its user meets it: results, errors in one line, exit codes."""

import json
import re
import shlex
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from present import CRYPTO, here

from fedtrees.cli.main import main
from fedtrees.core.guarantee import PureDP, epsilon_in_words


def call(capsys, *arguments):
    """Run a command in this process; return exit code, stdout, stderr."""
    with pytest.raises(SystemExit) as stopped:
        main(arguments)
    out, err = capsys.readouterr()
    return stopped.value.code or 0, out, err


def fails(capsys, code, *arguments):
    got, out, err = call(capsys, *arguments)
    assert got == code, err
    assert out == ""
    assert err.startswith("fedtrees: ")
    assert err.count("\n") == 1, "one clear line"
    return err


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
    code, out, _ = call(capsys, "show", str(run), "--format", "json")
    board = json.loads(out)["leaderboards"][0]
    assert code == 0
    assert {d["defense"] for d in board["defenses"]} == {"none", "split-only"}
    code, out, _ = call(capsys, "show", str(run))
    assert "split-only" in out
    for suffix, magic in (("svg", b"<?xml"), ("png", b"\x89PNG"), ("pdf", b"%PDF")):
        target = tmp_path / f"f.{suffix}"
        chosen = ("--data", "wine", "--threat", "client", "-p", "fedtree-hist")
        looks = ("--width", "column", "--label", "split-only=Splits", "--label", "auc=area")
        code, out, _ = call(capsys, "plot", str(run), "-o", str(target), *chosen, *looks)
        assert code == 0
        assert target.read_bytes().startswith(magic)
    assert "Splits" in (tmp_path / "f.svg").read_text()
    code, out, _ = call(capsys, "report", str(run), "--format", "json")
    assert json.loads(out)["file"].endswith("report.html")


@pytest.mark.long
def test_show_says_why_attacks_did_not_run_and_explain_what_is_no_protocol(capsys, tmp_path):
    folder = str(tmp_path / "run")
    _, _, err = call(capsys, "bench", *TINY, "-a", "random-leaf", "-a", "cl", "--output", folder)
    assert f"`fedtrees show {folder} --skipped` states the reasons" in err
    _, out, _ = call(capsys, "show", folder)
    assert "skipped: cl" not in " ".join(out.split())
    assert "entries with reasons" in " ".join(out.split())
    _, out, _ = call(capsys, "show", folder, "--skipped")
    assert "skipped: cl" in " ".join(out.split())
    said = fails(capsys, 2, "explain", "histogram-peeling")
    assert "is no protocol but an attack: fedtrees explain lists where each applies" in said
    assert "--defense min-bin" in fails(capsys, 2, "explain", "min-bin")


@pytest.mark.long
def test_a_table_is_printed_or_written(run, capsys, tmp_path):
    code, out, _ = call(capsys, "results", "table", str(run), "--label", "wine=Wine")
    assert code == 0
    assert "| split-only |" in out
    assert "| defense | AUC |" in out
    code, out, _ = call(capsys, "results", "table", str(run), "--format", "json")
    assert {row["defense"] for row in json.loads(out)} == {"none", "split-only"}
    for suffix in ("tex", "csv", "md"):
        target = tmp_path / f"t.{suffix}"
        code, out, _ = call(capsys, "results", "table", str(run), "-o", str(target))
        assert code == 0
        assert "split-only" in target.read_text()
    fails(capsys, 2, "results", "table", str(run), "--label", "wine")


FORMER = "note: attack 'timberstrike': the parameter 'most' is called 'max_level'"


def test_a_former_name_of_a_parameter_is_one_note_without_a_source_path(capsys, tmp_path):
    attacks = ("-a", "timberstrike[most=values]", "-a", "timberstrike[most=values,chains=2]")
    folder = str(tmp_path / "run")
    code, _, err = call(capsys, "bench", *TINY, *attacks, "--dry-run", "--output", folder)
    assert code == 0
    assert " ".join(err.split()).count(FORMER) == 1
    assert "FormerNameWarning" not in err
    assert "registry.py" not in err
    assert "register.make" not in err


@pytest.mark.long
def test_processes_of_attacks_do_not_repeat_the_note_about_a_former_name(tmp_path):
    given = ("-d", "split-only", "--threat", "server", "-a", "timberstrike[most=values]")
    command = (sys.executable, "-m", "fedtrees.cli.main", "bench", *TINY, *given, "--output", "run")
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert " ".join(done.stderr.split()).count(FORMER) == 1
    assert done.stderr.count("'most' is called") == 1
    assert "FormerNameWarning" not in done.stderr


def test_off_a_terminal_lines_name_the_cell_and_count_one_as_one(capsys):
    from fedtrees.cli.bench import Log

    told = Log(2, every=1000)
    told("ok", "train a")
    told("failed", "train b")
    once = Log(1)
    once("ok", "train c")
    lines = capsys.readouterr().err.splitlines()
    assert lines == [
        "failed: train b", "2 of 2 cells, 0 s, last: train b", "1 of 1 cell, 0 s, last: train c"
    ]  # fmt: skip


@pytest.mark.long
def test_the_first_seed_is_told_on_the_way_and_what_is_finished_when_a_run_is_stopped(
    capsys, monkeypatch, tmp_path
):
    tiny = [*TINY[:5], "2", *TINY[6:], "-d", "split-only", "-a", "random-leaf"]
    code, out, err = call(capsys, "bench", *tiny, "--output", str(tmp_path / "whole"))
    told, after = err.split(
        "after 1 of 2 seeds, 1 of 1 protocol, 1 of 1 defense; the run continues: "
    )
    assert code == 0
    assert "LEAK" in after
    assert "LEAK" not in told
    assert "LEAK" in out

    seen = []

    def stop(self, status, label):
        seen.append(label)
        if label.startswith("attack"):
            raise KeyboardInterrupt

    monkeypatch.setattr("fedtrees.cli.bench.Log.__call__", stop)
    folder = tmp_path / "part"
    code, out, err = call(capsys, "bench", *tiny, "--output", str(folder))
    assert code == 130
    assert out == ""
    assert f"fedtrees show {folder} prints the results so far" in err
    assert not (folder / "report.html").exists()  # which would take seconds
    assert all(" 0 " in label for label in seen)  # the first seed


def test_an_existing_run_needs_resume(run, capsys):
    err = fails(capsys, 7, "bench", *TINY, "--output", str(run))
    assert "--resume" in err
    code, out, _ = call(capsys, "bench", "--output", str(run), "--resume", "--format", "json")
    assert code == 0
    assert json.loads(out)["computed"] == {}


def test_resume_finishes_what_was_asked_and_nothing_else(run, capsys):
    before = (run / "suite.toml").read_text(), (run / "rows.csv").read_text()
    err = fails(capsys, 2, "bench", "--output", str(run), "--resume", "--seeds", "2")
    assert "with the options of its first start" in err
    assert ((run / "suite.toml").read_text(), (run / "rows.csv").read_text()) == before


def test_no_arguments_show_the_help(capsys):
    code, out, err = call(capsys)
    assert (code, err) == (0, "")
    assert "bench" in out


def test_a_plugin_that_exits_does_not_pass(capsys, tmp_path):
    file = tmp_path / "leaving.py"
    file.write_text("import sys\nsys.exit(0)\n")
    assert "SystemExit" in fails(capsys, 2, "plugin", "check", str(file))


def test_dry_run_computes_nothing(capsys, tmp_path):
    code, out, _ = call(capsys, "bench", *TINY, "--dry-run", "--output", str(tmp_path / "x"))
    assert code == 0
    assert "cells" in out
    assert "\ndefenses  none, split-only," in out
    assert len(out.splitlines()) < 20
    assert re.search(r"about [\d.]+ s with \d process", out)
    assert "MiB" in out
    assert not (tmp_path / "x").exists()


COLUMNS = ("bench", "-p", "secureboost", "--data", "breast-cancer", "--clients", "2")


@pytest.mark.parametrize(
    ("arguments", "said"),
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
def test_usage_errors_are_one_line_and_exit_2(arguments, said, capsys, monkeypatch):
    monkeypatch.delenv("FEDTREES_DATA", raising=False)
    assert said in fails(capsys, 2, *arguments)


def test_runs_that_are_not_there_exit_7(capsys, tmp_path):
    assert "rows.csv" in fails(capsys, 7, "show", str(tmp_path))
    assert "rows.csv" in fails(capsys, 7, "report", str(tmp_path / "none"))


def csv(tmp_path, text):
    path = tmp_path / "t.csv"
    path.write_text(text)
    return ("bench", "--csv", str(path), "--target", "y", "--output", str(tmp_path / "run"))


ROWS = [f"{i},{i % 7},{i % 2}" for i in range(40)]


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("a,b,y\n" + "\n".join(r[:-1] + "1" for r in ROWS), "one class"),
        ("a,b,y\n", "rows"),
        ("", "empty"),
        ("a,b,y\n1,2,0\n3,4\n", "line 3"),
    ],
)
def test_data_errors_are_one_line_and_exit_5(text, said, capsys, tmp_path):
    assert said in fails(capsys, 5, *csv(tmp_path, text))
    assert not (tmp_path / "run").exists()


def test_every_problem_of_a_table_has_a_line_and_the_last_is_the_command_to_try(capsys, tmp_path):
    command = csv(tmp_path, "age,bmi,ill\n" + "\n".join(ROWS))
    code, out, err = call(capsys, *command, "--drop=agee", "--keep", "bmi")
    assert (code, out) == (5, "")
    *problems, mended = err.splitlines()
    assert problems == [
        f"fedtrees: {tmp_path}/t.csv: no column 'y'; known: age, bmi, ill",
        f"fedtrees: {tmp_path}/t.csv: drop: no column 'agee'; did you mean 'age'?",
    ]
    table, folder = (shlex.quote(f"{tmp_path}/{name}") for name in ("t.csv", "run"))
    rest = f"--output {folder} --keep bmi --target COLUMN --drop age"
    assert mended == f"try: fedtrees bench --csv {table} {rest}"
    assert "the columns are age, bmi, ill" in fails(capsys, 2, *command[:3])


def test_inspect_shows_what_columns_are_taken_for(capsys, tmp_path, monkeypatch):
    monkeypatch.setenv("COLUMNS", "80")
    monkeypatch.chdir(tmp_path)
    path = Path("t.csv")
    rows = [
        f"{9000 + i};{'?' if i % 4 == 0 else i % 3};{i},5;2021-02-{1 + i % 28}" for i in range(40)
    ]
    path.write_text("nr;grade;dose;day\n" + "\n".join(rows))
    code, out, err = call(capsys, "data", "inspect", str(path))
    assert code == 0
    assert max(map(len, out.splitlines())) <= 80
    words = [line.split()[:2] for line in out.splitlines()]  # long cells go on below
    for shown in (["nr", "id"], ["grade", "category"], ["dose", "number"], ["day", "date"]):
        assert shown in words
    assert " 25% " in out
    assert "separated by semicolons" in err
    assert "--keep nr,day" in err
    found = json.loads(call(capsys, "data", "inspect", str(path), "--format", "json")[1])
    assert [c["used"] for c in found["columns"]] == [False, True, True, False]
    assert [c["near_unique"] for c in found["columns"]] == [True, False, True, False]


def test_more_clients_than_rows_exit_5(capsys, tmp_path):
    text = "a,b,y\n" + "\n".join(ROWS)
    err = fails(capsys, 5, *csv(tmp_path, text), "--clients", "99")
    assert "99 clients" in err


@pytest.mark.long
def test_a_csv_with_missing_constant_and_duplicated_columns_runs(capsys, tmp_path):
    rng = np.random.default_rng(0)
    lines = ["a,b,const,copy,colour,y"]
    for i in range(90):
        a = "" if i % 9 == 0 else f"{rng.normal():.2f}"
        lines.append(
            f"{a},{i % 5},3,{i % 5},{'red' if i % 3 else 'blue'},{'yes' if i % 2 else 'no'}"
        )
    arguments = [*csv(tmp_path, "\n".join(lines)), "--categorical", "colour", "--positive", "yes"]
    arguments += ["-p", "fedtree-hist[trees=2,max_depth=2]", "-d", "none", "-j", "1"]
    arguments += ["-a", "timberstrike", "--seeds", "1", "--format", "json"]
    code, out, err = call(capsys, *arguments)
    assert code == 0, err
    assert json.loads(out)["computed"] == {"ok": 11}  # train, reference; thrice three others


def test_a_plugin_that_does_not_import_exits_2(capsys, tmp_path):
    file = tmp_path / "broken.py"
    file.write_text("import nothing_of_that_name\n")
    assert "nothing_of_that_name" in fails(capsys, 2, "bench", "--plugin", str(file))


def test_a_base_score_that_does_not_suit_the_target_stops_a_bench_before_it_starts(
    capsys, tmp_path
):
    arguments = ("bench", "--data", "wine", "-p", "nvflare-hist[base_score=1.0]")
    said = fails(capsys, 2, *arguments, "--output", str(tmp_path / "run"))
    assert "base_score=1.0" in said
    assert not (tmp_path / "run" / "rows.csv").exists()


@pytest.mark.long
def test_failed_cells_exit_3_and_are_named(capsys, tmp_path):
    protocol = "fedtree-hist[trees=1,cuts=public]"
    arguments = ("bench", "--data", "diabetes", "--seeds", "1", "-j", "1")
    arguments += ("-p", protocol, "-d", "none")
    code, out, err = call(capsys, *arguments, "--output", str(tmp_path / "run"))
    assert code == 3
    assert "declared range" in " ".join(out.split())
    assert "cells failed" in err


def test_explain_shows_that_sums_no_longer_reach_clients(capsys):
    def carried(*defense):
        code, out, _ = call(capsys, "explain", "fedtree-hist", *defense, "--format", "json")
        assert code == 0
        seen = [r for r in json.loads(out)["sees"]["client"] if r["from"] == "server"]
        return {(r["type"], name) for r in seen for name in r["carries"]}

    sums = {("NodeSplits", "g"), ("NodeSplits", "h"), ("LeafValues", "g"), ("LeafValues", "h")}
    assert sums <= carried()
    assert not sums & carried("--defense", "split-only")
    code, out, _ = call(capsys, "explain", "fedtree-hist", "--defense", "split-only")
    assert code == 0
    assert "timberstrike" in out


def test_explain_prints_brackets_and_who_can_open_what_crosses_sealed(capsys):
    asked = ("explain", "secureboost[max_depth=2]", "--clients", "2")
    code, brief, _ = call(capsys, *asked)
    assert code == 0
    assert "secureboost[max_depth=2]" in brief
    assert "RowStatistics (active), BinSums (active)" in " ".join(brief.split())
    _, out, _ = call(capsys, *asked, "--details")
    assert "passive[labels=20]" in "".join(out.split()).replace("│", "")
    assert brief.count("\n") < out.count("\n") / 2


@pytest.mark.long
def test_explain_without_a_protocol_tells_who_is_exposed_to_what(capsys):
    code, out, _ = call(capsys, "explain", "--format", "json")
    assert code == 0
    attacks = {(r["protocol"], r["threat"]): r["attacks"] for r in json.loads(out)}
    assert "histogram-peeling" in attacks["fedtree-hist", "server"]
    assert "histogram-peeling" not in attacks["fedtree-hist", "client"]
    assert "histogram-peeling" in attacks["nvflare-hist", "client"]


def test_explain_tells_what_several_passive_parties_see_and_what_more_they_may_know(capsys):
    asked = "active[queries=9],passive[labels=20]"
    code, out, _ = call(capsys, "explain", "secureboost", "--threat", asked, "--format", "json")
    assert code == 0
    found = {row["attack"]: row for row in json.loads(out)["attacks"]}
    assert found["threshold-queries"]["active[queries=9]"]["applies"]
    assert found["few-shot"]["passive[labels=20]"]["applies"]
    code, out, _ = call(capsys, "explain", "secureboost", "--clients", "4", "--format", "json")
    facts = json.loads(out)
    assert list(facts["sees"]) == ["active", "passive", "passive[count=3]"]
    assert {"NodeRows", "RoutedRows"} <= {r["type"] for r in facts["sees"]["passive[count=3]"]}
    assert {r["attack"]: r["passive[count=3]"] for r in facts["attacks"]}["spectral"]["applies"]


def test_a_bench_in_which_no_attack_ran_says_so_and_exits_3(capsys, tmp_path):
    arguments = ("bench", "-p", "secureboost[trees=1]", "-d", "none", "--data", "wine", "--seeds")
    more = ("1", "-j", "1", "--clients", "2", "--threat", "active", "-a", "threshold-queries")
    why = "there is no inference endpoint that could be queried; use the threat queries=1000"
    code, _, err = call(capsys, *arguments, *more, "--dry-run")
    assert (code, err.strip()) == (2, f"fedtrees: threshold-queries does not apply: {why}")
    suite = tmp_path / "s.toml"
    suite.write_text(
        "seeds = [0]\n[[grid]]\ndata = ['wine']\nclients = [2]\nthreats = ['active']\n"
        "protocols = ['secureboost[trees=1]']\nattacks = ['threshold-queries']\n"
    )
    run = ("bench", "--suite", str(suite), "-j", "1", "--output", str(tmp_path / "run"))
    code, out, err = call(capsys, *run)
    assert code == 3
    assert "no attack ran" in err
    what = "5 to compute (1 training, 1 attack to try where it applies, 3 others)"
    assert f"cells: {what}, 1 process, into" in err
    assert "1 of 5 cells did not apply" in err
    assert why in " ".join(out.split())
    assert "No attack that ran applies" in out


def test_list_and_doctor(capsys):
    code, out, _ = call(capsys, "list", "--format", "json")
    names = {kind: {e["name"] for e in entries} for kind, entries in json.loads(out).items()}
    assert {"fedtree-hist", "nvflare-hist"} <= names["protocols"]
    assert {"smoke", "quick", "full"} <= names["suites"]
    verticals = ["federboost-v", "secureboost", "vertical-forest", "vertical-regression"]
    verticals = here("protocol", [*verticals, "xgboost-vertical"])
    arbiters = {"arbiter"} if "vertical-regression" in verticals else set()
    assert names["threats"] == {"server", "client", "public", "active", "passive", *arbiters}
    assert {"iid", "label-skew", "shares", "named", "by-file"} <= names["partitions"]
    threats = {e["name"]: e for e in json.loads(out)["threats"]}
    assert "count" in threats["passive"]["parameters"]
    assert "count" not in threats["active"]["parameters"]
    assert threats["passive"]["about"] == f"in {', '.join(verticals)}"
    code, out, _ = call(capsys, "doctor", "--format", "json")
    assert code == 0
    said = json.loads(out)
    assert said["kernels"] == "ok"
    assert len(said["attacks_cannot"] + said["attacks_can"]) > 20
    if said["landlock"] != "none":
        assert said["attacks_can"] == []


def test_help_loads_nothing_heavy():
    code = (
        "import sys, fedtrees.cli.main\n"
        "heavy = {'numpy', 'numba', 'pandas', 'plotly', 'xgboost', 'ortools', 'torch', 'sklearn',"
        " 'ray', 'nvflare'}\n"
        "print(sorted(heavy & set(sys.modules)))"
    )
    out = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert out.stdout.strip() == "[]"
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
    assert {"number_of_people", "different", "missing", "type", "left"} <= words


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
    err = fails(capsys, 2, *arguments)
    assert "dp-ebm needs interpret, not installed: pip install 'fedtrees[ebm]'" in err


def test_a_defense_that_lacks_its_extra_is_named_before_anything_is_trained(capsys, monkeypatch):
    monkeypatch.setattr("fedtrees.experiments.environment.find_spec", lambda name: None)
    for arguments in (
        ("check", "dp-sgd[epsilon=1]"),
        ("measure", "fedtree-hist", "-d", "dp-sgd[epsilon=1]"),
    ):
        err = fails(capsys, 2, *arguments)
        assert "dp-sgd needs dp_accounting, not installed: pip install 'fedtrees[neural]'" in err


def test_explain_shows_a_run_that_ended_before_it_spent_an_epsilon(capsys):
    # The clients refuse the changed number of the first request: no sketch and no leaf is sent.
    protocol, defense = "dp-gbdt[epsilon=1,noise=distributed]", "dp-grid-cuts[epsilon=1]"
    options = ("--threat", "server:lying-count", "--data", "breast-cancer[rows=60]")
    code, out, err = call(capsys, "explain", protocol, "-d", defense, *options, "--format", "json")
    assert code == 0, err
    facts = json.loads(out)
    assert facts["cheats"][0]["refused"].startswith("GridRequest.round=1")
    assert facts["spent"].startswith("approximate-dp[epsilon=0,")
    assert [row["from"] for row in facts["crossings"]] == ["server"]


def test_the_meaning_of_two_epsilons_says_which_one_covers_the_cut_points_only():
    whole, cuts = PureDP(2.0), PureDP(1.0, unit="cuts")
    assert "cut points" not in epsilon_in_words(whole)
    assert epsilon_in_words(cuts).startswith("epsilon of the cut points only: 1 for one row")


def test_explain_does_not_answer_about_a_file_from_its_cache(capsys, tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    arguments = ("explain", "fedtree-hist", "--data", "breast-cancer", "--format", "json")
    assert call(capsys, *arguments)[0] == 0
    assert not list((tmp_path / "cache").glob("**/*.json"))

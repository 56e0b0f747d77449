"""Comparison of two runs: paired cells, differences and the verdict."""

import json

import pytest
from synthetic_run import DEFENSES, SETTINGS, rows, write_run

from fedtrees import __version__
from fedtrees.cli.main import main
from fedtrees.core.errors import StoreError, UsageError
from fedtrees.report.compare import compare

FEW = [d for d in DEFENSES if d[0] in ("none", "split-only", "masking")]
BOOSTED = SETTINGS[0]
#: Of three defenses and seeds: trainings, and attacks under two threats.
CELLS = 9 + 9 * (2 + 3)


def table(change=lambda row: row, setting=BOOSTED, seeds=(0, 1, 2)):
    """Return the rows of a run, each changed or omitted."""
    changed_rows = (change(row) for row in rows([setting], FEW, seeds) if not row["part"])
    return [row for row in changed_rows if row is not None]


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    return write_run(tmp_path_factory.mktemp("before"), table())


def leaks_more(row):
    hit = row["defense"] == "split-only" and row["threat"] == "server"
    if hit and row["metric"] == "exact_rows" and row["stage"] == "attack":
        return row | {"advantage": row["advantage"] + 0.1 + 0.01 * row["seed"]}
    if row["defense"] == "masking" and row["metric"] == "auc":
        return row | {"value": row["value"] - 0.05 + 0.03 * (row["seed"] - 1)}
    return row


def test_a_run_does_not_differ_from_its_copy(run, tmp_path):
    comparison = compare(run, write_run(tmp_path, table()))
    assert comparison.common == CELLS
    assert comparison.leaks
    assert all(change.same for change in (*comparison.leaks, *comparison.utility))
    assert not comparison.inputs
    assert comparison.verdict == f"Nothing changed in {CELLS} cells of both runs."


@pytest.mark.long
def test_changes_are_paired_by_seed_and_the_verdict_names_the_worst(run, tmp_path):
    other_run = write_run(tmp_path, table(leaks_more))
    comparison = compare(run, other_run)
    leak, cost = comparison.differing
    assert (leak.metric, leak.defense, leak.threat) == ("exact_rows", "split-only", "server")
    assert leak.by_seed == pytest.approx({0: 0.1, 1: 0.11, 2: 0.12})
    assert leak.attacks == ("timberstrike",)
    # 4.303: the t quantile of two degrees of freedom
    half_width = 4.303 * 0.01 / 3**0.5
    assert (leak.difference.low, leak.difference.high) == pytest.approx(
        (0.11 - half_width, 0.11 + half_width), abs=1e-5
    )
    assert leak.clear
    assert cost.by_seed == pytest.approx({0: -0.08, 1: -0.05, 2: -0.02})
    assert cost.worse == pytest.approx(0.05)
    assert not cost.clear  # Three seeds whose differences vary by 0.03 are not enough.
    assert comparison.verdict.startswith(
        "Got worse most: rows reconstructed, advantage +0.110 [+0.085"
    )
    assert "AUC" not in comparison.verdict
    assert compare(other_run, run).verdict == "Nothing got worse."


def test_with_one_seed_no_change_is_clear(tmp_path):
    runs = [write_run(tmp_path / name, table(change, seeds=(1,)))
            for name, change in (("a", lambda row: row), ("b", leaks_more))]  # fmt: skip
    comparison = compare(*runs)
    assert not any(change.clear for change in comparison.differing)
    assert comparison.verdict.startswith("Nothing got clearly worse; the most")


def test_an_attack_that_only_one_run_contains_is_no_change_of_a_leak(run, tmp_path):
    weaker = write_run(
        tmp_path, table(lambda row: None if row["attack"] == "timberstrike" else row)
    )
    comparison = compare(run, weaker)
    assert comparison.only == ((18, "attack timberstrike"), (0, ""))
    assert all(change.same and change.attacks != ("timberstrike",) for change in comparison.leaks)
    assert comparison.verdict.endswith("; 18 cells that only one run contains are not compared.")


def test_an_attack_that_failed_is_no_smaller_leak(run, tmp_path):
    def failing(row):
        place = (row["attack"], row["seed"], row["threat"], row["stage"])
        if place != ("timberstrike", 2, "client", "attack"):
            return row
        empty_fields = {"metric": "", "value": "", "blind": "", "advantage": ""}
        return row | empty_fields | {"status": "failed", "reason": "r", "part": ""}

    comparison = compare(run, write_run(tmp_path, table(failing)))
    assert comparison.common == CELLS
    assert comparison.ended == {"timberstrike ok → failed": 3}
    assert all(change.same for change in comparison.leaks)
    assert comparison.verdict == "Nothing got worse; 3 cells ended otherwise."


def test_differences_of_the_environment_are_reported(run, tmp_path):
    write_run(tmp_path, table())
    (tmp_path / "environment.json").write_text(json.dumps(
        {"fedtrees": __version__, "python": "3.12", "numpy": "2.4",
         "tables": [{"file": "mine.csv", "sha256": "ab" * 32}]}
    ))  # fmt: skip
    suite = (tmp_path / "suite.toml").read_text()
    (tmp_path / "suite.toml").write_text(suite.replace("[0, 1, 2]", "[0, 1]"))
    assert compare(run, tmp_path).inputs == {
        "numpy": ("2.3", "2.4"),
        "suite.suite.seeds": ([0, 1, 2], [0, 1]),
        "tables.mine.csv": (None, "abababababab"),
    }


def test_runs_that_cannot_be_compared_are_refused(run, tmp_path):
    with pytest.raises(UsageError, match="are the same folder"):
        compare(run, run / ".." / run.name)
    with pytest.raises(StoreError, match=r"cannot be read.*give the folder of a run"):
        compare(run, tmp_path)
    unfinished_run = write_run(tmp_path / "begun", table())
    (unfinished_run / "disclosure.json").unlink()
    with pytest.raises(StoreError, match="not finished; finish it with: fedtrees bench --resume"):
        compare(run, unfinished_run)
    with pytest.raises(UsageError, match=r"no cell in common: one is of stroke.*other of pima"):
        compare(run, write_run(tmp_path / "other", table(setting=SETTINGS[2])))


@pytest.mark.long
def test_the_command_fills_at_most_one_screen(run, tmp_path, capsys, monkeypatch):
    def everything(row):
        worse = row["stage"] == "attack" and row["advantage"] != ""
        return row | {"advantage": row["advantage"] + 0.02} if worse else row

    monkeypatch.setenv("COLUMNS", "100")
    other_run = str(write_run(tmp_path, table(everything)))
    outputs = {}
    for output_format in ("table", "json"):
        with pytest.raises(SystemExit) as exit_info:
            main(["results", "compare", str(run), other_run, "--format", output_format])
        assert not exit_info.value.code
        outputs[output_format] = capsys.readouterr().out
    assert len(outputs["table"].splitlines()) <= 24
    assert "18 compared, 18 clearly worse" in outputs["table"]
    assert len(json.loads(outputs["json"])["leaks"]) == 18


@pytest.mark.long
def test_several_runs_are_each_compared_with_the_previous_one(run, tmp_path, capsys, monkeypatch):
    """The second run is worse, and the third one equals the first."""
    monkeypatch.setenv("COLUMNS", "200")
    worse = write_run(tmp_path / "worse", table(leaks_more))
    restored = write_run(tmp_path / "back", table())
    arguments = ["compare", *map(str, (run, worse, restored))]
    with pytest.raises(SystemExit, match="0"):
        main([*arguments, "--format", "json"])
    first, second = json.loads(capsys.readouterr().out)
    assert (first["runs"][1], second["runs"][0]) == (str(worse), str(worse))
    with pytest.raises(SystemExit, match="0"):
        main(arguments)
    output = capsys.readouterr().out
    assert "1 clearly worse" in output
    assert "1 clearly better" in output
    assert "Got worse most" in output

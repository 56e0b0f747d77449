"""Two runs compared: what is paired, what is not, and what is said."""

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
    """Return the rows of a run, each changed or left out."""
    made = (change(row) for row in rows([setting], FEW, seeds) if not row["part"])
    return [row for row in made if row is not None]


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


def test_a_run_beside_its_copy_has_not_changed(run, tmp_path):
    found = compare(run, write_run(tmp_path, table()))
    assert found.common == CELLS
    assert found.leaks
    assert all(c.same for c in (*found.leaks, *found.utility))
    assert not found.inputs
    assert found.verdict == f"Nothing changed in {CELLS} cells of both runs."


@pytest.mark.long
def test_what_got_worse_is_paired_by_seed_and_said_last(run, tmp_path):
    other = write_run(tmp_path, table(leaks_more))
    found = compare(run, other)
    leak, cost = found.differing
    assert (leak.metric, leak.defense, leak.threat) == ("exact_rows", "split-only", "server")
    assert leak.by_seed == pytest.approx({0: 0.1, 1: 0.11, 2: 0.12})
    assert leak.attacks == ("timberstrike",)
    # 4.303: the t quantile of two degrees of freedom
    half = 4.303 * 0.01 / 3**0.5
    assert (leak.difference.low, leak.difference.high) == pytest.approx(
        (0.11 - half, 0.11 + half), abs=1e-5
    )
    assert leak.clear
    assert cost.by_seed == pytest.approx({0: -0.08, 1: -0.05, 2: -0.02})
    assert cost.worse == pytest.approx(0.05)
    assert not cost.clear  # three seeds, three hundredths apart
    assert found.verdict.startswith("Got worse most: rows reconstructed, advantage +0.110 [+0.085")
    assert "AUC" not in found.verdict
    assert compare(other, run).verdict == "Nothing got worse."


def test_one_seed_makes_nothing_clear(tmp_path):
    runs = [write_run(tmp_path / n, table(c, seeds=(1,)))
            for n, c in (("a", lambda row: row), ("b", leaks_more))]  # fmt: skip
    found = compare(*runs)
    assert not any(c.clear for c in found.differing)
    assert found.verdict.startswith("Nothing got clearly worse; the most")


def test_an_attack_that_one_run_lacks_is_no_change_of_a_leak(run, tmp_path):
    weaker = write_run(tmp_path, table(lambda r: None if r["attack"] == "timberstrike" else r))
    found = compare(run, weaker)
    assert found.only == ((18, "attack timberstrike"), (0, ""))
    assert all(c.same and c.attacks != ("timberstrike",) for c in found.leaks)
    assert found.verdict.endswith("; 18 cells that only one run contains are not compared.")


def test_an_attack_that_failed_is_no_smaller_leak(run, tmp_path):
    def failing(row):
        here = (row["attack"], row["seed"], row["threat"], row["stage"])
        if here != ("timberstrike", 2, "client", "attack"):
            return row
        bad = {"metric": "", "value": "", "blind": "", "advantage": ""}
        return row | bad | {"status": "failed", "reason": "r", "part": ""}

    found = compare(run, write_run(tmp_path, table(failing)))
    assert found.common == CELLS
    assert found.ended == {"timberstrike ok → failed": 3}
    assert all(c.same for c in found.leaks)
    assert found.verdict == "Nothing got worse; 3 cells ended otherwise."


def test_what_they_ran_on_is_told_where_it_differs(run, tmp_path):
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


def test_what_cannot_be_compared_is_refused(run, tmp_path):
    with pytest.raises(UsageError, match="is the same run as"):
        compare(run, run / ".." / run.name)
    with pytest.raises(StoreError, match=r"cannot be read.*give the folder of a run"):
        compare(run, tmp_path)
    begun = write_run(tmp_path / "begun", table())
    (begun / "disclosure.json").unlink()
    with pytest.raises(StoreError, match="not finished; finish it with: fedtrees bench --resume"):
        compare(run, begun)
    with pytest.raises(UsageError, match=r"no cell in common: one is of stroke.*other of pima"):
        compare(run, write_run(tmp_path / "other", table(setting=SETTINGS[2])))


@pytest.mark.long
def test_the_command_fills_at_most_a_screen(run, tmp_path, capsys, monkeypatch):
    def everything(row):
        worse = row["stage"] == "attack" and row["advantage"] != ""
        return row | {"advantage": row["advantage"] + 0.02} if worse else row

    monkeypatch.setenv("COLUMNS", "100")
    other = str(write_run(tmp_path, table(everything)))
    told = {}
    for form in ("table", "json"):
        with pytest.raises(SystemExit) as stopped:
            main(["results", "compare", str(run), other, "--format", form])
        assert not stopped.value.code
        told[form] = capsys.readouterr().out
    assert len(told["table"].splitlines()) <= 24
    assert "18 compared, 18 clearly worse" in told["table"]
    assert len(json.loads(told["json"])["leaks"]) == 18


@pytest.mark.long
def test_of_several_runs_each_is_compared_with_the_one_before(run, tmp_path, capsys, monkeypatch):
    """The history of a run: worse in the second, and back in the third."""
    monkeypatch.setenv("COLUMNS", "200")
    worse = write_run(tmp_path / "worse", table(leaks_more))
    back = write_run(tmp_path / "back", table())
    asked = ["compare", *map(str, (run, worse, back))]
    with pytest.raises(SystemExit, match="0"):
        main([*asked, "--format", "json"])
    first, second = json.loads(capsys.readouterr().out)
    assert (first["runs"][1], second["runs"][0]) == (str(worse), str(worse))
    with pytest.raises(SystemExit, match="0"):
        main(asked)
    told = capsys.readouterr().out
    assert "1 clearly worse" in told
    assert "1 clearly better" in told
    assert "Got worse most" in told

"""`fedtrees leaderboard`: a submission of a run, and the forgeries that a check refuses."""

import contextlib
import csv
import hashlib
import json
import os
import shutil
import time

import pytest

from fedtrees.cli.main import main
from fedtrees.core.limits import TimeLimit, limited
from fedtrees.experiments.session import BenchSession
from fedtrees.experiments.suite import Suite
from fedtrees.report import submissions

SUITE = """
seeds = [0]
[[grid]]
data = ["breast-cancer[rows=60]"]
clients = [2]
protocols = ["fedtree-hist[trees=1]"]
threats = ["server"]
attacks = ["timberstrike"]
"""


def call(*arguments):
    with pytest.raises(SystemExit) as stopped:
        main(list(map(str, arguments)))
    return stopped.value.code


@pytest.fixture(scope="module")
def honest(tmp_path_factory):
    folder = tmp_path_factory.mktemp("leaderboard")
    bench = BenchSession(Suite.parse(SUITE, "tiny.toml"), folder / "run")
    bench.open(resume=False)
    bench.run()
    assert (
        call(
            "leaderboard", "submit", folder / "run", "-o", folder / "all/ours", "--by", "A. Author"
        )
        == 0
    )
    return folder / "all"


@pytest.fixture
def all_of(honest, tmp_path):
    shutil.copytree(honest, tmp_path / "all")
    return tmp_path / "all"


def forge(folder, change):
    """Apply `change` to every row, where None removes it, and write new checksums."""
    with (folder / "rows.csv").open(newline="") as file:
        table = list(csv.DictReader(file))
    names = list(table[0])
    with (folder / "rows.csv").open("w", newline="") as file:
        writer = csv.DictWriter(file, names, lineterminator="\n")
        writer.writeheader()
        writer.writerows(filter(None, map(change, table)))
    text = "".join(f"{hashlib.sha256((folder / name).read_bytes()).hexdigest()}  {name}\n"
                   for name in sorted(submissions.FILES))  # fmt: skip
    (folder / "SHA256SUMS").write_text(text)


def leak_hidden(row):
    if row["stage"] == "attack" and row["blind"] and float(row["advantage"] or 0) > 0.1:
        return row | {"value": row["blind"], "advantage": "0", "population": "", "beyond": ""}
    return row


def attack_skipped(row):
    if row["stage"] == "attack" and row["metric"] != "ra":
        return None
    if row["stage"] == "attack":
        empty = dict.fromkeys(("metric", "value", "blind", "advantage", "population", "beyond"), "")
        return row | empty | {"status": "skipped", "reason_code": "not-compared"}
    applies = row["stage"] == "adversary" and row["attack"] == "timberstrike"
    return row | {"value": "0.0"} if applies else row


def utility_raised(row):
    return row | {"value": "0.999"} if (row["stage"], row["metric"]) == ("train", "auc") else row


def blind_raised(row):
    guess = row["stage"] == "blind" and row["metric"] == "ra" and not row["attack_params"]
    return row | {"value": "0.99"} if guess else row


@pytest.mark.long
@pytest.mark.parametrize(
    ("change", "reason"),
    [
        (leak_hidden, "value is submitted as"),
        (attack_skipped, "applies value is submitted as 0.0 and comes out as 1.0"),
        (utility_raised, "auc value is submitted as 0.999"),
        (blind_raised, "ra value is submitted as 0.99"),
    ],
)
def test_a_forged_row_is_refused_when_its_view_is_computed_again(all_of, change, reason, capsys):
    forge(all_of / "ours", change)
    site = all_of.parent / "site"
    assert call("leaderboard", "build", all_of, "-o", site, "--draw", "x") == 4
    errors = capsys.readouterr().err
    assert f"refused: {all_of}/ours" in errors
    assert reason in errors
    assert "--draw x checks the same views" in errors
    assert not site.exists()


@pytest.mark.long
def test_an_honest_submission_is_shown_and_listed_if_it_is_accepted(all_of, tmp_path, capsys):
    honest = all_of
    assert call("leaderboard", "build", honest, "-o", tmp_path / "site", "--format", "json") == 0
    result = json.loads(capsys.readouterr().out)
    assert result["recomputed"] == 1
    assert not (honest / "accepted.csv").exists()
    assert call("leaderboard", "build", honest, "--recompute", 0, "--accept") == 2
    page = (tmp_path / "site/index.html").read_text()
    assert "A. Author" in page
    assert "timberstrike" in page
    assert call("leaderboard", "build", honest, "-o", tmp_path / "site", "--accept") == 0
    digest = submissions.read(honest / "ours").digest
    assert (honest / "accepted.csv").read_text().splitlines()[1].startswith(f"{digest},20")


def state_of_earlier_releases(row):
    return row | {"state_code": "ok", "reason_code": "", "reason_args": "", "reason": ""} if (
        row["reason_code"] == "no-value") else row  # fmt: skip


@pytest.mark.long
def test_missing_values_with_the_state_of_earlier_releases_are_accepted(all_of, tmp_path, capsys):
    rows = (all_of / "ours/rows.csv").read_text()
    assert "no-value" in rows
    forge(all_of / "ours", state_of_earlier_releases)
    assert "no-value" not in (all_of / "ours/rows.csv").read_text()
    site = tmp_path / "site"
    code = call("leaderboard", "build", all_of, "-o", site, "--recompute", 3, "--draw", "x")
    assert code == 0, capsys.readouterr().err


@pytest.mark.long
def test_a_cell_left_out_and_one_too_many_are_refused(all_of, capsys):
    forge(all_of / "ours", lambda r: None if r["stage"] == "attack" else r)
    assert call("leaderboard", "build", all_of, "--recompute", 0) == 7
    assert "server timberstrike of the suite has no row" in capsys.readouterr().err
    forge(all_of / "ours", lambda r: r | {"seed": "7"} if r["stage"] == "train" else r)
    assert call("leaderboard", "build", all_of, "--recompute", 0) == 7
    assert "is not of its suite" in capsys.readouterr().err


def test_a_repeated_row_is_refused(all_of, capsys):
    path = all_of / "ours/rows.csv"
    lines = path.read_text().splitlines(keepends=True)
    path.write_text("".join([*lines, next(line for line in lines if ",attack,ok," in line)]))
    forge(all_of / "ours", lambda row: row)
    assert call("leaderboard", "build", all_of, "--recompute", 0) == 7
    assert "is there twice" in capsys.readouterr().err


def test_unknown_extensions_and_tables_of_the_submitter_are_refused(all_of, tmp_path, capsys):
    suite = all_of / "ours/suite.toml"
    text = suite.read_text()
    suite.write_text(text.replace("timberstrike", "no-such-attack"))
    forge(all_of / "ours", lambda row: row)
    assert call("leaderboard", "build", all_of, "--recompute", 0) == 2
    assert "unknown attack 'no-such-attack'" in capsys.readouterr().err
    run = shutil.copytree(all_of, tmp_path / "run") / "ours"
    suite_with_csv = text.replace(
        '["breast-cancer[rows=60]"]', '[{ csv = "ward.csv", target = "ill" }]'
    )
    (run / "suite.toml").write_text(suite_with_csv)
    (run / "SHA256SUMS").unlink()
    assert call("leaderboard", "submit", run, "-o", tmp_path / "out", "--by", "A. Author") == 2
    assert "names a table of its submitter (csv)" in capsys.readouterr().err
    assert not (tmp_path / "out").exists()


def steal(all_of, change=lambda row: row, name="a-copy", by="T. Hief", **fields):
    """Copy the bundle `ours` under another author, change its rows, and write new checksums."""
    folder = shutil.copytree(all_of / "ours", all_of / name)
    path = folder / "submission.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), "by": by, **fields}))
    forge(folder, change)
    return folder


def seconds_blank(row):
    return row | {"version": row["version"], "run": "a-copy"}


def score_nudged(row):
    """Raise every score of an attack by less than the tolerance of a recomputation."""
    if row["stage"] != "attack" or not row["advantage"] or row["metric"] != "ra":
        return row
    value = float(row["value"]) - 1e-4
    advantage = (value - float(row["blind"])) / (1 - float(row["blind"]))
    beyond = row["population"] and (value - float(row["population"])) / (
        1 - float(row["population"])
    )
    return row | {"value": str(value), "advantage": str(advantage), "beyond": str(beyond)}


def default_written_out(row):
    """Name a parameter that every training has anyway."""
    if row["protocol_params"]:
        params = row["protocol_params"].replace("trees=1", "trees=1,max_depth=6")
        return row | {"protocol_params": params}
    return row


@pytest.mark.parametrize("change", [seconds_blank, score_nudged, default_written_out])
def test_a_copy_under_another_name_adds_nothing_and_is_refused(all_of, change, capsys):
    steal(all_of, change, date="2026-01-01T00:00:00Z")
    submissions.accept(all_of, [submissions.read(all_of / "ours")])
    assert call("leaderboard", "build", all_of, "--recompute", 0) == 7
    err = capsys.readouterr().err
    assert "a-copy (by T. Hief)" in err
    assert "adds nothing" in err or "repeats the results" in err


def test_a_copy_with_two_rows_exchanged_is_refused(all_of, capsys):
    folder = steal(all_of, date="2099-01-01T00:00:00Z")
    assert call("leaderboard", "build", all_of, "--recompute", 0) == 7
    assert "lies in the future" in capsys.readouterr().err
    path = folder / "submission.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | {"date": "2026-11-01T00:00:00Z"}))
    lines = (folder / "rows.csv").read_text().splitlines(keepends=True)
    lines[1], lines[2] = lines[2], lines[1]
    (folder / "rows.csv").write_text("".join(lines))
    forge(folder, lambda row: row)
    assert call("leaderboard", "build", all_of, "--recompute", 0) == 7
    assert "repeats the results" in capsys.readouterr().err


def test_equal_dates_of_two_authors_of_the_same_cells_are_refused(all_of, capsys):
    steal(all_of)
    assert call("leaderboard", "build", all_of, "--recompute", 0) == 7
    assert "state the same date, and neither is in accepted.csv" in capsys.readouterr().err


def test_cells_are_credited_to_the_accepted_bundle_although_a_copy_is_backdated(all_of, tmp_path):
    first = submissions.read(all_of / "ours")
    submissions.accept(all_of, [first])
    larger = SUITE.replace("seeds = [0]", "seeds = [0, 1]")
    bench = BenchSession(Suite.parse(larger, "tiny.toml"), tmp_path / "run")
    bench.open(resume=False)
    bench.run()
    folder = submissions.write(tmp_path / "run", all_of / "a-first", "T. Hief").folder
    path = folder / "submission.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | {"date": "2020-01-01T00:00:00Z"}))
    forge(folder, lambda row: row)
    bundles = submissions.read_all(all_of)
    assert [b.name for b in bundles] == ["ours", "a-first"]
    rows = submissions.merged(bundles)
    rows = rows[rows["stage"].isin(["train", "attack"])]
    assert set(rows.loc[rows["seed"] == 0, "submission"]) == {"ours"}
    assert set(rows.loc[rows["seed"] == 1, "submission"]) == {"a-first"}
    submissions.accept(all_of, bundles)
    lines = (all_of / "accepted.csv").read_text().splitlines()
    assert [line.split(",")[2] for line in lines] == ["name", "ours", "a-first"]


def change_first_row(stage, /, **changes):
    """Return a change of the first row of a stage that has a metric."""
    pending = [changes]

    def change(row):
        is_first = row["stage"] == stage and row["metric"] and pending
        return row | pending.pop() if is_first else row

    return change


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (change_first_row("train", value="inf"), "value=inf; give a finite number"),
        (change_first_row("train", value="1e999"), "value=1e999; give a finite number"),
        (change_first_row("attack", n="nan"), "n=nan; give a finite number"),
        (change_first_row("train", value="1.5"), "beyond the best possible, 1"),
        (change_first_row("adversary", stage="exposure"), "stage='exposure'; known: train"),
        (change_first_row("reference", stage="extra"), "stage='extra'; known: train"),
        (change_first_row("attack", status="fine"), "status='fine'; known: ok"),
        (change_first_row("blind", metric="fame"), "measures 'fame', which no installed metric"),
        (change_first_row("train", unit="bananas"), "in 'bananas'; it is measured in"),
        (change_first_row("attack", measure_class="diagnostic"), "of the class 'diagnostic'"),
        (
            change_first_row("attack", adversary="nobody"),
            "adversary='nobody', and its threat is server",
        ),
        (change_first_row("train", part="\x1b[2J"), "characters that cannot be printed"),
        (
            change_first_row("train", seconds="3"),
            "seconds='3', which fedtrees leaderboard submit leaves empty",
        ),
    ],
)
def test_a_row_that_no_run_writes_is_refused(all_of, change, message, capsys):
    forge(all_of / "ours", change)
    assert call("leaderboard", "build", all_of, "--recompute", 0) == 7
    err = capsys.readouterr().err
    assert message in err
    assert "\x1b" not in err


@pytest.mark.parametrize("stage", ["reference", "blind", "adversary"])
def test_a_second_row_of_the_same_measurement_is_refused_in_every_stage(all_of, stage, capsys):
    path = all_of / "ours/rows.csv"
    lines = path.read_text().splitlines(keepends=True)
    repeated_line = next(line for line in lines if f",{stage},ok," in line)
    path.write_text("".join([*lines, repeated_line]))
    forge(all_of / "ours", lambda row: row)
    assert call("leaderboard", "build", all_of, "--recompute", 0) == 7
    assert "is there twice" in capsys.readouterr().err


def test_a_reference_of_another_protocol_is_not_of_the_suite(all_of, capsys):
    forge(
        all_of / "ours",
        lambda r: r | {"protocol_params": "nvflare-hist"} if r["stage"] == "reference" else r,
    )
    assert call("leaderboard", "build", all_of, "--recompute", 0) == 7
    assert "fedtree-hist[trees=1] of the suite has no row" in capsys.readouterr().err


def references_lowered(row):
    return row | {"value": "0.01"} if row["stage"] == "reference" else row


def blind_row_added(row):
    best = row["stage"] == "blind" and row["metric"] == "ra" and not row["attack_params"]
    return row | {"attack_params": "no-such-guess"} if best else row


def score_of_another_table(row):
    return row | {"pair_id": "000000000000"} if row["stage"] == "train" else row


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (references_lowered, "auc value is submitted as 0.01"),
        (blind_row_added, "ra does not come of it"),
        (score_of_another_table, "pair_id is submitted as '000000000000'"),
    ],
)
def test_baselines_of_a_drawn_view_are_computed_again(all_of, change, message, capsys):
    forge(all_of / "ours", change)
    assert call("leaderboard", "build", all_of, "--draw", "x") == 4
    assert message in capsys.readouterr().err


@pytest.mark.parametrize("name", ["rows.csv", "suite.toml", "SHA256SUMS"])
def test_links_devices_and_pipes_in_a_bundle_are_not_read(all_of, name, capsys):
    path = all_of / "ours" / name
    path.unlink()
    path.symlink_to("/dev/zero")
    assert call("leaderboard", "build", all_of, "--recompute", 0) == 7
    assert f"{name} cannot be read (it is a symbolic link)" in capsys.readouterr().err
    path.unlink()
    os.mkfifo(path)
    assert call("leaderboard", "build", all_of, "--recompute", 0) == 7
    assert f"{name} cannot be read (it is not a regular file)" in capsys.readouterr().err


def test_a_link_to_a_folder_and_an_oversized_file_are_refused(all_of, capsys, monkeypatch):
    (all_of / "link").symlink_to(all_of / "ours", target_is_directory=True)
    assert call("leaderboard", "build", all_of, "--recompute", 0) == 7
    assert "it is a symbolic link; give a folder" in capsys.readouterr().err
    (all_of / "link").unlink()
    with (all_of / "ours/rows.csv").open("ab") as file:
        file.truncate(50_000_001)
    assert call("leaderboard", "build", all_of, "--recompute", 0) == 7
    assert "larger than 50,000,000 bytes" in capsys.readouterr().err


@pytest.mark.parametrize("name", ["\x1b[2Jx", "a b", "<b>", "é", "..."])
def test_names_of_folders_are_plain_in_terminals_and_on_pages(all_of, name, capsys):
    (all_of / "ours").rename(all_of / name)
    assert call("leaderboard", "build", all_of, "--recompute", 0) == 7
    err = capsys.readouterr().err
    assert "use at most 100 of the characters" in err
    assert "\x1b" not in err


def test_names_in_a_list_of_checksums_are_shown_without_control_characters(all_of, capsys):
    sums = all_of / "ours/SHA256SUMS"
    sums.write_text(sums.read_text() + "0" * 64 + "  \x1b[2J\n")
    assert call("leaderboard", "build", all_of, "--recompute", 0) == 7
    err = capsys.readouterr().err
    assert "lists" in err
    assert "\x1b" not in err


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("clients = [2]", "clients = [1000000]", "1000000 clients but only"),
        ("seeds = [0]", f"seeds = {[*range(100_000)]}", "give at most 1000 seeds"),
        ("seeds = [0]", f"seeds = {[*range(900)]}", "has 900 trainings or more, and its run has"),
    ],
)
def test_a_huge_suite_is_refused_before_it_is_expanded(all_of, old, new, message, capsys):
    path = all_of / "ours/suite.toml"
    assert old in path.read_text()
    path.write_text(path.read_text().replace(old, new))
    forge(all_of / "ours", lambda row: row)
    begin = time.monotonic()
    assert call("leaderboard", "build", all_of, "--recompute", 0) in (2, 5)
    assert time.monotonic() - begin < 10
    assert message in capsys.readouterr().err


def test_a_check_stops_at_its_time_limit(all_of, capsys):
    assert call("leaderboard", "build", all_of, "--time-limit", "0.001") == 7
    assert "its check takes more than 0.001 seconds" in capsys.readouterr().err
    assert call("leaderboard", "build", all_of, "--time-limit", "-1") == 2


def test_limits_nest_and_the_outer_one_goes_on():
    begin = time.monotonic()
    with contextlib.suppress(TimeLimit), limited(0.3):
        with limited(60):
            pass
        with pytest.raises(TimeLimit), limited(0.05):
            time.sleep(10)
        assert time.monotonic() - begin < 0.3
        time.sleep(10)
    assert 0.2 < time.monotonic() - begin < 5

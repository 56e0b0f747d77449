"""`fedtrees submit` and `fedtrees leaderboard` on a run: what a forger would try is refused."""

import csv
import hashlib
import json
import shutil

import pytest

from fedtrees.bench.session import Bench
from fedtrees.bench.suite import Suite
from fedtrees.cli.main import main
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
    bench = Bench(Suite.parse(SUITE, "tiny.toml"), folder / "run")
    bench.open(resume=False)
    bench.run()
    assert call("submit", folder / "run", "-o", folder / "all/ours", "--by", "A. Author") == 0
    return folder / "all"


@pytest.fixture
def all_of(honest, tmp_path):
    shutil.copytree(honest, tmp_path / "all")
    return tmp_path / "all"


def forge(folder, change):
    """Change rows as `change` says, None for one that goes; list their digests anew."""
    with (folder / "rows.csv").open(newline="") as file:
        table = list(csv.DictReader(file))
    names = list(table[0])
    with (folder / "rows.csv").open("w", newline="") as file:
        writer = csv.DictWriter(file, names, lineterminator="\n")
        writer.writeheader()
        writer.writerows(filter(None, map(change, table)))
    text = "".join(f"{hashlib.sha256((folder / n).read_bytes()).hexdigest()}  {n}\n"
                   for n in sorted(submissions.FILES))  # fmt: skip
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
    ("change", "told"),
    [
        (leak_hidden, "value is told as"),
        (attack_skipped, "applies value is told as 0.0 and comes out as 1.0"),
        (utility_raised, "auc value is told as 0.999"),
        (blind_raised, "ra value is told as 0.99"),
    ],
)
def test_a_forged_row_is_refused_when_its_view_is_computed_again(all_of, change, told, capsys):
    forge(all_of / "ours", change)
    site = all_of.parent / "site"
    assert call("leaderboard", all_of, "-o", site, "--draw", "x") == 4
    err = capsys.readouterr().err
    assert f"refused: {all_of}/ours" in err
    assert told in err
    assert "--draw x checks the same views" in err
    assert not site.exists()


@pytest.mark.long
def test_an_honest_one_is_shown(honest, tmp_path, capsys):
    assert call("leaderboard", honest, "-o", tmp_path / "site", "--format", "json") == 0
    told = json.loads(capsys.readouterr().out)
    assert told["recomputed"] == 1
    page = (tmp_path / "site/index.html").read_text()
    assert "A. Author" in page
    assert "timberstrike" in page


@pytest.mark.long
def test_a_cell_left_out_and_one_too_many_are_refused(all_of, capsys):
    forge(all_of / "ours", lambda r: None if r["stage"] == "attack" else r)
    assert call("leaderboard", all_of, "--recompute", 0) == 7
    assert "server timberstrike of the suite has no row" in capsys.readouterr().err
    forge(all_of / "ours", lambda r: r | {"seed": "7"} if r["stage"] == "train" else r)
    assert call("leaderboard", all_of, "--recompute", 0) == 7
    assert "is not of its suite" in capsys.readouterr().err


def test_a_row_that_stands_twice_is_refused(all_of, capsys):
    path = all_of / "ours/rows.csv"
    lines = path.read_text().splitlines(keepends=True)
    path.write_text("".join([*lines, next(x for x in lines if ",attack,ok," in x)]))
    forge(all_of / "ours", lambda row: row)
    assert call("leaderboard", all_of, "--recompute", 0) == 7
    assert "is there twice" in capsys.readouterr().err


def test_what_is_not_installed_and_tables_of_ones_own_are_refused(all_of, tmp_path, capsys):
    suite = all_of / "ours/suite.toml"
    text = suite.read_text()
    suite.write_text(text.replace("timberstrike", "no-such-attack"))
    forge(all_of / "ours", lambda row: row)
    assert call("leaderboard", all_of, "--recompute", 0) == 2
    assert "unknown attack 'no-such-attack'" in capsys.readouterr().err
    run = shutil.copytree(all_of, tmp_path / "run") / "ours"
    own = text.replace('["breast-cancer[rows=60]"]', '[{ csv = "ward.csv", target = "ill" }]')
    (run / "suite.toml").write_text(own)
    (run / "SHA256SUMS").unlink()
    assert call("submit", run, "-o", tmp_path / "out", "--by", "A. Author") == 2
    assert "table of one's own" in capsys.readouterr().err
    assert not (tmp_path / "out").exists()

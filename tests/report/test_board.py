"""Submissions and the page of the leaderboard: refusals, order, and accessibility."""

import csv
import hashlib
import html
import json
import re
import shutil

import pytest
from synthetic_run import DEFENSES, SETTINGS, Table, write_run
from synthetic_run import rows as synthetic_rows
from test_report_browser import AXE, BROWSER, CHECKED, HOSTILE, dom, overflowing_elements

from fedtrees.core.errors import StoreError, UsageError
from fedtrees.core.reasons import Reason
from fedtrees.report import leaderboard, submissions
from fedtrees.report.findings import RunAnalysis

FEW = [d for d in DEFENSES if d[0] in ("none", "split-only")]


def bundle(folder, name="one", table=None, by="A. Author"):
    run = write_run(
        folder / "run", [*synthetic_rows(SETTINGS[2:3], FEW)] if table is None else table
    )
    return submissions.write(run, folder / "all" / name, by).folder


def seal(folder):
    """Write the digests of the present files, as a forger would."""
    lines = [f"{hashlib.sha256((folder / name).read_bytes()).hexdigest()}  {name}" for name in
             sorted(submissions.FILES)]  # fmt: skip
    (folder / "SHA256SUMS").write_text("".join(f"{line}\n" for line in lines))


def edit(folder, change, sealed=True):
    """Change the first attack's row that `change` wants, of a score with a blind one."""
    text = (folder / "rows.csv").read_text()
    table = list(csv.DictReader(text.splitlines()))
    change(next(r for r in table if r["stage"] == "attack" and r["metric"] == "ra"))
    with (folder / "rows.csv").open("w", newline="") as file:
        writer = csv.DictWriter(file, list(table[0]), lineterminator="\n")
        writer.writeheader()
        writer.writerows(table)
    if sealed:
        seal(folder)


def test_a_bundle_omits_costs_error_texts_and_folder_names(tmp_path):
    table = [*synthetic_rows(SETTINGS[2:3], FEW)]
    failed_row = next(row for row in table if row["stage"] == "attack")
    failed_row |= Reason("failed", error="no /home/ann/rows.csv").columns()
    failed_row |= {"status": "failed", "metric": "", "value": "", "advantage": ""}
    folder = bundle(tmp_path, table=[row | {"run": "ann"} for row in table])
    text = (folder / "rows.csv").read_text()
    assert "ann" not in text
    submission = submissions.read(folder)
    assert {row["run"] for row in submission.records} == {"one"}
    assert (submission.rows["status"] == "failed").sum() == 1
    assert sorted(path.name for path in folder.iterdir()) == sorted(
        ["SHA256SUMS", *submissions.FILES]
    )
    with pytest.raises(StoreError, match="not empty"):
        submissions.write(tmp_path / "run", folder, "A. Author")
    with pytest.raises(UsageError, match="give a name"):
        submissions.write(tmp_path / "run", tmp_path / "new", "")


def raised(row):
    row["value"] = "0.5"


def lowered(row):
    row["advantage"] = "0"


def hidden(row):
    row["advantage"] = ""


@pytest.mark.parametrize("change", [raised, lowered, hidden])
def test_an_edited_row_is_refused_by_its_digest_and_then_by_arithmetic(tmp_path, change):
    folder = bundle(tmp_path)
    edit(folder, change, sealed=False)
    with pytest.raises(StoreError, match="was changed"):
        submissions.read(folder)
    seal(folder)
    with pytest.raises(StoreError, match="does not follow from a score"):
        submissions.read(folder)


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (lambda path: (path / "suite.toml").unlink(), "no whole submission: suite.toml"),
        (lambda path: (path / "SHA256SUMS").unlink(), "no whole submission: SHA256SUMS"),
        (lambda path: cut(path / "rows.csv"), "cut off at line"),
        (lambda path: about(path, format=2), "format 2, and fedtrees"),
        (lambda path: about(path, by=["x"]), "give a name"),
        (lambda path: (path / "submission.json").write_text("{"), "is not JSON"),
        (lambda path: other_version(path), "was written by fedtrees 9.9.9"),
    ],
)
def test_an_incomplete_submission_or_one_of_another_version_is_refused(tmp_path, damage, message):
    folder = bundle(tmp_path)
    damage(folder)
    if all((folder / name).is_file() for name in ("SHA256SUMS", *submissions.FILES)):
        seal(folder)
    with pytest.raises(StoreError, match=message):
        submissions.read(folder)


def cut(path):
    path.write_bytes(path.read_bytes()[:-20])


def about(folder, **fields):
    path = folder / "submission.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), **fields}))


def other_version(folder):
    edit(folder, lambda row: row.update(version="9.9.9"))


def test_the_same_twice_and_two_that_contradict_each_other_are_refused(tmp_path):
    folder = bundle(tmp_path)
    shutil.copytree(folder, folder.with_name("two"))
    with pytest.raises(StoreError, match=r"two \(by .*\) repeats the results of .*one "):
        submissions.read_all(folder.parent)

    def perfect(row):
        row.update(value="1", advantage="1")

    edit(folder.with_name("two"), perfect)
    with pytest.raises(StoreError, match="contradict each other: ra of"):
        submissions.merged(submissions.read_all(folder.parent))
    (tmp_path / "none").mkdir()
    with pytest.raises(StoreError, match="contains no submissions"):
        submissions.read_all(tmp_path / "none")


def test_a_cell_of_several_submissions_counts_once(tmp_path):
    all_rows = [*synthetic_rows(SETTINGS[2:3], DEFENSES[:3])]
    rows_without_masking = [row for row in all_rows if row["defense"] != "masking"]
    bundle(tmp_path, "a", rows_without_masking)
    shutil.rmtree(tmp_path / "run")
    bundle(tmp_path, "b", all_rows)
    all_submissions = submissions.read_all(tmp_path / "all")
    rows = submissions.merged(all_submissions)
    assert len(rows) == len(all_submissions[1].rows)
    assert set(rows.loc[rows["defense_spec"] == "masking", "submission"]) == {"b"}
    assert set(rows.loc[rows["defense_spec"] == "split-only", "submission"]) == {"a"}


@pytest.mark.long
def test_a_defense_that_an_attack_did_not_finish_is_not_pareto_optimal(tmp_path):
    table = [*synthetic_rows(SETTINGS[2:3], FEW)]
    page = leaderboard.board([submissions.read(bundle(tmp_path, table=table))], 0)
    assert page.count('data-v="yes"') >= 2
    assert '<path class="front"' in page
    for row in table:
        if row["stage"] == "attack" and row["defense"] == "split-only" and row["seed"] == 1:
            row |= {"status": "failed", "reason": "r", "metric": "", "value": "",
                    "blind": "", "advantage": ""}  # fmt: skip
    worse = leaderboard.board([submissions.read(bundle(tmp_path / "2", table=table))], 0)
    lines = re.findall(r"<tr[^>]*><th[^>]*>split-only.*?</tr>", worse.replace("<wbr>", ""))
    assert lines
    assert all('data-v="no"' in line for line in lines)
    assert '<path class="front"' not in worse  # one point makes no line


def test_a_defense_whose_attack_scored_below_blind_is_not_pareto_optimal(tmp_path):
    table = Table(tmp_path)
    for seed in range(3):
        for defense, utility, advantage in (("none", 0.9, 0.3), ("split-only", 0.9, -0.3)):
            table.train(defense, seed, utility)
            table.applies(defense, seed, "a")
            table.attack(defense, seed, "a", advantage)
    (setting,) = RunAnalysis(table.folder, table.rows()).settings
    assert leaderboard.pareto(setting, setting.tested[0], "ra") == {"none"}


def test_sources_are_the_papers_that_are_named_first():
    assert leaderboard.source("defense", "split-only+dp-sgd[epsilon=1]") == (
        "Di Gennaro et al. 2025; Abadi et al. 2016"
    )
    assert leaderboard.source("defense", "min-bin[k=5]") == "fedtrees"
    assert leaderboard.source("attack", "tableak") == "Vero et al. 2023"
    assert leaderboard.source("defense", "id-lmid[xi=0.3]") == "Takahashi et al. 2023"
    assert leaderboard.source("attack", "timberstrike-published") == "Di Gennaro et al. 2025"
    assert leaderboard.source("attack", "no-such") == "another package"


@pytest.fixture(scope="module")
def page(tmp_path_factory):
    folder = tmp_path_factory.mktemp("board")
    bundle(folder, "one", [*synthetic_rows([SETTINGS[0], SETTINGS[3]], DEFENSES[:7])], by=HOSTILE)
    path = folder / "index.html"
    all_submissions = submissions.read_all(folder / "all")
    text = leaderboard.board(all_submissions, 1)
    assert text == leaderboard.board(submissions.read_all(folder / "all"), 1)
    path.write_text(text, encoding="utf-8")
    return path


@pytest.mark.long
@pytest.mark.skipif(not (BROWSER and AXE.is_file()), reason="needs chromium and axe-core")
@pytest.mark.parametrize("theme", ["light", "dark"])
def test_the_page_has_no_accessibility_barrier_and_columns_sort(page, theme, tmp_path):
    text = re.sub(r"<meta http-equiv=[^>]*>", "", page.read_text(encoding="utf-8"))
    shutil.copy(AXE, tmp_path)
    sorts = """<script>addEventListener('load', () => {
const t = document.querySelector('table.sorts'), h = t.querySelectorAll('th')[5];
h.firstChild.click(); h.firstChild.click();
document.documentElement.dataset.order = [...t.tBodies[0].rows].map(r => r.cells[5].dataset.v);
document.documentElement.dataset.sorted = h.ariaSort; });</script>"""
    text = text.replace('<html lang="en">', f'<html lang="en" data-theme="{theme}">')
    script = f'{sorts}<script src="{AXE.name}"></script>{CHECKED}'
    (tmp_path / "axe.html").write_text(text.replace("</body>", script), encoding="utf-8")
    document, console = dom(tmp_path / "axe.html", tmp_path / "profile", 1400)
    passes, violations = json.loads(html.unescape(re.search(r'data-axe="([^"]*)"', document)[1]))
    assert violations == []
    assert passes > 20
    values = [
        float(value or "-inf")
        for value in re.search(r'data-order="([^"]*)"', document)[1].split(",")
    ]
    assert len(values) >= 20
    assert values == sorted(values, reverse=True)
    assert 'data-sorted="descending"' in document
    assert "data-pwned" not in document
    assert console == []


@pytest.mark.long
@pytest.mark.skipif(not BROWSER, reason="needs chromium")
def test_nothing_is_wider_than_a_telephone(page, tmp_path):
    assert overflowing_elements(page, tmp_path) == []

"""The gallery, the bundled leaderboard and the artifact appendix match the stored results."""

import csv
import html
import json
import re
import shutil
from pathlib import Path

import pytest
from test_report_browser import AXE, BROWSER, CHECKED, dom, overflowing_elements

from fedtrees.benchmarks import artifact, gallery
from fedtrees.cli.main import main
from fedtrees.core.attack import contenders
from fedtrees.report import submissions

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def page(tmp_path_factory):
    path = tmp_path_factory.mktemp("gallery") / "gallery.html"
    path.write_text(gallery.page(), encoding="utf-8")
    return path


@pytest.mark.long
def test_ten_figures_each_with_its_command_and_marks_that_lead_to_it(page):
    text = page.read_text()
    sections = re.findall(r'<section id="([\w-]+)".*?</section>', text, re.S)
    assert len(sections) == len({*sections}) == 10
    assert text.count('<p class="cmd">') == text.count("<svg viewBox") == 10
    assert {*re.findall(r'href="#([\w-]+)" class="pt"', text)} == {*sections}
    for study in re.findall(r'href="studies/([\w-]+).html"', text):
        assert (ROOT / f"docs/studies/{study}.md").is_file()


@pytest.mark.parametrize("study", gallery.STUDIES, ids=lambda s: s.key)
def test_every_drawn_number_of_a_study_is_on_its_page(study):
    page_text = (ROOT / f"docs/studies/{study.page}.md").read_text()
    with (ROOT / "benchmarks/papers/gallery.csv").open() as file:
        lines = [line for line in csv.DictReader(file) if line["figure"] == study.key]
    assert len(lines) >= 2
    numbers = {*re.findall(r"(?<![\w.])\d*\.?\d+(?![\w.]*\d)", page_text)}
    missing = [
        value for line in lines for value in (line["utility"], line["read"]) if value not in numbers
    ]
    assert not missing


@pytest.mark.long
@pytest.mark.skipif(not (BROWSER and AXE.is_file()), reason="needs chromium and axe-core")
@pytest.mark.parametrize("theme", ["light", "dark"])
def test_the_page_has_no_accessibility_barrier(page, theme, tmp_path):
    text = re.sub(r"<meta http-equiv=[^>]*>", "", page.read_text(encoding="utf-8"))
    text = text.replace('<html lang="en">', f'<html lang="en" data-theme="{theme}">')
    shutil.copy(AXE, tmp_path)
    script = f'<script src="{AXE.name}"></script>{CHECKED}'
    (tmp_path / "axe.html").write_text(text.replace("</body>", script), encoding="utf-8")
    document, console = dom(tmp_path / "axe.html", tmp_path / "profile", 1400)
    passes, violations = json.loads(html.unescape(re.search(r'data-axe="([^"]*)"', document)[1]))
    assert violations == []
    assert passes > 20
    assert console == []


@pytest.mark.long
def test_bundled_submissions_are_complete():
    all_submissions = submissions.read_all(gallery.SUBMISSIONS)
    assert len(submissions.merged(all_submissions)) > 1000


@pytest.mark.parametrize("name", ["default-bench", "passive-party"])
def test_bundled_submissions_have_every_registered_attack(name):
    with (gallery.SUBMISSIONS / name / "rows.csv").open() as file:
        attacks = {line["attack"] for line in csv.DictReader(file)}
    assert {*contenders()} <= attacks, "run its suite.toml again, then fedtrees leaderboard submit"


@pytest.mark.slow
def test_bundled_submissions_are_reproduced_when_computed_again(tmp_path):
    with pytest.raises(SystemExit) as exit_info:
        main(
            [
                "leaderboard",
                "build",
                str(gallery.SUBMISSIONS),
                "-o",
                str(tmp_path),
                "--recompute",
                "2",
            ]
        )
    assert exit_info.value.code == 0


def test_the_appendix_lists_the_checked_claims():
    assert artifact.table() + "\n<!-- end -->" in (ROOT / "ARTIFACT-APPENDIX.md").read_text()
    assert len(artifact.CLAIMS) <= 6


def test_a_claim_with_a_wrong_figure_fails():
    def claim(command):
        figures = {"told": lambda output, run: float(output)}
        return artifact.Claim("", command, figures, {"told": (1, 0.1)}, 0)

    is_reproduced, message = claim("python -c 'print(1.05)'").run()
    assert (is_reproduced, message) == (True, "told 1.050 (expected 1 ± 0.1)")
    for code in ("print(0.5)", 'print(float("nan"))'):
        assert not claim(f"python -c '{code}'").run()[0]
    is_reproduced, message = claim("python -c 'raise SystemExit(3)'").run()
    assert not is_reproduced
    assert message.startswith("exit code 3")


@pytest.mark.long
@pytest.mark.skipif(not BROWSER, reason="needs chromium")
def test_nothing_is_wider_than_a_telephone(page, tmp_path):
    assert overflowing_elements(page, tmp_path) == []

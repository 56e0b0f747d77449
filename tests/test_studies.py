"""Every study follows the template, with one value in each table cell."""

import re
from pathlib import Path

import pytest

STUDIES = Path(__file__).parents[1] / "docs/studies"
#: Lists of results instead of a study of one question. `papers` is generated.
LISTS = {"index", "papers", "tries"}
PAGES = sorted(page for page in STUDIES.glob("*.md") if page.stem not in LISTS)
HEADS = ["Question", "Set-up", "Result", "What it means", "Limits", "How to run it again"]


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_a_study_has_the_sections_of_the_template_and_answers_its_question_first(page):
    text = page.read_text(encoding="utf-8")
    heads = re.findall(r"^## (.+)$", text, re.M)
    assert [head for head in heads if head != "Figure"] == HEADS
    question = text.partition("## Question")[2].partition("\n## ")[0]
    assert "?" in question
    assert "**Answer.**" in question
    commands = text.partition("## How to run it again")[2]
    assert re.search(r"^\$ (fedtrees|python|pytest) ", commands, re.M)
    assert text.partition("## Limits")[2].partition("\n## ")[0].strip()


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_a_table_cell_of_a_study_has_one_value(page):
    fences = re.sub(r"```.*?```", "", page.read_text(encoding="utf-8"), flags=re.S)
    for line in re.findall(r"^\|.*\|$", fences, re.M):
        for cell in line.strip("|").split("|"):
            assert "±" not in cell, line
            assert not re.fullmatch(r"\s*-?[\d.,]+%?\s*[;/(]\s*-?[\d.].*", cell), line


def test_a_table_of_a_study_has_as_many_cells_in_each_row():
    for page in PAGES:
        widths = []
        for line in page.read_text(encoding="utf-8").splitlines():
            if line.startswith("|"):
                widths.append(line.count("|"))
            elif widths:
                assert len(set(widths)) == 1, (page.name, widths)
                widths = []

"""Every study follows the template, with one value in each table cell."""

import re
from pathlib import Path

import pytest

from fedtrees.benchmarks.charts import save
from fedtrees.benchmarks.papers import study_figures
from fedtrees.core.errors import UsageError
from fedtrees.data import catalogue

STUDIES = Path(__file__).parents[1] / "docs/studies"
#: Lists of results instead of a study of one question. `papers` is generated.
LISTS = {"index", "papers", "tries"}
PAGES = sorted(page for page in STUDIES.glob("*.md") if page.stem not in LISTS)
HEADS = ["Question", "Set-up", "Result", "What it means", "Limits", "How to run it again"]

#: Pages without a section Figure, because their table has four rows of mixed units.
NO_FIGURE = {"lattice"}
#: Pages whose figure is in a subsection, or whose text belongs to a generated page.
OTHER_PLACE = {"draft-dp", "timberstrike", "networks"}
DRAWN = sorted([*study_figures.FIGURES, "evidence"])


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


def texts_of(file):
    """Return the texts of an SVG file, in their order."""
    return re.findall(r"<text[^>]*>([^<]*)</text>", file.read_text(encoding="utf-8"))


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_a_study_has_a_figure_where_one_helps(page):
    text = page.read_text(encoding="utf-8")
    section = text.partition("\n## Figure\n")[2].partition("\n## ")[0]
    images = re.findall(r"!\[([^\]]+)\]\(\.\./(images/[\w.]+)\)", section)
    if page.stem in NO_FIGURE | OTHER_PLACE:
        return
    assert len(images) == 1
    assert (STUDIES.parent / images[0][1]).is_file()
    if page.stem in DRAWN:
        command = f"python -m fedtrees.benchmarks.papers study_figures --only {page.stem} "
        assert command in text.partition("## How to run it again")[2]


@pytest.mark.parametrize("name", DRAWN)
def test_a_figure_shows_the_values_of_its_page(name, tmp_path):
    stored = STUDIES.parent / f"images/study_{name.replace('-', '_')}.svg"
    drawn = save(study_figures.chart_of(name, STUDIES), tmp_path / "drawn.svg")
    assert texts_of(drawn) == texts_of(stored)
    assert positions(drawn) == positions(stored)


def positions(file):
    """Return the coordinates of the lines and bars of an SVG file, rounded to a point."""
    paths = re.findall(r' d="([^"]*)"', file.read_text(encoding="utf-8"))
    return [[round(float(x)) for x in re.findall(r"-?[\d.]+", path)] for path in paths]


def test_the_list_of_tables_states_their_sizes():
    text = (STUDIES / "index.md").read_text(encoding="utf-8")
    rows = re.findall(r"^\| [^|]+ \| `([\w-]+)` \| ([\d,]+) \| (\d+) \|", text, re.M)
    assert len(rows) == 14
    for name, n_rows, n_columns in rows:
        if name in catalogue.BUNDLED:
            shape = catalogue.load(name).table.X.shape
            assert shape == (int(n_rows.replace(",", "")), int(n_columns)), name


def test_a_changed_value_of_a_page_changes_its_figure(tmp_path):
    text = (STUDIES / "peeling.md").read_text(encoding="utf-8")
    changed = text.replace("| 99.5 | 0.5 |", "| 42.5 | 0.5 |")
    assert changed != text
    (tmp_path / "peeling.md").write_text(changed, encoding="utf-8")
    chart = study_figures.chart_of("peeling", tmp_path)
    assert (chart.panels[0].values[0], chart.panels[0].texts[0]) == (42.5, "42.5")
    (tmp_path / "peeling.md").write_text(text.replace("| Rows right |", "| Rows |"), "utf-8")
    with pytest.raises(
        UsageError, match="no table with the columns Table, Adversary, Defense, Rows right"
    ):
        study_figures.chart_of("peeling", tmp_path)

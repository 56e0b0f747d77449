"""The page of published tables and figures is complete and is generated from stored files."""

import re
from collections import Counter
from dataclasses import replace
from pathlib import Path

import pytest
from data_dir import data_dir

from fedtrees.benchmarks.papers.__main__ import study_names
from fedtrees.benchmarks.papers.comparisons import PAPERS, read_comparisons, read_published
from fedtrees.benchmarks.papers.page import (
    FOLDER,
    PAGE,
    STATUSES,
    STUDY,
    read_items,
    status_of,
    total_sentences,
    with_results,
    write_page,
    write_study,
)

ROOT = Path(__file__).parents[2]
ROMAN = ("I", "II", "III", "IV", "V", "VI", "VII")
#: Numbers of tables and of figures in each paper.
NUMBERED = {
    "timberstrike": (9, 10),
    "id2graph": (3, 10),
    "draft_dp": (7, 17),
    "tableak": (21, 10),
    "regression": (6, 11),
}


def stored():
    """Return all stored comparisons."""
    return [c for path in sorted((ROOT / FOLDER).glob("*.csv")) for c in read_comparisons(path)]


def test_the_page_equals_the_generated_one():
    assert (ROOT / PAGE).read_text(encoding="utf-8") == write_page(stored())


def test_the_study_of_the_tables_of_timberstrike_has_the_stored_values():
    text = (ROOT / STUDY).read_text(encoding="utf-8")
    assert text.count("<!-- generated: ") == 3
    assert write_study(text, stored()) == text
    assert "| fedtree-hist, depth 3 | 68.6 |" in text


def test_the_sentence_of_all_papers_follows_from_the_stored_results():
    values = [c for part in with_results(stored()).values() for c in part]
    with_data = [c for c in values if not status_of(c).startswith("no data")]
    measured = [c for c in with_data if c.seeds]
    counted = Counter(c.status.partition(" by ")[0] for c in measured)
    agree = counted["reproduced"] + counted["better"]
    sentence = (
        f"The papers print {len(values):,} values, and the data of {len(with_data):,} are "
        f"available here. Of these, {len(measured):,} have a result: "
        f"{counted['reproduced']:,} reproduced, {counted['better']:,} better, "
        f"{counted['differs']:,} differs. Therefore {agree:,} of {len(with_data):,} "
        f"({agree / len(with_data):.1%}) are reproduced or better."
    )
    page = (ROOT / PAGE).read_text(encoding="utf-8")
    assert sentence in page
    assert agree >= 0.9 * len(with_data)
    assert page.count("The paper prints ") == len(PAPERS)


def test_every_value_that_differs_has_a_reason():
    values = [c for part in with_results(stored()).values() for c in part if c.seeds]
    differing = [status_of(c) for c in values if c.status.startswith("differs")]
    assert len(differing) > 10
    assert all(": " in status for status in differing)


def test_a_total_counts_values_without_data_or_result_separately():
    statuses = ["reproduced", "better", "differs by +1: why", "not run: why", "no data: none"]
    assert total_sentences(statuses) == (
        "The papers print 5 values, and the data of 4 are available here. Of these, 3 have a "
        "result: 1 reproduced, 1 better, 1 differs. Therefore 2 of 4 (50.0%) are reproduced or "
        "better."
    )


@pytest.mark.parametrize("paper", PAPERS)
def test_every_table_and_figure_of_a_paper_is_listed_once(paper):
    listed = [item.item for item in read_items() if item.paper == paper]
    assert len(listed) == len(set(listed))
    tables, figures = NUMBERED[paper]
    numbers = ROMAN if paper == "draft_dp" else map(str, range(1, tables + 1))
    for name in (*(f"Table {n}" for n in numbers), *(f"Figure {n}" for n in range(1, figures + 1))):
        assert name in listed or f"{name}a" in listed, name


def test_the_papers_have_no_further_tables_or_figures():
    """The captions in the texts of the papers have no number above those in the registry."""
    folder = data_dir().parent / "papers"
    if not folder.is_dir():
        pytest.skip("needs the texts of the papers")
    for path, (tables, figures) in zip(
        sorted(folder.glob("0*.txt")), NUMBERED.values(), strict=True
    ):
        text = path.read_text(encoding="utf-8")
        for kind, largest in (("Tab(?:le|\\.)", tables), ("Fig(?:ure|\\.)", figures)):
            numbers = re.findall(rf"{kind} (\d+)", text, re.IGNORECASE)
            assert max(map(int, numbers), default=0) <= largest, (path.name, kind)


def test_every_item_has_values_or_a_status():
    published = {(c.paper, c.item) for paper in PAPERS for c in read_published(paper)}
    for item in read_items():
        has_values = (item.paper, item.values or item.item) in published
        assert has_values != bool(item.status), item
        # Only values can be reproduced: a status in the registry never claims a result.
        assert not item.status or item.status.startswith(STATUSES[3:]), item
        assert set(item.study.split()) <= set(study_names()), item
    assert published <= {(item.paper, item.item) for item in read_items()}


def test_every_stored_value_is_a_published_one():
    keys = {
        (c.paper, c.item, c.setting, c.score, f"{c.published:.6g}")
        for paper in PAPERS
        for c in read_published(paper)
    }
    for c in stored():
        assert (c.paper, c.item, c.setting, c.score, f"{c.published:.6g}") in keys


def test_a_value_without_a_result_is_never_reproduced():
    page = write_page([])
    assert "not run" in page
    assert not re.search(r"\b[1-9][\d,]* (reproduced|better|differs)", page)


def test_a_result_changes_the_status_of_its_value_and_of_the_figures_drawn_from_it():
    c = next(c for c in read_published("timberstrike") if c.item == "Table 5" and c.score == "RA")
    page = write_page([replace(c, measured=c.published, seeds=1)])
    lines = [line for line in page.splitlines() if "1 reproduced, 59 not run" in line]
    assert [line.split(" | ")[0] for line in lines] == ["| Table 5", "| Figure 9c"]
    assert status_of(replace(c, measured=c.published, seeds=1)) == "reproduced"


def test_the_run_with_most_seeds_counts_and_takes_the_baseline_of_another_run():
    c = next(c for c in read_published("timberstrike") if (c.item, c.score) == ("Table 4", "RA"))
    one = replace(c, measured=50.0, seeds=1, blind=60.0, strongest=70.0)
    three = replace(c, measured=55.0, seeds=3)
    for runs in ([one, three], [three, one]):
        cells = {x.setting: x for x in with_results(runs)[c.paper, c.item] if x.score == "RA"}
        chosen = cells[c.setting]
        assert (chosen.measured, chosen.seeds, chosen.blind, chosen.strongest) == (
            55.0,
            3,
            60.0,
            70.0,
        )


def test_the_draw_of_a_training_explains_a_single_published_value_within_two_deviations():
    c = next(c for c in read_published("timberstrike") if (c.item, c.score) == ("Table 8", "AUC"))
    measured = replace(c, measured=c.published + 0.09, deviation=0.05, seeds=9)
    assert status_of(measured).endswith("the draw of one training; 9 trainings deviate by 0.050")
    for other in (replace(measured, deviation=0.04), replace(measured, seeds=2, deviation=0.001)):
        assert "draw of one training" not in status_of(other)


def test_missing_data_is_named():
    cells = {c.setting: c for c in read_published("id2graph") if c.score == "V-measure"}
    assert status_of(cells["avila, secureboost, id2graph"]).startswith("no data: Avila")
    assert status_of(cells["obesity-7, secureboost, id2graph"]) == "not run"

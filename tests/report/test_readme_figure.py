"""The figure of the README shows the stored run of the default benchmark, in plain words."""

import re
from pathlib import Path

import pytest
from synthetic_run import Table

from fedtrees.benchmarks.charts import BarChart, BarPanel, save
from fedtrees.benchmarks.readme_figure import LABELS, chart_of
from fedtrees.core.errors import UsageError
from fedtrees.report.findings import analyze_run

ROOT = Path(__file__).parents[2]
RUN = ROOT / "benchmarks/leaderboard/default-bench"


@pytest.fixture(scope="module")
def stored_chart():
    """Return the chart of the stored run."""
    return chart_of(RUN)


def texts_of(file):
    return re.findall(r"<text[^>]*>([^<]*)</text>", file.read_text(encoding="utf-8"))


def test_the_figure_is_that_of_the_stored_run(stored_chart, tmp_path):
    drawn = save(stored_chart, tmp_path / "frontier.svg")
    assert texts_of(drawn) == texts_of(ROOT / "docs/images/frontier.svg")


def test_every_recipe_of_the_default_benchmark_has_a_label():
    recipes = {
        (setting.setting.protocol.partition("[")[0], defense.spec)
        for setting in analyze_run(RUN).settings
        for defense in setting.defenses
    }
    assert recipes == set(LABELS)


def test_the_numbers_are_those_of_the_verdict(stored_chart):
    rows, members, _ = stored_chart.panels
    verdict = " ".join((ROOT / "README.md").read_text(encoding="utf-8").split())
    assert f"reconstruct {rows.texts[0]} of 456 rows" in verdict
    assert f"then reconstruct {rows.texts[-1]} instead of {rows.texts[0]} of 456 rows" in verdict
    assert members.blind[0] == pytest.approx(456 * (0.018 + 0.033 + 0.018) / 3, abs=0.5)
    for panel in stored_chart.panels:
        for value, (low, high) in zip(panel.values, panel.intervals, strict=True):
            assert low <= value <= high


def test_no_text_of_the_figure_covers_another_one(stored_chart):
    figure = stored_chart.draw()
    figure.draw_without_rendering()
    boxes = [
        (text.get_text(), text.get_window_extent())
        for axes in figure.axes
        for text in [*axes.texts, *axes.get_yticklabels(), axes.title, axes._left_title]
        if text.get_text()
    ]
    assert len(boxes) == 4 * len(LABELS) + 3
    for i, (text, box) in enumerate(boxes):
        for other, other_box in boxes[:i]:
            assert not box.overlaps(other_box), (text, other)


def test_a_run_without_these_recipes_is_refused(tmp_path):
    table = Table(tmp_path)
    table.train("none", 0, 0.9)
    table.attack("none", 0, "a", 0.2)
    table.rows()
    with pytest.raises(UsageError, match="no recipe of the default benchmark"):
        chart_of(tmp_path)


def test_a_missing_value_has_neither_a_bar_nor_an_interval():
    nan = float("nan")
    panel = BarPanel("t", [1.0, nan], (0, 2), ["1", "–"], intervals=[(0.5, 3.0), (nan, nan)])
    axes = BarChart(["a", "b"], [panel]).draw().axes[0]
    assert [line.get_xdata().tolist() for line in axes.lines] == [[0.5, 2.0]]

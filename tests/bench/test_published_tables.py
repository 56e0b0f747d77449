"""Published values of TimberStrike are compared with results of the same setting and score."""

from __future__ import annotations

import pytest

from fedtrees.benchmarks.papers.comparisons import compare_suite
from fedtrees.benchmarks.papers.timberstrike import draw
from fedtrees.experiments.session import BenchSession
from fedtrees.experiments.suite import Suite
from fedtrees.report.figures import static
from fedtrees.report.results import load_rows

SUITE = """
name = "two"
description = "As Table 6, smaller."
seeds = [0]
[[grid]]
data = ["wine"]
clients = [3]
threats = ["client[index=2]"]
protocols = [
  "fedtree-hist[trees=3,max_depth=3,4,cuts=equal-width,max_bin=32,base_score=0.5]",
  "local-ensembles[trees=3,max_depth=3]",
]
attacks = [
  "timberstrike-published",
  "timberstrike-published[random_leaf=true]",
  "timberstrike[scope=union]",
]
"""


@pytest.fixture(scope="module")
def rows(tmp_path_factory):
    folder = tmp_path_factory.mktemp("published") / "two"
    bench = BenchSession(Suite.parse(SUITE, "two"), folder, 1, None)
    bench.open(resume=False)
    bench.run()
    return load_rows(folder)


def measured_score(rows, attack, metric, depth, column="value"):
    """Return a score of one attack on `fedtree-hist` in percent."""
    selected = rows[(rows["protocol"] == "fedtree-hist") & (rows["metric"] == metric)]
    selected = selected[selected["protocol_params"].str.contains(f"max_depth={depth}")]
    return 100 * selected[selected["attack_spec"] == attack][column].mean()


@pytest.mark.long
def test_every_published_value_is_compared_with_the_result_of_the_same_setting(rows):
    comparisons = {(c.setting, c.score): c for c in compare_suite("timberstrike_table6", rows)
                   if c.item == "Table 6" and c.seeds}  # fmt: skip
    assert {setting for setting, _ in comparisons} == {
        "fedtree-hist, depth 3",
        "fedtree-hist, depth 4",
        "local-ensembles, depth 3",
    }
    for depth, printed in ((3, 71.74), (4, 72.74)):
        c = comparisons[f"fedtree-hist, depth {depth}", "RA"]
        assert c.published == pytest.approx((printed - 10) / 0.9, abs=0.01)
        assert c.measured == measured_score(rows, "timberstrike-published", "ra_union", depth)
        assert c.blind == measured_score(rows, "timberstrike-published", "ra_union", depth, "blind")
        assert c.strongest == measured_score(rows, "timberstrike[scope=union]", "ra_union", depth)
        random = measured_score(rows, "timberstrike-published[random_leaf=true]", "ra_union", depth)
        assert comparisons[f"fedtree-hist, depth {depth}", "RA (F-TP)"].measured == random


@pytest.mark.long
def test_the_figure_has_one_panel_per_protocol(rows, tmp_path):
    comparisons = [
        comparison
        for comparison in compare_suite("timberstrike_table6", rows)
        if comparison.item == "Table 6"
    ]
    figure_text = static.save(draw(comparisons), tmp_path / "figure.svg").read_text()
    for text in ("published RA", "blind guess", "local-ensembles", "flower-cyclic"):
        assert text in figure_text

"""Published figures stand beside ours, scored the same way, in the table and in the figure."""

from __future__ import annotations

import pytest

from fedtrees.benchmarks.papers.timberstrike import (
    TABLES,
    compare,
    compare_cells,
    draw,
    leakage_table,
    published_at,
    reduce,
    utility_table,
)
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
  "timberstrike-published[scope=victims]",
  "timberstrike[chains=1]",
  "timberstrike",
]
"""


@pytest.fixture(scope="module")
def rows(tmp_path_factory):
    folder = tmp_path_factory.mktemp("published") / "two"
    bench = BenchSession(Suite.parse(SUITE, "two"), folder, 1, None)
    bench.open(resume=False)
    bench.run()
    return load_rows(folder)


@pytest.mark.long
def test_every_cell_stands_beside_its_published_figure(rows):
    cells = list(compare_cells("table6", rows))
    assert [(c.protocol, c.depth) for c in cells] == [
        ("fedtree-hist", 3),
        ("fedtree-hist", 4),
        ("local-ensembles", 3),
    ]
    second = cells[1]
    assert second.printed["full"] == published_at("table6", "fedtree-hist", 0, 4)["full"]
    assert second.theirs("full") == pytest.approx((second.printed["full"] - 10) / 0.9)
    of_seed = rows[(rows["protocol"] == "fedtree-hist") & (rows["metric"] == "ra_union")]
    here = of_seed[of_seed["protocol_params"].str.contains("max_depth=4")]
    whole = here[here["attack_spec"] == "timberstrike-published"]
    assert list(second.rebuilt["value"]) == list(whole["value"])
    above = second.theirs("full") - 100 * whole["blind"].iloc[0]
    assert second.over_blind == pytest.approx(above)
    assert set(cells[2].rebuilt["metric"]) == {"ra_owner"}
    assert set(second.default["attack_spec"]) == {"timberstrike"}


@pytest.mark.long
def test_tables_and_figure(rows, tmp_path):
    cells = list(compare_cells("table6", rows))
    _, header, lines = leakage_table(cells)
    assert "setting" not in header
    assert len(lines) == len(utility_table(cells).lines) == 3
    assert lines[0][2:4] == ["71.74", "68.6"]
    drawn = static.save(draw(cells), tmp_path / "figure.svg").read_text()
    for text in ("published RA", "blind, scored as theirs", "local-ensembles"):
        assert text in drawn


@pytest.mark.long
def test_comparisons_contain_published_value_own_value_and_blind_baseline(rows):
    first, *_ = compare("table6", rows)
    assert (first.item, first.setting) == ("table6", "fedtree-hist, depth 3")
    assert first.published == pytest.approx((71.74 - 10) / 0.9)
    attacked = rows[(rows["metric"] == "ra_union") & (rows["protocol"] == "fedtree-hist")]
    attacked = attacked[attacked["protocol_params"].str.contains("max_depth=3")]
    published = attacked[attacked["attack_spec"] == "timberstrike-published"]
    assert first.ours == pytest.approx(100 * published["value"].mean())
    assert first.blind == pytest.approx(100 * published["blind"].mean())
    assert first.status in ("reproduced", f"differs by {first.ours - first.published:+.3g}")


@pytest.mark.parametrize("table", TABLES)
def test_the_fast_variant_is_a_part_of_the_whole(table):
    whole = Suite.load(f"timberstrike_{table}")
    part = reduce(whole)
    assert len(part.seeds) == 1
    for small, large in zip(part.grids, whole.grids, strict=True):
        depths = {p.params["max_depth"] for p in large.protocols}
        assert {p.params["max_depth"] for p in small.protocols} == depths & {3, 6}
        assert set(small.protocols) <= set(large.protocols)
        assert set(small.clients) <= set(large.clients)

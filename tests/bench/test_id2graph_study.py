"""The tables of ID2Graph show published values next to ours, for the strongest attack."""

import pytest

from fedtrees.benchmarks.papers.comparisons import compare_suite
from fedtrees.benchmarks.papers.id2graph import defense_table
from fedtrees.benchmarks.papers.tables import suite_tables
from fedtrees.experiments.session import BenchSession
from fedtrees.experiments.suite import Suite
from fedtrees.report.results import load_rows

AS_PUBLISHED = "candidates=node-quantiles,pure_leaves=true,multi_output=true"
SUITE = f"""
seeds = [0]
[[grid]]
data = ["breast-cancer"]
clients = [2]
partitions = ["shares[active=0.5]"]
protocols = ["secureboost[{AS_PUBLISHED}]", "secureboost[trees=2]", "secureboost"]
defenses = ["id-lmid[xi=1e-6]"]
attacks = ["id2graph", "union"]
"""


@pytest.fixture(scope="module")
def rows(tmp_path_factory):
    folder = tmp_path_factory.mktemp("id2graph") / "run"
    bench = BenchSession(Suite.parse(SUITE, "small"), folder)
    bench.open(resume=False)
    bench.run()
    return load_rows(folder)


@pytest.mark.long
def test_values_of_table_2_are_compared_with_the_trees_of_the_authors(rows):
    by_setting = {
        (c.setting, c.score): c for c in compare_suite("id2graph_table2", rows) if c.seeds
    }
    attacked = rows[(rows["protocol_params"] == AS_PUBLISHED) & (rows["metric"] == "v_measure")]
    attacked = attacked[(attacked["defense_spec"] == "none") & (attacked["attack"] == "id2graph")]
    c = by_setting["breast-cancer, secureboost, id2graph", "V-measure"]
    assert (c.published, c.published_deviation) == (73.6, 13.3)
    assert c.measured == 100 * attacked["value"].iloc[0]
    clustering = by_setting["breast-cancer, secureboost", "V-measure of CL"]
    assert clustering.measured == c.blind == 100 * attacked["blind"].iloc[0]
    assert ("breast-cancer, secureboost, union-cl", "V-measure") not in by_setting  # was not run


@pytest.mark.long
def test_tables_vary_one_parameter_and_attacks_score_at_least_the_blind_guess(rows):
    (varied_table, *_) = suite_tables("id2graph", rows)
    assert [line[2] for line in varied_table.lines] == ["trees=2", ""]
    assert {line[4] for line in varied_table.lines} == {"`id2graph`"}
    table = [x for x in defense_table(rows)[2] if x[:2] == ["breast-cancer", "secureboost"]]
    active_alone, undefended, fully_defended = (line[3:] for line in table)
    assert [line[2] for line in table] == ["*active alone*", "`none`", "`id-lmid[xi=1e-06]`"]
    # Under this defense nothing is released, so the trees equal those of the active party.
    assert fully_defended[0] == active_alone[0] != undefended[0]
    assert fully_defended[2] == fully_defended[3]
    assert float(undefended[2]) > float(undefended[3])

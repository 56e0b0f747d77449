"""The tables of ID2Graph: what is printed stands beside ours, and the strongest attack counts."""

import pytest

from fedtrees.benchmarks.papers.id2graph import (
    AS_PUBLISHED,
    attack_table,
    defense_table,
    variation_table,
)
from fedtrees.experiments.session import BenchSession
from fedtrees.experiments.suite import Suite
from fedtrees.report.results import load_rows

SUITE = f"""
seeds = [0]
[[grid]]
data = ["breast-cancer"]
clients = [2]
partitions = ["shares[active=0.5]"]
protocols = ["secureboost[{AS_PUBLISHED["secureboost"]}]", "secureboost[trees=2]", "secureboost"]
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
def test_table_2_stands_beside_ours(rows):
    _, header, lines = attack_table(rows)
    at = lines.index(next(x for x in lines if x[:2] == ["breast-cancer", "secureboost"]))
    published, ours = (dict(zip(header, line, strict=True)) for line in lines[at : at + 2])
    assert published["`id2graph`"] == "73.6 ± 13.3"
    mine = rows[rows["protocol_params"] == AS_PUBLISHED["secureboost"]]
    mine = mine[(mine["attack"] == "id2graph") & (mine["metric"] == "v_measure")]
    found = mine[mine["defense_spec"] == "none"]
    assert ours["`id2graph`"] == f"{100 * found['value'].iloc[0]:.1f}"
    assert ours["`cl`"] == f"{100 * found['blind'].iloc[0]:.1f}"
    assert ours["`spectral`"] == "-"  # was not run


@pytest.mark.long
def test_figures_vary_one_thing_and_floor_the_strongest_at_blind(rows):
    lines = [x for x in variation_table(rows)[2] if x[0] == "breast-cancer"]
    assert [line[2] for line in lines] == ["`trees=2`", "`trees=5`"]
    table = [x for x in defense_table(rows)[2] if x[:2] == ["breast-cancer", "secureboost"]]
    alone, free, shut = (line[3:] for line in table)
    assert [line[2] for line in table] == ["*active alone*", "`none`", "`id-lmid[xi=1e-06]`"]
    assert shut[0] == alone[0] != free[0]  # nothing is shown: the active party's own trees
    assert shut[2] == shut[3]
    assert float(free[2]) > float(free[3])

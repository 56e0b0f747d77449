"""A run scores the rows an attack is sure of, beside the blind baseline."""

import pytest
from result_rows import read_rows

from fedtrees.experiments.session import BenchSession
from fedtrees.experiments.suite import Suite

SUITE = """
name = "tiny"
seeds = [0]
[[grid]]
data = ["diabetes"]
clients = [3]
protocols = ["nvflare-hist[trees=15,max_depth=4,max_bin=32]"]
threats = ["client", "server"]
attacks = ["histogram-peeling"]
"""


def attack_rows(suite, folder):
    bench = BenchSession(Suite.parse(suite, "tiny"), folder, 1)
    bench.open(resume=False)
    bench.run(lambda status, label: None)
    return [r for r in read_rows(folder) if r["stage"] == "attack"]


@pytest.mark.long
def test_returned_rows_are_scored(tmp_path):
    rows = attack_rows(SUITE, tmp_path / "run")
    for threat in ("client", "server"):
        score = {r["metric"]: r for r in rows if r["threat"] == threat}
        assert float(score["returned_right"]["value"]) > 0.9
        assert float(score["returned_right"]["blind"]) < 0.1
        assert float(score["returned_wrong"]["value"]) <= 0.03
        assert float(score["returned_wrong"]["blind"]) > 0.9
        assert float(score["returned_owned"]["value"]) > 0.9


@pytest.mark.long
def test_where_no_row_is_returned_the_run_gives_the_reason_and_the_baseline(tmp_path):
    defended = SUITE.replace("threats", 'defenses = ["laplace-hist[epsilon=1]"]\nthreats')
    rows = attack_rows(defended, tmp_path / "run")
    for threat in ("client", "server"):
        mine = [r for r in rows if r["defense"] == "laplace-hist" and r["threat"] == threat]
        unsettled = {r["metric"]: r for r in mine if r["status"] == "no-claim"}
        assert {"ra", "exact_rows", "close_rows", "returned_right"} <= set(unsettled)
        assert all("no row follows" in r["reason"] for r in unsettled.values())
        assert not any(r["value"] or r["advantage"] for r in unsettled.values())
        assert float(unsettled["ra"]["blind"]) > 0
        assert "specificity_z" not in {r["metric"] for r in mine if r["value"]}
        partly = [r for r in rows if r["defense"] == "none" and r["threat"] == threat]
        found = {r["metric"]: r for r in partly if r["value"]}
        assert float(found["ra"]["advantage"]) > 0.8

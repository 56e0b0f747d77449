"""A run scores the rows of which an attack is certain, next to the blind baseline."""

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
def test_if_no_row_is_returned_the_run_states_the_reason_and_the_baseline(tmp_path):
    defended = SUITE.replace("threats", 'defenses = ["laplace-hist[epsilon=1]"]\nthreats')
    rows = attack_rows(defended, tmp_path / "run")
    for threat in ("client", "server"):
        defended_rows = [
            row for row in rows if row["defense"] == "laplace-hist" and row["threat"] == threat
        ]
        unsettled = {row["metric"]: row for row in defended_rows if row["status"] == "no-claim"}
        assert {"ra", "exact_rows", "close_rows", "returned_right"} <= set(unsettled)
        assert all("no row follows" in row["reason"] for row in unsettled.values())
        assert not any(row["value"] or row["advantage"] for row in unsettled.values())
        assert float(unsettled["ra"]["blind"]) > 0
        assert "specificity_z" not in {row["metric"] for row in defended_rows if row["value"]}
        undefended_rows = [
            row for row in rows if row["defense"] == "none" and row["threat"] == threat
        ]
        scores = {row["metric"]: row for row in undefended_rows if row["value"]}
        assert float(scores["ra"]["advantage"]) > 0.8

"""A run scores the rows an attack is sure of, beside the blind line."""

import csv

from fedtrees.bench.session import Bench
from fedtrees.bench.suite import Suite

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


def test_returned_rows_are_scored(tmp_path):
    bench = Bench(Suite.parse(SUITE, "tiny"), tmp_path / "run", 1)
    bench.open(resume=False)
    bench.run(lambda status, label: None)
    with (tmp_path / "run" / "rows.csv").open() as file:
        rows = [r for r in csv.DictReader(file) if r["stage"] == "attack"]
    for threat in ("client", "server"):
        score = {r["metric"]: r for r in rows if r["threat"] == threat}
        assert float(score["returned_right"]["value"]) > 0.9
        assert float(score["returned_right"]["blind"]) < 0.1
        assert float(score["returned_wrong"]["value"]) <= 0.03
        assert float(score["returned_wrong"]["blind"]) > 0.9
        assert ("returned_owned" in score and score["returned_owned"]["value"] != "") == (
            threat == "server"
        )
    owned = next(r for r in rows if r["metric"] == "returned_owned" and r["threat"] == "server")
    assert float(owned["value"]) > 0.9

"""Measure the gain of the joint attack over the sequential one, by protocol.

``python -m fedtrees.benchmarks.papers.joint_protocols --data-dir FOLDER`` runs the suite and prints
a table. Both attacks merge their samples as by default.
"""

from collections.abc import Iterator
from statistics import mean
from typing import Any

from fedtrees.benchmarks.papers.study import TITLE, depth_of, percent, run_study

_COLUMNS = (
    "table", "threat", "depth", "protocol", "attack", "RA", "blind", "advantage", "exact rows",
    "exact rows, blind", "over sequential", "CPU s",
)  # fmt: skip


def gain_table(rows: Any) -> Iterator[list[str]]:
    """Yield a line per table, threat, protocol and attack. Gains are paired by seed."""
    attacked = rows[rows["stage"] == "attack"]
    for (data, threat, protocol, params), setting in attacked.groupby(
        ["dataset", "threat", "protocol", "protocol_params"], sort=False
    ):
        depth = depth_of(params)
        sequential = None
        for attack, part in setting.groupby("attack_spec", sort=False):
            metric = {m: group.set_index("seed") for m, group in part.groupby("metric")}
            ra, exact = metric["ra"], metric["exact_rows"]
            sequential = ra["value"] if sequential is None else sequential
            gain = (ra["value"] - sequential).dropna()
            yield [
                data, threat, depth, protocol, f"`{attack}`",
                percent(ra["value"]),
                percent(ra["blind"]),
                percent(ra["advantage"], signed=True),
                percent(exact["value"]),
                percent(exact["blind"]),
                percent(gain, signed=True) if attack.startswith("joint") else "",
                f"{mean(metric['cpu_seconds']['value']):.0f}",
            ]  # fmt: skip


if __name__ == "__main__":
    run_study("joint_protocols", lambda rows: [(TITLE, _COLUMNS, [*gain_table(rows)])])

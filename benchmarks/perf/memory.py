"""Measure the peak memory of training at a million rows.

``python -m fedtrees.benchmarks.perf.memory WHO ROWS`` measures one engine. Each engine runs in a
separate process that has loaded the table before.
"""

import json
import sys
from collections.abc import Iterator

from fedtrees.benchmarks.perf import rivals
from fedtrees.benchmarks.perf.measure import FULL, Line, Size, in_fresh_process, peak_mib, ratio
from fedtrees.benchmarks.perf.rivals import Work, table

ROWS = 1_000_000


def growth(who: str, rows: int) -> dict[str, float]:
    """Return by how many MiB binning and training raise the peak memory."""
    call = {"ours": rivals.ours, "xgboost": rivals.xgboost}[who]
    call(table(1000), Work(trees=1))()  # load libraries and kernels
    data = table(rows)
    with open("/proc/self/clear_refs", "w") as kernel:
        kernel.write("5")  # reset the peak (Linux)
    before = _high_water()
    call(data, Work(trees=3))()
    return {"before": before, "mib": _high_water() - before}


def _high_water() -> float:
    """Return the peak memory since the last reset, in MiB."""
    with open("/proc/self/status") as status:
        for line in status:
            if line.startswith("VmHWM"):
                return int(line.split()[1]) / 1024
    return peak_mib()


def lines(size: Size = FULL) -> Iterator[Line]:
    """Compare the peaks."""
    rows = size.rows(ROWS)
    our_mib, xgboost_mib = (
        in_fresh_process("fedtrees.benchmarks.perf.memory", who, str(rows))["mib"]
        for who in ("ours", "xgboost")
    )
    table_mib = rows * 28 * 4 / 2**20
    what = f"memory for binning and training, {rows:,} x 28 (the table itself: {table_mib:.0f} MiB)"
    yield ratio(what, our_mib, xgboost_mib, "XGBoost", 2.0, unit="MiB")


if __name__ == "__main__":
    print(json.dumps(growth(sys.argv[1], int(sys.argv[2]))))

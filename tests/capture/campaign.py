"""`python tests/capture/campaign.py --runs 50`: capture random runs; nothing certain is wrong."""

import argparse
import importlib.util
import queue
import threading
from collections import Counter
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np

from fedtrees.capture.readings import readings
from fedtrees.capture.records import Capture
from fedtrees.capture.wires import Decoded, record
from fedtrees.core.schema import Table

EXAMPLE = Path(__file__).parents[2] / "docs" / "examples" / "capture" / "xgboost_loopback.py"
_SPEC = importlib.util.spec_from_file_location("xgboost_loopback", EXAMPLE)
loopback = importlib.util.module_from_spec(_SPEC)
_SPEC.loader.exec_module(loopback)


def drawn(rng):
    """Return random parts of a table, parameters and a number of trees."""
    workers, columns = int(rng.integers(2, 6)), int(rng.integers(1, 6))
    sizes = rng.integers(6, 60, workers)
    rows = loopback.table(
        int(sizes.sum()), columns, int(rng.integers(1 << 30)), int(rng.integers(3))
    )
    if rng.random() < 0.3:
        rows[:, :-1][rng.random(rows[:, :-1].shape) < 0.2] = np.nan
    params = {
        "objective": str(rng.choice(["binary:logistic"] * 3 + ["reg:squarederror"])),
        "max_depth": int(rng.integers(1, 5)),
        "max_bin": int(rng.choice([8, 64, 256])),
        "reg_lambda": float(rng.choice([0, 1, 5])),
        "min_child_weight": float(rng.choice([0, 1])),
        "subsample": float(rng.choice([0.5, 1, 1])),
    }
    if rng.random() < 0.3:
        params["base_score"] = 0.5
    trees, params["watched"] = int(rng.integers(1, 4)), bool(rng.integers(2))
    if params["objective"] == "binary:logistic":
        params["eval_metric"] = str(rng.choice(["logloss", "auc", "error"]))
    return np.split(rows, np.cumsum(sizes)[:-1]), params, trees


def captured(parts, over, params, trees, path):
    """Train and capture, all from this process."""
    ports = queue.Queue()
    with loopback.TRANSPORTS[over](len(parts)) as (to, connect):
        arguments = {"target": record, "args": (over, ("127.0.0.1", to), path)}
        door = threading.Thread(**arguments, kwargs={"ready": ports.put}, daemon=True)
        door.start()
        port = ports.get()
        workers = [
            loopback.FORK.Process(
                target=loopback.work, args=(connect(rank, port), rows, params, trees)
            )
            for rank, rows in enumerate(parts)
        ]
        for worker in workers:
            worker.start()
        for worker in workers:
            worker.join(loopback.LIMIT)
        assert [worker.exitcode for worker in workers] == [0] * len(parts)
        door.join()


def run(over, seed, folder):
    """Capture one random run and count what everybody reads of it, and what of that is wrong."""
    parts, params, trees = drawn(np.random.default_rng(seed))
    path = Path(folder) / f"{over}-{seed}.capture"
    captured(parts, over, params, trees, path)
    found = Decoded(Capture(path))
    records = list(found)
    truth = {
        f"worker-{k}": Table(rows[:, :-1], rows[:, -1].astype(np.int64))
        for k, rows in enumerate(parts)
    }
    told = Counter(bytes_left=found.ended.left)
    parties = {p for r in records for p in (r.sender, *r.receivers)}
    for who in sorted({"third", *parties}):
        seen = [r for r in records if who in ("third", r.sender, *r.receivers)]
        for reading in readings(seen, (who,)):
            told[reading.what] += len(reading.facts)
            told["wrong"] += reading.wrong(truth[reading.owner])
    if found.ended.left or told["wrong"]:
        print(
            over, seed, len(parts), [len(p) for p in parts], params, trees, found.ended, dict(told)
        )
    return told


def main():
    """Run the campaign."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--runs", type=int, default=50)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--over", nargs="*", default=[*loopback.TRANSPORTS])
    asked = parser.parse_args()
    for over in asked.over:
        total, whole = Counter(), 0
        with TemporaryDirectory() as folder:
            for seed in range(asked.seed, asked.seed + asked.runs):
                told = run(over, seed, folder)
                whole += not told["bytes_left"]
                total += told
        print(f"{over}: {asked.runs} runs, {whole} decoded whole; {dict(total)}", flush=True)
        if total["wrong"] or whole < asked.runs:
            raise SystemExit(4)


if __name__ == "__main__":
    main()

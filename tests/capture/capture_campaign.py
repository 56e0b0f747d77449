"""`python tests/capture/capture_campaign.py --runs 50`: certain readings are never wrong."""

import argparse
import importlib.util
import queue
import threading
from collections import Counter
from contextlib import suppress
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np

from fedtrees.capture.formats import Decoded, record, relay_addresses
from fedtrees.capture.readings import machine_readings, readings
from fedtrees.capture.records import Capture
from fedtrees.core.schema import Table

EXAMPLE = Path(__file__).parents[2] / "docs" / "examples" / "capture" / "loopback.py"
_SPEC = importlib.util.spec_from_file_location("loopback", EXAMPLE)
loopback = importlib.util.module_from_spec(_SPEC)
_SPEC.loader.exec_module(loopback)


def draw_run(rng, transport):
    """Return random parts of a table, parameters and a number of trees."""
    return for_lightgbm(rng) if transport == "lightgbm" else for_xgboost(rng)


# With these parameters, trees are not decoded, but the preceding messages are.
UNREAD = [
    {"feature_fraction": 0.6},
    {"use_quantized_grad": True},
    {"tree_learner": "voting", "top_k": 1},
]


def for_lightgbm(rng):
    """Draw a run of LightGBM."""
    workers, columns = int(rng.integers(2, 6)), int(rng.integers(1, 8))
    sizes = rng.integers(20, 120, workers)
    rows = loopback.table(
        int(sizes.sum()), columns, int(rng.integers(1 << 30)), int(rng.integers(5))
    )
    X, kinds = rows[:, :-1], rng.integers(0, 6, columns)
    X[:, kinds == 1] *= -1
    X[:, kinds == 2] -= 20
    X[:, kinds == 3] *= rng.random((len(rows), int((kinds == 3).sum()))) < 0.2
    X[:, kinds == 4] = X[:, kinds == 4].round(-1)
    if rng.random() < 0.4:
        X[rng.random(X.shape) < 0.1] = np.nan
    params = {
        "objective": str(rng.choice([
            "binary", "binary", "binary", "binary", "regression", "regression_l1", "poisson",
            "cross_entropy", "multiclass", "multiclassova",
        ])),
        "num_leaves": int(rng.integers(2, 9)),
        "max_depth": int(rng.integers(-1, 4)),
        "max_bin": int(rng.choice([8, 64, 255, 255])),
        "min_data_in_bin": int(rng.choice([1, 1, 3])),
        "min_data_in_leaf": int(rng.choice([1, 5, 20])),
        "lambda_l2": float(rng.choice([0, 1])),
        "bin_construct_sample_cnt": int(rng.choice([30, 200000, 200000])),
        "boost_from_average": bool(rng.random() < 0.8),
        "boosting": str(rng.choice(["gbdt", "gbdt", "gbdt", "dart"])),
        "data_sample_strategy": str(rng.choice(["bagging", "bagging", "goss"])),
        "use_missing": bool(rng.random() < 0.8),
        "zero_as_missing": bool(rng.random() < 0.2),
        "enable_bundle": bool(rng.random() < 0.8),
        "extra_trees": bool(rng.random() < 0.2),
        "is_unbalance": bool(rng.random() < 0.1),
        "sigmoid": float(rng.choice([1, 1, 1, 2])),
        "force_row_wise": bool(rng.random() < 0.3),
    }  # fmt: skip
    if rng.random() < 0.2 and params["data_sample_strategy"] == "bagging":
        params |= {"bagging_fraction": 0.7, "bagging_freq": 1}
    if kinds[0] == 4 and rng.random() < 0.5:
        params["categorical_feature"] = [0]
        X[:, 0] = np.abs(X[:, 0]).round()
    if rng.random() < 0.2:
        params |= {"max_cat_threshold": int(rng.choice([8, 64]))}
    if rng.random() < 0.25:
        params |= UNREAD[int(rng.integers(len(UNREAD)))]
    if params["objective"].startswith("multiclass"):
        params["num_class"] = 3
        rows[:, -1] = rng.integers(0, 3, len(rows))
    elif params["objective"] in ("regression", "regression_l1", "poisson"):
        rows[:, -1] = rng.integers(0, 9, len(rows))
    return np.split(rows, np.cumsum(sizes)[:-1]), params, int(rng.integers(1, 4))


def for_xgboost(rng):
    """Draw a run of XGBoost."""
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


class Refused(Exception):
    """The framework itself does not train on such a table."""


def captured(parts, transport, params, trees, path):
    """Train in worker processes, and capture their messages."""
    ports = queue.Queue()
    with loopback.TRANSPORTS[transport](len(parts)) as (to, connect):
        addresses = [(loopback.HOST, port) for port in to]
        arguments = {"target": record, "args": (transport, addresses, path)}
        recorder_thread = threading.Thread(**arguments, kwargs={"ready": ports.put}, daemon=True)
        recorder_thread.start()
        relays = relay_addresses(transport, addresses, loopback.HOST, ports.get())
        workers = [
            loopback.FORK.Process(
                target=loopback.WORK[transport], args=(connect(rank, relays), rows, params, trees)
            )
            for rank, rows in enumerate(parts)
        ]
        for worker in workers:
            worker.start()
        for worker in workers:
            worker.join(loopback.LIMIT)
        recorder_thread.join()
        if any(worker.exitcode == 1 for worker in workers):
            raise Refused
        assert [worker.exitcode for worker in workers] == [0] * len(parts)


def run(transport, seed, folder):
    """Capture a random run; count the facts that each party reads, and the wrong readings."""
    parts, params, trees = draw_run(np.random.default_rng(seed), transport)
    path = Path(folder) / f"{transport}-{seed}.capture"
    captured(parts, transport, params, trees, path)
    decoded_capture = Decoded(Capture(path))
    records = list(decoded_capture)
    truth = {
        f"worker-{number}": Table(rows[:, :-1], rows[:, -1].astype(np.int64))
        for number, rows in enumerate(parts)
    }
    unread = transport == "lightgbm" and any(
        params.get(number) == value for options in UNREAD for number, value in options.items()
    )
    read = Counter(bytes_left=0 if unread else decoded_capture.ended.left)
    parties = {party for record in records for party in (record.sender, *record.receivers)}
    for reader in sorted({"third", *parties}):
        visible_records = [
            record for record in records if reader in ("third", record.sender, *record.receivers)
        ]
        for reading in [
            *readings(visible_records, (reader,)),
            *machine_readings(visible_records, (reader,)),
        ]:
            certainty = "certain" if reading.certain else "likely"
            read[certainty, reading.what] += len(reading.facts)
            read[certainty, "wrong"] += reading.wrong(truth[reading.owner])
    if read["bytes_left"] or read["certain", "wrong"]:
        print(
            transport,
            seed,
            len(parts),
            [len(party) for party in parts],
            params,
            trees,
            decoded_capture.ended,
            dict(read),
        )
    return read


def main():
    """Run the campaign."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--runs", type=int, default=50)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--over", nargs="*", default=[*loopback.TRANSPORTS])
    arguments = parser.parse_args()
    for transport in arguments.over:
        total, n_runs, n_decoded, seed = Counter(), 0, 0, arguments.seed
        with TemporaryDirectory() as folder:
            while n_runs < arguments.runs:
                with suppress(Refused):
                    read = run(transport, seed, folder)
                    n_runs, n_decoded = n_runs + 1, n_decoded + (not read["bytes_left"])
                    total += read
                seed += 1
        refused = seed - arguments.seed - n_runs
        print(
            f"{transport}: {n_runs} runs, {n_decoded} decoded whole, {refused} refused by it",
            flush=True,
        )
        for (certainty, reading), count in sorted(
            (key, n_facts) for key, n_facts in total.items() if len(key) == 2
        ):
            print(f"  {certainty}, {reading}: {count:,}", flush=True)
        if total["certain", "wrong"] or n_decoded < arguments.runs:
            raise SystemExit(4)


if __name__ == "__main__":
    main()

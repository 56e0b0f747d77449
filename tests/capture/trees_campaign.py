"""`python tests/capture/trees_campaign.py --over flower`: no certain reading is wrong.

It runs Flower's strategies, or NVFlare's executor and aggregator, in one process with random
parameters.
"""

import argparse
import logging
import random
import sys
from collections import Counter
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np

from fedtrees.capture.formats import Decoded
from fedtrees.capture.readings import SOMEBODY, LeafRows, audited, model_readings
from fedtrees.capture.records import Capture
from fedtrees.core.schema import Table

sys.path.append(str(Path(__file__).parents[2] / "docs" / "examples" / "capture"))


def drawn(rng):
    """Return random parts of a table, a kind of training, trees and parameters."""
    from loopback import table

    workers, columns = int(rng.integers(2, 6)), int(rng.integers(1, 9))
    sizes = rng.integers(20, 150, workers)
    rows = table(int(sizes.sum()), columns, int(rng.integers(1 << 30)), int(rng.integers(4)))
    if rng.random() < 0.3:
        rows[:, :-1][rng.random(rows[:, :-1].shape) < 0.1] = np.nan
    params = {"max_depth": int(rng.integers(1, 6)), "eta": float(rng.choice([0.1, 0.3, 0.37, 1]))}
    kind = str(rng.choice(["bagging", "bagging", "cyclic"]))
    return np.split(rows, np.cumsum(sizes)[:-1]), kind, int(rng.integers(1, 7)), params


def flower(parts, kind, trees, params, path, rng):
    """Train with Flower's strategies."""
    from flower_here import train

    logging.getLogger("flwr").setLevel(logging.ERROR)
    # Flower draws the order of its sites from it.
    random.seed(int(rng.integers(1 << 30)))
    more_params = {
        "lambda": float(rng.choice([0.5, 1, 5])),
        "min_child_weight": int(rng.integers(0, 3)),
    }
    train(parts, kind, trees, {**params, **more_params}, path)


def nvflare(parts, kind, trees, params, path, rng):
    """Train with NVFlare's executor of trees, and aggregate with its aggregator."""
    import xgboost as xgb
    from nvflare.apis.dxo import DXO, DataKind, from_shareable
    from nvflare.apis.event_type import EventType
    from nvflare.apis.fl_constant import FLContextKey, ReservedKey
    from nvflare.apis.fl_context import FLContext
    from nvflare.apis.signal import Signal
    from nvflare.app_common.app_constant import AppConstants
    from nvflare.app_opt.xgboost.tree_based.bagging_aggregator import XGBBaggingAggregator
    from nvflare.app_opt.xgboost.tree_based.executor import FedXGBTreeExecutor

    from fedtrees.capture.flare import Recorder

    logging.disable(logging.CRITICAL)
    recorder, aggregator, sites = Recorder(str(path)), XGBBaggingAggregator(), []
    for number, rows in enumerate(parts):
        site = FedXGBTreeExecutor(
            kind, 1 / len(parts), "rows", len(parts), str(rng.choice(["uniform", "scaled"])),
            learning_rate=params["eta"], max_depth=params["max_depth"], nthread=1,
        )  # fmt: skip
        site.client_id, site.rank, site.lr = (
            f"site-{number + 1}",
            number,
            site._get_effective_learning_rate(),
        )
        site.train_data = site.val_data = xgb.DMatrix(rows[:, :-1], rows[:, -1], nthread=1)
        sites.append(site)
    data = {}
    for round in range(trees):
        turn = sites if kind == "bagging" else [sites[round % len(sites)]]
        for site in turn:
            context, peer = FLContext(), FLContext()
            peer.put(ReservedKey.IDENTITY_NAME, site.client_id, private=False, sticky=False)
            context.set_peer_context(peer)
            task_data = DXO(DataKind.WEIGHTS, data=dict(data)).to_shareable()
            context.set_prop(FLContextKey.TASK_NAME, "train")
            context.set_prop(FLContextKey.TASK_DATA, task_data)
            recorder.handle_event(EventType.AFTER_TASK_DATA_FILTER, context)
            answer = site.train(task_data, context, Signal())
            context.set_prop(FLContextKey.TASK_RESULT, answer)
            recorder.handle_event(EventType.BEFORE_TASK_RESULT_FILTER, context)
            answer.set_peer_props({ReservedKey.IDENTITY_NAME: site.client_id})
            answer.add_cookie(AppConstants.CONTRIBUTION_ROUND, round)
            context.set_prop(AppConstants.CURRENT_ROUND, round)
            assert aggregator.accept(answer, context)
        model_data = from_shareable(aggregator.aggregate(FLContext())).data["model_data"]
        data = {"model_data": model_data if kind == "bagging" else model_data[0]}


def read(path, parts, system, rng):
    """Count the facts that the server and one site read of a run, and the wrong readings."""
    name = {"flower": "node-{}", "nvflare": "site-{}"}[system]
    truth = {
        name.format(number): Table(rows[:, :-1], rows[:, -1].astype(np.int64))
        for number, rows in enumerate(parts, start=1)
    }
    decoded_capture = Decoded(Capture(path))
    list(decoded_capture)
    counts = Counter(bytes_left=decoded_capture.ended.left)
    for reader in ("server", str(rng.choice([*truth]))):
        trees = audited(Capture(path), reader)
        for reading in () if trees is None else model_readings(*trees, reader):
            certainty = "certain" if reading.certain else "likely"
            counts[certainty, reading.what] += len(reading.facts)
            if reading.owner in truth:
                counts[certainty, "wrong"] += reading.wrong(truth[reading.owner])
            elif reading.owner == SOMEBODY and isinstance(reading, LeafRows):
                others = [table for other, table in truth.items() if other != reader]
                counts[certainty, "wrong"] += reading.wrong_of_all(others)
    return counts


def main():
    """Run the campaign."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--runs", type=int, default=50)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--over", choices=("flower", "nvflare"), default="nvflare")
    arguments, total = parser.parse_args(), Counter()
    with TemporaryDirectory() as folder:
        for seed in range(arguments.seed, arguments.seed + arguments.runs):
            rng, path = np.random.default_rng(seed), Path(folder) / f"{seed}.capture"
            parts, kind, trees, params = drawn(rng)
            globals()[arguments.over](parts, kind, trees, params, path, rng)
            counts = read(path, parts, arguments.over, rng)
            if counts["bytes_left"] or counts["certain", "wrong"]:
                run = (
                    arguments.over,
                    seed,
                    kind,
                    [len(part) for part in parts],
                    trees,
                    params,
                    dict(counts),
                )
                print(*run, flush=True)
            total += counts
    print(f"{arguments.over}: {arguments.runs} runs, {total['bytes_left']} bytes not decoded")
    for (certainty, reading), count in sorted(
        (key, n_facts) for key, n_facts in total.items() if len(key) == 2
    ):
        print(f"  {certainty}, {reading}: {count:,}")
    if total["certain", "wrong"] or total["bytes_left"]:
        raise SystemExit(4)


if __name__ == "__main__":
    main()

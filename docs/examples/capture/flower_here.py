"""Train XGBoost with the strategies of Flower in one process, and capture the messages.

python docs/examples/capture/flower_here.py bagging --out flower
fedtrees capture attack flower/run.capture --as server --truth node-1=flower/worker-0.csv ...
"""

from __future__ import annotations

import argparse
import json
import os
import random
from collections.abc import Iterable
from pathlib import Path
from typing import Any

os.environ["FLWR_TELEMETRY_ENABLED"] = "0"  # before the import

import numpy as np
import xgboost as xgb
from flwr.app import ArrayRecord, ConfigRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp import Grid
from flwr.serverapp.strategy import FedXgbBagging, FedXgbCyclic
from flwr.supercore.task_identity import TaskIdentity
from loopback import parts_of, table
from numpy.typing import NDArray

from fedtrees.capture.flower import recorded

PARAMS = {"objective": "binary:logistic", "eta": 0.3, "max_depth": 3, "nthread": 1}


def site(rows: NDArray[np.float32], params: dict[str, Any], bagging: bool) -> ClientApp:
    """Return the application of a site. It boosts on its rows, as in Flower's XGBoost example."""
    app, data = ClientApp(), xgb.DMatrix(rows[:, :-1], rows[:, -1], nthread=1)

    @app.train()
    def train(message: Message, context: Context) -> Message:
        model = message.content["arrays"]["0"].numpy().tobytes()
        if model:
            booster = xgb.Booster(params)
            booster.load_model(bytearray(model))
            before = booster.num_boosted_rounds()
            booster.update(data, before)
            booster = booster[before:] if bagging else booster
        else:
            booster = xgb.train(params, data, num_boost_round=1)
        sent = ArrayRecord([np.frombuffer(booster.save_raw("json"), np.uint8)])
        metrics = MetricRecord({"num-examples": len(rows)})
        return Message(RecordDict({"arrays": sent, "metrics": metrics}), reply_to=message)

    @app.evaluate()
    def evaluate(message: Message, context: Context) -> Message:
        metrics = MetricRecord({"num-examples": len(rows)})
        return Message(RecordDict({"metrics": metrics}), reply_to=message)

    return app


class Here(Grid):
    """Deliver messages to sites in this process, and return their replies."""

    def __init__(self, apps: dict[int, ClientApp]) -> None:
        self.apps = apps

    def get_node_ids(self) -> Iterable[int]:
        """Return the numbers of the sites."""
        return list(self.apps)

    def send_and_receive(self, messages: Iterable[Message], *, timeout: Any = None) -> Any:
        """Return the replies of the sites, which run one after the other."""
        answers = []
        for message in messages:
            node = message.metadata.dst_node_id
            context = Context(1, node, {}, RecordDict(), {})
            answers.append(self.apps[node](message, context))
        return answers

    def set_run(self, run: Any) -> None: ...
    @property
    def run(self) -> Any: ...
    def create_message(self, *given: Any, **named: Any) -> Any: ...
    def push_messages(self, messages: Iterable[Message]) -> Any: ...
    def pull_messages(self, message_ids: Iterable[str]) -> Any: ...


def train(
    parts: list[NDArray[np.float32]], kind: str, trees: int, params: dict[str, Any], capture: Path
) -> None:
    """Train with one site per part."""
    TaskIdentity.task_id = TaskIdentity.run_id = TaskIdentity.node_id = 1  # as in its server app
    bagging, params = kind == "bagging", {**PARAMS, **params}
    apps = {k: site(rows, params, bagging) for k, rows in enumerate(parts, start=1)}
    least = {"min_available_nodes": len(parts), "fraction_evaluate": 0.0}
    strategy: Any = FedXgbBagging(min_train_nodes=len(parts), **least) if bagging else None
    strategy = recorded(strategy or FedXgbCyclic(**least), capture)
    strategy.start(
        grid=Here(apps),
        initial_arrays=ArrayRecord([np.frombuffer(b"", np.uint8)]),
        train_config=ConfigRecord({}),
        num_rounds=trees,
    )


def main() -> None:
    """Read the command line and train."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("kind", choices=("bagging", "cyclic"))
    parser.add_argument("--out", type=Path, required=True, help="folder for capture and rows")
    parser.add_argument("--csv", type=Path, help="a table of numbers, the label 0 or 1 last")
    parser.add_argument("--workers", type=int, default=3)
    parser.add_argument("--rows", type=int, default=210)
    parser.add_argument("--trees", type=int, default=3)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--params", type=json.loads, default={})
    arguments = parser.parse_args()
    arguments.out.mkdir(parents=True, exist_ok=True)
    if arguments.csv:
        rows = np.loadtxt(arguments.csv, np.float32, delimiter=",", skiprows=1)
    else:
        rows = table(arguments.rows, 3, arguments.seed, 1)
    parts = parts_of(rows, arguments.workers, arguments.out)
    random.seed(arguments.seed)  # Flower draws the order of the sites from this generator
    train(parts, arguments.kind, arguments.trees, arguments.params, arguments.out / "run.capture")


if __name__ == "__main__":
    main()

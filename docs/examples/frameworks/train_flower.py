"""Train with the XGBoost strategies of Flower, in its simulation.

pip install "flwr[simulation]>=1.21" xgboost scikit-learn pandas
python docs/examples/frameworks/train_flower.py bagging out
fedtrees model audit out/model.json --truth out/train.csv --target benign

The script writes `model.json` (the global model, byte for byte), `train.csv` (all rows),
`client-1.csv`, ... (the rows of each client) and `arrivals.json` (the clients of each round, in the
order of their replies).
"""

from __future__ import annotations

import argparse
import json
import os
from pathlib import Path

os.environ |= {"FLWR_TELEMETRY_ENABLED": "0", "RAY_USAGE_STATS_ENABLED": "0"}  # before the imports

import numpy as np
import xgboost as xgb
from clients import SHARES, rows_of, write_rows
from flwr.app import ArrayRecord, ConfigRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp import Grid, ServerApp
from flwr.serverapp.strategy import FedXgbBagging, FedXgbCyclic
from flwr.simulation import run_simulation

PARAMS = {"objective": "binary:logistic", "eta": 0.3, "max_depth": 3, "nthread": 1}


def boosted(message: Message, rows: xgb.DMatrix) -> xgb.Booster:
    """Return the trees that a client sends, as in Flower's XGBoost example."""
    config = message.content["config"]
    model = message.content["arrays"]["0"].numpy().tobytes()
    if not model:
        return xgb.train(PARAMS, rows, num_boost_round=config["local-rounds"])
    booster = xgb.Booster(PARAMS)
    booster.load_model(bytearray(model))
    before = booster.num_boosted_rounds()
    for k in range(config["local-rounds"]):
        booster.update(rows, before + k)
    return booster[before:] if config["strategy"] == "bagging" else booster


def client_app() -> ClientApp:
    """Return the application of the clients, which extend the received model by trees."""
    app = ClientApp()

    @app.train()
    def train(message: Message, context: Context) -> Message:
        client = int(context.node_config["partition-id"])
        X, y = rows_of(client)
        model = boosted(message, xgb.DMatrix(X, y)).save_raw("json")
        record = ArrayRecord([np.frombuffer(model, dtype=np.uint8)])
        metrics = MetricRecord({"num-examples": len(y), "client": client})
        return Message(RecordDict({"arrays": record, "metrics": metrics}), reply_to=message)

    return app


def server_app(arguments: argparse.Namespace, out: Path) -> ServerApp:
    """Return the server: an unchanged strategy of Flower that records the order of the replies."""
    app, arrivals = ServerApp(), []

    def note(replies: list[RecordDict], weighted_by: str) -> MetricRecord:
        arrivals.append([int(r["metrics"]["client"]) for r in replies])
        return MetricRecord({})

    @app.main()
    def main(grid: Grid, context: Context) -> None:
        least = {"min_available_nodes": len(SHARES), "fraction_evaluate": 0.0}
        if arguments.strategy == "bagging":
            strategy = FedXgbBagging(
                **least, min_train_nodes=arguments.min_train_nodes, train_metrics_aggr_fn=note
            )
        else:
            strategy = FedXgbCyclic(**least, train_metrics_aggr_fn=note)
        config = {"strategy": arguments.strategy, "local-rounds": arguments.local_rounds}
        result = strategy.start(
            grid=grid,
            initial_arrays=ArrayRecord([np.frombuffer(b"", dtype=np.uint8)]),
            train_config=ConfigRecord(config),
            num_rounds=arguments.rounds,
        )
        (out / "model.json").write_bytes(result.arrays["0"].numpy().tobytes())
        (out / "arrivals.json").write_text(json.dumps(arrivals))

    return app


def main() -> None:
    """Train, and write the model and the rows."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("strategy", choices=("bagging", "cyclic"))
    parser.add_argument("out", type=Path, help="folder to write to")
    parser.add_argument("--rounds", type=int, default=10)
    parser.add_argument("--local-rounds", type=int, default=1)
    parser.add_argument(
        "--min-train-nodes",
        type=int,
        default=len(SHARES),
        help="bagging: clients a round waits for. With 2, Flower's default, one may join late",
    )
    arguments = parser.parse_args()
    arguments.out.mkdir(parents=True, exist_ok=True)
    server = server_app(arguments, arguments.out.resolve())
    run_simulation(server, client_app(), num_supernodes=len(SHARES))
    write_rows(arguments.out)


if __name__ == "__main__":
    main()

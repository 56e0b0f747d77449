"""Wrap the strategy of Flower's server, so that it records the models that are sent."""

from collections.abc import Callable, Iterable
from os import PathLike
from typing import Any

import numpy as np

from fedtrees.capture.records import Run, Writer
from fedtrees.capture.xgboost_training import SERVER
from fedtrees.messages.captured import ModelBytes


def recorded(strategy: Any, capture: str | PathLike[str]) -> Any:
    """Change a strategy of `flwr.serverapp` so that it writes a capture, and return it.

    Sites are named after their numbers in Flower, for example ``node-1``.
    """
    writer = Writer(str(capture), Run.of("flwr", "flower"))
    aggregate = strategy.aggregate_train

    def written(configure: Callable[..., Iterable[Any]], asks: bool) -> Callable[..., list[Any]]:
        def configured(*arguments: Any, **named: Any) -> list[Any]:
            sent = list(configure(*arguments, **named))
            for message in sent:
                to = (f"node-{message.metadata.dst_node_id}",)
                writer.write(_model(message, asks), SERVER, to, "train" if asks else "evaluate")
            return sent

        return configured

    def aggregated(server_round: int, replies: Iterable[Any]) -> Any:
        come = list(replies)
        for message in come:
            if message.has_content():
                sender = f"node-{message.metadata.src_node_id}"
                writer.write(_model(message), sender, (SERVER,), "the trees that it trained")
        return aggregate(server_round, come)

    strategy.configure_train = written(strategy.configure_train, True)
    strategy.configure_evaluate = written(strategy.configure_evaluate, False)
    strategy.aggregate_train = aggregated
    return strategy


def _model(message: Any, asks: bool = True) -> ModelBytes:
    """Return the model in a message, which is its only array."""
    record = next(iter(message.content.array_records.values()))
    return ModelBytes(np.frombuffer(record["0"].numpy().tobytes(), np.uint8), asks=asks)

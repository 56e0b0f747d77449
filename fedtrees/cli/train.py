"""The `train` command: one federation, one protocol, one defense; a model and a transcript."""

from __future__ import annotations

import json
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import typer

from fedtrees.bench.evaluate import make_defense, training_columns
from fedtrees.bench.federation import Federation, load_dataset, spread
from fedtrees.bench.suite import DataRef
from fedtrees.core.errors import DataError, UsageError
from fedtrees.core.guarantee import join
from fedtrees.core.registry import load_plugin, register
from fedtrees.core.specs import Composed, Spec, parse_composed, parse_grid
from fedtrees.data.csv_table import load_csv
from fedtrees.data.dataset import Dataset
from fedtrees.data.partition import Partition
from fedtrees.estimators.boosting import names_for_xgboost
from fedtrees.metrics.utility import regression_scores, utility_scores
from fedtrees.protocols.base import Protocol, Training, train
from fedtrees.trees.boosted.params import TreeParams
from fedtrees.trees.files.forests import save_random_forest
from fedtrees.trees.files.xgboost import save_xgboost
from fedtrees.trees.forest.params import ForestParams
from fedtrees.trees.forest.random_forest import RandomForest


@dataclass(frozen=True)
class Request:
    """The options of one call, as in `fedtrees train --help`."""

    protocol: str
    defenses: tuple[str, ...]
    data: str
    csv: Mapping[str, Any] | None
    partition: str
    clients: int
    seed: int
    out: str | None
    transcript: str | None
    data_dir: str | None
    plugins: tuple[str, ...]
    as_json: bool


def run(request: Request) -> None:
    """Train, score the model on the test rows, write what was asked for, and print the result."""
    for plugin in request.plugins:
        load_plugin(plugin)
    protocol_spec, defense_spec, partition = _specs(request)
    protocol: Protocol = register.make("protocol", protocol_spec)
    defense = make_defense(defense_spec)
    _check_targets(request, protocol)
    roles = protocol.roles(request.clients)
    names = [name for name, role in roles.items() if role in protocol.holders]
    federation = spread(_dataset(request), partition, names, request.seed, protocol.layout)
    began = time.perf_counter()
    training = train(
        protocol, federation.holdings, federation.schema, defense=defense, seed=request.seed
    )
    seconds = time.perf_counter() - began
    facts = {
        "protocol": str(protocol_spec),
        "defense": str(defense_spec),
        **_facts(federation, training),
        "seconds": round(seconds, 3),
    }
    if request.out:
        _save_model(training, Path(request.out))
        facts["model"] = request.out
    if request.transcript:
        _save_transcript(training, Path(request.transcript))
        facts["transcript"] = request.transcript
    if request.as_json:
        typer.echo(json.dumps(facts, indent=1))
    else:
        _print(facts)


def _specs(request: Request) -> tuple[Spec, Composed, Partition]:
    protocols, partitions = parse_grid(request.protocol), parse_grid(request.partition)
    defenses = parse_composed(request.defenses or ("none",))
    for name, found in (
        ("protocol", protocols),
        ("defense", defenses),
        ("partition", partitions),
    ):
        if len(found) != 1:
            several = "compose them with +" if name == "defense" else "a grid is for fedtrees bench"
            raise UsageError(f"train takes one {name}, not {len(found)}; {several}")
    return protocols[0], defenses[0], Partition(partitions[0].name, dict(partitions[0].params))


def _check_targets(request: Request, protocol: Protocol) -> None:
    """Refuse, before anything is trained, files that could not be written afterwards."""
    for file in (request.out, request.transcript):
        if file and not Path(file).absolute().parent.is_dir():
            raise UsageError(f"{file}: there is no folder {Path(file).parent}; make it first")
        if file and Path(file).is_dir():
            raise UsageError(f"{file} is a folder; name a file")
    if request.transcript and Path(request.transcript).suffix != ".npz":
        raise UsageError(f"--transcript {request.transcript}: end the name in .npz")
    wanted, kind = (
        (".npz", "a random forest; XGBoost has no such model")
        if isinstance(protocol, ForestParams)
        else (".json", "an XGBoost model")
    )
    if request.out and Path(request.out).suffix != wanted:
        raise UsageError(f"--out {request.out}: end the name in {wanted} ({kind})")


def _dataset(request: Request) -> Dataset:
    if request.csv is None:
        return load_dataset(DataRef(request.data), request.data_dir)
    options = dict(request.csv)
    return load_csv(options.pop("csv"), options.pop("target"), **options)


def _facts(federation: Federation, training: Training) -> dict[str, Any]:
    dataset, test = federation.dataset, federation.test
    predicted = training.predict(test.X)
    scores = regression_scores if dataset.task == "number" else utility_scores
    return {
        "dataset": dataset.name,
        "task": dataset.task,
        "classes": list(dataset.schema.classes),
        "clients": [len(rows) for rows in federation.holdings.values()],
        "test_rows": len(test),
        "utility": scores(test.y, predicted),
        "trees": len(training.model),
        "claimed": join(training.defense.claims()),
        **training_columns(training),
        "messages": len(training.transcript.deliveries),
    }


def _save_model(training: Training, path: Path) -> None:
    model = training.model
    if isinstance(model, RandomForest):
        save_random_forest(model, path)
        return
    protocol, names = training.protocol, training.schema.names
    params = protocol if isinstance(protocol, TreeParams) else None
    save_xgboost(model, path, len(names), names_for_xgboost(names), params)


def _save_transcript(training: Training, path: Path) -> None:
    try:
        training.transcript.save(path)
    except OSError as error:
        raise DataError(f"cannot write the transcript {path}: {error.strerror}") from error


def _print(facts: Mapping[str, Any]) -> None:
    sizes = facts["clients"]
    target = f"{len(facts['classes'])} classes" if facts["classes"] else "a number"
    typer.echo(f"{facts['protocol']} on {facts['dataset']} ({target})")
    shown = f"{sum(sizes)} over {len(sizes)} clients, of {min(sizes)} to {max(sizes)}"
    lines = {"defense": facts["defense"], "training rows": shown, "test rows": facts["test_rows"]}
    if facts["defense"] != "none":
        lines["defense"] += f" (claims {facts['claimed']}, spent {facts['spent']})"
    for name, value in facts["utility"].items():
        lines[f"test {name}"] = "undefined" if value is None else f"{value:.4f}"
    lines["trees"] = facts["trees"]
    up, down = facts["bytes_up"], facts["bytes_down"]
    lines["messages"] = f"{facts['messages']} in {facts['rounds']} rounds"
    lines["bytes"] = f"{up + down} ({up} from clients, {down} to clients)"
    lines["seconds"] = f"{facts['seconds']:.2f}"
    lines |= {name: facts[name] for name in ("model", "transcript") if name in facts}
    for name, value in lines.items():
        typer.echo(f"  {name:14} {value}")

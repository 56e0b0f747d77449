"""The `train` command: train one federation, and write its model and its transcript."""

from __future__ import annotations

import time
import warnings
from collections.abc import Mapping, Sequence, Sized
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from fedtrees.cli.console import emit
from fedtrees.cli.options import Format, Output, option, with_bench_options
from fedtrees.core.errors import DataError, UsageError
from fedtrees.core.guarantee import join
from fedtrees.core.specs import Composed, Spec, parse_composed, parse_grid
from fedtrees.experiments.options import (
    DATA,
    DEFENSE,
    FEDERATION,
    OUTPUT,
    RUN,
    check_clients,
    check_parties,
    clients_of_table,
    load_plugins,
    print_notes,
    reference_of,
)
from fedtrees.experiments.table_spec import TABLE_OPTIONS, parse_table_options

if TYPE_CHECKING:
    from fedtrees.data.partition import Partition
    from fedtrees.experiments.federation import Federation
    from fedtrees.protocols.base import Protocol
    from fedtrees.protocols.training import Training


@with_bench_options(*TABLE_OPTIONS, "data_dir", "plugin", "unprotected")
def train(
    protocol: Annotated[str, option(FEDERATION, "PROTOCOL", "-p", "--protocol")] = "fedtree-hist",
    defense: Annotated[list[str] | None, option(DEFENSE, "DEFENSE", "-d", "--defense")] = None,
    data: Annotated[str | None, option(DATA, "NAME")] = None,
    partition: Annotated[str | None, option(FEDERATION, "PARTITION")] = None,
    clients: Annotated[int | None, option(FEDERATION, "N")] = None,
    seed: Annotated[int, option(RUN, "N")] = 0,
    noise_from: Annotated[str, option(RUN, "SOURCE")] = "system",
    out: Annotated[str | None, option(OUTPUT, "FILE", "-o", "--output")] = None,
    transcript: Annotated[str | None, option(OUTPUT, "FILE")] = None,
    *,
    format: Output = Format.TABLE,
    **arguments: Any,
) -> None:
    """Train one federation, score its model on test rows, and write model and transcript.

    Training and test rows are those of `fedtrees bench` for the same seed and partition.

    Parameters
    ----------
    protocol : str, optional
        A protocol, with parameters.
    defense : sequence of str, optional
        A defense; compose several with +.
    data : str, optional
        A dataset (see `fedtrees list datasets`).
    partition : str, optional
        iid (default), by-client, label-skew[alpha=], ...
    clients : int, optional
        Number of clients (default: 3, or as the table states).
    seed : int, optional
        Seed of all randomness except noise.
    noise_from : str, optional
        Source of noise: system, or seed for a repeatable run whose noise gives no protection.
    out : str, optional
        Write the model: XGBoost JSON (.json), a random forest (.npz), another (.ftm).
    transcript : str, optional
        Write every message of the training (.npz).

    Examples
    --------
    Three clients, and a model that XGBoost can read::

        fedtrees model train --data breast-cancer -o model.json

    With a defense, and with every message in a file::

        fedtrees model train -d split-only --transcript messages.npz
    """
    from fedtrees.core.registry import register
    from fedtrees.experiments.environment import check_extras
    from fedtrees.experiments.evaluate import make_defense
    from fedtrees.experiments.federation import load_dataset, spread
    from fedtrees.experiments.suite import DataRef
    from fedtrees.protocols.base import ENCODED_FILE
    from fedtrees.protocols.training import train as train_federation
    from fedtrees.trees.files.categories import check_features

    if seed < 0:
        raise UsageError(f"--seed {seed}: give a whole number from 0 up")
    table = reference_of(parse_table_options(arguments, data))
    grid = {"partitions": partition, "clients": None if clients is None else [clients]}
    completed_grid = clients_of_table(table, grid, arguments["data_dir"])
    clients = (completed_grid["clients"] or [3])[0]
    partition = (completed_grid["partitions"] or ["iid"])[0] if partition is None else partition
    check_clients(clients)
    load_plugins(arguments["plugin"], arguments["unprotected"])
    protocol_spec, defense_spec, spreading = _specs(protocol, defense or (), partition)
    protocol_instance: Protocol = register.make("protocol", protocol_spec)
    check_extras(protocol_spec, defense_spec)
    check_parties(protocol_instance, clients)
    composed = make_defense(defense_spec)
    _check_targets(out, transcript, protocol_instance)
    dataset = load_dataset(table or DataRef(data or "breast-cancer"), arguments["data_dir"])
    federation = spread(
        dataset, spreading, protocol_instance.holder_names(clients), seed, protocol_instance.layout
    )
    print_notes(dataset.notes if table else ())
    if out and protocol_instance.info.model_file[0] != ENCODED_FILE[0]:
        check_features(
            dataset.schema.features, bool(protocol_instance.parameters.get("enable_categorical"))
        )
    began = time.perf_counter()
    # The training refuses any other source of noise.
    options: dict[str, Any] = {"defense": composed, "seed": seed, "noise_from": noise_from}
    training = train_federation(
        protocol_instance, federation.local_data, federation.schema, **options
    ).to_rely_on()
    seconds = time.perf_counter() - began
    facts = {
        "protocol": str(protocol_spec),
        "defense": str(defense_spec),
        "noise_from": training.noise_from,
        **_facts(federation, training),
        "seconds": round(seconds, 3),
    }
    if out:
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always", UserWarning)
            protocol_instance.save(training, Path(out))
        facts |= {"model": out, "notes": [str(warning.message) for warning in caught]}
        print_notes(facts["notes"])
    if transcript:
        try:
            training.transcript.save(Path(transcript))
        except OSError as err:
            raise DataError(f"cannot write the transcript {transcript}: {err.strerror}") from err
        facts["transcript"] = transcript
    emit(facts, format, lambda: _print(facts))


def _specs(
    protocol: str, defense: Sequence[str], partition: str
) -> tuple[Spec, Composed, Partition]:
    """Parse protocol, defense and partition. Raise `UsageError` unless there is one of each."""
    from fedtrees.data.partition import Partition

    protocols, partitions = parse_grid(protocol), parse_grid(partition)
    defenses = parse_composed(defense or ("none",))
    parsed: dict[str, Sequence[Any]] = {
        "protocol": protocols,
        "defense": defenses,
        "partition": partitions,
    }
    for name, specs in parsed.items():
        if len(specs) != 1:
            several = "compose them with +" if name == "defense" else "a grid is for fedtrees bench"
            raise UsageError(f"train takes one {name}, not {len(specs)}; {several}")
    return protocols[0], defenses[0], Partition(partitions[0].name, dict(partitions[0].params))


def _check_targets(out: str | None, transcript: str | None, protocol: Protocol) -> None:
    """Raise `UsageError` for files that could not be written, before the training."""
    for file in (out, transcript):
        if file and not Path(file).absolute().parent.is_dir():
            raise UsageError(f"{file}: there is no folder {Path(file).parent}; make it first")
        if file and Path(file).is_dir():
            raise UsageError(f"{file} is a folder; name a file")
    if transcript and Path(transcript).suffix != ".npz":
        raise UsageError(f"--transcript {transcript}: end the name in .npz")
    if out and not protocol.released:
        raise UsageError(
            f"--output {out}: no party has the complete model of {protocol.name!r}; omit --output"
        )
    suffix, kind = protocol.info.model_file
    if out and Path(out).suffix != suffix:
        raise UsageError(f"--output {out}: end the name in {suffix} ({kind})")


def _facts(federation: Federation, training: Training) -> dict[str, Any]:
    """Return the facts about a training that are printed."""
    from fedtrees.experiments.evaluate import training_columns
    from fedtrees.metrics.utility import scores_of

    dataset, test = federation.dataset, federation.test
    predicted = training.predict(test.X)
    return {
        "dataset": dataset.name,
        "task": dataset.task,
        "classes": list(dataset.schema.classes),
        "clients": [len(part) for part in federation.local_data.values()],
        "training_rows": training.n_rows,
        "columns": [len(part.columns) for part in federation.local_data.values()],
        "test_rows": len(test),
        "utility": scores_of(dataset.task)(test.y, predicted),
        "trees": len(training.model) if isinstance(training.model, Sized) else None,
        "claimed": join(training.claims),
        **training_columns(training),
        "messages": len(training.transcript.deliveries),
    }


def _print(facts: Mapping[str, Any]) -> None:
    """Print the facts about a training."""
    sizes = facts["clients"]
    target = f"{len(facts['classes'])} classes" if facts["classes"] else "a number"
    typer.echo(f"{facts['protocol']} on {facts['dataset']} ({target})")
    shown = f"{sum(sizes)} over {len(sizes)} clients, of {min(sizes)} to {max(sizes)}"
    if facts["training_rows"] < sum(sizes):
        widths = " + ".join(map(str, facts["columns"]))
        shown = f"{facts['training_rows']}, of {widths} columns"
    lines = {"defense": facts["defense"], "training rows": shown, "test rows": facts["test_rows"]}
    if facts["claimed"] != "none" or facts["spent"] != "none":
        lines["defense"] += f" (claims {facts['claimed']}, spent {facts['spent']})"
        if facts["noise_from"] == "seed":
            lines["noise"] = (
                "from the seed: the noise can be drawn again from the seed, so that no "
                "guarantee holds"
            )
    for name, value in facts["utility"].items():
        lines[f"test {name}"] = "undefined" if value is None else f"{value:.4f}"
    if facts["trees"] is not None:  # a regression or a network has none
        lines["trees"] = facts["trees"]
    up, down = facts["bytes_up"], facts["bytes_down"]
    lines["messages"] = f"{facts['messages']} in {facts['rounds']} rounds"
    lines["bytes"] = f"{up + down} ({up} from clients, {down} to clients)"
    lines["seconds"] = f"{facts['seconds']:.2f}"
    lines |= {name: facts[name] for name in ("model", "transcript") if name in facts}
    for name, value in lines.items():
        typer.echo(f"  {name:14} {value}")

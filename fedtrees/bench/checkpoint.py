"""A finished training kept on disk until every attack on it is done."""

from __future__ import annotations

import contextlib
import zipfile
from pathlib import Path
from typing import Any

import numpy as np

from fedtrees.bench.cells import TrainCell
from fedtrees.bench.evaluate import make_defense
from fedtrees.bench.federation import Federation
from fedtrees.core.defense import Context
from fedtrees.core.errors import DataError, StoreError
from fedtrees.core.files import write_whole
from fedtrees.core.registry import register
from fedtrees.core.streams import Streams
from fedtrees.core.transcript import Transcript
from fedtrees.protocols.base import Training
from fedtrees.trees.boosted.forest import Forest, Tree
from fedtrees.trees.boosted.losses import named_objective
from fedtrees.trees.forest.random_forest import RandomForest

_ARRAYS = ("feature", "threshold", "left", "right", "default_left", "value", "g", "h", "gain")


def paths(folder: Path, key: str) -> tuple[Path, Path]:
    """Return where transcript and model of a train cell are kept."""
    return folder / f"{key}.transcript.npz", folder / f"{key}.model.npz"


def save(training: Training, folder: Path, key: str) -> None:
    """Keep a training; a disk too full for it only costs a later rerun some time."""
    transcript, model = paths(folder, key)
    with contextlib.suppress(DataError, StoreError):
        save_forest(training.model, model)
        training.transcript.save(transcript, compress=False)


def load(cell: TrainCell, federation: Federation, folder: Path, key: str) -> Training | None:
    """Return a kept training, None if it is missing or cut off."""
    where, model_path = paths(folder, key)
    try:
        transcript, model = Transcript.load(where), load_forest(model_path)
    except DataError:
        return None
    protocol = register.make("protocol", cell.protocol)
    context = Context(
        party="server",
        role="server",
        schema=federation.schema,
        parameters=protocol.parameters,
        streams=Streams(cell.setting.seed).child("server", "defense"),
        ledger=transcript.events,
    )
    n_rows = sum(map(len, federation.clients))
    defense = make_defense(cell.defense)
    return Training(model, transcript, protocol, defense, federation.schema, n_rows, context)


def drop(folder: Path, key: str) -> None:
    """Remove what was kept of a training."""
    for path in paths(folder, key):
        path.unlink(missing_ok=True)


def save_forest(forest: Forest | RandomForest, path: Path) -> None:
    """Write a forest's arrays to an ``.npz`` file, atomically."""
    arrays = forest.to_arrays() if isinstance(forest, RandomForest) else _boosted(forest)
    write_whole(path, lambda out: np.savez(out, allow_pickle=False, **arrays))


def _boosted(forest: Forest) -> dict[str, Any]:
    arrays = {
        f"{i}.{name}": getattr(tree, name)
        for i, tree in enumerate(forest.trees)
        for name in _ARRAYS
        if getattr(tree, name) is not None
    }
    return {
        "base_margin": forest.base_margin,
        "objective": forest.objective.name,
        "trees": np.int64(len(forest.trees)),
        **arrays,
    }


def load_forest(path: Path) -> Forest | RandomForest:
    """Read a forest written by `save_forest`.

    Raises
    ------
    DataError
        If the file is missing or damaged.
    """
    try:
        with np.load(path, allow_pickle=False) as data:
            if "probability" in data:
                return RandomForest.from_arrays(dict(data))
            trees = tuple(
                Tree(**{name: data[f"{i}.{name}"] for name in _ARRAYS if f"{i}.{name}" in data})
                for i in range(int(data["trees"]))
            )
            start = data["base_margin"]
            return Forest(trees, start, named_objective(str(data["objective"]), len(start)))
    except (OSError, ValueError, KeyError, TypeError, EOFError, zipfile.BadZipFile) as err:
        raise DataError(f"{path}: not a readable model ({err})") from err

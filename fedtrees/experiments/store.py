"""Run folder: one file per finished cell, and the tables that are written from them.

Every cell is written completely or not at all, with a checksum, so that a run can be killed at any
time and resumed later. ``rows.csv``, ``contexts.csv`` and ``columns.csv`` contain the rows of all
cells. ``environment.json`` and ``suite.toml`` describe the run.

A finished training is stored until every attack on it is done (`save_training`). An interrupted run
can then be resumed without repeating the training.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

from fedtrees import __version__
from fedtrees.core import results
from fedtrees.core.defense import Context
from fedtrees.core.errors import DataError, StoreError
from fedtrees.core.files import locked, parse_json, sweep, write_listed, write_whole
from fedtrees.core.local_data import rows_of
from fedtrees.core.registry import register
from fedtrees.core.streams import Streams
from fedtrees.core.transcript import Transcript
from fedtrees.core.wire import decode, encode
from fedtrees.experiments.evaluate import NOISE, make_defense
from fedtrees.experiments.federation import Federation
from fedtrees.experiments.plan import Task
from fedtrees.messages.models import as_message
from fedtrees.protocols.training import Training

_SEAL = b', "sha256": "'
FOR_OWNER = 0o700  # mode of a run folder, because it may contain rows of private tables
#: Key of ``environment.json`` with a copy of ``suite.toml``, from which a damaged one is restored.
COPY = "suite"
_REMEDY = "finished cells are safe: make room or permission, then run again with --resume"


class Store:
    """Read and write the files of a run folder.

    Attributes
    ----------
    folder : Path
        The run folder.
    cells : Path
        Its folder of finished cells.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.cells = folder / "cells"

    @property
    def name(self) -> str:
        """Name of the run, which is the name of its folder."""
        return self.folder.resolve().name

    def create(self, suite_toml: str, environment: Mapping[str, Any]) -> None:
        """Create the folder with access for its owner only, and write the description of the run.

        An existing run folder keeps its permissions. Its folder ``cells``, which can contain local
        data and messages of parties, becomes accessible to its owner only.

        Raises `StoreError` if the folder cannot be created or written.
        """
        try:
            self.folder.mkdir(mode=FOR_OWNER, parents=True, exist_ok=True)
            self.cells.mkdir(mode=FOR_OWNER, exist_ok=True)
            with contextlib.suppress(OSError):  # another user owns the folder
                self.cells.chmod(FOR_OWNER)  # it may exist with other permissions
        except OSError as err:
            raise StoreError(f"cannot make {self.cells}: {err.strerror or err}") from err
        described = {**environment, COPY: suite_toml}
        text = json.dumps(described, indent=2, sort_keys=True)
        write_listed(self.folder, "environment.json", text.encode())
        # `exists` checks for this file, so that it is written last.
        write_listed(self.folder, "suite.toml", suite_toml.encode())

    def exists(self) -> bool:
        """Return whether the folder contains a run."""
        return (self.folder / "suite.toml").is_file()

    def check_version(self) -> None:
        """Raise `StoreError` if another version of fedtrees wrote the run, or none is recorded."""
        path = self.folder / "environment.json"
        try:
            version = parse_json(path.read_bytes(), path.name).get("fedtrees")
        except (OSError, StoreError, AttributeError) as err:
            raise StoreError(f"{path} cannot be read ({err}); is {self.folder} a run?") from err
        if version != __version__:
            raise StoreError(
                f"{self.folder} was written by fedtrees {version}, this is {__version__}; results "
                "of two versions are not mixed: choose another --output"
            )

    def read(self, cell_id: str) -> dict[str, Any] | None:
        """Return the result of a finished cell.

        None if its file is missing, or if its checksum or its id does not match.
        """
        try:
            content = (self.cells / f"{cell_id}.json").read_bytes()
        except OSError:
            return None
        body, _, seal = content.rpartition(_SEAL)
        if seal != _digest(body) + b'"}':
            return None
        cell: dict[str, Any] = json.loads(body + b"}")
        return cell if cell["id"] == cell_id else None

    def claim(self, cell_id: str) -> contextlib.AbstractContextManager[None]:
        """Lock a cell while it is computed. Other processes that claim the same cell wait.

        Two processes can claim a cell, because workers may outlive a killed run for a moment, and
        because a second ``--resume`` may use the folder at the same time.
        """
        return locked(self.folder, int(cell_id[:12], 16))

    def sweep(self) -> None:
        """Remove temporary files of killed writers."""
        sweep(self.folder)
        sweep(self.cells)

    def write(self, cell: Mapping[str, Any]) -> None:
        """Write the result of one finished cell with a checksum.

        Raises `UsageError` if a row has an unknown column or a value of the wrong type.
        Raises `StoreError` if the file cannot be written.
        """
        body = json.dumps(typed(cell), allow_nan=False).encode()[:-1]
        # The checksum is the last key of the JSON object, so that the file remains valid JSON.
        content = body + _SEAL + _digest(body) + b'"}'
        # A lost file of a skipped cell is soon computed again: no need to wait for the disk.
        path, flush = self.cells / f"{cell['id']}.json", cell["status"] != "skipped"
        write_whole(path, content, remedy=_REMEDY, flush=flush)

    def write_rows(self, cell_results: Iterable[Mapping[str, Any] | None]) -> int:
        """Write the tables of the run from the results of cells (`results.write_tables`).

        Parameters
        ----------
        cell_results : iterable of mapping or None
            Results in the order of the rows. None: the cell has no result. If a plan contains a
            cell twice, with its parameters in different orders, its rows are written once.

        Returns
        -------
        missing : int
            Number of cells without a result.
        """
        missing, written = 0, set[str]()

        def yield_rows() -> Iterator[dict[str, Any]]:
            nonlocal missing
            for result in cell_results:
                if result is None:
                    missing += 1
                    continue
                rows_of_cell = [] if result["id"] in written else result["rows"]
                written.add(result["id"])
                for row in rows_of_cell:
                    yield {"run": self.name, **result["common"], **row, "version": __version__}

        for name, text in results.write_tables(yield_rows()).items():
            write_listed(self.folder, name, text.encode())
        return missing


def typed(cell: Mapping[str, Any]) -> dict[str, Any]:
    """Return the result of a cell with its rows as plain JSON types.

    Raises `UsageError` if a row has an unknown column or a value of the wrong type.
    """
    plain_rows = [results.plain(row) for row in cell["rows"]]
    return {**cell, "common": results.plain(cell["common"]), "rows": plain_rows}


def _digest(body: bytes) -> bytes:
    """Return the sha256 of a text as hexadecimal digits."""
    return hashlib.sha256(body).hexdigest().encode()


def training_files(folder: Path, key: str) -> tuple[Path, Path]:
    """Return the files in which the transcript and the model of a training are stored."""
    return folder / f"{key}.transcript.npz", folder / f"{key}.model"


def save_training(training: Training, folder: Path, key: str) -> None:
    """Store a training, if its model can be restored from a message.

    Trainings of three kinds are not stored, and are repeated when a run is resumed: trainings
    without a released model, because its parts exist only in the parties of the process, trainings
    with sealed replies, because the file would not contain their contents, and trainings with a
    cheating party. If the disk is full, nothing is stored.

    Parameters
    ----------
    training : Training
        The finished training.
    folder : Path
        Folder of the stored trainings.
    key : str
        Key of the training task.
    """
    if not training.protocol.released or training.transcript.plain_replies or training.behaviours:
        return
    transcript, model = training_files(folder, key)
    encoded_model = encode(as_message(training.model))
    with contextlib.suppress(DataError, StoreError):
        write_whole(model, encoded_model)
        training.transcript.save(transcript, compress=False)


def load_training(task: Task, federation: Federation, folder: Path, key: str) -> Training | None:
    """Return a stored training, None if it is missing or incomplete.

    Parameters
    ----------
    task : Task
        The training.
    federation : Federation
        Its data, which are not stored with the training.
    folder : Path
        Folder of the stored trainings.
    key : str
        Key of the training task.
    """
    transcript_path, model_path = training_files(folder, key)
    try:
        transcript, message = Transcript.load(transcript_path), decode(model_path.read_bytes())
        model = message.model()  # type: ignore[attr-defined]
    except (OSError, DataError):
        return None
    protocol = register.make("protocol", task.protocol)
    name = transcript.coordinator
    context = Context(
        party=name,
        role=transcript.roles[name],
        schema=federation.schema,
        parameters=protocol.parameters,
        streams=Streams(task.federation_config.seed, NOISE).child(name, "defense"),
        ledger=transcript.events,
        acted=transcript.acted,
    )
    return Training(
        model,
        transcript,
        protocol,
        make_defense(task.defense),
        federation.schema,
        rows_of(federation.local_data),
        context,
        {name: part.columns for name, part in federation.local_data.items()},
        noise_from=NOISE,
    )


def drop_training(folder: Path, key: str) -> None:
    """Delete a stored training."""
    for path in training_files(folder, key):
        path.unlink(missing_ok=True)

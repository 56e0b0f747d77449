"""Store a finished training on disk until every attack on it is done.

An interrupted run can then be resumed without repeating the training.
"""

from __future__ import annotations

import contextlib
from pathlib import Path

from fedtrees.core.defense import Context
from fedtrees.core.errors import DataError, StoreError
from fedtrees.core.files import write_whole
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


def paths(folder: Path, key: str) -> tuple[Path, Path]:
    """Return the files in which the transcript and the model of a training are stored."""
    return folder / f"{key}.transcript.npz", folder / f"{key}.model"


def save(training: Training, folder: Path, key: str) -> None:
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
    transcript, model = paths(folder, key)
    encoded_model = encode(as_message(training.model))
    with contextlib.suppress(DataError, StoreError):
        write_whole(model, encoded_model)
        training.transcript.save(transcript, compress=False)


def load(task: Task, federation: Federation, folder: Path, key: str) -> Training | None:
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
    transcript_path, model_path = paths(folder, key)
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


def drop(folder: Path, key: str) -> None:
    """Delete a stored training."""
    for path in paths(folder, key):
        path.unlink(missing_ok=True)

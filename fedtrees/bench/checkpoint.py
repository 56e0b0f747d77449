"""A finished training kept on disk until every attack on it is done."""

import contextlib
from pathlib import Path

from fedtrees.bench.cells import TrainCell
from fedtrees.bench.evaluate import NOISE, make_defense
from fedtrees.bench.federation import Federation
from fedtrees.core.codec import decode, encode
from fedtrees.core.defense import Context
from fedtrees.core.errors import DataError, StoreError
from fedtrees.core.files import write_whole
from fedtrees.core.local_data import rows_of
from fedtrees.core.registry import register
from fedtrees.core.streams import Streams
from fedtrees.core.transcript import Transcript
from fedtrees.messages.models import as_message
from fedtrees.protocols.training import Training


def paths(folder: Path, key: str) -> tuple[Path, Path]:
    """Return where transcript and model of a train cell are kept."""
    return folder / f"{key}.transcript.npz", folder / f"{key}.model"


def save(training: Training, folder: Path, key: str) -> None:
    """Keep a training whose model can be told; a disk too full only costs a later rerun time.

    A model that nobody holds whole is trained again: its parties are gone with their process. So is
    one with sealed replies, for no file says what is inside, and one in which somebody cheats.
    """
    if not training.protocol.released or training.transcript.inside or training.behaviours:
        return
    transcript, model = paths(folder, key)
    told = encode(as_message(training.model))
    with contextlib.suppress(DataError, StoreError):
        write_whole(model, told)
        training.transcript.save(transcript, compress=False)


def load(cell: TrainCell, federation: Federation, folder: Path, key: str) -> Training | None:
    """Return a kept training, None if it is missing or cut off."""
    where, model_path = paths(folder, key)
    try:
        transcript, told = Transcript.load(where), decode(model_path.read_bytes())
        model = told.model()  # type: ignore[attr-defined]
    except (OSError, DataError):
        return None
    protocol = register.make("protocol", cell.protocol)
    name = transcript.coordinator
    context = Context(
        party=name,
        role=transcript.roles[name],
        schema=federation.schema,
        parameters=protocol.parameters,
        streams=Streams(cell.setting.seed, NOISE).child(name, "defense"),
        ledger=transcript.events,
        acted=transcript.acted,
    )
    return Training(
        model,
        transcript,
        protocol,
        make_defense(cell.defense),
        federation.schema,
        rows_of(federation.local_data),
        context,
        {name: held.columns for name, held in federation.local_data.items()},
        noise_from=NOISE,
    )


def drop(folder: Path, key: str) -> None:
    """Remove what was kept of a training."""
    for path in paths(folder, key):
        path.unlink(missing_ok=True)

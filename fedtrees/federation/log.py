"""Files of a party of a federation: its messages, how the run ended, and the model."""

import json
import time
from datetime import UTC, datetime
from itertools import count
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from fedtrees import __version__
from fedtrees.capture.records import Run, Writer
from fedtrees.core.errors import DataError
from fedtrees.core.files import write_whole
from fedtrees.core.messages import Message
from fedtrees.core.transcript import PUBLIC, Transcript
from fedtrees.federation.agreement import FederationAgreement

LOG, STATUS, MODEL = "log.capture", "status.json", "model"
ENDED, PROGRESS = "ended.json", "progress.txt"  # files of a server
#: Name of the framework in a log.
FRAMEWORK = "fedtrees"


def run_folder(out: Path, federation: FederationAgreement) -> Path:
    """Create a folder for a run that only its owner may read."""
    for n in count(1):
        path = out / (f"{federation.name}-{n}" if n > 1 else federation.name)
        try:
            path.mkdir(mode=0o700, parents=True)
        except FileExistsError:
            continue
        except OSError as err:
            raise DataError(f"cannot make {path}: {err.strerror}; give permission") from err
        return path
    raise AssertionError


class Log:
    """The log of one party of a run.

    Parameters
    ----------
    folder : Path
        Folder of the run.
    federation : FederationAgreement
        The agreement.
    party : str
        Name of the party.
    rows : int
        Number of rows of all parties.
    """

    def __init__(
        self, folder: Path, federation: FederationAgreement, party: str, rows: int
    ) -> None:
        self.folder = folder
        facts = {"federation": federation.plain(), "party": party, "rows": rows}
        started = datetime.now(UTC).isoformat(timespec="seconds")
        run = Run(FRAMEWORK, __version__, "", started, facts)
        self._writer, self._begun = Writer(folder / LOG, run), time.perf_counter()
        self._hash, self._party, self._closed = federation.hash, party, False

    def write(self, message: Message, sender: str, to: tuple[str, ...], why: str) -> None:
        """Append one message.

        Parameters
        ----------
        message : Message
            The message.
        sender : str
            Name of the sender.
        to : tuple of str
            Names of the receivers.
        why : str
            Reason for the disclosure.
        """
        self._writer.write(message, sender, to, why)

    def published(self, model: Message, by: str) -> None:
        """Append the released model, which is public."""
        self.write(model, by, (PUBLIC,), "the released model, which is public")

    def close(self, why: str, **more: Any) -> None:
        """Write how the run ended.

        `why` is the reason why it stopped, empty if it was completed.
        """
        if self._closed:
            return
        self._closed = True
        self._writer.close()
        status = {
            "federation": self._hash, "party": self._party, "stopped": why,
            "crossings": self._writer.written,
            "seconds": round(time.perf_counter() - self._begun, 3), **more,
        }  # fmt: skip
        write_whole(self.folder / STATUS, json.dumps(status, indent=1).encode(), private=True)


def end_with(folder: Path, why: str) -> None:
    """Write at the server how a run ended: the reason why it stopped, or an empty text."""
    write_whole(folder / ENDED, json.dumps({"stopped": why}).encode(), private=True)


def end_of(folder: Path, status: str) -> str:
    """Return why a run stopped, "" if it was completed. `status` is the status of NVFlare."""
    if not (folder / ENDED).is_file():
        before = ", or a site before it began" if status.upper().startswith("FINISHED") else ""
        return f"the server is lost{before} ({status.lower()})"
    return str(json.loads((folder / ENDED).read_text())["stopped"])


class Logged(Transcript):
    """A transcript that writes each message to the log.

    The released model is logged when all is done.
    """

    log: Log

    def record(self, sender: str, receivers: tuple[str, ...], message: Message, why: str) -> None:
        """Append one message.

        Parameters
        ----------
        sender : str
            Name of the sender.
        receivers : tuple of str
            Names of the receivers.
        message : Message
            The message.
        why : str
            Reason for the disclosure.
        """
        super().record(sender, receivers, message, why)
        # `Log.published` writes the model after the run was completed.
        if receivers != (PUBLIC,):
            self.log.write(message, sender, receivers, why)


def keep_model(federation: FederationAgreement, model: Message, folder: Path) -> Path:
    """Write a released model like `fedtrees model train`. Only its owner may read the file.

    Parameters
    ----------
    federation : FederationAgreement
        The agreement.
    model : Message
        The released model.
    folder : Path
        Folder of the run.
    """
    path = folder / f"{MODEL}{federation.made.info.model_file[0]}"
    training: Any = SimpleNamespace(
        model=model.model(),  # type: ignore[attr-defined]
        schema=federation.schema,
        defense=federation.composed,
        noise_from=federation.noise_from,
    )
    federation.made.save(training, path)
    path.chmod(0o600)
    return path

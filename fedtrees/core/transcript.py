"""The transcript: every crossing, who could read it, what it cost."""

from __future__ import annotations

import io
import json
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

from fedtrees.core.codec import decode, encode, encoded_size
from fedtrees.core.errors import DataError
from fedtrees.core.files import write_whole
from fedtrees.core.messages import Message, check_fields

_VERSION = 3
#: The role, and the name, of whoever gets a released model.
PUBLIC = "public"


@dataclass(frozen=True, eq=False)
class Delivery:
    """One crossing."""

    index: int  # position in the transcript
    round: int  # number of requests the coordinator had made when it crossed
    sender: str
    # several for a broadcast; the sender itself for a sum that it opened
    receivers: tuple[str, ...]
    message: Message  # what is `Sealed` in it is closed to all but its keyholders
    why: str  # the reason the protocol gives for this disclosure

    @cached_property
    def nbytes(self) -> int:
        """Encoded size in bytes, per receiver; 0 for what the sender worked out itself."""
        return 0 if self.receivers == (self.sender,) else encoded_size(self.message)


@dataclass(frozen=True)
class BudgetEvent:
    """One noisy release by one party, for an accountant to compose."""

    party: str  # whose rows it speaks of
    # ``laplace``, ``exponential``, ``gaussian``; on whole numbers ``geometric``,
    # ``discrete-gaussian`` and ``truncated-laplace``, which is cut off toward 0; what the
    # accountant does not know costs infinity
    mechanism: str
    l1: float  # L1 sensitivity of the release to one row, in the unit of `scale`
    scale: float  # noise scale; of Gaussian noise the standard deviation
    what: str  # message type it protected
    count: int = 1  # how many releases of that sensitivity there are, with noise of their own each
    l2: float = 0.0  # L2 sensitivity, where noise is Gaussian
    # probability with which a row takes part in a release at all, drawn anew for each; an
    # accountant that does not know of such draws charges for all
    rate: float = 1.0
    # role on whom it depends, as in `PureDP`: ``clients`` where each adds a share of the noise
    trusted: str = ""
    # number of clients that add an equal share of the noise; 0: one party adds all of it
    shares: int = 0
    # number of these shares that add up to noise of `scale`; the sum of all shares has more noise
    # if this is smaller (`fedtrees.core.channel.honest_shares`)
    calibrated: int = 0


@dataclass
class Transcript:
    """All deliveries and budget events of one run, in order."""

    roles: dict[str, str] = field(default_factory=dict)  # role of every party by name
    deliveries: list[Delivery] = field(default_factory=list)
    events: list[BudgetEvent] = field(default_factory=list)
    rounds: int = 0
    coordinator: str = ""  # name of the party that drives
    # places, in the composition, of the defenses that changed something in this run
    acted: set[int] = field(default_factory=set)
    # what cryptography took (`Aggregation.costs`): numbers alone
    costs: dict[str, float] = field(default_factory=dict)
    # what the sender of a sealed reply put into it, by the crossing's index, where that does not
    # follow from its rows: for its own view alone, and in no file
    inside: dict[int, Message] = field(default_factory=dict)

    def record(self, sender: str, receivers: tuple[str, ...], message: Message, why: str) -> None:
        """Append one crossing; raises `ProtocolError` as `check_fields`."""
        check_fields(message)
        crossing = (len(self.deliveries), self.rounds, sender, receivers, message, why)
        self.deliveries.append(Delivery(*crossing))

    def __iter__(self) -> Iterator[Delivery]:
        return iter(self.deliveries)

    def direction(self, delivery: Delivery) -> str:
        """Return ``up`` for what answers to a coordinator, ``down`` for what it sends."""
        return "down" if delivery.sender == self.coordinator else "up"

    def traffic(self) -> Counter[tuple[str, str]]:
        """Return bytes by (direction, message type), every receiver counted.

        Publishing the model is no traffic of the training.
        """
        total: Counter[tuple[str, str]] = Counter()
        for d in self.deliveries:
            if d.receivers == (d.sender,) or d.receivers == (PUBLIC,):
                continue
            total[self.direction(d), type(d.message).__name__] += d.nbytes * len(d.receivers)
        return total

    def save(self, path: str | Path, *, compress: bool = True) -> None:
        """Write the transcript to an ``.npz`` file, atomically; a broadcast is stored once.

        Raises `DataError` if the file cannot be written.
        """
        blobs: dict[int, int] = {}
        arrays: dict[str, np.ndarray[Any, Any]] = {}
        index = []
        for d in self.deliveries:
            key = blobs.setdefault(id(d.message), len(blobs))
            if f"m{key}" not in arrays:
                arrays[f"m{key}"] = np.frombuffer(encode(d.message), np.uint8)
            index.append([d.round, d.sender, list(d.receivers), key, d.why])
        header = {
            "version": _VERSION,
            "roles": self.roles,
            "rounds": self.rounds,
            "coordinator": self.coordinator,
            "deliveries": index,
            "events": [vars(e) for e in self.events],
            "acted": sorted(self.acted),
            "costs": self.costs,
        }
        arrays["index"] = np.frombuffer(json.dumps(header).encode(), np.uint8)
        pack = np.savez_compressed if compress else np.savez
        write_whole(
            Path(path), lambda out: pack(out, allow_pickle=False, **arrays), error=DataError
        )

    @classmethod
    def load(cls, path: str | Path) -> Transcript:
        """Read a saved transcript.

        Raises `DataError` if the file is missing, truncated or not a transcript.
        """
        try:
            blob = Path(path).read_bytes()
            with np.load(io.BytesIO(blob), allow_pickle=False) as data:
                header = json.loads(data["index"].tobytes())
                if header["version"] != _VERSION:
                    raise DataError(
                        f"{path}: transcript version {header['version']}, not {_VERSION}"
                    )
                transcript = cls(dict(header["roles"]), rounds=header["rounds"])
                messages: dict[int, Message] = {}
                for rnd, sender, receivers, key, why in header["deliveries"]:
                    if key not in messages:
                        messages[key] = decode(data[f"m{key}"].tobytes())
                    transcript.rounds = rnd
                    transcript.record(sender, tuple(receivers), messages[key], why)
                transcript.rounds = header["rounds"]
                transcript.events = [BudgetEvent(**e) for e in header["events"]]
                transcript.coordinator = str(header["coordinator"])
                transcript.acted = {int(i) for i in header["acted"]}
                transcript.costs = {str(k): v for k, v in header["costs"].items()}
        except Exception as err:  # what numpy, zip and JSON raise on damage has no common base
            raise DataError(f"{path}: not a readable transcript ({err})") from err
        return transcript

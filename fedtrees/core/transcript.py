"""Transcript: all messages of a run in order, their receivers, sizes and privacy costs.

The network records each message as a `Delivery` and each noisy release as a `BudgetEvent`. Views
(`fedtrees.core.view`), traffic figures and the privacy accountant are computed from the transcript.
"""

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

from fedtrees.core.errors import DataError
from fedtrees.core.files import write_whole
from fedtrees.core.messages import Message, check_fields
from fedtrees.core.wire import decode, encode, encoded_size

_VERSION = 3
#: Role and name of the recipient of a released model.
PUBLIC = "public"


@dataclass(frozen=True, eq=False)
class Delivery:
    """One message that was sent, or one sum that its receiver opened."""

    index: int  # position in the transcript
    round: int  # number of requests that the coordinator had made before
    sender: str
    # Several for a broadcast. For a sum that the sender opened, the sender itself.
    receivers: tuple[str, ...]
    message: Message  # only keyholders can read its `Sealed` fields
    reason: str  # reason that the protocol gives for this disclosure

    @cached_property
    def nbytes(self) -> int:
        """Encoded size in bytes per receiver, 0 for a message that the sender computed itself."""
        return 0 if self.receivers == (self.sender,) else encoded_size(self.message)


@dataclass(frozen=True)
class BudgetEvent:
    """Noisy releases of one party, which an accountant composes with all further releases.

    A release is one noisy value that depends on a row, for example one noisy sum that contains the
    row. A message can contain several releases: a histogram has one per feature, because a row is
    in one bin of every feature.
    """

    party: str  # party whose rows the release is computed from
    # ``laplace``, ``exponential``, ``randomised-response`` or ``gaussian``. For integers,
    # ``geometric``, ``discrete-gaussian`` or ``truncated-laplace`` (continuous Laplace noise whose
    # fractional part is dropped, so that 0 is twice as likely, compared with 1, as under
    # ``geometric``). Geometric, two-sided geometric and discrete Laplace noise are names of one
    # distribution, P(k) proportional to exp(-|k| / scale): events call it ``geometric`` for counts,
    # and ``laplace`` for fixed-point numbers, because its privacy loss has the same bound
    # l1 / scale as that of continuous Laplace noise. If clients share ``geometric`` noise, the
    # accountant computes the loss of the sum of the unknown shares. A mechanism that the accountant
    # does not know has an infinite cost.
    mechanism: str
    l1: float  # L1 sensitivity of the release to one row, in the unit of `scale`
    scale: float  # scale of the noise, for Gaussian noise its standard deviation
    what: str  # message type that contains the noise
    count: int = 1  # number of releases of this sensitivity, each with independent noise
    l2: float = 0.0  # L2 sensitivity, for Gaussian noise
    # Probability that a row takes part in a release, drawn independently for each release. An
    # accountant that does not support sampling assumes that every row takes part.
    rate: float = 1.0
    # Role that must be trusted, as in `PureDP`. ``clients`` if each client adds a share of the
    # noise.
    trusted: str = ""
    # Number of clients that add an equal share of the noise, or the smallest such number if clients
    # may drop out. 0: one party adds all of it.
    shares: int = 0
    # Number of these shares that add up to noise of `scale`. If it is smaller than `shares`, the
    # sum of all shares has more noise (`fedtrees.core.channel.honest_shares`).
    calibrated: int = 0


@dataclass
class Transcript:
    """All deliveries and budget events of one run, in order."""

    roles: dict[str, str] = field(default_factory=dict)  # role of every party by name
    deliveries: list[Delivery] = field(default_factory=list)
    events: list[BudgetEvent] = field(default_factory=list)
    rounds: int = 0
    coordinator: str = ""  # name of the party that drives the training
    # Positions of the defenses that changed something in this run.
    acted: set[int] = field(default_factory=set)
    # Costs of cryptography (`SecureAggregation.costs`), numbers only.
    costs: dict[str, float] = field(default_factory=dict)
    # Plain content of sealed replies that does not follow from the rows of the sender, by index of
    # the delivery. It is part of the sender's view only, and it is not saved.
    plain_replies: dict[int, Message] = field(default_factory=dict)

    def record(
        self, sender: str, receivers: tuple[str, ...], message: Message, reason: str
    ) -> None:
        """Append one message.

        Parameters
        ----------
        sender : str
            Name of the sender.
        receivers : tuple of str
            Names of the receivers. For a sum that the sender opened, the sender itself.
        message : Message
            The message as it was sent, after the defenses.
        reason : str
            Reason for the disclosure.

        Raises
        ------
        ProtocolError
            If the message has undeclared attributes (`check_fields`).
        """
        check_fields(message)
        index = len(self.deliveries)
        self.deliveries.append(Delivery(index, self.rounds, sender, receivers, message, reason))

    def __iter__(self) -> Iterator[Delivery]:
        return iter(self.deliveries)

    def direction(self, delivery: Delivery) -> str:
        """Return ``down`` for messages of the coordinator and ``up`` for all remaining messages."""
        return "down" if delivery.sender == self.coordinator else "up"

    def traffic(self) -> Counter[tuple[str, str]]:
        """Return bytes by (direction, message type), summed over all receivers.

        The released model is not counted as traffic of the training.
        """
        total: Counter[tuple[str, str]] = Counter()
        for d in self.deliveries:
            # Neither an opened sum nor the released model is sent during the training.
            if d.receivers == (d.sender,) or d.receivers == (PUBLIC,):
                continue
            total[self.direction(d), type(d.message).__name__] += d.nbytes * len(d.receivers)
        return total

    def save(self, path: str | Path, *, compress: bool = True) -> None:
        """Write the transcript to an ``.npz`` file atomically. A broadcast is stored once.

        Raises
        ------
        DataError
            If the file cannot be written.
        """
        blobs: dict[int, int] = {}
        arrays: dict[str, np.ndarray[Any, Any]] = {}
        index = []
        for d in self.deliveries:
            # Deliveries of one broadcast share the message object.
            key = blobs.setdefault(id(d.message), len(blobs))
            if f"m{key}" not in arrays:
                arrays[f"m{key}"] = np.frombuffer(encode(d.message), np.uint8)
            index.append([d.round, d.sender, list(d.receivers), key, d.reason])
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

        Raises
        ------
        DataError
            If the file is missing, truncated or not a transcript.
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
                for rnd, sender, receivers, key, reason in header["deliveries"]:
                    if key not in messages:
                        messages[key] = decode(data[f"m{key}"].tobytes())
                    # `record` takes the round from the transcript.
                    transcript.rounds = rnd
                    transcript.record(sender, tuple(receivers), messages[key], reason)
                transcript.rounds = header["rounds"]
                transcript.events = [BudgetEvent(**e) for e in header["events"]]
                transcript.coordinator = str(header["coordinator"])
                transcript.acted = {int(i) for i in header["acted"]}
                transcript.costs = {str(k): v for k, v in header["costs"].items()}
        except Exception as err:  # numpy, zip and JSON have no common base class for damaged files
            raise DataError(f"{path}: not a readable transcript ({err})") from err
        return transcript

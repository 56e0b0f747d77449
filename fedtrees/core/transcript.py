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
    """One message that was sent, or one sum that its receiver opened.

    Attributes
    ----------
    index : int
        Position in the transcript.
    round : int
        Number of requests that the coordinator had made before.
    sender : str
        Name of the party that sent the message.
    receivers : tuple of str
        Several for a broadcast. For a sum that the sender opened, the sender itself.
    message : Message
        Its `Sealed` fields can be read by their keyholders only.
    reason : str
        Reason that the protocol gives for this disclosure.
    """

    index: int
    round: int
    sender: str
    receivers: tuple[str, ...]
    message: Message
    reason: str

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

    Attributes
    ----------
    party : str
        Party whose rows the release is computed from.
    mechanism : str
        ``laplace``, ``exponential``, ``randomised-response`` or ``gaussian``. For integers,
        ``geometric``, ``discrete-gaussian`` or ``truncated-laplace`` (see Notes). A mechanism that
        the accountant does not know has an infinite cost.
    l1 : float
        L1 sensitivity of the release to one row, in the unit of `scale`.
    scale : float
        Scale of the noise. For Gaussian noise, its standard deviation.
    what : str
        Name of the message type that contains the noise.
    count : int
        Number of releases of this sensitivity, each with independent noise.
    l2 : float
        L2 sensitivity, for Gaussian noise.
    rate : float
        Probability that a row takes part in a release, drawn independently for each release. An
        accountant that does not support sampling assumes that every row takes part.
    trusted : str
        Role that must be trusted, as in `fedtrees.core.guarantee.PureDP`. ``clients`` if each
        client adds a share of the noise.
    shares : int
        Number of clients that add an equal share of the noise, or the smallest such number if
        clients may drop out. 0: one party adds all of it.
    calibrated : int
        Number of these shares that add up to noise of `scale`. If it is smaller than `shares`, the
        sum of all shares has more noise (`fedtrees.core.channel.honest_shares`).

    Notes
    -----
    Geometric, two-sided geometric and discrete Laplace noise are names of one distribution, P(k)
    proportional to exp(-|k| / scale). Events call it ``geometric`` for counts, and ``laplace`` for
    fixed-point numbers, because its privacy loss has the same bound l1 / scale as that of
    continuous Laplace noise. If clients share ``geometric`` noise, the accountant computes the loss
    of the sum of the unknown shares.

    ``truncated-laplace`` is continuous Laplace noise whose fractional part is dropped. Compared
    with 1, 0 is then twice as likely as under ``geometric``.
    """

    party: str
    mechanism: str
    l1: float
    scale: float
    what: str
    count: int = 1
    l2: float = 0.0
    rate: float = 1.0
    trusted: str = ""
    shares: int = 0
    calibrated: int = 0


@dataclass
class Transcript:
    """All deliveries and budget events of one run, in order.

    Attributes
    ----------
    roles : dict of str to str
        Role of every party by name.
    deliveries : list of Delivery
        Messages that were sent, and sums that their receiver opened.
    events : list of BudgetEvent
        Noisy releases of all parties.
    rounds : int
        Number of requests that the coordinator has made.
    coordinator : str
        Name of the party that drives the training.
    acted : set of int
        Positions of the defenses that changed something in this run.
    costs : dict of str to float
        Costs of cryptography (`fedtrees.core.secure_sum.SecureAggregation.costs`).
    plain_replies : dict of int to Message
        Plain content of sealed replies that does not follow from the rows of the sender, by index
        of the delivery. It is part of the sender's view only, and it is not saved.
    """

    roles: dict[str, str] = field(default_factory=dict)
    deliveries: list[Delivery] = field(default_factory=list)
    events: list[BudgetEvent] = field(default_factory=list)
    rounds: int = 0
    coordinator: str = ""
    acted: set[int] = field(default_factory=set)
    costs: dict[str, float] = field(default_factory=dict)
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
        """Return the direction of a message.

        Parameters
        ----------
        delivery : Delivery
            A message of this transcript.

        Returns
        -------
        {"down", "up"}
            ``down`` for a message of the coordinator, and ``up`` for any other one.
        """
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

        Parameters
        ----------
        path : str or Path
            The file.
        compress : bool
            Whether the messages are compressed.

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

        Parameters
        ----------
        path : str or Path
            The file.

        Returns
        -------
        Transcript
            All deliveries and events. `plain_replies` is empty.

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

"""Run a protocol while one message is changed or repeated, and record all draws of noise.

The privacy loss of a party's rows follows from the answers that it sends: the distribution of the
noise in each of them, how many there are, and whether they are drawn independently. `Recorded`
therefore notes for every party

- each draw of noise: the sampler, and its parameters (scale, number of shares, bounds);
- each stream of secret randomness that was opened, by its name and number;
- each answer: the type of message, and how many numbers it contains.

A run with a dishonest sender has the same loss as the honest run if, for every honest party,

1. no draw has other parameters than some draw of the honest run (`noise_channels`);
2. no stream is opened twice, unless both answers are identical (`repeated`);
3. it sends at most as many different answers of each type as the agreement allows, and of no type
   that is absent from an honest run (`answers`); and no summary of columns is larger than the
   honest one;
4. it does not fail because of its rows (`DataError`, `failures`), which would tell the sender
   something about them. A refusal (`BeyondParametersError`) follows from the message and the
   agreement only.
"""

from __future__ import annotations

import inspect
from collections import defaultdict
from contextlib import contextmanager
from dataclasses import dataclass, field, fields, replace
from unittest import mock

import numpy as np
from numpy.random import default_rng

from fedtrees.core.errors import DataError, FedtreesError
from fedtrees.core.host import Host
from fedtrees.core.messages import Sealed, without_payload
from fedtrees.core.party import acting_party
from fedtrees.core.streams import Streams
from fedtrees.core.wire import encode

# Samplers and the positions of the parameters that determine their distribution. A sampler is named
# by the module that calls it.
from fedtrees.privacy import noise

#: Samplers, as the modules that draw name them, with the parameters that decide their law.
SAMPLERS = {
    "fedtrees.protocols.horizontal.dp_gbdt.discrete_gaussian_share": (0, 3),
    "fedtrees.protocols.forests.dp_forest.discrete_laplace_share": (0, 3),
    "fedtrees.defenses.cut_points.discrete_laplace_share": (0, 3),
    "fedtrees.defenses.cut_points.discrete_laplace": (0,),
    "fedtrees.defenses.cut_points.private_quantiles": (1, 2, 3, 4),
    "fedtrees.defenses.dp_sgd.multiplier": (0, 1, 2, 3),
}


@dataclass
class Recorded:
    """Draws and answers of the honest parties; `handled` are the messages that they received."""

    laws: set = field(default_factory=set)
    streams: list = field(default_factory=list)
    answers: dict = field(default_factory=lambda: defaultdict(set))  # different ones
    sizes: dict = field(default_factory=lambda: defaultdict(int))
    handled: list = field(default_factory=list)
    replies: dict = field(default_factory=dict)
    crashes: list = field(default_factory=list)
    failures: list = field(default_factory=list)

    @property
    def repeated(self):
        """Streams that were opened more than once by one party for answers that differ."""
        by_stream = defaultdict(list)
        for stream, answer in self.streams:
            by_stream[stream].append(self.replies.get(answer))
        return [s for s, replies in by_stream.items() if len(replies) > 1 and len({*replies}) > 1]


class Tampering:
    """Change or repeat one message on its way to honest parties.

    Parameters
    ----------
    position : int or None
        Number of the message to tamper with among all that honest parties receive.
    replace_message : callable
        Takes the message, and returns the messages that arrive in its place.
    """

    def __init__(self, position=None, replace_message=None):
        self.at, self.how = position, replace_message
        self.recording, self.now = Recorded(), None
        self.kind = ""  # of the message that is being answered
        self._replacements: dict[int, list] = {}

    def arriving(self, message):
        """Return the messages that arrive in place of `message`, equal for all of its receivers."""
        if id(message) not in self._replacements:
            number = len(self.recording.handled)
            self.recording.handled.append(message)  # also keeps its id from being used again
            arrives = [message] if number != self.at else self.how(message)
            self._replacements[id(message)] = arrives
        return self._replacements[id(message)]

    def delivered(self, original, host, message, reason):
        """Deliver a message, or its replacements, to a party, and return the party's last reply."""
        reply = None
        for arrived in self.arriving(message):
            previous, self.now = (self.now, self.kind), len(self.recording.replies)
            self.kind = type(arrived).__name__
            self.recording.replies[self.now] = b""
            answer = self.now
            try:
                reply = original(host, arrived, reason)
            except FedtreesError as err:
                if isinstance(err, DataError):
                    self.recording.failures.append((type(arrived).__name__, err))
                raise
            except Exception as err:
                self.recording.crashes.append((type(arrived).__name__, err))
                raise
            finally:
                self.now, self.kind = previous
            if reply.message is not None:
                answer_message = reply.message if not reply.awaits_sum else host._stored_reply
                self.recording.replies[answer] = encode(without_payload(answer_message))
                kind = type(answer_message).__name__
                self.recording.answers[host.name, kind].add(self.recording.replies[answer])
                size = sum(np.size(getattr(answer_message, f.name)) for f in fields(answer_message)
                           if not isinstance(getattr(answer_message, f.name), Sealed))  # fmt: skip
                self.recording.sizes[kind] = max(self.recording.sizes[kind], size)
        return reply

    @contextmanager
    def watching(self):
        """Record a run."""
        rng, request, send = Streams.rng, Host.handle_request, Host.handle_message
        patches = [
            mock.patch.object(
                Host, "handle_request", lambda h, m, why="": self.delivered(request, h, m, why)
            ),
            mock.patch.object(
                Host, "handle_message", lambda h, m, why="": self.delivered(send, h, m, why)
            ),
            mock.patch.object(Streams, "rng", lambda s, *name: self.opened(rng, s, *name)),
        ]
        for channel in (noise.Laplace, noise.Gaussian, noise.Response):
            patches.append(mock.patch.object(channel, "send", self.sent(channel)))
        for name, recorded_parameters in SAMPLERS.items():
            module, _, function = name.rpartition(".")
            original = getattr(__import__(module, fromlist=["x"]), function)
            patches.append(mock.patch(name, self.drawn(function, original, recorded_parameters)))
        for patch in patches:
            patch.start()
        try:
            yield self.recording
        finally:
            for patch in patches:
                patch.stop()

    def opened(self, rng, streams, *name):
        """Note which secret stream an honest party opens while it answers."""
        party = acting_party()
        if self.now is not None and party is not None and streams._key == streams._noise:
            self.recording.streams.append(((streams._key, *name), self.now))
        return rng(streams, *name)

    def drawn(self, name, original, recorded_parameters):
        """Return a sampler that records its parameters."""

        def draw(*args, **keywords):
            if self.now is not None:
                values = [*inspect.signature(original).bind(*args, **keywords).arguments.values()]
                self.recording.laws.add((name, *(_plain(values[k]) for k in recorded_parameters)))
            return original(*args, **keywords)

        return draw

    def sent(self, channel_type):
        """Return a version of the `send` method of a noise channel that records its parameters."""
        original = channel_type.send

        def send(channel, *args, **keywords):
            if self.now is not None:
                scale, *others = (getattr(channel, f.name) for f in fields(channel))
                # In sums of gradients, noise has the units in which the party adds them up.
                units = np.ldexp(1.0, getattr(acting_party(), "bits", 0))
                if self.kind != "ValidationRequest":  # losses use other units
                    scale = scale / units[: np.size(scale)] if np.ndim(units) else scale
                self.recording.laws.add((channel_type.__name__, *map(_plain, (scale, *others))))
            return original(channel, *args, **keywords)

        return send


def _plain(value):
    return tuple(np.ravel(value).tolist())


def other_value(value, rng):
    """Return a random other value of a field, of the same type; None if there is none."""
    if isinstance(value, Sealed) or value is None:
        return None
    if isinstance(value, bool):
        return not value
    if isinstance(value, (int, np.integer)):
        choices = [value + 1, value - 1, 0, -1, 2 * value + 1, 10**9, int(rng.integers(1 << 30))]
        return int(choices[rng.integers(len(choices))])
    if isinstance(value, (float, np.floating)):
        return float(rng.choice([value + 1, -value, 0.0, 1e30, np.inf, np.nan]))
    if isinstance(value, str):
        names = [n for n in value.split(",") if n]
        choices = ["", "sketch", "equal-width", "client-0", "client-0,client-0", "nobody",
                   ",".join(names[1:]), ",".join([*names, *names])]  # fmt: skip
        return str(rng.choice(choices))
    return _other_array(value, rng)


def _other_array(array, rng):
    if not array.size:
        return np.zeros(3, array.dtype) if array.ndim == 1 else None
    changed = array.copy()
    index = tuple(rng.integers(n) for n in array.shape)
    change = rng.integers(7)
    if change == 0:
        return rng.permutation(changed)
    if change == 1:
        return changed[:-1]
    if change == 2:
        return np.concatenate([changed, changed])
    if change == 3:
        return changed[::-1].copy()
    if change == 4:
        return np.repeat(changed[:1], len(changed), axis=0)
    if array.dtype.kind == "b":
        changed[index] = not changed[index]
    elif array.dtype.kind == "f":
        changed[index] = rng.choice(
            [0.0, 1e30, 3e38, np.inf, np.nan, -1.0, float(changed[index]) * 2 + 1]
        )
    else:
        largest = np.iinfo(array.dtype).max
        changed[index] = rng.choice([0, largest, int(changed[index]) // 2, rng.integers(largest)])
    return changed


def tampered(message, rng):
    """Return the messages that replace one message, and a description of the change; or None.

    Either a field has another value, or the message arrives twice. The second copy is unchanged,
    or one of its fields is permuted or has another value.
    """
    kind = type(message).__name__
    values, any_rng = {f.name: getattr(message, f.name) for f in fields(message)}, default_rng(0)
    open_fields = [n for n, value in values.items() if other_value(value, any_rng) is not None]
    twice = rng.random() < 0.35
    if twice and (not open_fields or rng.random() < 0.4):
        return [message, replace(message)], f"{kind} twice"
    if not open_fields:
        return None, ""
    name = str(rng.choice(open_fields))
    value = other_value(getattr(message, name), rng)
    if value is None or np.array_equal(value, getattr(message, name)):
        return None, ""
    changed = replace(message, **{name: value})
    messages = [message, changed] if twice else [changed]
    return messages, f"{kind}.{name}{' twice' if twice else ''}"

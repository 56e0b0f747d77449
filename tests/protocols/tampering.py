"""Run a protocol while one message is changed or repeated, and record all draws of noise.

What "the privacy loss is unchanged" means here. The loss of a party's rows follows from the answers
that it gives: the law of the noise in each of them, how many there are, and whether they are drawn
independently. `Recorded` therefore notes for every party

- each draw of noise: the sampler, and its parameters (scale, number of shares, bounds);
- each stream of secret randomness that was opened, by its name and number;
- each answer: the type of message, and how many numbers it holds.

A run with a dishonest sender has the same loss as the honest run if, for every honest party,

1. no draw has other parameters than some draw of the honest run (`noise_channels`);
2. no stream is opened twice, unless both answers are identical (`repeated`);
3. it gives at most as many different answers of each type as the agreement allows, and of no type
   that an honest run lacks (`answers`); and no summary of columns is larger than the honest one;
4. it does not fail because of its rows (`DataError`, `failures`): the sender learns of an error.
   A refusal (`BeyondParametersError`) follows from the message and the agreement alone.
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
    """What honest parties drew and answered; `handled` are the messages that they received."""

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
        return [s for s, found in by_stream.items() if len(found) > 1 and len({*found}) > 1]


class Tampering:
    """Change or repeat one message on its way to honest parties.

    Parameters
    ----------
    at : int or None
        The message to tamper with, by its number among all that honest parties receive.
    how : callable
        Returns the messages that arrive in its place, given it.
    """

    def __init__(self, at=None, how=None):
        self.at, self.how = at, how
        self.found, self.now = Recorded(), None
        self.kind = ""  # of the message that is being answered
        self._known: dict[int, list] = {}

    def arriving(self, message):
        """Return what arrives in place of a message, the same for all of its receivers."""
        if id(message) not in self._known:
            number = len(self.found.handled)
            self.found.handled.append(message)  # also keeps its id from being used again
            arrives = [message] if number != self.at else self.how(message)
            self._known[id(message)] = arrives
        return self._known[id(message)]

    def delivered(self, original, host, message, why):
        """Let a party hear a message, or what arrives in its place; return its last reply."""
        reply = None
        for arrived in self.arriving(message):
            before, self.now = (self.now, self.kind), len(self.found.replies)
            self.kind = type(arrived).__name__
            self.found.replies[self.now] = b""
            answer = self.now
            try:
                reply = original(host, arrived, why)
            except FedtreesError as err:
                if isinstance(err, DataError):
                    self.found.failures.append((type(arrived).__name__, err))
                raise
            except Exception as err:
                self.found.crashes.append((type(arrived).__name__, err))
                raise
            finally:
                self.now, self.kind = before
            if reply.message is not None:
                told = reply.message if not reply.awaits_sum else host._stored_reply
                self.found.replies[answer] = encode(without_payload(told))
                kind = type(told).__name__
                self.found.answers[host.name, kind].add(self.found.replies[answer])
                size = sum(np.size(getattr(told, f.name)) for f in fields(told)
                           if not isinstance(getattr(told, f.name), Sealed))  # fmt: skip
                self.found.sizes[kind] = max(self.found.sizes[kind], size)
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
        for law in (noise.Laplace, noise.Gaussian, noise.Response):
            patches.append(mock.patch.object(law, "send", self.sent(law)))
        for name, kept in SAMPLERS.items():
            module, _, function = name.rpartition(".")
            original = getattr(__import__(module, fromlist=["x"]), function)
            patches.append(mock.patch(name, self.drawn(function, original, kept)))
        for patch in patches:
            patch.start()
        try:
            yield self.found
        finally:
            for patch in patches:
                patch.stop()

    def opened(self, rng, streams, *name):
        """Note which secret stream an honest party opens while it answers."""
        party = acting_party()
        if self.now is not None and party is not None and streams._key == streams._noise:
            self.found.streams.append(((streams._key, *name), self.now))
        return rng(streams, *name)

    def drawn(self, name, original, kept):
        """Return a sampler that notes its parameters."""

        def draw(*args, **named):
            if self.now is not None:
                bound = [*inspect.signature(original).bind(*args, **named).arguments.values()]
                self.found.laws.add((name, *(_plain(bound[k]) for k in kept)))
            return original(*args, **named)

        return draw

    def sent(self, law):
        """Return the sending of a channel that notes its parameters."""
        original = law.send

        def send(channel, *args, **named):
            if self.now is not None:
                scale, *others = (getattr(channel, f.name) for f in fields(channel))
                # Beside sums of gradients, noise has the units that the party sums them in.
                units = np.ldexp(1.0, getattr(acting_party(), "bits", 0))
                if self.kind != "ValidationRequest":  # losses have units of their own
                    scale = scale / units[: np.size(scale)] if np.ndim(units) else scale
                self.found.laws.add((law.__name__, *map(_plain, (scale, *others))))
            return original(channel, *args, **named)

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
    at = tuple(rng.integers(n) for n in array.shape)
    kind = rng.integers(7)
    if kind == 0:
        return rng.permutation(changed)
    if kind == 1:
        return changed[:-1]
    if kind == 2:
        return np.concatenate([changed, changed])
    if kind == 3:
        return changed[::-1].copy()
    if kind == 4:
        return np.repeat(changed[:1], len(changed), axis=0)
    if array.dtype.kind == "b":
        changed[at] = not changed[at]
    elif array.dtype.kind == "f":
        changed[at] = rng.choice(
            [0.0, 1e30, 3e38, np.inf, np.nan, -1.0, float(changed[at]) * 2 + 1]
        )
    else:
        most = np.iinfo(array.dtype).max
        changed[at] = rng.choice([0, most, int(changed[at]) // 2, rng.integers(most)])
    return changed


def tampered(message, rng):
    """Return what arrives in place of a message, and in words what was done to it; or None.

    A field has another value; or the message comes twice, the second time as it was, with a field
    permuted, or with another value.
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
    found = [message, changed] if twice else [changed]
    return found, f"{kind}.{name}{' twice' if twice else ''}"

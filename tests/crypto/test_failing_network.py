"""A network that loses, delays, doubles, swaps, cuts and changes: an exact sum or a named error."""

import random
from dataclasses import fields, is_dataclass, replace
from functools import partial

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st
from test_masks import Federation, arrays_of

from fedtrees.crypto.errors import (
    CryptoError,
)
from fedtrees.crypto.mask_messages import usual_threshold

HARMS = ("lost", "late", "twice", "changed", "cut", "foreign", "renamed", "replayed")


def changed(thing, coins):
    """Return a message with one byte, name or number in it that is another."""
    if isinstance(thing, bytes):
        at = coins.randrange(max(len(thing), 1))
        return thing[:at] + bytes([thing[at] ^ (1 << coins.randrange(8))]) + thing[at + 1 :]
    if isinstance(thing, dict):
        if not thing or coins.random() < 0.3:
            return dict(list(thing.items())[1:])  # an entry is gone
        key = coins.choice([*thing])
        return {**thing, key: changed(thing[key], coins)}
    if isinstance(thing, (tuple, list)):
        if not thing or coins.random() < 0.3:
            return type(thing)([*thing][1:])
        at = coins.randrange(len(thing))
        return type(thing)([*thing[:at], changed(thing[at], coins), *thing[at + 1 :]])
    if is_dataclass(thing):
        name = coins.choice([f.name for f in fields(thing) if f.name != "sum"])
        return replace(thing, **{name: changed(getattr(thing, name), coins)})
    return coins.choice("abcdz") if isinstance(thing, str) else thing + coins.choice([-1, 1])


def cut(thing, coins):
    """Return a message whose bytes, or some of them, are too short or too long."""
    if isinstance(thing, bytes):
        return coins.choice([b"", thing[:-1], thing[:-8], thing + b"\0", thing + bytes(8)])
    if isinstance(thing, dict) and thing:
        key = coins.choice([*thing])
        return {**thing, key: cut(thing[key], coins)}
    if isinstance(thing, (tuple, list)) and thing:
        at = coins.randrange(len(thing))
        return type(thing)([*thing[:at], cut(thing[at], coins), *thing[at + 1 :]])
    if is_dataclass(thing):
        inside = [f.name for f in fields(thing) if not isinstance(getattr(thing, f.name), int)]
        name = coins.choice([n for n in inside if n not in ("party", "shape")])
        return replace(thing, **{name: cut(getattr(thing, name), coins)})
    return thing


class Network:
    """Carries each message to whoever takes it, or harms it; what is refused is as if lost."""

    def __init__(self, coins, harm):
        self.coins, self.harm = coins, harm
        self.sent, self.refused, self.waiting = [], [], []

    def deliver(self, take, message, foreign):
        """Let a message arrive as the coins say.

        ``foreign`` is that message of another run.
        """
        kind = self.coins.choice(HARMS) if self.coins.random() < self.harm else ""
        arriving = [message]
        if kind in ("lost", "late"):
            arriving = []
            self.waiting += [(take, message)] * (kind == "late")
        elif kind == "twice":
            arriving = [message, message]
        elif kind == "changed":
            arriving = [changed(message, self.coins)]
        elif kind == "cut":
            arriving = [cut(message, self.coins)]
        elif kind == "foreign":
            arriving = [foreign]
        elif kind == "renamed" and hasattr(message, "party"):
            arriving = [replace(message, party=self.coins.choice("abcdz"))]
        elif kind == "replayed":  # of another party, round or sum, if of that kind
            like = [m for m in self.sent if type(m) is type(message)]
            arriving = [self.coins.choice(like or [message])]
            if hasattr(message, "sum"):
                arriving = [replace(arriving[0], sum=message.sum)]
        self.sent.append(message)
        for one in arriving:
            self.attempt(take, one)

    def attempt(self, do, *given):
        """Do it, or note the named error by which it was refused; anything else is a bug."""
        try:
            return do(*given)
        except CryptoError as err:
            assert type(err) is not CryptoError
            self.refused.append(err)
            return None

    def later(self):
        """Let what was late arrive now."""
        waiting, self.waiting = self.waiting, []
        for take, message in waiting:
            self.attempt(take, message)


class Run:
    """A federation over such a network, and its twin, whose messages are the foreign ones."""

    def __init__(self, count, threshold, sums, seed, harm):
        self.net = Network(random.Random(seed), harm)
        self.one = Federation(count, threshold, sums, exposing=True)
        self.other = Federation(count, threshold, sums, exposing=True, seed=1).collect()
        self.names = self.one.plan.parties
        self.arrays = [arrays_of(self.names, seed=i) for i in range(sums)]
        self.foreign = [
            {name: party.mask(i, arrays[name]) for name, party in self.other.parties.items()}
            for i, arrays in enumerate(self.arrays)
        ]

    def shuffled(self, names):
        names = list(names)
        self.net.coins.shuffle(names)
        return names

    def each(self, names, make, take, foreign):
        """Let parties make a message each, in some order; it is carried to whoever takes it."""
        for name in self.shuffled(names):
            message = self.net.attempt(make, name)
            if message is not None:
                self.net.deliver(partial(take, name), message, foreign(name))

    def prepare(self):
        """Rounds 0 and 1; tell whether they ended."""
        server, parties, twin = self.one.server, self.one.parties, self.other
        rosters, deals = {}, {}

        def keep(kept, name, thing):
            kept[name] = thing

        self.each(self.names, lambda n: parties[n].advertise(),
                  lambda _, m: server.take_keys(m), lambda n: twin.server._keys[n])  # fmt: skip
        roster = self.net.attempt(server.roster)
        self.net.later()
        if roster is None:
            return False
        self.each(self.names, lambda _: roster, partial(keep, rosters),
                  lambda _: twin.server.roster())  # fmt: skip
        self.each(rosters, lambda n: parties[n].deal(rosters[n]),
                  lambda _, m: server.take_deal(m), lambda n: twin.server._deals[n])  # fmt: skip
        boxes = self.net.attempt(server.boxes)
        self.net.later()
        if boxes is None:
            return False
        foreign = twin.server.boxes()
        self.each(boxes, lambda n: boxes[n], partial(keep, deals), lambda n: foreign[n])
        for name in deals:
            self.net.attempt(parties[name].collect, deals[name])
        return True

    def sum(self, index):
        """Rounds 2 and 3 of a sum; return it and over whom, None if an error was named."""
        server, parties, twin = self.one.server, self.one.parties, self.other
        arrays, told = self.arrays[index], {}
        self.each(self.names, lambda n: parties[n].mask(index, arrays[n]),
                  lambda _, m: server.take_array(m),
                  lambda n: self.foreign[index][n])  # fmt: skip
        survivors = self.net.attempt(server.survivors, index)
        self.net.later()
        if survivors is None:
            return None
        self.each(survivors, lambda _: survivors, told.__setitem__, lambda _: self.names[:1])
        self.each(told, lambda n: parties[n].unmask(index, tuple(told[n])),
                  lambda _, m: server.take_shares(m),
                  lambda n: twin.parties[n].unmask(index, self.names))  # fmt: skip
        found = self.net.attempt(server.opened, index)
        self.net.later()
        return None if found is None else (found, survivors)


def outcomes(count, threshold, seed, harm):
    """Play two sums; check each, and return how they ended."""
    run = Run(count, threshold, 2, seed, harm)
    ready = run.prepare()
    for index, arrays in enumerate(run.arrays):
        ended = run.sum(index) if ready else None
        if ended is None:
            assert run.net.refused  # somebody said what was wrong
            yield "error"
            continue
        found, survivors = ended
        assert len(survivors) >= threshold
        assert np.array_equal(found, sum(arrays[name] for name in survivors))
        yield "exact" if len(survivors) == count else "fewer"


@settings(max_examples=200)
@given(
    count=st.integers(2, 4),
    low=st.booleans(),
    seed=st.integers(0, 2**32),
    harm=st.sampled_from([0.03, 0.1, 0.3]),
)
def test_every_schedule_ends_in_an_exact_sum_or_a_named_error(count, low, seed, harm):
    threshold = count // 2 + 1 if low else usual_threshold(count)
    assert len([*outcomes(count, threshold, seed, harm)]) == 2


def test_schedules_end_in_every_way():
    found = [end for seed in range(40) for end in outcomes(4, 3, seed, 0.05)]
    assert min(map(found.count, ("exact", "fewer", "error"))) >= 5

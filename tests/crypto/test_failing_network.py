"""A network that loses, delays, doubles, swaps, cuts and changes: an exact sum or a named error."""

import itertools
import random

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from seeded_keys import EncryptedSums
from test_masks import STAYS, Federation, arrays_of, locks_of, names_of

from fedtrees.crypto import ciphertexts
from fedtrees.crypto.costs import MARK_BYTES
from fedtrees.crypto.mask_keys import usual_threshold
from fedtrees.crypto.packing import Slots
from fedtrees.crypto.primitives import (
    KEY_BYTES,
    CryptoError,
    ExposureError,
    MalformedError,
    MissingPartyError,
    TooFewPartiesError,
    WrongKeyError,
)
from fedtrees.crypto.survivors import SurvivorSets

HARMS = ("lost", "late", "twice", "changed", "cut", "foreign", "renamed", "replayed")


def changed(thing, randomness):
    """Return a message with one byte or name in it that is another, or one that is gone."""
    if isinstance(thing, bytes):
        at = randomness.randrange(max(len(thing), 1))
        return thing[:at] + bytes([thing[at] ^ (1 << randomness.randrange(8))]) + thing[at + 1 :]
    if not thing or randomness.random() < 0.3:
        return thing[1:]
    at = randomness.randrange(len(thing))
    return (*thing[:at], randomness.choice("abcdz"), *thing[at + 1 :])


def cut(thing, randomness):
    """Return a message whose bytes are too short or too long."""
    if not isinstance(thing, bytes):
        return thing
    return randomness.choice([b"", thing[:-1], thing[:-8], thing + b"\0", thing + bytes(8)])


class Network:
    """Carries each message to whoever takes it, or harms it; what is refused is as if lost."""

    def __init__(self, randomness, harm):
        self.randomness, self.harm = randomness, harm
        self.sent, self.refused, self.waiting = [], [], []

    def deliver(self, take, name, message, foreign):
        """Let a message of a party arrive as the randomness say.

        ``foreign`` is that message of another run.
        """
        kind = self.randomness.choice(HARMS) if self.randomness.random() < self.harm else ""
        arriving = [message]
        if kind in ("lost", "late"):
            arriving = []
            self.waiting += [(take, name, message)] * (kind == "late")
        elif kind == "twice":
            arriving = [message, message]
        elif kind == "changed":
            arriving = [changed(message, self.randomness)]
        elif kind == "cut":
            arriving = [cut(message, self.randomness)]
        elif kind == "foreign":
            arriving = [foreign]
        elif kind == "renamed" and take.__name__ != "__setitem__":  # a message to the server
            name = self.randomness.choice("abcdz")
        elif kind == "replayed":  # of another party, round or sum, if of that kind
            like = [m for m in self.sent if type(m) is type(message)]
            arriving = [self.randomness.choice(like or [message])]
        self.sent.append(message)
        for one in arriving:
            self.attempt(take, name, one)

    def attempt(self, do, *given):
        """Do it, or note the named error by which it was refused; anything else is a bug."""
        try:
            return do(*given)
        except CryptoError as err:
            self.refused.append(err)
            return None

    def later(self):
        """Let what was late arrive now."""
        waiting, self.waiting = self.waiting, []
        for late in waiting:
            self.attempt(*late)


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
        self.net.randomness.shuffle(names)
        return names

    def each(self, names, make, take, foreign):
        """Let parties make a message each, in some order; it is carried to whoever takes it."""
        for name in self.shuffled(names):
            message = self.net.attempt(make, name)
            if message is not None:
                self.net.deliver(take, name, message, foreign(name))

    def prepare(self):
        """Rounds 0 and 1; tell whether they ended."""
        server, parties, twin = (
            self.one.server,
            self.one.parties,
            Federation(
                len(self.names), self.one.plan.threshold, self.one.plan.sums, exposing=True, seed=1
            ),
        )
        rosters, boxed = {}, {}
        foreign_keys = {name: party.advertise() for name, party in twin.parties.items()}
        foreign_roster = twin.advertise()
        foreign_deals = {name: twin.dealt_by(name, foreign_roster) for name in self.names}
        for name, deal in foreign_deals.items():
            twin.server.take_deal(name, deal)
        foreign_boxes = twin.server.boxes()
        self.each(self.names, lambda n: parties[n].advertise(), server.take_keys, foreign_keys.get)
        roster = self.net.attempt(server.roster)
        self.net.later()
        if roster is None:
            return False
        there = [name for name in self.names if name in server._keys]
        self.each(self.names, lambda _: roster, rosters.__setitem__, lambda _: foreign_roster)
        self.each(rosters, lambda n: parties[n].deal(rosters[n], there), server.take_deal,
                  foreign_deals.get)  # fmt: skip
        boxes = self.net.attempt(server.boxes)
        self.net.later()
        if boxes is None:
            return False
        self.each(boxes, boxes.get, boxed.__setitem__, foreign_boxes.get)
        for name, text in boxed.items():
            senders = [sender for sender in boxes if sender != name]
            self.net.attempt(parties[name].collect, text, senders)
        return True

    def sum(self, index):
        """Rounds 2 and 3 of a sum; return it and over whom, None if an error was named."""
        server, parties, twin = self.one.server, self.one.parties, self.other
        arrays, told = self.arrays[index], {}
        self.each(self.names, lambda n: parties[n].mask(index, arrays[n]),
                  lambda n, m: server.take_array(n, index, m), self.foreign[index].get)  # fmt: skip
        survivors = self.net.attempt(server.survivors, index)
        self.net.later()
        if survivors is None:
            return None
        self.each(survivors, lambda _: survivors, told.__setitem__, lambda _: self.names[:1])
        self.each(told, lambda n: parties[n].unmask(index, tuple(told[n])),
                  lambda n, m: server.take_shares(n, index, m),
                  lambda n: twin.parties[n].unmask(index, self.names))  # fmt: skip
        found = self.net.attempt(server.open_sum, index)
        self.net.later()
        return None if found is None else (found.reshape(2, 3), survivors)


def outcomes(count, threshold, seed, harm):
    """Play two sums; check each, and return how they ended."""
    run = Run(count, threshold, 2, seed, harm)
    ready = run.prepare()
    for index, arrays in enumerate(run.arrays):
        ended = run.sum(index) if ready else None
        if ended is None:
            # somebody said what was wrong, by the name of its kind
            assert run.net.refused
            assert CryptoError not in {*map(type, run.net.refused)}
            yield "error"
            continue
        found, survivors = ended
        assert len(survivors) >= threshold
        assert np.array_equal(found, sum(arrays[name] for name in survivors))
        yield "exact" if len(survivors) == count else "fewer"


@pytest.mark.long
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


def test_a_key_that_was_changed_for_one_party_is_found_out_before_anything_is_masked():
    one, other = Federation(3, 2), Federation(3, 2, seed=1)
    roster = one.advertise()
    false = roster[: 2 * KEY_BYTES] + other.advertise()[2 * KEY_BYTES :]
    for name, keys in (("a", false), ("b", roster), ("c", roster)):
        one.server.take_deal(name, one.dealt_by(name, keys))
    boxes = one.server.boxes()
    with pytest.raises(WrongKeyError, match="the two parties received different keys"):
        one.take_boxes("a", boxes["a"])
    with pytest.raises(WrongKeyError, match="the box from 'a' to 'b'"):
        one.take_boxes("b", boxes["b"])


def test_own_keys_that_come_back_as_others_are_named():
    one, other = Federation(3, 2), Federation(3, 2, seed=1)
    roster = one.advertise()
    with pytest.raises(WrongKeyError, match="keys of 'a' were changed on the way"):
        one.dealt_by("a", other.parties["a"].advertise() + roster[KEY_BYTES:])


@pytest.mark.parametrize("stays", ["abcd", "abc"])
def test_who_missed_a_box_and_masked_among_fewer_spoils_no_sum(stays):
    one = Federation(4, 3, leaves=dict.fromkeys({*"abcd"} - {*stays}, 2))
    for name, boxes in one.deal().items():
        if name == "a":
            one.parties[name].collect(boxes[: 2 * one.plan.box_bytes], "bc")
        else:
            one.take_boxes(name, boxes)
    survivors, given = one.mask(), {}
    for name in survivors:
        try:
            shares = one.parties[name].unmask(0, survivors)
            one.server.take_shares(name, 0, shares)
            given[name] = True
        except MalformedError:
            assert name == "a"  # it knows of no shares of d
    assert "a" not in given
    if len(given) < 3:
        with pytest.raises(TooFewPartiesError, match=r"missing: a, d\."):
            one.server.open_sum(0)
    else:
        with pytest.raises(WrongKeyError, match="'a' in sum 0 does not match its tag"):
            one.server.open_sum(0)


@pytest.mark.parametrize("which", ["changed", "of another sum", "of another party"])
def test_a_wrong_lock_spoils_the_sum_that_its_owner_is_gone_from_and_no_other(which):
    one = Federation(3, 2, sums=2, exposing=True)
    roster = one.advertise()
    deals = {name: one.dealt_by(name, roster) for name in one.parties}
    begin, (first, second) = locks_of(one, deals["c"])
    wrong = {"changed": bytes([first[0] ^ 1]) + first[1:], "of another sum": second,
             "of another party": locks_of(one, deals["b"])[1][0]}  # fmt: skip
    deals["c"] = begin + wrong[which] + second
    for name, deal in deals.items():
        one.server.take_deal(name, deal)
    for name, boxes in one.server.boxes().items():
        one.take_boxes(name, boxes)
    one.leaves["c"] = 2
    with pytest.raises(WrongKeyError, match="do not determine the lock of 'c' in sum 0"):
        one.open(0)
    assert np.array_equal(one.open(1), one.arrays["a"] + one.arrays["b"])


@pytest.mark.parametrize("which", ["another run", "another sum"])
def test_an_array_of_elsewhere_stays_closed(which):
    one, other = Federation(3, 2, sums=2).collect(), Federation(3, 2, sums=2, seed=1).collect()
    wrong = one.masked_by("a", 1) if which == "another sum" else other.masked_by("a")
    one.server.take_array("a", 0, wrong)
    for name in "bc":
        one.server.take_array(name, 0, one.masked_by(name))
    survivors = one.server.survivors(0)
    one.masked_by("a")
    for name in survivors:
        one.server.take_shares(name, 0, one.parties[name].unmask(0, survivors))
    with pytest.raises(WrongKeyError, match="the array of 'a' in sum 0"):
        one.server.open_sum(0)


ADMITTED = [
    (["abc", "ab"], "c"),
    (["ab", "abc"], "c"),
    (["ab", "bc", "ac"], "abc"),
    (["abcd", "ab", "cd"], ""),
    (["abcde", "abc", "abc"], ""),
    (["abcde", "abc", "cde"], "c"),  # twice c is the second and third less the first
    (["abcd", "bcde"], ""),  # a - e is of two
    (["a"], "a"),
]


@pytest.mark.parametrize(("sets", "told"), ADMITTED)
def test_sums_that_together_tell_one_party_are_refused(sets, told):
    known = SurvivorSets()
    for names in sets[:-1]:
        known.admit(names)
    if told:
        with pytest.raises(ExposureError, match=rf"reveal the array of {', '.join(told)}.*=true"):
            known.admit(sets[-1])
        assert known.exposed == []  # what was refused is not opened
        allowed = SurvivorSets(exposing=True)
        for names in sets:
            allowed.admit(names)
        assert allowed.exposed == [*told]
    else:
        known.admit(sets[-1])


@settings(max_examples=60)
@given(st.lists(st.sets(st.sampled_from("abcdef"), min_size=2), min_size=1, max_size=6))
def test_who_is_told_is_whose_unit_vector_is_in_the_span(sets):
    known = SurvivorSets(exposing=True)
    for names in sets:
        known.admit(names)
    rows = np.array([[name in names for name in "abcdef"] for names in sets], dtype=float)
    rank = np.linalg.matrix_rank(rows)
    units = zip("abcdef", np.eye(6), strict=True)
    inside = [n for n, unit in units if np.linalg.matrix_rank(np.vstack([rows, unit])) == rank]
    assert known.exposed == inside


def test_clients_refuse_to_open_a_sum_that_differs_by_one_from_another():
    one = Federation(3, 2, sums=3, leaves={"c": 2}).collect()
    one.open(0)
    one.leaves["c"] = STAYS
    survivors = one.mask(1)
    one.parties["c"]._opened.note("ab")
    for name in survivors:  # c as well, who was not there
        with pytest.raises(ExposureError, match="over a, b, would reveal the array of c"):
            one.parties[name].unmask(1, survivors)
    with pytest.raises(TooFewPartiesError, match=r"0 parties helped .* missing: a, b, c\."):
        one.server.open_sum(1)
    one.leaves["c"] = 2
    assert np.array_equal(one.open(2), one.arrays["a"] + one.arrays["b"])


@pytest.fixture(scope="module")
def sums():
    with pytest.warns(UserWarning, match="weak"):
        return [EncryptedSums(names_of(3), 1024) for _ in range(2)]


def test_ciphertexts_lost_cut_foreign_or_out_of_range_are_named(sums):
    one, other = sums
    slots, arrays = Slots(1 << 20, 3), {name: np.arange(9) - ord(name) for name in "abc"}
    sent = {name: one.encrypted(name, array, slots) for name, array in arrays.items()}
    total = one.added(sent, 9, slots)
    assert one.opened(total, 9, slots).tolist() == sum(arrays.values()).tolist()
    for lost in ("a", "b", "c", "ab", "bc", "abc"):
        left = {name: text for name, text in sent.items() if name not in lost}
        with pytest.raises(MissingPartyError, match=f"arrays of {', '.join(lost)} are missing"):
            one.added(left, 9, slots)
    old = sent["b"]
    sent = {name: one.encrypted(name, array, slots) for name, array in arrays.items()}
    text, payload = sent["b"], sent["b"][MARK_BYTES:]
    read_as = ciphertexts.describe_layout("array", slots, (9,), 1, "2 of b")
    no_ciphertexts = (b"\xff" * len(payload), bytes(512))
    borne_out = [
        ciphertexts.compute_mark(wrong, one.adder._public, read_as) + wrong
        for wrong in no_ciphertexts
    ]
    for error, wrong in [
        (WrongKeyError, other.encrypted("b", arrays["b"], slots)),
        (WrongKeyError, sent["a"]),
        (WrongKeyError, old),
        (WrongKeyError, text[:-1] + bytes([text[-1] ^ 1])),
        *((MalformedError, wrong) for wrong in (b"", text[:-1], text + b"\0", *borne_out)),
    ]:
        with pytest.raises(error, match=r"\bb\b"):
            one.added({**sent, "b": wrong}, 9, slots)
    with pytest.raises(MalformedError, match="z sent arrays"):
        one.added({**sent, "z": sent["a"]}, 9, slots)
    total = one.added(sent, 9, slots)
    with pytest.raises(WrongKeyError, match="with another key"):
        other.opened(total, 9, slots)
    assert one.opened(total, 9, slots).tolist() == sum(arrays.values()).tolist()


@pytest.mark.long
@settings(max_examples=80)
@given(seed=st.integers(0, 2**32), harm=st.sampled_from([0.1, 0.4]))
def test_every_schedule_of_ciphertexts_ends_in_an_exact_sum_or_a_named_error(sums, seed, harm):
    one, other = sums
    for run in sums:
        run.begin()
    net, slots = Network(random.Random(seed), harm), Slots(1 << 20, 3)
    for index in range(3):
        arrays = {n: np.arange(9) * (index + 2) - ord(n) for n in "abc"}
        sent = [{n: run.encrypted(n, a, slots) for n, a in arrays.items()} for run in sums]
        arrived, totals = {}, {}
        for name in "abc":
            net.deliver(arrived.__setitem__, name, sent[0][name], sent[1][name])
        total = net.attempt(one.added, arrived, 9, slots)
        if total is not None:
            foreign = other.added(sent[1], 9, slots)
            net.deliver(totals.__setitem__, "", total, foreign)
        found = net.attempt(one.opened, next(iter(totals.values())), 9, slots) if totals else None
        if found is None:
            assert net.refused or not totals
            return  # the run stops
        assert found.tolist() == sum(arrays.values()).tolist()


@pytest.mark.parametrize(("count", "threshold"), [(3, 2), (4, 3)])
def test_no_way_of_telling_parties_different_survivors_gives_both_secrets_of_anybody(
    count, threshold
):
    """A server that tells everybody what it likes gets the threshold of one kind at most."""
    names = names_of(count)
    sets = [s for k in range(threshold, count + 1) for s in itertools.combinations(names, k)]
    ways = [*itertools.product(*([s for s in sets if name in s] for name in names))]
    one = Federation(count, threshold, len(ways), exposing=True).collect()
    most = 0
    for index, way in enumerate(ways):
        one.mask(index)
        for name, told in zip(names, way, strict=True):
            assert one.parties[name].unmask(index, told)
        for owner in names:
            kinds = [sum(owner in told for told in way), sum(owner not in told for told in way)]
            assert sum(kinds) == count
            assert min(kinds) < threshold
            most = max(most, min(kinds))
            # the seed of a pair is in the lock of either: those of all the others are as good
            closed = [n for n in names if sum(n not in told for told in way) < threshold]
            assert kinds[0] < threshold or {*closed} - {owner}
    assert most == threshold - 1  # as close as it gets

"""A network that loses, delays, repeats, swaps, truncates and changes messages: each sum is
exact or gives a named error.
"""

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


def change_message(message, randomness):
    """Return a message with one changed byte or name, or with its first element removed."""
    if isinstance(message, bytes):
        position = randomness.randrange(max(len(message), 1))
        return (
            message[:position]
            + bytes([message[position] ^ (1 << randomness.randrange(8))])
            + message[position + 1 :]
        )
    if not message or randomness.random() < 0.3:
        return message[1:]
    position = randomness.randrange(len(message))
    return (*message[:position], randomness.choice("abcdz"), *message[position + 1 :])


def truncate(message, randomness):
    """Return a message whose bytes are too short or too long."""
    if not isinstance(message, bytes):
        return message
    return randomness.choice([b"", message[:-1], message[:-8], message + b"\0", message + bytes(8)])


class Network:
    """A network that delivers or damages each message. A refused message counts as lost."""

    def __init__(self, randomness, harm):
        self.randomness, self.harm = randomness, harm
        self.sent, self.refused, self.waiting = [], [], []

    def deliver(self, take, name, message, foreign):
        """Deliver a message of a party, damaged at random.

        ``foreign`` is the same message of another run.
        """
        harm_of_message = (
            self.randomness.choice(HARMS) if self.randomness.random() < self.harm else ""
        )
        messages = [message]
        if harm_of_message in ("lost", "late"):
            messages = []
            self.waiting += [(take, name, message)] * (harm_of_message == "late")
        elif harm_of_message == "twice":
            messages = [message, message]
        elif harm_of_message == "changed":
            messages = [change_message(message, self.randomness)]
        elif harm_of_message == "cut":
            messages = [truncate(message, self.randomness)]
        elif harm_of_message == "foreign":
            messages = [foreign]
        # This is a message to the server.
        elif harm_of_message == "renamed" and take.__name__ != "__setitem__":
            name = self.randomness.choice("abcdz")
        # The replayed message is of another party, round or sum, if there is one of this type.
        elif harm_of_message == "replayed":
            same_type = [earlier for earlier in self.sent if type(earlier) is type(message)]
            messages = [self.randomness.choice(same_type or [message])]
        self.sent.append(message)
        for delivered in messages:
            self.attempt(take, name, delivered)

    def attempt(self, action, *arguments):
        """Call the action, or record the named error with which it was refused. Other exceptions
        are bugs.
        """
        try:
            return action(*arguments)
        except CryptoError as error:
            self.refused.append(error)
            return None

    def later(self):
        """Deliver the delayed messages."""
        waiting, self.waiting = self.waiting, []
        for call in waiting:
            self.attempt(*call)


class FailingRun:
    """A federation over a failing network, and its twin, whose messages are the foreign ones."""

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

    def each(self, names, make_message, take, foreign):
        """Let the parties send a message each, in random order, over the network."""
        for name in self.shuffled(names):
            message = self.net.attempt(make_message, name)
            if message is not None:
                self.net.deliver(take, name, message, foreign(name))

    def prepare(self):
        """Play rounds 0 and 1; return whether they finished."""
        server, parties, twin = (
            self.one.server,
            self.one.parties,
            Federation(
                len(self.names), self.one.plan.threshold, self.one.plan.sums, exposing=True, seed=1
            ),
        )
        rosters, boxes_of_party = {}, {}
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
        advertised = [name for name in self.names if name in server._keys]
        self.each(self.names, lambda _: roster, rosters.__setitem__, lambda _: foreign_roster)
        self.each(
            rosters,
            lambda n: parties[n].deal(rosters[n], advertised),
            server.take_deal,
            foreign_deals.get,
        )
        boxes = self.net.attempt(server.boxes)
        self.net.later()
        if boxes is None:
            return False
        self.each(boxes, boxes.get, boxes_of_party.__setitem__, foreign_boxes.get)
        for name, text in boxes_of_party.items():
            senders = [sender for sender in boxes if sender != name]
            self.net.attempt(parties[name].collect, text, senders)
        return True

    def sum(self, index):
        """Play rounds 2 and 3; return the sum and its survivors, or None after a named error."""
        server, parties, twin = self.one.server, self.one.parties, self.other
        arrays, survivors_of_party = self.arrays[index], {}
        self.each(self.names, lambda n: parties[n].mask(index, arrays[n]),
                  lambda n, m: server.take_array(n, index, m), self.foreign[index].get)  # fmt: skip
        survivors = self.net.attempt(server.survivors, index)
        self.net.later()
        if survivors is None:
            return None
        self.each(
            survivors, lambda _: survivors, survivors_of_party.__setitem__, lambda _: self.names[:1]
        )
        self.each(
            survivors_of_party,
            lambda n: parties[n].unmask(index, tuple(survivors_of_party[n])),
            lambda n, m: server.take_shares(n, index, m),
            lambda n: twin.parties[n].unmask(index, self.names),
        )
        opened = self.net.attempt(server.open_sum, index)
        self.net.later()
        return None if opened is None else (opened.reshape(2, 3), survivors)


def play_two_sums(count, threshold, seed, harm):
    """Play two sums, check each, and yield their outcomes."""
    run = FailingRun(count, threshold, 2, seed, harm)
    is_prepared = run.prepare()
    for index, arrays in enumerate(run.arrays):
        result = run.sum(index) if is_prepared else None
        if result is None:
            # A party refused a message with a specific error.
            assert run.net.refused
            assert CryptoError not in {*map(type, run.net.refused)}
            yield "error"
            continue
        opened, survivors = result
        assert len(survivors) >= threshold
        assert np.array_equal(opened, sum(arrays[name] for name in survivors))
        yield "exact" if len(survivors) == count else "fewer"


@pytest.mark.long
@settings(max_examples=200)
@given(
    count=st.integers(2, 4),
    use_smallest_threshold=st.booleans(),
    seed=st.integers(0, 2**32),
    harm=st.sampled_from([0.03, 0.1, 0.3]),
)
def test_every_schedule_ends_in_an_exact_sum_or_a_named_error(
    count, use_smallest_threshold, seed, harm
):
    threshold = count // 2 + 1 if use_smallest_threshold else usual_threshold(count)
    assert len([*play_two_sums(count, threshold, seed, harm)]) == 2


def test_schedules_end_in_every_way():
    ends = [one_end for seed in range(40) for one_end in play_two_sums(4, 3, seed, 0.05)]
    assert min(map(ends.count, ("exact", "fewer", "error"))) >= 5


def test_a_key_that_was_changed_for_one_party_is_detected_before_masking():
    federation, second_federation = Federation(3, 2), Federation(3, 2, seed=1)
    roster = federation.advertise()
    changed_roster = roster[: 2 * KEY_BYTES] + second_federation.advertise()[2 * KEY_BYTES :]
    for name, keys in (("a", changed_roster), ("b", roster), ("c", roster)):
        federation.server.take_deal(name, federation.dealt_by(name, keys))
    boxes = federation.server.boxes()
    with pytest.raises(WrongKeyError, match="the two parties received different keys"):
        federation.take_boxes("a", boxes["a"])
    with pytest.raises(WrongKeyError, match="the box from 'a' to 'b'"):
        federation.take_boxes("b", boxes["b"])


def test_changed_keys_of_a_party_are_named():
    federation, second_federation = Federation(3, 2), Federation(3, 2, seed=1)
    roster = federation.advertise()
    with pytest.raises(WrongKeyError, match="keys of 'a' were changed on the way"):
        federation.dealt_by("a", second_federation.parties["a"].advertise() + roster[KEY_BYTES:])


@pytest.mark.parametrize("stays", ["abcd", "abc"])
def test_a_party_that_missed_a_box_does_not_falsify_a_sum(stays):
    federation = Federation(4, 3, leaves=dict.fromkeys({*"abcd"} - {*stays}, 2))
    for name, boxes in federation.deal().items():
        if name == "a":
            federation.parties[name].collect(boxes[: 2 * federation.plan.box_bytes], "bc")
        else:
            federation.take_boxes(name, boxes)
    survivors, helped = federation.mask(), {}
    for name in survivors:
        try:
            shares = federation.parties[name].unmask(0, survivors)
            federation.server.take_shares(name, 0, shares)
            helped[name] = True
        except MalformedError:
            assert name == "a"  # The party has no shares of d.
    assert "a" not in helped
    if len(helped) < 3:
        with pytest.raises(TooFewPartiesError, match=r"missing: a, d\."):
            federation.server.open_sum(0)
    else:
        with pytest.raises(WrongKeyError, match="'a' in sum 0 does not match its tag"):
            federation.server.open_sum(0)


@pytest.mark.parametrize("kind", ["changed", "of another sum", "of another party"])
def test_a_wrong_lock_stops_only_the_sum_without_its_owner(kind):
    federation = Federation(3, 2, sums=2, exposing=True)
    roster = federation.advertise()
    deals = {name: federation.dealt_by(name, roster) for name in federation.parties}
    begin, (first, second) = locks_of(federation, deals["c"])
    wrong = {"changed": bytes([first[0] ^ 1]) + first[1:], "of another sum": second,
             "of another party": locks_of(federation, deals["b"])[1][0]}  # fmt: skip
    deals["c"] = begin + wrong[kind] + second
    for name, deal in deals.items():
        federation.server.take_deal(name, deal)
    for name, boxes in federation.server.boxes().items():
        federation.take_boxes(name, boxes)
    federation.leaves["c"] = 2
    with pytest.raises(WrongKeyError, match="do not determine the lock of 'c' in sum 0"):
        federation.open(0)
    assert np.array_equal(federation.open(1), federation.arrays["a"] + federation.arrays["b"])


@pytest.mark.parametrize("source", ["another run", "another sum"])
def test_an_array_of_another_run_is_not_decrypted(source):
    federation, other_federation = (
        Federation(3, 2, sums=2).collect(),
        Federation(3, 2, sums=2, seed=1).collect(),
    )
    foreign_array = (
        federation.masked_by("a", 1) if source == "another sum" else other_federation.masked_by("a")
    )
    federation.server.take_array("a", 0, foreign_array)
    for name in "bc":
        federation.server.take_array(name, 0, federation.masked_by(name))
    survivors = federation.server.survivors(0)
    federation.masked_by("a")
    for name in survivors:
        federation.server.take_shares(name, 0, federation.parties[name].unmask(0, survivors))
    with pytest.raises(WrongKeyError, match="the array of 'a' in sum 0"):
        federation.server.open_sum(0)


ADMITTED = [
    (["abc", "ab"], "c"),
    (["ab", "abc"], "c"),
    (["ab", "bc", "ac"], "abc"),
    (["abcd", "ab", "cd"], ""),
    (["abcde", "abc", "abc"], ""),
    # The array of c is half of the second plus the third minus the first.
    (["abcde", "abc", "cde"], "c"),
    (["abcd", "bcde"], ""),  # The difference a - e contains two arrays.
    (["a"], "a"),
]


@pytest.mark.parametrize(("sets", "exposed"), ADMITTED)
def test_sums_that_together_reveal_one_party_are_refused(sets, exposed):
    survivor_sets = SurvivorSets()
    for names in sets[:-1]:
        survivor_sets.admit(names)
    if exposed:
        with pytest.raises(
            ExposureError, match=rf"reveal the array of {', '.join(exposed)}.*=true"
        ):
            survivor_sets.admit(sets[-1])
        assert survivor_sets.exposed == []  # A refused sum is not decrypted.
        allowed = SurvivorSets(exposing=True)
        for names in sets:
            allowed.admit(names)
        assert allowed.exposed == [*exposed]
    else:
        survivor_sets.admit(sets[-1])


@settings(max_examples=60)
@given(st.lists(st.sets(st.sampled_from("abcdef"), min_size=2), min_size=1, max_size=6))
def test_exposed_parties_are_those_with_a_unit_vector_in_the_span(sets):
    survivor_sets = SurvivorSets(exposing=True)
    for names in sets:
        survivor_sets.admit(names)
    rows = np.array([[name in names for name in "abcdef"] for names in sets], dtype=float)
    rank = np.linalg.matrix_rank(rows)
    units = zip("abcdef", np.eye(6), strict=True)
    expected = [n for n, unit in units if np.linalg.matrix_rank(np.vstack([rows, unit])) == rank]
    assert survivor_sets.exposed == expected


def test_clients_refuse_to_open_a_sum_that_differs_by_one_from_another():
    federation = Federation(3, 2, sums=3, leaves={"c": 2}).collect()
    federation.open(0)
    federation.leaves["c"] = STAYS
    survivors = federation.mask(1)
    federation.parties["c"]._opened.note("ab")
    for name in survivors:  # This includes c, which was absent.
        with pytest.raises(ExposureError, match="over a, b, would reveal the array of c"):
            federation.parties[name].unmask(1, survivors)
    with pytest.raises(TooFewPartiesError, match=r"0 parties helped .* missing: a, b, c\."):
        federation.server.open_sum(1)
    federation.leaves["c"] = 2
    assert np.array_equal(federation.open(2), federation.arrays["a"] + federation.arrays["b"])


@pytest.fixture(scope="module")
def sums():
    with pytest.warns(UserWarning, match="weak"):
        return [EncryptedSums(names_of(3), 1024) for _ in range(2)]


def test_lost_truncated_foreign_and_invalid_ciphertexts_are_named(sums):
    first, second = sums
    slots, arrays = Slots(1 << 20, 3), {name: np.arange(9) - ord(name) for name in "abc"}
    sent = {name: first.encrypted(name, array, slots) for name, array in arrays.items()}
    total = first.added(sent, 9, slots)
    assert first.opened(total, 9, slots).tolist() == sum(arrays.values()).tolist()
    for lost in ("a", "b", "c", "ab", "bc", "abc"):
        remaining = {name: text for name, text in sent.items() if name not in lost}
        with pytest.raises(MissingPartyError, match=f"arrays of {', '.join(lost)} are missing"):
            first.added(remaining, 9, slots)
    earlier_text = sent["b"]
    sent = {name: first.encrypted(name, array, slots) for name, array in arrays.items()}
    text, payload = sent["b"], sent["b"][MARK_BYTES:]
    layout = ciphertexts.describe_layout("array", slots, (9,), 1, "2 of b")
    no_ciphertexts = (b"\xff" * len(payload), bytes(512))
    with_valid_mark = [
        ciphertexts.compute_mark(wrong, first.adder._public, layout) + wrong
        for wrong in no_ciphertexts
    ]
    for error, wrong in [
        (WrongKeyError, second.encrypted("b", arrays["b"], slots)),
        (WrongKeyError, sent["a"]),
        (WrongKeyError, earlier_text),
        (WrongKeyError, text[:-1] + bytes([text[-1] ^ 1])),
        *((MalformedError, wrong) for wrong in (b"", text[:-1], text + b"\0", *with_valid_mark)),
    ]:
        with pytest.raises(error, match=r"\bb\b"):
            first.added({**sent, "b": wrong}, 9, slots)
    with pytest.raises(MalformedError, match="z sent arrays"):
        first.added({**sent, "z": sent["a"]}, 9, slots)
    total = first.added(sent, 9, slots)
    with pytest.raises(WrongKeyError, match="with another key"):
        second.opened(total, 9, slots)
    assert first.opened(total, 9, slots).tolist() == sum(arrays.values()).tolist()


@pytest.mark.long
@settings(max_examples=80)
@given(seed=st.integers(0, 2**32), harm=st.sampled_from([0.1, 0.4]))
def test_every_schedule_of_ciphertexts_ends_in_an_exact_sum_or_a_named_error(sums, seed, harm):
    first, second = sums
    for run in sums:
        run.begin()
    net, slots = Network(random.Random(seed), harm), Slots(1 << 20, 3)
    for index in range(3):
        arrays = {n: np.arange(9) * (index + 2) - ord(n) for n in "abc"}
        sent = [{n: run.encrypted(n, array, slots) for n, array in arrays.items()} for run in sums]
        arrived, totals = {}, {}
        for name in "abc":
            net.deliver(arrived.__setitem__, name, sent[0][name], sent[1][name])
        total = net.attempt(first.added, arrived, 9, slots)
        if total is not None:
            foreign = second.added(sent[1], 9, slots)
            net.deliver(totals.__setitem__, "", total, foreign)
        opened = (
            net.attempt(first.opened, next(iter(totals.values())), 9, slots) if totals else None
        )
        if opened is None:
            assert net.refused or not totals
            return  # The run stops after an error.
        assert opened.tolist() == sum(arrays.values()).tolist()


@pytest.mark.parametrize(("count", "threshold"), [(3, 2), (4, 3)])
def test_inconsistent_survivor_lists_never_reveal_both_secrets_of_a_party(count, threshold):
    """A server that sends arbitrary survivor lists gets the threshold of at most one kind of
    shares.
    """
    names = names_of(count)
    sets = [
        survivor_set
        for size in range(threshold, count + 1)
        for survivor_set in itertools.combinations(names, size)
    ]
    all_choices = [
        *itertools.product(
            *([survivor_set for survivor_set in sets if name in survivor_set] for name in names)
        )
    ]
    federation = Federation(count, threshold, len(all_choices), exposing=True).collect()
    largest = 0
    for index, choice in enumerate(all_choices):
        federation.mask(index)
        for name, survivors in zip(names, choice, strict=True):
            assert federation.parties[name].unmask(index, survivors)
        for owner in names:
            n_shares = [
                sum(owner in survivors for survivors in choice),
                sum(owner not in survivors for survivors in choice),
            ]
            assert sum(n_shares) == count
            assert min(n_shares) < threshold
            largest = max(largest, min(n_shares))
            # The locks of both parties of a pair contain its seed, so the locks of all others
            # suffice.
            unavailable = [
                other_name
                for other_name in names
                if sum(other_name not in survivors for survivors in choice) < threshold
            ]
            assert n_shares[0] < threshold or {*unavailable} - {owner}
    assert largest == threshold - 1  # The bound is reached.

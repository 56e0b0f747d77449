"""Masked sums: exact for everybody who stays, closed for everybody who does not."""

import itertools
import math
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from seeded_keys import SeededRandomness

from fedtrees.core.errors import UsageError
from fedtrees.crypto import shamir
from fedtrees.crypto.costs import OperationCounter
from fedtrees.crypto.mask_keys import TAG_BYTES, MaskPlan, unlock, usual_threshold
from fedtrees.crypto.masks import IdealMaskedSum, IdealMaskingParty, MaskedSum, MaskingParty
from fedtrees.crypto.primitives import (
    KEY_BYTES,
    ExposureError,
    LateError,
    MalformedError,
    PlaintextOverflowError,
    RepeatedError,
    TooFewPartiesError,
    WrongKeyError,
)
from fedtrees.crypto.shamir import SHARE_BYTES
from fedtrees.crypto.survivors import SurvivorSets

STAYS = 4  # else: gone before advertising (0), dealing (1), masking (2), unmasking (3)


def names_of(count):
    return tuple("abcdefg"[:count])


def arrays_of(names, shape=(2, 3), seed=0):
    rng = np.random.default_rng(seed)
    return {name: rng.integers(-(2**60), 2**60, shape) for name in names}


class Federation:
    """A plan, its parties and whoever adds; rounds are played one at a time."""

    def __init__(self, count, threshold, sums=1, leaves=None, exposing=False, seed=0):
        self.plan = MaskPlan(names_of(count), threshold, sums, b"a test")
        self.server = MaskedSum(self.plan)
        self.leaves = dict.fromkeys(self.plan.parties, STAYS) | (leaves or {})
        self.parties = {
            name: MaskingParty(
                self.plan,
                name,
                randomness=SeededRandomness(i + 10 * seed),
                opened=SurvivorSets(exposing=exposing),
            )
            for i, name in enumerate(self.plan.parties)
        }
        self.arrays = arrays_of(self.plan.parties)

    def there(self, stage):
        return [name for name in self.plan.parties if self.leaves[name] > stage]

    def advertise(self):
        for name in self.there(0):
            self.server.take_keys(name, self.parties[name].advertise())
        return self.server.roster()

    def dealt_by(self, name, roster):
        """Return what a party deals to those that advertised."""
        return self.parties[name].deal(roster, self.there(0))

    def deal(self):
        roster = self.advertise()
        for name in self.there(1):
            self.server.take_deal(name, self.dealt_by(name, roster))
        return self.server.boxes()

    def take_boxes(self, name, boxes):
        """Give a party the boxes of all others that dealt."""
        self.parties[name].collect(boxes, [other for other in self.there(1) if other != name])

    def collect(self):
        for name, boxes in self.deal().items():
            self.take_boxes(name, boxes)
        return self

    def masked_by(self, name, index=0, told=b"", array=None):
        """Return a party's array under its masks."""
        array = self.arrays[name] if array is None else array
        return self.parties[name].mask(index, array, told)

    def mask(self, index=0, told=None):
        for name in self.there(2):
            heard = (told or {}).get(name, b"")
            self.server.take_array(name, index, self.masked_by(name, index, heard))
        return self.server.survivors(index)

    def open(self, index=0, told=None):
        survivors = self.mask(index, told)
        for name in survivors:
            if self.leaves[name] > 3:
                self.server.take_shares(name, index, self.parties[name].unmask(index, survivors))
        return self.server.open_sum(index).reshape(next(iter(self.arrays.values())).shape)


def pieces(text, size):
    """Return the pieces of a text that have one size."""
    return [text[i : i + size] for i in range(0, len(text), size)]


def locks_of(one, text):
    """Return what precedes the locks in a party's deal, and the locks."""
    size = one.plan.lock_bytes(len(one.server._keys))
    begin = len(text) - size * one.plan.sums
    return text[:begin], pieces(text[begin:], size)


@pytest.mark.parametrize(
    ("count", "threshold"),
    [
        pytest.param(n, t, marks=[pytest.mark.slow] * (n == 5))
        for n in range(2, 6)
        for t in range(n // 2 + 1, min(n, 4) + 1)
    ],
)
def test_every_pattern_of_dropout_gives_the_exact_sum_or_an_error(count, threshold):
    """All 5^n: who goes in rounds 0 and 1 is tried in a federation each, the rest in its sums."""
    names, opened = names_of(count), 0
    for early in itertools.product((0, 1, STAYS), repeat=count):
        left = [name for name, stage in zip(names, early, strict=True) if stage == STAYS]
        patterns = [*itertools.product((2, 3, STAYS), repeat=len(left))]
        leaves = dict(zip(names, early, strict=True))
        one = Federation(count, threshold, len(patterns), leaves, exposing=True)
        if len(left) < threshold:
            with pytest.raises(TooFewPartiesError):
                one.collect()
            continue
        one.collect()
        for index, late in enumerate(patterns):
            one.leaves |= dict(zip(left, late, strict=True))
            if late.count(STAYS) < threshold:
                with pytest.raises(TooFewPartiesError):
                    one.open(index)
                continue
            opened += 1
            assert np.array_equal(one.open(index), sum(one.arrays[n] for n in one.there(2)))
    assert opened == sum(
        math.comb(count, stay) * 4 ** (count - stay) for stay in range(threshold, count + 1)
    )


@pytest.mark.parametrize("gone", [{}, {"d": 2}])
def test_nothing_opens_among_parties_that_were_told_different_things(gone, monkeypatch):
    """However the server opens: one that cheats does not look at tags."""
    with pytest.raises(WrongKeyError, match="received other values"):
        Federation(4, 3, leaves=gone).collect().open(told={"b": b"something else"})
    monkeypatch.setattr("fedtrees.crypto.masks.hmac.compare_digest", lambda *_: True)
    one = Federation(4, 3, leaves=gone, seed=1)
    one.arrays = arrays_of(one.plan.parties, (40, 6))
    opened = one.collect().open(told={"b": b"something else"})
    assert not (opened == sum(one.arrays[name] for name in one.there(2))).any()
    assert not (opened == one.arrays["b"]).any()
    same = Federation(4, 3, leaves=gone, seed=1).collect()
    assert np.array_equal(same.open(), sum(same.arrays[name] for name in same.there(2)))


@settings(max_examples=15)
@given(seed=st.integers(0, 2**32), count=st.integers(2, 5), size=st.integers(0, 9))
def test_sums_are_exact_up_to_the_greatest_that_fits(seed, count, size):
    one = Federation(count, usual_threshold(count))
    most = (2**63 - 1) // count
    rng = np.random.default_rng(seed)
    one.arrays = {
        name: rng.choice([-most, most, *rng.integers(-most, most, 9)], size)
        for name in one.plan.parties
    }
    found = one.collect().open()
    assert found.dtype == np.int64
    columns = zip(*(array.tolist() for array in one.arrays.values()), strict=True)
    assert found.tolist() == [sum(column) for column in columns]  # Python's numbers have no end


@pytest.mark.parametrize("real", [True, False])
def test_numbers_whose_sum_might_wrap_are_refused(real):
    plan = MaskPlan(tuple("abc"), 2)
    masker = rounds_of(real, plan)[0]["a"]
    most = (2**63 - 1) // 3
    for number in (most + 1, -most - 1, 2**63 - 1, -(2**63)):
        with pytest.raises(PlaintextOverflowError, match="might not fit an int64"):
            masker.mask(0, np.array([0, number]))
    masker.mask(0, np.array([most, -most]))  # what was refused took no mask


def test_who_misses_one_sum_takes_part_in_the_next():
    one = Federation(3, 2, sums=3, leaves={"b": 2}, exposing=True).collect()
    assert np.array_equal(one.open(0), one.arrays["a"] + one.arrays["c"])
    one.leaves["b"] = STAYS
    assert np.array_equal(one.open(1), sum(one.arrays.values()))
    one.leaves["a"] = 3
    assert np.array_equal(one.open(2), sum(one.arrays.values()))


def test_what_a_dropout_opens_opens_no_other_sum():
    """The locks of one sum hold its own seeds; the secret behind them is never dealt."""
    one = Federation(3, 2, sums=3, exposing=True)
    boxes = one.deal()
    agreed = one.parties["b"]._agreed["a"].reveal()
    for name, mine in boxes.items():
        one.take_boxes(name, mine)
    of_sums = [{k: s.reveal() for k, s in pairs.items()} for pairs in one.parties["b"]._pairs]
    assert [{k: s.reveal() for k, s in p.items()}["b"] for p in one.parties["a"]._pairs] == [
        seeds["a"] for seeds in of_sums
    ]
    assert len({seed for seeds in of_sums for seed in seeds.values()} | {agreed}) == 7
    one.open(0)
    one.leaves["b"] = 2
    one.open(1)
    given = {name: pieces(one.parties[name]._unmasked[1][1], SHARE_BYTES)[1] for name in "ac"}
    points = {one.plan.point(name): share for name, share in given.items()}
    key, locks = shamir.combine(points, 2), one.server._deals["b"][2]
    opened = [seed.reveal() for seed in unlock(key, locks[1], one.server._agreed)]
    assert opened == [of_sums[1]["a"], of_sums[1]["c"]]
    for other in (0, 2):
        with pytest.raises(WrongKeyError):
            unlock(key, locks[other], one.server._agreed)
    with pytest.raises(WrongKeyError):  # a lock is bound to everybody's keys
        unlock(key, locks[1], bytes(32))
    assert not one.parties["a"]._pairs[0]  # used, and gone
    assert not one.parties["a"]._agreed
    assert not one.parties["a"]._key.reveal()


def test_masks_of_different_sums_have_nothing_in_common():
    one = Federation(3, 2, sums=2).collect()
    assert len({lock for *_, locks in one.server._deals.values() for lock in locks}) == 3 * 2
    same = np.zeros(64, dtype=np.int64)
    first, second = (
        np.frombuffer(one.masked_by("a", i, array=same)[:-TAG_BYTES], "<u8") for i in (0, 1)
    )
    assert not (first == second).any()
    assert len({*first.tolist()}) == 64


def test_a_masked_array_is_uniform_bytes():
    one = Federation(2, 2).collect()
    values = one.parties["a"].mask(0, np.full(4096, 7))[:-TAG_BYTES]
    counts = np.bincount(np.frombuffer(values, np.uint8), minlength=256)
    expected = len(values) / 256
    assert ((counts - expected) ** 2 / expected).sum() < 380  # chi-squared, 255 degrees: p = 1e-6


def test_who_is_late_is_neither_added_nor_unmasked():
    one = Federation(4, 3, leaves={"d": 2}).collect()
    late = one.masked_by("d")
    found = one.open()
    assert np.array_equal(found, sum(one.arrays[name] for name in "abc"))
    with pytest.raises(LateError, match="'d' arrived after the end of masking for sum 0"):
        one.server.take_array("d", 0, late)
    with pytest.raises(LateError, match="the array of 'd' is not in sum 0"):
        one.parties["d"].unmask(0, tuple("abc"))
    for name in "abc":  # nobody gives the other secret of the one who is late
        with pytest.raises(ExposureError, match="helped to open sum 0 for other survivors"):
            one.parties[name].unmask(0, tuple("abcd"))


def test_no_party_ever_gives_both_shares_of_another():
    for gone in ([], ["d"], ["c"]):
        one = Federation(4, 3, leaves=dict.fromkeys(gone, 2)).collect()
        survivors = one.mask()
        for name in survivors:
            given = one.parties[name].unmask(0, survivors)
            dealt = [text.reveal() for text in one.parties[name]._shares.values()]
            # The self-mask of who survived, else the key to its lock: see `MaskingParty.deal`.
            for owner, share, both in zip("abcd", pieces(given, SHARE_BYTES), dealt, strict=True):
                assert share == pieces(both, SHARE_BYTES)[owner in gone]
            assert one.parties[name].unmask(0, survivors[::-1]) == given  # a lost reply is resent


def test_a_party_masks_once_for_a_sum():
    one = Federation(2, 2).collect()
    one.parties["a"].mask(0, one.arrays["a"])
    with pytest.raises(RepeatedError, match="one mask would reveal their difference"):
        one.parties["a"].mask(0, one.arrays["a"])


def test_a_message_that_comes_twice_is_named():
    one = Federation(3, 2)
    one.server.take_keys("a", one.parties["a"].advertise())
    with pytest.raises(RepeatedError, match="'a' sent two messages in advertising"):
        one.server.take_keys("a", one.parties["a"].advertise())
    one.server.take_keys("b", one.parties["b"].advertise())
    one.server.take_keys("c", one.parties["c"].advertise())
    roster = one.server.roster()
    deal = one.dealt_by("a", roster)
    one.server.take_deal("a", deal)
    with pytest.raises(RepeatedError):
        one.server.take_deal("a", deal)
    with pytest.raises(RepeatedError, match="has dealt its shares before"):
        one.dealt_by("a", roster)
    two = Federation(3, 2).collect()
    masked = two.masked_by("a")
    two.server.take_array("a", 0, masked)
    with pytest.raises(RepeatedError, match="only the first one is used"):
        two.server.take_array("a", 0, masked)
    two.leaves["a"] = 0
    survivors = two.mask()
    shares = two.parties["b"].unmask(0, survivors)
    two.server.take_shares("b", 0, shares)
    with pytest.raises(RepeatedError):
        two.server.take_shares("b", 0, shares)


def test_messages_out_of_order_are_named():
    one = Federation(3, 2)
    party, server = one.parties["a"], one.server
    with pytest.raises(LateError, match="boxes come after that"):
        party.collect(b"", [])
    with pytest.raises(LateError, match="has not collected"):
        party.mask(0, one.arrays["a"])
    with pytest.raises(LateError, match="has not collected"):
        party.unmask(0, one.plan.parties)
    for call in (server.boxes, lambda: server.survivors(0), lambda: server.open_sum(0)):
        with pytest.raises(LateError, match="is not finished"):
            call()
    other = Federation(3, 2).collect()
    with pytest.raises(LateError):
        server.take_array("a", 0, other.masked_by("a"))
    one.advertise()
    with pytest.raises(LateError, match="after the end of advertising"):
        server.take_keys("a", party.advertise())
    other.leaves["a"] = 0
    other.open()
    with pytest.raises(LateError, match="opened before"):
        other.server.open_sum(0)


def test_a_party_that_was_left_out_of_the_roster_does_not_deal():
    one = Federation(3, 2, leaves={"c": 0})
    roster = one.advertise()
    with pytest.raises(LateError, match="not among the advertised keys"):
        one.dealt_by("c", roster)


def test_boxes_that_were_changed_or_swapped_do_not_open():
    one = Federation(3, 2)
    boxes = {name: pieces(text, one.plan.box_bytes) for name, text in one.deal().items()}
    of_b, of_c = boxes["a"]
    changed = bytes([of_b[0] ^ 1]) + of_b[1:]
    for wrong in (changed, of_c, boxes["c"][1]):
        with pytest.raises(WrongKeyError, match="the box from 'b' to 'a' does not open"):
            one.take_boxes("a", wrong + of_c)
    for wrong in (of_c, of_b + of_c[:-1], of_b + of_c + b"0"):
        with pytest.raises(MalformedError, match="the boxes of b, c"):
            one.take_boxes("a", wrong)
    with pytest.raises(MalformedError, match="did not advertise"):
        one.parties["a"].collect(of_b + of_c, "bz")
    one.take_boxes("a", of_b + of_c)
    with pytest.raises(RepeatedError):
        one.take_boxes("a", of_b + of_c)


def test_a_box_of_another_run_does_not_open():
    one, other = Federation(3, 2), Federation(3, 2)
    other.plan = replace(other.plan, context=b"another")
    for name in other.parties:
        i = other.plan.parties.index(name)
        other.parties[name] = MaskingParty(other.plan, name, randomness=SeededRandomness(i))
    boxes, foreign = one.deal(), other.deal()
    assert one.server._keys == other.server._keys  # the same keys, bound to another context
    size = one.plan.box_bytes
    with pytest.raises(WrongKeyError):
        one.take_boxes("a", foreign["a"][:size] + boxes["a"][size:])


@pytest.mark.parametrize("stays", ["abc", "ab"])
def test_a_wrong_share_never_makes_a_wrong_sum(stays):
    one = Federation(3, 2, leaves=dict.fromkeys({*"abc"} - {*stays}, 2)).collect()
    survivors = one.mask()
    for name in survivors:
        given = one.parties[name].unmask(0, survivors)
        if name == "a":  # the last byte of the share of c: of its self-mask, or of its lock
            given = given[:-1] + bytes([given[-1] ^ 1])
        one.server.take_shares(name, 0, given)
    with pytest.raises(WrongKeyError, match="The sum is not opened"):
        one.server.open_sum(0)


def test_a_share_of_the_wrong_length_is_named():
    one = Federation(2, 2).collect()
    survivors = one.mask()
    for name in survivors:
        given = one.parties[name].unmask(0, survivors)
        for wrong in (given[:-1], given + b"0", b""):
            with pytest.raises(MalformedError, match=f"the shares of '{name}'"):
                one.server.take_shares(name, 0, wrong)


def test_messages_that_are_not_as_planned_are_refused():
    one = Federation(3, 2, sums=2)
    with pytest.raises(MalformedError, match="'z' does not take part in advertising"):
        one.server.take_keys("z", one.parties["a"].advertise())
    roster = one.advertise()
    first, second, _ = pieces(roster, KEY_BYTES)
    for keys, names in (
        (first + second + second, "abb"),
        (roster, "abz"),
        (first + second + second, "abc"),
        (first + second + b"short", "abc"),
    ):
        with pytest.raises(MalformedError):
            one.parties["a"].deal(keys, names)
    with pytest.raises(TooFewPartiesError, match="missing: b, c"):
        one.parties["a"].deal(first, "a")
    deal = one.dealt_by("a", roster)
    begin, locks = locks_of(one, deal)
    for wrong in (b"", deal[1:], deal[:-1], begin + locks[0], deal + b"0", deal + locks[0]):
        with pytest.raises(MalformedError):
            one.server.take_deal("a", wrong)
    two = Federation(3, 2).collect()
    masked = two.masked_by("a")
    for wrong in (b"", masked[:15], masked[:-1]):
        with pytest.raises(MalformedError):
            two.server.take_array("a", 0, wrong)
    with pytest.raises(MalformedError, match="'z' does not take part in masking"):
        two.server.take_array("z", 0, masked)
    two.server.take_array("a", 0, masked)
    with pytest.raises(MalformedError, match="an array has 48 and 16 for its tag"):
        two.server.take_array("b", 0, two.masked_by("b", array=np.zeros(5, np.int64)))
    with pytest.raises(UsageError, match="no sum 1: the plan has the sums 0 to 0"):
        two.server.take_array("a", 1, masked)
    with pytest.raises(UsageError, match="int64"):
        two.masked_by("c", array=np.zeros(3))
    with pytest.raises(UsageError, match="no sum 1: "):
        two.masked_by("c", 1)
    two.server.take_array("c", 0, two.masked_by("c"))
    two.server.survivors(0)
    for wrong in (("a", "a", "c"), ("a", "z")):
        with pytest.raises(MalformedError):
            two.parties["a"].unmask(0, wrong)
    with pytest.raises(TooFewPartiesError):
        two.parties["a"].unmask(0, ("a",))


def test_a_plan_that_protects_nobody_is_refused():
    for count, threshold in ((2, 1), (4, 2), (3, 4), (5, 0)):
        with pytest.raises(UsageError, match="choose one from"):
            MaskPlan(names_of(count), threshold)
    for parties in ((), ("a",), ("a", "a")):
        with pytest.raises(UsageError, match="two or more"):
            MaskPlan(parties, 1)
    with pytest.raises(UsageError, match="sums must be"):
        MaskPlan(("a", "b"), 2, 0)
    with pytest.raises(UsageError, match="none of the plan's"):
        MaskingParty(MaskPlan(("a", "b"), 2), "c")


@pytest.mark.parametrize(("count", "threshold"), [(2, 2), (3, 3), (4, 3), (10, 7)])
def test_the_usual_threshold_is_two_thirds_and_one(count, threshold):
    assert usual_threshold(count) == threshold
    MaskPlan(tuple(map(str, range(count))), usual_threshold(count))


def test_the_ledger_counts_masks_and_shares():
    one = Federation(4, 3, leaves={"d": 2}).collect()
    one.open()
    assert one.parties["a"].ledger.done == {"shares": 2 * 4, "masks expanded": 4}
    assert one.server.ledger.done == {"masks expanded": 3 + 3}


def test_what_crosses_is_as_large_as_was_said():
    one = Federation(4, 3, sums=2, leaves={"d": 2})
    roster = one.advertise()
    assert len(roster) == 4 * KEY_BYTES
    assert len(one.dealt_by("a", roster)) == one.plan.deal_bytes(4)
    two = Federation(4, 3, sums=2, leaves={"d": 2})
    for name, boxes in two.deal().items():
        assert len(boxes) == 3 * two.plan.box_bytes
        two.take_boxes(name, boxes)
    assert len(two.masked_by("d", 1)) == 8 * 6 + TAG_BYTES
    assert len(two.parties["a"].unmask(0, two.mask())) == 4 * SHARE_BYTES


def rounds_of(real, plan, among=None):
    """Return parties by name, and the server, that have exchanged keys and shares."""
    among, arrays = among or plan.parties, {}
    ledger = OperationCounter()
    server = MaskedSum(plan, ledger) if real else IdealMaskedSum(plan, ledger, arrays)
    parties = {
        name: MaskingParty(plan, name)
        if real
        else IdealMaskingParty(plan, name, OperationCounter(), SurvivorSets(), arrays)
        for name in plan.parties
    }
    for name in among:
        server.take_keys(name, parties[name].advertise())
    roster = server.roster()
    for name in among:
        server.take_deal(name, parties[name].deal(roster, among))
    for name, boxes in server.boxes().items():
        parties[name].collect(boxes, [other for other in among if other != name])
    return parties, server


@pytest.mark.parametrize("real", [True, False])
@pytest.mark.parametrize("survivors", ["abcd", "acd", "bcd", "abc"])
def test_the_sum_of_survivors_is_exact_real_and_ideal(real, survivors):
    arrays = {name: np.arange(5) * (ord(name) - 90) - 7 for name in "abcd"}
    for among in ("abcd", survivors):  # gone after the shares, or before the keys
        parties, server = rounds_of(real, MaskPlan(tuple("abcd"), 3), among=tuple(among))
        for name in survivors:
            server.take_array(name, 0, parties[name].mask(0, arrays[name]))
        stayed = server.survivors(0)
        assert stayed == tuple(survivors)
        for name in stayed:
            server.take_shares(name, 0, parties[name].unmask(0, stayed))
        assert server.open_sum(0).tolist() == sum(arrays[name] for name in survivors).tolist()


def test_keys_of_another_length_are_found_out():
    one = Federation(3, 2)
    roster = one.advertise()
    for wrong in (roster[:-1], roster + b"0", b""):
        with pytest.raises(MalformedError, match="the keys of a, b, c"):
            one.dealt_by("a", wrong)

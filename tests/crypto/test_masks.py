"""Masked sums are exact for all survivors, and cannot be decrypted for parties that drop out."""

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

# Otherwise a party leaves before advertising (0), dealing (1), masking (2) or unmasking (3).
STAYS = 4


def names_of(count):
    return tuple("abcdefg"[:count])


def arrays_of(names, shape=(2, 3), seed=0):
    rng = np.random.default_rng(seed)
    return {name: rng.integers(-(2**60), 2**60, shape) for name in names}


class Federation:
    """A plan, its parties and the server. Rounds are played one at a time."""

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
        """Return the message that a party deals to all advertised parties."""
        return self.parties[name].deal(roster, self.there(0))

    def deal(self):
        roster = self.advertise()
        for name in self.there(1):
            self.server.take_deal(name, self.dealt_by(name, roster))
        return self.server.boxes()

    def take_boxes(self, name, boxes):
        """Deliver to a party the boxes of all others that dealt."""
        self.parties[name].collect(boxes, [other for other in self.there(1) if other != name])

    def collect(self):
        for name, boxes in self.deal().items():
            self.take_boxes(name, boxes)
        return self

    def masked_by(self, name, index=0, associated_data=b"", array=None):
        """Return the masked array of a party."""
        array = self.arrays[name] if array is None else array
        return self.parties[name].mask(index, array, associated_data)

    def mask(self, index=0, data_by_party=None):
        for name in self.there(2):
            associated_data = (data_by_party or {}).get(name, b"")
            self.server.take_array(name, index, self.masked_by(name, index, associated_data))
        return self.server.survivors(index)

    def open(self, index=0, data_by_party=None):
        survivors = self.mask(index, data_by_party)
        for name in survivors:
            if self.leaves[name] > 3:
                self.server.take_shares(name, index, self.parties[name].unmask(index, survivors))
        return self.server.open_sum(index).reshape(next(iter(self.arrays.values())).shape)


def split_bytes(text, size):
    """Split bytes into pieces of one size."""
    return [text[i : i + size] for i in range(0, len(text), size)]


def locks_of(federation, text):
    """Return the part before the locks in the deal of a party, and the locks."""
    size = federation.plan.lock_bytes(len(federation.server._keys))
    begin = len(text) - size * federation.plan.sums
    return text[:begin], split_bytes(text[begin:], size)


@pytest.mark.parametrize(
    ("count", "threshold"),
    [
        pytest.param(n, t, marks=[pytest.mark.slow] * (n == 5))
        for n in range(2, 6)
        for t in range(n // 2 + 1, min(n, 4) + 1)
    ],
)
def test_every_pattern_of_dropout_gives_the_exact_sum_or_an_error(count, threshold):
    """Try all 5^n patterns. Dropouts in rounds 0 and 1 need a federation each, later dropouts a
    sum.
    """
    names, opened = names_of(count), 0
    for early in itertools.product((0, 1, STAYS), repeat=count):
        remaining = [name for name, stage in zip(names, early, strict=True) if stage == STAYS]
        patterns = [*itertools.product((2, 3, STAYS), repeat=len(remaining))]
        leaves = dict(zip(names, early, strict=True))
        federation = Federation(count, threshold, len(patterns), leaves, exposing=True)
        if len(remaining) < threshold:
            with pytest.raises(TooFewPartiesError):
                federation.collect()
            continue
        federation.collect()
        for index, late in enumerate(patterns):
            federation.leaves |= dict(zip(remaining, late, strict=True))
            if late.count(STAYS) < threshold:
                with pytest.raises(TooFewPartiesError):
                    federation.open(index)
                continue
            opened += 1
            assert np.array_equal(
                federation.open(index), sum(federation.arrays[n] for n in federation.there(2))
            )
    assert opened == sum(
        math.comb(count, stay) * 4 ** (count - stay) for stay in range(threshold, count + 1)
    )


@pytest.mark.parametrize("leaves", [{}, {"d": 2}])
def test_no_sum_is_decrypted_if_parties_received_different_values(leaves, monkeypatch):
    """This is true for every server, because a dishonest server ignores tags."""
    with pytest.raises(WrongKeyError, match="received other values"):
        Federation(4, 3, leaves=leaves).collect().open(data_by_party={"b": b"something else"})
    monkeypatch.setattr("fedtrees.crypto.masks.hmac.compare_digest", lambda *_: True)
    federation = Federation(4, 3, leaves=leaves, seed=1)
    federation.arrays = arrays_of(federation.plan.parties, (40, 6))
    opened = federation.collect().open(data_by_party={"b": b"something else"})
    assert not (opened == sum(federation.arrays[name] for name in federation.there(2))).any()
    assert not (opened == federation.arrays["b"]).any()
    consistent = Federation(4, 3, leaves=leaves, seed=1).collect()
    assert np.array_equal(
        consistent.open(), sum(consistent.arrays[name] for name in consistent.there(2))
    )


@settings(max_examples=15)
@given(seed=st.integers(0, 2**32), count=st.integers(2, 5), size=st.integers(0, 9))
def test_sums_are_exact_up_to_the_largest_int64(seed, count, size):
    federation = Federation(count, usual_threshold(count))
    largest = (2**63 - 1) // count
    rng = np.random.default_rng(seed)
    federation.arrays = {
        name: rng.choice([-largest, largest, *rng.integers(-largest, largest, 9)], size)
        for name in federation.plan.parties
    }
    opened = federation.collect().open()
    assert opened.dtype == np.int64
    columns = zip(*(array.tolist() for array in federation.arrays.values()), strict=True)
    # Python integers do not overflow.
    assert opened.tolist() == [sum(column) for column in columns]


@pytest.mark.parametrize("real", [True, False])
def test_numbers_whose_sum_might_wrap_are_refused(real):
    plan = MaskPlan(tuple("abc"), 2)
    masker = exchange_keys(real, plan)[0]["a"]
    largest = (2**63 - 1) // 3
    for number in (largest + 1, -largest - 1, 2**63 - 1, -(2**63)):
        with pytest.raises(PlaintextOverflowError, match="might not fit an int64"):
            masker.mask(0, np.array([0, number]))
    masker.mask(0, np.array([largest, -largest]))  # The refused calls used no mask.


def test_a_party_that_misses_one_sum_takes_part_in_the_next():
    federation = Federation(3, 2, sums=3, leaves={"b": 2}, exposing=True).collect()
    assert np.array_equal(federation.open(0), federation.arrays["a"] + federation.arrays["c"])
    federation.leaves["b"] = STAYS
    assert np.array_equal(federation.open(1), sum(federation.arrays.values()))
    federation.leaves["a"] = 3
    assert np.array_equal(federation.open(2), sum(federation.arrays.values()))


def test_the_secrets_of_a_dropout_decrypt_no_other_sum():
    """The locks of one sum contain only its seeds, and the secret from which they are derived is
    never dealt.
    """
    federation = Federation(3, 2, sums=3, exposing=True)
    boxes = federation.deal()
    agreed = federation.parties["b"]._agreed["a"].reveal()
    for name, boxes_of_party in boxes.items():
        federation.take_boxes(name, boxes_of_party)
    seeds_by_sum = [
        {peer: s.reveal() for peer, s in pairs.items()} for pairs in federation.parties["b"]._pairs
    ]
    assert [
        {peer: s.reveal() for peer, s in pair_seeds.items()}["b"]
        for pair_seeds in federation.parties["a"]._pairs
    ] == [seeds["a"] for seeds in seeds_by_sum]
    assert len({seed for seeds in seeds_by_sum for seed in seeds.values()} | {agreed}) == 7
    federation.open(0)
    federation.leaves["b"] = 2
    federation.open(1)
    revealed_shares = {
        name: split_bytes(federation.parties[name]._unmasked[1][1], SHARE_BYTES)[1] for name in "ac"
    }
    points = {federation.plan.point(name): share for name, share in revealed_shares.items()}
    key, locks = shamir.combine(points, 2), federation.server._deals["b"][2]
    opened = [seed.reveal() for seed in unlock(key, locks[1], federation.server._agreed)]
    assert opened == [seeds_by_sum[1]["a"], seeds_by_sum[1]["c"]]
    for other in (0, 2):
        with pytest.raises(WrongKeyError):
            unlock(key, locks[other], federation.server._agreed)
    with pytest.raises(WrongKeyError):  # A lock is bound to the keys of all parties.
        unlock(key, locks[1], bytes(32))
    assert not federation.parties["a"]._pairs[0]  # Used seeds are deleted.
    assert not federation.parties["a"]._agreed
    assert not federation.parties["a"]._key.reveal()


def test_masks_of_different_sums_are_different():
    federation = Federation(3, 2, sums=2).collect()
    assert len({lock for *_, locks in federation.server._deals.values() for lock in locks}) == 3 * 2
    zeros = np.zeros(64, dtype=np.int64)
    first, second = (
        np.frombuffer(federation.masked_by("a", i, array=zeros)[:-TAG_BYTES], "<u8") for i in (0, 1)
    )
    assert not (first == second).any()
    assert len({*first.tolist()}) == 64


def test_a_masked_array_is_uniform_bytes():
    federation = Federation(2, 2).collect()
    values = federation.parties["a"].mask(0, np.full(4096, 7))[:-TAG_BYTES]
    counts = np.bincount(np.frombuffer(values, np.uint8), minlength=256)
    expected = len(values) / 256
    # The chi-squared statistic has 255 degrees of freedom. This limit has p = 1e-6.
    assert ((counts - expected) ** 2 / expected).sum() < 380


def test_a_late_array_is_neither_added_nor_unmasked():
    federation = Federation(4, 3, leaves={"d": 2}).collect()
    late = federation.masked_by("d")
    opened = federation.open()
    assert np.array_equal(opened, sum(federation.arrays[name] for name in "abc"))
    with pytest.raises(LateError, match="'d' arrived after the end of masking for sum 0"):
        federation.server.take_array("d", 0, late)
    with pytest.raises(LateError, match="the array of 'd' is not in sum 0"):
        federation.parties["d"].unmask(0, tuple("abc"))
    for name in "abc":  # No party sends the other secret of a late party.
        with pytest.raises(ExposureError, match="helped to open sum 0 for other survivors"):
            federation.parties[name].unmask(0, tuple("abcd"))


def test_no_party_ever_sends_both_shares_of_another():
    for dropped in ([], ["d"], ["c"]):
        federation = Federation(4, 3, leaves=dict.fromkeys(dropped, 2)).collect()
        survivors = federation.mask()
        for name in survivors:
            sent_shares = federation.parties[name].unmask(0, survivors)
            dealt = [text.reveal() for text in federation.parties[name]._shares.values()]
            # The share is of the self-mask if the owner survived, and otherwise of the key to its
            # lock. See `MaskingParty.deal`.
            for owner, share, both_shares in zip(
                "abcd", split_bytes(sent_shares, SHARE_BYTES), dealt, strict=True
            ):
                assert share == split_bytes(both_shares, SHARE_BYTES)[owner in dropped]
            # A lost reply is sent again.
            assert federation.parties[name].unmask(0, survivors[::-1]) == sent_shares


def test_a_party_masks_once_for_a_sum():
    federation = Federation(2, 2).collect()
    federation.parties["a"].mask(0, federation.arrays["a"])
    with pytest.raises(RepeatedError, match="one mask would reveal their difference"):
        federation.parties["a"].mask(0, federation.arrays["a"])


def test_a_message_that_comes_twice_is_named():
    federation = Federation(3, 2)
    federation.server.take_keys("a", federation.parties["a"].advertise())
    with pytest.raises(RepeatedError, match="'a' sent two messages in advertising"):
        federation.server.take_keys("a", federation.parties["a"].advertise())
    federation.server.take_keys("b", federation.parties["b"].advertise())
    federation.server.take_keys("c", federation.parties["c"].advertise())
    roster = federation.server.roster()
    deal = federation.dealt_by("a", roster)
    federation.server.take_deal("a", deal)
    with pytest.raises(RepeatedError):
        federation.server.take_deal("a", deal)
    with pytest.raises(RepeatedError, match="has dealt its shares before"):
        federation.dealt_by("a", roster)
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


def test_messages_out_of_order_are_refused_by_name():
    federation = Federation(3, 2)
    party, server = federation.parties["a"], federation.server
    with pytest.raises(LateError, match="boxes come after that"):
        party.collect(b"", [])
    with pytest.raises(LateError, match="has not collected"):
        party.mask(0, federation.arrays["a"])
    with pytest.raises(LateError, match="has not collected"):
        party.unmask(0, federation.plan.parties)
    for call in (server.boxes, lambda: server.survivors(0), lambda: server.open_sum(0)):
        with pytest.raises(LateError, match="is not finished"):
            call()
    finished_federation = Federation(3, 2).collect()
    with pytest.raises(LateError):
        server.take_array("a", 0, finished_federation.masked_by("a"))
    federation.advertise()
    with pytest.raises(LateError, match="after the end of advertising"):
        server.take_keys("a", party.advertise())
    finished_federation.leaves["a"] = 0
    finished_federation.open()
    with pytest.raises(LateError, match="opened before"):
        finished_federation.server.open_sum(0)


def test_a_party_that_was_left_out_of_the_roster_does_not_deal():
    federation = Federation(3, 2, leaves={"c": 0})
    roster = federation.advertise()
    with pytest.raises(LateError, match="not among the advertised keys"):
        federation.dealt_by("c", roster)


def test_changed_or_swapped_boxes_are_refused():
    federation = Federation(3, 2)
    boxes = {
        name: split_bytes(text, federation.plan.box_bytes)
        for name, text in federation.deal().items()
    }
    of_b, of_c = boxes["a"]
    changed = bytes([of_b[0] ^ 1]) + of_b[1:]
    for wrong in (changed, of_c, boxes["c"][1]):
        with pytest.raises(WrongKeyError, match="the box from 'b' to 'a' does not open"):
            federation.take_boxes("a", wrong + of_c)
    for wrong in (of_c, of_b + of_c[:-1], of_b + of_c + b"0"):
        with pytest.raises(MalformedError, match="the boxes of b, c"):
            federation.take_boxes("a", wrong)
    with pytest.raises(MalformedError, match="did not advertise"):
        federation.parties["a"].collect(of_b + of_c, "bz")
    federation.take_boxes("a", of_b + of_c)
    with pytest.raises(RepeatedError):
        federation.take_boxes("a", of_b + of_c)


def test_a_box_of_another_run_is_refused():
    federation, second_federation = Federation(3, 2), Federation(3, 2)
    second_federation.plan = replace(second_federation.plan, context=b"another")
    for name in second_federation.parties:
        i = second_federation.plan.parties.index(name)
        second_federation.parties[name] = MaskingParty(
            second_federation.plan, name, randomness=SeededRandomness(i)
        )
    boxes, foreign = federation.deal(), second_federation.deal()
    # The keys are equal, but bound to another context.
    assert federation.server._keys == second_federation.server._keys
    size = federation.plan.box_bytes
    with pytest.raises(WrongKeyError):
        federation.take_boxes("a", foreign["a"][:size] + boxes["a"][size:])


@pytest.mark.parametrize("stays", ["abc", "ab"])
def test_a_wrong_share_never_makes_a_wrong_sum(stays):
    federation = Federation(3, 2, leaves=dict.fromkeys({*"abc"} - {*stays}, 2)).collect()
    survivors = federation.mask()
    for name in survivors:
        sent_shares = federation.parties[name].unmask(0, survivors)
        # The last byte belongs to the share of c, which is of its self-mask or its lock.
        if name == "a":
            sent_shares = sent_shares[:-1] + bytes([sent_shares[-1] ^ 1])
        federation.server.take_shares(name, 0, sent_shares)
    with pytest.raises(WrongKeyError, match="The sum is not opened"):
        federation.server.open_sum(0)


def test_a_share_of_the_wrong_length_is_named():
    federation = Federation(2, 2).collect()
    survivors = federation.mask()
    for name in survivors:
        sent_shares = federation.parties[name].unmask(0, survivors)
        for wrong in (sent_shares[:-1], sent_shares + b"0", b""):
            with pytest.raises(MalformedError, match=f"the shares of '{name}'"):
                federation.server.take_shares(name, 0, wrong)


def test_messages_that_differ_from_the_plan_are_refused():
    federation = Federation(3, 2, sums=2)
    with pytest.raises(MalformedError, match="'z' does not take part in advertising"):
        federation.server.take_keys("z", federation.parties["a"].advertise())
    roster = federation.advertise()
    first, second, _ = split_bytes(roster, KEY_BYTES)
    for keys, names in (
        (first + second + second, "abb"),
        (roster, "abz"),
        (first + second + second, "abc"),
        (first + second + b"short", "abc"),
    ):
        with pytest.raises(MalformedError):
            federation.parties["a"].deal(keys, names)
    with pytest.raises(TooFewPartiesError, match="missing: b, c"):
        federation.parties["a"].deal(first, "a")
    deal = federation.dealt_by("a", roster)
    begin, locks = locks_of(federation, deal)
    for wrong in (b"", deal[1:], deal[:-1], begin + locks[0], deal + b"0", deal + locks[0]):
        with pytest.raises(MalformedError):
            federation.server.take_deal("a", wrong)
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
def test_the_default_threshold_is_two_thirds_plus_one(count, threshold):
    assert usual_threshold(count) == threshold
    MaskPlan(tuple(map(str, range(count))), usual_threshold(count))


def test_the_ledger_counts_masks_and_shares():
    federation = Federation(4, 3, leaves={"d": 2}).collect()
    federation.open()
    assert federation.parties["a"].ledger.done == {"shares": 2 * 4, "masks expanded": 4}
    assert federation.server.ledger.done == {"masks expanded": 3 + 3}


def test_messages_have_the_planned_size():
    federation = Federation(4, 3, sums=2, leaves={"d": 2})
    roster = federation.advertise()
    assert len(roster) == 4 * KEY_BYTES
    assert len(federation.dealt_by("a", roster)) == federation.plan.deal_bytes(4)
    second_federation = Federation(4, 3, sums=2, leaves={"d": 2})
    for name, boxes in second_federation.deal().items():
        assert len(boxes) == 3 * second_federation.plan.box_bytes
        second_federation.take_boxes(name, boxes)
    assert len(second_federation.masked_by("d", 1)) == 8 * 6 + TAG_BYTES
    assert (
        len(second_federation.parties["a"].unmask(0, second_federation.mask())) == 4 * SHARE_BYTES
    )


def exchange_keys(real, plan, among=None):
    """Return the parties by name, and the server, after the exchange of keys and shares."""
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
    # The missing party leaves after the shares, or before the keys.
    for among in ("abcd", survivors):
        parties, server = exchange_keys(real, MaskPlan(tuple("abcd"), 3), among=tuple(among))
        for name in survivors:
            server.take_array(name, 0, parties[name].mask(0, arrays[name]))
        stayed = server.survivors(0)
        assert stayed == tuple(survivors)
        for name in stayed:
            server.take_shares(name, 0, parties[name].unmask(0, stayed))
        assert server.open_sum(0).tolist() == sum(arrays[name] for name in survivors).tolist()


def test_keys_of_another_length_are_refused():
    federation = Federation(3, 2)
    roster = federation.advertise()
    for wrong in (roster[:-1], roster + b"0", b""):
        with pytest.raises(MalformedError, match="the keys of a, b, c"):
            federation.dealt_by("a", wrong)

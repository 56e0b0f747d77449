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
from fedtrees.crypto import mask_messages, shamir
from fedtrees.crypto.costs import OperationCounter
from fedtrees.crypto.mask_keys import unlock
from fedtrees.crypto.mask_messages import MaskPlan, usual_threshold
from fedtrees.crypto.mask_rounds import (
    IdealMasker,
    IdealUnmasker,
    RealMasker,
    RealUnmasker,
    read_boxes,
    read_deal,
    read_unmasking,
)
from fedtrees.crypto.masked_sum import MaskedSum
from fedtrees.crypto.masking_party import MaskingParty, SurvivorSets
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
            self.server.take_keys(self.parties[name].advertise())
        return self.server.roster()

    def deal(self):
        roster = self.advertise()
        for name in self.there(1):
            self.server.take_deal(self.parties[name].deal(roster))
        return self.server.boxes()

    def collect(self):
        for name, boxes in self.deal().items():
            self.parties[name].collect(boxes)
        return self

    def mask(self, index=0, told=None):
        for name in self.there(2):
            heard = (told or {}).get(name, b"")
            self.server.take_array(self.parties[name].mask(index, self.arrays[name], heard))
        return self.server.survivors(index)

    def open(self, index=0, told=None):
        survivors = self.mask(index, told)
        for name in survivors:
            if self.leaves[name] > 3:
                self.server.take_shares(self.parties[name].unmask(index, survivors))
        return self.server.opened(index)


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
    with pytest.raises(WrongKeyError, match="told something else"):
        Federation(4, 3, leaves=gone).collect().open(told={"b": b"something else"})
    monkeypatch.setattr("fedtrees.crypto.masked_sum.hmac.compare_digest", lambda *_: True)
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
            masker.masked(0, np.array([0, number]))
    masker.masked(0, np.array([most, -most]))  # what was refused took no mask


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
        one.parties[name].collect(mine)
    of_sums = [{k: s.reveal() for k, s in pairs.items()} for pairs in one.parties["b"]._pairs]
    assert [{k: s.reveal() for k, s in p.items()}["b"] for p in one.parties["a"]._pairs] == [
        seeds["a"] for seeds in of_sums
    ]
    assert len({seed for seeds in of_sums for seed in seeds.values()} | {agreed}) == 7
    one.open(0)
    one.leaves["b"] = 2
    one.open(1)
    given = {name: one.parties[name]._unmasked[1].lock_keys["b"] for name in "ac"}
    points = {one.plan.point(name): share for name, share in given.items()}
    key, deal = shamir.combine(points, 2), one.server._deals["b"]
    opened = [seed.reveal() for seed in unlock(key, deal.locks[1], one.server._agreed)]
    assert opened == [of_sums[1]["a"], of_sums[1]["c"]]
    for other in (0, 2):
        with pytest.raises(WrongKeyError):
            unlock(key, deal.locks[other], one.server._agreed)
    with pytest.raises(WrongKeyError):  # a lock is bound to everybody's keys
        unlock(key, deal.locks[1], bytes(32))
    assert not one.parties["a"]._pairs[0]  # used, and gone
    assert not one.parties["a"]._agreed
    assert not one.parties["a"]._key.reveal()


def test_masks_of_different_sums_have_nothing_in_common():
    one = Federation(3, 2, sums=2).collect()
    assert len({key for deal in one.server._deals.values() for key in deal.locks}) == 3 * 2
    same = np.zeros(64, dtype=np.int64)
    first, second = (np.frombuffer(one.parties["a"].mask(i, same).values, "<u8") for i in (0, 1))
    assert not (first == second).any()
    assert len({*first.tolist()}) == 64


def test_a_masked_array_is_uniform_bytes():
    one = Federation(2, 2).collect()
    values = one.parties["a"].mask(0, np.full(4096, 7)).values
    counts = np.bincount(np.frombuffer(values, np.uint8), minlength=256)
    expected = len(values) / 256
    assert ((counts - expected) ** 2 / expected).sum() < 380  # chi-squared, 255 degrees: p = 1e-6


def test_who_is_late_is_neither_added_nor_unmasked():
    one = Federation(4, 3, leaves={"d": 2}).collect()
    late = one.parties["d"].mask(0, one.arrays["d"])
    found = one.open()
    assert np.array_equal(found, sum(one.arrays[name] for name in "abc"))
    with pytest.raises(LateError, match="'d' came when masking for sum 0 was over"):
        one.server.take_array(late)
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
            assert not {*given.self_masks} & {*given.lock_keys}
            assert {*given.lock_keys} == {*gone}
            assert one.parties[name].unmask(0, survivors[::-1]) == given  # a lost reply is resent


def test_a_party_masks_once_for_a_sum():
    one = Federation(2, 2).collect()
    one.parties["a"].mask(0, one.arrays["a"])
    with pytest.raises(RepeatedError, match="two under one mask tell their difference"):
        one.parties["a"].mask(0, one.arrays["a"])


def test_a_message_that_comes_twice_is_named():
    one = Federation(3, 2)
    one.server.take_keys(one.parties["a"].advertise())
    with pytest.raises(RepeatedError, match="'a' sent two messages in advertising"):
        one.server.take_keys(one.parties["a"].advertise())
    one.server.take_keys(one.parties["b"].advertise())
    one.server.take_keys(one.parties["c"].advertise())
    roster = one.server.roster()
    deal = one.parties["a"].deal(roster)
    one.server.take_deal(deal)
    with pytest.raises(RepeatedError):
        one.server.take_deal(deal)
    with pytest.raises(RepeatedError, match="has dealt its shares before"):
        one.parties["a"].deal(roster)
    two = Federation(3, 2).collect()
    masked = two.parties["a"].mask(0, two.arrays["a"])
    two.server.take_array(masked)
    with pytest.raises(RepeatedError, match="the first one stands"):
        two.server.take_array(masked)
    two.leaves["a"] = 0
    survivors = two.mask()
    shares = two.parties["b"].unmask(0, survivors)
    two.server.take_shares(shares)
    with pytest.raises(RepeatedError):
        two.server.take_shares(shares)


def test_messages_out_of_order_are_named():
    one = Federation(3, 2)
    party, server = one.parties["a"], one.server
    with pytest.raises(LateError, match="boxes come after that"):
        party.collect({})
    with pytest.raises(LateError, match="has not collected"):
        party.mask(0, one.arrays["a"])
    with pytest.raises(LateError, match="has not collected"):
        party.unmask(0, one.plan.parties)
    for call in (server.boxes, lambda: server.survivors(0), lambda: server.opened(0)):
        with pytest.raises(LateError, match="is not over yet"):
            call()
    other = Federation(3, 2).collect()
    masked = other.parties["a"].mask(0, other.arrays["a"])
    with pytest.raises(LateError):
        server.take_array(masked)
    one.advertise()
    with pytest.raises(LateError, match="advertising was over"):
        server.take_keys(party.advertise())
    other.leaves["a"] = 0
    for name in "bc":
        other.server.take_array(other.parties[name].mask(0, other.arrays[name]))
    survivors = other.server.survivors(0)
    for name in survivors:
        other.server.take_shares(other.parties[name].unmask(0, survivors))
    other.server.opened(0)
    with pytest.raises(LateError, match="opened before"):
        other.server.opened(0)


def test_a_party_that_was_left_out_of_the_roster_does_not_deal():
    one = Federation(3, 2, leaves={"c": 0})
    roster = one.advertise()
    with pytest.raises(LateError, match="not among those that were advertised"):
        one.parties["c"].deal(roster)


def test_boxes_that_were_changed_or_swapped_do_not_open():
    boxes = (one := Federation(3, 2)).deal()
    mine = boxes["a"]
    cut = bytes([mine["b"][0] ^ 1]) + mine["b"][1:]
    for wrong in ({"b": cut}, {"b": mine["c"]}, {"b": boxes["c"]["b"]}, {"b": b""}):
        with pytest.raises(WrongKeyError, match="the box from 'b' to 'a' does not open"):
            one.parties["a"].collect(mine | wrong)
    with pytest.raises(MalformedError, match="did not advertise"):
        one.parties["a"].collect(mine | {"z": b""})
    one.parties["a"].collect(mine)
    with pytest.raises(RepeatedError):
        one.parties["a"].collect(mine)


def test_a_box_of_another_run_does_not_open():
    one, other = Federation(3, 2), Federation(3, 2)
    other.plan = replace(other.plan, context=b"another")
    for name in other.parties:
        i = other.plan.parties.index(name)
        other.parties[name] = MaskingParty(other.plan, name, randomness=SeededRandomness(i))
    boxes, foreign = one.deal(), other.deal()
    assert one.server._keys == other.server._keys  # the same keys, bound to another context
    with pytest.raises(WrongKeyError):
        one.parties["a"].collect(boxes["a"] | {"b": foreign["a"]["b"]})


@pytest.mark.parametrize("stays", ["abc", "ab"])
def test_a_wrong_share_never_makes_a_wrong_sum(stays):
    one = Federation(3, 2, leaves=dict.fromkeys({*"abc"} - {*stays}, 2)).collect()
    survivors = one.mask()
    for name in survivors:
        given = one.parties[name].unmask(0, survivors)
        if name == "a":
            field = "self_masks" if stays == "abc" else "lock_keys"
            shares = dict(getattr(given, field))
            victim = next(iter(shares))
            shares[victim] = shares[victim][:-1] + bytes([shares[victim][-1] ^ 1])
            given = replace(given, **{field: shares})
        one.server.take_shares(given)
    with pytest.raises(WrongKeyError, match="one of them is wrong, and the sum stays closed"):
        one.server.opened(0)


def test_a_share_of_the_wrong_length_is_named():
    one = Federation(2, 2).collect()
    survivors = one.mask()
    for name in survivors:
        given = one.parties[name].unmask(0, survivors)
        cut = {owner: share[: 32 + (name == "b")] for owner, share in given.self_masks.items()}
        one.server.take_shares(replace(given, self_masks=cut))
    with pytest.raises(WrongKeyError, match="stays closed"):
        one.server.opened(0)


def test_messages_that_are_not_as_planned_are_refused():
    one = Federation(3, 2, sums=2)
    keys = one.parties["a"].advertise()
    with pytest.raises(MalformedError, match="'z' has no part in advertising"):
        one.server.take_keys(replace(keys, party="z"))
    roster = one.advertise()
    for wrong in (
        [*roster[:2], roster[1]],
        [*roster[:2], replace(roster[2], party="z")],
        [*roster[:2], replace(roster[2], key=roster[1].key)],
        [*roster[:2], replace(roster[2], key=b"short")],
    ):
        with pytest.raises(MalformedError):
            one.parties["a"].deal(wrong)
    with pytest.raises(TooFewPartiesError, match="missing: b, c"):
        one.parties["a"].deal(roster[:1])
    deal = one.parties["a"].deal(roster)
    for changed in (
        {"boxes": {"b": deal.boxes["b"]}},
        {"boxes": deal.boxes | {"b": deal.boxes["b"][:-1]}},
        {"commitments": deal.commitments[:1]},
        {"locks": deal.locks[:1]},
        {"locks": (deal.locks[0], deal.locks[1][:-1])},
    ):
        with pytest.raises(MalformedError):
            one.server.take_deal(replace(deal, **changed))
    two = Federation(3, 2).collect()
    masked = two.parties["a"].mask(0, two.arrays["a"])
    for changed in ({"values": masked.values[:-8]}, {"shape": (3, 3)}, {"party": "z"}):
        with pytest.raises(MalformedError):
            two.server.take_array(replace(masked, **changed))
    two.server.take_array(masked)
    with pytest.raises(MalformedError, match="an array of shape"):
        two.server.take_array(two.parties["b"].mask(0, np.zeros(5, np.int64)))
    with pytest.raises(UsageError, match="sum 1; 1 are planned"):
        two.server.take_array(replace(masked, sum=1))
    with pytest.raises(UsageError, match="int64"):
        two.parties["c"].mask(0, np.zeros(3))
    with pytest.raises(UsageError, match="1 are planned"):
        two.parties["c"].mask(1, two.arrays["c"])
    two.server.take_array(two.parties["c"].mask(0, two.arrays["c"]))
    survivors = two.server.survivors(0)
    for wrong in (("a", "a", "c"), ("a", "z")):
        with pytest.raises(MalformedError):
            two.parties["a"].unmask(0, wrong)
    with pytest.raises(TooFewPartiesError):
        two.parties["a"].unmask(0, ("a",))
    given = two.parties["a"].unmask(0, survivors)
    with pytest.raises(MalformedError, match="sum 0 needs those of"):
        two.server.take_shares(replace(given, lock_keys={}))


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
    plan = one.plan
    keys = one.advertise()[0]
    assert len(keys.key) == KEY_BYTES
    two = Federation(4, 3, sums=2, leaves={"d": 2}).collect()
    made = two.server._deals["a"]
    crossed = sum(map(len, (*made.boxes.values(), *made.commitments, *made.locks)))
    assert crossed == mask_messages.deal(plan, 4)
    survivors = two.mask()
    field = two.server._arrays[0]["a"].sealed
    assert (field.keyholders, field.shape, field.dtype) == ((), (2, 3), "<i8")
    assert len(field.payload) == field.nbytes == mask_messages.masked(6) + mask_messages.TAG_BYTES
    given = two.parties["a"].unmask(0, survivors)
    shares = [*given.self_masks.values(), *given.lock_keys.values()]
    assert sum(map(len, shares)) == mask_messages.unmasking(4)


def rounds_of(real, plan, among=None):
    """Return maskers by name, and who unmasks, that have exchanged keys and shares."""
    among, kept = among or plan.parties, {}
    sums = (
        RealUnmasker(plan, OperationCounter())
        if real
        else IdealUnmasker(plan, OperationCounter(), kept)
    )
    given = {name: (plan, name, OperationCounter(), SurvivorSets()) for name in plan.parties}
    made = {n: RealMasker(*g) if real else IdealMasker(*g, kept) for n, g in given.items()}
    for name in among:
        sums.take_keys(name, made[name].keys())
    roster = sums.roster(among)
    for name in among:
        sums.take_shares(name, made[name].shares(roster, among))
    for name in among:
        made[name].collect(sums.boxes(name), [other for other in among if other != name])
    return made, sums


def through_bytes(rounds, arrays, stay):
    """Run the rounds of one sum in bytes; of those who leave, nothing comes."""
    made, sums = rounds
    for name in stay:
        sums.take_masked(name, 0, made[name].masked(0, arrays[name]))
    survivors = sums.survivors(0)
    assert survivors == stay
    for name in survivors:
        sums.take_opening(name, 0, made[name].opening(0, survivors), survivors)
    return sums.opened(0)


@pytest.mark.parametrize("real", [True, False])
@pytest.mark.parametrize("survivors", ["abcd", "acd", "bcd", "abc"])
def test_the_sum_of_survivors_is_exact_in_bytes_real_and_ideal(real, survivors):
    arrays = {name: np.arange(5) * (ord(name) - 90) - 7 for name in "abcd"}
    for among in ("abcd", survivors):  # gone after the shares, or before the keys
        rounds = rounds_of(real, MaskPlan(tuple("abcd"), 3), among=tuple(among))
        found = through_bytes(rounds, arrays, tuple(survivors))
        assert found.tolist() == sum(arrays[name] for name in survivors).tolist()


def test_bytes_of_another_length_or_for_another_party_are_found_out():
    plan = MaskPlan(tuple("abc"), 2)
    sums = RealUnmasker(plan, OperationCounter())
    made = {
        name: RealMasker(plan, name, OperationCounter(), SurvivorSets()) for name in plan.parties
    }
    for name in plan.parties:
        sums.take_keys(name, made[name].keys())
    roster = sums.roster(plan.parties)
    with pytest.raises(MalformedError, match="the keys of everybody"):
        made["a"].shares(roster[:-1], plan.parties)
    texts = {name: made[name].shares(roster, plan.parties) for name in plan.parties}
    with pytest.raises(MalformedError, match="locks of 'a'"):
        read_deal(texts["a"] + b"0", plan, "a", ("b", "c"))
    with pytest.raises(MalformedError, match="the boxes of b, c"):
        read_boxes(b"", plan, ("b", "c"))
    with pytest.raises(MalformedError, match="the shares of 'b'"):
        read_unmasking(b"0" * 98, "b", 0, plan.parties, plan.parties)
    for name in plan.parties:
        sums.take_shares(name, texts[name])
    made["a"].collect(sums.boxes("a"), ("b", "c"))
    sums.take_masked("a", 0, made["a"].masked(0, np.arange(3)))
    with pytest.raises(TooFewPartiesError, match=r"1 parties .* missing: b, c\."):
        sums.survivors(0)

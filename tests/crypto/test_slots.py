"""Packing: round trips at the extremes, sums up to the documented size, and refused overflow."""

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from seeded_keys import seeded

from fedtrees.core.errors import UsageError
from fedtrees.crypto import costs
from fedtrees.crypto.ciphertexts import EncryptedArray
from fedtrees.crypto.costs import OperationCounter
from fedtrees.crypto.obfuscators import OwnerObfuscators
from fedtrees.crypto.packing import Slots
from fedtrees.crypto.primitives import MalformedError, PlaintextOverflowError, WrongKeyError

limits = st.integers(1, 2**40)
counts = st.integers(1, 2**20)


@given(limit=limits, terms=counts, data=st.data())
def test_sums_at_the_bounds_are_recovered(limit, terms, data):
    slots = Slots(limit, terms)
    bound = limit * terms
    sums = st.one_of(st.sampled_from([-bound, bound, 0]), st.integers(-bound, bound))
    numbers = data.draw(st.lists(st.lists(sums, min_size=3, max_size=3), min_size=1, max_size=4))
    packed = [sum(v << (slots.width * j) for j, v in enumerate(row)) for row in numbers]
    assert slots.split(packed, 3).tolist() == numbers
    assert max(abs(v) for v in packed) < 2 ** (3 * slots.width - 1)


@pytest.mark.parametrize("bits", [256, 512])
def test_a_full_plaintext_stays_below_a_third_of_n(bits):
    public = seeded(bits, 0).public
    for limit, terms in [(1, 1), (2**20, 569), (2**30, 2**15), (2**62, 1)]:
        slots = Slots(limit, terms)
        n_slots = slots.per_plaintext(bits)
        largest = sum(limit * terms << (slots.width * j) for j in range(n_slots))
        assert largest <= public.largest_plaintext
        assert n_slots == (bits - 2) // slots.width


def test_a_slot_has_the_smallest_possible_width():
    assert Slots(1, 1).width == 2  # The slot contains -1, 0 or 1.
    assert Slots(2**20, 1000).width == 31
    assert Slots(3, 1).split([3, -3], 1).tolist() == [[3], [-3]]


spans = st.tuples(st.integers(-(2**40), 0), st.integers(1, 2**40))


@pytest.mark.long
@given(ranges=st.lists(spans, min_size=1, max_size=3), data=st.data())
def test_sums_in_ranges_are_recovered_and_need_the_smallest_width(ranges, data):
    limit = max(1, *(max(-low, high) for low, high in ranges))
    slots = Slots(limit, 3, tuple(ranges))
    n_slots = slots.per_plaintext(512)
    assert n_slots % len(ranges) == 0
    turn = math.prod(high - low + 1 for low, high in ranges)
    turns = n_slots // len(ranges)
    assert turn**turns <= 2**511 // 3 < turn ** (turns + 1)
    one_turn = st.tuples(*(st.one_of(st.sampled_from(r), st.integers(*r)) for r in ranges))
    row = [
        v for part in data.draw(st.lists(one_turn, min_size=turns, max_size=turns)) for v in part
    ]
    numbers = np.array([row], dtype=np.int64)
    (packed,) = slots.join(numbers)
    assert abs(packed) <= 2**511 // 3 - 1  # At most a third of every 512-bit n.
    assert np.array_equal(slots.split([packed], n_slots), numbers)
    ends = [[r[k] for r in ranges] * turns for k in (0, 1)]
    least, greatest = slots.join(np.array(ends, dtype=np.int64))
    for beyond in (least - 1, greatest + 1):
        with pytest.raises(PlaintextOverflowError):
            slots.split([beyond], n_slots)


def test_numbers_outside_their_range_are_refused():
    slots = Slots(100, 3, ((-100, 0), (0, 50)))
    slots.check(np.array([-100, 50, 0, 0]))
    for wrong in ([1, 0], [0, 51], [0, -1], [-101, 0]):
        with pytest.raises(PlaintextOverflowError, match="is to be encrypted"):
            slots.check(np.array(wrong))
    wide = Slots(2**40, 2**23, ((0, 2**41),))  # The product of limit and terms would not fit.
    assert wide.per_plaintext(512) == 12
    for ranges in (((1, 2),), ((0, 1), (-3, -2)), ((0, 0),)):
        with pytest.raises(UsageError, match="each must contain 0"):
            Slots(3, 3, ranges)
    with pytest.raises(UsageError, match="do not fit an int64"):
        Slots(3, 3, ((0, 2**63),))


def test_values_that_do_not_fit_are_refused(owner):
    slots = Slots(100, 3)
    for value in (101, -101):
        with pytest.raises(PlaintextOverflowError, match="beyond \\+-100"):
            slots.join(np.array([[0, value]]))
    least = np.array([[np.iinfo(np.int64).min]])
    with pytest.raises(PlaintextOverflowError):
        slots.join(least)
    for plaintext in (301, -301, 1 << slots.width):  # Values beyond the bound or beyond one slot.
        with pytest.raises(PlaintextOverflowError, match="another value was added"):
            slots.split([plaintext], 1)
    with pytest.raises(UsageError, match="do not fit an int64"):
        Slots(2**40, 2**23)
    with pytest.raises(UsageError):
        Slots(0, 1)
    with pytest.raises(UsageError, match="do not fit a 64-bit"):
        Slots(2**62, 1).per_plaintext(64)


@settings(max_examples=20)
@given(data=st.data(), shape=st.sampled_from([(1,), (7, 3), (2, 3, 4), (0,)]))
def test_encrypted_arrays_add_up(keys, owner, data, shape):
    limit, terms = 2**50, 3
    slots = Slots(limit, terms)
    numbers = st.one_of(st.sampled_from([-limit, limit]), st.integers(-limit, limit))
    size = int(np.prod(shape))
    arrays = [
        np.array(data.draw(st.lists(numbers, min_size=size, max_size=size)), np.int64).reshape(
            shape
        )
        for _ in range(terms)
    ]
    sealed = [EncryptedArray.of(a, slots, owner) for a in arrays]
    crossed = [EncryptedArray.from_payload(s.payload(), keys.public, slots, shape) for s in sealed]
    total = crossed[0].add(crossed[1]).add(crossed[2])
    opened = total.decrypt(keys)
    assert opened.dtype == np.int64
    assert np.array_equal(opened, sum(arrays))
    assert opened.shape == shape
    with pytest.raises(PlaintextOverflowError, match="a sum of 4 arrays"):
        total.add(crossed[0])


def test_arrays_that_do_not_belong_together_are_refused(keys, other_keys, owner):
    array, slots = np.arange(5), Slots(10, 2)
    sealed = EncryptedArray.of(array, slots, owner)
    foreign = EncryptedArray.of(array, slots, OwnerObfuscators(other_keys))
    with pytest.raises(WrongKeyError, match="do not add up"):
        sealed.add(foreign)
    with pytest.raises(WrongKeyError, match="does not open"):
        foreign.decrypt(keys)
    with pytest.raises(MalformedError):
        sealed.add(EncryptedArray.of(array[:4], slots, owner))
    with pytest.raises(MalformedError):
        sealed.add(EncryptedArray.of(array, Slots(11, 2), owner))
    with pytest.raises(MalformedError, match="bytes"):
        EncryptedArray.from_payload(sealed.payload()[:-1], keys.public, slots, (5,))


def test_an_array_costs_as_few_ciphertexts_as_its_slots_allow(keys, owner):
    ledger, slots = OperationCounter(), Slots(2**20, 2)  # 23 bits, 22 to a 512-bit key
    sealed = EncryptedArray.of(np.zeros(45, np.int64), slots, OwnerObfuscators(keys, ledger))
    assert slots.per_plaintext(512) == 22
    assert len(sealed.ciphertexts) == ledger.done["encrypted"] == 3
    assert (3, len(sealed.payload())) == costs.array_traffic(45, slots, 512) == (3, 16 + 384)


def test_an_array_is_decrypted_only_with_its_layout(keys, owner):
    """Read in other shapes, slots or terms its ciphertexts open, mostly to wrong numbers."""
    array, slots = np.arange(-3, 9).reshape(3, 4), Slots(20, 3)
    total = EncryptedArray.of(array, slots, owner).add(EncryptedArray.of(array, slots, owner))
    layout = {"slots": slots, "shape": (3, 4), "terms": 2, "place": ""}
    assert np.array_equal(
        EncryptedArray.from_payload(total.payload(), keys.public, **layout).decrypt(keys), 2 * array
    )
    wrong = [
        *({"shape": shape} for shape in [(4, 3), (12,), (2, 6), (11,), (1, 3, 4), (5,)]),
        *({"slots": other} for other in [Slots(30, 2), Slots(21, 3), Slots(19, 3), Slots(20, 4)]),
        {"slots": Slots(20, 3, ((-60, 60),))},
        *({"terms": terms} for terms in (1, 3)),
        {"place": "1 of b"},
    ]
    for change in wrong:
        with pytest.raises(WrongKeyError, match="ciphertexts do not match"):
            EncryptedArray.from_payload(total.payload(), keys.public, **layout | change)
    plain = total.payload()[costs.MARK_BYTES :]
    # Without the mark the ciphertexts can be read, so only the mark detects a wrong layout.
    assert keys.public.read_ciphertexts(plain, 1)

"""Encryption is homomorphic, agrees with phe in both directions, and accepts every source of
obfuscators.
"""

import pytest
from gmpy2 import powmod
from hypothesis import given, settings
from hypothesis import strategies as st
from phe import paillier as phe

from fedtrees.core.errors import UsageError
from fedtrees.crypto import obfuscators as sources
from fedtrees.crypto.costs import OperationCounter
from fedtrees.crypto.phe_backend import ciphertexts_to_phe, keys_from_phe, keys_to_phe
from fedtrees.crypto.primitives import MalformedError, PlaintextOverflowError

BOUND = 2**509 - 1  # The bound is below n // 3 - 1 of every 512-bit key.
values = st.lists(st.integers(-BOUND, BOUND), min_size=1, max_size=5)


def every_source(keys):
    return [
        sources.PlainObfuscators(keys.public),
        sources.OwnerObfuscators(keys),
        sources.OwnerObfuscators(keys_from_phe(keys_to_phe(keys))),
        sources.DJNObfuscators(keys.public),
    ]


def test_every_source_makes_fresh_encryptions_of_zero(keys):
    for source in every_source(keys):
        obfuscators = source.take(300)
        assert len({*obfuscators}) == 300
        assert keys.decrypt(obfuscators) == [0] * 300


def test_every_source_encrypts(keys):
    bound = keys.public.largest_plaintext
    numbers = [0, 1, -1, 12345, bound, -bound]
    for source in every_source(keys):
        assert keys.decrypt(source.encrypt(numbers)) == numbers


@settings(max_examples=30)
@given(numbers=values, factor=st.integers(-(2**64), 2**64))
def test_sums_and_multiples_are_those_of_the_plaintexts(keys, owner, numbers, factor):
    public = keys.public
    halves, small = [v // 2 for v in numbers], [v >> 66 for v in numbers]
    sealed = owner.encrypt(halves)
    opened = keys.decrypt(public.add(sealed, sealed[::-1]))
    assert opened == [a + b for a, b in zip(halves, halves[::-1], strict=True)]
    product = [powmod(c, factor, public.square) for c in owner.encrypt(small)]
    assert keys.decrypt(product) == [v * factor for v in small]


@settings(max_examples=30)
@given(numbers=values)
def test_phe_and_fedtrees_decrypt_ciphertexts_of_each_other(keys, owner, numbers):
    private = keys_to_phe(keys)
    phe_public = private.public_key
    converted = ciphertexts_to_phe(owner.encrypt(numbers), keys.public)
    assert [private.decrypt(number) for number in converted] == numbers
    phe_ciphertexts = [phe_public.encrypt(value).ciphertext() for value in numbers]
    assert keys.decrypt(phe_ciphertexts) == numbers
    halves = [value // 2 for value in numbers]
    half = ciphertexts_to_phe(owner.encrypt(halves), keys.public)
    mixed = [number + phe_public.encrypt(value) for number, value in zip(half, halves, strict=True)]
    assert [private.decrypt(number) for number in mixed] == [2 * value for value in halves]


def test_overflow_is_refused_before_encryption_and_detected_after(keys, owner):
    bound = keys.public.largest_plaintext
    for value in (bound + 1, -bound - 1):
        with pytest.raises(PlaintextOverflowError, match="encrypt smaller numbers"):
            owner.encrypt([0, value])
    sealed = owner.encrypt([bound])
    with pytest.raises(PlaintextOverflowError, match="a sum has overflowed"):
        keys.decrypt(keys.public.add(sealed, sealed))


def test_bytes_of_ciphertexts_are_read_and_invalid_ones_refused(keys, owner):
    public = keys.public
    sealed = owner.encrypt([1, -2, 3])
    payload = public.write_ciphertexts(sealed)
    assert len(payload) == 3 * 128
    assert public.read_ciphertexts(payload, 3) == sealed
    with pytest.raises(MalformedError, match="are 384 bytes; 383 came"):
        public.read_ciphertexts(payload[:-1], 3)
    for number in (0, public.n, public.n**2):
        with pytest.raises(MalformedError, match="no ciphertext"):
            public.read_ciphertexts(number.to_bytes(128, "big"), 1)


def test_a_rerandomised_sum_differs_from_the_product_of_its_addends(keys, owner):
    sealed = owner.encrypt([1, 2])
    total = keys.public.add(sealed[:1], sealed[1:])
    hidden = sources.DJNObfuscators(keys.public).rerandomise(total)
    assert hidden != total
    assert keys.decrypt(hidden) == [3]


def test_djn_needs_its_base(keys):
    foreign = keys_from_phe(keys_to_phe(keys)).public
    with pytest.raises(UsageError, match="no base for DJN"):
        sources.DJNObfuscators(foreign)


def test_the_ledger_counts_operations(keys):
    ledger = OperationCounter()
    source = sources.OwnerObfuscators(keys, ledger)
    sealed = source.encrypt([1, 2, 3])
    both = keys.public.add_counted(sealed, sealed, ledger)
    keys.decrypt(both[:1], ledger)
    ledger.sent("rows", 3, 384)
    expected = {"obfuscators": 3, "encrypted": 3, "added": 3, "decrypted": 1}
    assert ledger.done == expected
    twice = ledger + ledger
    assert twice.done == {name: 2 * count for name, count in expected.items()}
    assert (twice.ciphertexts["rows"], twice.nbytes["rows"]) == (6, 768)
    assert twice != ledger
    assert ledger + OperationCounter() == ledger


def test_fedtrees_decrypts_with_keys_of_phe():
    _, private = phe.generate_paillier_keypair(n_length=512)
    keys = keys_from_phe(private)
    sealed = [private.public_key.encrypt(-7).ciphertext()]
    assert keys.decrypt(sealed) == [-7]

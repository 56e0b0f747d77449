"""Encryption: homomorphic, agrees with phe both ways, from every source of obfuscators."""

import os

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from phe import paillier as phe

from fedtrees.core.errors import UsageError
from fedtrees.crypto import obfuscators as sources
from fedtrees.crypto import paillier
from fedtrees.crypto.errors import (
    ExposureError,
    MalformedError,
    PlaintextOverflowError,
    WrongKeyError,
)
from fedtrees.crypto.keys import KeyPair
from fedtrees.crypto.ledger import Ledger
from fedtrees.crypto.processes import ProcessObfuscators

BOUND = 2**509 - 1  # below n // 3 - 1 of every 512-bit key
values = st.lists(st.integers(-BOUND, BOUND), min_size=1, max_size=5)


def every_source(keys):
    return [
        sources.PlainObfuscators(keys.public),
        sources.OwnerObfuscators(keys),
        sources.OwnerObfuscators(KeyPair.from_phe(keys.to_phe())),
        sources.DJNObfuscators(keys.public),
        sources.ObfuscatorPool(sources.OwnerObfuscators(keys)),
    ]


def test_every_source_makes_fresh_encryptions_of_zero(keys):
    for source in every_source(keys):
        made = source.take(300)
        assert len({*made}) == 300
        assert paillier.decrypt(made, keys) == [0] * 300


def test_every_source_encrypts(keys):
    bound = paillier.greatest(keys.public)
    numbers = [0, 1, -1, 12345, bound, -bound]
    for source in every_source(keys):
        assert paillier.decrypt(paillier.encrypt(numbers, source), keys) == numbers


@settings(max_examples=30)
@given(numbers=values, factor=st.integers(-(2**64), 2**64))
def test_sums_and_multiples_are_those_of_the_plaintexts(keys, owner, numbers, factor):
    public = keys.public
    halves, small = [v // 2 for v in numbers], [v >> 66 for v in numbers]
    sealed = paillier.encrypt(halves, owner)
    opened = paillier.decrypt(paillier.add(sealed, sealed[::-1], public), keys)
    assert opened == [a + b for a, b in zip(halves, halves[::-1], strict=True)]
    product = paillier.multiply(paillier.encrypt(small, owner), factor, public)
    assert paillier.decrypt(product, keys) == [v * factor for v in small]


@settings(max_examples=30)
@given(numbers=values)
def test_phe_opens_ours_and_we_open_phes(keys, owner, numbers):
    private = keys.to_phe()
    ours = paillier.encrypt(numbers, owner)
    assert [private.decrypt(x) for x in paillier.to_phe(ours, keys.public)] == numbers
    theirs = [keys.public.phe.encrypt(v) for v in numbers]
    read = paillier.from_phe(theirs, keys.public)
    assert paillier.decrypt(read, keys) == numbers
    halves = [v // 2 for v in numbers]
    mixed = [
        x + keys.public.phe.encrypt(v)
        for x, v in zip(
            paillier.to_phe(paillier.encrypt(halves, owner), keys.public), halves, strict=True
        )
    ]
    assert [private.decrypt(x) for x in mixed] == [2 * v for v in halves]


def test_what_is_not_ours_is_refused(keys, other_keys):
    number = other_keys.public.phe.encrypt(1)
    with pytest.raises(WrongKeyError, match="encrypt it under that key"):
        paillier.from_phe([number], keys.public)
    with pytest.raises(MalformedError, match="encrypt whole units"):
        paillier.from_phe([keys.public.phe.encrypt(0.25)], keys.public)


def test_overflow_is_refused_before_and_found_after(keys, owner):
    bound = paillier.greatest(keys.public)
    for value in (bound + 1, -bound - 1):
        with pytest.raises(PlaintextOverflowError, match="encrypt smaller numbers"):
            paillier.encrypt([0, value], owner)
    sealed = paillier.encrypt([bound], owner)
    with pytest.raises(PlaintextOverflowError, match="a sum has overflowed"):
        paillier.decrypt(paillier.add(sealed, sealed, keys.public), keys)


def test_bytes_are_read_back_and_others_refused(keys, owner):
    public = keys.public
    sealed = paillier.encrypt([1, -2, 3], owner)
    payload = paillier.to_bytes(sealed, public)
    assert len(payload) == 3 * 128
    assert paillier.from_bytes(payload, 3, public) == sealed
    with pytest.raises(MalformedError, match="are 384 bytes; 383 came"):
        paillier.from_bytes(payload[:-1], 3, public)
    for number in (0, public.n, public.n**2):
        with pytest.raises(MalformedError, match="no ciphertext"):
            paillier.from_bytes(number.to_bytes(128, "big"), 1, public)


def test_a_sum_is_hidden_from_who_made_its_addends(keys, owner):
    sealed = paillier.encrypt([1, 2], owner)
    total = paillier.add(sealed[:1], sealed[1:], keys.public)
    hidden = paillier.rerandomise(total, sources.DJNObfuscators(keys.public))
    assert hidden != total
    assert paillier.decrypt(hidden, keys) == [3]


def test_a_pool_gives_each_obfuscator_once(keys):
    ledger = Ledger()
    pool = sources.ObfuscatorPool(sources.OwnerObfuscators(keys, ledger))
    pool.prepare(10)
    taken = pool.take(4) + pool.take(3)
    assert len(pool) == 3
    assert pool.take(0) == []
    taken += pool.take(5)  # two are made on the spot
    assert len(pool) == 0
    assert len({*taken}) == 12
    assert ledger.done["obfuscators"] == 12


def test_a_pool_does_not_work_in_a_fork(keys, monkeypatch):
    pool = sources.ObfuscatorPool(sources.OwnerObfuscators(keys))
    pool.prepare(2)
    monkeypatch.setattr(os, "getpid", lambda: -1)
    with pytest.raises(ExposureError, match="another process"):
        pool.take(1)


def test_djn_needs_its_base(keys):
    foreign = KeyPair.from_phe(keys.to_phe()).public
    with pytest.raises(UsageError, match="no base for DJN"):
        sources.DJNObfuscators(foreign)


def test_processes_do_the_same(keys):
    ledger = Ledger()
    numbers = list(range(-20, 21))
    with ProcessObfuscators(keys, 2, ledger) as workers:
        sealed = paillier.encrypt(numbers, workers, ledger)
        assert len({*sealed}) == len(numbers)
        assert paillier.decrypt(sealed, keys) == numbers
        assert workers.decrypt(sealed) == numbers
    assert ledger.done == {"obfuscators": 41, "encrypted": 41, "decrypted": 41}
    assert ledger.cpu["obfuscators"] > 0
    with pytest.raises(UsageError, match="at least 1"):
        ProcessObfuscators(keys, 0)


def test_the_ledger_counts_what_was_done(keys):
    ledger = Ledger()
    source = sources.OwnerObfuscators(keys, ledger)
    sealed = paillier.encrypt([1, 2, 3], source, ledger)
    both = paillier.add(sealed, sealed, keys.public, ledger)
    paillier.multiply(both[:2], 5, keys.public, ledger)
    paillier.decrypt(both[:1], keys, ledger)
    ledger.sent("rows", 3, 384)
    expected = {"obfuscators": 3, "encrypted": 3, "added": 3, "multiplied": 2, "decrypted": 1}
    assert ledger.done == expected
    twice = ledger + ledger
    assert twice.done == {name: 2 * count for name, count in expected.items()}
    assert (twice.ciphertexts["rows"], twice.nbytes["rows"]) == (6, 768)
    assert twice != ledger
    assert ledger + Ledger() == ledger


def test_phe_generates_what_we_open():
    _, private = phe.generate_paillier_keypair(n_length=512)
    keys = KeyPair.from_phe(private)
    sealed = paillier.from_phe([private.public_key.encrypt(-7)], keys.public)
    assert paillier.decrypt(sealed, keys) == [-7]

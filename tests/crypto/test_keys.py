"""The size of keys, and their generation."""

import math

import pytest
from gmpy2 import is_prime, powmod
from phe import paillier as phe
from seeded_keys import SeededRandomness, seeded

from fedtrees.core.errors import UsageError
from fedtrees.crypto.costs import DEFAULT_BITS
from fedtrees.crypto.keys import KeyPair
from fedtrees.crypto.obfuscators import OwnerObfuscators
from fedtrees.crypto.phe_backend import keys_from_phe, keys_to_phe
from fedtrees.crypto.primitives import SYSTEM


def test_a_key_has_the_requested_length():
    public = KeyPair.generate().public
    assert (public.bits, public.weak) == (DEFAULT_BITS, False)
    assert DEFAULT_BITS == 2048


def test_a_short_key_is_flagged():
    with pytest.warns(UserWarning, match="1024-bit Paillier key is weak"):
        keys = KeyPair.generate(1024)
    assert keys.public.weak
    assert "weak" in repr(keys)


@pytest.mark.parametrize("bits", [512, 2047, 4096])
def test_other_lengths_are_refused(bits):
    with pytest.raises(UsageError, match="has one of 1024, 2048, 3072"):
        KeyPair.generate(bits)


@pytest.mark.parametrize("seed", range(5))
def test_the_primes_satisfy_the_conditions_of_obfuscators_and_djn(seed):
    keys = seeded(64, seed)
    first, second = keys.primes()
    p, q = int(first.p), int(second.p)
    assert p * q == keys.public.n
    assert is_prime(p)
    assert is_prime(q)
    assert p % 4 == q % 4 == 3
    assert math.gcd(p - 1, q - 1) == 2
    assert math.gcd(p * q, (p - 1) * (q - 1)) == 1
    for part in keys.primes():
        order = int(part.p) - 1
        factors = [factor for factor in range(2, 2**17) if order % factor == 0 and is_prime(factor)]
        cofactor = order
        for factor in factors:
            while cofactor % factor == 0:
                cofactor //= factor
        factors += [cofactor] * (cofactor > 1)
        assert powmod(part.generator, order, part.square) == 1
        assert all(powmod(part.generator, order // factor, part.square) != 1 for factor in factors)


def test_keys_from_system_randomness_differ():
    assert KeyPair.generate().public.n != KeyPair.generate().public.n
    assert SYSTEM.take(32) != SYSTEM.take(32)


def test_a_seed_draws_the_same_key():
    assert seeded(256, 3).public == seeded(256, 3).public
    assert seeded(256, 3).public != seeded(256, 4).public


def test_random_integers_below_a_bound_are_uniform():
    randomness = SeededRandomness(0)
    samples = [randomness.below(5) for _ in range(5_000)]
    counts = [samples.count(i) for i in range(5)]
    assert sum(counts) == 5_000
    # The limit is five standard deviations.
    assert max(abs(c - 1_000) for c in counts) < 140


def test_a_key_of_phe_is_converted_in_both_directions():
    public, private = phe.generate_paillier_keypair(n_length=512)
    keys = keys_from_phe(private)
    assert keys_to_phe(keys) == private
    source = OwnerObfuscators(keys)
    square = keys.public.n**2
    assert all(
        powmod(rho, (private.p - 1) * (private.q - 1), square) == 1 for rho in source.take(3)
    )
    assert keys.public.n == public.n

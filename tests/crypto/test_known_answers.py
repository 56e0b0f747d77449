"""Known answers of RFC 7748, 5869 and 8439, and of Shamir's scheme with fixed coefficients."""

import itertools

import numpy as np
import pytest
from gmpy2 import next_prime
from seeded_keys import SeededRandomness

from fedtrees.crypto import shamir
from fedtrees.crypto.primitives import (
    MalformedError,
    Secret,
    TooFewPartiesError,
    agree_on_secret,
    expand_key,
    expand_mask,
    hkdf,
    public_key_of,
)


def secret_of(text):
    return Secret(bytes.fromhex(text))


def test_x25519_section_5_2():
    computed = agree_on_secret(
        secret_of("a546e36bf0527c9d3b16154b82465edd62144c0ac1fc5a18506a2244ba449ac4"),
        bytes.fromhex("e6db6867583030db3594c1a424b15f7c726624ec26b3353b10a903a6d0ab1c4c"),
    )
    expected = "c3da55379de9c6908e94ea4df28d084f32eccf03491c71f754b4075577a28552"
    assert computed.reveal().hex() == expected


def test_x25519_section_6_1():
    alice = secret_of("77076d0a7318a57d3c16c17251b26645df4c2f87ebc0992ab177fba51db92c2a")
    bob = secret_of("5dab087e624a8a4b79e17f8b83800ee66f3bb1292618b6fd1c2f8b27ff88e0eb")
    first, second = public_key_of(alice), public_key_of(bob)
    assert first.hex() == "8520f0098930a754748b7ddcb43ef75a0dbf3a0d26381af4eba4a98eaa9b4e6a"
    assert second.hex() == "de9edb7d7b7dc1b4d35b61c2ece435373f8343c85b78674dadfc7e146f882b4f"
    shared = "4a5d9d5ba4ce2de1728e3bf480350f25e07e21c947d19e3376f09b3c1e161742"
    assert (
        agree_on_secret(alice, second).reveal().hex()
        == agree_on_secret(bob, first).reveal().hex()
        == shared
    )


def test_hkdf_expand_case_1():
    key = secret_of("077709362c2e32df0ddc3f0dc47bba6390b6c73bb50f9c3122ec844ad7c2b3e5")
    computed = expand_key(key, bytes(range(0xF0, 0xFA)))
    expected = "3cb25f25faacd57a90434f64d0362f2a2d2d0a90cf1a5a4c5db02d56ecc4c5bf"
    assert computed.reveal().hex() == expected


@pytest.mark.parametrize("public", [bytes(32), bytes([1] + [0] * 31), bytes(31)])
def test_a_public_key_without_a_secret_is_refused(public):
    with pytest.raises(MalformedError):
        agree_on_secret(secret_of("77" * 32), public)


def test_hkdf_cases_1_and_3():
    key = bytes.fromhex("0b" * 22)
    salt, info = bytes(range(13)), bytes(range(0xF0, 0xFA))
    first = "3cb25f25faacd57a90434f64d0362f2a2d2d0a90cf1a5a4c5db02d56ecc4c5bf34007208d5b887185865"
    third = "8da4e775a563c18f715f802a063c5a31b8a11f5c5ee1879ec3454e5f3c738d2d9d201395faa4b61a96c8"
    assert hkdf(key, salt, info, 42).hex() == first
    assert hkdf(key, b"", b"", 42).hex() == third


def test_chacha20_appendix_a_1():
    first_block = (
        "76b8e0ada0f13d90405d6ae55386bd28bdd219b8a08ded1aa836efcc8b770dc7"
        "da41597c5157488d7724e03fb8d84a376a43b8f41518a11cc387b669b2ee6586"
    )
    computed = expand_mask(Secret(bytes(32)), 8)
    assert computed.dtype == np.uint64
    assert computed.astype("<u8").tobytes().hex() == first_block
    second_block = (
        "3aeb5224ecf849929b9d828db1ced4dd832025e8018b8160b82284f3c949aa5a"
        "8eca00bbb4a73bdad192b5c42f73f2fd4e273644c8b36125a64addeb006c13a0"
    )
    # Test vector 3 contains the second block.
    computed = expand_mask(Secret(bytes(31) + b"\1"), 16)
    assert computed[8:].astype("<u8").tobytes().hex() == second_block


def test_shamir_with_fixed_coefficients():
    points = [shamir.evaluate([1234, 166, 94], x) for x in range(1, 7)]
    assert points == [1494, 1942, 2578, 3402, 4414, 5614]
    shares = {x: y.to_bytes(33, "big") for x, y in enumerate(points, 1)}
    for subset in itertools.combinations(shares, 3):
        computed = shamir.combine({x: shares[x] for x in subset}, 3)
        assert int.from_bytes(computed.reveal(), "big") == 1234


def test_the_field_is_the_smallest_above_32_bytes():
    assert next_prime(2**256) == shamir.PRIME


@pytest.mark.parametrize("value", [bytes(32), b"\xff" * 32, bytes(range(32))])
def test_a_shared_secret_is_recovered_from_any_threshold(value):
    shares = shamir.share(Secret(value), 3, [1, 2, 4, 7], SeededRandomness(0))
    assert {len(text) for text in shares.values()} == {33}
    for some in itertools.combinations(shares, 3):
        assert shamir.combine({x: shares[x] for x in some}, 3).reveal() == value
    with pytest.raises(TooFewPartiesError, match="3 are needed"):
        shamir.combine({x: shares[x] for x in (1, 2)}, 3)


def test_fewer_shares_fit_every_secret():
    """Two of three shares lie on a polynomial for every secret."""
    shares = shamir.share(Secret(bytes(32)), 3, [1, 2, 3], SeededRandomness(0))
    for wish in (0, 1, 2**255):
        third = None
        y1, y2 = (int.from_bytes(shares[x], "big") for x in (1, 2))
        # f(3) of the parabola through (0, wish), (1, y1), (2, y2).
        third = (wish - 3 * y1 + 3 * y2) % shamir.PRIME
        forged = {1: shares[1], 2: shares[2], 3: third.to_bytes(33, "big")}
        assert int.from_bytes(shamir.combine(forged, 3).reveal(), "big") == wish


def test_invalid_shares_are_refused():
    shares = shamir.share(Secret(bytes(32)), 2, [1, 2], SeededRandomness(0))
    with pytest.raises(MalformedError, match="33 bytes"):
        shamir.combine({1: shares[1][:-1], 2: shares[2]}, 2)
    with pytest.raises(MalformedError, match="below"):
        shamir.combine({1: shamir.PRIME.to_bytes(33, "big"), 2: shares[2]}, 2)

"""The generator of noise: its bits are those of AES in counter mode, and its laws are right."""

import numpy as np
import pytest
from cryptography.hazmat.primitives.ciphers import Cipher, algorithms, modes
from scipy import stats

from fedtrees.core.streams import Keystream, Streams

KEY = bytes(range(32))


def generator():
    return np.random.Generator(Keystream(KEY))


def test_bits_are_those_of_the_library_across_many_refills():
    cipher = Cipher(algorithms.AES256(KEY), modes.CTR(bytes(16))).encryptor()
    expected = np.frombuffer(cipher.update(bytes(8 * 40_000)), "<u8")
    rng = generator()
    drawn = [rng.integers(0, 2**64, n, dtype=np.uint64) for n in (1, 63, 1, 39_935)]
    assert np.array_equal(np.concatenate(drawn), expected)


def test_halves_of_words_are_used_once_each():
    cipher = Cipher(algorithms.AES256(KEY), modes.CTR(bytes(16))).encryptor()
    expected = np.frombuffer(cipher.update(bytes(4 * 1000)), "<u4")
    drawn = generator().integers(0, 2**32, 1000, dtype=np.uint32)
    assert np.array_equal(drawn, expected)


@pytest.mark.parametrize("law", ["random", "standard_normal", "standard_exponential"])
def test_draws_of_numpy_follow_their_laws(law):
    name = {"random": "uniform", "standard_normal": "norm", "standard_exponential": "expon"}[law]
    drawn = getattr(generator(), law)(20_000)
    assert stats.kstest(drawn, name).pvalue > 1e-3


def test_noise_comes_from_the_keystream_and_everything_else_from_numpy():
    streams = Streams(0, "seed")
    for noise in (streams.noise, streams.noise.child("a"), streams.child("a").noise):
        assert isinstance(noise.rng("noise").bit_generator, Keystream)
    assert not isinstance(streams.child("a").rng("columns").bit_generator, Keystream)
    again = Streams(0, "seed").noise.rng("noise", 3).integers(0, 1 << 40, 9)
    assert np.array_equal(streams.noise.rng("noise", 3).integers(0, 1 << 40, 9), again)


def test_two_generators_do_not_share_a_buffer():
    one, other = generator(), generator()
    first = one.random(50)
    one.random(10_000)
    assert np.array_equal(other.random(50), first)

"""The noise generator: its bits equal AES in counter mode, and its distributions are right."""

import numpy as np
import pytest
from cryptography.hazmat.primitives.ciphers import Cipher, algorithms, modes
from scipy import stats

from fedtrees.core.streams import Keystream, Streams

KEY = bytes(range(32))


def generator():
    return np.random.Generator(Keystream(KEY))


def test_bits_equal_those_of_the_library_across_many_refills():
    cipher = Cipher(algorithms.AES256(KEY), modes.CTR(bytes(16))).encryptor()
    expected = np.frombuffer(cipher.update(bytes(8 * 40_000)), "<u8")
    rng = generator()
    draws = [rng.integers(0, 2**64, size, dtype=np.uint64) for size in (1, 63, 1, 39_935)]
    assert np.array_equal(np.concatenate(draws), expected)


def test_the_two_halves_of_a_word_are_used_once_each():
    cipher = Cipher(algorithms.AES256(KEY), modes.CTR(bytes(16))).encryptor()
    expected = np.frombuffer(cipher.update(bytes(4 * 1000)), "<u4")
    draws = generator().integers(0, 2**32, 1000, dtype=np.uint32)
    assert np.array_equal(draws, expected)


@pytest.mark.parametrize("method", ["random", "standard_normal", "standard_exponential"])
def test_draws_of_numpy_have_the_right_distribution(method):
    name = {"random": "uniform", "standard_normal": "norm", "standard_exponential": "expon"}[method]
    draws = getattr(generator(), method)(20_000)
    assert stats.kstest(draws, name).pvalue > 1e-3


def test_only_noise_comes_from_the_keystream():
    streams = Streams(0, "seed")
    for noise in (streams.noise, streams.noise.child("a"), streams.child("a").noise):
        assert isinstance(noise.rng("noise").bit_generator, Keystream)
    assert not isinstance(streams.child("a").rng("columns").bit_generator, Keystream)
    expected = Streams(0, "seed").noise.rng("noise", 3).integers(0, 1 << 40, 9)
    assert np.array_equal(streams.noise.rng("noise", 3).integers(0, 1 << 40, 9), expected)


def test_two_generators_do_not_share_a_buffer():
    first_generator, second_generator = generator(), generator()
    expected = first_generator.random(50)
    first_generator.random(10_000)
    assert np.array_equal(second_generator.random(50), expected)

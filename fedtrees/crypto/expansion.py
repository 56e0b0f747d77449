"""Masks: the key stream of ChaCha20 (RFC 8439) under a seed."""

import numpy as np
from cryptography.hazmat.primitives.ciphers import Cipher
from cryptography.hazmat.primitives.ciphers.algorithms import ChaCha20
from numpy.typing import NDArray

from fedtrees.sealing.secret import Secret

# Counter and nonce are 0: every seed is derived for one message, and expanded for nothing else.
_START = bytes(16)


def expand(seed: Secret[bytes], count: int) -> NDArray[np.uint64]:
    """Return so many numbers, uniform below 2^64 for whoever does not know the seed of 32 bytes."""
    stream = Cipher(ChaCha20(seed.reveal(), _START), mode=None).encryptor()
    return np.frombuffer(stream.update(bytes(8 * count)), dtype="<u8").astype(np.uint64, copy=False)

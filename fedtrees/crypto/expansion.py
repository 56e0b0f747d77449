"""Masks: the key stream of ChaCha20 (RFC 8439) of a seed."""

import numpy as np
from cryptography.hazmat.primitives.ciphers import Cipher
from cryptography.hazmat.primitives.ciphers.algorithms import ChaCha20
from numpy.typing import NDArray

from fedtrees.sealing.secret import Secret

# Counter and nonce are 0, because every seed is derived for one message and expanded only once.
_START = bytes(16)


def expand(seed: Secret[bytes], count: int) -> NDArray[np.uint64]:
    """Return `count` numbers from a seed of 32 bytes.

    They are pseudorandom and uniform below 2^64 for a party that does not know the seed.
    """
    stream = Cipher(ChaCha20(seed.reveal(), _START), mode=None).encryptor()
    return np.frombuffer(stream.update(bytes(8 * count)), dtype="<u8").astype(np.uint64, copy=False)

"""Messages of the cryptographic protocols behind secure sums: keys, shares and ciphertexts.

They are `Sealed`: without the key they reveal nothing about rows. Under ``mode=ideal`` no
cryptography runs, and only the number of bytes is recorded. The defenses `masking` (Bonawitz et al.
2017) and `paillier` send these messages.
"""

import numpy as np
from numpy.typing import NDArray

from fedtrees.core.messages import Message, Request, Reveal, Sealed, message

# Without the key, keys, shares and ciphertexts reveal nothing.
_NOTHING: frozenset[Reveal] = frozenset()


@message()
class MaskKeysRequest(Request["MaskKeys"]):
    """Ask clients for public keys for the next sums.

    Attributes
    ----------
    batch : int
        Number of the batch, from 0. Every key is bound to it.
    sums : int
        Number of sums of the batch.
    threshold : int
        Number of clients that must not drop out.
    """

    batch: int
    sums: int
    threshold: int


@message(discloses=_NOTHING)
class MaskKeys(Message):
    """A client's public key.

    Attributes
    ----------
    keys : Sealed
        32 bytes.
    """

    keys: Sealed


@message()
class MaskRoster(Request["MaskShares"]):
    """The public keys of all clients.

    Attributes
    ----------
    parties : str
        Names of the clients, joined by commas.
    keys : Sealed
        Their keys, in the same order.
    """

    parties: str
    keys: Sealed


@message(discloses=_NOTHING)
class MaskShares(Message):
    """Secret shares of a client, encrypted for each other client, commitments and locked seeds.

    Attributes
    ----------
    boxes : Sealed
        Result of `fedtrees.crypto.masks.MaskingParty.deal`.
    """

    boxes: Sealed


@message(discloses=_NOTHING)
class MaskBoxes(Message):
    """The encrypted shares that the other clients sent to one client.

    Attributes
    ----------
    parties : str
        Names of the other clients, joined by commas.
    boxes : Sealed
        Their encrypted shares, in the same order.
    """

    parties: str
    boxes: Sealed


@message()
class MaskSurvivors(Request["MaskOpening"]):
    """The clients whose masked arrays arrived and enter a sum.

    Attributes
    ----------
    sum : int
        Number of the sum in its batch.
    parties : str
        Names of the clients, joined by commas.
    """

    sum: int
    parties: str


@message(discloses=_NOTHING)
class MaskOpening(Message):
    """Shares with which one client helps to open a sum.

    These are shares of the self-masks of the clients in the sum, and of the lock keys of clients
    that dropped out.

    Attributes
    ----------
    sum : int
        Number of the sum in its batch.
    shares : Sealed
        One share for each client that dealt shares.
    """

    sum: int
    shares: Sealed


@message(discloses=_NOTHING)
class PaillierKey(Message):
    """The public key that all clients encrypt with.

    Attributes
    ----------
    holder : str
        Name of the party with the private key.
    bits : int
        Length of the modulus n.
    key : Sealed
        The modulus n and, for short obfuscators, the base of the obfuscators.
    """

    holder: str
    bits: int
    key: Sealed


@message(discloses=_NOTHING)
class PaillierSeeds(Message):
    """Seeds of the masks that clients add before encryption. Only the key holder can read them.

    Attributes
    ----------
    parties : str
        Names of the clients, joined by commas.
    seeds : Sealed
        Their encrypted seeds, in the same order.
    """

    parties: str
    seeds: Sealed


@message(discloses={Reveal.LABELS, Reveal.COUNTS, Reveal.FEATURES})
class OpenedSum(Message):
    """A sum that the key holder decrypted for the server.

    Attributes
    ----------
    what : str
        Type of the replies that were added.
    values : int64 array, shape (m,)
        All summed fields, concatenated, in the integer representation of
        `fedtrees.core.secure_sum.to_integers`.
    """

    what: str
    values: NDArray[np.int64]

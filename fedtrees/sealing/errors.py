"""Errors of cryptographic operations. Each message names the value, the rule and the remedy."""

from fedtrees.core.errors import ProtocolError


class CryptoError(ProtocolError):
    """Base of all errors about ciphertexts, masks and shares."""


class ExposureError(CryptoError):
    """An operation would reveal a secret: a key, both shares, or the summand of one party."""


class PlaintextOverflowError(CryptoError):
    """A value or a sum of values does not fit its slot of a plaintext."""


class WrongKeyError(CryptoError):
    """Ciphertexts, shares, boxes or tags belong to different keys, or were changed."""


class MalformedError(CryptoError):
    """A message has a wrong length, or contains numbers that an honest party does not send."""


class TooFewPartiesError(CryptoError):
    """Fewer parties remain than the threshold requires."""


class MissingPartyError(CryptoError):
    """A party is missing from a sum that needs all parties, or those of earlier sums."""


class LateError(CryptoError):
    """A message belongs to a round that has ended, or has not started."""


class RepeatedError(CryptoError):
    """A message was received twice, or a mask would be used twice."""

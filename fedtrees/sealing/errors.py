"""Errors of the cryptography; each names the value, the rule and the remedy."""

from fedtrees.core.errors import ProtocolError


class CryptoError(ProtocolError):
    """Base of what can go wrong with ciphertexts, masks and shares."""


class ExposureError(CryptoError):
    """Something would be told that must not: a key, both shares, one party's part of a sum."""


class PlaintextOverflowError(CryptoError):
    """A value or a sum of values does not fit the place it was given in a plaintext."""


class WrongKeyError(CryptoError):
    """Ciphertexts, shares, boxes or tags of different keys meet, or were changed on the way."""


class MalformedError(CryptoError):
    """Bytes of the wrong length, or numbers that no honest party sends."""


class TooFewPartiesError(CryptoError):
    """Fewer parties are left than the threshold asks for."""


class MissingPartyError(CryptoError):
    """A party is missing from a sum that needs everybody, or the same as the sums before it."""


class LateError(CryptoError):
    """A message of a round that is over, or not yet open."""


class RepeatedError(CryptoError):
    """A message came twice, or a mask would be used twice."""

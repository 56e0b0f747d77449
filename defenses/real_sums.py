"""Common part of the defenses `paillier` and `masking`: their claim, and opaque message fields."""

from typing import ClassVar

from fedtrees.core.errors import check_known
from fedtrees.core.guarantee import Computational, Guarantee
from fedtrees.core.messages import Message, Trait, having
from fedtrees.core.sealed import Sealed
from fedtrees.core.transcript import Transcript
from fedtrees.defenses.secure_sum import SealedSums
from fedtrees.messages.boosting import GlobalHistogram
from fedtrees.messages.cuts import FeatureRanges, FeatureSketch

MODES = ("real", "ideal")

#: Information that a secure sum does not protect, and the message types that contain it.
_UNCOVERED: dict[str, tuple[type[Message], ...]] = {
    "cut-summaries": (FeatureSketch, FeatureRanges),
    "sums-to-clients": (GlobalHistogram,),
}


class RealSums(SealedSums):  # type: ignore[misc]
    """Base of secure sums that are computed with cryptography.

    Attributes
    ----------
    always_read : str
        Name in the claim for a party that reads every sum in addition to the server. Empty if there
        is none.
    mode : {"real", "ideal"}
        ``ideal``: the same messages and byte counts without cryptographic computations.
    """

    always_read: ClassVar[str] = ""
    nonexpansive = having(Trait.SUMMED, Trait.COUNTED)  # sums are exact
    mode: str

    def strength(self) -> tuple[int, str]:
        """Return the security level in bits, and the names of the assumptions."""
        raise NotImplementedError

    def __post_init__(self) -> None:
        check_known("mode", self.mode, MODES)

    def claim(self) -> Guarantee:
        """Return the claim, and all information that it may not cover."""
        return self._claim(*_UNCOVERED)

    def spent(self, transcript: Transcript) -> Guarantee:
        """Return the claim, and the uncovered information that was sent in a run."""
        crossed = {type(d.message) for d in transcript}
        return self._claim(*(n for n, kinds in _UNCOVERED.items() if crossed & {*kinds}))

    def _claim(self, *uncovered: str) -> Guarantee:
        bits, assumes = self.strength()
        names = [*uncovered, *([self.always_read] if self.always_read else [])]
        return Computational(bits, assumes, "+".join(names), self.mode)


def opaque(text: bytes, nbytes: int, *, real: bool) -> Sealed:
    """Return bytes without information about rows as a message field. Empty if not `real`."""
    # The declared length enters the transcript in both modes.
    assert len(text) == (nbytes if real else 0)
    return Sealed((), (nbytes,), "|u1", nbytes, text)

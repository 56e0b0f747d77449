"""What `paillier` and `masking` share: the claim, opaque message fields, costs as numbers."""

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

#: What a secure sum does not cover, by the messages that show it crossed.
_UNCOVERED: dict[str, tuple[type[Message], ...]] = {
    "cut-summaries": (FeatureSketch, FeatureRanges),
    "sums-to-clients": (GlobalHistogram,),
}


class RealSums(SealedSums):  # type: ignore[misc]
    """Base of secure sums by cryptography.

    `always_read`: Who reads every sum beside the server, in words of the claim.
    `mode`: {"real", "ideal"}
    """

    always_read: ClassVar[str] = ""
    nonexpansive = having(Trait.SUMMED, Trait.COUNTED)  # sums are exact
    mode: str

    def strength(self) -> tuple[int, str]:
        """Return the bits of strength, and what is assumed."""
        raise NotImplementedError

    def __post_init__(self) -> None:
        check_known("mode", self.mode, MODES)

    def claim(self) -> Guarantee:
        """Return what holds, and what may be read beside the server's sums."""
        return self._claim(*_UNCOVERED)

    def spent(self, transcript: Transcript) -> Guarantee:
        """Return the same with what really crossed beside the sums."""
        crossed = {type(d.message) for d in transcript}
        return self._claim(*(n for n, kinds in _UNCOVERED.items() if crossed & {*kinds}))

    def _claim(self, *uncovered: str) -> Guarantee:
        bits, assumes = self.strength()
        names = [*uncovered, *([self.always_read] if self.always_read else [])]
        return Computational(bits, assumes, "+".join(names), self.mode)


def opaque(text: bytes, nbytes: int, *, real: bool) -> Sealed:
    """Return bytes that say nothing of rows as a message field; without them if not real."""
    assert len(text) == (nbytes if real else 0)
    return Sealed((), (nbytes,), "|u1", nbytes, text)

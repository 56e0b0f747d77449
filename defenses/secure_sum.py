"""The defense `secure-sum`, and the common part of the defenses `paillier` and `masking`.

`secure-sum` is the ideal functionality of secure aggregation of histograms. The common part is the
claim, and the opaque message fields.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from fedtrees.core.defense import Defense
from fedtrees.core.guarantee import Computational, Guarantee, Structural
from fedtrees.core.messages import Message, Reveal, Trait, permit_types_with, types_with
from fedtrees.core.registry import register
from fedtrees.core.transcript import Transcript
from fedtrees.messages.horizontal import FeatureRanges, FeatureSketch, GlobalHistogram

_SUMMARY = (
    "not covered: a summary of columns is no sum (a sketch is the columns); grid-cuts sends "
    "counts in its place, public-cuts nothing"
)


class SealedSums(Defense):
    """Base of defenses that let only sums over clients be opened, by any mechanism."""

    roles = frozenset({"client"})
    protects = frozenset({Reveal.LABELS, Reveal.COUNTS, Reveal.FEATURES})
    handled_types = types_with(Trait.SUMMED, Trait.COUNTED)
    summed_types = handled_types
    applies_to = types_with(Trait.SUMMED)
    permitted_types = permit_types_with(
        {
            Trait.SUMMED_SECURELY: "the protocol itself sums it securely",
            Trait.SUMMARY: _SUMMARY,
            Trait.GROWN_ALONE: "not covered: trees that clients share are no sum",
        }
    )


@register.defense("secure-sum")
@dataclass(frozen=True)
class SecureSum(SealedSums):
    """Let the server learn only the sum of the clients' histograms (Bonawitz et al. 2017).

    This is the ideal functionality. It leaves the information visible that every correct protocol
    for secure aggregation leaves visible. It hides the contribution of each client, not the sum
    itself. For example, in the protocol ``nvflare-hist`` every client still receives the sum.
    Sketches of columns are sent without protection.
    """

    guarantee = Structural()


MODES = ("real", "ideal")

#: Information that a secure sum does not protect, and the message types that contain it.
_UNCOVERED: dict[str, tuple[type[Message], ...]] = {
    "cut-summaries": (FeatureSketch, FeatureRanges),
    "sums-to-clients": (GlobalHistogram,),
}


class RealSums(SealedSums):
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
    nonexpansive = types_with(Trait.SUMMED, Trait.COUNTED)  # sums are exact
    mode: str

    def strength(self) -> tuple[int, tuple[str, ...]]:
        """Return the security level in bits, and the names of the assumptions."""
        raise NotImplementedError

    def claim(self) -> Guarantee:
        """Return the claim, and all information that it may not cover."""
        return self._claim(*_UNCOVERED)

    def spent(self, transcript: Transcript) -> Guarantee:
        """Return the claim, and the uncovered information that was sent in a run."""
        crossed = {type(d.message) for d in transcript}
        return self._claim(*(n for n, kinds in _UNCOVERED.items() if crossed & {*kinds}))

    def _claim(self, *uncovered: str) -> Guarantee:
        bits, assumes = self.strength()
        names = (*uncovered, *([self.always_read] if self.always_read else []))
        return Computational(bits, assumes, names, self.mode)

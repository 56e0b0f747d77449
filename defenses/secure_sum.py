"""Defense `secure-sum`: the ideal functionality of secure aggregation of histograms."""

from dataclasses import dataclass

from fedtrees.core.defense import Defense
from fedtrees.core.guarantee import Structural
from fedtrees.core.messages import Message, Reveal, Trait, exempting, having
from fedtrees.core.registry import register

_SUMMARY = (
    "not covered: a summary of columns is no sum (a sketch is the columns); grid-cuts sends "
    "counts in its place, public-cuts nothing"
)


class SealedSums(Defense):
    """Base of defenses that let only sums over clients be opened, by any mechanism."""

    acts_through = frozenset({"summed"})
    at = frozenset({"client"})
    protects = frozenset({Reveal.LABELS, Reveal.COUNTS, Reveal.FEATURES})
    guards = having(Trait.SUMMED, Trait.COUNTED)
    requires = having(Trait.SUMMED)
    exempts = exempting(
        {
            Trait.SUMMED_SECURELY: "the protocol itself sums it securely",
            Trait.SUMMARY: _SUMMARY,
            Trait.GROWN_ALONE: "not covered: trees that clients share are no sum",
        }
    )

    def summed(self) -> tuple[type[Message], ...]:
        """Name the histograms, and the counts from which cut points are computed."""
        return self.guards  # type: ignore[no-any-return]


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

"""Defense `masking`: secure aggregation by pairwise masks, with real cryptography.

The protocol is that of Bonawitz et al. (2017, figure 4). Each client adds masks to its summed
fields that cancel in the sum over all clients. The server learns the sum if at least a threshold of
clients stays until the end. The sums are computed in `fedtrees.crypto.masking`.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from fedtrees.core.channel import ConditionalOmission
from fedtrees.core.defense import Channels
from fedtrees.core.errors import UsageError
from fedtrees.core.guarantee import Computational, Guarantee
from fedtrees.core.parameters import flag, one_of, whole
from fedtrees.core.reasons import Reason
from fedtrees.core.registry import register
from fedtrees.core.schema import Schema
from fedtrees.core.secure_sum import SecureAggregation
from fedtrees.core.transcript import Transcript
from fedtrees.crypto.mask_keys import MaskPlan, usual_threshold
from fedtrees.crypto.masking import MaskedAggregation
from fedtrees.crypto.survivors import SurvivorSets
from fedtrees.defenses.secure_sum import MODES, RealSums
from fedtrees.messages.aggregation import MaskSurvivors

# Name in the claim: the opened sums have different survivors, and their combination reveals the
# reply of one client.
_DIFFERING = "differing-survivors"


@register.defense("masking")
@dataclass(frozen=True)
class Masking(RealSums):  # type: ignore[misc]
    """Let the server open only sums, by masks that cancel in them (Bonawitz et al. 2017, figure 4).

    Each pair of clients agrees on a key with X25519, derives a seed per sum with HKDF-SHA256, and
    expands it with ChaCha20. Shamir shares of the secrets recover the masks of clients that drop
    out. A server that colludes with at least `threshold` clients can read the reply of every
    client.

    Parameters
    ----------
    threshold : int or None
        Number of clients that must stay until the end for a sum to be opened, more than half of
        them. None: ``floor(2 n / 3) + 1``, at most n.
    mode : {"real", "ideal"}
        ``ideal``: the same messages and byte counts without cryptographic computations.
    dropout : float
        Probability in [0, 1) that the network loses a client's replies for one tree. It is drawn
        from the experiment's seed, and the tree is grown on the remaining clients. The same applies
        to label sums, counts on a grid and validation losses. With fewer clients than the
        threshold, the run stops. It also stops if fewer clients contribute to a sum than its shared
        noise is calibrated for.
    exposing : bool
        Open sums over different sets of survivors even if their combination reveals the reply of
        one client (`fedtrees.crypto.survivors`). False: the clients refuse, and the run stops.
    """

    threshold: int | None = whole(2, default=None)
    mode: str = one_of(MODES, default="real")
    dropout: float = 0.0
    exposing: bool = flag(False)

    def __post_init__(self) -> None:
        super().__post_init__()
        if type(self.dropout) not in (int, float) or not 0 <= self.dropout < 1:
            raise UsageError(f"dropout={self.dropout!r}: give a number from 0 to below 1")

    def check(self, roles: Mapping[str, str], parameters: Mapping[str, Any]) -> None:
        """Refuse a threshold that is not a majority of the clients, or more than all of them."""
        if self.threshold is not None:
            clients = tuple(name for name, role in roles.items() if role == "client")
            MaskPlan(clients, self.threshold)

    def channels(self, schema: Schema, parameters: Mapping[str, Any]) -> Channels:
        """State that clients may be missing from sums, if there is dropout."""
        lost = ConditionalOmission("a client's part of the sums of a tree may be lost on the way")
        return {("sums", "parties"): lost} if self.dropout else {}

    def strength(self) -> tuple[int, tuple[str, ...]]:
        """Return the security level in bits, and the cryptographic assumptions."""
        return 128, ("x25519", "chacha20")

    def secure_aggregation(self) -> SecureAggregation:
        """Create the secure aggregation of one run."""
        return MaskedAggregation(
            self.threshold,
            ideal=self.mode == "ideal",
            dropout=self.dropout,
            exposing=self.exposing,
        )

    def claim(self) -> Guarantee:
        """Return the claim, and the information that is not covered by it."""
        return _add_differing_survivors(super().claim(), self.exposing)

    def spent(self, transcript: Transcript) -> Guarantee:
        """Return the claim for the messages of a run.

        It names different survivors as uncovered if the combination of the opened sums reveals a
        reply.
        """
        sets = SurvivorSets(exposing=True)
        for d in transcript:
            if isinstance(d.message, MaskSurvivors):
                sets.note(d.message.parties.split(","))
        return _add_differing_survivors(super().spent(transcript), bool(sets.exposed))

    def broken_by(self, principals: Sequence[str], roles: Mapping[str, str]) -> Reason | None:
        """Return a reason if the server colludes with at least `threshold` clients, None otherwise.

        Also None if fewer than two clients do not collude. The sum then reveals the remaining reply
        without breaking the masks.
        """
        clients = [name for name, role in roles.items() if role == "client"]
        colluding = [name for name in clients if name in principals]
        threshold = self.threshold or usual_threshold(len(clients))
        servers = [name for name in principals if roles[name] == "server"]
        # The collusion only matters if it reveals a reply that the sum does not reveal anyway.
        if not servers or len(colluding) < threshold or len(clients) - len(colluding) < 2:
            return None
        names = ", ".join((*servers, *colluding))
        details = {"shares": len(colluding), "threshold": threshold, "defense": self.name}
        return Reason("shares-open", who=names, **details)


def _add_differing_survivors(claim: Guarantee, also: bool) -> Guarantee:
    """Add the name of different survivors to the uncovered information if `also` is true."""
    assert isinstance(claim, Computational)
    return replace(claim, uncovered=(*claim.uncovered, _DIFFERING)) if also else claim

"""What a defense guarantees, as values: claimed by it, spent by a run, measured by an audit."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields
from typing import ClassVar

from fedtrees.core.errors import UsageError


@dataclass(frozen=True)
class Guarantee:
    """Base of all guarantees; written in the inline grammar of specs: ``kind[key=value,...]``."""

    kind: ClassVar[str] = "none"

    def __str__(self) -> str:
        parts = []
        for item in fields(self):
            value = getattr(self, item.name)
            if value != item.default:
                parts.append(
                    f"{item.name}={value:g}" if isinstance(value, float) else f"{item.name}={value}"
                )
        return f"{self.kind}[{','.join(parts)}]" if parts else self.kind


@dataclass(frozen=True)
class NoGuarantee(Guarantee):
    """Nothing is promised."""


@dataclass(frozen=True)
class ActedOnNothing(Guarantee):
    """Nothing that the defense handles crossed in the run: it protected nothing."""

    kind: ClassVar[str] = "acted-on-nothing"


@dataclass(frozen=True)
class Structural(Guarantee):
    """Some values are never sent; what remains is not bounded."""

    kind: ClassVar[str] = "structural"


@dataclass(frozen=True)
class Computational(Guarantee):
    """Nobody with bounded computing power reads more than the functionality's output."""

    kind: ClassVar[str] = "computational"
    bits: int = 0


@dataclass(frozen=True)
class PureDP(Guarantee):
    """Pure differential privacy (Dwork et al. 2006), add-or-remove-one-row neighbours.

    Attributes
    ----------
    epsilon : float
        In nats; infinite if anything private crossed unprotected.
    unit : str
        What the epsilon speaks of: ``record`` (the whole run) or ``histogram`` (one release).
    histograms : float
        Where `epsilon` is infinite: what the protected part alone composes to.
    unprotected : str
        Names of what crossed without protection, joined by ``+``.
    """

    kind: ClassVar[str] = "pure-dp"
    epsilon: float
    unit: str = "record"
    histograms: float = 0.0
    unprotected: str = ""

    def __post_init__(self) -> None:
        if not self.epsilon > 0:
            raise UsageError(f"epsilon must be > 0; got {self.epsilon}")


@dataclass(frozen=True)
class LabelDP(Guarantee):
    """Differential privacy of the label alone (Chaudhuri and Hsu 2011)."""

    kind: ClassVar[str] = "label-dp"
    epsilon: float

    def __post_init__(self) -> None:
        if not self.epsilon > 0:
            raise UsageError(f"epsilon must be > 0; got {self.epsilon}")


@dataclass(frozen=True)
class MutualInformation(Guarantee):
    """At most `xi` nats between the labels and what one node shows."""

    kind: ClassVar[str] = "mutual-information"
    xi: float


def join(guarantees: Sequence[Guarantee]) -> str:
    """Write the guarantees of composed defenses in order, without the empty ones."""
    texts = [str(g) for g in guarantees if not isinstance(g, NoGuarantee)]
    return "+".join(texts) or "none"

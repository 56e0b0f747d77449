"""What a defense guarantees, as values: claimed by it, spent by a run, measured by an audit."""

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from typing import ClassVar

from fedtrees.core.errors import UsageError, check_share
from fedtrees.core.specs import Spec, Value, parse_grid, split_outside

_BUDGETS = ("epsilon", "xi", "rho", "mu")


@dataclass(frozen=True)
class Guarantee:
    """Base of all guarantees; written in the inline grammar of specs: ``kind[key=value,...]``."""

    kind: ClassVar[str] = "none"

    @property
    def stated(self) -> dict[str, Value]:
        """The parameters that are not at their defaults."""
        values = {item.name: getattr(self, item.name) for item in fields(self)}
        return {item.name: values[item.name] for item in fields(self)
                if values[item.name] != item.default}  # fmt: skip

    @property
    def budget(self) -> tuple[str, float] | None:
        """Name and value of what bounds the leak, None where nothing does."""
        found = ((key, self.stated.get(key)) for key in _BUDGETS)
        return next(((k, float(v)) for k, v in found if type(v) in (int, float)), None)  # type: ignore[arg-type]

    def __str__(self) -> str:
        return written(self.kind, {key: show(value) for key, value in self.stated.items()})


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
    """Nobody with bounded computing power reads more than the functionality's output.

    Attributes
    ----------
    bits : int
        Strength, as the length of a symmetric key.
    assumes : str
        What is taken to be hard, joined by ``+``.
    uncovered : str
        Names of what is read beside that output, or crosses as it is, joined by ``+``.
    mode : str
        ``ideal``: the functionality and its traffic, without arithmetic.
    """

    kind: ClassVar[str] = "computational"
    bits: int = 0
    assumes: str = ""
    uncovered: str = ""
    mode: str = "real"


@dataclass(frozen=True)
class PureDP(Guarantee):
    """Pure differential privacy (Dwork et al. 2006), add-or-remove-one-row neighbours.

    Attributes
    ----------
    epsilon : float
        In nats; infinite if anything private crossed unprotected.
    unit : str
        What the epsilon speaks of: ``record`` (the whole run), ``histogram`` (one release) or
        ``cuts`` (the settling of cut points; what is trained on them is another matter).
    histograms : float
        Where `epsilon` is infinite: what the protected part alone composes to.
    unprotected : str
        Names of what crossed without protection, joined by ``+``.
    trusted : str
        Roles against whom nothing is guaranteed, joined by ``+``: a ``server`` that adds the noise
        sees what it adds it to; ``clients`` that each add a share must keep it to themselves.
    """

    kind: ClassVar[str] = "pure-dp"
    epsilon: float
    unit: str = "record"
    histograms: float = 0.0
    unprotected: str = ""
    trusted: str = ""

    def __post_init__(self) -> None:
        if not self.epsilon > 0:
            raise UsageError(f"epsilon must be > 0; got {self.epsilon}")


@dataclass(frozen=True)
class ApproximateDP(Guarantee):
    """(epsilon, delta)-differential privacy (Dwork et al. 2006), add-or-remove-one-row neighbours.

    Attributes
    ----------
    epsilon : float
        In nats; infinite if anything private crossed unprotected.
    unit, unprotected, trusted : str
        As in `PureDP`.
    updates : float
        Where `epsilon` is infinite: what the updates of a network alone compose to.
    """

    kind: ClassVar[str] = "approximate-dp"
    epsilon: float
    delta: float
    unit: str = "record"
    unprotected: str = ""
    trusted: str = ""
    updates: float = 0.0

    def __post_init__(self) -> None:
        if not self.epsilon > 0:
            raise UsageError(f"epsilon must be > 0; got {self.epsilon}")
        check_share("delta", self.delta)


@dataclass(frozen=True)
class AtLeast(Guarantee):
    """What an audit found: no smaller epsilon holds, with 95% confidence.

    Attributes
    ----------
    epsilon : float
        In nats; 0: nothing was found.
    unit : str
        As in `PureDP`.
    runs : int
        From how many runs.
    delta : float
        Beside which.
    most : float
        The largest epsilon that the audit could have shown; 0: not known.
    """

    kind: ClassVar[str] = "at-least"
    epsilon: float
    unit: str = "record"
    runs: int = 1
    delta: float = 0.0
    most: float = 0.0


@dataclass(frozen=True)
class LabelDP(Guarantee):
    """Differential privacy of the label alone (Chaudhuri and Hsu 2011).

    Neighbours differ in the label of one row; all columns, and which rows there are, is public.

    Attributes
    ----------
    epsilon : float
        In nats, of the whole run.
    covers : str
        Whose view it speaks of; empty: whatever is made of the labels, the model and all that it
        answers included.
    """

    kind: ClassVar[str] = "label-dp"
    epsilon: float
    covers: str = ""

    def __post_init__(self) -> None:
        if not self.epsilon > 0:
            raise UsageError(f"epsilon must be > 0; got {self.epsilon}")


@dataclass(frozen=True)
class MutualInformation(Guarantee):
    """At most `xi` between the labels and what one node shows.

    `unit`: A share is one of ``log(1 / p)``, p the share of the rarest class.
    """

    kind: ClassVar[str] = "mutual-information"
    xi: float
    unit: str = "nats"


def join(guarantees: Sequence[Guarantee]) -> str:
    """Write the guarantees of composed defenses in order, without the empty ones."""
    texts = [str(g) for g in guarantees if not isinstance(g, NoGuarantee)]
    return "+".join(texts) or "none"


def without_noise(g: Guarantee) -> Guarantee:
    """Return what is left of a guarantee where others can draw its noise again: no bound.

    What rests on no noise stays.
    """
    if isinstance(g, PureDP | ApproximateDP):
        told = "+".join(filter(None, (g.unprotected, "noise")))
        return replace(g, epsilon=math.inf, unprotected=told)
    return replace(g, epsilon=math.inf) if isinstance(g, LabelDP) else g


@dataclass(frozen=True)
class Unknown(Guarantee):
    """A guarantee of a kind that is not imported here, as it was written."""

    spec: Spec

    @property
    def stated(self) -> dict[str, Value]:
        """The parameters as written."""
        return dict(self.spec.params)

    def __str__(self) -> str:
        return str(self.spec)


def show(value: Value) -> str:
    """Write a parameter of a guarantee: six digits are enough."""
    return f"{value:g}" if isinstance(value, float) else str(value)


def written(kind: str, stated: Mapping[str, str]) -> str:
    """Write a guarantee from the texts of its parameters."""
    inside = ",".join(f"{key}={text}" for key, text in stated.items())
    return f"{kind}[{inside}]" if inside else kind


def parse(text: str) -> tuple[Guarantee, ...]:
    """Read what `join` wrote; nothing for the empty text.

    Raises `UsageError` if it is not of the form ``kind[key=value,...]+...``.
    """
    return tuple(_one(spec) for piece in split_outside(text, "+") for spec in parse_grid(piece))


def _one(spec: Spec) -> Guarantee:
    known = {made.kind: made for made in _kinds(Guarantee) if made is not Unknown}
    read = {"float": float, "int": int, "str": str}
    try:
        made = known[spec.name]
        types = {
            item.name: read[str(getattr(item.type, "__name__", item.type))] for item in fields(made)
        }
        return made(**{key: types[key](value) for key, value in spec.params.items()})
    except (KeyError, TypeError, ValueError, OverflowError):
        return Unknown(spec)


def _kinds(base: type[Guarantee]) -> Iterator[type[Guarantee]]:
    for made in base.__subclasses__():
        yield made
        yield from _kinds(made)

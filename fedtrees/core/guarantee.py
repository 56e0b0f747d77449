"""Privacy guarantees as values: claimed by a defense, spent by a run, or measured by an audit.

Every guarantee can be written and read in the inline grammar ``kind[key=value,...]``.
"""

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from typing import ClassVar

from fedtrees.core.errors import UsageError, check_share
from fedtrees.core.specs import Spec, Value, parse_grid, split_outside

_BUDGETS = ("epsilon", "xi", "rho", "mu")


@dataclass(frozen=True)
class Guarantee:
    """Base class of all guarantees. The text form is ``kind[key=value,...]``."""

    kind: ClassVar[str] = "none"

    def __post_init__(self) -> None:
        # The text form, and plug-ins of the previous release, join several names by +.
        for item in fields(self):
            value = getattr(self, item.name)
            if item.default == () and isinstance(value, str):
                object.__setattr__(self, item.name, tuple(filter(None, value.split("+"))))

    @property
    def stated(self) -> dict[str, Value | tuple[str, ...]]:
        """The parameters that differ from their defaults."""
        values = {item.name: getattr(self, item.name) for item in fields(self)}
        return {item.name: values[item.name] for item in fields(self)
                if values[item.name] != item.default}  # fmt: skip

    @property
    def budget(self) -> tuple[str, float] | None:
        """Name and value of the parameter that bounds the leak, None if nothing bounds it."""
        parameters = ((key, self.stated.get(key)) for key in _BUDGETS)
        return next(((k, float(v)) for k, v in parameters if type(v) in (int, float)), None)  # type: ignore[arg-type]

    def __str__(self) -> str:
        return written(self.kind, {key: show(value) for key, value in self.stated.items()})


@dataclass(frozen=True)
class NoGuarantee(Guarantee):
    """No guarantee is claimed.

    Examples
    --------
    >>> from fedtrees import NoGuarantee
    >>> print(NoGuarantee())
    none
    """


@dataclass(frozen=True)
class ActedOnNothing(Guarantee):
    """The run sent no message that the defense handles, so that it protected nothing."""

    kind: ClassVar[str] = "acted-on-nothing"


@dataclass(frozen=True)
class Structural(Guarantee):
    """Values are removed or coarsened. The information in the remaining ones is not bounded.

    For example, suppression removes values and rounding coarsens them.

    Examples
    --------
    >>> from fedtrees import Structural
    >>> print(Structural())
    structural
    """

    kind: ClassVar[str] = "structural"


@dataclass(frozen=True)
class Computational(Guarantee):
    """An adversary with bounded computing power learns only the output of the ideal functionality.

    Attributes
    ----------
    bits : int
        Security level, as the length of a symmetric key.
    assumes : tuple of str
        Hardness assumptions.
    uncovered : tuple of str
        Names of further values that an adversary reads or that are sent unprotected.
    mode : str
        ``ideal`` if the run simulated the functionality and its traffic without the arithmetic.

    Examples
    --------
    >>> from fedtrees import Computational
    >>> Computational(bits=128, assumes=("DCRA",)).bits
    128
    """

    kind: ClassVar[str] = "computational"
    bits: int = 0
    assumes: tuple[str, ...] = ()
    uncovered: tuple[str, ...] = ()
    mode: str = "real"


@dataclass(frozen=True)
class PureDP(Guarantee):
    """Pure differential privacy (Dwork et al. 2006) for one row added or removed.

    Attributes
    ----------
    epsilon : float
        In nats, for one row added or removed, against outsiders and against `colluders` colluding
        clients. Infinite if private values were sent without protection.
    unit : str
        Part of the run that epsilon covers: ``record`` (the complete run), ``histogram`` (one
        element of one histogram, which is one release) or ``cuts`` (the choice of cut points,
        without the training on them).
    histograms : float
        If `epsilon` is infinite: the epsilon of the protected part.
    unprotected : tuple of str
        Names of values that were sent without protection. ``rows``: the number of rows is public,
        so that epsilon covers tables of the same size only.
    trusted : tuple of str
        Roles against which nothing is guaranteed. A ``server`` that adds the noise sees the sums
        without it. ``clients`` that each add a share must keep it secret: an adversary that knows
        more than `colluders` shares has a larger epsilon.
    colluders : int
        Number of colluding clients that `epsilon` covers if clients share the noise. 0: it covers
        parties that know no share.
    outsider : float
        Epsilon against an adversary that knows no share of the noise, if it is smaller. 0: it is
        `epsilon`, or not computed because the number of clients is not known yet.
    coalition : float
        Epsilon against all clients except the one whose row is in question, if they collude and it
        is larger. 0: it is `epsilon`, or not computed.

    Notes
    -----
    For one row replaced by another, a pure epsilon is twice as large. An epsilon of 0 is spent if a
    run ends before a release, for example because a client refuses a request.

    Examples
    --------
    >>> from fedtrees import PureDP
    >>> print(PureDP(epsilon=4.0))
    pure-dp[epsilon=4]
    """

    kind: ClassVar[str] = "pure-dp"
    epsilon: float
    unit: str = "record"
    histograms: float = 0.0
    unprotected: tuple[str, ...] = ()
    trusted: tuple[str, ...] = ()
    colluders: int = 0
    outsider: float = 0.0
    coalition: float = 0.0

    def __post_init__(self) -> None:
        super().__post_init__()
        if not self.epsilon >= 0:
            raise UsageError(f"epsilon={self.epsilon}: epsilon must be >= 0")


@dataclass(frozen=True)
class ApproximateDP(Guarantee):
    """(epsilon, delta)-differential privacy (Dwork et al. 2006) for one row added or removed.

    Attributes
    ----------
    epsilon : float
        In nats, as in `PureDP`.
    delta : float
        Delta of each of the epsilons.
    unit : str
        Part of the run that epsilon covers, as in `PureDP`.
    unprotected, trusted : tuple of str
        Unprotected values and trusted roles, as in `PureDP`.
    colluders : int
        Number of colluding clients that `epsilon` covers, as in `PureDP`.
    outsider, coalition : float
        Epsilon against an outsider and against all other clients, as in `PureDP`.
    replaced : float
        Epsilon for one row replaced by another, against the adversaries of `epsilon`. 0: not
        computed.
    updates : float
        If `epsilon` is infinite: the epsilon of the updates of a network.
    prv, rdp : float
        Epsilon of the updates of a network by the PRV and the RDP accountant of opacus, which are
        upper bounds as well. 0: not computed, because opacus was not used.

    Examples
    --------
    >>> from fedtrees import ApproximateDP
    >>> print(ApproximateDP(epsilon=1.0, delta=1e-5))
    approximate-dp[epsilon=1,delta=1e-05]
    """

    kind: ClassVar[str] = "approximate-dp"
    epsilon: float
    delta: float
    unit: str = "record"
    unprotected: tuple[str, ...] = ()
    trusted: tuple[str, ...] = ()
    updates: float = 0.0
    colluders: int = 0
    outsider: float = 0.0
    coalition: float = 0.0
    replaced: float = 0.0
    prv: float = 0.0
    rdp: float = 0.0

    def __post_init__(self) -> None:
        super().__post_init__()
        if not self.epsilon >= 0:
            raise UsageError(f"epsilon={self.epsilon}: epsilon must be >= 0")
        check_share("delta", self.delta)


@dataclass(frozen=True)
class AtLeast(Guarantee):
    """Result of an audit: with 95% confidence, epsilon has at least this value.

    Attributes
    ----------
    epsilon : float
        Lower bound in nats. 0 if the audit found no evidence of leakage.
    unit : str
        As in `PureDP`.
    runs : int
        Number of runs of the audit.
    delta : float
        Delta of the audited guarantee.
    most : float
        Largest epsilon that the audit could have shown. 0: not known.
    canaries : int
        Number of canaries. 0: not known.
    guesses : tuple of str
        Numbers of correct guesses and of guesses, for example ``40of60``. Audits of several seeds
        are combined from them. Empty: not known.
    """

    kind: ClassVar[str] = "at-least"
    epsilon: float
    unit: str = "record"
    runs: int = 1
    delta: float = 0.0
    most: float = 0.0
    canaries: int = 0
    guesses: tuple[str, ...] = ()


@dataclass(frozen=True)
class LabelDP(Guarantee):
    """Differential privacy of the labels only (Chaudhuri and Hsu 2011).

    Neighbouring tables differ in the label of one row. All columns, and the set of rows, are
    public.

    Attributes
    ----------
    epsilon : float
        In nats, for the complete run.
    covers : str
        Party whose view the claim covers. Empty: everything that is computed from the labels,
        including the model and all of its answers.
    """

    kind: ClassVar[str] = "label-dp"
    epsilon: float
    covers: str = ""

    def __post_init__(self) -> None:
        if not self.epsilon > 0:
            raise UsageError(f"epsilon must be > 0; got {self.epsilon}")


@dataclass(frozen=True)
class MutualInformation(Guarantee):
    """At most `xi` of mutual information between the labels and the statistics of one node.

    Attributes
    ----------
    xi : float
        Upper bound.
    unit : str
        ``nats``, or a share of ``log(1 / p)``, where p is the share of the rarest class.
    """

    kind: ClassVar[str] = "mutual-information"
    xi: float
    unit: str = "nats"


def join(guarantees: Sequence[Guarantee]) -> str:
    """Write the guarantees of composed defenses in order.

    Parameters
    ----------
    guarantees : sequence of Guarantee
        Guarantees of the parts.

    Returns
    -------
    str
        Texts joined by ``+``, without those that guarantee nothing. ``none`` if none is left.
    """
    texts = [str(g) for g in guarantees if not isinstance(g, NoGuarantee)]
    return "+".join(texts) or "none"


def without_noise(g: Guarantee) -> Guarantee:
    """Return a guarantee for an adversary that can reproduce the noise: its epsilon is infinite.

    Parameters
    ----------
    g : Guarantee
        A guarantee for an adversary that does not know the noise.

    Returns
    -------
    Guarantee
        Guarantees that do not rely on noise are returned unchanged.
    """
    if isinstance(g, PureDP | ApproximateDP):
        unprotected = (*g.unprotected, "noise")
        g = replace(g, epsilon=math.inf, unprotected=unprotected, outsider=0.0, coalition=0.0)
        if isinstance(g, ApproximateDP):
            return replace(g, replaced=0.0, prv=0.0, rdp=0.0)
        return g
    return replace(g, epsilon=math.inf) if isinstance(g, LabelDP) else g


@dataclass(frozen=True)
class Unknown(Guarantee):
    """A guarantee of a kind that this installation does not know, in its written form.

    Attributes
    ----------
    spec : Spec
        Kind and parameters.
    """

    spec: Spec

    @property
    def stated(self) -> dict[str, Value | tuple[str, ...]]:
        """The parameters in their written form."""
        return dict(self.spec.params)

    def __str__(self) -> str:
        return str(self.spec)


def suitable_epsilon(g: PureDP | ApproximateDP) -> tuple[float, str]:
    """Return the epsilon for the suitable neighbouring relation, and this relation in words.

    If the number of rows is public, tables of different sizes can be distinguished without any
    message. One row is then replaced, instead of added or removed.

    Parameters
    ----------
    g : PureDP or ApproximateDP
        A claimed or spent guarantee.

    Returns
    -------
    epsilon : float
        In nats.
    relation : str
        "one row replaced" or "one row added or removed".

    Examples
    --------
    >>> suitable_epsilon(PureDP(1.0))
    (1.0, 'one row added or removed')
    >>> suitable_epsilon(PureDP(1.0, unprotected=("rows",)))
    (2.0, 'one row replaced')
    """
    replaced = g.replaced if isinstance(g, ApproximateDP) else 2 * g.epsilon
    if "rows" in g.unprotected and replaced:
        return replaced, "one row replaced"
    return g.epsilon, "one row added or removed"


def epsilon_in_words(g: PureDP | ApproximateDP, *, brief: bool = False) -> str:
    """Return a sentence with each epsilon, its adversary and its neighbouring relation.

    Parameters
    ----------
    g : PureDP or ApproximateDP
        A claimed or spent guarantee.
    brief : bool
        Whether to state only the epsilon for the suitable neighbouring relation
        (`suitable_epsilon`), without those against other coalitions.

    Returns
    -------
    str
        The sentence, without a full stop.

    Examples
    --------
    >>> print(epsilon_in_words(PureDP(2.0)))
    epsilon 2 for one row added or removed, against every other party (one row replaced: 4)
    >>> print(epsilon_in_words(PureDP(1.0, unit="cuts")).partition(",")[0])
    epsilon of the cut points only: 1 for one row added or removed
    >>> print(epsilon_in_words(ApproximateDP(1.0, 1e-5, prv=1.009, rdp=1.1)).partition("; ")[2])
    by the accountants of opacus 1.009 (PRV) and 1.1 (RDP)
    """
    delta = f" at delta {g.delta:g}" if isinstance(g, ApproximateDP) else ""
    # The cut points are one part of a run, whose epsilon can be larger.
    part = {"cuts": " of the cut points only:", "histogram": " of each histogram element:"}.get(
        g.unit, ""
    )
    if brief:
        epsilon, relation = suitable_epsilon(g)
        return f"epsilon{part} {epsilon:.3g}{delta} for {relation}, against {_adversaries(g)}"
    text = (
        f"epsilon{part} {g.epsilon:g}{delta} for one row added or removed, "
        f"against {_adversaries(g)}"
    )
    remarks = [
        f"{who}: {value:.3g}"
        for who, value in (
            ("outsiders only", g.outsider),
            ("all other clients together", g.coalition),
            ("one row replaced", g.replaced if isinstance(g, ApproximateDP) else 2 * g.epsilon),
        )
        if value
    ]
    text += f" ({', '.join(remarks)})" if remarks else ""
    if isinstance(g, ApproximateDP) and g.prv:
        text += f"; by the accountants of opacus {g.prv:.4g} (PRV) and {g.rdp:.4g} (RDP)"
    if "rows" in g.unprotected:
        text += "; the number of rows is public"
    return text


def _adversaries(g: PureDP | ApproximateDP) -> str:
    """Name the adversaries that an epsilon covers, for example ``outsiders and 1 client``."""
    if g.colluders:
        covered = f"outsiders and {g.colluders} client{'s' * (g.colluders > 1)}"
    elif "clients" in g.trusted:
        covered = "outsiders, but not against a client"
    else:
        covered = "every other party"
    trusted_roles = [role for role in g.trusted if role != "clients"]
    return f"{covered}, except the {' and the '.join(trusted_roles)}" if trusted_roles else covered


def show(value: Value | tuple[str, ...]) -> str:
    """Write a parameter of a guarantee.

    Parameters
    ----------
    value : float, int, str or tuple of str
        The value.

    Returns
    -------
    str
        Floats have six digits. Several names are joined by ``+``.
    """
    if isinstance(value, tuple):
        return "+".join(value)
    return f"{value:g}" if isinstance(value, float) else str(value)


def written(kind: str, parameters: Mapping[str, str]) -> str:
    """Write a guarantee from the texts of its parameters.

    Parameters
    ----------
    kind : str
        Kind of the guarantee.
    parameters : mapping of str to str
        Text of each value by the name of the parameter.

    Returns
    -------
    str
        ``kind[key=value,...]``.

    Examples
    --------
    >>> written("pure-dp", {"epsilon": "4"})
    'pure-dp[epsilon=4]'
    """
    inside = ",".join(f"{key}={text}" for key, text in parameters.items())
    return f"{kind}[{inside}]" if inside else kind


def parse(text: str) -> tuple[Guarantee, ...]:
    """Read a text that `join` wrote.

    Parameters
    ----------
    text : str
        The guarantees. Empty if there is none.

    Returns
    -------
    tuple of Guarantee
        A kind that is not known becomes an `Unknown`.

    Raises
    ------
    UsageError
        If the text is not of the form ``kind[key=value,...]+...``.
    """
    return tuple(_one(spec) for piece in split_outside(text, "+") for spec in parse_grid(piece))


def _one(spec: Spec) -> Guarantee:
    """Create the guarantee of a spec, or `Unknown` if its kind or a parameter is not known."""
    by_kind = {kind.kind: kind for kind in _kinds(Guarantee) if kind is not Unknown}
    read = {"float": float, "int": int, "str": str, "tuple": str}
    try:
        kind = by_kind[spec.name]
        types = {
            item.name: read[str(getattr(item.type, "__name__", item.type))] for item in fields(kind)
        }
        return kind(**{key: types[key](value) for key, value in spec.params.items()})
    except (KeyError, TypeError, ValueError, OverflowError):
        return Unknown(spec)


def _kinds(base: type[Guarantee]) -> Iterator[type[Guarantee]]:
    """Yield all direct and indirect subclasses of a guarantee class."""
    for kind in base.__subclasses__():
        yield kind
        yield from _kinds(kind)

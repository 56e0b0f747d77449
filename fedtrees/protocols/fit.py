"""Does this fit, and if not, why? The one place that answers, with a code (`Reason`)."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from fedtrees.core.composition import Composition
from fedtrees.core.defense import Defense
from fedtrees.core.errors import FedtreesError, UsageError
from fedtrees.core.reasons import FITS, Reason, Unfit
from fedtrees.core.registry import register
from fedtrees.core.schema import Schema
from fedtrees.core.sensitivity import misplaced_in
from fedtrees.core.specs import Spec
from fedtrees.core.view import View
from fedtrees.isolation.process import attacks as process


@dataclass(frozen=True)
class Data:
    """What is known of the table and of what was seen of it; what is not known excludes nothing."""

    schema: Schema | None = None
    rows: int = 0  # that are trained on
    roles: Mapping[str, str] = field(default_factory=dict)  # role of every party by name
    # whether anything here compares such claims of an attack (its `gives`)
    scored: Callable[[Any], bool] | None = None
    view: View | None = None  # what an attack reads


def fit(
    protocol: Any = None,
    defense: Composition | Sequence[Defense] = (),
    attack: Spec | None = None,
    threat: Sequence[str] = (),
    data: Data | None = None,
) -> Reason:
    """Return whether what is given goes together, and if not, the first reason why.

    `defense`: Parts that may not be composed are a reason, too.
    `threat`: Names of those who collude.
    """
    data = data or Data()
    try:
        made = defense if isinstance(defense, Composition) else Composition(tuple(defense))
    except Unfit as err:
        return err.reason
    undone = (part.undone_by(threat, data.roles) for part in made.parts)
    return (
        (protocol is not None and _defended(protocol, made, data.schema))
        or next(filter(None, undone), None)
        or (FITS if attack is None else fits([attack], data)[0])
    )


def fits(attacks: Sequence[Spec], data: Data) -> list[Reason]:
    """Return of several attacks whether there is anything for them, all asked at once."""
    found = [before(attack, data) for attack in attacks]
    if data.view is None:
        return found
    left = [attack for attack, reason in zip(attacks, found, strict=True) if reason.ok]
    told = iter(_asked(left, data.view) if left else ())
    return [next(told) if reason.ok else reason for reason in found]


def _defended(protocol: Any, defense: Composition, schema: Schema | None) -> Reason | None:
    """Return why a defense makes no sense in a protocol, on such a table if one is given."""
    named = {"protocol": protocol.name}
    roles = set(protocol.roles(2).values())
    for part in defense.parts:
        if protocol.released and "endpoint" in part.acts_through:
            return Reason("model-released", subject=part.name, **named)
        if part.guards and part.at and not part.at & roles:
            at, there = ", ".join(sorted(part.at)), ", ".join(sorted(roles))
            return Reason("defense-role", subject=part.name, at=at, roles=there, **named)
    for part in defense.parts:
        wanted = part.requires or part.guards
        if wanted and not any(said in wanted for said in protocol.says):
            types = ", ".join(t.__name__ for t in wanted)
            return Reason("defense-message", subject=part.name, types=types, **named)
        unserved = sorted(_wanted(part) - protocol.serves)
        if unserved:
            stage = ", ".join(unserved)
            return Reason("defense-stage", subject=part.name, stage=stage, **named)
    reason = None
    if protocol.claim().budget:
        noised = protocol.noised or protocol.says
        shares = protocol.summed
        reason = misplaced_in(defense.parts, protocol.name, noised, protocol.holders, shares)
    return reason or (None if schema is None else protocol.lacks(schema, defense))


def _wanted(part: Defense) -> set[str]:
    """Return the hooks and limits of a part that not every protocol's parties serve."""
    hooks = {*part.acts_through} & {"rows", "candidates", "shown"}
    if part.acts_on == {"labels"}:  # which need no hook of the protocol
        hooks.discard("rows")
    limits = {
        "gradient_clip": part.gradient_clip is not None,
        "least_leaf_rows": part.least_leaf_rows > 0,
        "poisson_sampling": part.poisson_sampling,
        "declared_rows": part.declared_rows > 0,
        "row_bounds": part.row_bounds is not None,
    }
    return hooks | {name for name, used in limits.items() if used}


def before(attack: Spec, data: Data) -> Reason:
    """Return why an attack need not even be asked: too many rows, or nothing scores its claims."""
    maker = register.get("attack", attack.name)
    reads_cheats: tuple[str, ...] = getattr(maker, "behaviours", ())
    did = () if data.view is None else data.view.behaviours
    if data.view is not None and not {*reads_cheats} & {*did} and (reads_cheats or did):
        if did:
            return Reason("other-behaviour", behaviour=", ".join(did))
        return Reason("nobody-cheats", behaviour=", ".join(reads_cheats))
    most = getattr(maker, "most_rows", None)
    if most is not None and data.rows > most:
        return Reason("too-many-rows", rows=data.rows, most=most)
    numeric = data.schema is not None and not data.schema.classes
    reads = getattr(maker, "numbers", False)
    if numeric and not reads and data.scored and not data.scored(getattr(maker, "gives", None)):
        return Reason("numeric-target")
    return FITS


def _asked(attacks: Sequence[Spec], view: View) -> list[Reason]:
    """Ask attacks in their own process; one by one where any of them breaks."""
    try:
        return process().reasons(attacks, view)
    except UsageError as err:
        if len(attacks) == 1:
            return [Reason("needs-parameter", error=str(err))]
    except FedtreesError:  # an attack that breaks has not been withstood
        if len(attacks) == 1:
            return [FITS]
    return [reason for attack in attacks for reason in _asked([attack], view)]

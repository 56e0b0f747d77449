"""What is run where only a part of a suite is named: the rest is chosen so that it is really tried.

What the suite has comes first; where nothing there goes with what was named, what is registered and
fits (`fedtrees.protocols.compatibility`). What goes with nothing is refused, before anything runs.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import islice
from typing import Any

from fedtrees.core.attack import contenders
from fedtrees.core.errors import FedtreesError, UsageError, listed
from fedtrees.core.limits import TimeLimit, limited_if_possible
from fedtrees.core.reasons import FITS, Reason, Unfit
from fedtrees.core.registry import register
from fedtrees.core.specs import Composed, Spec
from fedtrees.core.threat import Threat
from fedtrees.data.partition import BY_CLIENT, OF_COLUMNS, PARTITIONS
from fedtrees.experiments.environment import (
    check_extras,
    install_text,
    missing_extras,
    missing_modules,
)
from fedtrees.experiments.evaluate import make_defense, parts_of, seen
from fedtrees.experiments.federation import Federation, federation_of, load_dataset
from fedtrees.experiments.plan import Setting
from fedtrees.experiments.suite import ALL, AXES, DataRef, Grid, Suite, fits, roles_of, with_budgets
from fedtrees.protocols.base import Protocol
from fedtrees.protocols.compatibility import Data, fit
from fedtrees.protocols.training import Training, train

MOST_PROTOCOLS = 2  # chosen for one thing that is named
MOST_DEFENSES = 5  # chosen for a protocol for which the suite has fewer
#: Of protocols that are chosen, where theirs are more: as in the default suite.
SIZE = {"trees": 10, "max_depth": 4}
_BRIEF = {"trees": 2}  # enough to see which attacks apply
#: Where a protocol's `example` lacks what is needed: this one declares all ranges.
TABLE = DataRef("digits[rows=300]")


def chosen(
    suite: Suite, options: Mapping[str, Any], seeds: str | None = None, data_dir: str | None = None
) -> Suite:
    """Return a suite with what is named in place of its own, and the rest so that it is tried.

    `options`: Keys of a grid.

    Raises `Unfit` if something that is named goes with nothing. Raises `UsageError` if it needs an
    extra that is not installed.
    """
    overridden = suite.override(options, seeds)
    if not options:
        return overridden
    limit = overridden.time_limit
    grids = _Choice(overridden.grids, options, overridden.seeds[0], data_dir, limit).grids()
    return overridden.of(tuple(grids))


def describe_choices(suite: Suite, options: Mapping[str, Any], chosen_suite: Suite) -> str:
    """Say what was chosen that is not as in the suite; "" where nothing was."""
    plain, parts = suite.override(options), []
    for axis in AXES:
        if axis in options:
            continue
        before, after = (
            dict.fromkeys(
                text
                for g in s.grids
                for v in getattr(g, axis)
                if (text := v.name if axis == "data" else str(v)) != "none"
            )
            for s in (plain, chosen_suite)
        )
        if before.keys() != after.keys():
            parts.append(f"{axis} {listed([*after]) or 'none'}")
    return f"chosen to fit: {'; '.join(parts)}" if parts else ""


@dataclass
class _Choice:
    """`suite_grids`: The suite's grids, with the options that the user named in place of theirs.

    `time_limit`: Seconds that one training may take, 0 for no limit.
    """

    suite_grids: Sequence[Grid]
    options: Mapping[str, Any]
    seed: int
    data_dir: str | None
    time_limit: float
    looks: dict[Any, Any] = field(default_factory=dict)  # first looks, by protocol

    def grids(self) -> list[Grid]:
        """Return the grids to run, each once."""
        if "protocols" in self.options:
            chosen_grids = [self._around(p) for p in self.suite_grids[0].protocols]
            self._check(self.suite_grids[0].protocols)
            return list(_merged(chosen_grids))
        compatible = [
            replace(g, protocols=tuple(filter(self._goes, g.protocols))) for g in self.suite_grids
        ]
        tried = dict.fromkeys(p for g in compatible for p in g.protocols)
        more: dict[Spec, None] = {}
        for axis, item in self._named():
            if not any(self._why(p, axis, item).ok for p in tried):
                more |= dict.fromkeys(self._others(axis, item))
        if not (tried or more):
            self._check([p for g in self.suite_grids for p in g.protocols])
            able = (p for p in self._every() if self._goes(p) and not missing_extras(p, Composed()))
            more = dict.fromkeys(islice(able, MOST_PROTOCOLS))
        narrowed = [
            self._narrowed(g) for g in self._comparable([g for g in compatible if g.protocols])
        ]
        chosen_grids = [*narrowed, *_merged([self._around(p) for p in more])]
        return list(dict.fromkeys(chosen_grids)) or list(self.suite_grids)

    def _named(self) -> list[tuple[str, Any]]:
        """Return what was named beside protocols, with its key."""
        grid = self.suite_grids[0]
        lists = {
            "defenses": [d for d in grid.defenses if d.parts],
            "threats": grid.threats,
            "attacks": [a for a in grid.attacks if a.name != ALL],
        }
        return [(k, item) for k, items in lists.items() if k in self.options for item in items]

    def _goes(self, protocol: Spec) -> bool:
        """Tell whether a protocol takes the table, and something of everything that is named."""
        if not self._takes(protocol):
            return False
        axes = dict.fromkeys(axis for axis, _ in self._named())
        return all(
            any(self._why(protocol, axis, item).ok for a, item in self._named() if a == axis)
            for axis in axes
        )

    def _takes(self, protocol: Spec) -> bool:
        """Tell whether a protocol takes a table that is laid out as it is, with such a target."""
        instance: Protocol = register.make("protocol", protocol)
        grid = self.suite_grids[0]
        implied = {"horizontal" for r in grid.data if r.clients_are_told}
        implied |= {"vertical" for r in grid.data if r.id}
        if "partitions" in self.options:
            names = {p.name for p in grid.partitions}
            implied |= {"vertical"} if names <= OF_COLUMNS else set()
            implied |= {"horizontal"} if names <= {*PARTITIONS, BY_CLIENT} - {"iid"} else set()
        if implied and instance.layout not in implied:
            return False
        return "data" not in self.options or self._suits(protocol, grid.data)

    def _suits(self, protocol: Spec, data: Sequence[DataRef], bare: bool = False) -> bool:
        """Tell whether a protocol trains on such tables; `bare`, without a defense, too."""
        instance: Protocol = register.make("protocol", protocol)
        schemas = [load_dataset(ref, self.data_dir).schema for ref in data]
        try:
            for schema in schemas:
                instance.check(schema)
        except FedtreesError:
            return False
        named = [d for a, d in self._named() if a == "defenses"]
        defenses = [d for g in self.suite_grids if protocol in g.protocols for d in g.defenses]
        tried = [[d] for d in named if fit(instance, parts_of(d)).ok] or [[Composed(), *defenses]]
        tried += [[Composed()]] if bare else []
        return all(
            any(fit(instance, parts_of(d), data=Data(schema)).ok for d in combination)
            for schema in schemas
            for combination in tried
        )

    def _tables(self, protocol: Spec) -> tuple[DataRef, ...]:
        """Return the tables of the suite, or what a protocol and a defense that is named take."""
        given_data = self.suite_grids[0].data
        example = register.get("protocol", protocol.name).example  # type: ignore[attr-defined]
        if "data" in self.options:
            return given_data
        usual = (
            {ref.name.partition("[")[0] for ref in given_data} == {Protocol.example} != {example}
        )
        every = (
            (DataRef(example),) if usual else given_data,
            given_data,
            (DataRef(example),),
            (TABLE,),
        )
        return next((t for t in every if self._suits(protocol, t, bare=True)), given_data)

    def _on_tables(self, grid: Grid) -> Grid:
        """Return a grid of the suite on tables that what is named takes, where its own are none."""
        if all(self._suits(p, grid.data, bare=True) for p in grid.protocols):
            return grid
        return replace(grid, data=self._tables(grid.protocols[0]))

    def _comparable(self, grids: Sequence[Grid]) -> list[Grid]:
        """Return the suite's grids whose protocols train on the tables of the first one.

        The first grid moves to other tables if what is named does not fit its own. Further grids
        are compared with the first. They are left out if none of their defenses fits its tables.
        """
        first = [self._on_tables(grid) for grid in grids[:1]]
        rest = [g for g in grids[1:] if all(self._suits(p, g.data) for p in g.protocols)]
        return [*first, *rest]

    def _why(self, protocol: Spec, axis: str, item: Any) -> Reason:
        """Return why something that is named is not tried in a protocol."""
        if axis == "threats":
            return FITS if fits(item, protocol) else Reason("other", text="no such role")
        instance = register.make("protocol", protocol)
        if axis == "defenses":
            return fit(instance, parts_of(item), data=Data(self._schema(protocol)))
        reasons = [self._look(protocol, item, t) for t in self._threats(protocol, (item,))]
        return next((r for r in reasons if r.ok), reasons[0] if reasons else FITS)

    def _schema(self, protocol: Spec) -> Any:
        return load_dataset(self._tables(protocol)[0], self.data_dir).schema

    def _others(self, axis: str, item: Any) -> list[Spec]:
        """Return protocols that are registered and try something; refuse what lacks an extra."""
        specs, missing = [], {}
        for spec in self._every():
            if lacking := missing_extras(spec, item if axis == "defenses" else Composed()):
                if axis == "attacks" or (axis == "defenses" and self._why(spec, axis, item).ok):
                    missing[spec.name] = lacking
            elif self._why(spec, axis, item).ok and self._goes(spec):
                specs.append(spec)
        if not specs and missing:
            _refuse(item.name, missing)
        return specs[:MOST_PROTOCOLS]

    def _every(self) -> list[Spec]:
        """Return the suite's protocols, then the others, those with the fewest parameters first."""
        given_protocols = dict.fromkeys(p for g in self.suite_grids for p in g.protocols)
        other_protocols = filter(
            None, map(small, {*register.names("protocol")} - {p.name for p in given_protocols})
        )
        size = {p: len(register.make("protocol", p).parameters) for p in other_protocols}
        return [*given_protocols, *sorted(size, key=lambda p: (size[p], p.name))]

    def _check(self, protocols: Sequence[Spec]) -> None:
        """Refuse a defense that is tried in none of these protocols, and attacks if none is."""
        for protocol in protocols:
            for defense in [Composed(), *(d for a, d in self._named() if a == "defenses")]:
                check_extras(protocol, defense)
        for axis in dict.fromkeys(axis for axis, _ in self._named() if axis != "threats"):
            why = [self._why(p, axis, i) for a, i in self._named() if a == axis for p in protocols]
            if why and not any(reason.ok for reason in why):
                item = next(i for a, i in self._named() if a == axis)
                message = why[0] if axis == "defenses" else f"{item} does not apply: {why[0]}"
                raise Unfit(Reason("other", text=str(message)))
        for axis, item in self._named():
            if axis == "defenses":
                reasons = [self._why(p, axis, item) for p in protocols]
                if reasons and not any(reason.ok for reason in reasons):
                    raise Unfit(Reason("other", text=str(reasons[0])))

    def _base(self, protocol: Spec) -> Grid:
        """Return what the suite has for a protocol that none of its grids is of."""
        first = self.suite_grids[0]
        every = {
            axis: tuple(dict.fromkeys(v for g in self.suite_grids for v in getattr(g, axis)))
            for axis in AXES
        }
        instance: Protocol = register.make("protocol", protocol)
        clients = first.clients if "clients" in self.options else (instance.usual_parties,)
        counts = [len(r.files) for r in first.data if r.id]
        partitions = every["partitions"] if "partitions" in self.options else first.partitions
        every |= {
            "protocols": (protocol,), "partitions": partitions, "data": self._tables(protocol),
            "clients": tuple(counts) if counts and "clients" not in self.options else clients,
        }  # fmt: skip
        return Grid(**every)

    def _around(self, protocol: Spec) -> Grid:
        """Return a grid around a protocol, from all that the suite has."""
        grid = self._narrowed(self._base(protocol))
        if "defenses" in self.options:
            return grid
        instance, data = register.make("protocol", protocol), Data(self._schema(protocol))
        defenses = [
            d for d in grid.defenses if d.parts and fit(instance, parts_of(d), data=data).ok
        ]
        names = {part.name for d in defenses for part in d.parts}
        queries = any(Threat.parse(t).queries for t in grid.threats)
        for defense in _usual(instance, data, queries):
            if len(defenses) < MOST_DEFENSES and defense.name not in names:
                defenses.append(defense)
        return replace(grid, defenses=tuple(defenses)).with_undefended()

    def _narrowed(self, grid: Grid) -> Grid:
        """Return a grid with the named defenses that it tries, and threats under which it does."""
        if "defenses" in self.options:
            fit_here = [
                d for d in grid.defenses
                if not d.parts or any(self._why(p, "defenses", d).ok for p in grid.protocols)
            ]  # fmt: skip
            if any(d.parts for d in fit_here):
                grid = replace(grid, defenses=tuple(fit_here))
        if "threats" in self.options:
            return grid
        attacks = [a for a in grid.attacks if a.name != ALL] if "attacks" in self.options else []
        threats: dict[str, None] = {}
        for protocol in grid.protocols:
            possible = self._threats(protocol, attacks)
            applied = [
                t for t in possible if any(self._look(protocol, a, t).ok for a in attacks)
            ]  # fmt: skip
            threats |= dict.fromkeys(applied or possible)
        return replace(grid, threats=tuple(threats))

    def _threats(self, protocol: Spec, attacks: Sequence[Spec]) -> list[str]:
        """Return the threats of the suite that a protocol knows, or its own; and attacks' own."""
        base = dict.fromkeys(t for g in self.suite_grids for t in g.threats if fits(t, protocol))
        if "threats" in self.options:
            return [*base]
        threats = [*(base or register.make("protocol", protocol).adversaries)]
        chosen_defenses = (
            [d for d in self.suite_grids[0].defenses if d.parts]
            if "defenses" in self.options
            else []
        )
        if chosen_defenses and all(
            _of_answers(part) for d in chosen_defenses for part in parts_of(d)
        ):
            threats = [
                threat
                for name in contenders()
                for threat in getattr(register.get("attack", name), "threats", ())
                if Threat.parse(threat).queries and fits(threat, protocol)
                and self._look(protocol, Spec(name), threat).ok
            ]  # fmt: skip
        for attack in attacks:
            threats += getattr(register.get("attack", attack.name), "threats", ())
        return [t for t in dict.fromkeys(threats) if fits(t, protocol)]

    def _look(self, protocol: Spec, attack: Spec, threat: str) -> Reason:
        """Return `FITS` if an attack applies to a run of two trees, otherwise why not.

        The run without a defense is tried first, then those with the defenses that the user named:
        some attacks read only the messages that a defense adds. If the attack applies to none of
        these runs, the reason is that of the first one.
        """
        reasons: list[Reason] = []
        for defense in self._defenses_of(protocol):
            key = str(protocol), str(attack), threat, str(defense)
            if key not in self.looks:
                self.looks[key] = self._look_under(protocol, attack, threat, defense)
            reasons.append(self.looks[key])
            if reasons[-1].ok:
                return FITS
        return reasons[0]

    def _defenses_of(self, protocol: Spec) -> list[Composed]:
        """Return the defenses under which an attack is tried: none, and the named ones that fit.

        The run without a defense is left out if the protocol cannot train on the table without one.
        For example, `dp-gbdt` needs declared ranges or a defense that settles the cut points.
        """
        named = [d for axis, d in self._named() if axis == "defenses"]
        suitable = [d for d in named if self._why(protocol, "defenses", d).ok]
        instance, data = register.make("protocol", protocol), Data(self._schema(protocol))
        bare = [Composed()] if not suitable or fit(instance, [], data=data).ok else []
        return [*bare, *suitable]

    def _look_under(self, protocol: Spec, attack: Spec, threat: str, defense: Composed) -> Reason:
        """Return whether an attack applies to what a threat sees of two trees with a defense."""
        try:
            return self._applies(protocol, attack, threat, defense)
        except TimeLimit:
            return Reason("timeout", seconds=self.time_limit)
        except FedtreesError as err:
            return Reason("other", text=str(err))

    def _applies(self, protocol: Spec, attack: Spec, threat: str, defense: Composed) -> Reason:
        if lacking := missing_extras(protocol, defense):
            return Reason("other", text=install_text({protocol.name: lacking}))
        register.make("attack", attack)
        grid = self._base(protocol)
        instance: Protocol = register.make("protocol", protocol)
        place = (grid.data[0], grid.partitions[0], grid.clients[0], self.seed)
        federation = federation_of(Setting.of(*place, instance), self.data_dir)
        roles, parsed = roles_of(instance, grid.clients[0]), Threat.parse(threat)
        training = self._training(protocol, defense, parsed.behaviours(roles), federation)
        case = federation.case(roles, parsed.principals(roles), self.seed, threat, training)
        return fit(attack=attack, data=Data(federation.schema, view=seen(training, case)))

    def _training(
        self,
        protocol: Spec,
        defense: Composed,
        behaviours: Mapping[str, str],
        federation: Federation,
    ) -> Training:
        """Train two trees, once for each protocol, defense and dishonest behaviour."""
        key = ("training", str(protocol), str(defense), *behaviours.items())
        if key not in self.looks:
            short: Protocol = register.make("protocol", limit_size(protocol, _BRIEF))
            options: dict[str, Any] = {"noise_from": "seed", "behaviours": behaviours}
            with limited_if_possible(self.time_limit):
                self.looks[key] = train(
                    short,
                    federation.local_data,
                    federation.schema,
                    defense=make_defense(defense),
                    **options,
                )
        training: Training = self.looks[key]
        return training


def _of_answers(part: Any) -> bool:
    """Tell whether a defense acts on nothing but an endpoint's answers."""
    return bool(part.acts_through) and part.acts_through <= {"answer", "endpoint"}


def _usual(protocol: Protocol, data: Data, endpoint: bool) -> Iterator[Composed]:
    """Yield the registered defenses that fit a protocol by themselves, at one budget each.

    Not what needs an extra that is missing, nor ciphers that let a server read what an ideal secure
    sum does, at a thousand times the cost.
    """
    for name in register.names("defense"):
        try:
            budgets = with_budgets(Spec(name))
            spec = budgets[len(budgets) // 2]
            part = register.make("defense", spec)
        except FedtreesError:  # it needs a value
            continue
        idle = not endpoint and _of_answers(part)
        costly = "aggregation" in part.acts_through
        if idle or costly or missing_modules(part.needs) or not fit(protocol, [part], data=data).ok:
            continue
        yield Composed((spec,))


def small(name: str) -> Spec | None:
    """Return a protocol at the default suite's size; None where it needs a value."""
    try:
        return limit_size(Spec(name), SIZE)
    except FedtreesError:
        return None


def limit_size(spec: Spec, limits: Mapping[str, int]) -> Spec:
    """Return a protocol with no more trees and levels than given."""
    instance: Protocol = register.make("protocol", spec)
    less = {
        key: value
        for key, value in limits.items()
        if key in instance.parameters and (instance.parameters[key] or value + 1) > value
    }
    return Spec(spec.name, {**spec.params, **less})


def _refuse(item: str, missing: Mapping[str, Sequence[str]]) -> None:
    if [item] == [*missing]:
        raise UsageError(install_text(missing))
    raise UsageError(f"{item!r} goes with nothing that can run here: {install_text(missing)}")


def _merged(grids: Sequence[Grid]) -> Iterator[Grid]:
    """Yield grids, those that differ by their protocols alone as one."""
    protocols_by_grid: dict[Grid, list[Spec]] = {}
    for grid in grids:
        protocols_by_grid.setdefault(replace(grid, protocols=()), []).extend(grid.protocols)
    for grid, protocols in protocols_by_grid.items():
        yield replace(grid, protocols=tuple(dict.fromkeys(protocols)))

"""Complete a suite of which the user named only a part, for example one defense.

Unnamed parts are taken from the suite. If nothing in the suite is compatible with the named part,
registered protocols and defenses are added that are (`fedtrees.protocols.compatibility`). If
nothing at all is compatible, the named part is refused before anything runs.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import islice
from typing import Any

from fedtrees.core.attack import contenders
from fedtrees.core.errors import FedtreesError, UsageError, listed
from fedtrees.core.limits import TimeLimit
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
from fedtrees.experiments.evaluate import build_view, parts_of
from fedtrees.experiments.explain import limit_size, preview
from fedtrees.experiments.federation import federation_of, load_dataset
from fedtrees.experiments.plan import FederationConfig, Task
from fedtrees.experiments.suite import (
    ALL,
    AXES,
    DataRef,
    Grid,
    Suite,
    roles_of,
    threat_fits,
    with_budgets,
)
from fedtrees.protocols.base import Protocol
from fedtrees.protocols.compatibility import KnownFacts, check_fit
from fedtrees.protocols.training import Training

MAX_PROTOCOLS = 2  # number of protocols that are added for one named item
MAX_DEFENSES = 5  # number of defenses up to which defenses are added for a protocol
#: Upper limits of the size of added protocols, as in the default suite.
SIZE = {"trees": 10, "max_depth": 4}
#: Table for protocols whose `example` does not declare the ranges of all columns.
TABLE = DataRef("digits[rows=300]")


def complete_suite(
    suite: Suite, options: Mapping[str, Any], seeds: str | None = None, data_dir: str | None = None
) -> Suite:
    """Replace parts of a suite by named ones, and complete it so that these are tried.

    Parameters
    ----------
    suite : Suite
        The suite to start from.
    options : mapping
        Keys of a grid with their values, for example ``{"defenses": [...]}``.
    seeds : str or None
        Replaces the seeds of the suite.
    data_dir : str or None
        Folder with data files.

    Raises
    ------
    Unfit
        If a named item is compatible with nothing.
    UsageError
        If it needs an extra that is not installed.
    """
    overridden = suite.override(options, seeds)
    if not options:
        return overridden
    limit = overridden.time_limit
    grids = _SuiteCompletion(
        overridden.grids, options, overridden.seeds[0], data_dir, limit
    ).grids()
    return overridden.of(tuple(grids))


def describe_defaults(suite: Suite, options: Mapping[str, Any], completed_suite: Suite) -> str:
    """Describe in which axes a completed suite differs from the original one, "" if in none."""
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
            for s in (plain, completed_suite)
        )
        if before.keys() != after.keys():
            parts.append(f"{axis} {listed([*after]) or 'none'}")
    return f"chosen to fit: {'; '.join(parts)}" if parts else ""


@dataclass
class _SuiteCompletion:
    """The search for protocols, defenses, tables and threats that fit the named items.

    Attributes
    ----------
    suite_grids : sequence of Grid
        The grids of the suite, in which named options have replaced the original ones.
    options : mapping
        The named options.
    seed : int
        Seed of the brief trainings.
    data_dir : str or None
        Folder with data files.
    time_limit : float
        Largest number of seconds of one training, 0 for no limit.
    """

    suite_grids: Sequence[Grid]
    options: Mapping[str, Any]
    seed: int
    data_dir: str | None
    time_limit: float
    trainings: dict[Task, Training] = field(default_factory=dict)  # short trainings
    applicability: dict[tuple[str, ...], Reason] = field(default_factory=dict)

    def grids(self) -> list[Grid]:
        """Return the grids to run, each once."""
        if "protocols" in self.options:
            chosen_grids = [self._grid_around(p) for p in self.suite_grids[0].protocols]
            self._check_named_items(self.suite_grids[0].protocols)
            return list(_merge_grids(chosen_grids))
        compatible = [
            replace(g, protocols=tuple(filter(self._is_compatible, g.protocols)))
            for g in self.suite_grids
        ]
        tried = dict.fromkeys(p for g in compatible for p in g.protocols)
        more: dict[Spec, None] = {}
        for axis, item in self._named_items():
            if not any(self._reason_not_tried(p, axis, item).ok for p in tried):
                more |= dict.fromkeys(self._further_protocols(axis, item))
        if not (tried or more):
            self._check_named_items([p for g in self.suite_grids for p in g.protocols])
            able = (
                p
                for p in self._all_protocols()
                if self._is_compatible(p) and not missing_extras(p, Composed())
            )
            more = dict.fromkeys(islice(able, MAX_PROTOCOLS))
        narrowed = [
            self._narrow(g) for g in self._comparable_grids([g for g in compatible if g.protocols])
        ]
        chosen_grids = [*narrowed, *_merge_grids([self._grid_around(p) for p in more])]
        return list(dict.fromkeys(chosen_grids)) or list(self.suite_grids)

    def _named_items(self) -> list[tuple[str, Any]]:
        """Return the named defenses, threats and attacks, each with its axis."""
        grid = self.suite_grids[0]
        lists = {
            "defenses": [d for d in grid.defenses if d.parts],
            "threats": grid.threats,
            "attacks": [a for a in grid.attacks if a.name != ALL],
        }
        return [(k, item) for k, items in lists.items() if k in self.options for item in items]

    def _is_compatible(self, protocol: Spec) -> bool:
        """Return whether a protocol accepts the tables and one named item of every axis."""
        if not self._accepts_tables(protocol):
            return False
        axes = dict.fromkeys(axis for axis, _ in self._named_items())
        return all(
            any(
                self._reason_not_tried(protocol, axis, item).ok
                for a, item in self._named_items()
                if a == axis
            )
            for axis in axes
        )

    def _accepts_tables(self, protocol: Spec) -> bool:
        """Return whether a protocol accepts the layout of the tables and their targets."""
        instance: Protocol = register.make("protocol", protocol)
        grid = self.suite_grids[0]
        implied = {"horizontal" for r in grid.data if r.states_clients}
        implied |= {"vertical" for r in grid.data if r.id}
        if "partitions" in self.options:
            names = {p.name for p in grid.partitions}
            implied |= {"vertical"} if names <= OF_COLUMNS else set()
            implied |= {"horizontal"} if names <= {*PARTITIONS, BY_CLIENT} - {"iid"} else set()
        if implied and instance.layout not in implied:
            return False
        return "data" not in self.options or self._trains_on(protocol, grid.data)

    def _trains_on(self, protocol: Spec, data: Sequence[DataRef], bare: bool = False) -> bool:
        """Return whether a protocol trains on tables, with `bare` also without a defense."""
        instance: Protocol = register.make("protocol", protocol)
        schemas = [load_dataset(ref, self.data_dir).schema for ref in data]
        try:
            for schema in schemas:
                instance.check(schema)
        except FedtreesError:
            return False
        named = [d for a, d in self._named_items() if a == "defenses"]
        defenses = [d for g in self.suite_grids if protocol in g.protocols for d in g.defenses]
        tried = [[d] for d in named if check_fit(instance, parts_of(d)).ok] or [
            [Composed(), *defenses]
        ]
        tried += [[Composed()]] if bare else []
        return all(
            any(check_fit(instance, parts_of(d), facts=KnownFacts(schema)).ok for d in combination)
            for schema in schemas
            for combination in tried
        )

    def _tables(self, protocol: Spec) -> tuple[DataRef, ...]:
        """Return the tables of the suite, or tables that the protocol and named defenses accept."""
        given_data = self.suite_grids[0].data
        instance: Protocol = register.make("protocol", protocol)
        example = instance.info.example_dataset
        if "data" in self.options:
            return given_data
        usual = (
            {ref.name.partition("[")[0] for ref in given_data}
            == {Protocol.info.example_dataset}
            != {example}
        )
        every = (
            (DataRef(example),) if usual else given_data,
            given_data,
            (DataRef(example),),
            (TABLE,),
        )
        return next((t for t in every if self._trains_on(protocol, t, bare=True)), given_data)

    def _move_to_tables(self, grid: Grid) -> Grid:
        """Return a grid with other tables if the named items do not accept those of the suite."""
        if all(self._trains_on(p, grid.data, bare=True) for p in grid.protocols):
            return grid
        return replace(grid, data=self._tables(grid.protocols[0]))

    def _comparable_grids(self, grids: Sequence[Grid]) -> list[Grid]:
        """Return the suite's grids whose protocols train on the tables of the first one.

        The first grid moves to other tables if the named items do not accept its tables. Further
        grids are compared with the first. They are left out if none of their defenses accepts its
        tables.
        """
        first = [self._move_to_tables(grid) for grid in grids[:1]]
        rest = [g for g in grids[1:] if all(self._trains_on(p, g.data) for p in g.protocols)]
        return [*first, *rest]

    def _reason_not_tried(self, protocol: Spec, axis: str, item: Any) -> Reason:
        """Return the reason why a named item is not tried in a protocol, `FITS` if it is tried."""
        if axis == "threats":
            return FITS if threat_fits(item, protocol) else Reason("other", text="no such role")
        instance = register.make("protocol", protocol)
        if axis == "defenses":
            return check_fit(instance, parts_of(item), facts=KnownFacts(self._schema(protocol)))
        reasons = [self._applicability(protocol, item, t) for t in self._threats(protocol, (item,))]
        return next((r for r in reasons if r.ok), reasons[0] if reasons else FITS)

    def _schema(self, protocol: Spec) -> Any:
        return load_dataset(self._tables(protocol)[0], self.data_dir).schema

    def _further_protocols(self, axis: str, item: Any) -> list[Spec]:
        """Return registered protocols that try an item. Refuse the item if only extras are
        missing."""
        if axis == "attacks":
            register.make("attack", item)  # a wrong value of an option is refused as such
        specs, missing = [], {}
        for spec in self._all_protocols():
            if lacking := missing_extras(spec, item if axis == "defenses" else Composed()):
                if axis == "attacks" or (
                    axis == "defenses" and self._reason_not_tried(spec, axis, item).ok
                ):
                    missing[spec.name] = lacking
            elif self._reason_not_tried(spec, axis, item).ok and self._is_compatible(spec):
                specs.append(spec)
        if not specs and missing:
            threats = () if axis != "attacks" else self.options.get("threats", ())
            _refuse_missing_extras(axis, item.name, missing, threats)
        return specs[:MAX_PROTOCOLS]

    def _all_protocols(self) -> list[Spec]:
        """Return the protocols of the suite, then the remaining ones by their number of
        parameters."""
        given_protocols = dict.fromkeys(p for g in self.suite_grids for p in g.protocols)
        other_protocols = filter(
            None,
            map(default_size, {*register.names("protocol")} - {p.name for p in given_protocols}),
        )
        size = {p: len(register.make("protocol", p).parameters) for p in other_protocols}
        return [*given_protocols, *sorted(size, key=lambda p: (size[p], p.name))]

    def _check_named_items(self, protocols: Sequence[Spec]) -> None:
        """Refuse a defense that none of these protocols tries, and attacks if none of them
        applies."""
        for protocol in protocols:
            for defense in [Composed(), *(d for a, d in self._named_items() if a == "defenses")]:
                check_extras(protocol, defense)
        for defense in (d for axis, d in self._named_items() if axis == "defenses"):
            reasons = [self._reason_not_tried(p, "defenses", defense) for p in protocols]
            if reasons and not any(reason.ok for reason in reasons):
                raise Unfit(Reason("other", text=str(reasons[0])))
        attacks = [a for axis, a in self._named_items() if axis == "attacks"]
        reasons = [self._reason_not_tried(p, "attacks", a) for a in attacks for p in protocols]
        if reasons and not any(reason.ok for reason in reasons):
            raise Unfit(Reason("other", text=f"{attacks[0]} does not apply: {reasons[0]}"))

    def _base_grid(self, protocol: Spec) -> Grid:
        """Return a grid for a protocol that is in no grid of the suite, from all grids together."""
        first = self.suite_grids[0]
        every: dict[str, Any] = {
            axis: tuple(dict.fromkeys(v for g in self.suite_grids for v in getattr(g, axis)))
            for axis in AXES
        }
        instance: Protocol = register.make("protocol", protocol)
        clients = first.clients if "clients" in self.options else (instance.info.default_parties,)
        counts = [len(r.files) for r in first.data if r.id]
        partitions = every["partitions"] if "partitions" in self.options else first.partitions
        every |= {
            "protocols": (protocol,), "partitions": partitions, "data": self._tables(protocol),
            "clients": tuple(counts) if counts and "clients" not in self.options else clients,
        }  # fmt: skip
        return Grid(**every)

    def _grid_around(self, protocol: Spec) -> Grid:
        """Return a grid for a protocol, with defenses that fit it."""
        grid = self._narrow(self._base_grid(protocol))
        if "defenses" in self.options:
            return grid
        instance, data = register.make("protocol", protocol), KnownFacts(self._schema(protocol))
        defenses = [
            d for d in grid.defenses if d.parts and check_fit(instance, parts_of(d), facts=data).ok
        ]
        names = {part.name for d in defenses for part in d.parts}
        queries = any(Threat.parse(t).queries for t in grid.threats)
        for defense in _usual_defenses(instance, data, queries):
            if len(defenses) < MAX_DEFENSES and defense.name not in names:
                defenses.append(defense)
        return replace(grid, defenses=tuple(defenses)).with_undefended()

    def _narrow(self, grid: Grid) -> Grid:
        """Reduce a grid to the named defenses that fit, and to threats under which attacks
        apply."""
        if "defenses" in self.options:
            fit_here = [
                d
                for d in grid.defenses
                if not d.parts
                or any(self._reason_not_tried(p, "defenses", d).ok for p in grid.protocols)
            ]
            if any(d.parts for d in fit_here):
                grid = replace(grid, defenses=tuple(fit_here))
        if "threats" in self.options:
            return grid
        attacks = [a for a in grid.attacks if a.name != ALL] if "attacks" in self.options else []
        threats: dict[str, None] = {}
        for protocol in grid.protocols:
            possible = self._threats(protocol, attacks)
            applied = [
                t for t in possible if any(self._applicability(protocol, a, t).ok for a in attacks)
            ]  # fmt: skip
            threats |= dict.fromkeys(applied or possible)
        return replace(grid, threats=tuple(threats))

    def _threats(self, protocol: Spec, attacks: Sequence[Spec]) -> list[str]:
        """Return threats of the suite that fit, otherwise of the protocol, and those of attacks."""
        base = dict.fromkeys(
            t for g in self.suite_grids for t in g.threats if threat_fits(t, protocol)
        )
        if "threats" in self.options:
            return [*base]
        threats = [*(base or register.make("protocol", protocol).info.adversaries)]
        chosen_defenses = (
            [d for d in self.suite_grids[0].defenses if d.parts]
            if "defenses" in self.options
            else []
        )
        if chosen_defenses and all(
            _changes_only_answers(part) for d in chosen_defenses for part in parts_of(d)
        ):
            threats = [
                threat
                for name in contenders()
                for threat in getattr(register.get("attack", name), "threats", ())
                if Threat.parse(threat).queries and threat_fits(threat, protocol)
                and self._applicability(protocol, Spec(name), threat).ok
            ]  # fmt: skip
        for attack in attacks:
            threats += getattr(register.get("attack", attack.name), "threats", ())
        return [t for t in dict.fromkeys(threats) if threat_fits(t, protocol)]

    def _applicability(self, protocol: Spec, attack: Spec, threat: str) -> Reason:
        """Return `FITS` if an attack applies to a run of two trees, otherwise why not.

        The run without a defense is tried first, then those with the defenses that the user named:
        some attacks read only the messages that a defense adds. If the attack applies to none of
        these runs, the reason is that of the first one.
        """
        reasons: list[Reason] = []
        for defense in self._defenses_of(protocol):
            key = str(protocol), str(attack), threat, str(defense)
            if key not in self.applicability:
                self.applicability[key] = self._applicability_under(
                    protocol, attack, threat, defense
                )
            reasons.append(self.applicability[key])
            if reasons[-1].ok:
                return FITS
        return reasons[0]

    def _defenses_of(self, protocol: Spec) -> list[Composed]:
        """Return the defenses under which an attack is tried: none, and the named ones that fit.

        The run without a defense is left out if the protocol cannot train on the table without one.
        For example, `dp-gbdt` needs declared ranges or a defense that settles the cut points.
        """
        named = [d for axis, d in self._named_items() if axis == "defenses"]
        suitable = [d for d in named if self._reason_not_tried(protocol, "defenses", d).ok]
        instance, data = register.make("protocol", protocol), KnownFacts(self._schema(protocol))
        bare = [Composed()] if not suitable or check_fit(instance, [], facts=data).ok else []
        return [*bare, *suitable]

    def _applicability_under(
        self, protocol: Spec, attack: Spec, threat: str, defense: Composed
    ) -> Reason:
        """Return whether an attack applies to the view after two trees with a defense."""
        try:
            return self._apply_briefly(protocol, attack, threat, defense)
        except TimeLimit:
            return Reason("timeout", seconds=self.time_limit)
        except FedtreesError as err:
            return Reason("other", text=str(err))

    def _apply_briefly(
        self, protocol: Spec, attack: Spec, threat: str, defense: Composed
    ) -> Reason:
        if lacking := missing_extras(protocol, defense):
            return Reason("other", text=install_text({protocol.name: lacking}))
        register.make("attack", attack)
        grid = self._base_grid(protocol)
        instance: Protocol = register.make("protocol", protocol)
        place = (grid.data[0], grid.partitions[0], grid.clients[0], self.seed)
        setting = FederationConfig.of(*place, instance)
        federation = federation_of(setting, self.data_dir)
        roles, parsed = roles_of(instance, grid.clients[0]), Threat.parse(threat)
        task = Task.for_training(
            setting, protocol, defense, tuple(parsed.behaviours(roles).items())
        )
        if task not in self.trainings:
            self.trainings[task] = preview(task, federation, self.time_limit)
        training = self.trainings[task]
        case = federation.case(roles, parsed.principals(roles), self.seed, threat, training)
        return check_fit(
            attack=attack, facts=KnownFacts(federation.schema, view=build_view(training, case))
        )


def _changes_only_answers(part: Any) -> bool:
    """Return whether a defense changes only the answers of an inference endpoint."""
    return bool(part.hooks) and part.hooks <= {"transform_answer", "limit_endpoint"}


def _usual_defenses(protocol: Protocol, data: KnownFacts, endpoint: bool) -> Iterator[Composed]:
    """Yield the registered defenses that fit a protocol, each with one budget.

    Defenses that need a missing extra are left out. So are real secure sums: the server receives
    the same sums as from the ideal secure sum, at a thousand times the cost.
    """
    for name in register.names("defense"):
        try:
            budgets = with_budgets(Spec(name))
            spec = budgets[len(budgets) // 2]
            part = register.make("defense", spec)
        except FedtreesError:  # a parameter without a default
            continue
        idle = not endpoint and _changes_only_answers(part)
        costly = "secure_aggregation" in part.hooks
        if (
            idle
            or costly
            or missing_modules(part.extra_packages)
            or not check_fit(protocol, [part], facts=data).ok
        ):
            continue
        yield Composed((spec,))


def default_size(name: str) -> Spec | None:
    """Return a protocol with the size of the default suite, None if it needs a parameter."""
    try:
        return limit_size(Spec(name), SIZE)
    except FedtreesError:
        return None


def _refuse_missing_extras(
    axis: str, item: str, missing: Mapping[str, Sequence[str]], threats: Sequence[str]
) -> None:
    """Refuse an item that no installed protocol tries, and list the protocols that lack extras."""
    if [item] == [*missing]:
        raise UsageError(install_text(missing))
    if axis != "attacks":
        raise UsageError(f"{item!r} fits no installed protocol: {install_text(missing)}")
    named = "any of its threats"
    if threats:
        named = f"the threat {' or '.join(threats)}; choose another --threat"
    raise UsageError(
        f"no installed protocol gives the attack {item!r} its messages under {named}. "
        f"Protocols that are not installed were not tried: {install_text(missing)}"
    )


def _merge_grids(grids: Sequence[Grid]) -> Iterator[Grid]:
    """Join grids that differ only in their protocols."""
    protocols_by_grid: dict[Grid, list[Spec]] = {}
    for grid in grids:
        protocols_by_grid.setdefault(replace(grid, protocols=()), []).extend(grid.protocols)
    for grid, protocols in protocols_by_grid.items():
        yield replace(grid, protocols=tuple(dict.fromkeys(protocols)))

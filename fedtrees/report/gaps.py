"""What did not run and why: defenses, threats and attacks, in one list."""

from __future__ import annotations

import math
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from inspect import signature
from typing import Any

import pandas as pd

from fedtrees.core.columns import APPLIES
from fedtrees.core.counts import listed, many
from fedtrees.core.errors import FedtreesError
from fedtrees.core.reasons import NO_CLAIM, Reason
from fedtrees.core.registry import register
from fedtrees.core.specs import Spec, parse_grid, parse_one
from fedtrees.core.threat import Threat
from fedtrees.core.transcript import PUBLIC
from fedtrees.protocols.compatibility import fit
from fedtrees.report.budgets import ordered
from fedtrees.report.rows import UNDEFENDED, Setting
from fedtrees.report.worst import troubles

NOT_ASKED, NO_FIT = "not asked for", "does not fit"
_FEW = 3  # names that are written out
_ORDER = ("failed", "timeout", NO_CLAIM, NOT_ASKED, "skipped", NO_FIT)


@dataclass(frozen=True)
class Gap:
    """Things of one kind that did not run in one setting, for one reason.

    `kind`: "defense", "threat" or "attack". `status`: "failed", "timeout", "skipped", `NOT_ASKED`
    or `NO_FIT`. `names`: What did not run. `against`: Defenses of attacks. `threat`: Of attacks.
    """

    status: str
    kind: str
    why: Reason
    setting: Setting
    threat: str = ""
    against: tuple[str, ...] = ()
    seeds: tuple[int, ...] = ()
    names: tuple[str, ...] = ()

    def __str__(self) -> str:
        """Write it in a line: ``failed: joint (p; server; against none; seed 0): no room``."""
        seeds = list(map(str, self.seeds))
        against = self.against and f"against {_few(self.against, 'defense')}"
        shown = _few(seeds, "seed")
        if 0 < len(seeds) <= _FEW:
            shown = f"seed{'s' * (len(seeds) > 1)} {shown}"
        place = "; ".join(filter(None, (self.setting.protocol, self.threat, against, shown)))
        ended = "returned no claim" if self.status == NO_CLAIM else self.status
        return f"{ended}: {listed(self.names)} ({place}): {self.why}"


def _few(names: Sequence[str], what: str) -> str:
    """Write names, or how many there are of more."""
    return ", ".join(names) if len(names) <= _FEW else many(len(names), what)


@dataclass(frozen=True)
class Gaps:
    """Every gap of a run, failures first."""

    found: tuple[Gap, ...]

    @classmethod
    def of(cls, rows: pd.DataFrame, settings: Sequence[Setting]) -> Gaps:
        """Collect the gaps of all settings; things that have everything in common are one.

        What is registered here and was not asked for counts; where a protocol is of a plugin that
        is not loaded, only the rows tell.
        """
        names: dict[Gap, dict[str, None]] = {}
        for setting in settings:
            here = rows[rows["setting"] == setting]
            for name, gap in _each(here, setting):
                names.setdefault(gap, {})[name] = None
        order = {status: at for at, status in enumerate(_ORDER)}
        found = [replace(gap, names=tuple(mine)) for gap, mine in names.items()]
        found.sort(key=lambda g: (order.get(g.status, 2), g.setting, g.kind, g.threat, g.names))
        return cls(tuple(found))

    @property
    def asked(self) -> tuple[Gap, ...]:
        """Those of what was asked for."""
        return tuple(gap for gap in self.found if gap.status not in (NOT_ASKED, NO_FIT))


def called(setting: Setting) -> Mapping[str, tuple[str, str]]:
    """Return what a setting's protocol calls its parties, nothing where it is not here."""
    return getattr(_made("protocol", setting.protocol), "called", {})


def _made(kind: str, text: str) -> Any:
    """Return what a spec names, None where it is not here, needs a value or does not import."""
    try:
        return register.make(kind, parse_grid(text)[0])
    except FedtreesError:
        return None


def _defense(name: str) -> Any:
    """Return a defense, with a budget that it `tries`, or 1, where it needs a value."""
    try:
        maker = register.get("defense", name)
        tries = getattr(maker, "tries", {})
        needed = [k for k, p in signature(maker).parameters.items() if p.default is p.empty]
        values = {key: tries.get(key, (1,))[0] for key in needed}
        return register.make("defense", Spec(name, values))
    except FedtreesError:
        return None


def _each(here: pd.DataFrame, setting: Setting) -> Iterator[tuple[str, Gap]]:
    """Yield everything by itself: a name, and the gap of it and of others alike."""
    yield from _troubles(here, setting)
    told = here[(here["stage"] == "adversary") & (here["metric"] == APPLIES.key)]
    ran = here[here["stage"] == "attack"]
    asked = {*zip(ran["threat"], ran["attack"], strict=True)}
    for threat, name, value, why in zip(
        *(told[c] for c in ("threat", "attack", "value", "why")), strict=True
    ):
        if (threat, name) not in asked:
            reason = Reason("attack-not-asked") if value > 0 else why
            yield name, Gap(NOT_ASKED if value > 0 else NO_FIT, "attack", reason, setting, threat)
    protocol = _made("protocol", setting.protocol)
    if protocol is not None:
        yield from _defenses(here, setting, protocol)
        roles = {*protocol.roles(2).values(), *([PUBLIC] if protocol.released else [])}
        adversaries = {role for t in {*here["threat"]} - {""} for role in Threat.parse(t).roles}
        for name in sorted(roles - adversaries):
            yield name, Gap(NOT_ASKED, "threat", Reason("role-not-curious"), setting)


def _troubles(here: pd.DataFrame, setting: Setting) -> Iterator[tuple[str, Gap]]:
    """Yield what the rows say failed, timed out or was skipped; of a training once."""
    trained = here[here["stage"] == "train"]
    for (status, why, name), seeds in troubles(trained, "status", "why", "defense_spec").items():
        yield name, Gap(status, "defense", why, setting, seeds=_whole(seeds))
    bad = trained[trained["status"] != "ok"].set_index(["defense_spec", "seed"]).index
    ran = here[here["stage"] == "attack"]
    ran = ran[~pd.MultiIndex.from_frame(ran[["defense_spec", "seed"]]).isin(bad)]
    by = ("status", "why", "threat", "attack_spec", "defense_spec")
    alike: dict[tuple[Any, ...], dict[str, set[float]]] = {}
    for (*key, defense), seeds in troubles(ran, *by).items():
        alike.setdefault(tuple(key), {}).setdefault(defense, set()).update(seeds)
    for (status, why, threat, name), per in alike.items():
        place = (setting, threat, tuple(ordered(per)), _whole(set().union(*per.values())))
        yield name, Gap(status, "attack", why, *place)


def _whole(seeds: Collection[float]) -> tuple[int, ...]:
    return tuple(sorted(int(seed) for seed in seeds if not math.isnan(seed)))


def _defenses(here: pd.DataFrame, setting: Setting, protocol: Any) -> Iterator[tuple[str, Gap]]:
    """Yield the registered defenses that were not run, and why they could not be."""
    ran = {part.name for d in {*here["defense_spec"]} - {""} for part in parse_one(d).parts}
    for name in register.names("defense"):
        defense = None if name in ran or name == UNDEFENDED else _defense(name)
        if defense is not None:  # else nobody knows whether it fits
            why = fit(protocol, [defense]).alike
            status = NOT_ASKED if why.ok else NO_FIT
            yield (
                name,
                Gap(status, "defense", Reason("defense-not-asked") if why.ok else why, setting),
            )

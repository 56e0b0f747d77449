"""What did not run and why: defenses, threats and attacks, in one list."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from inspect import signature
from typing import Any

import pandas as pd

from fedtrees.core import columns
from fedtrees.core.composition import Composition
from fedtrees.core.counts import listed
from fedtrees.core.errors import FedtreesError
from fedtrees.core.registry import register
from fedtrees.core.specs import Spec, parse_grid, parse_one
from fedtrees.core.threat import Threat
from fedtrees.core.transcript import PUBLIC
from fedtrees.report.budgets import ordered
from fedtrees.report.rows import UNDEFENDED, Setting

NOT_ASKED, NO_FIT = "not asked for", "does not fit"
_ORDER = ("failed", "timeout", NOT_ASKED, "skipped", NO_FIT)
APPLIES = "it applies to what this adversary sees"


@dataclass(frozen=True)
class Gap:
    """Things of one kind that did not run in one setting, for one reason.

    `kind`: "defense", "threat" or "attack". `status`: "failed", "timeout", "skipped", `NOT_ASKED`
    or `NO_FIT`. `names`: What did not run. `against`: Defenses of attacks. `threat`: Of attacks.
    """

    status: str
    kind: str
    names: tuple[str, ...]
    setting: Setting
    why: str
    threat: str = ""
    against: tuple[str, ...] = ()
    seeds: tuple[int, ...] = ()


@dataclass(frozen=True)
class Gaps:
    """Every gap of a run, failures first."""

    found: tuple[Gap, ...]

    @classmethod
    def of(cls, rows: pd.DataFrame, settings: Sequence[Setting]) -> Gaps:
        """Collect the gaps of all settings.

        What is registered here and was not asked for counts; where a protocol is of a plugin that
        is not loaded, only the rows tell.
        """
        found: list[Gap] = []
        for setting in settings:
            here = rows[rows["setting"] == setting]
            found += [*_troubles(here, setting), *_left_out(here, setting)]
            protocol = _made("protocol", setting.protocol)
            if protocol is not None:
                found += [*_defenses(here, setting, protocol), *_threats(here, setting, protocol)]
        order = {status: at for at, status in enumerate(_ORDER)}
        found.sort(key=lambda g: (order.get(g.status, 2), g.setting, g.kind, g.threat, g.names))
        return cls(tuple(found))

    def named(self, setting: Setting) -> tuple[str, ...]:
        """Return what could have been run in a setting and was not asked for, in words."""
        kinds: dict[str, dict[str, None]] = {}
        for gap in self.found:
            if gap.setting == setting and gap.status == NOT_ASKED:
                kinds.setdefault(gap.kind, {}).update(dict.fromkeys(gap.names))
        out = []
        for kind in ("attack", "defense", "threat"):
            names = list(kinds.get(kind, ()))
            if not names:
                continue
            out.append(f"the {kind}{'s' if len(names) > 1 else ''} {listed(names)}")
        unfit = [n for g in self.found if g.setting == setting and g.kind == "defense"
                 and g.status == "skipped" for n in g.names]  # fmt: skip
        if unfit:
            out.append(f"{listed(unfit)}, which {'does' if len(unfit) == 1 else 'do'} not fit here")
        return tuple(out)


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


def _troubles(here: pd.DataFrame, setting: Setting) -> Iterator[Gap]:
    """Yield what the rows say failed, timed out or was skipped."""
    # Which attacks apply to a training that failed is no gap of its own.
    bad = here[(here["status"] != "ok") & here["stage"].isin(["train", "attack"])]
    keys = ["status", "stage", "threat", "attack_spec", "reason"]
    groups: dict[tuple[str, ...], dict[str, set[int]]] = {}
    columns = [*keys, "defense_spec", "seed"]
    for *key, defense, seed in bad[columns].itertuples(index=False, name=None):
        seeds = groups.setdefault(tuple(key), {}).setdefault(defense, set())
        seeds.update([] if math.isnan(seed) else [int(seed)])
    merged: dict[tuple[Any, ...], list[str]] = {}
    for (status, stage, threat, attack, reason), per in groups.items():
        seeds = tuple(sorted(set().union(*per.values())))
        against = tuple(ordered(per))
        if stage == "train":
            merged.setdefault((status, "defense", "", reason, (), seeds), []).extend(against)
        else:
            merged.setdefault((status, "attack", threat, reason, against, seeds), []).append(attack)
    for (status, kind, threat, reason, against, seeds), names in merged.items():
        yield Gap(status, kind, tuple(names), setting, reason, threat, against, seeds)


def _left_out(here: pd.DataFrame, setting: Setting) -> Iterator[Gap]:
    """Yield the attacks that were not asked for, and why some of them do not apply."""
    told = here[(here["stage"] == "exposure") & (here["metric"] == columns.APPLIES.key)]
    ran = here[here["stage"] == "attack"]
    for threat, mine in told.groupby("threat"):
        asked = set(ran.loc[ran["threat"] == threat, "attack"])
        applies = set(mine.loc[mine["value"] > 0, "attack"])
        reasons: dict[tuple[str, str], set[str]] = {}
        for name, why in zip(mine["attack"], mine["reason"], strict=True):
            if name not in asked:
                fits = name in applies
                key = (NOT_ASKED, APPLIES) if fits else (NO_FIT, why)
                reasons.setdefault(key, set()).add(name)
        for (status, why), names in reasons.items():
            yield Gap(status, "attack", tuple(sorted(names)), setting, why, str(threat))


def _defenses(here: pd.DataFrame, setting: Setting, protocol: Any) -> Iterator[Gap]:
    """Yield the registered defenses that were not run, and why they could not be."""
    ran = {part.name for d in set(here["defense_spec"]) - {""} for part in parse_one(d).parts}
    reasons: dict[tuple[str, str], list[str]] = {}
    for name in register.names("defense"):
        if name in ran or name == UNDEFENDED:
            continue
        defense = _defense(name)
        if defense is None:  # nobody knows whether it fits
            continue
        why = protocol.mismatch(Composition((defense,)))
        status = NOT_ASKED if why is None else NO_FIT
        # Said of all alike, so that what has one reason is one line.
        why = (why or "it fits this protocol").replace(f"{name!r} ", "it ")
        why = why.replace(repr(protocol.name), "this protocol")
        reasons.setdefault((status, why), []).append(name)
    for (status, why), names in reasons.items():
        yield Gap(status, "defense", tuple(names), setting, why)


def _threats(here: pd.DataFrame, setting: Setting, protocol: Any) -> Iterator[Gap]:
    """Yield the roles of whose view nothing was asked."""
    asked = {t for t in here["threat"] if t}
    curious = {part.name for t in asked for part in Threat.parse(t).parts}
    roles = {*protocol.roles(2).values(), *([PUBLIC] if protocol.released else [])}
    names = sorted(roles - curious)
    if names:
        yield Gap(NOT_ASKED, "threat", tuple(names), setting, "nobody in this role was curious")

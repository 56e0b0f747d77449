"""Determine which attacks apply to a defense under a threat, and how each of them ended.

`Gaps` contains the defenses, threats and attacks that did not run or failed, with reasons.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from inspect import signature
from typing import Any

import pandas as pd

from fedtrees.core.errors import FedtreesError, listed, many
from fedtrees.core.reasons import NO_CLAIM, Reason
from fedtrees.core.registry import register
from fedtrees.core.results import APPLIES, NOTE
from fedtrees.core.specs import Spec, parse_grid, parse_one
from fedtrees.core.threat import Threat
from fedtrees.core.transcript import PUBLIC
from fedtrees.protocols.compatibility import check_fit
from fedtrees.report.results import UNDEFENDED, Setting, ordered
from fedtrees.report.statistics import troubles

# Names of the attributes that limit the search of an attack.
LIMITS = ("steps", "work", "time_limit", "limit")
STOPPED_EARLY = "stopped_early"  # note of an attack whose search reached a limit


@dataclass(frozen=True)
class Coverage:
    """The attacks on one defense under one threat.

    Attributes
    ----------
    applicable : tuple of str or None
        Names of all registered attacks that apply, whether or not the suite requested them. None if
        the run does not record it.
    left_out : tuple of str
        Applicable attacks that the suite did not request.
    failed : tuple of (str, str, str, int)
        Attacks that failed or ran out of time: name, specification, status and number of seeds.
    early : tuple of str
        Attacks that stopped at a limit of their search, with these limits.
    no_claim : tuple of (str, str, str, int)
        Attacks that ran and returned no claim: name, specification, reason and number of seeds.
    """

    applicable: tuple[str, ...] | None = None
    left_out: tuple[str, ...] = ()
    failed: tuple[tuple[str, str, str, int], ...] = ()
    early: tuple[str, ...] = ()
    no_claim: tuple[tuple[str, str, str, int], ...] = ()

    @property
    def missing(self) -> bool:
        """Whether an applicable attack is recorded as not run or not finished."""
        return bool(self.left_out or self.failed)

    @property
    def complete(self) -> bool:
        """Whether at least one attack applies, and all that apply ran on every seed."""
        return bool(self.applicable) and not self.missing

    def __str__(self) -> str:
        """Write how many attacks ran: ``1 of 4 applicable attacks ran (left out: ...)``."""
        failed = [f"{spec} ({status}, {many(n, 'seed')})" for _, spec, status, n in self.failed]
        silent = [f"{spec} ({many(n, 'seed')})" for _, spec, _, n in self.no_claim]
        parts = [
            ("left out", self.left_out), ("not finished", failed), ("without a claim", silent),
        ]  # fmt: skip
        why = "; ".join(f"{title}: {', '.join(names)}" for title, names in parts if names)
        why = f" ({why})" if why else ""
        if self.applicable is None:
            return f"which attacks apply is not recorded{why}"
        ran = len({*self.applicable} - {*self.left_out} - {name for name, *_ in self.failed})
        return f"{ran} of {many(len(self.applicable), 'applicable attack')} ran{why}"


def coverage(adversary_rows: pd.DataFrame, attacks: pd.DataFrame) -> Coverage:
    """Determine how the attacks on one defense under one threat ended.

    Parameters
    ----------
    adversary_rows : DataFrame
        Rows of this defense and threat with the stage ``adversary``, which record the applicable
        attacks.
    attacks : DataFrame
        Rows of this defense and threat with the stage ``attack``.
    """
    applicability = adversary_rows[adversary_rows["metric"] == APPLIES.key]
    seen = set(zip(attacks["attack"], attacks["seed"], strict=True))
    skips = attacks[attacks["status"] == "skipped"]
    skipped = set(zip(skips["attack"], skips["seed"], strict=True))
    columns = (applicability[c].tolist() for c in ("attack", "seed", "value"))
    applies = {(name, seed) for name, seed, value in zip(*columns, strict=True) if value > 0}
    # An attack that was recorded as applicable can still be skipped when it runs.
    applies -= skipped
    cut = attacks[cut_short(attacks) & (attacks["value"] > 0)]
    specs = (cut["attack"].tolist(), cut["attack_params"].tolist())
    return Coverage(
        None if applicability.empty else tuple(sorted({name for name, _ in applies})),
        tuple(sorted({name for name, _ in applies - seen})),
        tuple(
            (*key, len(seeds))
            for key, seeds in sorted(troubles(attacks, "attack", "attack_spec", "status").items())
            if key[2] not in ("skipped", NO_CLAIM)
        ),
        tuple(sorted({_with_limits(*spec) for spec in zip(*specs, strict=True)})),
        tuple(
            (name, spec, str(why), len(seeds))
            for (name, spec, why), seeds in troubles(
                attacks[attacks["status"] == NO_CLAIM], "attack", "attack_spec", "why"
            ).items()
        ),
    )


def cut_short(rows: pd.DataFrame) -> pd.Series:
    """Mark the rows that record whether a search reached its limit."""
    return (rows["metric"] == NOTE.key) & (rows["part"] == STOPPED_EARLY)


def _with_limits(name: str, params: str) -> str:
    """Write an attack with the limits of its search, for example ``joint[steps=100000]``."""
    try:
        attack = register.make("attack", parse_grid(f"{name}[{params}]" if params else name)[0])
    # The attack belongs to another release or to a plug-in file that is not loaded.
    except FedtreesError:
        return name
    limits = {key: getattr(attack, key, None) for key in LIMITS}
    limit_texts = [f"{key}={value:g}" for key, value in limits.items() if value is not None]
    return f"{name}[{','.join(limit_texts)}]" if limit_texts else name


NOT_ASKED, NO_FIT = "not asked for", "does not fit"
_FEW = 3  # if there are more names, only their number is written
_ORDER = ("failed", "timeout", NO_CLAIM, NOT_ASKED, "skipped", NO_FIT)


@dataclass(frozen=True)
class Gap:
    """Defenses, threats or attacks that did not run in one setting for one reason.

    Attributes
    ----------
    status : str
        "failed", "timeout", "skipped", the status without a claim (`NO_CLAIM`), `NOT_ASKED` or
        `NO_FIT`.
    kind : str
        "defense", "threat" or "attack".
    why : Reason
        The reason.
    setting : Setting
        Dataset, partition and protocol.
    threat : str
        Threat of an attack.
    against : tuple of str
        Defenses against which an attack was to run.
    seeds : tuple of int
        Seeds on which it did not run. Empty if it was not requested.
    names : tuple of str
        Names of the defenses, threats or attacks that did not run.
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
        """Write a gap in one line: ``failed: joint (p; server; against none; seed 0): no room``."""
        seeds = list(map(str, self.seeds))
        against = f"against {_names_or_count(self.against, 'defense')}" if self.against else ""
        shown = _names_or_count(seeds, "seed")
        if 0 < len(seeds) <= _FEW:
            shown = f"seed{'s' * (len(seeds) > 1)} {shown}"
        place = "; ".join(filter(None, (self.setting.protocol, self.threat, against, shown)))
        ended = "returned no claim" if self.status == NO_CLAIM else self.status
        return f"{ended}: {listed(self.names)} ({place}): {self.why}"


def _names_or_count(names: Sequence[str], noun: str) -> str:
    """Write up to three names, or the number of more than three."""
    return ", ".join(names) if len(names) <= _FEW else many(len(names), noun)


@dataclass(frozen=True)
class Gaps:
    """All gaps of a run, failures first."""

    entries: tuple[Gap, ...]

    @classmethod
    def of(cls, rows: pd.DataFrame, settings: Sequence[Setting]) -> Gaps:
        """Collect the gaps of all settings. Gaps that differ in their names only are merged.

        Registered plug-ins that the suite did not request are gaps, too. If the protocol belongs to
        a plug-in that is not loaded, only gaps in the rows are found.

        Parameters
        ----------
        rows : DataFrame
            Results as returned by `load_rows`.
        settings : sequence of Setting
            The settings to examine.
        """
        names: dict[Gap, dict[str, None]] = {}
        for setting in settings:
            here = rows[rows["setting"] == setting]
            for name, gap in _single_gaps(here, setting):
                names.setdefault(gap, {})[name] = None
        order = {status: at for at, status in enumerate(_ORDER)}
        gaps = [replace(gap, names=tuple(gap_names)) for gap, gap_names in names.items()]
        gaps.sort(key=lambda g: (order.get(g.status, 2), g.setting, g.kind, g.threat, g.names))
        return cls(tuple(gaps))

    @property
    def requested(self) -> tuple[Gap, ...]:
        """Gaps of defenses, threats and attacks that the suite requested."""
        return tuple(gap for gap in self.entries if gap.status not in (NOT_ASKED, NO_FIT))


def role_names(setting: Setting) -> Mapping[str, tuple[str, str]]:
    """Return the protocol's names of its roles, singular and plural.

    The mapping is empty if the protocol is not registered here.
    """
    protocol = _make_plugin("protocol", setting.protocol)
    return {} if protocol is None else protocol.info.role_labels


def layout_of(protocol: str) -> str:
    """Return how a protocol distributes a table over the parties, "" if it is not registered."""
    instance = _make_plugin("protocol", protocol)
    return "" if instance is None else str(instance.layout)


def _make_plugin(kind: str, text: str) -> Any:
    """Return a plug-in. None if it is not registered, needs a value or cannot be imported."""
    try:
        return register.make(kind, parse_grid(text)[0])
    except FedtreesError:
        return None


def _make_defense(name: str) -> Any:
    """Return a defense, each required parameter with its first `DefenseInfo.bench_grid`, or 1."""
    try:
        maker: Any = register.get("defense", name)
        needed = [k for k, p in signature(maker).parameters.items() if p.default is p.empty]
        values = {key: maker.info.bench_grid.get(key, (1,))[0] for key in needed}
        return register.make("defense", Spec(name, values))
    except FedtreesError:
        return None


def _single_gaps(here: pd.DataFrame, setting: Setting) -> Iterator[tuple[str, Gap]]:
    """Yield a name and its gap, for each name separately."""
    yield from _troubles(here, setting)
    applicability = here[(here["stage"] == "adversary") & (here["metric"] == APPLIES.key)]
    ran = here[here["stage"] == "attack"]
    requested = {*zip(ran["threat"], ran["attack"], strict=True)}
    for threat, name, value, why in zip(
        *(applicability[c] for c in ("threat", "attack", "value", "why")), strict=True
    ):
        if (threat, name) not in requested:
            reason = Reason("attack-not-asked") if value > 0 else why
            yield name, Gap(NOT_ASKED if value > 0 else NO_FIT, "attack", reason, setting, threat)
    protocol = _make_plugin("protocol", setting.protocol)
    if protocol is not None:
        yield from _defenses(here, setting, protocol)
        # Two parties are enough to see every role of the protocol.
        roles = {*protocol.roles(2).values(), *([PUBLIC] if protocol.released else [])}
        adversaries = {role for t in {*here["threat"]} - {""} for role in Threat.parse(t).roles}
        for name in sorted(roles - adversaries):
            yield name, Gap(NOT_ASKED, "threat", Reason("role-not-curious"), setting)


def _troubles(here: pd.DataFrame, setting: Setting) -> Iterator[tuple[str, Gap]]:
    """Yield the recorded failures, time-outs and skips.

    If a training failed, the attacks on it are not listed separately.
    """
    trained = here[here["stage"] == "train"]
    for (status, why, name), seeds in troubles(trained, "status", "why", "defense_spec").items():
        yield name, Gap(status, "defense", why, setting, seeds=_sorted_seeds(seeds))
    # Attacks on a failed training are skipped as a consequence, and would repeat its reason.
    bad = trained[trained["status"] != "ok"].set_index(["defense_spec", "seed"]).index
    ran = here[here["stage"] == "attack"]
    ran = ran[~pd.MultiIndex.from_frame(ran[["defense_spec", "seed"]]).isin(bad)]
    columns = ("status", "why", "threat", "attack_spec", "defense_spec")
    by_reason: dict[tuple[Any, ...], dict[str, set[float]]] = {}
    for (*key, defense), seeds in troubles(ran, *columns).items():
        by_reason.setdefault(tuple(key), {}).setdefault(defense, set()).update(seeds)
    for (status, why, threat, name), per in by_reason.items():
        place = (setting, threat, tuple(ordered(per)), _sorted_seeds(set().union(*per.values())))
        yield name, Gap(status, "attack", why, *place)


def _sorted_seeds(seeds: Collection[float]) -> tuple[int, ...]:
    """Return the finite seeds as sorted integers."""
    return tuple(sorted(int(seed) for seed in seeds if not math.isnan(seed)))


def _defenses(here: pd.DataFrame, setting: Setting, protocol: Any) -> Iterator[tuple[str, Gap]]:
    """Yield the registered defenses that were not run, with the reason if they do not fit."""
    ran = {part.name for d in {*here["defense_spec"]} - {""} for part in parse_one(d).parts}
    for name in register.names("defense"):
        defense = None if name in ran or name == UNDEFENDED else _make_defense(name)
        # If the defense cannot be made, it is not known whether it fits.
        if defense is not None:
            why = check_fit(protocol, [defense]).alike
            status = NOT_ASKED if why.ok else NO_FIT
            yield (
                name,
                Gap(status, "defense", Reason("defense-not-asked") if why.ok else why, setting),
            )

"""Collect the results of one adversary: its name, the messages that it receives, its attacks.

`AdversaryFindings` computes one `fedtrees.report.leakage.LeakageResult` per defense and measure, on
demand, from the attack rows of one setting and threat.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import pandas as pd

from fedtrees.core.errors import UsageError
from fedtrees.core.results import measure
from fedtrees.core.threat import Threat
from fedtrees.core.transcript import PUBLIC
from fedtrees.report.coverage import Coverage
from fedtrees.report.leakage import (
    MARGIN,
    LeakageResult,
    classified_metrics,
    gravity_key,
    leakage_by_defense,
    plain,
)
from fedtrees.report.results import UNDEFENDED, Setting


@dataclass(frozen=True, eq=False)
class AdversaryFindings:
    """An adversary of a setting, attacked or not.

    Attributes
    ----------
    threat : str
        Threat in the notation of the command line.
    attacks : DataFrame
        Its attack rows, empty if its view was not attacked.
    coverage : mapping of str to Coverage
        By attacked defense: which attacks apply, and how they ended.
    margin : float
        Largest advantage that counts as no better than a blind guess.
    name : str
        Description in words.
    several : bool
        Whether the adversary consists of more than one party.
    sees : tuple of str
        Types of messages that the adversary can read, in words.
    baseline_defense : str
        The defense with which other defenses are compared (`SettingFindings.baseline_defense`).
    """

    threat: str
    attacks: pd.DataFrame = field(repr=False)
    coverage: Mapping[str, Coverage] = field(default_factory=dict, repr=False)
    margin: float = MARGIN
    name: str = ""
    several: bool = False
    sees: tuple[str, ...] = ()
    baseline_defense: str = UNDEFENDED
    _results: dict[str, dict[str, LeakageResult]] = field(
        default_factory=dict, init=False, repr=False
    )

    @property
    def tested(self) -> bool:
        """Whether the view of the adversary was attacked."""
        return len(self.attacks) > 0

    @cached_property
    def all_metrics(self) -> tuple[str, ...]:
        """Metrics that some attack scored under some defense, or declared without a claim.

        Those about persons come first.
        """
        return classified_metrics(self.attacks)

    @property
    def metrics(self) -> tuple[str, ...]:
        """Keys of its measures, without those that another measure expresses more clearly."""
        here = self.all_metrics
        return tuple(m for m in here if not {*here} & {*measure(m).covered_by})

    def by_defense(self, metric: str) -> Mapping[str, LeakageResult]:
        """Return the results by one metric of every attacked defense. They are computed once."""
        if metric not in self._results:
            self._results[metric] = leakage_by_defense(
                self.attacks, self.coverage, metric, self.margin
            )
        return self._results[metric]

    def result(self, defense: str, metric: str) -> LeakageResult:
        """Return the result of a defense and a measure.

        If there is none, its state is "unknown" for a defense that was not attacked, otherwise
        "not-applicable".
        """
        by_defense = self.by_defense(metric) if metric in self.all_metrics else {}
        missing = LeakageResult(metric, "not-applicable" if defense in self.coverage else "unknown")
        return by_defense.get(defense, missing)

    def results(self, defense: str) -> tuple[LeakageResult, ...]:
        """Return the results of one defense, in the order of `all_metrics`."""
        return tuple(self.result(defense, m) for m in self.all_metrics)

    def leading(self) -> LeakageResult | None:
        """Return the gravest leak without a defense: by class, then severity, then advantage.

        None if no result is leaking.
        """
        return min(self.leaking_results(self.baseline_defense), key=gravity_key, default=None)

    def leaking_results(self, defense: str) -> list[LeakageResult]:
        """Return the leaking results under a defense, the gravest first.

        If two measures express the same leak, only the clearer one is returned.
        """
        leaks = [r for r in self.results(defense) if r.state == "leaking"]
        return sorted(plain(leaks), key=gravity_key)


def adversary_named(threat: str, words: Mapping[str, tuple[str, str]]) -> tuple[str, bool]:
    """Return a description of an adversary, and whether it consists of several parties.

    Parameters
    ----------
    threat : str
        Threat in the notation of the command line, for example ``server+client``.
    words : mapping of str to (str, str)
        Singular and plural name of each role.
    """
    try:
        parsed = Threat.parse(threat)
    # The run of another release can contain a threat that this release does not know.
    except UsageError:
        return f"the adversary {threat!r}", False
    parts = []
    for part in parsed.parts:
        role, _, behaviour = part.name.partition(":")
        one, several = words.get(role, (f"the party {role!r}", f"{role} parties"))
        count = part.params.get("count", 1)
        cheats = f", cheating ({behaviour})" if behaviour else ""
        parts.append((one if count == 1 else f"{count} {several}") + cheats)
    counts = {"queries": parsed.queries, "labels": parsed.labels, "attributes": parsed.attributes}
    knowledge = [f"{n} {kind}" for kind, n in counts.items() if n]
    if parsed.sensitive is not None:
        knowledge.append(f"all attributes except {parsed.sensitive} of the rows of other parties")
    text = " and ".join(parts) + (f" (with {', '.join(knowledge)})" if knowledge else "")
    counted = (p.params.get("count", 1) for p in parsed.parts)
    return text, sum(n if isinstance(n, int) else 1 for n in counted) > 1


def seen_by(threat: str, setting: Setting, seen: Sequence[Mapping[str, Any]]) -> tuple[str, ...]:
    """Return the types of messages that an adversary can read in the undefended run, in words.

    A setting in which the adversary only receives the finished model has the single entry "the
    finished model".

    Parameters
    ----------
    threat : str
        Threat in the notation of the command line.
    setting : Setting
        Only messages of its protocol are considered.
    seen : sequence of mapping
        Entries of ``disclosure.json``, one per type of message and receiver.
    """
    try:
        roles = {*Threat.parse(threat).roles}
    except UsageError:
        return ()
    message_types = []
    for entry in seen:
        if not of_protocol(entry, setting) or str(entry.get("defense")) != UNDEFENDED:
            continue
        reader = str(entry.get("readable_by") or entry.get("to"))
        if reader in roles and entry.get("reveals") and not entry.get("sealed"):
            message_types.append(words_of(str(entry.get("type", ""))))
    return tuple(dict.fromkeys(message_types)) or (
        ("the finished model",) if roles == {PUBLIC} else ()
    )


def of_protocol(entry: Mapping[str, Any], setting: Setting) -> bool:
    """Return whether an entry of ``disclosure.json`` belongs to the protocol of a setting.

    Parameters of the protocol are ignored.
    """
    name = str(entry.get("protocol", "")).partition("[")[0]
    return name == setting.protocol.partition("[")[0]


def words_of(message: str) -> str:
    """Return the type of a message in words: ``LeafValues`` becomes ``leaf values``."""
    return re.sub(r"(?<=[a-z0-9])(?=[A-Z])", " ", message).lower()

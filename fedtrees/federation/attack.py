"""Run attacks on the log of one party of a federation, which contains its messages."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from fedtrees.capture.attack import MessageCounts, party_and_file, run_attacks
from fedtrees.capture.records import Capture, Record
from fedtrees.core.attack import contenders
from fedtrees.core.errors import UsageError, did_you_mean
from fedtrees.core.local_data import LocalData
from fedtrees.core.specs import Spec
from fedtrees.core.streams import Streams
from fedtrees.core.transcript import PUBLIC
from fedtrees.core.view import Seen, View
from fedtrees.federation.agreement import FederationAgreement, read
from fedtrees.federation.log import FRAMEWORK
from fedtrees.federation.site import Settings, read_site_data
from fedtrees.isolation.process import attack_process
from fedtrees.metrics.metric import Case
from fedtrees.protocols.views import protocol_changes_of_view


@dataclass(frozen=True)
class FederationLog:
    """A log from the perspective of one party, by default the party that wrote it.

    Raises
    ------
    UsageError
        If the file is not the log of a federation, or does not contain this party.
    DataError
        As in `Capture`.
    """

    file: str
    who: str = ""
    run: int | None = None

    def __post_init__(self) -> None:
        if self.capture.run_facts.framework != FRAMEWORK:
            raise UsageError(
                f"{self.file} is no log of a federation: `fedtrees capture attack` reads it"
            )
        object.__setattr__(self, "who", self.who or self.kept_by)
        parties = [*self.federation.agreement.roles]
        if self.who not in parties:
            raise UsageError(
                f"no party {self.who!r} in {self.file}{did_you_mean(self.who, parties)}"
            )

    @cached_property
    def capture(self) -> Capture:
        """The file."""
        return Capture(self.file, self.run)

    @cached_property
    def federation(self) -> FederationAgreement:
        """Agreement of the parties."""
        return read(self.capture.run_facts.details["federation"])

    @property
    def kept_by(self) -> str:
        """The party that wrote the log."""
        return str(self.capture.run_facts.details["party"])

    @cached_property
    def records(self) -> list[Record]:
        """All messages in the log."""
        return list(self.capture)

    @property
    def model(self) -> object:
        """The released model, None if none was released."""
        released = (r.message for r in self.records if PUBLIC in r.receivers)
        return next((message.model() for message in released), None)  # type: ignore[attr-defined]

    def to_and_from(self, who: str) -> list[Record]:
        """Return the messages that a party sent or could read."""
        return [r for r in self.records if who in (r.sender, *r.receivers) or PUBLIC in r.receivers]

    def view(self, who: str, local_data: Mapping[str, LocalData]) -> View:
        """Return the view of a party, given the local data of parties."""
        protocol, roles = self.federation.made, dict(self.federation.agreement.roles)
        if protocol.released:
            roles[PUBLIC] = PUBLIC
        seen = self.to_and_from(who)
        return View(
            principals=(who,),
            roles=roles,
            local_data=(local_data[who],) if who in local_data else (),
            schema=self.federation.schema,
            protocol=protocol.name,
            parameters=protocol.parameters,
            n_rows=int(self.capture.run_facts.details["rows"]),
            defense=self.federation.composed,
            seen=tuple(Seen(0, r.sender, r.receivers, r.message, r.why) for r in seen),
            protocol_changes=protocol_changes_of_view(
                protocol, self.federation.schema, len(self.federation.parties)
            ),
        )

    def facts(self) -> dict[str, Any]:
        """Return a description of the log.

        It includes the kinds of messages that the party received and sent.
        """
        messages = self.to_and_from(self.who)
        sent = [r for r in messages if r.sender == self.who and r.receivers != (self.who,)]
        received = [r for r in messages if r.sender != self.who or r.receivers == (self.who,)]
        elsewhere = f"{self.kept_by} wrote this log, which contains only the messages of this party"
        federation = self.federation
        return {
            "framework": f"fedtrees {self.capture.run_facts.version}, {federation.protocol}, "
            f"{federation.defense}",
            "as": self.who,
            "parties": [*federation.agreement.roles],
            "sees": count_messages(received, self.who),
            "sent": count_messages(sent, self.who),
            "notes": [] if self.who == self.kept_by else [elsewhere],
        }


def count_messages(records: Iterable[Record], who: str) -> list[dict[str, Any]]:
    """Return the kinds of messages among records, with their number and size in bytes."""
    counts = MessageCounts(who, with_reason=True)
    for record in records:
        counts.add(record)
    return counts.rows()


def explained(file: str) -> dict[str, Any]:
    """Return the output of `fedtrees explain` for a log.

    It lists the messages that left the party, and the attacks that apply to the view of each
    recipient. Errors as in `FederationLog`.
    """
    log = FederationLog(file)
    facts, specs = log.facts(), [Spec(name) for name in contenders()]
    roles = {**log.federation.agreement.roles, PUBLIC: PUBLIC}
    recipients = [name for r in log.records if r.sender == log.who for name in r.receivers]
    readers = {roles[name]: name for name in (*reversed(recipients), log.who)}  # one party per role
    apply = {
        who: [
            spec.name
            for spec, reason in zip(
                specs, attack_process().reasons(specs, log.view(who, {})), strict=True
            )
            if reason.ok
        ]
        for who in readers.values()
    }
    return facts | {"apply": apply}


def report(
    file: str, who: str, truth: Sequence[str], id: str, run: int | None, named: Sequence[str] = ()
) -> dict[str, Any]:
    """Return the output of `fedtrees capture attack` for a federation's log, as plain values.

    For example, the output contains the score of each attack and its blind baseline.

    Parameters
    ----------
    file : str
        The log.
    who : str
        Party whose view is attacked. Empty: the party that wrote the log.
    truth : sequence of str
        Tables of parties, ``PARTY=FILE``, as ground truth.
    id : str
        Column that names rows.
    run : int or None
        Number of the run in the file.
    named : sequence of str
        Attacks to run, by default all that apply.

    Raises
    ------
    UsageError
        As in `FederationLog`.
    DataError
        If a table cannot be read (`read_site_data`).
    """
    log = FederationLog(file, who, run)
    local_data = _truth(log.federation, truth, id)
    view = log.view(log.who, local_data)
    case = _case(view, local_data, log.model)
    results = list(run_attacks(view, case, named))
    return log.facts() | {
        "promises": [],
        "scored": bool(local_data),
        "readings": [],
        "attacks": results,
        "verdict": verdict(log.who, results, bool(local_data)),
    }


def _truth(federation: FederationAgreement, files: Sequence[str], id: str) -> dict[str, LocalData]:
    """Read the local data of parties from their tables."""
    local_data = {}
    for text in files:
        party, path = party_and_file(text)
        if party not in federation.parties:
            suggestion = did_you_mean(party, federation.parties)
            raise UsageError(f"--truth of {party!r}: no party is called so{suggestion}")
        local_data[party] = read_site_data(Settings(path, "", (), id), federation, party).local_data
    return local_data


def _case(view: View, party_data: Mapping[str, LocalData], model: object) -> Case | None:
    """Return the ground truth, None if the rows of a victim are not given."""
    holders = {name for name, role in view.roles.items() if role not in ("server", PUBLIC)}
    if not holders - {*view.principals} <= {*party_data}:
        return None
    order = {name: party_data[name] for name in view.roles if name in party_data}
    begin, by_name = 0, {}
    all_features = view.schema.features
    for name, local_data in order.items():
        # Parties with all columns have different rows, so that their ids are made distinct.
        horizontal = len(local_data.columns) == len(all_features)
        ids = local_data.ids + (begin if horizontal else 0)
        by_name[name] = LocalData(ids, local_data.columns, local_data.X, local_data.y)
        begin += len(local_data)
    threat = view.roles[view.principals[0]]
    return Case(
        by_name, dict(view.roles), view.principals, view.schema, Streams(0), threat, model=model
    )


def verdict(who: str, results: list[dict[str, Any]], truth: bool) -> list[str]:
    """Summarise in a few lines how much the run revealed to a party.

    Parameters
    ----------
    who : str
        The party.
    results : list of dict
        Results of the attacks.
    truth : bool
        Whether ground truth was given.
    """
    ran = [a for a in results if "scores" in a]
    lines = [f"RAN       {len(ran)} attacks apply to the messages that {who} received in this run"]
    certain = sum(a["certain"] for a in ran)
    if certain:
        lines.append(f"CERTAIN   {certain:,} claims that follow from the messages with certainty")
    gains = [
        (value - blind, a["attack"], metric, value, blind)
        for a in ran
        for metric, (value, blind) in a["scores"].items()
        if blind is not None
    ]
    if gains:
        gain, attack, metric, value, blind = max(gains)
        least = "no attack scores above the blind baseline"
        more = f"{attack}: {metric} {value:.3g}, blind {blind:.3g}"
        lines.append(f"LEAK      {more if gain > 0 else least + f' ({more})'}")
    elif not truth:
        lines.append(
            "LEAK      not scored: give --truth PARTY=FILE for the tables of the other parties"
        )
    else:
        lines.append("LEAK      not known: no attack that applies returned a claim")
    return lines

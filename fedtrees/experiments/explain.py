"""Explain a protocol: which party receives which messages and why, and which attacks apply.

All facts are computed from the transcript of a short training: two trees or two rounds send every
type of message. Such a training also runs before a bench, to complete a suite and to check the
behaviour of a cheating party (`preview`).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import fields, replace
from typing import Any

from fedtrees.core.composition import Composition
from fedtrees.core.errors import FedtreesError, UsageError
from fedtrees.core.guarantee import join
from fedtrees.core.limits import TimeLimit, limited_if_possible
from fedtrees.core.local_data import LocalData
from fedtrees.core.messages import Message, Sealed, has_sealed_field
from fedtrees.core.reasons import Reason
from fedtrees.core.registry import register
from fedtrees.core.specs import Spec, parse_composed, parse_grid, split_outside
from fedtrees.core.streams import Streams
from fedtrees.core.threat import Threat
from fedtrees.core.transcript import Transcript
from fedtrees.experiments.environment import check_extras
from fedtrees.experiments.evaluate import check_applicability, check_view, run_training
from fedtrees.experiments.federation import Federation, federation_of
from fedtrees.experiments.options import check_parties
from fedtrees.experiments.plan import FederationConfig, Plan, Task
from fedtrees.experiments.suite import DataRef, roles_of
from fedtrees.metrics.metric import Case
from fedtrees.protocols.base import Protocol
from fedtrees.protocols.training import Training

#: Largest size of a short training.
BRIEF = {"trees": 2, "rounds": 2}


def limit_size(spec: Spec, limits: Mapping[str, int]) -> Spec:
    """Return a protocol with at most the given sizes, for example numbers of trees and levels."""
    instance: Protocol = register.make("protocol", spec)
    less = {
        key: value
        for key, value in limits.items()
        if key in instance.parameters and (instance.parameters[key] or value + 1) > value
    }
    return Spec(spec.name, {**spec.params, **less})


def preview(task: Task, federation: Federation, time_limit: float = 0.0) -> Training:
    """Run a training with two trees or two rounds, and predict the test rows.

    The messages of the prediction belong to the transcript, as in a benchmark, because some attacks
    need them.

    Parameters
    ----------
    task : Task
        The training.
    federation : Federation
        Its data.
    time_limit : float
        Seconds that it may take, 0 for no limit.

    Raises
    ------
    TimeLimit
        If it takes longer.
    Unfit
        If the defense does not fit the protocol, or no party can execute a behaviour.
    """
    with limited_if_possible(time_limit):
        brief = replace(task, protocol=limit_size(task.protocol, BRIEF))
        training = run_training(brief, federation)
        if not training.refused:
            training.predict(federation.test.X)
        return training


DECLARED = (
    "columns, public ranges, names of all categories and classes (of test rows, too), the "
    "number of rows N, the protocol, the defense and their parameters. In a bench, adversaries "
    "without local rows also know the test rows, which are rows of the same population (not for "
    "membership)"
)


def explain_protocol(
    name: str,
    defenses: Sequence[str],
    data: str | None,
    clients: int,
    threats: Sequence[str],
    data_dir: str | None,
) -> dict[str, Any]:
    """Train a protocol briefly and return the facts that `fedtrees explain` prints.

    Parameters
    ----------
    name : str
        A protocol, with parameters.
    defenses : sequence of str
        At most one defense or composition of defenses.
    data : str or None
        Name of a dataset. None: the example of the protocol.
    clients : int
        Number of parties with data.
    threats : sequence of str
        Adversaries. Empty: one party of every role, and several parties of one role together.
    data_dir : str or None
        Folder of the downloaded tables.

    Raises
    ------
    UsageError
        If there is more than one protocol or defense, or if a part does not fit.
    """
    grid = parse_grid(name)
    composed = parse_composed(defenses) or parse_composed(["none"])
    if len(grid) != 1 or len(composed) != 1:
        raise UsageError("explain shows one protocol and one defense; compose defenses with +")
    check_extras(grid[0], composed[0])
    # The full protocol is checked here, with all its parameters.
    protocol: Protocol = register.make("protocol", grid[0])
    check_parties(protocol, clients)
    table = DataRef(data or protocol.info.example_dataset)
    setting = FederationConfig.of(table, Spec("iid"), clients, 0, protocol)
    federation = federation_of(setting, data_dir)
    cheaters = _assign_behaviours(protocol, clients, threats)
    task = Task.for_training(setting, grid[0], composed[0], tuple(cheaters.items()))
    training = preview(task, federation)
    rows = disclosures(training.transcript, training.defense)
    threats_by_text = adversaries_of(training, threats)
    applies = applicable_attacks(training, federation.local_data, threats_by_text, federation)
    roles = {text: sorted(threat.roles) for text, threat in threats_by_text.items()}
    return {
        "protocol": str(grid[0]),
        "about": register.summary("protocol", grid[0].name),
        "defense": str(composed[0]),
        "claimed": join(training.claims),
        "spent": join(training.spent),
        "epsilons": [vars(one) for one in training.epsilons],
        "declared": DECLARED,
        "cheats": [_describe_behaviour(training, *item) for item in cheaters.items()],
        "crossings": rows,
        "roles": roles,
        "sees": {
            text: [
                r
                for r in rows
                if r["from"] in own_roles or (r["readable_by"] in own_roles and not r["sealed"])
            ]
            for text, own_roles in roles.items()
        },
        "attacks": [
            {
                "attack": attack,
                **{text: _reason_as_json(reasons[attack]) for text, reasons in applies.items()},
            }
            for attack in attack_names()
        ],
    }


def _assign_behaviours(protocol: Protocol, clients: int, threats: Sequence[str]) -> dict[str, str]:
    """Return the behaviour of each malicious party under the threats.

    A run shows one behaviour per party, so that two behaviours of one party raise `UsageError`.
    """
    roles, behaviours = roles_of(protocol, clients), dict[str, str]()
    for text in (piece for several in threats for piece in split_outside(several, ",")):
        for party, behaviour in Threat.parse(text, roles).behaviours(roles).items():
            if behaviours.setdefault(party, behaviour) != behaviour:
                raise UsageError(
                    f"{party} has two behaviours, {behaviours[party]!r} and {behaviour!r}: a "
                    "training shows one behaviour of each party; explain one after the other"
                )
    return behaviours


def _describe_behaviour(training: Training, party: str, name: str) -> dict[str, str]:
    """Describe the behaviour of a malicious party in a training."""
    plugin: Any = register.get("behaviour", name)
    facts = {
        "party": party,
        "behaviour": name,
        "beyond": plugin.deviation,
        "noticed": plugin.detectable,
    }
    return {**facts, "refused": training.refused}


def attack_names() -> list[str]:
    """Return the names of all attacks that are not blind guesses."""
    names = register.names("attack")
    return [n for n in names if not getattr(register.get("attack", n), "blind", False)]


def adversaries_of(training: Training, requested: Sequence[str] = ()) -> dict[str, Threat]:
    """Return the threats by name: the given ones, or one party of every role.

    In the second case, all parties of a passive role together are added if another party with data
    remains as a victim.
    """
    roles = training.transcript.roles
    texts = [piece for text in requested for piece in split_outside(text, ",")]
    if not texts:
        texts = sorted({*roles.values()})
        for adversaries in training.protocol.info.adversaries:
            together = {name for name, role in roles.items() if role == adversaries}
            if len(together) > 1 and set(training.columns) - together:
                texts.append(f"{adversaries}[count={len(together)}]")
    return {text: Threat.parse(text, roles) for text in texts}


def applicable_attacks(
    training: Training,
    local_data: Mapping[str, LocalData],
    threats: Mapping[str, Threat],
    federation: Federation | None = None,
) -> dict[str, dict[str, Reason]]:
    """Return, for every threat, whether each attack applies, and why not."""
    roles, reasons = training.transcript.roles, {}
    for text, threat in threats.items():
        principals = threat.principals(roles)
        # No victim remains whose data could be scored.
        if federation is None or {*local_data} <= {*principals}:
            case = Case(local_data, roles, principals, training.schema, Streams(0), text)
        else:
            case = federation.case(roles, principals, 0, text, training)
        reasons[text] = check_applicability(attack_names(), training, case)
    return reasons


def split_attacks(
    plan: Plan, data_dir: str | None, time_limit: float = 0.0
) -> tuple[list[str], dict[str, Reason]]:
    """Divide the attacks of a plan into those that apply and those that do not.

    Every combination of a protocol and a defense is trained briefly on the first table and seed on
    which the plan trains it. An attack applies if it applies to one of these trainings under one of
    its threats.

    Parameters
    ----------
    plan : Plan
        All tasks of a suite.
    data_dir : str or None
        Folder of the downloaded tables.
    time_limit : float
        Seconds that one training may take, 0 for no limit.

    Returns
    -------
    applicable : list of str
        Attacks that apply, and attacks on trainings that failed or exceeded the time limit.
    inapplicable : dict of str to Reason
        The remaining attacks, each with its first reason.
    """
    applicable: dict[str, None] = {}
    reasons: dict[str, Reason] = {}
    trained = set()
    for group in plan.groups:
        setting, train = group.train.federation_config, group.train
        combination = (train.protocol, train.defense, train.behaviours)
        attacks = [task for task in group.attacks if task.stage == "attack"]
        if combination in trained or {str(task.attack) for task in attacks} <= {*applicable}:
            continue
        trained.add(combination)
        federation = federation_of(setting, data_dir)
        try:
            training = preview(train, federation, time_limit)
        except (FedtreesError, TimeLimit):  # the tasks of the full training report the error
            applicable |= dict.fromkeys(str(task.attack) for task in attacks)
            continue
        roles = training.transcript.roles
        for threat in dict.fromkeys(task.threat for task in attacks):
            specs = [task.attack for task in attacks if task.threat == threat]
            principals = Threat.parse(threat, roles).principals(roles)
            case = federation.case(roles, principals, setting.seed, threat, training)
            for spec, reason in zip(specs, check_view(specs, training, case), strict=True):
                if reason.ok:
                    applicable[str(spec)] = None
                reasons.setdefault(str(spec), reason)
    return list(applicable), {a: r for a, r in reasons.items() if a not in applicable}


def _reason_as_json(reason: Reason) -> dict[str, Any]:
    """Return a reason as JSON types."""
    return {"applies": reason.ok, "code": reason.code, "why": reason.columns()["reason"]}


def disclosures(transcript: Transcript, defense: Composition) -> list[dict[str, Any]]:
    """Return every kind of message of a run, in the order of first appearance.

    Each entry is a row of ``disclosure.json`` with the following keys.

    - ``type``: type of the message.
    - ``from``, ``to``: roles of the sender and the receiver.
    - ``sealed``: whether a field is encrypted or masked. ``readable_by`` then names the role with
      the key, or a placeholder if no party has the key.
    - ``why``: reason for the message.
    - ``reveals``: tags of the information about records that it reveals.
    - ``carries``, ``withheld``: fields with and without a value.
    - ``guards``: one entry per defense that the message concerns. ``defense`` is its name. ``act``
      is "guards" if the defense changes the message, and "exempts" if it sends the message
      unchanged, for the reason in ``why``.
    - ``count``, ``bytes``: number of deliveries and their total size.
    """
    entries: dict[tuple[str, ...], dict[str, Any]] = {}
    for d in transcript:
        name, sealed = type(d.message).__name__, has_sealed_field(d.message)
        sender = transcript.roles.get(d.sender, d.sender)
        receiver = transcript.roles[d.receivers[0]] if d.receivers else "nobody"
        values = {item.name: getattr(d.message, item.name) for item in fields(d.message)}
        filled = [field for field, value in values.items() if value is not None]
        # Messages of one type that fill different fields are listed separately.
        key = (name, sender, receiver, str(sealed), *filled)
        if key not in entries:
            entries[key] = {
                "type": name,
                "from": sender,
                "to": receiver,
                "sealed": any(isinstance(value, Sealed) for value in values.values()),
                "readable_by": _readers(d.message, receiver),
                "why": d.reason,
                "reveals": [] if sealed else sorted(map(str, d.message.reveals)),
                "carries": filled,
                "withheld": [field for field in values if field not in filled],
                "guards": list(_guards(d.message, sender, defense)),
                "count": 0,
                "bytes": 0,
            }
        entries[key]["count"] += len(d.receivers)
        entries[key]["bytes"] += d.nbytes * len(d.receivers)
    return list(entries.values())


def _readers(message: Message, receiver: str) -> str:
    """Return the role that can read a message: the receiver, or the role with the key."""
    values = [getattr(message, item.name) for item in fields(message)]
    seals = [value for value in values if isinstance(value, Sealed)]
    holders = dict.fromkeys(name for seal in seals for name in seal.keyholders)
    return ", ".join(holders) or ("nobody" if seals else receiver)


def _guards(message: Message, role: str, defense: Composition) -> Iterator[dict[str, str]]:
    """Yield the parts of a defense that protect or exempt a message of a role."""
    for part in (part for part in defense.parts if role in part.roles):
        if isinstance(message, part.handled_types):
            yield {"defense": part.name, "act": "guards", "why": ""}
        else:
            for kind, why in part.permitted_types.items():
                if isinstance(message, kind):
                    yield {"defense": part.name, "act": "exempts", "why": why}

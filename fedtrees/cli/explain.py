"""The `explain` command: show which party receives which messages, and which attacks apply."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from fedtrees.cli.inspect import about, console, text_table
from fedtrees.cli.options import (
    Clients,
    DataDir,
    Defenses,
    Details,
    Format,
    Output,
    Plugins,
    Unprotected,
    check_clients,
    check_parties,
)
from fedtrees.core.errors import UsageError
from fedtrees.core.specs import Spec, parse_composed, parse_grid
from fedtrees.experiments.fact_cache import recall
from fedtrees.experiments.options import load_plugins

if TYPE_CHECKING:
    from fedtrees.core.local_data import LocalData
    from fedtrees.core.reasons import Reason
    from fedtrees.core.threat import Threat
    from fedtrees.experiments.federation import Federation
    from fedtrees.protocols.base import Protocol
    from fedtrees.protocols.training import Training

DECLARED = (
    "columns, public ranges, names of all categories and classes (of held-out rows, too), the "
    "number of rows N, the protocol, the defense and their parameters. In a bench, adversaries "
    "without local rows also know held-out rows of the same population (not for membership)"
)


def explain(
    protocol: Annotated[
        str | None,
        typer.Argument(
            help="A protocol, with parameters; or a party's log of a federation: what left it. "
            "None: all, and who attacks."
        ),
    ] = None,
    defense: Defenses = None,
    data: Annotated[
        str | None, typer.Option(help="Dataset to run it on; by default one that fits.")
    ] = None,
    clients: Clients = 3,
    threat: Annotated[
        list[str] | None,
        typer.Option(help="Adversaries: passive[count=2], active[queries=1000], server+client."),
    ] = None,
    data_dir: DataDir = None,
    plugin: Plugins = None,
    unprotected: Unprotected = False,
    details: Details = False,
    format: Output = Format.TABLE,
) -> None:
    """Train two trees, and show which party receives which messages and which attacks apply.

    Each message is listed with its reason, the information that it reveals, and the defenses that
    protect it. Without --threat, one party of every role is honest-but-curious, and several parties
    of one role together if another party with data remains. Without a protocol, the command shows
    which attacks apply to every protocol.
    """
    check_clients(clients)
    load_plugins(plugin, unprotected)
    facts: Any
    log = protocol is not None and Path(protocol).is_file()
    if protocol is not None and not log and "/" in protocol.partition("[")[0]:
        raise UsageError(f"{protocol}: no such file; a log is RUN/log.capture")
    if protocol is None or log:
        used = {
            "--threat": threat,
            "--defense": defense,
            "--data": data,
            "--clients": clients != 3,
        }
        for option in (o for o, value in used.items() if value):
            raise UsageError(f"{option} needs a protocol: fedtrees explain PROTOCOL {option} ...")
    if protocol is None:
        facts = recall(["exposures"], list_exposures)
        missing = recall(["missing extras"], _missing_extras) if not format.is_json else {}
        show = partial(_print_exposed, missing=missing)
    elif log:
        from fedtrees.federation.attack import explained

        facts, show = explained(protocol), _print_log
    else:
        _check_protocol(protocol)
        asked = (protocol, list(defense or ()), data, clients, list(threat or ()))
        facts = recall(["explain", *asked], lambda: _explanation(*asked, data_dir))
        show = partial(_print, details=details)
    if format.is_json:
        typer.echo(json.dumps(facts, indent=1))
    else:
        show(facts)


def _check_protocol(text: str) -> None:
    """Raise `UsageError` if the name belongs to an attack or a defense instead of a protocol."""
    from fedtrees.core.registry import register

    name = text.partition("[")[0]
    for kind in ("attack", "defense"):
        if name in register.names(kind) and name not in register.names("protocol"):
            one, remedy = {
                "attack": ("an attack", "fedtrees explain lists where each applies"),
                "defense": ("a defense", f"fedtrees explain PROTOCOL --defense {name}"),
            }[kind]
            raise UsageError(f"{name!r} is no protocol but {one}: {remedy}")


def _print(facts: dict[str, Any], details: bool) -> None:
    """Print the explanation of a protocol."""
    from rich.text import Text

    out = console()
    style: dict[str, Any] = {} if details else {"box": None, "pad_edge": False}
    out.print(Text.assemble((facts["protocol"], "bold"), "  ", facts["about"]))
    if facts["defense"] != "none":
        out.print(
            f"defended by {facts['defense']}: claims {facts['claimed']}, "
            f"spent {facts['spent']} (two trees)",
            markup=False,
        )
    if facts["epsilons"]:
        columns = ("adversary", "one row added or removed", "one row replaced")
        rows = [
            [e["adversary"], f"{e['epsilon']:.3g}", f"{e['replaced']:.3g}"]
            for e in facts["epsilons"]
        ]
        out.print(text_table("epsilon as spent, by adversary and neighbouring relation", columns,
                             rows, **style))  # fmt: skip
    out.print(f"known to all beforehand: {facts['declared']}", markup=False)
    for cheat in facts["cheats"]:
        out.print(f"{cheat['party']} cheats: it {cheat['beyond']}", markup=False)
        out.print(f"whether others notice: {cheat['noticed']}", markup=False)
        if cheat["refused"]:
            out.print(f"here an honest party refused: {cheat['refused']}", markup=False)
    shown: list[Any] = []
    for role, seen in facts["sees"].items():
        if seen in shown:
            continue
        shown.append(seen)
        columns, rows = _message_table(seen, facts["roles"][role], details)
        out.print(text_table(f"what {role} sees", columns, rows, **style))
    sealed = [
        f"{row['type']} ({row['readable_by']})" for row in facts["crossings"] if row["sealed"]
    ]
    if sealed:
        out.print(f"crosses sealed (who has the key): {', '.join(sealed)}", markup=False)
    title = "attacks on this protocol; what a defense leaves of them is for the bench to tell"
    columns = ("attack", *facts["sees"])
    yes = [row for row in facts["attacks"] if any(row[c]["applies"] for c in columns[1:])]
    lines = [
        [row["attack"], *(_describe_applicability(row[c], details) for c in columns[1:])]
        for row in yes
    ]
    if lines:
        out.print(text_table(title, columns, lines, **style))
    else:
        out.print("no attack applies:")
    if not details and lines:
        out.print(
            "what every message carries and why, and why other attacks do not apply: --details"
        )
        return
    by_reason: dict[str, list[str]] = {}
    for row in (row for row in facts["attacks"] if row not in yes):
        why = dict.fromkeys(_describe_applicability(row[c], details=True) for c in columns[1:])
        by_reason.setdefault("; ".join(why), []).append(row["attack"])
    for why, names in by_reason.items():
        out.print(f"{why}: {', '.join(names)}", markup=False)


def _print_log(facts: dict[str, Any]) -> None:
    """Print the explanation of a party's log."""
    out = console()
    out.print(f"{facts['framework']}, the log of {facts['as']}", style="bold")
    for title, rows, other in (("sent", facts["sent"], "to"), ("was told", facts["sees"], "from")):
        columns = ("message", other, "reveals", "why", "count", "bytes")
        cells = [[f"{row[c]:,}" if c in columns[4:] else row[c] for c in columns] for row in rows]
        out.print(
            text_table(f"what {facts['as']} {title}", columns, cells, box=None, pad_edge=False)
        )
    for reader, names in facts["apply"].items():
        line = f"attacks on what {reader} reads of it: {', '.join(names) or 'none applies'}"
        out.print(line, markup=False)


def _describe_applicability(attack: Mapping[str, Any], details: bool) -> str:
    """Write whether an attack applies, with details also why not."""
    no, yes = (f"no: {attack['why']}", "applies") if details else ("", "yes")
    return yes if attack["applies"] else no


def _message_table(
    seen: Sequence[Mapping[str, Any]], colluding: Sequence[str], details: bool
) -> tuple[tuple[str, ...], list[tuple[str, ...]]]:
    """Return columns and rows of the messages that an adversary receives.

    Without details, only messages of other parties that reveal something about rows are shown.
    """
    from fedtrees.report.wording import guarded

    every = [
        (
            row["type"],
            _whence(row, colluding),
            ", ".join(row["reveals"]),
            guarded(row["guards"], details),
            ", ".join(row["carries"]),
            ", ".join(row["withheld"]),
            row["why"],
        )
        for row in seen
    ]
    columns = ("message", "from", "reveals", "guarded by", "carries", "not sent", "why")
    if details:
        return columns, every
    return columns[:4], [row[:4] for row in every if row[2] and row[1] != "itself"]


def _explanation(
    name: str,
    defenses: Sequence[str],
    data: str | None,
    clients: int,
    threats: Sequence[str],
    data_dir: str | None,
) -> dict[str, Any]:
    """Train a protocol and collect the facts of its explanation."""
    from fedtrees.core.guarantee import join
    from fedtrees.core.registry import register
    from fedtrees.experiments.disclosure import briefly, disclosures
    from fedtrees.experiments.environment import check_extras
    from fedtrees.experiments.evaluate import make_defense
    from fedtrees.experiments.federation import federation_of
    from fedtrees.experiments.plan import FederationConfig
    from fedtrees.experiments.suite import DataRef
    from fedtrees.protocols.training import train

    grid = parse_grid(name)
    composed = parse_composed(defenses) or parse_composed(["none"])
    if len(grid) != 1 or len(composed) != 1:
        raise UsageError("explain shows one protocol and one defense; compose defenses with +")
    check_extras(grid[0], composed[0])
    # The full protocol is checked here, with all its parameters.
    check_parties(register.make("protocol", grid[0]), clients)
    protocol: Protocol = register.make("protocol", briefly(grid[0]))
    defense = make_defense(composed[0])
    setting = FederationConfig.of(
        DataRef(data or protocol.info.example_dataset), Spec("iid"), clients, 0, protocol
    )
    federation = federation_of(setting, data_dir)
    local_data, schema = federation.local_data, federation.schema
    cheaters = _cheats(protocol, clients, threats)
    options: dict[str, Any] = {"defense": defense, "noise_from": "seed", "behaviours": cheaters}
    training = train(protocol, local_data, schema, **options)
    rows = disclosures(training.transcript, defense)
    threats_by_text = _threats(training, threats)
    applies = _who_attacks(training, local_data, threats_by_text, federation)
    roles = {text: sorted(t.roles) for text, t in threats_by_text.items()}
    return {
        "protocol": str(grid[0]),
        "about": about("protocol", grid[0].name),
        "defense": str(composed[0]),
        "claimed": join(training.claims),
        "spent": join(training.spent),
        "epsilons": [vars(one) for one in training.epsilons],
        "declared": DECLARED,
        "cheats": [_cheating(training, party, name) for party, name in cheaters.items()],
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
                "attack": name,
                **{role: _reason_as_json(reasons[name]) for role, reasons in applies.items()},
            }
            for name in _attacks()
        ],
    }


def _cheats(protocol: Protocol, clients: int, threats: Sequence[str]) -> dict[str, str]:
    """Return the behaviour of each malicious party under the threats.

    A run shows one behaviour per party, so that two behaviours of one party raise `UsageError`.
    """
    from fedtrees.core.specs import split_outside
    from fedtrees.core.threat import Threat
    from fedtrees.experiments.suite import roles_of

    roles, behaviours = roles_of(protocol, clients), dict[str, str]()
    for text in (piece for several in threats for piece in split_outside(several, ",")):
        for party, behaviour in Threat.parse(text, roles).behaviours(roles).items():
            if behaviours.setdefault(party, behaviour) != behaviour:
                raise UsageError(f"{party} acts by one behaviour at a time; explain each by itself")
    return behaviours


def _cheating(training: Training, party: str, name: str) -> dict[str, str]:
    """Describe the behaviour of a malicious party in a training."""
    from fedtrees.core.registry import register

    plugin: Any = register.get("behaviour", name)
    facts = {"party": party, "behaviour": name, "beyond": plugin.beyond, "noticed": plugin.noticed}
    return {**facts, "refused": training.refused}


def _whence(row: Mapping[str, Any], roles: Sequence[str]) -> str:
    """Describe the sender of a message from the perspective of the receiver."""
    if row["from"] == row["to"] in roles:
        return "itself, from what it got"
    return "itself" if row["from"] in roles else str(row["from"])


def _attacks() -> list[str]:
    """Return the names of all attacks that are not blind guesses."""
    from fedtrees.core.registry import register

    names = register.names("attack")
    return [n for n in names if not getattr(register.get("attack", n), "blind", False)]


def _threats(training: Training, requested: Sequence[str] = ()) -> dict[str, Threat]:
    """Return the threats by name: the given ones, or one party of every role.

    In the second case, all parties of a passive role together are added if another party with data
    remains as a victim.
    """
    from fedtrees.core.specs import split_outside
    from fedtrees.core.threat import Threat

    roles = training.transcript.roles
    texts = [piece for text in requested for piece in split_outside(text, ",")]
    if not texts:
        texts = sorted({*roles.values()})
        for adversaries in training.protocol.info.adversaries:
            together = {name for name, role in roles.items() if role == adversaries}
            if len(together) > 1 and set(training.columns) - together:
                texts.append(f"{adversaries}[count={len(together)}]")
    return {text: Threat.parse(text, roles) for text in texts}


def _reason_as_json(reason: Reason) -> dict[str, Any]:
    """Return a reason as JSON types."""
    return {"applies": reason.ok, "code": reason.code, "why": reason.columns()["reason"]}


def _who_attacks(
    training: Training,
    local_data: Mapping[str, LocalData],
    threats: Mapping[str, Threat],
    federation: Federation | None = None,
) -> dict[str, dict[str, Reason]]:
    """Return, for every threat, whether each attack applies, and why not."""
    from fedtrees.core.streams import Streams
    from fedtrees.experiments.evaluate import applying
    from fedtrees.metrics.metric import Case

    roles, reasons = training.transcript.roles, {}
    for text, threat in threats.items():
        principals = threat.principals(roles)
        # No victim remains whose data could be scored.
        if federation is None or {*local_data} <= {*principals}:
            case = Case(local_data, roles, principals, training.schema, Streams(0), text)
        else:
            case = federation.case(roles, principals, 0, text, training)
        reasons[text] = applying(_attacks(), training, case)
    return reasons


def _missing_extras() -> dict[str, list[str]]:
    """Return the missing optional packages of every protocol that cannot run without them."""
    from fedtrees.core.registry import register

    missing = {n: register.get("protocol", n).missing() for n in register.names("protocol")}
    return {name: packages for name, packages in missing.items() if packages}


def _print_exposed(facts: list[dict[str, Any]], missing: Mapping[str, Sequence[str]]) -> None:
    """Print which attacks apply to every protocol."""
    rows = [
        (row["protocol"], row["threat"], ", ".join(row["attacks"]) or "none that is here")
        for row in facts
    ]
    out = console()
    out.print(text_table("which attacks apply", ("protocol", "threat", "attacks"), rows))
    for name, packages in missing.items():
        out.print(f"not run: {name} needs {', '.join(packages)}", markup=False)
    out.print("Two classes, default parameters. fedtrees explain PROTOCOL: who sees what, and why.")


def list_exposures() -> list[dict[str, Any]]:
    """Return the attacks that apply to every protocol and threat, for a target of two classes."""
    from fedtrees.conformance.samples import sample_training
    from fedtrees.core.registry import register
    from fedtrees.experiments.disclosure import briefly

    facts = []
    for name in register.names("protocol"):
        if register.get("protocol", name).missing():
            continue
        training, local_data = sample_training(register.make("protocol", briefly(Spec(name))))
        for text, reasons in _who_attacks(training, local_data, _threats(training)).items():
            attacks = [attack for attack, reason in reasons.items() if reason.ok]
            facts.append({"protocol": name, "threat": text, "attacks": attacks})
    return facts

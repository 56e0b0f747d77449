"""The command explain: who sees what, and who can attack it."""

from __future__ import annotations

import json
from collections.abc import Sequence, Set
from typing import Annotated, Any

import typer

from fedtrees.cli.inspect import about, console, text_table
from fedtrees.cli.options import (
    Clients,
    DataDir,
    Defenses,
    Format,
    Output,
    Plugins,
    load_plugins,
)
from fedtrees.core.errors import UsageError
from fedtrees.core.specs import Spec, parse_composed, parse_grid

ROLES = ("client", "server")
APPLIES = "applies"


def explain(
    protocol: Annotated[
        str | None, typer.Argument(help="A protocol, with parameters. None: all, and who attacks.")
    ] = None,
    defense: Defenses = None,
    data: Annotated[str, typer.Option(help="Dataset to run it on.")] = "breast-cancer",
    clients: Clients = 3,
    data_dir: DataDir = None,
    plugin: Plugins = None,
    format: Output = Format.TABLE,
) -> None:
    """Run two trees and show who sees what, why, what guards it, and which attacks apply.

    Without a protocol: which attacks apply to every protocol, for a curious client and server.
    """
    load_plugins(plugin)
    facts: Any
    if protocol is None:
        facts, show = exposed(), _print_exposed
    else:
        facts, show = _explanation(protocol, defense or (), data, clients, data_dir), _print
    if format.is_json:
        typer.echo(json.dumps(facts, indent=1))
    else:
        show(facts)


def _print(facts: dict[str, Any]) -> None:
    out = console()
    out.print(f"[bold]{facts['protocol']}[/bold]  {facts['about']}")
    if facts["defense"] != "none":
        out.print(
            f"defended by {facts['defense']}: claims {facts['claimed']}, "
            f"spent {facts['spent']} (two trees)",
            markup=False,
        )
    for role in ROLES:
        columns = ("message", "from", "carries", "not sent", "reveals", "guarded by", "why")
        rows = [
            (
                row["type"],
                "itself" if row["from"] == role else row["from"],
                ", ".join(row["carries"]),
                ", ".join(row["withheld"]),
                ", ".join(row["reveals"]),
                "; ".join(row["guarded_by"]),
                row["why"],
            )
            for row in facts["sees"][role]
        ]
        out.print(text_table(f"what a {role} sees", columns, rows))
    sealed = [r["type"] for r in facts["crossings"] if r["readable_by"].startswith("nobody")]
    if sealed:
        out.print(f"passes sealed, nobody opens it: {', '.join(sealed)} (only the sum is opened)")
    title = "attacks on this protocol; what a defense leaves of them is for the bench to tell"
    columns = ("attack", *ROLES)
    out.print(text_table(title, columns, [[r[c] for c in columns] for r in facts["attacks"]]))


def _explanation(
    name: str, defenses: Sequence[str], data: str, clients: int, data_dir: str | None
) -> dict[str, Any]:
    from fedtrees.bench.disclosure import briefly, disclosures, visible_to
    from fedtrees.bench.evaluate import make_defense
    from fedtrees.bench.federation import federation_of
    from fedtrees.bench.suite import DataRef
    from fedtrees.core.guarantee import join
    from fedtrees.core.registry import register
    from fedtrees.protocols.base import Protocol, train

    grid = parse_grid(name)
    composed = parse_composed(defenses) or parse_composed(["none"])
    if len(grid) != 1 or len(composed) != 1:
        raise UsageError("explain shows one protocol and one defense; compose defenses with +")
    protocol: Protocol = register.make("protocol", briefly(grid[0]))
    defense = make_defense(composed[0])
    reason = protocol.mismatch(defense)
    if reason:
        raise UsageError(f"{composed[0]} does not go with {grid[0].name}: {reason}")
    federation = federation_of(DataRef(data), Spec("iid"), clients, 0, data_dir)
    training = train(protocol, federation.clients, federation.schema, defense=defense)
    rows = disclosures(training.transcript, defense)
    offers = protocol.offers_on(federation.schema)
    return {
        "protocol": str(grid[0]),
        "about": about("protocol", grid[0].name),
        "defense": str(composed[0]),
        "claimed": join(defense.claims()),
        "spent": join(defense.spent(training.transcript)),
        "crossings": [r.to_json() for r in rows],
        "sees": {role: [r.to_json() for r in visible_to(rows, role)] for role in ROLES},
        "attacks": [
            {"attack": a, **{r: _applies(a, offers, r) for r in ROLES}}
            for a in register.names("attack")
        ],
    }


def _applies(name: str, offers: Set[str], role: str) -> str:
    from fedtrees.core.registry import register

    attack = register.make("attack", Spec(name))
    reason = attack.inapplicable(offers, {role})
    return APPLIES if reason is None else f"no: {reason}"


def _print_exposed(facts: list[dict[str, Any]]) -> None:
    rows = [
        (row["protocol"], row["threat"], ", ".join(row["attacks"]) or "none that is here")
        for row in facts
    ]
    out = console()
    out.print(text_table("which attacks apply", ("protocol", "threat", "attacks"), rows))
    out.print("Two classes, default parameters. fedtrees explain PROTOCOL: who sees what, and why.")


def exposed() -> list[dict[str, Any]]:
    """Return, for every protocol and threat, the attacks that apply to a target of two classes."""
    from fedtrees.bench.conformance import sample_federation
    from fedtrees.core.registry import register
    from fedtrees.protocols.base import Protocol

    _, schema = sample_federation()
    found = []
    for name in register.names("protocol"):
        protocol: Protocol = register.make("protocol", Spec(name))
        offers = protocol.offers_on(schema)
        for role in ROLES:
            attacks = [a for a in register.names("attack") if _applies(a, offers, role) == APPLIES]
            found.append({"protocol": name, "threat": role, "attacks": attacks})
    return found

"""The command explain: who sees what, and who can attack it."""

from __future__ import annotations

import inspect as reflection
import json
from collections.abc import Sequence, Set
from dataclasses import dataclass
from typing import Any

import typer
from rich.table import Table as TextTable

from fedtrees.cli.inspect import console
from fedtrees.core.errors import UsageError
from fedtrees.core.registry import load_plugin, register
from fedtrees.core.specs import Spec, parse_composed, parse_grid

ROLES = ("client", "server")
APPLIES = "applies"


@dataclass(frozen=True)
class Explanation:
    """What `explain` is asked: one protocol, one defense, on which rows."""

    protocol: str
    defenses: tuple[str, ...]
    data: str
    clients: int
    data_dir: str | None


def explain(request: Explanation, plugins: Sequence[str], as_json: bool) -> None:
    """Run two trees and print who sees what."""
    for plugin in plugins:
        load_plugin(plugin)
    facts = _explanation(request)
    if as_json:
        typer.echo(json.dumps(facts, indent=1))
        return
    out = console()
    out.print(f"[bold]{facts['protocol']}[/bold]  {facts['about']}")
    if facts["defense"] != "none":
        out.print(
            f"defended by {facts['defense']}: claims {facts['claimed']}, "
            f"spent {facts['spent']} (two trees)",
            markup=False,
        )
    for role in ROLES:
        table = TextTable(title=f"what a {role} sees", title_justify="left", title_style="bold")
        for column in ("message", "from", "carries", "not sent", "reveals", "guarded by", "why"):
            table.add_column(column, overflow="fold")
        for row in facts["sees"][role]:
            table.add_row(
                row["type"],
                "itself" if row["from"] == role else row["from"],
                ", ".join(row["carries"]),
                ", ".join(row["withheld"]),
                ", ".join(row["reveals"]),
                "; ".join(row["guarded_by"]),
                row["why"],
            )
        out.print(table)
    sealed = [r["type"] for r in facts["crossings"] if r["readable_by"].startswith("nobody")]
    if sealed:
        out.print(f"passes sealed, nobody opens it: {', '.join(sealed)} (only the sum is opened)")
    title = "attacks on this protocol; what a defense leaves of them is for the bench to tell"
    table = TextTable(title=title, title_justify="left", title_style="bold")
    for column in ("attack", "client", "server"):
        table.add_column(column, overflow="fold")
    for row in facts["attacks"]:
        table.add_row(row["attack"], row["client"], row["server"])
    out.print(table)


def _explanation(request: Explanation) -> dict[str, Any]:
    from fedtrees.bench.disclosure import briefly, disclosures, visible_to
    from fedtrees.bench.evaluate import make_defense
    from fedtrees.bench.federation import federation_of
    from fedtrees.bench.suite import DataRef
    from fedtrees.core.guarantee import join
    from fedtrees.protocols.base import Protocol, train

    grid = parse_grid(request.protocol)
    composed = parse_composed(request.defenses) or parse_composed(["none"])
    if len(grid) != 1 or len(composed) != 1:
        raise UsageError("explain shows one protocol and one defense; compose defenses with +")
    maker = register.get("protocol", grid[0].name)
    protocol: Protocol = register.make("protocol", briefly(grid[0]))
    defense = make_defense(composed[0])
    reason = protocol.mismatch(defense)
    if reason:
        raise UsageError(f"{composed[0]} does not go with {grid[0].name}: {reason}")
    federation = federation_of(
        DataRef(request.data), Spec("iid"), request.clients, 0, request.data_dir
    )
    training = train(protocol, federation.clients, federation.schema, defense=defense)
    rows = disclosures(training.transcript, defense)
    offers = protocol.offers_on(federation.schema)
    return {
        "protocol": str(grid[0]),
        "about": (reflection.getdoc(maker) or "").split("\n")[0],
        "defense": str(composed[0]),
        "claimed": join(defense.claims()),
        "spent": join(defense.spent(training.transcript)),
        "crossings": [r.to_json() for r in rows],
        "sees": {role: [r.to_json() for r in visible_to(rows, role)] for role in ROLES},
        "attacks": [
            {"attack": name, **{r: _applies(name, offers, r) for r in ROLES}}
            for name in register.names("attack")
        ],
    }


def _applies(name: str, offers: Set[str], role: str) -> str:
    attack = register.make("attack", Spec(name))
    reason = attack.inapplicable(offers, {role})
    return APPLIES if reason is None else f"no: {reason}"


def exposure(plugins: Sequence[str], as_json: bool) -> None:
    """Print which attacks apply to every protocol, under every threat."""
    for plugin in plugins:
        load_plugin(plugin)
    facts = exposed()
    if as_json:
        typer.echo(json.dumps(facts, indent=1))
        return
    out = console()
    table = TextTable(title="which attacks apply", title_justify="left", title_style="bold")
    for column in ("protocol", "threat", "attacks"):
        table.add_column(column, overflow="fold")
    for row in facts:
        attacks = ", ".join(row["attacks"]) or "none that is here"
        table.add_row(row["protocol"], row["threat"], attacks)
    out.print(table)
    out.print("Two classes, default parameters. fedtrees explain PROTOCOL: who sees what, and why.")


def exposed() -> list[dict[str, Any]]:
    """Return, for every protocol and threat, the attacks that apply to a target of two classes."""
    from fedtrees.bench.conformance import sample_federation
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

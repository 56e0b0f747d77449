"""The command explain: who sees what, and who can attack it."""

from __future__ import annotations

import inspect as reflection
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import typer
from rich.table import Table as TextTable

from fedtrees.cli.inspect import console
from fedtrees.core.errors import UsageError
from fedtrees.core.registry import load_plugin, register
from fedtrees.core.specs import Spec, parse_composed, parse_grid

if TYPE_CHECKING:
    from fedtrees.core.holding import Holding
    from fedtrees.protocols.base import Training

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
    for role in facts["sees"]:
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
    for column in ("attack", *facts["sees"]):
        table.add_column(column, overflow="fold")
    for row in facts["attacks"]:
        table.add_row(*row.values())
    out.print(table)


def _explanation(request: Explanation) -> dict[str, Any]:
    from fedtrees.bench.cells import Setting
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
    setting = Setting.of(DataRef(request.data), Spec("iid"), request.clients, 0, protocol)
    federation = federation_of(setting, request.data_dir)
    training = train(protocol, federation.holdings, federation.schema, defense=defense)
    rows = disclosures(training.transcript, defense)
    applies = _who_attacks(training, federation.holdings)
    return {
        "protocol": str(grid[0]),
        "about": (reflection.getdoc(maker) or "").split("\n")[0],
        "defense": str(composed[0]),
        "claimed": join(defense.claims()),
        "spent": join(defense.spent(training.transcript)),
        "crossings": [r.to_json() for r in rows],
        "sees": {role: [r.to_json() for r in visible_to(rows, role)] for role in applies},
        "attacks": [
            {"attack": name, **{role: found[name] for role, found in applies.items()}}
            for name in _attacks()
        ],
    }


def _attacks() -> list[str]:
    names = register.names("attack")
    return [n for n in names if not getattr(register.get("attack", n), "blind", False)]


def _who_attacks(training: Training, holdings: Mapping[str, Holding]) -> dict[str, dict[str, str]]:
    """Return, for the last party of every role, which attacks apply, and why others do not."""
    from fedtrees.protocols.base import view_of

    last = {role: name for name, role in training.transcript.roles.items()}
    found = {}
    for role in sorted(last):
        view = view_of(training, (last[role],), holdings)
        reasons = {n: register.make("attack", Spec(n)).inapplicable(view) for n in _attacks()}
        found[role] = {n: APPLIES if why is None else f"no: {why}" for n, why in reasons.items()}
    return found


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
    from fedtrees.bench.conformance import sample_training

    found = []
    for name in register.names("protocol"):
        training, holdings = sample_training(register.make("protocol", Spec(name, _brief(name))))
        for role, reasons in _who_attacks(training, holdings).items():
            attacks = [attack for attack, why in reasons.items() if why == APPLIES]
            found.append({"protocol": name, "threat": role, "attacks": attacks})
    return found


def _brief(protocol: str) -> dict[str, Any]:
    from fedtrees.bench.disclosure import briefly

    return dict(briefly(Spec(protocol)).params)

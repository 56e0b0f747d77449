"""The `explain` command: show which party receives which messages, and which attacks apply."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Annotated, Any

import typer

from fedtrees.cli.console import console, emit, text_table
from fedtrees.cli.options import (
    Clients,
    DataDir,
    Defenses,
    Details,
    Format,
    Output,
    Plugins,
    Protocols,
    Unprotected,
    one_protocol,
    option,
)
from fedtrees.core.errors import UsageError
from fedtrees.core.specs import Spec
from fedtrees.experiments.environment import recall
from fedtrees.experiments.options import DATA, DEFENSE, check_clients, load_plugins


def explain(
    protocol: Annotated[str | None, typer.Argument()] = None,
    named: Protocols = None,
    defense: Defenses = None,
    data: Annotated[str | None, option(DATA, "NAME")] = None,
    clients: Clients = 3,
    threat: Annotated[list[str] | None, option(DEFENSE, "THREAT")] = None,
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

    Parameters
    ----------
    protocol : str, optional
        A protocol, with parameters, or the log of a party of a federation. Without it, the attacks
        that apply to every protocol are listed.
    data : str, optional
        Dataset to run it on; by default one that fits.
    threat : sequence of str, optional
        Adversaries: passive[count=2], active[queries=1000], server+client.

    Examples
    --------
    Messages of a protocol, and the attacks that apply::

        fedtrees explain fedtree-hist

    With a defense, and with the reasons why other attacks do not apply::

        fedtrees explain -p fedtree-hist -d secure-sum --details
    """
    check_clients(clients)
    load_plugins(plugin, unprotected)
    protocol = one_protocol(protocol, named)
    facts: Any
    show: Callable[[Any], None]
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
        question = (protocol, list(defense or ()), data, clients, list(threat or ()))

        def compute() -> Any:
            return _explain(*question, data_dir)

        # The content of a file can change, so that only answers about bundled tables are stored.
        from_file = data is not None or data_dir is not None
        facts = compute() if from_file else recall(["explain", *question], compute)
        show = partial(_print, details=details)
    emit(facts, format, lambda: show(facts))


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
    out.print(f"public before the training: {facts['declared']}", markup=False)
    for cheat in facts["cheats"]:
        out.print(f"{cheat['party']} is dishonest: it {cheat['beyond']}", markup=False)
        out.print(f"detection by other parties: {cheat['noticed']}", markup=False)
        if cheat["refused"]:
            out.print(f"here an honest party refused: {cheat['refused']}", markup=False)
    shown: list[Any] = []
    for role, seen in facts["sees"].items():
        if seen in shown:
            continue
        shown.append(seen)
        heads, messages = _message_table(seen, facts["roles"][role], details)
        out.print(text_table(f"messages that {role} receives", heads, messages, **style))
    sealed = [
        f"{row['type']} ({row['readable_by'].replace('nobody', 'no party')})"
        for row in facts["crossings"]
        if row["sealed"]
    ]
    if sealed:
        out.print(
            f"sent encrypted or masked (role with the key): {', '.join(sealed)}", markup=False
        )
    title = (
        "attacks that apply to this protocol; fedtrees bench measures their success under a defense"
    )
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
            "for the fields and reasons of all messages, and why other attacks do not "
            "apply: --details"
        )
        return
    by_reason: dict[str, list[str]] = {}
    for row in (row for row in facts["attacks"] if row not in yes):
        why = dict.fromkeys(_describe_applicability(row[c], details=True) for c in columns[1:])
        by_reason.setdefault("; ".join(why), []).append(row["attack"])
    for reasons, names in by_reason.items():
        out.print(f"{reasons}: {', '.join(names)}", markup=False)


def _print_log(facts: dict[str, Any]) -> None:
    """Print the explanation of a party's log."""
    out = console()
    out.print(f"{facts['framework']}, the log of {facts['as']}", style="bold")
    for title, rows, other in (("sent", facts["sent"], "to"), ("received", facts["sees"], "from")):
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

    every: list[tuple[str, ...]] = [
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
    columns = ("message", "from", "reveals", "protected by", "filled fields", "empty fields", "why")
    if details:
        return columns, every
    return columns[:4], [row[:4] for row in every if row[2] and row[1] != "itself"]


def _explain(*arguments: Any) -> dict[str, Any]:
    """Compute the explanation of a protocol. Its module is imported only if it is not cached."""
    from fedtrees.experiments.explain import explain_protocol

    return explain_protocol(*arguments)


def _whence(row: Mapping[str, Any], roles: Sequence[str]) -> str:
    """Describe the sender of a message from the perspective of the receiver."""
    if row["from"] == row["to"] in roles:
        return "itself, from received messages"
    return "itself" if row["from"] in roles else str(row["from"])


def _missing_extras() -> dict[str, list[str]]:
    """Return the missing optional packages of every protocol that cannot run without them."""
    from fedtrees.core.registry import register

    protocols: dict[str, Any] = {n: register.get("protocol", n) for n in register.names("protocol")}
    missing = {name: protocol.missing() for name, protocol in protocols.items()}
    return {name: packages for name, packages in missing.items() if packages}


def _print_exposed(facts: list[dict[str, Any]], missing: Mapping[str, Sequence[str]]) -> None:
    """Print which attacks apply to every protocol."""
    rows = [
        (row["protocol"], row["threat"], ", ".join(row["attacks"]) or "none of the registered ones")
        for row in facts
    ]
    out = console()
    out.print(text_table("which attacks apply", ("protocol", "threat", "attacks"), rows))
    for name, packages in missing.items():
        out.print(f"not run: {name} needs {', '.join(packages)}", markup=False)
    out.print(
        "For two classes and default parameters. fedtrees explain PROTOCOL shows the "
        "messages and reasons."
    )


def list_exposures() -> list[dict[str, Any]]:
    """Return the attacks that apply to every protocol and threat, for a target of two classes."""
    from fedtrees.conformance.samples import sample_training
    from fedtrees.core.registry import register
    from fedtrees.experiments.explain import BRIEF, adversaries_of, applicable_attacks, limit_size

    facts = []
    for name in register.names("protocol"):
        if register.get("protocol", name).missing():  # type: ignore[attr-defined]
            continue
        short = register.make("protocol", limit_size(Spec(name), BRIEF))
        training, local_data = sample_training(short)
        threats = adversaries_of(training)
        for text, reasons in applicable_attacks(training, local_data, threats).items():
            attacks = [attack for attack, reason in reasons.items() if reason.ok]
            facts.append({"protocol": name, "threat": text, "attacks": attacks})
    return facts

"""The commands capture and attack: what a real framework's parties sent, and what it tells."""

from __future__ import annotations

import json
from typing import Annotated, Any

import typer

from fedtrees.cli.options import Format, Output
from fedtrees.core.errors import UsageError


def capture(
    wire: Annotated[
        str,
        typer.Argument(
            help="Whose bytes: rabit (XGBoost's own collective: Dask, Spark), or xgboost (its "
            "federated server)."
        ),
    ],
    to: Annotated[str, typer.Option(help="Where the tracker or server listens: [HOST:]PORT.")],
    output: Annotated[str, typer.Option("--output", "-o", help="The capture; runs are appended.")],
    listen: Annotated[
        int, typer.Option(help="Port to listen at in its place; 0: any, which is printed.")
    ] = 0,
    host: Annotated[
        str, typer.Option(help="Address to listen at. Only this machine reaches the default.")
    ] = "127.0.0.1",
    format: Output = Format.TABLE,
) -> None:
    """Stand between the parties of a run and write down what crosses, until all have gone.

    Parties connect to the printed port in place of the tracker's or server's.
    """
    from fedtrees.capture.wires import record

    def ready(port: int) -> None:
        said = {"listening": port} if format.is_json else f"listening at {host}:{port}"
        typer.echo(json.dumps(said) if format.is_json else said)

    written = record(wire, _address(to), output, listen=listen, host=host, ready=ready)
    found = {"file": output, "pieces": written}
    typer.echo(json.dumps(found) if format.is_json else f"{written:,} pieces in {output}")


def _address(text: str) -> tuple[str, int]:
    host, _, port = text.rpartition(":")
    if not port.isdigit() or not 0 < int(port) < 1 << 16:
        raise UsageError(f"--to {text}: give HOST:PORT, or a port of this machine")
    return host or "127.0.0.1", int(port)


def attack(
    file: Annotated[str, typer.Argument(help="A capture, or a party's log of a federation.")],
    who: Annotated[
        str,
        typer.Option(
            "--as",
            help="Who reads it: a party, or third: whoever saw the wire (default; of a log, who "
            "kept it).",
        ),
    ] = "",
    truth: Annotated[
        list[str] | None,
        typer.Option(help="CSV file of a party's rows, PARTY.csv or PARTY=FILE; scores it."),
    ] = None,
    target: Annotated[str, typer.Option(help="Label column of --truth; by default the last.")] = "",
    id: Annotated[
        str, typer.Option(help="Column of --truth that names rows, of a log of a vertical run.")
    ] = "",
    run: Annotated[int | None, typer.Option(help="Which run of several in the file.")] = None,
    format: Output = Format.TABLE,
) -> None:
    """Say what a capture tells one party: what was promised and is not so, what is read, attacks.

    What is said to be certain follows from the bytes; with --truth it is compared with the rows.
    """
    from fedtrees.capture.attack import THIRD, report
    from fedtrees.capture.records import Capture
    from fedtrees.capture.truth import read_truth
    from fedtrees.federation import attack as of_log
    from fedtrees.federation.log import FRAMEWORK

    if Capture(file, run).told.framework == FRAMEWORK:
        told: dict[str, Any] = of_log.report(file, who, truth or (), id, run)
    else:
        told = report(file, who or THIRD, read_truth(truth or (), target), run)
    if format.is_json:
        typer.echo(json.dumps(told, indent=1))
    else:
        _print(told)


def _print(told: dict[str, Any]) -> None:
    from fedtrees.cli.inspect import console, text_table

    out = console()
    out.print(f"{told['framework']}, read by {told['as']}", style="bold")
    if told["promises"]:
        out.print("what was promised and is not so:")
    for line in told["promises"]:
        out.print(f"  {line}", markup=False)
    columns = ("message", "from", "to", "reveals", "count", "bytes")
    rows = [[str(row[c]) for c in columns] for row in told["sees"]]
    out.print(text_table(f"what {told['as']} sees", columns, rows, box=None, pad_edge=False))
    columns = ("reading", "of", "read", "certain", *(("wrong",) if told["scored"] else ()))
    rows = [[str(row.get(c, "")) for c in columns] for row in told["readings"]]
    if rows:
        out.print(text_table("what it tells", columns, rows, box=None, pad_edge=False))
    if told["attacks"]:
        rows = [[row["attack"], row["said"], _scored(row)] for row in told["attacks"]]
        columns = ("attack", "", "score (blind)")
        out.print(text_table("attacks", columns, rows, box=None, pad_edge=False))
    for note in (*told["notes"], *told.get("verdict", ())):
        out.print(note, markup=False)


def _scored(row: dict[str, Any]) -> str:
    scores = row.get("scores", {}).items()
    return ", ".join(
        f"{name} {value:.3g}" + ("" if blind is None else f" ({blind:.3g})")
        for name, (value, blind) in scores
    )

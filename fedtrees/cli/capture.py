"""The commands capture and attack: what a real framework's parties sent, and what it tells."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated, Any

import typer

from fedtrees.cli.options import Format, Output
from fedtrees.core.errors import UsageError


def capture(
    wire: Annotated[
        str,
        typer.Argument(
            help="Whose bytes: rabit (XGBoost's own collective: Dask, Spark), xgboost (its "
            "federated server), or lightgbm (its machines)."
        ),
    ],
    output: Annotated[str, typer.Option("--output", "-o", help="The capture; runs are appended.")],
    to: Annotated[str, typer.Option(help="Where the tracker or server listens: [HOST:]PORT.")] = "",
    machines: Annotated[
        str, typer.Option(help="LightGBM's machine list: a file of it, or HOST:PORT,HOST:PORT,...")
    ] = "",
    listen: Annotated[
        int,
        typer.Option(
            help="Port to listen at in its place, of several machines the first; 0: any, printed."
        ),
    ] = 0,
    host: Annotated[
        str, typer.Option(help="Address to listen at. Only this machine reaches the default.")
    ] = "127.0.0.1",
    format: Output = Format.TABLE,
) -> None:
    """Stand between the parties of a run and write down what crosses, until all have gone.

    Parties connect to the printed port in place of the tracker's or server's; each machine of
    LightGBM is given the list that is printed for it.
    """
    from fedtrees.capture.wires import record, told

    by_list = wire == "lightgbm"
    if by_list != bool(machines) or by_list == bool(to):
        raise UsageError(
            f"capture {wire}: give {'--machines' if by_list else '--to'}, and it alone"
        )
    there = _machines(machines) if by_list else [_address(to)]

    def ready(ports: list[int]) -> None:
        said = told(wire, there, host, ports)
        text = [f"machines={m}" for m in said.get("machines", [])] or [
            f"listening at {host}:{ports[0]}"
        ]
        typer.echo(json.dumps(said) if format.is_json else "\n".join(text))

    written = record(wire, there, output, listen=listen, host=host, ready=ready)
    found = {"file": output, "pieces": written}
    typer.echo(json.dumps(found) if format.is_json else f"{written:,} pieces in {output}")


def _address(text: str, option: str = "--to") -> tuple[str, int]:
    host, _, port = text.rpartition(":")
    if not port.isdigit() or not 0 < int(port) < 1 << 16:
        raise UsageError(f"{option} {text}: give HOST:PORT, or a port of this machine")
    return host or "127.0.0.1", int(port)


def _machines(text: str) -> list[tuple[str, int]]:
    """Return the machines of a list, in their order."""
    path = Path(text)
    lines = path.read_text().splitlines() if path.is_file() else text.split(",")
    told = [":".join(line.split()) for line in lines if line.strip()]
    found = [_address(line, "--machines") for line in told]
    if len(found) < 2 or len(set(found)) < len(found):
        raise UsageError(f"--machines {text}: give two machines or more, each once")
    return found


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
    named: Annotated[
        list[str] | None,
        typer.Option(
            "-a",
            "--attack",
            help="Attacks, with parameters. By default all, and searches stop as in the default "
            "bench.",
        ),
    ] = None,
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
        told: dict[str, Any] = of_log.report(file, who, truth or (), id, run, named or ())
    else:
        told = report(file, who or THIRD, read_truth(truth or (), target), run, named or ())
    if format.is_json:
        typer.echo(json.dumps(told, indent=1))
    else:
        _print(told)


def diff(
    first: Annotated[str, typer.Argument(help="A capture.")],
    second: Annotated[str, typer.Argument(help="Another.")],
    run: Annotated[
        list[int] | None, typer.Option(help="Which run of each, of several in a file: twice.")
    ] = None,
    format: Output = Format.TABLE,
) -> None:
    """Say what crossed in one capture and not in another, kind by kind; exits 4 if they differ."""
    from fedtrees.capture.differences import differences

    runs = tuple(run or (None, None))
    if len(runs) != 2:
        raise UsageError("--run: give it twice, for the first capture and for the second")
    told = differences((first, second), runs)
    if format.is_json:
        typer.echo(json.dumps(told, indent=1))
    else:
        from fedtrees.cli.inspect import console, text_table

        columns = ("message", "from", "to", "count", "bytes", "apart")
        rows = [
            [*(row[c] for c in columns[:3]), *(_both(row[c]) for c in columns[3:5]), row["apart"]]
            for row in told["kinds"]
        ]
        title = "the same" if told["same"] else "not the same"
        console().print(text_table(title, columns, rows, box=None, pad_edge=False))
        for note in told["notes"]:
            console().print(note, markup=False)
    if not told["same"]:
        raise typer.Exit(4)


def _both(pair: list[int]) -> str:
    return f"{pair[0]:,}" if pair[0] == pair[1] else f"{pair[0]:,} / {pair[1]:,}"


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

"""The commands capture and attack: what a real framework's parties sent, and what it tells."""

import json
import sys
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
            "federated server), lightgbm (its machines), or nvflare (a job of XGBoost)."
        ),
    ],
    output: Annotated[str, typer.Option("--output", "-o", help="The capture; runs are appended.")],
    to: Annotated[str, typer.Option(help="Where the tracker or server listens: [HOST:]PORT.")] = "",
    machines: Annotated[
        str, typer.Option(help="LightGBM's machine list: a file of it, or HOST:PORT,HOST:PORT,...")
    ] = "",
    job: Annotated[str, typer.Option(help="Folder of a job that NVFlare exported.")] = "",
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
    LightGBM is given the list that is printed for it. Of NVFlare's job, a copy is made whose server
    writes down what crosses: that is submitted in its place.
    """
    from fedtrees.capture.jobs import recorded_job
    from fedtrees.capture.wires import record, told, versions_of

    option = _BY.get(wire, "--to")
    given = {"--machines": machines, "--job": job, "--to": to}
    if wire == "flower":
        raise UsageError(
            "capture flower: its server writes it down: wrap its strategy, "
            "recorded(strategy, 'run.capture') of fedtrees.capture.flower"
        )
    if [name for name, value in given.items() if value] != [option]:
        raise UsageError(f"capture {wire}: give {option}, and it alone")
    print(versions_of(wire), file=sys.stderr)
    if wire == "nvflare":
        made = str(recorded_job(job, output))
        found = {"job": made, "file": output}
        typer.echo(json.dumps(found) if format.is_json else f"submit {made} in its place")
        return
    there = _machines(machines) if machines else [_address(to)]

    def ready(ports: list[int]) -> None:
        said = told(wire, there, host, ports)
        text = [f"machines={m}" for m in said.get("machines", [])] or [
            f"listening at {host}:{ports[0]}"
        ]
        typer.echo(json.dumps(said) if format.is_json else "\n".join(text))

    written = record(wire, there, output, listen=listen, host=host, ready=ready)
    found = {"file": output, "pieces": written}
    typer.echo(json.dumps(found) if format.is_json else f"{written:,} pieces in {output}")


#: What says where a run is, where that is no address.
_BY = {"lightgbm": "--machines", "nvflare": "--job"}


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
    protocol: Annotated[
        str,
        typer.Option(help="What the run is of, as in nvflare-hist[max_depth=3]; a job tells it."),
    ] = "",
    format: Output = Format.TABLE,
) -> None:
    """Say what a capture tells one party: what was promised and is not so, what is read, attacks.

    What is said to be certain follows from the bytes; with --truth it is compared with the rows.
    """
    from fedtrees.capture.attack import report
    from fedtrees.capture.model_readings import THIRD
    from fedtrees.capture.records import Capture
    from fedtrees.capture.truth import read_truth
    from fedtrees.federation import attack as of_log
    from fedtrees.federation.log import FRAMEWORK

    if Capture(file, run).told.framework == FRAMEWORK:
        told: dict[str, Any] = of_log.report(file, who, truth or (), id, run, named or ())
    else:
        rows = read_truth(truth or (), target)
        told = report(file, who or THIRD, rows, run, named or (), protocol)
    if format.is_json:
        typer.echo(json.dumps(told, indent=1))
    else:
        _print(told)


def diff(
    first: Annotated[str, typer.Argument(help="A capture.")],
    second: Annotated[str, typer.Argument(help="Another; or none, and --protocol.")] = "",
    run: Annotated[
        list[int] | None, typer.Option(help="Which run of each, of several in a file: twice.")
    ] = None,
    truth: Annotated[
        list[str] | None,
        typer.Option(help="CSV file of a party's rows, as of attack: what --protocol runs on."),
    ] = None,
    target: Annotated[str, typer.Option(help="Label column of --truth; by default the last.")] = "",
    protocol: Annotated[
        str,
        typer.Option(help="The bench's, as in nvflare-hist[max_depth=3]: instead of a second."),
    ] = "",
    format: Output = Format.TABLE,
) -> None:
    """Say what crossed in one capture and not in another, kind by kind; exits 4 if they differ.

    Or not in the bench's protocol, run on the same rows.
    """
    from fedtrees.capture.differences import differences, from_protocol
    from fedtrees.capture.truth import read_truth

    runs = run or ([None] if protocol else [None, None])
    if bool(second) == bool(protocol) or len(runs) != 1 + bool(second):
        raise UsageError("give a second capture or --protocol; --run once for each capture")
    if protocol:
        told = from_protocol(first, runs[0], protocol, read_truth(truth or (), target))
    else:
        told = differences((first, second), (runs[0], runs[1]))
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

"""The `capture`, `attack` and `diff` commands: record and analyse traffic of other frameworks."""

import sys
from pathlib import Path
from typing import Annotated, Any

import typer

from fedtrees.cli.console import console, emit, text_table
from fedtrees.cli.options import Format, Output, Target, option
from fedtrees.core.errors import UsageError
from fedtrees.experiments.options import DATA, DEFENSE, FEDERATION, OUTPUT, RUN


def capture(
    wire: Annotated[str, typer.Argument()],
    output: Annotated[str, option(OUTPUT, "FILE", "-o", "--output")],
    to: Annotated[str, option(RUN, "ADDRESS")] = "",
    machines: Annotated[str, option(RUN, "LIST")] = "",
    job: Annotated[str, option(RUN, "FOLDER")] = "",
    listen: Annotated[int, option(RUN, "PORT")] = 0,
    host: Annotated[str, option(RUN, "HOST")] = "127.0.0.1",
    format: Output = Format.TABLE,
) -> None:
    """Record all messages between the parties of a run, until all parties have disconnected.

    The command acts as a proxy. Parties connect to the printed port instead of the port of the
    tracker or the server, and each machine of LightGBM receives the list that is printed for it.
    For NVFlare, a copy of the job is written whose server records the messages. Submit this copy
    instead of the original job.

    Parameters
    ----------
    wire : str
        Framework: rabit (XGBoost's own collective, which Dask and Spark use), xgboost (its
        federated server), lightgbm (its machines), or nvflare (a job of XGBoost).
    output : str
        File of the capture. Further runs are appended.
    to : str, optional
        Where the tracker or server listens: [HOST:]PORT.
    machines : str, optional
        LightGBM's machine list: a file of it, or HOST:PORT,HOST:PORT,...
    job : str, optional
        Folder of a job that NVFlare exported.
    listen : int, optional
        Port at which the proxy listens, the first one of several machines (0: a free port, which is
        printed).
    host : str, optional
        Address to listen at. Only this machine reaches the default.

    Examples
    --------
    XGBoost's federated server, which listens on port 9091::

        fedtrees capture record xgboost --to 9091 -o run.capture

    A job of NVFlare::

        fedtrees capture record nvflare --job jobs/xgb -o run.capture
    """
    from fedtrees.capture.formats import record, relay_addresses, versions_of
    from fedtrees.capture.jobs import recorded_job

    option = _BY.get(wire, "--to")
    values = {"--machines": machines, "--job": job, "--to": to}
    if wire == "flower":
        raise UsageError(
            "capture flower: its server writes it down: wrap its strategy, "
            "recorded(strategy, 'run.capture') of fedtrees.capture.flower"
        )
    if [name for name, value in values.items() if value] != [option]:
        raise UsageError(f"capture {wire}: give {option}, and no other address")
    print(versions_of(wire), file=sys.stderr)
    if wire == "nvflare":
        job_copy = str(recorded_job(job, output))
        result = {"job": job_copy, "file": output}
        emit(result, format, f"submit {job_copy} in its place", one_line=True)
        return
    addresses = _machines(machines) if machines else [_address(to)]

    def ready(ports: list[int]) -> None:
        endpoints = relay_addresses(wire, addresses, host, ports)
        text = [f"machines={m}" for m in endpoints.get("machines", [])] or [
            f"listening at {host}:{ports[0]}"
        ]
        emit(endpoints, format, "\n".join(text), one_line=True)

    n_pieces = record(wire, addresses, output, listen=listen, host=host, ready=ready)
    facts = {"file": output, "pieces": n_pieces}
    emit(facts, format, f"{n_pieces:,} pieces in {output}", one_line=True)


#: The option that states the location of a run, if it is not an address.
_BY = {"lightgbm": "--machines", "nvflare": "--job"}


def _address(text: str, option: str = "--to") -> tuple[str, int]:
    """Parse an address."""
    host, _, port = text.rpartition(":")
    if not port.isdigit() or not 0 < int(port) < 1 << 16:
        raise UsageError(f"{option} {text}: give HOST:PORT, or a port of this machine")
    return host or "127.0.0.1", int(port)


def _machines(text: str) -> list[tuple[str, int]]:
    """Return the machines of a list in their order."""
    path = Path(text)
    lines = path.read_text().splitlines() if path.is_file() else text.split(",")
    addresses = [":".join(line.split()) for line in lines if line.strip()]
    machines = [_address(line, "--machines") for line in addresses]
    if len(machines) < 2 or len(set(machines)) < len(machines):
        raise UsageError(f"--machines {text}: give two machines or more, each once")
    return machines


def attack(
    file: Annotated[str, typer.Argument()],
    who: Annotated[str, option(DEFENSE, "PARTY", "--as")] = "",
    truth: Annotated[list[str] | None, option(DATA, "FILE")] = None,
    target: Target = "",
    id: Annotated[str, option(DATA, "COLUMN")] = "",
    run: Annotated[int | None, option(DATA, "N")] = None,
    named: Annotated[list[str] | None, option(DEFENSE, "ATTACK", "-a", "--attack")] = None,
    protocol: Annotated[str, option(FEDERATION, "PROTOCOL", "-p", "--protocol")] = "",
    format: Output = Format.TABLE,
) -> None:
    """Show what a recorded run reveals to one party: broken assurances, inferred facts and attacks.

    A result that is called certain follows from the recorded bytes. With --truth it is compared
    with the rows.

    Parameters
    ----------
    file : str
        A capture, or a party's log of a federation.
    who : str, optional
        Party that reads the capture, or third: an eavesdropper (default; for a log, the party that
        wrote it).
    truth : sequence of str, optional
        CSV file with the rows of a party, PARTY.csv or PARTY=FILE, to score the attacks.
    id : str, optional
        Column of --truth with the ids of rows, for the log of a vertical run.
    run : int, optional
        Number of the run, if the file contains several.
    named : sequence of str, optional
        Attacks, with parameters. By default all, and searches stop as in the default bench.
    protocol : str, optional
        Protocol of the recorded run, for example nvflare-hist[max_depth=3]. A job of NVFlare states
        it.

    Examples
    --------
    What an eavesdropper learns::

        fedtrees capture attack run.capture

    What the server learns, compared with the rows of a client::

        fedtrees capture attack run.capture --as server --truth client-0.csv
    """
    from fedtrees.capture.attack import read_party_tables, report
    from fedtrees.capture.readings import THIRD
    from fedtrees.capture.records import Capture
    from fedtrees.federation import attack as of_log
    from fedtrees.federation.log import FRAMEWORK

    if Capture(file, run).run_facts.framework == FRAMEWORK:
        facts: dict[str, Any] = of_log.report(file, who, truth or (), id, run, named or ())
    else:
        rows = read_party_tables(truth or (), target)
        facts = report(file, who or THIRD, rows, run, named or (), protocol)
    emit(facts, format, lambda: _print(facts))


def diff(
    first: Annotated[str, typer.Argument()],
    second: Annotated[str, typer.Argument()] = "",
    run: Annotated[list[int] | None, option(DATA, "N")] = None,
    truth: Annotated[list[str] | None, option(DATA, "FILE")] = None,
    target: Target = "",
    protocol: Annotated[str, option(FEDERATION, "PROTOCOL", "-p", "--protocol")] = "",
    format: Output = Format.TABLE,
) -> None:
    """Compare the messages of two captures, type by type. Exit code 4: they differ.

    With --protocol, a capture is compared with a run of the benchmark's protocol on the same rows.

    Parameters
    ----------
    first : str
        A capture.
    second : str, optional
        Another capture. Omit it with --protocol.
    run : sequence of int, optional
        Number of the run in each capture, if it contains several (give the option twice).
    truth : sequence of str, optional
        CSV file with the rows of a party, PARTY.csv or PARTY=FILE, for --protocol.
    protocol : str, optional
        Compare with a run of this protocol instead of a second capture, for example
        nvflare-hist[max_depth=3].

    Examples
    --------
    Two recordings::

        fedtrees capture diff before.capture after.capture

    A recording with our protocol on the same rows::

        fedtrees capture diff run.capture -p nvflare-hist --truth client-0.csv
    """
    from fedtrees.capture.attack import read_party_tables
    from fedtrees.capture.differences import differences, from_protocol

    runs: list[int | None] = list(run) if run else [None] * (1 if protocol else 2)
    if bool(second) == bool(protocol) or len(runs) != 1 + bool(second):
        raise UsageError("give a second capture or --protocol; --run once for each capture")
    if protocol:
        comparison = from_protocol(first, runs[0], protocol, read_party_tables(truth or (), target))
    else:
        comparison = differences((first, second), (runs[0], runs[1]))
    emit(comparison, format, lambda: _print_comparison(comparison))
    if not comparison["same"]:
        raise typer.Exit(4)


def _print_comparison(comparison: dict[str, Any]) -> None:
    """Print the differences between the messages of two captures."""
    columns = ("message", "from", "to", "count", "bytes", "apart")
    rows = [
        [*(row[c] for c in columns[:3]), *(_both(row[c]) for c in columns[3:5]), row["apart"]]
        for row in comparison["kinds"]
    ]
    title = "the same" if comparison["same"] else "not the same"
    console().print(text_table(title, columns, rows, box=None, pad_edge=False))
    for note in comparison["notes"]:
        console().print(note, markup=False)


def _both(pair: list[int]) -> str:
    """Write two numbers, or one if they are equal."""
    return f"{pair[0]:,}" if pair[0] == pair[1] else f"{pair[0]:,} / {pair[1]:,}"


def _print(report: dict[str, Any]) -> None:
    """Print the report of an attack on a capture."""
    out = console()
    out.print(f"{report['framework']}, read by {report['as']}", style="bold")
    if report["promises"]:
        out.print("what was promised and is not so:")
    for line in report["promises"]:
        out.print(f"  {line}", markup=False)
    columns: tuple[str, ...] = ("message", "from", "to", "reveals", "count", "bytes")
    rows = [[str(row[c]) for c in columns] for row in report["sees"]]
    out.print(text_table(f"what {report['as']} sees", columns, rows, box=None, pad_edge=False))
    columns = ("reading", "of", "read", "certain", *(("wrong",) if report["scored"] else ()))
    rows = [[str(row.get(c, "")) for c in columns] for row in report["readings"]]
    if rows:
        out.print(text_table("what it tells", columns, rows, box=None, pad_edge=False))
    if report["attacks"]:
        rows = [[row["attack"], row["said"], _format_scores(row)] for row in report["attacks"]]
        columns = ("attack", "", "score (blind)")
        out.print(text_table("attacks", columns, rows, box=None, pad_edge=False))
    for note in (*report["notes"], *report.get("verdict", ())):
        out.print(note, markup=False)


def _format_scores(row: dict[str, Any]) -> str:
    """Write the scores of an attack with their blind baselines."""
    scores = row.get("scores", {}).items()
    return ", ".join(
        f"{name} {value:.3g}" + ("" if blind is None else f" ({blind:.3g})")
        for name, (value, blind) in scores
    )

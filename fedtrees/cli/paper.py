"""The `plot` and `table` commands, whose results are made for papers."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any

import typer

from fedtrees.cli.console import emit
from fedtrees.cli.options import Format, Output, option
from fedtrees.core.errors import UsageError
from fedtrees.core.specs import split_outside
from fedtrees.experiments.options import DATA, DEFENSE, FEDERATION, OUTPUT, print_warnings

Runs = Annotated[list[str], typer.Argument(help="Run folders.", metavar="RUN...")]
Metric = Annotated[
    str | None, option(OUTPUT, "METRIC", help="Leakage metric (default: that of the verdict).")
]
Utility = Annotated[
    str | None, option(OUTPUT, "METRIC", help="Utility metric (default: the first measured).")
]
Data = Annotated[
    list[str] | None, option(DATA, "NAME", "--data", help="Datasets to show (default: all).")
]
Threat = Annotated[
    list[str] | None, option(DEFENSE, "THREAT", help="Threats to show (default: all).")
]
Protocol = Annotated[
    list[str] | None,
    option(
        FEDERATION,
        "PROTOCOL",
        "-p",
        "--protocol",
        help="Protocols to show, with or without parameters.",
    ),
]
Defense = Annotated[
    list[str] | None,
    option(
        DEFENSE,
        "DEFENSE",
        "-d",
        "--defense",
        help="Defenses to show, with or without parameters. The undefended run is always shown.",
    ),
]
Labels = Annotated[
    list[str] | None,
    option(OUTPUT, "NAME=TEXT", "--label", help="Text to show instead of a name (repeatable)."),
]


def plot(
    runs: Runs,
    out: Annotated[str | None, option(OUTPUT, "FILE", "-o", "--output")] = None,
    metric: Metric = None,
    utility: Utility = None,
    data: Data = None,
    threat: Threat = None,
    protocol: Protocol = None,
    defense: Defense = None,
    width: Annotated[str | None, option(OUTPUT, "WIDTH")] = None,
    label: Labels = None,
    format: Output = Format.TABLE,
) -> None:
    """Draw the frontier: utility against the worst advantage over the applicable attacks.

    Parameters
    ----------
    out : str, optional
        FILE.html, .svg, .png or .pdf (default: RUN/frontier.html).
    width : str, optional
        column (3.3 inches) or page (7), of .svg, .png and .pdf.

    Examples
    --------
    An interactive page in the run folder::

        fedtrees plot runs/quick

    One column of a paper, for one adversary and some defenses::

        fedtrees plot runs/quick -o f.pdf --width column --threat server -d split-only
    """
    from fedtrees.report.figures.plot import plot as draw
    from fedtrees.report.findings import describe_weaknesses
    from fedtrees.report.results import Selection

    if out is None and len(runs) > 1:
        raise UsageError("a figure of several runs belongs to no run folder; give -o FILE")
    chosen = Selection(*map(split_names, (data, threat, protocol, defense)))
    options: dict[str, Any] = {"chosen": chosen, "width": width, "labels": named(label)}
    path = draw(runs, out or Path(runs[0]) / "frontier.html", metric, utility, **options)
    print_warnings(describe_weaknesses(runs, metric, chosen))
    emit({"file": str(path)}, format, str(path))


def table(
    runs: Runs,
    out: Annotated[str | None, option(OUTPUT, "FILE", "-o", "--output")] = None,
    metric: Metric = None,
    utility: Utility = None,
    data: Data = None,
    threat: Threat = None,
    protocol: Protocol = None,
    defense: Defense = None,
    label: Labels = None,
    format: Output = Format.TABLE,
) -> None:
    """Write utility and leaks of every defense, by dataset and threat.

    If the runs contain several datasets, the table also contains the mean rank of each defense.

    Parameters
    ----------
    out : str, optional
        FILE.tex, .csv or .md (default: print).

    Examples
    --------
    A Markdown table in the terminal::

        fedtrees results table runs/quick

    A LaTeX table with another name of the table::

        fedtrees results table runs/quick -o t.tex --label breast-cancer=WDBC
    """
    from fedtrees.report.findings import describe_weaknesses
    from fedtrees.report.paper_table import table_of, write_table
    from fedtrees.report.results import Selection

    chosen = Selection(*map(split_names, (data, threat, protocol, defense)))
    paper_table = table_of(runs, metric, utility, chosen=chosen, labels=named(label))
    # The file is written first, so that no warning precedes the refusal of its name.
    path = str(write_table(paper_table, out)) if out is not None else None
    print_warnings(describe_weaknesses(runs, metric, chosen))
    if path is not None:
        emit({"file": path}, format, path)
    elif format.is_json:
        typer.echo(paper_table.frame().to_json(orient="records", indent=1))
    else:
        typer.echo(paper_table.md(), nl=False)


def split_names(texts: Sequence[str] | None) -> tuple[str, ...]:
    """Return the names of an option that can be repeated and can contain commas."""
    return tuple(name for text in texts or () for name in split_outside(text, ","))


def named(texts: Sequence[str] | None) -> dict[str, str]:
    """Return labels by name.

    Raises `UsageError` if a text is not of the form NAME=TEXT.
    """
    labels = {}
    for text in texts or ():
        name, *rest = split_outside(text, "=")  # a name may contain brackets with =
        if not rest:
            raise UsageError(f"--label {text!r}: give NAME=TEXT, such as wine=Wine")
        labels[name] = text.partition(f"{name}=")[2]
    return labels

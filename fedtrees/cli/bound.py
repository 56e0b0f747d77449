"""The `bound` command: compute the best possible attack on tables that can be enumerated."""

import json
import os
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from typing import Annotated, Any

import typer

from fedtrees.cli.inspect import console, text_table
from fedtrees.cli.options import Defenses, Format, Output, Plugins, Unprotected


def bound(
    protocols: Annotated[
        list[str] | None,
        typer.Argument(help="Protocols, with parameters. None: the usual ones and defenses."),
    ] = None,
    defense: Defenses = None,
    threat: Annotated[
        list[str] | None, typer.Option(help="Adversaries (default: one of every role).")
    ] = None,
    columns: Annotated[int, typer.Option(help="Binary columns beside the label.")] = 2,
    rows: Annotated[
        str, typer.Option(help="Rows of each client; all together where these hold columns.")
    ] = "2,2",
    attack: Annotated[
        list[str] | None, typer.Option("-a", "--attack", help="Attacks to set beneath the ceiling.")
    ] = None,
    draws: Annotated[int, typer.Option(min=2, help="Tables that each attack is run on.")] = 100,
    seed: Annotated[int, typer.Option(help="Seed of protocols and draws.")] = 0,
    jobs: Annotated[
        int | None, typer.Option("--jobs", "-j", min=1, help="Processes (default: one a core).")
    ] = None,
    plugin: Plugins = None,
    unprotected: Unprotected = False,
    format: Output = Format.TABLE,
) -> None:
    """Train on every table of a few binary rows, and print a ceiling that no attack can exceed.

    The ceiling is exact for the prior, the tables and the view that are used: columns are uniform,
    and the label equals the first column in 65 of 100 rows. The score of a blind guess is printed
    for comparison. An adversary that knows rows by id guesses the label of each row, or, if it has
    the labels, the columns of other parties. The figures of attacks that recognise members are AUCs
    against rows of the prior.
    """
    from fedtrees.bounds.ceilings import USUAL, lines
    from fedtrees.bounds.tables import TinyTables
    from fedtrees.core.specs import parse_composed, parse_grid, parse_list
    from fedtrees.experiments.environment import check_extras
    from fedtrees.experiments.options import load_plugins

    load_plugins(plugin, unprotected)
    tables, attacks = TinyTables(columns, _rows(rows)), parse_list(attack or ())
    settings = [(p, tuple(defense or ("none",))) for p in protocols] if protocols else USUAL
    cells = [(one, against) for name, defenses in settings
             for one in parse_grid(name) for against in parse_composed(defenses)]  # fmt: skip
    for cell in cells:
        check_extras(*cell)
    n_processes = min(len(cells), jobs or os.cpu_count() or 1)
    with ProcessPoolExecutor(
        n_processes, get_context("spawn"), load_plugins, (plugin, unprotected)
    ) as processes:
        shared = (threat or (), attacks, draws, seed)
        futures = [processes.submit(lines, tables, *one, *shared) for one in cells]
        results = [line for future in futures for line in future.result()]
    if format.is_json:
        typer.echo(json.dumps(results, indent=1))
        return
    title = "rows right over all tables, in expectation"
    heads = ("protocol", "defense", "threat", "of", "blind", "attack", "ceiling", "share", "views",
             "tables", "sums told apart")  # fmt: skip
    table = text_table(title, heads, map(_shown, results), box=None, pad_edge=False)
    console().print(table)
    for line in results:
        if "why" in line:
            message = f"{line['protocol']} {line['defense']}: no ceiling: {line['why']}"
            console().print(message, markup=False)
        if not line.get("pure", True):
            message = f"{line['attack']}: it knows more than its view says"
            console().print(message, markup=False)
    if all("why" in line for line in results):
        raise typer.Exit(2)


def _rows(text: str) -> tuple[int, ...]:
    """Parse numbers of rows per client."""
    from fedtrees.core.errors import UsageError

    try:
        return tuple(int(part) for part in text.split(","))
    except ValueError:
        raise UsageError(f"--rows {text!r}: write rows of each client, such as 2,2") from None


def _shown(line: dict[str, Any]) -> list[str]:
    """Return the cells of one line of the table."""
    if "why" in line:
        return [line["protocol"], line["defense"], *["-"] * 9]
    scored, share = "score" in line, line.get("share")
    return [
        line["protocol"], line["defense"], line["threat"], str(line["rows"]),
        f"{line['blind']:.2f}",
        f"{line['attack']} {line['score']:.2f} ±{line['error']:.2f}" if scored else "-",
        f"{line['ceiling']:.2f}", "-" if share is None else f"{share:.0%}",
        str(line["views"]), str(line["tables"]),
        f"{line['told_apart']} of {line['alike']}" if "alike" in line else "-",
    ]  # fmt: skip

"""The `measure` and `bound` commands: audit a claim of epsilon, and compute ceilings of attacks.

`measure` audits a claim with rows and parameters that the auditor chooses. `bound` computes the
best possible attack on tables that are small enough to be enumerated.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from typing import Annotated, Any

import typer

from fedtrees.cli.console import console, emit, text_table
from fedtrees.cli.options import (
    Defenses,
    Format,
    Output,
    Plugins,
    Protocols,
    Unprotected,
    names_of,
    one_protocol,
    option,
)
from fedtrees.core.errors import UsageError
from fedtrees.experiments.options import DATA, DEFENSE, RUN, load_plugins

_BY_CHANCE = "; 5% of audits refute a correct claim by chance: confirm it with another --seed"


def measure(
    protocol: Annotated[str | None, typer.Argument(autocompletion=names_of("protocol"))] = None,
    named: Protocols = None,
    defense: Defenses = None,
    runs: Annotated[int | None, option(RUN, "N")] = None,
    seed: Annotated[int, option(RUN, "N")] = 0,
    plugin: Plugins = None,
    unprotected: Unprotected = False,
    format: Output = Format.TABLE,
) -> None:
    """Measure the epsilon of a protocol and its defenses: a lower bound, with 95% confidence.

    The auditor chooses the table and the public parameters for which the mechanism reveals the most
    about a row, and runs the real mechanism on them. Exit code 4: more was measured than was spent.
    `fedtrees bench` prints the result of one training with the parameters of the run, which is
    smaller.

    Parameters
    ----------
    protocol : str, optional
        A protocol, with parameters.
    runs : int, optional
        Number of trainings. More trainings can give a higher bound (default: as many as take less
        than a minute).
    seed : int, optional
        Seed of rows, coin flips and trainings.

    Examples
    --------
    A protocol that is differentially private itself::

        fedtrees privacy measure -p 'dp-gbdt[epsilon=1]'

    A defense, with more trainings than by default::

        fedtrees privacy measure -p fedtree-hist
            -d 'laplace-hist[epsilon=4]' --runs 2000
    """
    load_plugins(plugin, unprotected)
    audited = one_protocol(protocol, named)
    if audited is None:
        raise UsageError("name a protocol, for example -p 'dp-gbdt[epsilon=1]'")
    results = list(_audit_combinations(audited, defense or ("none",), runs, seed))
    lines = (f"{name:10}{text}" for result in results for name, text in result.items())
    emit(results, format, "\n".join(lines))
    if any(result["refuted"] for result in results):
        raise typer.Exit(4)


def _audit_combinations(
    protocol: str, defenses: Any, runs: int | None, seed: int
) -> Iterator[dict[str, Any]]:
    """Yield the result of an audit for each combination of a protocol and a defense."""
    from fedtrees.core.guarantee import ApproximateDP, PureDP, epsilon_in_words, join
    from fedtrees.core.registry import register
    from fedtrees.core.specs import parse_composed, parse_grid
    from fedtrees.experiments.environment import check_extras
    from fedtrees.experiments.epsilon_audit import audit
    from fedtrees.experiments.evaluate import make_defense
    from fedtrees.report.guarantees import compare, refuted, span

    protocols, compositions = [*parse_grid(protocol)], [*parse_composed(defenses)]
    # The exit code states that none of the claims is refuted. Therefore the risk of 5% is divided
    # among them (Bonferroni).
    confidence = 1 - 0.05 / (len(protocols) * len(compositions))
    for spec in protocols:
        for composed in compositions:
            instance = register.make("protocol", spec)
            check_extras(spec, composed)
            audited = audit(
                instance, make_defense(composed), runs=runs, seed=seed, confidence=confidence
            )
            changed = {
                k: v for k, v in audited.protocol.parameters.items() if v != instance.parameters[k]
            }
            guarantees = (audited.claimed, audited.spent, (audited.measured,))
            noise = audited.noise
            few = noise is not None and noise.too_little
            chance = _BY_CHANCE if refuted(*guarantees) else ""
            yield {
                "protocol": str(spec),
                "defense": str(composed),
                "claimed": join(audited.claimed),
                "spent": join(audited.spent),
                "meaning": "; ".join(
                    epsilon_in_words(g)
                    for g in audited.spent
                    if isinstance(g, PureDP | ApproximateDP)
                ),
                "measured": span([(audited.measured,)]),
                "trainings": audited.measured.runs,
                "noise": ""
                if noise is None
                else f"{noise.share:.2f} of what is claimed, in {noise.sums} sums"
                + (f": too little, below {noise.least:.2f}" if few else ""),
                "chosen": ", ".join(f"{k}={v}" for k, v in changed.items()),
                "reading": compare(*guarantees) + chance,
                "refuted": few or refuted(*guarantees),
            }


def bound(
    protocols: Annotated[list[str] | None, typer.Argument()] = None,
    named: Protocols = None,
    defense: Defenses = None,
    threat: Annotated[list[str] | None, option(DEFENSE, "THREAT")] = None,
    columns: Annotated[int, option(DATA, "N")] = 2,
    rows: Annotated[str, option(DATA, "N,N")] = "2,2",
    attack: Annotated[list[str] | None, option(DEFENSE, "ATTACK", "-a", "--attack")] = None,
    draws: Annotated[int, option(RUN, "N", min=2)] = 100,
    seed: Annotated[int, option(RUN, "N")] = 0,
    jobs: Annotated[int | None, option(RUN, "N", "--jobs", "-j", min=1)] = None,
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

    Parameters
    ----------
    protocols : sequence of str, optional
        Protocols, with parameters (default: common protocols with common defenses).
    threat : sequence of str, optional
        Adversaries (default: one of every role).
    columns : int, optional
        Number of binary columns in addition to the label.
    rows : str, optional
        Rows of each client; for vertical parties, the rows of the table.
    attack : sequence of str, optional
        Attacks to compare with the ceiling.
    draws : int, optional
        Number of tables on which each attack runs.
    seed : int, optional
        Seed of protocols and draws.
    jobs : int, optional
        Processes (default: all cores).

    Examples
    --------
    The ceiling of a protocol, and of the same with a defense::

        fedtrees privacy bound -p fedtree-hist -d none -d split-only

    How close an attack comes to the ceiling::

        fedtrees privacy bound -p fedtree-hist -a timberstrike
    """
    from fedtrees.bounds.ceilings import USUAL, lines
    from fedtrees.bounds.tables import TinyTables
    from fedtrees.core.specs import parse_composed, parse_grid, parse_list
    from fedtrees.experiments.environment import check_extras
    from fedtrees.experiments.options import load_plugins

    load_plugins(plugin, unprotected)
    tables, attacks = TinyTables(columns, _parse_rows(rows)), parse_list(attack or ())
    audited = [*(protocols or ()), *(named or ())]
    settings = [(p, tuple(defense or ("none",))) for p in audited] or USUAL
    cells = [(one, against) for name, defenses in settings
             for one in parse_grid(name) for against in parse_composed(defenses)]  # fmt: skip
    for cell in cells:
        check_extras(*cell)
    n_processes = min(len(cells), jobs or os.cpu_count() or 1)
    with ProcessPoolExecutor(
        n_processes, get_context("spawn"), load_plugins, (plugin, unprotected)
    ) as processes:
        futures = [
            processes.submit(lines, tables, *one, threat or (), attacks, draws, seed)
            for one in cells
        ]
        results = [line for future in futures for line in future.result()]
    emit(results, format, lambda: _print_bounds(results))
    if not format.is_json and all("why" in line for line in results):
        raise typer.Exit(2)


def _print_bounds(results: Sequence[dict[str, Any]]) -> None:
    """Print a table of ceilings, and why there is none."""
    title = "rows right over all tables, in expectation"
    heads = ("protocol", "defense", "threat", "of", "blind", "attack", "ceiling", "share", "views",
             "tables", "sums told apart")  # fmt: skip
    table = text_table(title, heads, map(_format_bound, results), box=None, pad_edge=False)
    console().print(table)
    for line in results:
        if "why" in line:
            message = f"{line['protocol']} {line['defense']}: no ceiling: {line['why']}"
            console().print(message, markup=False)
        if not line.get("pure", True):
            message = f"{line['attack']}: its guesses depend on more than its view"
            console().print(message, markup=False)


def _parse_rows(text: str) -> tuple[int, ...]:
    """Parse numbers of rows per client."""
    try:
        return tuple(int(part) for part in text.split(","))
    except ValueError:
        raise UsageError(f"--rows {text!r}: write rows of each client, such as 2,2") from None


def _format_bound(line: dict[str, Any]) -> list[str]:
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

"""The `measure` command: audit a claim of epsilon with rows and parameters of the auditor."""

import json
from collections.abc import Iterator
from typing import Annotated, Any

import typer

from fedtrees.cli.options import Defenses, Format, Output, Plugins, Unprotected, names_of
from fedtrees.experiments.options import load_plugins

_BY_CHANCE = "; so is one right claim in twenty by chance: confirm it with other --seed"


def measure(
    protocol: Annotated[
        str,
        typer.Argument(help="A protocol, with parameters.", autocompletion=names_of("protocol")),
    ],
    defense: Defenses = None,
    runs: Annotated[
        int | None,
        typer.Option(help="Trainings: more show more (default: less than a minute's)."),
    ] = None,
    seed: Annotated[int, typer.Option(help="Seed of rows, coin flips and trainings.")] = 0,
    plugin: Plugins = None,
    unprotected: Unprotected = False,
    format: Output = Format.TABLE,
) -> None:
    """Measure the epsilon of a protocol and its defenses: a lower bound, with 95% confidence.

    The auditor chooses the table and the public parameters for which the mechanism reveals the most
    about a row, and runs the real mechanism on them. Exit code 4: more was measured than was spent.
    `fedtrees bench` prints the result of one training with the parameters of the run, which is
    smaller.
    """
    load_plugins(plugin, unprotected)
    results = list(_audit_combinations(protocol, defense or ("none",), runs, seed))
    if format.is_json:
        typer.echo(json.dumps(results, indent=1))
    else:
        for result in results:
            typer.echo("\n".join(f"{name:10}{text}" for name, text in result.items()))
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

    for spec in parse_grid(protocol):
        for composed in parse_composed(defenses):
            instance = register.make("protocol", spec)
            check_extras(spec, composed)
            audited = audit(instance, make_defense(composed), runs=runs, seed=seed)
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

"""`fedtrees`: the command line. Results go to stdout, progress to stderr.

Exit codes: 0 done; 1 an error nobody foresaw; 2 usage; 3 finished, but some cells failed or ran
out of time; 4 a conformance check failed; 5 data; 6 a protocol or defense broke its own rules;
7 a run folder cannot be read or written; 130 interrupted.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any

# One thread per process: a second one on a busy core makes everything slower.
for _name in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS", "NUMBA_NUM_THREADS"):
    os.environ.setdefault(_name, "1")

import typer

from fedtrees import __version__
from fedtrees.core.errors import FedtreesError, UsageError

app = typer.Typer(
    name="fedtrees",
    help="What does a federated tree model leak, and what does a defense cost?",
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
)


class Format(StrEnum):
    """How a command writes its result."""

    TABLE = "table"
    JSON = "json"


FormatOption = Annotated[Format, typer.Option("--format", help="How to write the result.")]
PluginOption = Annotated[
    list[str] | None,
    typer.Option("--plugin", help="A Python file with @register decorators (repeatable)."),
]
DataDirOption = Annotated[
    str | None,
    typer.Option(help="Folder with data files (default: $FEDTREES_DATA)."),
]
DefenseOption = Annotated[
    list[str] | None,
    typer.Option(
        "-d", "--defense", help="Defenses, with grids: split-only, laplace-hist[epsilon=1,4]."
    ),
]


@app.command()
def bench(
    protocol: Annotated[
        list[str] | None,
        typer.Option(
            "-p", "--protocol", help="Protocols, with grids: fedtree-hist[max_depth=3,6]."
        ),
    ] = None,
    defense: DefenseOption = None,
    attack: Annotated[
        list[str] | None, typer.Option("-a", "--attack", help="Attacks, with parameters.")
    ] = None,
    data: Annotated[
        list[str] | None, typer.Option("--data", help="Datasets (see `fedtrees list datasets`).")
    ] = None,
    csv: Annotated[str | None, typer.Option(help="A CSV file instead of --data.")] = None,
    target: Annotated[str, typer.Option(help="Target column of --csv.")] = "",
    positive: Annotated[str, typer.Option(help="Positive class of --csv.")] = "",
    categorical: Annotated[
        list[str] | None, typer.Option(help="Categorical columns of --csv (repeat or commas).")
    ] = None,
    partition: Annotated[
        list[str] | None, typer.Option(help="iid, label-skew[alpha=], quantity-skew, ...")
    ] = None,
    clients: Annotated[list[int] | None, typer.Option(help="Number of clients.")] = None,
    threat: Annotated[
        list[str] | None,
        typer.Option(help="Who is curious: client, client[index=0], client[count=2], server."),
    ] = None,
    seeds: Annotated[
        str | None, typer.Option(help="A count, or a list such as 0,1,2 (default: the suite's).")
    ] = None,
    suite: Annotated[
        str | None, typer.Option(help="smoke, quick (default), full, or a .toml file.")
    ] = None,
    jobs: Annotated[
        int | None, typer.Option("-j", "--jobs", help="Processes (default: all cores).")
    ] = None,
    out: Annotated[str | None, typer.Option(help="Run folder (default: runs/SUITE).")] = None,
    resume: Annotated[
        bool, typer.Option("--resume", help="Finish the run in --out; nothing is computed twice.")
    ] = False,
    time_limit: Annotated[
        float | None, typer.Option(help="Seconds one training or attack may take (0: no limit).")
    ] = None,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Check everything and list the cells; run nothing.")
    ] = False,
    data_dir: DataDirOption = None,
    plugin: PluginOption = None,
    format: FormatOption = Format.TABLE,
) -> None:
    """Train federations with and without defenses, attack them, and report what leaked.

    Options replace the suite's: `fedtrees bench --defense split-only` runs the default suite with
    that defense. The undefended run and the blind adversary are always added.
    """
    from fedtrees.cli import bench as command

    options = {
        "protocols": protocol,
        "defenses": defense,
        "attacks": attack,
        "partitions": partition,
        "clients": clients,
        "threats": threat,
    }
    if csv is not None:
        if data:
            raise UsageError("give --data or --csv, not both")
        if not target:
            raise UsageError("--csv needs --target COLUMN")
        columns = [c for text in categorical or () for c in text.split(",") if c]
        table = {"csv": csv, "target": target, "positive": positive, "categorical": columns}
        options["data"] = [table]
    else:
        if target or positive or categorical:
            raise UsageError("--target, --positive and --categorical describe a --csv file")
        options["data"] = data
    command.run(
        command.Request(
            options={k: v for k, v in options.items() if v},
            seeds=seeds,
            suite=suite,
            jobs=jobs,
            out=out,
            resume=resume,
            time_limit=time_limit,
            dry_run=dry_run,
            data_dir=data_dir,
            plugins=tuple(plugin or ()),
            as_json=format is Format.JSON,
        )
    )


@app.command()
def train(
    protocol: Annotated[
        str, typer.Option("-p", "--protocol", help="A protocol, with parameters.")
    ] = "fedtree-hist",
    defense: Annotated[
        list[str] | None,
        typer.Option("-d", "--defense", help="A defense; compose several with +."),
    ] = None,
    data: Annotated[
        str | None, typer.Option(help="A dataset (see `fedtrees list datasets`).")
    ] = None,
    csv: Annotated[str | None, typer.Option(help="A CSV file instead of --data.")] = None,
    target: Annotated[str, typer.Option(help="Target column of --csv.")] = "",
    task: Annotated[
        str, typer.Option(help="What the target of --csv is: binary, classes or number.")
    ] = "",
    positive: Annotated[str, typer.Option(help="Positive class of --csv.")] = "",
    categorical: Annotated[
        list[str] | None, typer.Option(help="Categorical columns of --csv (repeat or commas).")
    ] = None,
    partition: Annotated[
        str, typer.Option(help="iid, label-skew[alpha=], quantity-skew, ...")
    ] = "iid",
    clients: Annotated[int, typer.Option(help="Number of clients.")] = 3,
    seed: Annotated[int, typer.Option(help="Seed of everything random.")] = 0,
    out: Annotated[
        str | None,
        typer.Option(help="Write the model: XGBoost JSON (.json), or a random forest (.npz)."),
    ] = None,
    transcript: Annotated[
        str | None, typer.Option(help="Write every message of the training (.npz).")
    ] = None,
    data_dir: DataDirOption = None,
    plugin: PluginOption = None,
    format: FormatOption = Format.TABLE,
) -> None:
    """Train one federation, score its model on held-out rows, and write model and transcript.

    Training and test rows are those of `fedtrees bench` for the same seed and partition.
    """
    from fedtrees.cli import train as command

    table = None
    if csv is not None:
        if data:
            raise UsageError("give --data or --csv, not both")
        if not target:
            raise UsageError("--csv needs --target COLUMN")
        columns = [c for text in categorical or () for c in text.split(",") if c]
        table = {"csv": csv, "target": target, "task": task or "binary", "categorical": columns}
        table |= {"positive": positive} if positive else {}
    elif target or task or positive or categorical:
        raise UsageError("--target, --task, --positive and --categorical describe a --csv file")
    command.run(
        command.Request(
            protocol=protocol,
            defenses=tuple(defense or ()),
            data=data or "breast-cancer",
            csv=table,
            partition=partition,
            clients=clients,
            seed=seed,
            out=out,
            transcript=transcript,
            data_dir=data_dir,
            plugins=tuple(plugin or ()),
            as_json=format is Format.JSON,
        )
    )


@app.command("list")
def list_(
    kind: Annotated[
        str, typer.Argument(help="protocols, defenses, attacks, datasets, suites, or all.")
    ] = "all",
    plugin: PluginOption = None,
    format: FormatOption = Format.TABLE,
) -> None:
    """List what can be named on the command line, with one line about each."""
    from fedtrees.cli import inspect

    inspect.list_names(kind, plugin or (), format is Format.JSON)


@app.command()
def explain(
    protocol: Annotated[
        str | None, typer.Argument(help="A protocol, with parameters. None: all, and who attacks.")
    ] = None,
    defense: DefenseOption = None,
    data: Annotated[str, typer.Option(help="Dataset to run it on.")] = "breast-cancer",
    clients: Annotated[int, typer.Option(help="Number of clients.")] = 3,
    data_dir: DataDirOption = None,
    plugin: PluginOption = None,
    format: FormatOption = Format.TABLE,
) -> None:
    """Run two trees and show who sees what, why, what guards it, and which attacks apply.

    Without a protocol: which attacks apply to every protocol, for a curious client and server.
    """
    from fedtrees.cli import explain

    if protocol is None:
        explain.exposure(plugin or (), format is Format.JSON)
        return
    request = explain.Explanation(protocol, tuple(defense or ()), data, clients, data_dir)
    explain.explain(request, plugin or (), format is Format.JSON)


@app.command()
def show(
    run: Annotated[str, typer.Argument(help="A run folder.")],
    metric: Annotated[
        str | None, typer.Option(help="Leakage metric: ra (default), exact_rows, leaf_mass_exact.")
    ] = None,
    format: FormatOption = Format.TABLE,
) -> None:
    """Print the leaderboard of a finished run."""
    from fedtrees.cli import results

    results.show(Path(run), metric, format is Format.JSON)


@app.command()
def plot(
    run: Annotated[str, typer.Argument(help="A run folder.")],
    out: Annotated[
        str | None, typer.Option("-o", "--out", help="FILE.html, .svg, .png or .pdf.")
    ] = None,
    metric: Annotated[str | None, typer.Option(help="Leakage metric (default: ra).")] = None,
    utility: Annotated[str | None, typer.Option(help="Utility metric (default: auc).")] = None,
    format: FormatOption = Format.TABLE,
) -> None:
    """Draw the frontier: utility against the worst advantage over the applicable attacks."""
    from fedtrees.cli import results

    results.plot(Path(run), out, metric, utility, format is Format.JSON)


@app.command()
def report(
    run: Annotated[str, typer.Argument(help="A run folder.")],
    format: FormatOption = Format.TABLE,
) -> None:
    """Write the self-contained HTML report of a run again."""
    from fedtrees.cli import results

    results.report(Path(run), format is Format.JSON)


@app.command()
def check(
    file: Annotated[str, typer.Argument(help="A plugin file, or the name of a built-in.")],
    format: FormatOption = Format.TABLE,
) -> None:
    """Check that protocols, defenses and attacks keep the rules (conformance)."""
    from fedtrees.cli import inspect

    if not inspect.check(file, format is Format.JSON):
        raise typer.Exit(4)


@app.command()
def audit(
    model: Annotated[
        str, typer.Argument(help="A model file: XGBoost JSON or UBJ, LightGBM text, or .npz.")
    ],
    own: Annotated[
        str | None, typer.Option(help="CSV file of training rows the attacker holds.")
    ] = None,
    truth: Annotated[
        str | None, typer.Option(help="CSV file of training rows to look for.")
    ] = None,
    target: Annotated[str, typer.Option(help="Label column of --own and --truth.")] = "",
    positive: Annotated[str, typer.Option(help="Their positive class.")] = "",
    categorical: Annotated[
        list[str] | None, typer.Option(help="Their columns of text (repeat or commas).")
    ] = None,
    scrub: Annotated[
        str | None,
        typer.Option(help="Write the model without what prediction does not need (.json)."),
    ] = None,
    report: Annotated[
        str | None, typer.Option(help="Write the findings as a page (.html).")
    ] = None,
    rows: Annotated[
        int | None,
        typer.Option(
            help="Rows of the training table, if known. Counts from leaf values alone then take it "
            "that the first tree was grown on all of them, without an L1 penalty."
        ),
    ] = None,
    learning_rate: Annotated[
        float | None, typer.Option(help="eta it was trained with, if known (default: inferred).")
    ] = None,
    reg_lambda: Annotated[
        float | None,
        typer.Option(
            help="lambda it was trained with, if known (default: inferred from statistics; leaf "
            "values alone do not tell it)."
        ),
    ] = None,
    seed: Annotated[int, typer.Option(help="Seed of the attack.")] = 0,
    format: FormatOption = Format.TABLE,
) -> None:
    """Say what a model file gives away about its training rows; scrub it; attack it.

    Counts are printed only where they are certain. --own and --truth score an attack.
    """
    from fedtrees.audit.known import Known
    from fedtrees.cli import audit as command

    command.run(
        command.Request(
            model=model,
            own=own,
            truth=truth,
            target=target,
            positive=positive,
            categorical=tuple(c for text in categorical or () for c in text.split(",") if c),
            scrub=scrub,
            report=report,
            known=Known(rows=rows, learning_rate=learning_rate, reg_lambda=reg_lambda),
            seed=seed,
            as_json=format is Format.JSON,
        )
    )


@app.command()
def fetch(
    name: Annotated[str, typer.Argument(help="A dataset that is not bundled.")],
    data_dir: DataDirOption = None,
    url: Annotated[str | None, typer.Option(help="Take the file from here instead.")] = None,
    format: FormatOption = Format.TABLE,
) -> None:
    """Download a dataset and verify its checksum: the only command that uses the network."""
    from fedtrees.cli import inspect

    inspect.fetch(name, data_dir, url, format is Format.JSON)


@app.command()
def doctor(format: FormatOption = Format.TABLE) -> None:
    """Check the installation: versions, cores, compiled kernels, data folder, browser."""
    from fedtrees.cli import inspect

    if not inspect.doctor(format is Format.JSON):
        raise typer.Exit(1)


def _version(value: bool) -> None:
    if value:
        typer.echo(f"fedtrees {__version__}")
        raise typer.Exit


@app.callback()
def _root(
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Show the version.")
    ] = False,
) -> None:
    pass


def main(arguments: Sequence[str] | None = None) -> Any:
    """Run the command line and exit with its code; errors are one line on stderr."""
    code: Any = 0
    try:
        # Typer returns the code of an Exit here instead of raising it.
        given = list(sys.argv[1:] if arguments is None else arguments)
        code = app(args=given or ["--help"], standalone_mode=False)
    except FedtreesError as err:
        _fail(str(err), err.exit_code)
    except KeyboardInterrupt:
        _fail("interrupted", 130)
    except BrokenPipeError:
        sys.stderr.close()
        sys.exit(0)
    except Exception as err:
        shown = getattr(err, "format_message", None)
        if shown is not None:  # typer's own usage errors
            _fail(shown(), getattr(err, "exit_code", 2))
        if os.environ.get("FEDTREES_DEBUG"):
            raise
        _fail(f"{type(err).__name__}: {err} (a bug; FEDTREES_DEBUG=1 shows where it happened)", 1)
    sys.exit(code if isinstance(code, int) else 0)


def _fail(message: str, code: int) -> None:
    print(f"fedtrees: {' '.join(message.split())}", file=sys.stderr)
    sys.exit(code)


if __name__ == "__main__":
    main()

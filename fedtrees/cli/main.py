"""`fedtrees`: the command line. Results are written to stdout, progress to stderr.

Exit codes:

- 0: success.
- 1: an unexpected error.
- 2: wrong usage.
- 3: finished, but some cells failed or ran out of time, or no attack applied.
- 4: a check failed, or a claim or submission is refuted.
- 5: data that cannot be used.
- 6: a protocol or defense violated its rules.
- 7: a run folder cannot be read or written.
- 130: interrupted.
"""

import atexit
import os
import shlex
import sys
from collections.abc import Callable, Sequence
from typing import Annotated, Any

# One thread per process. The benchmark starts one process per core, so that additional threads
# would only compete for the cores.
for _name in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS", "NUMBA_NUM_THREADS"):
    os.environ.setdefault(_name, "1")

INTERRUPTED = 130  # exit code
_ends_with: list[int] = []  # contains the exit code of an interrupted command


@atexit.register  # functions run in reverse order of registration, so that this one runs last
def _leave_at_once() -> None:
    """End an interrupted process without clearing its memory, which takes up to a second."""
    if _ends_with:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(_ends_with[0])


import typer

from fedtrees import __version__
from fedtrees.cli import (
    advise,
    audit,
    bench,
    capture,
    explain,
    federate,
    leaderboard,
    paper,
    privacy,
    registry,
    results,
    tables,
    train,
)
from fedtrees.core.errors import FedtreesError, Problem, Problems, check_known

app = typer.Typer(
    name="fedtrees",
    help="What does a federated tree model leak, and what does a defense cost?",
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
    context_settings={"help_option_names": ["-h", "--help"]},
)


_SHELLS = ("bash", "zsh", "fish")
_COMPLETE = "_FEDTREES_COMPLETE"

# The modules that a command needs are imported when it runs, so that the help appears at once.
#: Every command: its name, its function and its line in `fedtrees --help`, which has 80 columns.
COMMANDS: tuple[tuple[str, Callable[..., Any], str], ...] = (
    ("bench", bench.bench, "Train with and without defenses, attack, and print a verdict."),
    ("advise", advise.advise, "Find a protocol and a defense that meet your limits."),
    ("explain", explain.explain, "Show which party receives which message."),
    ("list", registry.list_, "List protocols, defenses, attacks, tables and suites."),
    ("inspect", tables.inspect, "Show how the columns of a table are interpreted."),
    ("fetch", tables.fetch, "Download a public table and verify its checksum."),
    ("train", train.train, "Train one federation and save its model."),
    ("audit", audit.audit, "Show what a model file reveals about its training rows."),
    ("show", results.show, "Print the tables of a run, and what did not run."),
    ("compare", results.compare, "Show the differences between runs."),
    ("plot", paper.plot, "Draw utility against leakage."),
    ("table", paper.table, "Write utility and leakage as a LaTeX table."),
    ("report", results.report, "Write the HTML report of a run again."),
    ("submit", leaderboard.submit, "Write a finished run as a bundle for a leaderboard."),
    ("leaderboard", leaderboard.leaderboard, "Check submissions and write a leaderboard."),
    ("measure", privacy.measure, "Measure a lower bound on epsilon with canaries."),
    ("bound", privacy.bound, "Compute the score that no attack can exceed."),
    ("new", registry.new, "Write a working example of a plug-in."),
    ("check", registry.check, "Check that plug-ins follow the rules."),
    ("capture", capture.capture, "Record the messages of a real training."),
    ("attack", capture.attack, "Show what a recorded training reveals to one party."),
    ("diff", capture.diff, "Compare the messages of two recorded trainings."),
    ("federate", federate.federate, "Train between parties on several machines."),
    ("site", federate.site, "Configure the table and the federations of a site."),
    ("doctor", registry.doctor, "Check the installation."),
)
for _name, _function, _line in COMMANDS:
    app.command(_name, short_help=_line)(_function)


def _version(value: bool) -> None:
    """Print the version and exit."""
    if value:
        typer.echo(f"fedtrees {__version__}")
        raise typer.Exit


def _completion(shell: str | None) -> None:
    """Print the completion script of a shell and exit."""
    if shell is not None:
        from typer.completion import get_completion_script  # type: ignore[attr-defined]

        check_known("shell", shell, _SHELLS)
        script = get_completion_script(
            prog_name=str(app.info.name), complete_var=_COMPLETE, shell=shell
        )
        typer.echo(script)
        raise typer.Exit


@app.callback()
def _root(
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Show the version.")
    ] = False,
    completion: Annotated[
        str | None,
        typer.Option(
            callback=_completion,
            is_eager=True,
            metavar="SHELL",
            help="Print the script by which bash, zsh or fish completes commands and names.",
        ),
    ] = None,
) -> None:
    pass


def main(arguments: Sequence[str] | None = None) -> Any:
    """Run the command line and exit with its code. An error is one line on stderr."""
    code: Any = 0
    if _COMPLETE in os.environ:  # a shell requests completions
        from typer.completion import completion_init  # type: ignore[attr-defined]

        completion_init()
    words = list(sys.argv[1:] if arguments is None else arguments)
    try:
        # Typer returns the code of an Exit here instead of raising it.
        code = app(args=words or ["--help"], prog_name=app.info.name, standalone_mode=False)
    except Problems as err:
        _fail_with_all(err, words)
    except FedtreesError as err:
        _fail(str(err), err.exit_code)
    except KeyboardInterrupt:
        code = INTERRUPTED
    except BrokenPipeError:
        sys.stderr.close()
        sys.exit(0)
    except Exception as err:
        shown = getattr(err, "format_message", None)
        if shown is not None:  # usage errors that typer reports
            _fail(shown() + _option_help(err, words), getattr(err, "exit_code", 2))
        if os.environ.get("FEDTREES_DEBUG"):
            raise
        _fail(f"{type(err).__name__}: {err} (a bug; FEDTREES_DEBUG=1 shows where it happened)", 1)
    if code == INTERRUPTED:  # typer returns this code, too
        # In a test, the process must not end.
        if arguments is None:
            _ends_with.append(code)
        _fail("interrupted", code)
    sys.exit(code if isinstance(code, int) else 0)


def _option_help(err: Exception, argv: Sequence[str]) -> str:
    """Return the help of an option that was given without its argument, or with one too many.

    The text is empty for any other usage error of the command line.
    """
    option: str = getattr(err, "option_name", "")
    if not option or type(err).__name__ != "BadOptionUsage":  # typer does not export this class
        return ""
    commands = getattr(typer.main.get_command(app), "commands", {})
    named = [commands[word] for word in argv[:1] if word in commands]
    texts = [p.help for c in named for p in c.params if option in p.opts]
    return f" {texts[0]}" if texts and texts[0] else ""


def _fail_with_all(err: Problems, argv: Sequence[str]) -> None:
    """Exit after printing every problem on a separate line, and a corrected command."""
    lines = [f"{err.where}: {problem.text}" for problem in err.problems]
    for line in lines:
        print(f"fedtrees: {' '.join(line.split())}", file=sys.stderr)
    command = corrected(argv, err.problems)
    if command:
        print(f"try: fedtrees {command}", file=sys.stderr)
    sys.exit(err.exit_code)


def corrected(argv: Sequence[str], problems: Sequence[Problem]) -> str:
    """Return the arguments with every problem corrected, "" if a problem has no remedy."""
    fixes = {p.option: p.value for p in problems if p.option}
    if not fixes or not all(p.option for p in problems):
        return ""
    arguments: list[str] = []
    words = iter(argv)
    for word in words:
        option, equals, _ = word.removeprefix("--").partition("=")
        if not (word.startswith("--") and option in fixes):
            arguments.append(word)
        elif not equals:
            next(words, None)
    arguments += [part for o, value in fixes.items() if value for part in (f"--{o}", value)]
    return shlex.join(arguments) if sorted(arguments) != sorted(argv) else ""


def _fail(message: str, code: int) -> None:
    """Print an error in one line and exit."""
    print(f"fedtrees: {' '.join(message.split())}", file=sys.stderr)
    sys.exit(code)


if __name__ == "__main__":
    main()

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
import signal
import sys
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
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
from fedtrees.cli.commands import build_app
from fedtrees.cli.options import option
from fedtrees.core.errors import FedtreesError, Problem, Problems, check_known, describe_error
from fedtrees.core.registry import FormerNameWarning
from fedtrees.experiments.options import OUTPUT, print_notes

app = build_app()
_SHELLS = ("bash", "zsh", "fish")
_COMPLETE = "_FEDTREES_COMPLETE"


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
        bool,
        option(OUTPUT, "", "--version", help="Show the version.", callback=_version, is_eager=True),
    ] = False,
    completion: Annotated[
        str | None,
        option(
            OUTPUT,
            "SHELL",
            help="Print the script by which bash, zsh or fish completes commands and names.",
            callback=_completion,
            is_eager=True,
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
    if arguments is None:  # `timeout` and `docker stop` end a command like Ctrl-C does
        signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        with _former_names_as_notes():
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
        plain, text = f"{type(err).__name__}: {err}", describe_error(err)
        # The error of a plug-in names its line, which its author can correct.
        kind = "a bug; FEDTREES_DEBUG=1 shows where it happened"
        _fail(f"{plain} ({kind})" if text == plain else f"error in a plug-in: {text}", 1)
    if code == INTERRUPTED:  # typer returns this code, too
        # In a test, the process must not end.
        if arguments is None:
            _ends_with.append(code)
        _fail("interrupted", code)
    sys.exit(code if isinstance(code, int) else 0)


@contextmanager
def _former_names_as_notes() -> Iterator[None]:
    """Print a warning about a former name as a note, once per name and without a source path."""
    printed = set()
    with warnings.catch_warnings():
        warnings.simplefilter("always", FormerNameWarning)
        show_any_warning = warnings.showwarning

        def show(message: Warning | str, category: type[Warning], *place: Any, **more: Any) -> None:
            if not issubclass(category, FormerNameWarning):
                show_any_warning(message, category, *place, **more)
            elif str(message) not in printed:
                printed.add(str(message))
                print_notes([f"note: {message}"])

        warnings.showwarning = show
        yield


def _option_help(err: Exception, argv: Sequence[str]) -> str:
    """Return the help of an option that was given without its argument, or with one too many.

    The text is empty for any other usage error of the command line.
    """
    option: str = getattr(err, "option_name", "")
    if not option or type(err).__name__ != "BadOptionUsage":  # typer does not export this class
        return ""
    command: Any = typer.main.get_command(app)
    for word in command.renamed_command(argv):
        following = getattr(command, "commands", {}).get(word)
        if following is None:
            break
        command = following
    texts = [p.help for p in command.params if option in p.opts]
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

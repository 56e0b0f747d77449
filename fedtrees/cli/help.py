"""Print the help of commands in panels, and accept the spellings of the previous release.

Typer prints help with rich, too, but in five columns of which two are usually empty. At 80 columns
it then shortens names such as ``laplace-hist[epsilon=1,4]`` to an ellipsis. The classes below print
two columns instead, and never shorten a text.
"""

from __future__ import annotations

from collections.abc import Sequence
from difflib import get_close_matches
from typing import TYPE_CHECKING, Any, ClassVar

from typer.core import TyperCommand, TyperGroup

from fedtrees.experiments.options import OUTPUT, PANELS

if TYPE_CHECKING:
    from rich.console import Console

#: Option of the previous release -> its present name. They are removed in the next release.
OLD_OPTIONS = {"--out": "--output", "--html": "--report"}
_WIDEST = 100  # columns: longer lines are hard to read
_INDENT = "  "
_NAMES = 26  # columns for the names of options and commands
_ARGUMENTS, _COMMANDS, _OPTIONS, _EXAMPLES = "Arguments", "Commands", "Options", "Examples"


class HelpCommand(TyperCommand):
    """A command whose help is grouped in panels, with examples at the end."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Parse arguments after replacing old names of options."""
        return super().parse_args(ctx, renamed_options(self, args))

    def format_help(self, ctx: Any, formatter: Any) -> None:
        """Print the help. The formatter of the command line library is not used."""
        print_help(self, ctx)


class HelpGroup(TyperGroup):
    """A group of commands whose help is grouped in panels.

    Attributes
    ----------
    old_commands : dict of str to str
        Command of the previous release -> its present name, for example ``"measure"`` ->
        ``"privacy measure"``.
    """

    old_commands: ClassVar[dict[str, str]] = {}

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Parse arguments after replacing an old name of a command. Without any, show the help."""
        return super().parse_args(ctx, self.renamed_command(args) or ["--help"])

    def renamed_command(self, args: Sequence[str]) -> list[str]:
        """Return the arguments with the present name of the command.

        Two old commands have the name of a group today, ``capture`` and ``leaderboard``. Their name
        is only replaced if the next word is neither a command of the group nor similar to one.
        """
        old, *rest = args or [""]
        if old not in self.old_commands:
            return list(args)
        group = getattr(self.commands.get(old), "commands", None)
        if group is not None:
            names = [*group, "-h", "--help"]
            if not rest or get_close_matches(rest[0], names, cutoff=0.8):
                return list(args)
        return [*self.old_commands[old].split(), *rest]

    def format_help(self, ctx: Any, formatter: Any) -> None:
        """Print the help. The formatter of the command line library is not used."""
        print_help(self, ctx)


def commands_of(group: Any, path: str) -> dict[str, Any]:
    """Return all commands of a group and of its groups by their path, for example `path` "a b"."""
    commands = {path: group}
    for name, command in getattr(group, "commands", {}).items():
        commands |= commands_of(command, f"{path} {name}")
    return commands


def renamed_options(command: Any, args: Sequence[str]) -> list[str]:
    """Return arguments with the present names of options that the command has."""
    flags = {flag for item in command.params for flag in item.opts}
    arguments = []
    for word in args:
        name, equals, value = word.partition("=")
        new = OLD_OPTIONS.get(name)
        usable = new is not None and name not in flags and new in flags
        arguments.append(f"{new}{equals}{value}" if usable else word)
    return arguments


def print_help(command: Any, ctx: Any) -> None:
    """Print usage, description, panels and examples of a command."""
    from rich.console import Console
    from rich.text import Text

    out = Console(highlight=False, soft_wrap=False)
    out.width = min(out.width, _WIDEST)
    out.print(Text(f"Usage: {usage_of(command, ctx)}", style="bold"))
    for paragraph in (command.help or "").strip().split("\n\n"):
        out.print()
        for line in _wrap(out, " ".join(paragraph.split()), out.width):
            out.print(line, markup=False)
    panels = _command_panels(command, ctx) | _parameter_panels(command, ctx)
    for title, rows in panels.items():
        _print_panel(out, title, rows)
    if command.epilog:
        _print_examples(out, command.epilog)


def usage_of(command: Any, ctx: Any) -> str:
    """Return the usage of a command in a line. Optional arguments are in brackets."""
    arguments = (item for item in command.get_params(ctx) if item.param_type_name == "argument")
    names = [_name(item) if item.required else f"[{_name(item)}]" for item in arguments]
    if isinstance(command, TyperGroup):
        names = ["COMMAND ..."]
    return " ".join([ctx.command_path, *names, "[OPTIONS]"])


def _name(argument: Any) -> str:
    """Return the name of an argument in the help."""
    several = "..." if argument.nargs == -1 and not argument.metavar else ""
    return str(argument.metavar or argument.name.upper()) + several


def _wrap(out: Console, text: str, width: int) -> list[str]:
    """Return the lines of a text."""
    from rich.text import Text

    return [line.plain.rstrip() for line in Text(text).wrap(out, width)]


def _parameter_panels(command: Any, ctx: Any) -> dict[str, list[tuple[str, str]]]:
    """Return name and description of the parameters by panel, in the order of `PANELS`.

    A group has few options, which are listed together.
    """
    panels: dict[str, list[tuple[str, str]]] = {_ARGUMENTS: [], **{name: [] for name in PANELS}}
    if isinstance(command, TyperGroup):
        records = [item.get_help_record(ctx) for item in command.get_params(ctx)]
        return {_OPTIONS: [record for record in records if record is not None]}
    for item in command.get_params(ctx):
        is_argument = item.param_type_name == "argument"
        record = (_name(item), item.help or "") if is_argument else item.get_help_record(ctx)
        if record is not None:
            # The option --help has no declaration and thus no panel.
            panel = _ARGUMENTS if is_argument else item.rich_help_panel or OUTPUT
            panels[panel].append((record[0], record[1]))
    return {title: rows for title, rows in panels.items() if rows}


def _command_panels(command: Any, ctx: Any) -> dict[str, list[tuple[str, str]]]:
    """Return name and summary of the commands of a group by panel."""
    panels: dict[str, list[tuple[str, str]]] = {}
    names = command.list_commands(ctx) if isinstance(command, TyperGroup) else ()
    entries: list[Any] = [command.get_command(ctx, name) for name in names]
    # Commands come before groups.
    for name, entry in sorted(
        zip(names, entries, strict=True), key=lambda item: isinstance(item[1], TyperGroup)
    ):
        if not entry.hidden:
            summary = entry.short_help or entry.help or ""
            panels.setdefault(entry.rich_help_panel or _COMMANDS, []).append((name, summary))
    return panels


def _print_panel(out: Console, title: str, rows: Sequence[tuple[str, str]]) -> None:
    """Print a heading, and below it two columns: names and descriptions.

    A name that is longer than its column has a line of its own.
    """
    from rich.text import Text

    _print_heading(out, title)
    width = min(max(len(name) for name, _ in rows), _NAMES) + 2
    for name, description in rows:
        lines = _wrap(out, description, out.width - width - len(_INDENT))
        if len(name) > width - 2:
            out.print(Text(_INDENT + name, style="cyan"))
            name = ""
        for at, line in enumerate(lines):
            label = Text(_INDENT + (name if at == 0 else "").ljust(width), style="cyan")
            out.print(label.append(line, style="none"))


def _print_heading(out: Console, title: str) -> None:
    """Print the heading of a panel after an empty line."""
    from rich.rule import Rule
    from rich.text import Text

    out.print()
    out.print(Rule(Text(title, style="bold"), align="left", style="dim"))


def _print_examples(out: Console, epilog: str) -> None:
    """Print the examples of a command: lines with a comment or a command."""
    from rich.text import Text

    _print_heading(out, _EXAMPLES)
    for line in epilog.splitlines():
        out.print(Text(_INDENT + line, style="dim" if line.startswith("#") else "green"))

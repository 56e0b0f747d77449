"""Define the options that several commands share, and read the help texts from docstrings.

An option is declared once, as a parameter of its command: `option` states the panel of the help in
which it is listed, and the numpydoc section Parameters of the docstring describes it. Options that
several commands share have their help text here, and those of a benchmark are the fields of
`fedtrees.experiments.options.BenchOptions`.
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields
from enum import StrEnum
from textwrap import dedent
from typing import Annotated, Any

import typer

from fedtrees.core.errors import UsageError
from fedtrees.core.specs import split_names
from fedtrees.experiments.options import DATA, FEDERATION, OUTPUT, BenchOptions


class Format(StrEnum):
    """Format of the result of a command."""

    TABLE = "table"
    JSON = "json"

    @property
    def is_json(self) -> bool:
        """Whether the result is JSON, for other programs."""
        return self is Format.JSON


def names_of(kind: str) -> Callable[[str], list[str]]:
    """Return a function that completes names of a kind on the command line.

    In a list with commas, it completes the last name.
    """

    def completed(begun: str) -> list[str]:
        from fedtrees.core.registry import register

        head, comma, last = begun.rpartition(",")
        names = register.names(kind)
        if kind == "dataset":
            from fedtrees.data import catalogue

            names += catalogue.names()
        return [head + comma + name for name in names if name.startswith(last)]

    return completed


def option(panel: str, metavar: str, *flags: str, help: str | None = None, **settings: Any) -> Any:
    """Return an option for typer.

    Parameters
    ----------
    panel : str
        Panel of the help, one of `fedtrees.experiments.options.PANELS`.
    metavar : str
        Placeholder of the value in the help, "" for a switch.
    *flags : str
        Flags, if they differ from the name of the parameter.
    help : str, optional
        Description of an option that several commands share. By default, the docstring of the
        command describes the option.
    **settings
        Further settings of `typer.Option`.
    """
    return typer.Option(
        *flags, help=help, metavar=metavar or None, rich_help_panel=panel, **settings
    )


@dataclass(frozen=True)
class Documentation:
    """The parts of a numpydoc docstring that the help of a command shows.

    Attributes
    ----------
    description : str
        Everything before the first section.
    parameters : dict of str to str
        Descriptions in the section Parameters, or Attributes of a class, by name.
    examples : tuple of (str, str)
        Purpose and command of each entry of the section Examples. A purpose ends with two colons,
        and the command is indented below it.
    """

    description: str
    parameters: dict[str, str]
    examples: tuple[tuple[str, str], ...]


def read_docstring(documented: Any) -> Documentation:
    """Return the parts of the docstring of a function or a class."""
    description, *titled = re.split(r"\n\n(\w+)\n-+\n", inspect.getdoc(documented) or "")
    sections = dict(zip(titled[::2], titled[1::2], strict=True))
    parameters = sections.get("Parameters", sections.get("Attributes", ""))
    entries = re.findall(r"^(\w+) : .*\n((?: .*\n?)+)", parameters, re.MULTILINE)
    examples = re.findall(r"^(\S.*)::\n\n((?: .*\n?)+)", sections.get("Examples", ""), re.MULTILINE)
    return Documentation(
        description,
        {name: " ".join(text.split()) for name, text in entries},
        # A command of several lines can be typed as it is shown.
        tuple((purpose, dedent(text).strip().replace("\n", " \\\n")) for purpose, text in examples),
    )


def add_descriptions(command: Callable[..., None]) -> Callable[..., None]:
    """Add the descriptions of the docstring to the parameters of a command that have none."""
    descriptions = read_docstring(command).parameters
    signature = inspect.signature(command, eval_str=True)
    for name, parameter in signature.parameters.items():
        for info in getattr(parameter.annotation, "__metadata__", ()):
            info.help = info.help or descriptions.get(name)
    # typer reads the parameters of a command from its signature.
    command.__signature__ = signature  # type: ignore[attr-defined]
    return command


_BENCH = {item.name: item for item in fields(BenchOptions)}
_BENCH_DESCRIPTIONS = read_docstring(BenchOptions).parameters
#: Type for typer by the type of a field of `BenchOptions`.
_KINDS: dict[str, Any] = {
    "tuple[str, ...]": list[str] | None,
    "tuple[int, ...]": list[int] | None,
    "str": str,
    "str | None": str | None,
    "int | None": int | None,
    "float": float,
    "float | None": float | None,
    "bool": bool,
}


def bench_option(name: str) -> Any:
    """Return an option of a benchmark as an annotation for typer."""
    item = _BENCH[name]
    metadata = item.metadata
    completed = names_of(metadata["names"]) if metadata["names"] else None
    return Annotated[
        _KINDS[str(item.type)],
        option(
            metadata["panel"],
            metadata["metavar"],
            *metadata["flags"],
            help=_BENCH_DESCRIPTIONS.get(name),
            autocompletion=completed,
        ),
    ]


def with_bench_options(*names: str) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Return a decorator that adds options of a benchmark to a command with ``**options``.

    They are inserted before the keyword-only parameters of the command.
    """

    def taking(command: Callable[..., None]) -> Callable[..., None]:
        signature = inspect.signature(command, eval_str=True)
        kinds = inspect.Parameter
        before, after = (
            [
                p.replace(kind=kinds.KEYWORD_ONLY)
                for p in signature.parameters.values()
                if p.kind is kind
            ]
            for kind in (kinds.POSITIONAL_OR_KEYWORD, kinds.KEYWORD_ONLY)
        )
        added = [
            kinds(
                name, kinds.KEYWORD_ONLY, annotation=bench_option(name),
                default=None if _BENCH[name].default == () else _BENCH[name].default,
            )
            for name in names
        ]  # fmt: skip
        # typer reads the parameters of a command from its signature.
        command.__signature__ = signature.replace(parameters=[*before, *added, *after])  # type: ignore[attr-defined]
        return command

    return taking


Output = Annotated[
    Format, option(OUTPUT, "table|json", "--format", help="How to write the result.")
]
Plugins = bench_option("plugin")
Unprotected = bench_option("unprotected")
DataDir = bench_option("data_dir")
Defenses = bench_option("defense")
Sep = bench_option("sep")
Decimal = bench_option("decimal")
Missing = bench_option("missing")
Sheet = bench_option("sheet")
Margin = bench_option("margin")
Clients = Annotated[int, option(FEDERATION, "N", help="Number of clients.")]
Details = Annotated[
    bool, option(OUTPUT, "", "--details", help="Print all tables, not only what matters most.")
]
RunFolder = Annotated[str, typer.Argument(help="A run folder.")]
Protocols = Annotated[
    list[str] | None,
    option(
        FEDERATION, "PROTOCOL", "-p", "--protocol", help="Same as the argument.",
        autocompletion=names_of("protocol"),
    ),
]  # fmt: skip
Target = Annotated[
    str, option(DATA, "COLUMN", help="Target column of --truth; by default the last column.")
]


def one_protocol(argument: str | None, options: Sequence[str] | None) -> str | None:
    """Return the protocol that is given as an argument or by ``-p``, None without one.

    Raises `UsageError` if several are given.
    """
    values = [*([argument] if argument is not None else []), *(options or ())]
    if len(values) > 1:
        raise UsageError(f"give one protocol, not {len(values)}: {', '.join(values)}")
    return values[0] if values else None


def columns_of(texts: Sequence[str] | None) -> list[str]:
    """Return the column names of an option that can be repeated and can contain commas."""
    return split_names(texts or ())

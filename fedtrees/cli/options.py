"""Define the options that several commands share, and the declaration of an option.

Every option names the panel of the help in which it is listed, in one place: options of a benchmark
in `fedtrees.experiments.options`, all others where they are declared with `option`.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from dataclasses import fields
from enum import StrEnum
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


def option(panel: str, metavar: str, help: str, *flags: str, **settings: Any) -> Any:
    """Return an option for typer.

    Parameters
    ----------
    panel : str
        Panel of the help, one of `fedtrees.experiments.options.PANELS`.
    metavar : str
        Placeholder of the value in the help, "" for a switch.
    help : str
        Description.
    *flags : str
        Flags, if they differ from the name of the parameter.
    **settings
        Further settings of `typer.Option`.
    """
    return typer.Option(
        *flags, help=help, metavar=metavar or None, rich_help_panel=panel, **settings
    )


_BENCH = {item.name: item for item in fields(BenchOptions)}
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
            metadata["help"],
            *metadata["flags"],
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


Output = Annotated[Format, option(OUTPUT, "table|json", "How to write the result.", "--format")]
Plugins = bench_option("plugin")
Unprotected = bench_option("unprotected")
DataDir = bench_option("data_dir")
Defenses = bench_option("defense")
Sep = bench_option("sep")
Decimal = bench_option("decimal")
Missing = bench_option("missing")
Sheet = bench_option("sheet")
Margin = bench_option("margin")
Clients = Annotated[int, option(FEDERATION, "N", "Number of clients.")]
Details = Annotated[
    bool, option(OUTPUT, "", "Print all tables, not only what matters most.", "--details")
]
RunFolder = Annotated[str, typer.Argument(help="A run folder.")]
Protocols = Annotated[
    list[str] | None,
    option(
        FEDERATION, "PROTOCOL", "Same as the argument.", "-p", "--protocol",
        autocompletion=names_of("protocol"),
    ),
]  # fmt: skip
Target = Annotated[
    str, option(DATA, "COLUMN", "Target column of --truth; by default the last column.")
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

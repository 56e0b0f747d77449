"""Options that several commands share, each written once."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from dataclasses import fields
from enum import StrEnum
from typing import TYPE_CHECKING, Annotated, Any

import typer

from fedtrees.bench.options import BenchOptions
from fedtrees.core.errors import UsageError
from fedtrees.core.specs import split_names

if TYPE_CHECKING:
    from fedtrees.protocols.base import Protocol


class Format(StrEnum):
    """How a command writes its result."""

    TABLE = "table"
    JSON = "json"

    @property
    def is_json(self) -> bool:
        """Whether the result is for programs."""
        return self is Format.JSON


def names_of(kind: str) -> Callable[[str], list[str]]:
    """Return what completes names of a kind on the command line; after commas the last one."""

    def completed(begun: str) -> list[str]:
        from fedtrees.core.registry import register

        head, comma, last = begun.rpartition(",")
        known = register.names(kind)
        if kind == "dataset":
            from fedtrees.data import catalogue

            known += catalogue.names()
        return [head + comma + name for name in known if name.startswith(last)]

    return completed


_BENCH = {item.name: item for item in fields(BenchOptions)}
#: How a field of `BenchOptions` is read from a command line.
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


def option(name: str) -> Any:
    """Return how typer reads an option of a bench, for every command that has it."""
    item = _BENCH[name]
    told = item.metadata
    completed = names_of(told["names"]) if told["names"] else None
    return Annotated[
        _KINDS[str(item.type)],
        typer.Option(*told["flags"], help=told["help"], autocompletion=completed),
    ]


def takes(*names: str) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Give a command that takes ``**given`` options of a bench, before its keyword-only ones."""

    def taking(command: Callable[..., None]) -> Callable[..., None]:
        own = inspect.signature(command, eval_str=True)
        kinds = inspect.Parameter
        before, after = (
            [p.replace(kind=kinds.KEYWORD_ONLY) for p in own.parameters.values() if p.kind is kind]
            for kind in (kinds.POSITIONAL_OR_KEYWORD, kinds.KEYWORD_ONLY)
        )
        taken = [
            kinds(
                name, kinds.KEYWORD_ONLY, annotation=option(name),
                default=None if _BENCH[name].default == () else _BENCH[name].default,
            )
            for name in names
        ]  # fmt: skip
        command.__signature__ = own.replace(parameters=[*before, *taken, *after])  # type: ignore[attr-defined]
        return command

    return taking


Output = Annotated[Format, typer.Option("--format", help="How to write the result.")]
Plugins = option("plugin")
Unprotected = option("unprotected")
DataDir = option("data_dir")
Defenses = option("defense")
Sep = option("sep")
Decimal = option("decimal")
Missing = option("missing")
Sheet = option("sheet")
Margin = option("margin")
Clients = Annotated[int, typer.Option(help="Number of clients.")]
Details = Annotated[
    bool, typer.Option("--details", help="Print all tables, not only what matters most.")
]
RunFolder = Annotated[str, typer.Argument(help="A run folder.")]


def columns_of(texts: Sequence[str] | None) -> list[str]:
    """Return the column names of a repeated option with commas."""
    return split_names(texts or ())


def check_clients(clients: int) -> None:
    """Raise `UsageError` unless there is a client."""
    if clients < 1:
        raise UsageError(f"--clients {clients}: a federation needs at least one client")


def check_parties(protocol: Protocol, clients: int) -> None:
    """Raise `UsageError` where a protocol is left with one party, who has nobody to talk to."""
    if len(protocol.roles(clients)) < 2:
        raise UsageError(
            f"--clients {clients}: {protocol.name!r} would be one party that trains alone; give 2 "
            "or more (it counts all parties that hold data)"
        )

"""`python -m fedtrees.cli.reference`: write the options of every command into docs/reference/commands.md."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import typer

BEGIN, END = "<!-- options: python -m fedtrees.cli.reference -->\n", "<!-- end of options -->"


def options() -> str:
    """Return a table of arguments and options for every command, as Markdown."""
    from fedtrees.cli.main import app

    group: Any = typer.main.get_command(app)
    parts = [_of("fedtrees", group)]
    parts += [_of(f"fedtrees {name}", command) for name, command in group.commands.items()]
    return "\n".join(parts)


def _of(name: str, command: Any) -> str:
    lines = [f"### `{name}`", "", "| option | what it does |", "|---|---|"]
    for item in command.params:
        text = " ".join((getattr(item, "help", None) or "").split())
        if item.name != "help" and text:
            lines.append(f"| {_named(item)} | {_escaped(text)} |")
    return "\n".join([*lines, ""])


def _named(item: Any) -> str:
    if item.param_type_name == "argument":
        return f"`{item.metavar or item.name.upper()}`"
    return ", ".join(f"`{flag}`" for flag in item.opts)


def _escaped(text: str) -> str:
    return text.replace("|", r"\|").replace("<", "&lt;")


def renewed(page: str) -> str:
    """Return a page with the options of today between the two marks."""
    before, _, rest = page.partition(BEGIN)
    _, _, after = rest.partition(END)
    return f"{before}{BEGIN}\n{options()}\n{END}{after}"


def main(path: str) -> None:
    """Write the options into a page."""
    file = Path(path)
    file.write_text(renewed(file.read_text(encoding="utf-8")), encoding="utf-8")


if __name__ == "__main__":
    main(sys.argv[1] if len(sys.argv) > 1 else "docs/reference/commands.md")

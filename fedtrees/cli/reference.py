"""`python -m fedtrees.cli.reference`: write what is generated into pages of the documentation."""

from __future__ import annotations

import sys
from inspect import getdoc
from pathlib import Path
from typing import Any

import typer

from fedtrees.core.columns import OTHERS, Measure
from fedtrees.core.registry import register
from fedtrees.core.rows import COLUMNS

BEGIN, END = "<!-- made by: python -m fedtrees.cli.reference -->\n", "<!-- end -->"


def columns() -> str:
    """Return what stands in ``rows.csv``, as Markdown: its columns, and the keys of metrics."""
    lines = [f"| `{c.name}` | {c.meaning} |" for c in COLUMNS]
    parts = ["| column | holds |", "|---|---|", *lines]
    for name in register.names("metric"):
        metric: Any = register.get("metric", name)
        about = (getdoc(metric) or "").partition("\n")[0]
        parts += ["", f"## `{name}`", "", about, "", *_keys(metric.measures)]
    parts += ["", "## Models, costs, notes", "", *_keys(OTHERS), ""]
    return "\n".join(parts)


def _keys(measures: tuple[Measure, ...]) -> list[str]:
    head = ["| key | in words | unit | best | of whom |", "|---|---|---|---|---|"]
    for m in measures:
        key = f"`{m.key}`" + (f", by {m.part}" if m.part else "")
        best = "" if m.best is None else f"{m.best:g}"
        head.append(f"| {key} | {m.name} | {m.unit} | {best} | {m.klass} |")
    return head


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


#: Pages, and what is written into each between its two marks.
PAGES = {"reference/commands.md": options, "reference/columns.md": columns}


def renewed(name: str, page: str) -> str:
    """Return a page with what is generated today between the two marks."""
    before, _, rest = page.partition(BEGIN)
    _, _, after = rest.partition(END)
    return f"{before}{BEGIN}\n{PAGES[name]()}\n{END}{after}"


def main(folder: str = "docs") -> None:
    """Renew all pages."""
    for name in PAGES:
        file = Path(folder, name)
        file.write_text(renewed(name, file.read_text(encoding="utf-8")), encoding="utf-8")


if __name__ == "__main__":
    main(*sys.argv[1:])

"""`python -m fedtrees.cli.reference`: write what is generated into pages of the documentation."""

import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import typer

from fedtrees.core.columns import OTHERS, Measure
from fedtrees.core.registry import register
from fedtrees.core.rows import COLUMNS

BEGIN, END = "<!-- made by: python -m fedtrees.cli.reference -->\n", "<!-- end -->"


def columns() -> str:
    """Return what stands in ``rows.csv``, as Markdown: its columns, and the keys of metrics."""
    parts = ["\\\n".join(f"`{c.name}`: {c.meaning}" for c in COLUMNS), "", "## Keys", ""]
    for name in register.names("metric"):
        metric: Any = register.get("metric", name)
        parts.append(f"- **{name}**: {_keys(metric.measures)}")
    return "\n".join([*parts, f"- others: {_keys(OTHERS)}", ""])


def _keys(measures: tuple[Measure, ...]) -> str:
    alike: dict[str, list[str]] = {}
    for m in measures:
        best = "" if m.best in (None, 1) else f"best {m.best:g}"
        klass = "" if m.klass == "guess" else m.klass
        about = ", ".join(filter(None, (klass, m.unit, best)))
        key = f"`{m.key}`" + (f" by {m.part}" if m.part not in ("", m.key) else "")
        said = m.name.casefold().replace("-", " ") == m.key.replace("_", " ")
        said = said or m.key.endswith("_of")  # as the key before it, by parts
        alike.setdefault(about, []).append(key if said else f"{key} {m.name}")
    return "; ".join(f"{', '.join(keys)} ({about})" for about, keys in alike.items())


def options() -> str:
    """Return the arguments and options of every command, as Markdown; what several share, once."""
    from fedtrees.cli.main import app

    group: Any = typer.main.get_command(app)
    commands = {"fedtrees": group} | {f"fedtrees {n}": c for n, c in group.commands.items()}
    told = {name: dict(_told(command)) for name, command in commands.items()}
    times = Counter(item for found in told.values() for item in found.items())
    shared: dict[str, str] = {}
    for (named, text), count in times.items():
        if count > 1:  # of two meanings the first: the others stand with their commands
            shared.setdefault(named, text)
    parts = ["### Of several commands", "", *_list(shared), ""]
    for name, found in told.items():
        if set(found) <= {"`--format`"}:  # which every command has
            continue
        parts += [f"### `{name}`", ""]
        own = {named: text for named, text in found.items() if shared.get(named) != text}
        parts += [*_list(own), ""] if own else []
        also = [named for named in found if named not in own and named != "`--format`"]
        parts += [f"Also {', '.join(also)}.", ""] if also else []
    return "\n".join(parts)


def _told(command: Any) -> Iterator[tuple[str, str]]:
    for item in command.params:
        text = " ".join((getattr(item, "help", None) or "").split())
        if item.name != "help" and text:
            yield _named(item), text.replace("<", "&lt;")


def _list(told: dict[str, str]) -> list[str]:
    return [f"- {named}: {text}" for named, text in told.items()]


def _named(item: Any) -> str:
    if item.param_type_name == "argument":
        return f"`{item.metavar or item.name.upper()}`"
    return ", ".join(f"`{flag}`" for flag in item.opts)


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

"""`python -m fedtrees.cli.reference`: write the generated parts of the documentation."""

import sys
from argparse import ArgumentParser
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import typer

from fedtrees.cli.help import commands_of
from fedtrees.core.party import Behaviour, Party
from fedtrees.core.registry import register
from fedtrees.core.results import COLUMNS, CONTEXT, OTHERS, Measure
from fedtrees.core.secure_sum import ClientAggregator

_PLACES = {
    "rows": "## Columns of `rows.csv`",
    "contexts": "## Further columns of `contexts.csv`",
    "columns": "## Columns that follow from the key (`columns.csv`)",
}
API = "reference/api.md"
BEGIN, END = "<!-- made by: python -m fedtrees.cli.reference -->\n", "<!-- end -->"


def columns() -> str:
    """Return the description of the results as Markdown: the columns, and the keys of metrics."""
    parts = []
    for place, head in _PLACES.items():
        placed = (c for c in (CONTEXT, *COLUMNS) if c.place == place)
        parts += [head, "", "| Column | Meaning |", "|---|---|"]
        parts += [*(f"| `{c.name}` | {c.meaning} |" for c in placed), ""]
    parts += ["## Keys", "", "| Metric | Key | Meaning | Kind | Unit | Best value |"]
    parts += ["|---|---|---|---|---|---|"]
    for name in register.names("metric"):
        metric: Any = register.get("metric", name)
        parts += _key_rows(f"`{name}`", metric.measures)
    return "\n".join([*parts, *_key_rows("none", OTHERS), ""])


def _key_rows(metric: str, measures: tuple[Measure, ...]) -> list[str]:
    """Return one row of a Markdown table for each key."""
    rows = []
    for m in measures:
        meaning = m.name if m.part in ("", m.key) else f"{m.name}, for each {m.part}"
        best = "" if m.best is None else f"{m.best:g}"
        rows.append(f"| {metric} | `{m.key}` | {meaning} | {m.klass} | {m.unit} | {best} |")
    return rows


def options() -> str:
    """Return the arguments and options of every command as Markdown.

    Shared ones are listed once.
    """
    from fedtrees.cli.main import app

    group: Any = typer.main.get_command(app)
    commands = commands_of(group, "fedtrees")
    by_command = {name: dict(_list_parameters(command)) for name, command in commands.items()}
    times = Counter(
        item for command_options in by_command.values() for item in command_options.items()
    )
    shared: dict[str, str] = {}
    for (named, text), count in times.items():
        # Of two meanings the first is shared, and the second is listed with its command.
        if count > 1:
            shared.setdefault(named, text)
    parts = ["### Of several commands", "", *_as_markdown_list(shared), ""]
    for name, options_here in by_command.items():
        # Every command has this option.
        if set(options_here) <= {"`--format`"}:
            continue
        parts += [f"### `{name}`", ""]
        specific = {
            named: text for named, text in options_here.items() if shared.get(named) != text
        }
        parts += [*_as_markdown_list(specific), ""] if specific else []
        also = [named for named in options_here if named not in specific and named != "`--format`"]
        parts += [f"Also {', '.join(also)}.", ""] if also else []
    return "\n".join(parts)


def _list_parameters(command: Any) -> Iterator[tuple[str, str]]:
    """Yield name and help of each parameter of a command."""
    for item in command.params:
        text = " ".join((getattr(item, "help", None) or "").split())
        if item.name != "help" and text:
            yield _parameter_name(item), text.replace("<", "&lt;")


def _as_markdown_list(parameters: dict[str, str]) -> list[str]:
    """Return parameters as a Markdown list."""
    return [f"- {named}: {text}" for named, text in parameters.items()]


def _parameter_name(item: Any) -> str:
    """Return the name of a parameter as it appears in the documentation."""
    if item.param_type_name == "argument":
        return f"`{item.metavar or item.name.upper()}`"
    return ", ".join(f"`{flag}`" for flag in item.opts)


def senders() -> str:
    """Return the fields of messages that receiving parties check, as a Markdown table.

    Rows come from the rules that handlers state (`fedtrees.core.party.handles`), and from those of
    the parties of a secure sum (`fedtrees.core.secure_sum.ClientAggregator.rules`).
    """
    lines = ["| message | fields | checked by | rule |", "|---|---|---|---|"]
    fields_by_rule: dict[tuple[str, str, str], list[str]] = {}
    for checks, message, field, rule in sorted(stated_rules()):
        fields_by_rule.setdefault((message, checks, rule), []).append(f"`{field}`")
    for (message, checks, rule), fields in sorted(fields_by_rule.items()):
        lines.append(f"| `{message}` | {', '.join(fields)} | {checks} | {rule} |")
    return "\n".join(lines)


def stated_rules() -> Iterator[tuple[str, str, str, str]]:
    """Yield checking party, message, field and rule for all protocols and secure sums.

    A rule is listed with the most general type of party that states it.
    """
    for party in receiving_parties():
        for member in vars(party).values():
            if hasattr(member, "_handles"):
                for field, rule in member._rules.items():
                    yield _checking(party), member._handles.__name__, field, rule
    for client_side in _below(ClientAggregator):
        for message, rules in vars(client_side).get("rules", {}).items():
            for field, rule in rules.items():
                yield _checking(client_side), message.__name__, field, rule


def receiving_parties() -> list[type[Party]]:
    """Return the types of honest parties of all registered protocols."""
    for name in register.names("protocol"):
        register.get("protocol", name)
    for name in register.names("defense"):
        register.get("defense", name)
    parties = (p for p in _below(Party) if p.__module__.startswith("fedtrees.protocols."))
    return [p for p in parties if not issubclass(p, Behaviour)]


def _below(kind: type[Any]) -> list[type[Any]]:
    """Return all direct and indirect subclasses, sorted by name."""
    subclasses: dict[str, type[Any]] = {}
    queue = list(kind.__subclasses__())
    while queue:
        one = queue.pop()
        subclasses[f"{one.__name__} {one.__module__}"] = one
        queue += one.__subclasses__()
    return [subclasses[name] for name in sorted(subclasses)]


def _checking(kind: type[Any]) -> str:
    """Return the name of a type of party as it appears in the table."""
    return f"`{kind.__name__}`"


#: Functions that generate the part of each page between its two marks.
PAGES = {
    "reference/commands.md": options,
    "reference/columns.md": columns,
    "explanation/active.md": senders,
}


def renewed(name: str, page: str) -> str:
    """Return a page with its generated part replaced."""
    before, _, rest = page.partition(BEGIN)
    _, _, after = rest.partition(END)
    return f"{before}{BEGIN}\n{PAGES[name]()}\n{END}{after}"


def with_descriptions(page: str) -> str:
    """Return the page of the API with the first line of its docstring after each public name.

    Sphinx reads only the first word of such a line and shows the description itself. The text is
    for readers of the file.
    """
    import fedtrees

    lines = []
    inside = False
    for line in page.splitlines():
        inside = (inside or "autosummary::" in line) and not line.startswith("```")
        name = line.split()[0] if line[:3].isspace() and line.split() else ""
        if inside and hasattr(fedtrees, name):
            first_line = (getattr(fedtrees, name).__doc__ or "").strip().partition("\n")[0]
            line = f"   {name}  {first_line}".rstrip()
        lines.append(line)
    return "\n".join(lines) + "\n"


def main(folder: str = "docs") -> None:
    """Write the generated parts of all pages."""
    api = Path(folder, API)
    api.write_text(with_descriptions(api.read_text(encoding="utf-8")), encoding="utf-8")
    for name in PAGES:
        file = Path(folder, name)
        file.write_text(renewed(name, file.read_text(encoding="utf-8")), encoding="utf-8")


def folder_of(arguments: Sequence[str]) -> str:
    """Return the folder that the command line names."""
    parser = ArgumentParser(
        prog="python -m fedtrees.cli.reference",
        description="Write the generated parts of the documentation.",
    )
    parser.add_argument("folder", nargs="?", default="docs", help="folder of the documentation")
    return str(parser.parse_args(arguments).folder)


if __name__ == "__main__":
    main(folder_of(sys.argv[1:]))

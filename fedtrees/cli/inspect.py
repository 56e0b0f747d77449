"""The commands that show or check something: `list`, `check`, `fetch` and `doctor`."""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from fedtrees.cli.options import DataDir, Format, Output, Plugins, Unprotected
from fedtrees.core.errors import UsageError, did_you_mean
from fedtrees.core.specs import Composed, parse_grid
from fedtrees.experiments.fact_cache import recall
from fedtrees.experiments.options import load_plugins

if TYPE_CHECKING:
    from rich.console import Console
    from rich.table import Table as TextTable

_KINDS = (
    "protocols", "defenses", "attacks", "behaviours", "metrics", "threats", "partitions",
    "datasets", "suites",
)  # fmt: skip
_WHICH = ("index", "count")  # parameters that only make sense for several parties of one role
# A name, or any cell, is never broken up to this number of characters.
_NAME, _SHORT = 24, 12
_CHECKED = {
    "protocols": "protocol", "defenses": "defense", "attacks": "attack", "behaviours": "behaviour",
    "metrics": "metric",
}  # fmt: skip


def console() -> Console:
    """Return a console for stdout, with 160 columns if the output is not a terminal."""
    from rich.console import Console

    out = Console(highlight=False)
    wide = None if "COLUMNS" in os.environ else 160
    return out if out.is_terminal else Console(highlight=False, width=wide)


def text_table(
    title: str, columns: Sequence[str], rows: Iterable[Sequence[str]], **options: Any
) -> TextTable:
    """Return a table with a bold title, in which only long cells are wrapped.

    Parameters
    ----------
    title : str
        Title above the table.
    columns : sequence of str
        Header.
    rows : iterable of sequence of str
        Cells. They are not interpreted as markup.
    **options
        Options of `rich.table.Table`.
    """
    from rich.markup import escape
    from rich.table import Table as TextTable

    table = TextTable(title=escape(title), title_justify="left", title_style="bold", **options)
    lines = [list(row) for row in rows]
    for k, column in enumerate(columns):
        longest = max(len(cell) for cell in (column, *(line[k] for line in lines)))
        unbroken = longest <= (_NAME if k == 0 else _SHORT)
        table.add_column(escape(column), overflow="fold", no_wrap=unbroken)
    for row in lines:
        table.add_row(*map(escape, row))
    return table


def list_(
    kind: Annotated[str, typer.Argument(help=f"{', '.join(_KINDS)}, or all.")] = "all",
    plugin: Plugins = None,
    unprotected: Unprotected = False,
    format: Output = Format.TABLE,
) -> None:
    """List the names that can be used on the command line, with one line about each."""
    load_plugins(plugin, unprotected)
    if kind != "all" and kind not in _KINDS:
        raise UsageError(f"unknown kind {kind!r}{did_you_mean(kind, [*_KINDS, 'all'])}")
    kinds = list(_KINDS) if kind == "all" else [kind]
    entries = recall(["list", kinds], lambda: {k: _entries(k) for k in kinds})
    if format.is_json:
        typer.echo(json.dumps(entries, indent=1))
        return
    for title, rows in entries.items():
        cells = [(row["name"], row["parameters"], row["about"]) for row in rows]
        console().print(text_table(title, ("name", "parameters", ""), cells, box=None))
        console().print()


def _entries(kind: str) -> list[dict[str, str]]:
    """Return name, parameters and description of all entries of a kind."""
    from fedtrees.core.registry import register

    if kind == "suites":
        from fedtrees.experiments.suite import Suite, bundled_suites

        suites = [Suite.load(name) for name in sorted(bundled_suites())]
        return [{"name": s.name, "parameters": "", "about": s.description} for s in suites]
    if kind == "datasets":
        from fedtrees.data import catalogue

        elsewhere = "from the data directory (fedtrees fetch)"
        entries = {n: "bundled" if n in catalogue.BUNDLED else elsewhere for n in catalogue.names()}
        entries |= dict.fromkeys(register.names("dataset"), "plugin")
        return [{"name": n, "parameters": "", "about": text} for n, text in entries.items()]
    if kind == "threats":
        return _threats()
    if kind == "partitions":
        from fedtrees.data.column_partition import BY_FILE, COLUMN_PARTITIONS
        from fedtrees.data.partition import PARTITIONS

        kinds = {"rows": PARTITIONS, "columns": COLUMN_PARTITIONS}
        entries = [_partition(of, *item) for of, makers in kinds.items() for item in makers.items()]
        joined = "Columns: one CSV file per party, joined by a column: --csv a.csv,b.csv --id NAME."
        return [*entries, {"name": BY_FILE, "parameters": "", "about": joined}]
    kind = kind.removesuffix("s")
    parameters = {name: _parameters(register.get(kind, name)) for name in register.names(kind)}
    if kind == "behaviour":
        parameters = dict.fromkeys(parameters, "")  # a protocol creates instances of a behaviour
    return [{"name": n, "parameters": p, "about": about(kind, n)} for n, p in parameters.items()]


def _threats() -> list[dict[str, str]]:
    """Return the roles of adversaries, the parameters of their threats, and their protocols."""
    from fedtrees.core.registry import register
    from fedtrees.core.specs import Spec
    from fedtrees.core.threat import PARAMETERS
    from fedtrees.experiments.suite import roles_of

    protocols: dict[str, list[str]] = {}
    several = set()
    for name in register.names("protocol"):
        roles = list(roles_of(register.make("protocol", Spec(name)), 3).values())
        several |= {role for role in roles if roles.count(role) > 1}
        for role in dict.fromkeys(roles):
            protocols.setdefault(role, []).append(name)
    return [
        {
            "name": role,
            "parameters": ", ".join(p for p in PARAMETERS if role in several or p not in _WHICH),
            "about": f"in {', '.join(names)}",
        }
        for role, names in protocols.items()
    ]


def _partition(of: str, name: str, maker: Any) -> dict[str, str]:
    """Return the description of a partition, with its parameters."""
    from inspect import getdoc, signature

    keys = [p for p in signature(maker).parameters.values() if p.kind is p.KEYWORD_ONLY]
    summary = (getdoc(maker) or "").partition("\n\n")[0]
    parameters = ", ".join(f"{p.name}={p.default}" for p in keys)
    text = f"{of.capitalize()}: {summary[:1].lower()}{' '.join(summary[1:].split())}"
    return {"name": name, "parameters": parameters, "about": text}


def about(kind: str, name: str) -> str:
    """Return the first line of the docstring of a plug-in."""
    from inspect import getdoc

    from fedtrees.core.registry import register

    return (getdoc(register.get(kind, name)) or "").split("\n")[0]


def _parameters(maker: Any) -> str:
    """Return the parameters of a plug-in with their defaults."""
    from inspect import signature

    texts = []
    for p in signature(maker).parameters.values():
        texts.append(p.name if p.default is p.empty else f"{p.name}={p.default}")
    return ", ".join(texts)


def check(
    files: Annotated[
        list[str], typer.Argument(help="Plugin files, or names of built-ins.", metavar="FILE...")
    ],
    unprotected: Unprotected = False,
    format: Output = Format.TABLE,
) -> None:
    """Check that protocols, defenses, attacks, behaviours and metrics conform to their rules."""
    from fedtrees.conformance.checks import check as run_checks
    from fedtrees.experiments.environment import check_extras

    targets = [target for file in files for target in _targets(file, unprotected)]
    for kind, name in targets:
        if kind == "protocol":
            check_extras(parse_grid(name)[0], Composed())
        elif kind == "defense":
            check_extras(None, Composed((parse_grid(name)[0],)))
    results = [
        {"kind": kind, "name": name, "rule": f.rule, "kept": f.holds, "detail": f.detail}
        for kind, name in targets
        for f in run_checks(kind, parse_grid(name)[0])
    ]
    if format.is_json:
        typer.echo(json.dumps(results, indent=1))
    else:
        for r in results:
            mark = "ok  " if r["kept"] else "FAIL"
            detail = f"  ({r['detail']})" if r["detail"] else ""
            typer.echo(f"{mark} {r['kind']} {r['name']}: {r['rule']}{detail}")
    if not all(r["kept"] for r in results):
        raise typer.Exit(4)


def _targets(file: str, unprotected: bool) -> list[tuple[str, str]]:
    """Return (kind, specification) of everything that a file registers, or of a built-in name."""
    from fedtrees.core.registry import register

    kinds = _CHECKED.values()
    if Path(file).suffix == ".py" or Path(file).is_file():
        before = {(k, n) for k in kinds for n in register.names(k)}
        load_plugins([file], unprotected)
        added = [(k, n) for k in kinds for n in register.names(k) if (k, n) not in before]
        if not added:
            raise UsageError(
                f"{file} registers no new protocol, defense, attack, behaviour or metric"
            )
        return added
    name = parse_grid(file)[0].name
    matches = [(k, file) for k in kinds if name in register.names(k)]
    if not matches:
        names = [n for k in kinds for n in register.names(k)]
        raise UsageError(f"nothing is called {name!r}{did_you_mean(name, names)}")
    return matches


def fetch(
    name: Annotated[str, typer.Argument(help="A dataset that is not bundled.")],
    data_dir: DataDir = None,
    url: Annotated[str | None, typer.Option(help="Take the file from here instead.")] = None,
    format: Output = Format.TABLE,
) -> None:
    """Download a dataset and verify its checksum. No other command downloads anything."""
    from fedtrees.data.downloads import data_directory
    from fedtrees.data.downloads import fetch as download

    path = download(name, data_directory(data_dir), url)
    done = {"name": name, "file": str(path)}
    typer.echo(json.dumps(done) if format.is_json else f"{name}  {path}")


def doctor(format: Output = Format.TABLE) -> None:
    """Check the installation: versions, kernels, data folder, browser, restrictions of attacks."""
    import platform

    from fedtrees.core.supported import TESTED, untested
    from fedtrees.data.downloads import data_directory
    from fedtrees.experiments.environment import (
        OPTIONAL,
        browser,
        environment,
        installed,
        library_versions,
    )
    from fedtrees.isolation.disk import version
    from fedtrees.isolation.process import attacks

    refused = attacks().refused()
    versions = library_versions()
    missing = [n for n, v in versions.items() if v is None and n not in OPTIONAL]
    facts = {
        **environment(),
        "missing": missing,
        "untested": [text for name in TESTED if (text := untested(name, installed(name) or ""))],
        "optional": {n: versions[n] for n in OPTIONAL},
        "data_directory": str(data_directory(None)),
        "browser": browser(),
        "kernels": _kernels_work(),
        "release": platform.release(),
        "landlock": str(version() or "none"),
        "attacks_cannot": [name for name, is_refused in refused.items() if is_refused],
        "attacks_can": [name for name, is_refused in refused.items() if not is_refused],
    }
    if format.is_json:
        typer.echo(json.dumps(facts, indent=1))
    else:
        for key, value in facts.items():
            if isinstance(value, dict):
                value = [f"{k} {v}" for k, v in value.items()]
            shown = ", ".join(value) if isinstance(value, list) else value
            typer.echo(f"{key:15} {shown or '-'}")
    if missing or facts["kernels"] != "ok":
        raise typer.Exit(1)


def _kernels_work() -> str:
    """Bin four values with the compiled kernel, to check that it compiles and is correct."""
    import numpy as np

    from fedtrees.trees.binning import bin_rows
    from fedtrees.trees.cut_points import quantile_cuts

    X = np.array([[0.0], [1.0], [2.0], [3.0]], dtype=np.float32)
    try:
        codes = bin_rows(X, quantile_cuts(X, 4)).codes[:, 0].tolist()
    except Exception as err:
        return f"{type(err).__name__}: {err}"
    return "ok" if codes == [0, 1, 2, 3] else f"wrong bins {codes}"

"""The commands that look rather than run: list, check, fetch, doctor."""

from __future__ import annotations

import inspect as reflection
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import typer
from rich.console import Console
from rich.table import Table as TextTable

from fedtrees.core.errors import UsageError, did_you_mean
from fedtrees.core.registry import load_plugin, register
from fedtrees.core.specs import parse_grid

_KINDS = {
    "protocols": "protocol",
    "defenses": "defense",
    "attacks": "attack",
    "datasets": "dataset",
    "suites": "suite",
}


def console() -> Console:
    """Return a console for stdout; wide enough for tables where the output is no terminal."""
    out = Console(highlight=False)
    return out if out.is_terminal else Console(highlight=False, width=160)


def list_names(kind: str, plugins: Sequence[str], as_json: bool) -> None:
    """Print names with the first line of what they are, and their parameters."""
    for plugin in plugins:
        load_plugin(plugin)
    if kind != "all" and kind not in _KINDS:
        raise UsageError(f"unknown kind {kind!r}{did_you_mean(kind, [*_KINDS, 'all'])}")
    entries = {k: _entries(k) for k in (_KINDS if kind == "all" else [kind])}
    if as_json:
        typer.echo(json.dumps(entries, indent=1))
        return
    for title, rows in entries.items():
        table = TextTable(title=title, title_justify="left", title_style="bold", box=None)
        for column in ("name", "parameters", ""):
            table.add_column(column, overflow="fold")
        for row in rows:
            table.add_row(row["name"], row["parameters"], row["about"])
        console().print(table)
        console().print()


def _entries(kind: str) -> list[dict[str, str]]:
    if kind == "suites":
        from fedtrees.bench.suite import Suite, bundled_suites

        suites = [Suite.load(name) for name in sorted(bundled_suites())]
        return [{"name": s.name, "parameters": "", "about": s.description} for s in suites]
    if kind == "datasets":
        from fedtrees.data import catalogue

        return [
            {
                "name": n,
                "parameters": "",
                "about": "bundled"
                if n in catalogue.BUNDLED
                else "from the data directory (fedtrees fetch)",
            }
            for n in catalogue.names()
        ] + [{"name": n, "parameters": "", "about": "plugin"} for n in register.names("dataset")]
    rows = []
    for name in register.names(_KINDS[kind]):
        maker = register.get(_KINDS[kind], name)
        about = (reflection.getdoc(maker) or "").split("\n")[0]
        rows.append({"name": name, "parameters": _parameters(maker), "about": about})
    return rows


def _parameters(maker: Any) -> str:
    texts = []
    for p in reflection.signature(maker).parameters.values():
        texts.append(p.name if p.default is p.empty else f"{p.name}={p.default}")
    return ", ".join(texts)


def check(file: str, as_json: bool) -> bool:
    """Check a plugin file or a built-in; return whether every rule was kept."""
    from fedtrees.bench.conformance import check as run_checks

    targets = _targets(file)
    results = [
        {"kind": kind, "name": name, "rule": f.rule, "kept": f.kept, "detail": f.detail}
        for kind, name in targets
        for f in run_checks(kind, parse_grid(name)[0])
    ]
    if as_json:
        typer.echo(json.dumps(results, indent=1))
    else:
        for r in results:
            mark = "ok  " if r["kept"] else "FAIL"
            detail = f"  ({r['detail']})" if r["detail"] else ""
            typer.echo(f"{mark} {r['kind']} {r['name']}: {r['rule']}{detail}")
    return all(r["kept"] for r in results)


def _targets(file: str) -> list[tuple[str, str]]:
    """Return (kind, spec) of everything a file registers, or of a built-in of that name."""
    kinds = ("protocol", "defense", "attack")
    if Path(file).suffix == ".py" or Path(file).is_file():
        before = {(k, n) for k in kinds for n in register.names(k)}
        load_plugin(file)
        added = [(k, n) for k in kinds for n in register.names(k) if (k, n) not in before]
        if not added:
            raise UsageError(f"{file} registers no new protocol, defense or attack")
        return added
    name = parse_grid(file)[0].name
    found = [(k, file) for k in kinds if name in register.names(k)]
    if not found:
        known = [n for k in kinds for n in register.names(k)]
        raise UsageError(f"nothing is called {name!r}{did_you_mean(name, known)}")
    return found


def fetch(name: str, data_dir: str | None, url: str | None, as_json: bool) -> None:
    """Download a dataset into the data directory."""
    from fedtrees.data.fetch import fetch as download
    from fedtrees.data.sources import data_directory

    folder = data_directory(data_dir)
    if folder is None:
        raise UsageError("where to? give --data-dir FOLDER or set FEDTREES_DATA")
    path = download(name, folder, url)
    typer.echo(json.dumps({"name": name, "file": str(path)}) if as_json else f"{name}  {path}")


def doctor(as_json: bool) -> bool:
    """Print what the installation looks like; return whether it can run."""
    from fedtrees.bench.environment import OPTIONAL, browser, environment, library_versions
    from fedtrees.data.sources import data_directory

    found = library_versions()
    missing = [n for n, v in found.items() if v is None and n not in OPTIONAL]
    facts = {
        **environment(),
        "missing": missing,
        "optional": {n: found[n] for n in OPTIONAL},
        "data_directory": str(data_directory(None) or ""),
        "browser": browser(),
        "kernels": _kernels_work(),
    }
    if as_json:
        typer.echo(json.dumps(facts, indent=1))
    else:
        for key, value in facts.items():
            shown = (
                ", ".join(f"{k} {v}" for k, v in value.items())
                if isinstance(value, dict)
                else ", ".join(value)
                if isinstance(value, list)
                else value
            )
            typer.echo(f"{key:15} {shown if shown not in ('', None) else '-'}")
    return not missing and facts["kernels"] == "ok"


def _kernels_work() -> str:
    """Bin four values with the compiled kernel: it compiles, caches and answers rightly."""
    import numpy as np

    from fedtrees.trees.binning import bin_rows
    from fedtrees.trees.sketch import quantile_cuts

    X = np.array([[0.0], [1.0], [2.0], [3.0]], dtype=np.float32)
    try:
        codes = bin_rows(X, quantile_cuts(X, 4)).codes[:, 0].tolist()
    except Exception as err:
        return f"{type(err).__name__}: {err}"
    return "ok" if codes == [0, 1, 2, 3] else f"wrong bins {codes}"

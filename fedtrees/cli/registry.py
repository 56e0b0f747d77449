"""The `list`, `check`, `new` and `doctor` commands: names, plug-ins and the installation."""

from __future__ import annotations

import keyword
import re
from collections.abc import Iterator, Mapping, Sequence
from importlib import resources
from pathlib import Path
from typing import Annotated, Any

import typer

from fedtrees.cli.console import console, emit, text_table
from fedtrees.cli.options import Format, Output, Plugins, Unprotected, option
from fedtrees.core.errors import UsageError, check_known, did_you_mean, listed, many
from fedtrees.core.specs import Composed, parse_grid
from fedtrees.experiments.environment import recall
from fedtrees.experiments.options import OUTPUT, load_plugins

_KINDS = (
    "protocols", "defenses", "attacks", "behaviours", "metrics", "threats", "partitions",
    "datasets", "suites",
)  # fmt: skip
_WHICH = ("index", "count")  # parameters that only make sense for several parties of one role
_CHECKED = {
    "protocols": "protocol", "defenses": "defense", "attacks": "attack", "behaviours": "behaviour",
    "metrics": "metric",
}  # fmt: skip


def list_(
    kind: Annotated[str, typer.Argument(help=f"{', '.join(_KINDS)}, or all.")] = "all",
    plugin: Plugins = None,
    unprotected: Unprotected = False,
    format: Output = Format.TABLE,
) -> None:
    """List the names that can be used on the command line, with one line about each.

    Examples
    --------
    All defenses with their parameters::

        fedtrees list defenses

    The attacks, as JSON for a program::

        fedtrees list attacks --format json
    """
    load_plugins(plugin, unprotected)
    if kind != "all" and kind not in _KINDS:
        raise UsageError(f"unknown kind {kind!r}{did_you_mean(kind, [*_KINDS, 'all'])}")
    kinds = list(_KINDS) if kind == "all" else [kind]
    entries = recall(["list", kinds], lambda: {k: _entries(k) for k in kinds})
    emit(entries, format, lambda: _print_entries(entries))


def _print_entries(entries: Mapping[str, Sequence[Mapping[str, str]]]) -> None:
    """Print a table of the names of each kind."""
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

        elsewhere = "from the data directory (fedtrees data fetch)"
        entries = {n: "bundled" if n in catalogue.BUNDLED else elsewhere for n in catalogue.names()}
        entries |= dict.fromkeys(register.names("dataset"), "plugin")
        return [{"name": n, "parameters": "", "about": text} for n, text in entries.items()]
    if kind == "threats":
        return _threats()
    if kind == "partitions":
        from fedtrees.data.partition import BY_FILE, COLUMN_PARTITIONS, PARTITIONS

        by_name: list[tuple[str, Mapping[str, Any]]] = [
            ("rows", PARTITIONS),
            ("columns", COLUMN_PARTITIONS),
        ]
        partitions = [_partition(of, *item) for of, makers in by_name for item in makers.items()]
        joined = "Columns: one CSV file per party, joined by a column: --csv a.csv,b.csv --id NAME."
        return [*partitions, {"name": BY_FILE, "parameters": "", "about": joined}]
    kind = kind.removesuffix("s")
    parameters = {name: _parameters(register.get(kind, name)) for name in register.names(kind)}
    if kind == "behaviour":
        parameters = dict.fromkeys(parameters, "")  # a protocol creates instances of a behaviour
    return [
        {"name": n, "parameters": p, "about": register.summary(kind, n)}
        for n, p in parameters.items()
    ]


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


def _parameters(maker: Any) -> str:
    """Return the parameters of a plug-in with their defaults."""
    from inspect import signature

    texts = []
    for p in signature(maker).parameters.values():
        texts.append(p.name if p.default is p.empty else f"{p.name}={p.default}")
    return ", ".join(texts)


def check(
    files: Annotated[list[str], typer.Argument(metavar="FILE...")],
    unprotected: Unprotected = False,
    format: Output = Format.TABLE,
) -> None:
    """Check that protocols, defenses, attacks, behaviours and metrics conform to their rules.

    Parameters
    ----------
    files : sequence of str
        Plugin files, or names of built-ins.

    Examples
    --------
    A file of yours::

        fedtrees plugin check my_defense.py

    Names of built-in ones::

        fedtrees plugin check timberstrike split-only
    """
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
    emit(results, format, "\n".join(_describe_checks(results)))
    if not all(r["kept"] for r in results):
        raise typer.Exit(4)


def _describe_checks(results: Sequence[Mapping[str, Any]]) -> Iterator[str]:
    """Yield one line per rule that `check` tested, the violated ones last, and then a summary.

    A rule that was tested with several protocols in the same way has one line.
    """
    from fedtrees.core.registry import register

    protocols = register.names("protocol")
    plugins: dict[str, dict[str, None]] = {}  # protocols by plug-in
    lines: dict[tuple[bool, str, str, str], list[str]] = {}
    for result in results:
        plugin = f"{result['kind']} {result['name']}"
        protocol, colon, rule = result["rule"].partition(":")
        if not colon or protocol not in protocols:
            protocol, rule = "", result["rule"]
        rule = rule.strip()
        line = (bool(result["kept"]), plugin, rule, result["detail"])
        lines.setdefault(line, []).append(protocol)
        plugins.setdefault(plugin, {}).update({protocol: None} if protocol else {})
    for (passed, plugin, rule, detail), names in sorted(lines.items(), key=lambda x: not x[0][0]):
        mark, place = "ok  " if passed else "FAIL", f", with {listed(names)}" * any(names)
        yield f"{mark} {plugin}: {rule}{place}" + f"  ({detail})" * bool(detail)
    for plugin, tested_with in plugins.items():
        rules = {rule for _, other, rule, _ in lines if other == plugin}
        failed = {rule for passed, other, rule, _ in lines if other == plugin and not passed}
        place = f", tested with {listed([*tested_with])}" * bool(tested_with)
        yield f"\n{plugin}: {len(rules) - len(failed)} of {many(len(rules), 'rule')} kept{place}"
        if failed:
            yield "To correct it, read the lines FAIL: the text in brackets states the reason."


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


def doctor(format: Output = Format.TABLE) -> None:
    """Check the installation: versions, kernels, data folder, browser, restrictions of attacks.

    Examples
    --------
    Versions, kernels, and restrictions of attacks::

        fedtrees doctor

    The same facts for a bug report::

        fedtrees doctor --format json
    """
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
    from fedtrees.isolation.process import attack_process
    from fedtrees.isolation.sandbox import landlock_version as version

    refused = attack_process().refused()
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
    emit(facts, format, "\n".join(f"{key:15} {_join(value)}" for key, value in facts.items()))
    if missing or facts["kernels"] != "ok":
        raise typer.Exit(1)


def _join(value: Any) -> str:
    """Write one fact about the installation in a line."""
    if isinstance(value, dict):
        value = [f"{k} {v}" for k, v in value.items()]
    return str(", ".join(value) if isinstance(value, list) else value or "") or "-"


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


#: Name of the plug-in in the template of its kind.
TEMPLATES = {
    "protocol": "rotating-features",
    "defense": "rounded-statistics",
    "attack": "leaf-statistics",
    "behaviour": "repeating",
    "metric": "column-means",
}

_FEDERATION = "federation"


def new(
    kind: Annotated[str, typer.Argument()],
    name: Annotated[str, typer.Argument()],
    out: Annotated[str | None, option(OUTPUT, "PATH", "-o", "--output")] = None,
    format: Output = Format.TABLE,
) -> None:
    """Write a file with a working protocol, defense, attack, behaviour or metric to start from.

    Parameters
    ----------
    kind : str
        protocol, defense, attack, behaviour or metric.
    name : str
        Its name, such as my-defense.
    out : str, optional
        File to write (default: ./NAME.py).

    Examples
    --------
    A defense in my_defense.py::

        fedtrees plugin new defense my-defense

    An attack in a file of your choice::

        fedtrees plugin new attack mine -o idea.py
    """
    from fedtrees.core.files import write_whole
    from fedtrees.core.registry import register

    # "federation" is the spelling of the previous release, before `federation new`.
    check_known("kind", kind, (*TEMPLATES, _FEDERATION))
    plain = name.replace("-", "_")
    if not re.fullmatch(r"[a-z][a-z0-9-]*", name) or keyword.iskeyword(plain):
        raise UsageError(
            f"name {name!r}: a name has small letters, digits and hyphens, and begins with a "
            "letter, for example "
            f"my-{kind}"
        )
    if kind == _FEDERATION:
        _new_federation(Path(out or name), format)
        return
    if name in register.names(kind):
        raise UsageError(f"{kind} {name!r} is already registered; choose another name")
    path = Path(out or f"{plain}.py")
    if path.suffix != ".py":
        raise UsageError(f"{path}: end the name in .py")
    if path.exists():
        raise UsageError(f"{path} exists; choose another --output")
    write_whole(path, fill_template(kind, name, path).encode(), remedy="choose another --output")
    emit({"file": str(path)}, format, f"{path}\ncheck   fedtrees plugin check {path}")


def new_federation(
    name: Annotated[str, typer.Argument()],
    out: Annotated[str | None, option(OUTPUT, "FOLDER", "-o", "--output")] = None,
    format: Output = Format.TABLE,
) -> None:
    """Write a folder with the agreement of three sites, their tables, and their settings.

    Parameters
    ----------
    name : str
        Its name, such as trial.
    out : str, optional
        Folder to write (default: ./NAME).

    Examples
    --------
    A folder with agreement, tables and settings::

        fedtrees federation new trial

    In another folder::

        fedtrees federation new trial -o examples/trial
    """
    _new_federation(Path(out or name), format)


def _new_federation(folder: Path, format: Format) -> None:
    """Write the folder of an example federation."""
    from fedtrees.federation.trial import make_trial

    if folder.exists():
        raise UsageError(f"{folder} exists; choose another --output")
    trial = make_trial(folder)
    run = f"fedtrees federation run {folder}/federation.toml --poc --sites {folder}/sites -o run"
    facts = {"folder": str(folder), "hash": trial.hash}
    emit(facts, format, f"{folder}\nrun     {run}")


def fill_template(kind: str, name: str, path: Path) -> str:
    """Return the text of a new file: the template with the new name."""
    text = (resources.files("fedtrees.cli") / "templates" / f"{kind}.py").read_text("utf-8")
    old = TEMPLATES[kind]
    text = text.replace(f"{old.replace('-', '_')}.py", path.name)
    # A metric's key has underscores, and two metrics cannot share one.
    text = text.replace(old.replace("-", "_"), name.replace("-", "_"))
    return text.replace(_class_name(old), _class_name(name)).replace(old, name)


def _class_name(name: str) -> str:
    """Return the name of a class for the name of a plug-in."""
    return "".join(part.capitalize() for part in name.split("-"))

"""Write the report of a run: one file, readable offline."""

import json
import tomllib
from pathlib import Path, PurePath
from typing import Any

from fedtrees.core.files import write_text
from fedtrees.report.page import Method, page
from fedtrees.report.rows import read_json, read_text
from fedtrees.report.states import MARGIN
from fedtrees.report.study import Study, study_of


def write_report(run_folder: str | Path, margin: float = MARGIN) -> Path:
    """Write ``report.html`` into a run folder.

    `run_folder`: Holds ``rows.csv``; ``suite.toml``, ``environment.json`` and ``disclosure.json``
    are shown if they are there.
    `margin`: Advantage that a defense may leave and still be called down to blind.

    Raises `StoreError`: the rows cannot be read, or the report cannot be written. Raises
    `UsageError`: the margin is none.

    Returns: The file. The same run gives the same bytes.
    """
    return write_page(study_of(Path(run_folder), margin=margin))


def write_page(study: Study) -> Path:
    """Write ``report.html`` into the folder of a run that was read; raises as `write_report`."""
    return write_text(study.folder / "report.html", render(study))


def render(study: Study) -> str:
    """Return the report as one HTML document."""
    seen = read_json(study.folder, "disclosure.json") or ()
    return page(study.findings, study.rows, _method(study.folder), seen)


def _method(folder: Path) -> Method:
    """Return how the run is made again; a run without these files has no such lines."""
    environment = read_json(folder, "environment.json")
    environment = environment if isinstance(environment, dict) else {}
    command = environment.get("command")
    if isinstance(command, list):
        command = " ".join(map(str, command))
    suite = read_text(folder, "suite.toml")
    text = "(the run kept no suite.toml)" if suite is None else without_folders(suite)
    return Method(str(command or "fedtrees bench --suite suite.toml"), text, _versions(environment))


def _versions(environment: dict[str, Any]) -> str:
    told = {
        k: v for k, v in environment.items() if k not in ("suite", "libraries", "tables", "command")
    }
    parts = [f"{k} {v}" for k, v in sorted(told.items()) if isinstance(v, (str, int, float))]
    libraries = environment.get("libraries")
    if isinstance(libraries, dict):
        parts += [f"{k} {v}" for k, v in sorted(libraries.items())]
    for table in environment.get("tables") or ():
        if isinstance(table, dict):
            parts.append(f"{PurePath(str(table.get('file'))).name}: sha256 {table.get('sha256')}")
    return "; ".join(parts)


def without_folders(suite: str) -> str:
    """Return a suite with files by their names alone: where they lie is their owner's affair.

    A suite that cannot be parsed, which no run writes, is not shown.
    """
    try:
        grids = tomllib.loads(suite).get("grid", [])
        tables = [table for grid in grids for table in grid.get("data", ()) if "csv" in table]
        paths = {str(t["csv"]): _files(str(t["csv"]), "id" in t) for t in tables}
    except (AttributeError, RecursionError, TypeError, ValueError):
        return "(not shown: it cannot be parsed)"
    for path, parts in paths.items():
        names = ",".join(PurePath(part).name for part in parts)
        suite = suite.replace(_toml(path), _toml(names))
        if names != path and path in suite:
            return "(not shown: it names the folders of tables)"
    return suite


def _files(csv: str, joined: bool) -> list[str]:
    """Return the files that a table is read from: a comma may stand in a folder's name, too."""
    parts = csv.split(",")
    return parts if joined or all(PurePath(part).suffix for part in parts) else [csv]


def _toml(text: str) -> str:
    """Write a text as suites do."""
    return json.dumps(text, ensure_ascii=False).replace("\x7f", "\\u007f")

"""Write the report of a run as one HTML file that needs no network."""

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
    """Write ``report.html`` into a run folder. The same run gives the same bytes.

    Parameters
    ----------
    run_folder : str or Path
        Folder with ``rows.csv``. The files ``suite.toml``, ``environment.json`` and
        ``disclosure.json`` are shown if they exist.
    margin : float
        Largest advantage under a defense that counts as no better than a blind guess.

    Returns
    -------
    path : Path
        The written file.

    Raises
    ------
    StoreError
        If the rows cannot be read or the report cannot be written.
    UsageError
        If the margin is not valid.
    """
    return write_page(study_of(Path(run_folder), margin=margin))


def write_page(study: Study) -> Path:
    """Write ``report.html`` into the folder of a run. For errors see `write_report`."""
    return write_text(study.folder / "report.html", render(study))


def render(study: Study) -> str:
    """Return the report as one HTML document."""
    seen = read_json(study.folder, "disclosure.json") or ()
    return page(study.findings, study.rows, _read_method(study.folder), seen)


def _read_method(folder: Path) -> Method:
    """Read the command, the suite and the versions that reproduce a run.

    Files that are missing are replaced by default texts.
    """
    environment = read_json(folder, "environment.json")
    environment = environment if isinstance(environment, dict) else {}
    command = environment.get("command")
    if isinstance(command, list):
        command = " ".join(map(str, command))
    suite = read_text(folder, "suite.toml")
    text = "(the run kept no suite.toml)" if suite is None else without_folders(suite)
    return Method(
        str(command or "fedtrees bench --suite suite.toml"), text, _describe_versions(environment)
    )


def _describe_versions(environment: dict[str, Any]) -> str:
    """Write the versions of software and the digests of tables in one line."""
    facts = {
        k: v for k, v in environment.items() if k not in ("suite", "libraries", "tables", "command")
    }
    parts = [f"{k} {v}" for k, v in sorted(facts.items()) if isinstance(v, (str, int, float))]
    libraries = environment.get("libraries")
    if isinstance(libraries, dict):
        parts += [f"{k} {v}" for k, v in sorted(libraries.items())]
    for table in environment.get("tables") or ():
        if isinstance(table, dict):
            parts.append(f"{PurePath(str(table.get('file'))).name}: sha256 {table.get('sha256')}")
    return "; ".join(parts)


def without_folders(suite: str) -> str:
    """Return the text of a suite with the names of its files instead of their paths.

    The paths can reveal private information about the computer on which the run was made. A suite
    that cannot be parsed, or that still contains a path, is not shown.
    """
    try:
        grids = tomllib.loads(suite).get("grid", [])
        tables = [table for grid in grids for table in grid.get("data", ()) if "csv" in table]
        paths = {str(t["csv"]): _split_files(str(t["csv"]), "id" in t) for t in tables}
    except (AttributeError, RecursionError, TypeError, ValueError):
        return "(not shown: it cannot be parsed)"
    for path, parts in paths.items():
        names = ",".join(PurePath(part).name for part in parts)
        suite = suite.replace(_toml_string(path), _toml_string(names))
        # A path that occurs in another notation, for example in a comment, cannot be replaced
        # reliably.
        if names != path and path in suite:
            return "(not shown: it names the folders of tables)"
    return suite


def _split_files(csv: str, joined: bool) -> list[str]:
    """Return the files from which a table is read. A comma can also be part of a folder's name."""
    parts = csv.split(",")
    return parts if joined or all(PurePath(part).suffix for part in parts) else [csv]


def _toml_string(text: str) -> str:
    """Write a text as a TOML string, in the same way as suites are written."""
    return json.dumps(text, ensure_ascii=False).replace("\x7f", "\\u007f")

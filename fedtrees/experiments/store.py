"""The run folder: cells that appear whole or not at all, and the tidy table made of them."""

from __future__ import annotations

import contextlib
import hashlib
import json
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

from fedtrees import __version__
from fedtrees.core import results
from fedtrees.core.errors import StoreError
from fedtrees.core.files import locked, parse_json, sweep, write_listed, write_whole

_SEAL = b', "sha256": "'
FOR_OWNER = 0o700  # of a run folder: rows of private tables may stand in it
#: Key of ``environment.json`` under which it holds ``suite.toml``, to make a damaged one again.
COPY = "suite"
_REMEDY = "finished cells are safe: make room or permission, then run again with --resume"


class Store:
    """A run folder."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.cells = folder / "cells"

    @property
    def name(self) -> str:
        """Name of the run: its folder's."""
        return self.folder.resolve().name

    def create(self, suite_toml: str, environment: Mapping[str, Any]) -> None:
        """Make the folder, for its owner alone, and describe the run in it.

        A folder that was there keeps its rights; what parties held and sent is in ``cells``.
        """
        try:
            self.folder.mkdir(mode=FOR_OWNER, parents=True, exist_ok=True)
            self.cells.mkdir(mode=FOR_OWNER, exist_ok=True)
            with contextlib.suppress(OSError):  # somebody else's
                self.cells.chmod(FOR_OWNER)  # where an earlier version made it
        except OSError as err:
            raise StoreError(f"cannot make {self.cells}: {err.strerror or err}") from err
        described = {**environment, COPY: suite_toml}
        text = json.dumps(described, indent=2, sort_keys=True)
        write_listed(self.folder, "environment.json", text.encode())
        write_listed(self.folder, "suite.toml", suite_toml.encode())  # the last: now it is a run

    def exists(self) -> bool:
        """Tell whether the folder holds a run."""
        return (self.folder / "suite.toml").is_file()

    def check_version(self) -> None:
        """Refuse a run written by another version."""
        path = self.folder / "environment.json"
        try:
            found = parse_json(path.read_bytes(), path.name).get("fedtrees")
        except (OSError, StoreError, AttributeError) as err:
            raise StoreError(f"{path} cannot be read ({err}); is {self.folder} a run?") from err
        if found != __version__:
            raise StoreError(
                f"{self.folder} was written by fedtrees {found}, this is {__version__}; results "
                "of two versions are not mixed: choose another --out"
            )

    def read(self, cell_id: str) -> dict[str, Any] | None:
        """Return a finished cell, None if it is missing or not what was written."""
        try:
            content = (self.cells / f"{cell_id}.json").read_bytes()
        except OSError:
            return None
        body, _, seal = content.rpartition(_SEAL)
        if seal != _digest(body) + b'"}':
            return None
        cell: dict[str, Any] = json.loads(body + b"}")
        return cell if cell["id"] == cell_id else None

    def claim(self, cell_id: str) -> contextlib.AbstractContextManager[None]:
        """Hold a cell while it is computed; whoever else wants it waits.

        Workers may outlive a killed run for a moment, and a second ``--resume`` may share the
        folder.
        """
        return locked(self.folder, int(cell_id[:12], 16))

    def sweep(self) -> None:
        """Remove what writers that were killed left behind."""
        sweep(self.folder)
        sweep(self.cells)

    def write(self, cell: Mapping[str, Any]) -> None:
        """Write one finished cell under a checksum of it.

        Raises `UsageError` if a row has a column that is not known, or a value of the wrong kind.
        Raises `StoreError` if the file cannot be written.
        """
        body = json.dumps(typed(cell), allow_nan=False).encode()[:-1]
        content = body + _SEAL + _digest(body) + b'"}'
        path, flush = self.cells / f"{cell['id']}.json", cell["status"] != "skipped"
        write_whole(path, content, remedy=_REMEDY, flush=flush)

    def write_rows(self, cell_results: Iterable[Mapping[str, Any] | None]) -> int:
        """Write ``rows.csv`` from the results of cells, and return how many are missing.

        Parameters
        ----------
        cell_results : iterable of mapping or None
            Results in the order of the rows. None: the cell has no result. A cell that is in a
            plan twice, with its parameters in another order, is written once.
        """
        missing, written = 0, set[str]()

        def made() -> Iterator[dict[str, Any]]:
            nonlocal missing
            for result in cell_results:
                if result is None:
                    missing += 1
                    continue
                rows_of_cell = [] if result["id"] in written else result["rows"]
                written.add(result["id"])
                for row in rows_of_cell:
                    yield {"run": self.name, **result["common"], **row, "version": __version__}

        write_listed(self.folder, "rows.csv", results.write(made()).encode())
        write_listed(self.folder, "columns.csv", results.described().encode())
        return missing


def typed(cell: Mapping[str, Any]) -> dict[str, Any]:
    """Return the result of a cell with its rows as plain JSON types.

    Raises `UsageError` as `Store.write`.
    """
    plain_rows = [results.plain(row) for row in cell["rows"]]
    return {**cell, "common": results.plain(cell["common"]), "rows": plain_rows}


def _digest(body: bytes) -> bytes:
    return hashlib.sha256(body).hexdigest().encode()
